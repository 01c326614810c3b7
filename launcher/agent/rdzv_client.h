/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's end of the control connection: connect (again and again until the deadline), open, JOIN, then messages
 * both ways and a heartbeat. A connection that breaks or falls silent is replaced, and JOIN then asks to come back
 * (lease.c decides when, and when it is too late). So is one that the rendezvous closed, where a restart is left: the
 * rendezvous may have been killed and started again, here or at another address. A rendezvous that does not know this
 * agent any more is joined anew; JOIN then says how many restarts the job has had. Runs in the agent's loop and on its
 * thread.
 */
#ifndef RDZV_CLIENT_H
#define RDZV_CLIENT_H

#include "launcher/agent/lookup.h"
#include "protocol/auth.h"
#include "protocol/message.h"

#include <uv.h>

struct rdzv_client;

struct rdzv_client_events {
    /*
     * Connected, maybe again; the numeric address and port of the other end. Before any message. Others may keep a copy
     * of the descriptor: this connection does not rely on close() to end it.
     */
    void (*connected)(void *arg, const char *addr, uint16_t port, int fd);
    void (*message)(void *arg, const struct cdi_msg *msg);
    /* Not in yet, after 10 s and every 10 s, and at once where the user may have to act: what it waits for. */
    void (*waiting)(void *arg, const char *text);
    /*
     * The connection could not be made in time, or it is gone and no restart is left: an error message. Once; nothing
     * follows it.
     */
    void (*lost)(void *arg, const char *text);
    /*
     * The rendezvous was silent for so long that it may soon count this node as lost, or does already: kill the workers
     * at once. Nothing follows it before rdzv_client_again(). What rdzv_client_send() is given from within it may still
     * arrive.
     */
    void (*fenced)(void *arg, const char *text);
    /*
     * This process did not run for so long that the rendezvous may count this node as lost: stop the workers (true),
     * and let them go on (false) when the rendezvous has said that it does not. True may be said again; fenced(), or
     * another end, may follow it instead of false.
     */
    void (*hold)(void *arg, bool held);
    /* lease_act_by_ms() has changed; CDI_NEVER_MS: none is due any more. */
    void (*act_by)(void *arg, int64_t act_by_ms);
};

struct rdzv_client_options {
    struct sockaddr_storage addrs[LOOKUP_ADDRS_MAX]; /* tried in turn */
    unsigned n_addrs;
    unsigned n_ports;    /* from each address's on: all are tried, until one has the rendezvous; 0 is 1 */
    char host[256];      /* what they were found by, to be asked for again; "": they stay as they are */
    uint16_t port;       /* of that host */
    char name[320];      /* as the user gave it, for sentences */
    char note[320];      /* "": none; else "; ", and why this agent does not host: part of messages about waiting */
    int64_t deadline_ms; /* to be connected by, the first time */
    bool own;            /* the rendezvous runs in this process: its silence means nothing */
    bool rejoins; /* if it does not know this agent any more, that is fenced() too: rdzv_client_again() follows */
    bool elastic; /* the loss of the rendezvous is no failure that uses up a restart */
    const struct cdi_secret *secret; /* NULL: none; must outlive the join */
    struct cdi_msg_join hello;
};

/* *out is written on success only; events come from the loop, never from within this call. CDDP_E_NOMEM, CDDP_E_SYSTEM.
 */
cddp_status rdzv_client_start(struct rdzv_client **out, uv_loop_t *loop, const struct rdzv_client_options *opt,
                              const struct rdzv_client_events *on, void *arg, struct cdi_error *err);
/* Queue a message. Before the connection stands and is open, or after it is lost, it is dropped. */
void rdzv_client_send(struct rdzv_client *j, const struct cdi_msg *msg);
/* After fenced(): connect again, until the deadline; as whom the rendezvous knows if it still does, else as a new node.
 */
void rdzv_client_again(struct rdzv_client *j, int64_t deadline_ms);
/* Look now whether fenced() is due, and call it: for an agent that was stopped and goes on. NULL-safe. */
void rdzv_client_look(struct rdzv_client *j);
/*
 * Close what is open, after what is queued was written and the rendezvous has closed too, or 1 s has passed, and free
 * j. No event follows. NULL-safe.
 */
void rdzv_client_close(struct rdzv_client *j);

#endif
