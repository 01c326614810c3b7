/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One accepted connection in libuv: sniff, perhaps a HELLO, then store, control or http; bytes in, a write queue with a
 * limit out, one clean close. It belongs to a server, which owns the lists and the jobs. Loop thread only.
 *
 *   SNIFFING -> STORE | HTTP -> LINGERING (nothing is taken any more, what is queued is written) -> CLOSING
 *       `-----> HELLO -> STORE | NEW (an agent of a job that is not here yet) -> CONTROL
 *
 * A visitor is one that there is no room for: it is taken only to be told so, in the protocol that it speaks, and
 * leaves.
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
#include "store/serve.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>
#include <uv.h>

#define CONN_DENIED_MAX 64
#define CONN_NAME 80
#define CONN_KEEP 16384 /* an empty buffer larger than this is freed */

struct session;

enum conn_state {
    CONN_SNIFFING,
    CONN_HELLO,
    CONN_NEW,
    CONN_STORE,
    CONN_CONTROL,
    CONN_HTTP,
    CONN_LINGERING,
    CONN_CLOSING,
};

/* Why there is no room for a connection. */
enum conn_reject {
    CONN_ACCEPTED,
    CONN_REJECT_NO_FILES, /* this process may open no more files */
    CONN_REJECT_TOO_MANY, /* there are max_connections */
};

/* What a connection has a deadline for. All of a kind have the same time for it. */
enum conn_due {
    CONN_DUE_OPEN,   /* to say what it wants */
    CONN_DUE_REJECT, /* a visitor: to say that, and to leave */
    CONN_DUE_LINGER, /* LINGERING: to take what is queued for it */
    CONN_DUE_END,    /* the same when its job, or the server, ends */
    CONN_N_DUES,
};

/* A job as its connections see it. */
struct conn_job {
    struct cdi_list link; /* in ctx->jobs */
    char run_id[256];
    struct session *session;
    uint16_t port;                       /* that its ranks use */
    size_t n_conns;                      /* that are not closed yet */
    uint64_t operations[CDI_C10D_N_OPS]; /* of its store, in sum */
    uint64_t measured;                   /* of them, at measured_ms: for operations_per_s */
    int64_t measured_ms;
    double operations_per_s;
    size_t number; /* snapshot.c's */
};

struct conn;
struct conn_ctx;

/* What the layer above does with a connection. Each may close or finish it. */
struct conn_ops {
    /* n bytes have arrived; they are valid, and may be changed, during the call. Not called while LINGERING. */
    void (*received)(struct conn *c, uint8_t *bytes, size_t n);
    /* After conn_pause(): all replies are written, so requests in c->in can go on. */
    void (*resumed)(struct conn *c);
    /* The peer closed or reset it. Returns true if it is closed or finished with a reason; otherwise conn.c closes. */
    bool (*ended)(struct conn *c);
    /* Its deadline passed before it said what it wants. */
    void (*overdue)(struct conn *c);
};

/* What connections share; the server has one. */
struct conn_ctx {
    uv_loop_t *loop;
    const struct conn_ops *ops;
    struct conn_job *only;              /* the server has this one job; NULL: many, made by their agents */
    const struct cdi_secret *secret;    /* NULL: none */
    enum rdzv_access plain_store, http; /* who may use the store without proof, and see the pages about jobs? */
    struct cdi_list jobs;               /* struct conn_job */
    struct cdi_list conns;              /* all that are not closed yet */
    struct cdi_list dirty;              /* those that have something to write */
    struct cdi_list due[CONN_N_DUES];   /* those with a deadline of the kind, the next one first */
    int64_t due_ms[CONN_N_DUES];        /* how long each kind has */
    struct cdi_list busy;               /* with a request that is not whole, or replies that are not written */
    struct agent_addrs agent_addrs;     /* from where those in CONN_CONTROL come */
    size_t n_open;                      /* until their close callback */
    size_t n_overflow;                  /* of them */
    size_t n_closing;                   /* those of n_open, without the visitors, whose descriptor is closed already */
    size_t n_overflow_files;            /* of those the ones whose descriptor is not closed yet */
    size_t crowded;                /* open ones: from here on, idle ones leave the rest of the descriptors to others */
    size_t max_connections;        /* without the visitors; SIZE_MAX: as many as there are descriptors */
    const char *max_flag;          /* what sets that, for sentences */
    size_t buffered, max_buffered; /* bytes of all connections' buffers */
    int64_t stall_ms;
    int64_t started_ms, started_wall_ms;
    uint64_t n_accepted, n_dropped;
    struct drop_log drops;
    bool closing, draining;
    struct conn_job *(*find_job)(struct conn_ctx *ctx, const char *run_id);
    /* CDDP_E_LIMIT, CDDP_E_EXISTS: there is no room now; CDDP_E_CLOSED: the job of the JOIN's session is over. */
    cddp_status (*make_job)(struct conn_ctx *ctx, const struct cdi_msg_join *join, struct conn_job **out,
                            struct cdi_error *err);
    /* One has gone; it is freed already. job: it was of; NULL: of none. */
    void (*conn_closed)(struct conn_ctx *ctx, struct conn_job *job);
    struct in6_addr denied[CONN_DENIED_MAX]; /* addresses of which it was said that they lack the secret */
    size_t n_denied;
    uint8_t scratch[65536];
};

struct conn {
    uv_tcp_t tcp; /* first */
    struct conn_ctx *ctx;
    struct cdi_list link, dirty, due, busy;
    enum conn_state state;
    enum conn_reject reject;
    struct conn_job *port_job; /* whose port it came to; NULL: the port of all */
    struct conn_job *job;      /* NULL: not known yet */
    struct cdi_hello_server hello;
    struct sockaddr_storage addr;
    struct cdi_buf in, out, flying; /* flying: handed to libuv */
    uv_write_t write;
    uv_shutdown_t shutdown;
    bool writing, paused, shut;
    size_t held;         /* bytes of its buffers, as they count in ctx->buffered */
    int64_t deadline_ms; /* while it is in a list of ctx->due: SNIFFING, HELLO, NEW, HTTP, LINGERING */
    int64_t begun_ms;    /* STORE: when the request that is not whole yet began */
    int64_t progress_ms; /* when the write queue last shrank */
    size_t queue_seen;
    struct cdi_serve serve; /* STORE */
    bool agent;             /* `peer` is attached to the session */
    uint32_t peer;
    bool broken;   /* it ended by a reset or the like */
    char why[160]; /* why it was closed, for the session */
};

/* An empty ctx, whose connections have undecided_ms to say what they want. */
void conn_ctx_init(struct conn_ctx *ctx, uv_loop_t *loop, int64_t undecided_ms);
/* Take over a connected socket of a listen_set (closed on failure); gate: see struct conn. CDDP_OK, CDDP_E_NOMEM,
 * CDDP_E_SYSTEM. */
cddp_status conn_open(struct conn_ctx *ctx, int fd, const struct sockaddr_storage *addr, struct conn_job *port_job,
                      enum conn_reject reject);
/*
 * There is no room for a newcomer: close the oldest connection that is only being seen off, or that has neither proved
 * the secret nor said what it wants. False: there is none, or it has only just come.
 */
bool conn_make_room(struct conn_ctx *ctx);
/* Close now; what is queued is lost. Logged once, at `level`. Idempotent. */
void conn_close(struct conn *c, enum cdi_log_level level, const char *why);
/* Take nothing more, write what is queued, then close. due: CONN_DUE_LINGER or CONN_DUE_END, which says how long that
 * may take. */
void conn_finish(struct conn *c, enum conn_due due, enum cdi_log_level level, const char *why);
/* Queue bytes. A connection whose queue is full is closed. */
void conn_send(struct conn *c, const void *bytes, size_t len);
/* "[::1]:29500", without asking anybody for names. */
void conn_address_name(const struct sockaddr_storage *addr, char buf[CONN_NAME]);
/* Have what is in c->out written by the next conn_flush_all(). */
void conn_mark_dirty(struct conn *c);
/* Write what is in c->out as far as possible now; the rest when the socket takes it. May close. */
void conn_flush(struct conn *c);
/* Read nothing more until all replies are written; then ops->resumed(). Something must be queued. */
void conn_pause(struct conn *c);
/* Look at it at every tick, until it has nothing that is not finished. */
void conn_watch(struct conn *c);
/* Will there be room soon? Somebody who does not say what it wants, or who is just leaving, keeps its place not long.
 */
bool conn_room_soon(const struct conn_ctx *ctx);
/* The address of the other side; IPv4 ones are mapped. */
struct in6_addr conn_ip(const struct sockaddr_storage *addr);
/* Write what was queued since the last call, by any connection. Call it at the end of a callback. */
void conn_flush_all(struct conn_ctx *ctx);
/* Look at what is due: connections that are idle cost nothing. */
void conn_tick(struct conn_ctx *ctx);

/* Bytes that wait to be written. */
static inline size_t conn_queued(const struct conn *c)
{
    return c->out.len + c->flying.len;
}

static inline int64_t conn_now_ms(const struct conn_ctx *ctx)
{
    return (int64_t)uv_now(ctx->loop);
}

/* Unix time. */
static inline int64_t conn_wall_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

#endif
