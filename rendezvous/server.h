/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous server in somebody's libuv loop: the room's only public header. One port, three protocols (store,
 * control, http), told apart by the first bytes of each connection. Everything runs on the loop's thread.
 */
#ifndef RDZV_SERVER_H
#define RDZV_SERVER_H

#include "common/error.h"
#include "protocol/auth.h"
#include "rendezvous/access.h"
#include "store/kv.h"

#include <stdint.h>
#include <uv.h>

struct rdzv_server;

struct rdzv_server_options {
    const char *host; /* a name or an address to bind; NULL: 127.0.0.1; "*": every address, IPv4 and IPv6 */
    uint16_t port;    /* 0: any free one */
    const char *host_flag, *port_flag; /* what sentences call them; NULL: --master_addr, --master_port */
    const char *run_id;                /* agents that name another are refused */
    uint32_t min_nodes, max_nodes;     /* a round starts with this many; 0: 1 */
    uint32_t spares;                   /* nodes beyond max_nodes that may wait to step in */
    uint32_t max_restarts;             /* rounds that may fail and be followed by another */
    /* What follows holds for the jobs of max_jobs where their first JOIN does not say it. */
    int64_t join_timeout_ms; /* until min_nodes are there; 0: 600 s */
    int64_t last_call_ms;    /* with min_nodes there, until a round begins; 0: 3 s, and at once after the first */
    const struct cdi_secret *secret; /* agents and store clients must prove it; copied; NULL: none */
    enum rdzv_access plain_store;    /* the store by PyTorch's protocol alone */
    enum rdzv_access http;           /* the pages that tell about jobs; /healthz is for everybody */
    uint32_t max_jobs; /* 0: one job, as above; else so many at once, each made by its first agent's JOIN */
    uint16_t first_job_port, last_job_port; /* with max_jobs: each job gets a port of its own from here; 0: any free */
    int64_t over_ms;      /* with max_jobs: a job that is over ends after so long at the latest; 0: 60 s */
    int64_t lease_ms;     /* a silent agent counts as there for so long; 0: 15 s; with max_jobs: or what JOIN says */
    int64_t undecided_ms; /* a connection must say so soon what it wants; 0: 5 s */
    int64_t stall_ms; /* a client that takes none of its bytes, or does not finish a request, is dropped; 0: 300 s */
    struct cdi_kv_limits store; /* of each job; 0: the default */
    size_t max_connections;     /* open at once, further ones are turned away; 0: as many as there are descriptors */
    const char *max_flag;       /* what sentences call that; NULL: --max_connections */
    size_t max_buffered;        /* bytes of requests and replies that are not complete, of all in sum; 0: 1 GiB */
};

/*
 * Bind, listen, and serve until rdzv_server_close(). *out is written on success only; `loop` must outlive it. The
 * program has to ignore SIGPIPE: libuv does not, and a client may go while it is answered.
 * CDDP_E_NOT_FOUND (host does not resolve), CDDP_E_EXISTS (the port is in use: the sentence says so and what to do),
 * CDDP_E_SYSTEM, CDDP_E_INVALID, CDDP_E_NOMEM.
 */
cddp_status rdzv_server_start(struct rdzv_server **out, uv_loop_t *loop, const struct rdzv_server_options *opt,
                              struct cdi_error *err);
/* The port it listens on. */
uint16_t rdzv_server_port(const struct rdzv_server *s);
/*
 * Close every connection and the listener; then, from the loop, call closed(arg) (may be NULL) and free s. What was
 * queued for a client that reads is still written, for at most 1 s. To call it again does nothing.
 */
void rdzv_server_close(struct rdzv_server *s, void (*closed)(void *arg), void *arg);
/*
 * With max_jobs: take no new job, and close as rdzv_server_close() does when the last one has ended; closed() may be
 * called before this returns. rdzv_server_close() may still be called before that.
 */
void rdzv_server_drain(struct rdzv_server *s, void (*closed)(void *arg), void *arg);
/* Jobs that are there. */
size_t rdzv_server_jobs(const struct rdzv_server *s);
/* Who comes from now on must prove this one. Copied. */
void rdzv_server_set_secret(struct rdzv_server *s, const struct cdi_secret *secret);

#endif
