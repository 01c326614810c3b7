/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers as processes. A worker is started by clone and exec of the shim, has pipes for its two outputs and a flight
 * page, and is signalled as a process group: in the agent's session if the agent leads it, otherwise in a separate one.
 * Everything runs on the loop's thread; decides nothing.
 */
#ifndef SPAWN_H
#define SPAWN_H

#include "launcher/process/exec_failure.h"
#include "protocol/flight.h"

#include <limits.h>
#include <uv.h>

#define SPAWN_FLIGHT_FD 3 /* of a worker; the shim knows it too */

struct worker;
struct spawn_child;

struct worker_events {
    /* Bytes of stream 1 or 2, valid during the call; n 0: the stream has ended. */
    void (*output)(struct worker *w, int stream, const char *bytes, size_t n);
};

struct worker {
    uv_pipe_t pipes[2];    /* its stdout and stderr */
    uv_poll_t master_poll; /* instead of pipes[0] if on_pty */
    int master;            /* -1: not open */
    struct cdi_flight *flight;
    int flight_fd; /* kept open for /proc/PID/fd/N */
    int exec_fd;   /* why its program does not run; -1 */
    uint32_t local_rank;
    int32_t rank;
    int pid;
    bool interactive;   /* it has the agent's terminal: its stdin, stdout, stderr, session and group */
    bool wants_pty;     /* its stdout is to be a pseudo-terminal */
    bool needs_pty;     /* and a pipe is not accepted instead */
    bool on_pty;        /* its stdout is one */
    int pty_errno;      /* why its stdout is a pipe instead; 0 */
    uint32_t front;     /* columns of the window that the prefix of its lines takes */
    int64_t started_ms; /* monotonic */
    int64_t started_wall_ms;
    bool piped[2]; /* stream i + 1 is read and has not ended */
    bool exited;
    bool reported;                  /* the caller's: the exit was reported */
    int exit_code, exit_signal;     /* of an exited one */
    bool dumped;                    /* it dumped a core */
    int exec_errno;                 /* its program could not be run; 0 */
    enum exec_failure exec_failure; /* the step that failed */
    int64_t ended_ms;
    const struct worker_events *on;
    void *arg; /* the caller's */
    int open_handles;
    const char *cpus; /* the cores it may use; NULL: those of the agent */
    const struct spawn_context *ctx;
    struct spawn_child *child; /* until worker_wait_exec() */
    void (*closed)(struct worker *w);
};

/* What all workers of an agent share. */
struct spawn_context {
    uv_loop_t *loop;
    char shim[PATH_MAX];
    char program[PATH_MAX]; /* the file that is executed */
    const char *preflight;  /* the mode of cddp-preflight, which becomes the program after its checks; NULL: none */
    const char *host;       /* the name of this node in messages, for cddp-preflight */
    char preflight_program[PATH_MAX];
    int null_fd;            /* /dev/null; -1: not open */
    int crash_fd;           /* by which workers that crash call this process; 0: they do not */
    uint64_t mask, ignored; /* guard_link's */
    int64_t nofile;         /* RLIMIT_NOFILE to restore in workers; -1: unchanged */
    char *read_buf;         /* of SPAWN_READ bytes, for all pipes in turn; the caller's */
};
#define SPAWN_READ 65536

/*
 * Finds the shim, and raises this process's limit of open files to the maximum, which must suffice for n_procs workers;
 * the rest of ctx stays unchanged. Call it before the process has a second thread. CDDP_E_NOT_FOUND, CDDP_E_LIMIT with
 * an error message. Call spawn_release() in any case.
 */
cddp_status spawn_prepare(struct spawn_context *ctx, uint32_t n_procs, struct cdi_error *err);
void spawn_release(struct spawn_context *ctx);
/*
 * Finds `program`, in PATH if it has no slash, and writes its file to path (of PATH_MAX bytes). On failure there is an
 * error message, and *exit_status is 127 (not found) or 126 (not executable).
 */
cddp_status spawn_find_program(const char *program, char *path, int *exit_status, struct cdi_error *err);

/*
 * Creates a flight page, then a process. w: zeroed, with rank, local_rank, on and arg set, and master -1.
 * worker_make_page writes the value of CDDP_FLIGHT to flight_env. Call worker_close after worker_start, whatever it
 * returned. stdin_fd -1: /dev/null.
 *
 * worker_start does not wait for the new process, which still uses args and env: they must stay valid until
 * worker_wait_exec(). That waits for the exec of the shim; from then on the process has its process group.
 */
cddp_status worker_make_page(struct worker *w, uint32_t epoch, char *flight_env, size_t cap, struct cdi_error *err);
cddp_status worker_start(struct worker *w, const struct spawn_context *ctx, char *const *args, char **env, int stdin_fd,
                         struct cdi_error *err);
void worker_wait_exec(struct worker *w);
/* Sends a signal to the process group; does nothing after the worker has exited. */
void worker_kill(struct worker *w, int signal);
/* Pauses and resumes reading its output; does nothing for a stream that has ended. */
void worker_pause(struct worker *w, bool pause);
/* Sets its pseudo-terminal, if it has one, to the size of cddprun's window, and sends the worker SIGWINCH. */
void worker_resize(struct worker *w);
/* Reads the rest of an exited worker's stderr, up to a limit. */
void worker_drain(struct worker *w);
/* Returns whether one of its streams is still open. */
/* Returns whether it has exited, and no process of its group is left. */
bool worker_left_nobody(const struct worker *w);
bool worker_has_output(const struct worker *w);
/* Closes its handles and pages. closed(w) is called when w is not used any more: from the loop, or immediately. */
void worker_close(struct worker *w, void (*closed)(struct worker *w));

/* children(arg) is called from the loop after each SIGCHLD, until handle is closed. */
struct spawn_watch {
    uv_signal_t handle;
    void (*children)(void *arg);
    void *arg;
};
cddp_status spawn_watch_start(struct spawn_watch *w, uv_loop_t *loop, struct cdi_error *err);
/*
 * Reaps one dead child. *worker is that one of the n at `workers`, with exited, exit_code, exit_signal and dumped set,
 * or NULL for an adopted orphan. Returns false if no child is dead. Never blocks.
 */
bool spawn_reap(struct worker *workers, uint32_t n, struct worker **worker);

#endif
