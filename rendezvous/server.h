/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous server, in the caller's libuv loop: the only public header of this folder. One port serves three
 * protocols (store, control, HTTP); the first bytes of each connection tell which. All on the loop's thread.
 */
#ifndef RDZV_SERVER_H
#define RDZV_SERVER_H

#include "common/error.h"
#include "protocol/auth.h"
#include "rendezvous/access.h"
#include "rendezvous/http/page_data.h"
#include "store/kv.h"

#include <stdint.h>
#include <uv.h>

struct rdzv_server;
struct rdzv_views; /* views.h */

struct rdzv_server_options {
    const char *host;                  /* name or address to bind; NULL: 127.0.0.1; "*": every address, IPv4 and IPv6 */
    uint16_t port;                     /* 0: any free port */
    const char *host_flag, *port_flag; /* for error messages; NULL: --master_addr, --master_port */
    const char *run_id;                /* agents with another one are rejected */
    uint32_t min_nodes, max_nodes;     /* size of a round; 0: 1 */
    uint32_t spares;                   /* standby nodes, beyond max_nodes */
    uint32_t max_restarts;             /* failed rounds that another one may follow */
    /* With max_jobs, the next two are defaults, for jobs whose first JOIN does not set them. */
    int64_t join_timeout_ms;         /* until min_nodes have joined; 0: 600 s */
    int64_t last_call_ms;            /* from then until the round begins; 0: 3 s, and none after the first round */
    const struct cdi_secret *secret; /* auth token that agents and store clients must prove; copied; NULL: none */
    enum rdzv_access plain_store;    /* clients of PyTorch's store protocol */
    enum rdzv_access http;           /* pages about jobs; /healthz is for every client */
    uint32_t max_jobs;               /* 0: one job, as above; otherwise the most at once, created by JOIN */
    uint16_t first_job_port, last_job_port; /* with max_jobs: range of the jobs' own ports; 0: any free */
    int64_t over_ms;                        /* with max_jobs: time until a finished job is closed; 0: 60 s */
    int64_t lease_ms;     /* after which a silent agent is lost; 0: 15 s; with max_jobs JOIN may set it */
    int64_t undecided_ms; /* time for the first request of a connection; 0: 5 s */
    int64_t stall_ms; /* after which a client is closed that reads nothing, or does not complete a request; 0: 300 s */
    struct cdi_kv_limits store; /* of each job; 0: the defaults */
    size_t max_connections;     /* open at once; further ones are rejected; 0: limited by descriptors only */
    const char *max_flag;       /* its flag, for error messages; NULL: --max_connections */
    size_t max_buffered;        /* bytes of incomplete requests and replies, in total; 0: 1 GiB */
    /*
     * The host is elected: agents get answers until rdzv_server_answer_until() only, and another host may follow if
     * this one leaves an elastic job.
     */
    bool elected;
    const struct rdzv_views *views; /* must outlive the server */
};

/*
 * Starts a server, which runs until rdzv_server_close(). *out is set on success only; `loop` must outlive it. The
 * program must ignore SIGPIPE: libuv does not, and a client may disconnect during a reply.
 * Returns CDDP_OK, CDDP_E_NOT_FOUND (host does not resolve), CDDP_E_EXISTS (the port is in use; the error message says
 * what to do), CDDP_E_SYSTEM, CDDP_E_INVALID or CDDP_E_NOMEM.
 */
cddp_status rdzv_server_start(struct rdzv_server **out, uv_loop_t *loop, const struct rdzv_server_options *opt,
                              struct cdi_error *err);
/* Returns the listening port. */
uint16_t rdzv_server_port(const struct rdzv_server *s);
/*
 * Closes every connection and the listener; then, from the loop, calls closed(arg) (may be NULL) and frees s. Bytes
 * queued for a client that reads are still written, for at most 1 s. A second call does nothing.
 */
void rdzv_server_close(struct rdzv_server *s, void (*closed)(void *arg), void *arg);
/*
 * Rejects new jobs, and closes as rdzv_server_close() does when the last job has ended. A server with one job stays
 * until each of its agents has read that the job is over, or has lost its lease, so that one that is cut off at the end
 * still learns how the job ended. closed() may be called before this returns. Until then, rdzv_server_close() may still
 * be called.
 */
void rdzv_server_drain(struct rdzv_server *s, void (*closed)(void *arg), void *arg);
/* Of an elected server: until when (cdi_now_ms()) agents get answers; 0, as at the start: they do not. */
void rdzv_server_answer_until(struct rdzv_server *s, int64_t until_ms);
/* Returns the number of jobs. */
size_t rdzv_server_jobs(const struct rdzv_server *s);
/* Lists the clients of the stores that wait for keys, the longest first; returns their number, at most cap. */
size_t rdzv_server_waits(struct rdzv_server *s, struct page_wait *out, size_t cap);
/* Replaces the auth token, for new connections. Copied. */
void rdzv_server_set_secret(struct rdzv_server *s, const struct cdi_secret *secret);

#endif
