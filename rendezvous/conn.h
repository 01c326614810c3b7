/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One accepted connection in libuv: buffers with limits, deadlines, and one clean close. What the bytes mean is decided
 * above, through struct conn_ops (see dispatch.h). The server owns the lists and the jobs. Loop thread only.
 *
 *   SNIFFING -> STORE | HTTP -> LINGERING (input is ignored, queued bytes are written) -> CLOSING
 *       `-----> HELLO -> STORE | QUERY | NEW (an agent of a job that does not exist yet) -> CONTROL
 *
 * An overflow connection exceeds a limit. The server accepts it only to reject it with a message in its own protocol.
 */
#ifndef RDZV_CONN_H
#define RDZV_CONN_H

#include "common/buf.h"
#include "common/list.h"
#include "common/log.h"
#include "protocol/auth.h"
#include "protocol/hello.h"
#include "protocol/message.h"
#include "rendezvous/access.h"
#include "rendezvous/agent_addrs.h"
#include "rendezvous/drop_log.h"
#include "rendezvous/view/history.h"
#include "store/serve.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>
#include <uv.h>

#define CONN_DENIED_MAX 64
#define CONN_KEEP 16384 /* bytes; an empty buffer larger than this is freed */

struct rdzv_views;
struct session;
struct view;

enum conn_state {
    CONN_SNIFFING,
    CONN_HELLO,
    CONN_NEW,
    CONN_STORE,
    CONN_CONTROL,
    CONN_HTTP,
    CONN_QUERY,
    CONN_LINGERING,
    CONN_CLOSING,
};

/* Why an overflow connection is rejected. */
enum conn_reject {
    CONN_ACCEPTED,
    CONN_REJECT_NO_FILES, /* the process has reached its limit of open files */
    CONN_REJECT_TOO_MANY, /* max_connections are open */
};

/* Kinds of deadlines. All connections of a kind have the same time, so each list is in order. */
enum conn_due {
    CONN_DUE_OPEN,   /* to send its first request */
    CONN_DUE_REJECT, /* overflow: to send it, and to read the rejection */
    CONN_DUE_LINGER, /* LINGERING: to read what is queued */
    CONN_DUE_END,    /* the same, when its job or the server ends */
    CONN_DUE_QUERY,  /* QUERY: to ask again */
    CONN_N_DUES,
};

/* The part of a job that its connections use. */
struct conn_job {
    struct cdi_list link; /* in ctx->jobs */
    char run_id[256];
    struct session *session;
    struct view *view;                   /* reports about its ranks */
    uint16_t port;                       /* for the job's ranks */
    size_t n_conns;                      /* not closed yet */
    uint64_t operations[CDI_C10D_N_OPS]; /* requests to its store, by kind */
    uint64_t measured;                   /* sum of operations[] at measured_ms */
    int64_t measured_ms;
    double operations_per_s;
    size_t number;  /* used by snapshot.c */
    uint32_t asked; /* the last ASK to its agents; 0: none */
    int64_t asked_ms;
    bool brief;             /* it asked for the pages only */
    bool sampled;           /* its answers are in the history */
    struct history history; /* of its steps, for the pages */
};

struct conn;
struct conn_ctx;

/* Events for the layer above. Each may close or finish the connection. */
struct conn_ops {
    /* n bytes were received; valid and writable during the call. Not called while LINGERING. */
    void (*received)(struct conn *c, uint8_t *bytes, size_t n);
    /* After conn_pause(): all replies are written; process the requests in c->in. */
    void (*resumed)(struct conn *c);
    /* The peer closed or reset the connection. Returns true if it closed or finished it; otherwise conn.c does. */
    bool (*ended)(struct conn *c);
    /* The deadline passed before a complete request was received. */
    void (*overdue)(struct conn *c);
};

/* State that all connections of a server share. */
struct conn_ctx {
    uv_loop_t *loop;
    const struct conn_ops *ops;
    const struct rdzv_views *views;
    struct conn_job *only;              /* the only job; NULL: agents create jobs */
    const struct cdi_secret *secret;    /* NULL: none */
    enum rdzv_access plain_store, http; /* clients without a proof */
    struct cdi_list jobs;               /* struct conn_job */
    struct cdi_list conns;              /* struct conn, those not closed yet */
    struct cdi_list dirty;              /* with bytes to write */
    struct cdi_list due[CONN_N_DUES];   /* by kind of deadline, the earliest first */
    int64_t due_ms[CONN_N_DUES];        /* time for each kind */
    struct cdi_list busy;               /* with an incomplete request or unwritten replies */
    struct agent_addrs agent_addrs;     /* of the connections in CONN_CONTROL */
    size_t n_open;                      /* until the close callback */
    size_t n_overflow;                  /* of n_open */
    size_t n_closing;                   /* of n_open without overflow, with closed descriptors */
    size_t n_overflow_files;            /* of n_overflow, with open descriptors */
    size_t crowded;                     /* from this number on, unproved connections give way to new ones */
    size_t max_connections;             /* without overflow; SIZE_MAX: limited by descriptors only */
    const char *max_flag;               /* the flag that sets it, for error messages */
    size_t buffered, max_buffered;      /* bytes in the buffers of all connections */
    int64_t stall_ms;
    int64_t started_ms, started_wall_ms;
    uint64_t n_accepted, n_dropped;
    struct drop_log drops;
    bool closing, draining;
    struct conn_job *(*find_job)(struct conn_ctx *ctx, const char *run_id);
    /* Returns CDDP_E_LIMIT or CDDP_E_EXISTS (no room now), or CDDP_E_CLOSED (the job of the session is over). */
    cddp_status (*make_job)(struct conn_ctx *ctx, const struct cdi_msg_join *join, struct conn_job **out,
                            struct cdi_error *err);
    /* A connection of `job` (NULL: of none) was freed. */
    void (*conn_closed)(struct conn_ctx *ctx, struct conn_job *job);
    struct in6_addr denied[CONN_DENIED_MAX]; /* addresses whose failed authentication is logged */
    size_t n_denied;
    struct cdi_list asking; /* struct conn, those that wait for answers of agents */
    uv_timer_t ask_timer;   /* runs while there are any */
    size_t n_queries;       /* connections in CONN_QUERY */
    uint8_t scratch[65536];
};

struct conn {
    uv_tcp_t tcp; /* first */
    struct conn_ctx *ctx;
    struct cdi_list link, dirty, due, busy;
    enum conn_state state;
    enum conn_reject reject;
    struct conn_job *port_job; /* job whose port it connected to; NULL: the shared port */
    struct conn_job *job;      /* NULL: not known yet */
    struct cdi_hello_server hello;
    struct sockaddr_storage addr;
    struct cdi_buf in, out, flying; /* flying: passed to uv_write() */
    uv_write_t write;
    uv_shutdown_t shutdown;
    bool writing, paused, shut;
    size_t held;         /* its part of ctx->buffered */
    int64_t deadline_ms; /* while it is in a list of ctx->due: SNIFFING, HELLO, NEW, HTTP, LINGERING */
    int64_t begun_ms;    /* STORE: when the incomplete request began */
    int64_t progress_ms; /* when the write queue last shrank */
    size_t queue_seen;
    struct cdi_serve serve; /* STORE */
    struct cdi_list asking; /* see poll_agents.h, as for the next four */
    struct conn_job *asks;  /* NULL: about all jobs */
    int64_t ask_from_ms, ask_until_ms;
    void (*ask_answer)(struct conn *c);
    char ask_name[256]; /* QUERY: the job's name; "": all */
    bool agent;         /* `peer` is attached to the job's session */
    uint32_t peer;
    bool broken;   /* ended by an error, such as a reset */
    char why[160]; /* reason for the close, for the session */
};

/* Initializes *ctx. A connection has undecided_ms to send its first request. */
void conn_ctx_init(struct conn_ctx *ctx, uv_loop_t *loop, int64_t undecided_ms);
/* Creates a connection that owns fd, which an error closes, too. Returns CDDP_OK, CDDP_E_NOMEM or CDDP_E_SYSTEM. */
cddp_status conn_open(struct conn_ctx *ctx, int fd, const struct sockaddr_storage *addr, struct conn_job *port_job,
                      enum conn_reject reject);
/*
 * Closes one connection to make room for a new one: the oldest that only waits for the peer's close, or that has
 * neither proved the auth token nor sent a request. Returns false if there is none, or only young ones.
 */
bool conn_make_room(struct conn_ctx *ctx);
/* Closes now and discards queued bytes. Logs `why` once, at `level`. Idempotent. */
void conn_close(struct conn *c, enum cdi_log_level level, const char *why);
/* Ignores further input, writes queued bytes, then closes. due: CONN_DUE_LINGER or CONN_DUE_END, the time limit. */
void conn_finish(struct conn *c, enum conn_due due, enum cdi_log_level level, const char *why);
/* Sets a deadline of this kind, in place of the one before. */
void conn_set_due(struct conn *c, enum conn_due kind);
/* Queues bytes. Closes a connection whose queue is full. */
void conn_send(struct conn *c, const void *bytes, size_t len);
/* Makes the next conn_flush_all() write c->out. */
void conn_mark_dirty(struct conn *c);
/* Writes as much of c->out as the socket accepts, and the rest asynchronously. May close. */
void conn_flush(struct conn *c);
/* Stops reading until all replies are written; then ops->resumed() is called. Needs queued bytes. */
void conn_pause(struct conn *c);
/* Checks it for progress at every tick until no request or reply is incomplete. */
void conn_watch(struct conn *c);
/* Returns true if a slot will be free soon: some connections are closing, or have sent no request yet. */
bool conn_room_soon(const struct conn_ctx *ctx);
/* Returns the peer's address; IPv4 addresses are mapped. */
struct in6_addr conn_ip(const struct sockaddr_storage *addr);
/* Writes the queued bytes of all connections. Call it at the end of a callback. */
void conn_flush_all(struct conn_ctx *ctx);
/* Checks deadlines and progress. Idle connections cost nothing. */
void conn_tick(struct conn_ctx *ctx);

/* Returns the number of bytes not written yet. */
static inline size_t conn_queued(const struct conn *c)
{
    return c->out.len + c->flying.len;
}

/* Returns the job after this one, the first one for NULL, or NULL at the end. */
static inline struct conn_job *conn_next_job(const struct conn_ctx *ctx, const struct conn_job *job)
{
    struct cdi_list *link = job == NULL ? ctx->jobs.next : job->link.next;

    return link == &ctx->jobs ? NULL : cdi_list_of(link, struct conn_job, link);
}

static inline int64_t conn_now_ms(const struct conn_ctx *ctx)
{
    return (int64_t)uv_now(ctx->loop);
}

/* Returns Unix time. */
static inline int64_t conn_wall_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

#endif
