/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers as processes: one is started by uv_spawn of the shim, has pipes for its two outputs and a flight page, and is
 * signalled as a process group. Everything runs on the loop's thread; decides nothing.
 */
#ifndef SPAWN_H
#define SPAWN_H

#include "launcher/ranklog.h"
#include "protocol/flight.h"

#include <limits.h>
#include <uv.h>

#define SPAWN_FLIGHT_FD 3 /* of a worker; the shim knows it too */

struct worker;

struct worker_events {
    /* Bytes of stream 1 or 2, valid during the call; n 0: the stream has ended. */
    void (*output)(struct worker *w, int stream, const char *bytes, size_t n);
    /* The process is gone: w->exited and what follows it are set. */
    void (*exited)(struct worker *w);
};

struct worker {
    uv_process_t process;
    uv_pipe_t pipes[2]; /* its stdout and stderr */
    struct ranklog logs[2];
    struct cdi_flight *flight;
    int flight_fd; /* kept open for /proc/PID/fd/N */
    int exec_fd;   /* errno of a failed exec; -1 */
    uint32_t local_rank;
    int32_t rank;
    int pid;
    int64_t started_ms; /* monotonic */
    bool spawned;       /* process is a handle */
    bool piped[2];      /* pipes[i] is a handle and has not ended */
    bool exited;
    int exit_code, exit_signal; /* of an exited one */
    bool dumped;                /* it left a core */
    int exec_errno;             /* its program could not be run; 0 */
    int64_t ended_ms;
    const struct worker_events *on;
    void *arg; /* the caller's */
    int open_handles;
    const struct spawn_context *ctx;
    void (*closed)(struct worker *w);
};

/* What all workers of an agent share. */
struct spawn_context {
    uv_loop_t *loop;
    char shim[PATH_MAX];
    uint64_t mask, ignored; /* guard_link's */
    int64_t nofile;         /* RLIMIT_NOFILE to give back to workers; -1: as it is */
    char *read_buf;         /* of SPAWN_READ bytes, for all pipes in turn; the caller's */
};
#define SPAWN_READ 65536

/*
 * Find the shim, and raise this process's limit of open files as far as n_procs workers need it. CDDP_E_NOT_FOUND,
 * CDDP_E_LIMIT with a sentence.
 */
cddp_status spawn_prepare(struct spawn_context *ctx, uint32_t n_procs, struct cdi_error *err);
/* Can `program` be run? CDDP_OK, or a sentence, and *exit_status is 127 (not found) or 126 (not executable). */
cddp_status spawn_check_program(const char *program, int *exit_status, struct cdi_error *err);

/*
 * A page, then a process. w: zeroed, and rank, local_rank, on, arg set. flight_env is a buffer for CDDP_FLIGHT, filled
 * by worker_make_page. After worker_start, whatever it returned, worker_close is due. stdin_fd -1: /dev/null.
 */
cddp_status worker_make_page(struct worker *w, uint32_t epoch, char *flight_env, size_t cap, struct cdi_error *err);
cddp_status worker_start(struct worker *w, const struct spawn_context *ctx, char **args, char **env, int stdin_fd,
                         struct cdi_error *err);
/* To the process group; nothing once it has exited. */
void worker_kill(struct worker *w, int signal);
/* Stop and go on reading its output; pausing what has ended does nothing. */
void worker_pause(struct worker *w, bool pause);
/* Has a stream of it not ended yet? */
bool worker_has_output(const struct worker *w);
/* Before libuv reaps: note what only the kernel's own record says (a core). Any time. */
void worker_look(struct worker *w);
/* Close its handles and pages; closed(w) comes from the loop once nothing refers to w any more, or at once. */
void worker_close(struct worker *w, void (*closed)(struct worker *w));

/*
 * Call children(h) after each SIGCHLD. Where h lies before the loop in one struct, libuv calls it before it reaps (its
 * order is by address), which worker_look() wants.
 */
cddp_status spawn_watch(uv_loop_t *loop, uv_signal_t *h, void (*children)(void *handle), struct cdi_error *err);
/* Reap adopted orphans, leaving the n workers at `workers` to libuv. */
void spawn_reap_orphans(const struct worker *workers, uint32_t n);

#endif
