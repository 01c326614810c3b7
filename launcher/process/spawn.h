/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers as processes: one is started by clone and exec of the shim, has pipes for its two outputs and a flight
 * page, and is signalled as a process group: in our session if we lead it, else in one of its own. Everything runs on
 * the loop's thread; decides nothing.
 */
#ifndef SPAWN_H
#define SPAWN_H

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
    uv_poll_t master_poll; /* in place of pipes[0] where on_pty */
    int master;            /* -1: not open */
    struct cdi_flight *flight;
    int flight_fd; /* kept open for /proc/PID/fd/N */
    int exec_fd;   /* errno of a failed exec; -1 */
    uint32_t local_rank;
    int32_t rank;
    int pid;
    bool interactive;   /* it has our terminal: our own stdin, stdout and stderr, session and group */
    bool wants_pty;     /* its stdout is to be a pseudo-terminal */
    bool needs_pty;     /* and a pipe is no substitute */
    bool on_pty;        /* its stdout is one */
    int pty_errno;      /* why it is a pipe although it wants the other; 0 */
    uint32_t front;     /* columns of the window that the prefix of its lines takes */
    int64_t started_ms; /* monotonic */
    bool piped[2];      /* stream i + 1 is read and has not ended */
    bool exited;
    bool told;                  /* the caller's: it knows of the exit */
    int exit_code, exit_signal; /* of an exited one */
    bool dumped;                /* it left a core */
    int exec_errno;             /* its program could not be run; negative: it could not be bound to cpus; 0 */
    int64_t ended_ms;
    const struct worker_events *on;
    void *arg; /* the caller's */
    int open_handles;
    const char *cpus; /* where it may run; NULL: where the agent may */
    const struct spawn_context *ctx;
    struct spawn_child *child; /* until it has been settled */
    void (*closed)(struct worker *w);
};

/* What all workers of an agent share. */
struct spawn_context {
    uv_loop_t *loop;
    char shim[PATH_MAX];
    char program[PATH_MAX]; /* the file that is executed */
    int null_fd;            /* /dev/null; -1: not open */
    uint64_t mask, ignored; /* guard_link's */
    int64_t nofile;         /* RLIMIT_NOFILE to give back to workers; -1: as it is */
    char *read_buf;         /* of SPAWN_READ bytes, for all pipes in turn; the caller's */
};
#define SPAWN_READ 65536

/*
 * Find the shim, and raise this process's limit of open files to what is allowed, which must do for n_procs workers;
 * the rest of ctx stays as it is. Before the process has a second thread. CDDP_E_NOT_FOUND, CDDP_E_LIMIT with a
 * sentence; spawn_release() is due in any case.
 */
cddp_status spawn_prepare(struct spawn_context *ctx, uint32_t n_procs, struct cdi_error *err);
void spawn_release(struct spawn_context *ctx);
/*
 * Find `program`, in PATH where it has no slash: the file into path (of PATH_MAX bytes). CDDP_OK, or a sentence, and
 * *exit_status is 127 (not found) or 126 (not executable).
 */
cddp_status spawn_find_program(const char *program, char *path, int *exit_status, struct cdi_error *err);

/*
 * A page, then a process. w: zeroed, and rank, local_rank, on, arg set, master -1. flight_env is a buffer for
 * CDDP_FLIGHT, filled by worker_make_page. After worker_start, whatever it returned, worker_close is due. stdin_fd -1:
 * /dev/null.
 *
 * worker_start does not wait for the new process, which still uses args and env: they must stay until worker_settle(),
 * which waits (for the exec of the shim), and after which the process also has its group to be signalled by.
 */
cddp_status worker_make_page(struct worker *w, uint32_t epoch, char *flight_env, size_t cap, struct cdi_error *err);
cddp_status worker_start(struct worker *w, const struct spawn_context *ctx, char *const *args, char **env, int stdin_fd,
                         struct cdi_error *err);
void worker_settle(struct worker *w);
/* To the process group; nothing once it has exited. */
void worker_kill(struct worker *w, int signal);
/* Stop and go on reading its output; pausing what has ended does nothing. */
void worker_pause(struct worker *w, bool pause);
/* Gives its pseudo-terminal, if it has one, the size of our window, and tells the worker (SIGWINCH). */
void worker_resize(struct worker *w);
/* Of a worker that has exited: read now what is in its pipe for stderr, up to a limit. */
void worker_drain(struct worker *w);
/* Has a stream of it not ended yet? */
/* Has it exited, and has it left no process behind in its group? */
bool worker_left_nobody(const struct worker *w);
bool worker_has_output(const struct worker *w);
/* Close its handles and pages; closed(w) comes from the loop once nothing refers to w any more, or at once. */
void worker_close(struct worker *w, void (*closed)(struct worker *w));

/* children(arg) is called from the loop after each SIGCHLD, until handle is closed. */
struct spawn_watch {
    uv_signal_t handle;
    void (*children)(void *arg);
    void *arg;
};
cddp_status spawn_watch_start(struct spawn_watch *w, uv_loop_t *loop, struct cdi_error *err);
/*
 * Reap one child that is dead: *worker is the one of the n at `workers` that it was, with exited and what follows it
 * set, or NULL for an adopted orphan. False: none is dead. Never blocks.
 */
bool spawn_reap(struct worker *workers, uint32_t n, struct worker **worker);

#endif
