/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carries out the election (elect.h) by requests to the members of etcd: one request at a time, in the caller's loop,
 * which never blocks. If a member does not answer, the next one is asked.
 */
#ifndef ETCD_H
#define ETCD_H

#include "common/error.h"
#include "launcher/etcd/elect.h"
#include "launcher/plan/endpoint.h"

#include <uv.h>

struct etcd;

/* Called from the loop. All but `ended` may call etcd_end(). text is valid during the call. */
struct etcd_events {
    /*
     * Start a server that gives no answers yet, for agents with this lease: sets *port, and addr (ELECT_ADDR_MAX bytes)
     * if others cannot reach it at the address that it has: the one of this node's end of the connection to etcd.
     * Returns false if it cannot.
     */
    bool (*listen)(void *arg, int64_t agent_lease_ms, char *addr, uint16_t *port);
    /* Close that server: it has never answered. */
    void (*unlisten)(void *arg);
    /* This agent hosts: join at its own server. */
    void (*host)(void *arg, const char *addr, uint16_t port);
    /* This agent hosts no longer: close the server immediately. */
    void (*unhost)(void *arg, const char *text);
    /* Join there. */
    void (*join)(void *arg, const char *addr, uint16_t port);
    /* The server of this agent may answer until then, and no other agent hosts until alone_ms; 0: it does not host. */
    void (*answers_until)(void *arg, int64_t until_ms, int64_t alone_ms);
    void (*waiting)(void *arg, const char *text);
    /* The host has ended the job; done: it was successful. Only `ended` follows, after etcd_end(). */
    void (*over)(void *arg, bool done);
    /* The nodes cannot meet. Only `ended` follows, after etcd_end(). */
    void (*failed)(void *arg, const char *text);
};

/* Starts; *out is set on success only. CDDP_E_NOT_FOUND, CDDP_E_INVALID, CDDP_E_NOMEM. */
cddp_status etcd_start(struct etcd **out, uv_loop_t *loop, const struct endpoint *m, const char *run_id,
                       const struct etcd_events *on, void *arg, struct cdi_error *err);
/* Tells whether the agent is connected to the host, which answers. NULL-safe. */
void etcd_set_linked(struct etcd *e, bool linked);
/* Tells that the host has given this agent a round. NULL-safe. */
void etcd_note_round(struct etcd *e);
/*
 * Ends: after the last requests, within ELECT_END_MS, e is freed from the loop. over: this agent hosts, and the job has
 * ended on every node (done: successfully); give_up: this agent hosts, and no worker of its rounds runs on any node. No
 * event follows. NULL-safe.
 */
void etcd_end(struct etcd *e, bool over, bool done, bool give_up);

#endif
