/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The agent's end of the control connection: connects (repeatedly until the deadline), opens, sends JOIN, and then
 * exchanges messages and heartbeats. A connection that breaks or falls silent is replaced, and JOIN then resumes the
 * session (lease.c decides when, and when it is too late). The same applies to one that the rendezvous closed if a
 * restart is left: the server may have been killed and started again, here or at another address. If the rendezvous
 * does not know this agent any more, the agent joins as a new one; JOIN then has the number of the job's restarts. Runs
 * in the agent's loop and on its thread.
 */
#ifndef RDZV_CLIENT_H
#define RDZV_CLIENT_H

#include "launcher/agent/lookup.h"
#include "protocol/auth.h"
#include "protocol/message.h"

#include <uv.h>

struct rdzv_client;

#define RDZV_CLIENT_BULK_MAX (2u * 1024 * 1024) /* bytes */

struct rdzv_client_options;

struct rdzv_client_events {
    /*
     * Connected, maybe again; the numeric address and port of the other end. Called before any message. Other processes
     * may keep a copy of the descriptor: this connection does not rely on close() to end it.
     */
    void (*connected)(void *arg, const char *addr, uint16_t port, int fd);
    void (*message)(void *arg, const struct cdi_msg *msg);
    /* A frame of bulk.h has arrived; the payload is valid during the call. NULL: they are ignored. */
    void (*bulk)(void *arg, uint16_t type, const void *payload, size_t len);
    /* Not joined yet: text is the reason. Called every 10 s, and immediately if the user may have to act. */
    void (*waiting)(void *arg, const char *text);
    /*
     * The connection could not be made in time, or is lost and no restart is left: text is the error message. Called
     * once, as the last event.
     */
    void (*lost)(void *arg, const char *text);
    /*
     * The rendezvous was silent for so long that it may soon count this node as lost, or does already: kill the workers
     * immediately. No event follows before rdzv_client_again(). Messages sent by rdzv_client_send() from within it may
     * still arrive.
     */
    void (*fenced)(void *arg, const char *text);
    /*
     * This process did not run for so long that the rendezvous may count this node as lost: stop the workers (true),
     * and continue them (false) after the rendezvous has answered that it does not. True may be repeated; fenced(), or
     * another end, may follow it instead of false.
     */
    void (*hold)(void *arg, bool held);
    /* Called for each attempt to connect that fails, and each connection that the server rejects. NULL: not needed. */
    void (*broken)(void *arg);
    /*
     * Nobody listens at the endpoint. This agent found its port in use when it started, by a program that has ended, or
     * does not listen: host it now, if the port is free, and set the addresses. Returns whether it does. May be
     * repeated.
     */
    bool (*vacant)(void *arg, struct rdzv_client_options *opt);
    /* lease_act_by_ms() has changed; CDI_NEVER_MS: none. */
    void (*act_by)(void *arg, int64_t act_by_ms);
};

struct rdzv_client_options {
    struct sockaddr_storage addrs[LOOKUP_ADDRS_MAX]; /* tried in turn */
    unsigned n_addrs;
    unsigned n_ports;    /* from each address's own on: all are tried until one has the rendezvous; 0 is 1 */
    char host[256];      /* the name, which is looked up again later; "": the addresses are fixed */
    uint16_t port;       /* of that host */
    char name[320];      /* the endpoint as the user gave it, for messages */
    char note[320];      /* "", or "; " and why this agent does not host: part of messages about waiting */
    bool taken;          /* this agent would host the rendezvous, but a program here has its port */
    int64_t deadline_ms; /* of the first connection */
    bool own;            /* the rendezvous runs in this process: its silence is ignored */
    bool rejoins; /* if the rendezvous does not know this agent any more, fenced() is called, too: rdzv_client_again()
                     follows */
    bool elected; /* another host may be elected at any time: see rdzv_client_move() */
    bool elastic; /* the loss of the rendezvous does not use up a restart */
    const struct cdi_secret *secret; /* NULL: none; must outlive the client */
    struct cdi_msg_join hello;
};

/*
 * Starts a client; *out is written on success only. The loop calls events, never this call. CDDP_E_NOMEM,
 * CDDP_E_SYSTEM.
 */
cddp_status rdzv_client_start(struct rdzv_client **out, uv_loop_t *loop, const struct rdzv_client_options *opt,
                              const struct rdzv_client_events *on, void *arg, struct cdi_error *err);
/* Queues a message. It is dropped before the connection is open, and after it is lost. */
void rdzv_client_send(struct rdzv_client *j, const struct cdi_msg *msg);
/*
 * Queues a frame of bulk.h, copied. It is dropped as above, and if more than RDZV_CLIENT_BULK_MAX bytes of such frames
 * wait to be written: messages must not wait for them. Returns false if it was dropped.
 */
bool rdzv_client_send_bulk(struct rdzv_client *j, uint16_t type, const void *payload, size_t len);
/*
 * Connects again after fenced(), until the deadline: as the same node if the rendezvous still knows it, otherwise as a
 * new one.
 */
void rdzv_client_again(struct rdzv_client *j, int64_t deadline_ms);
/*
 * Another process hosts the job now, at this numeric address: connects there, instead of where it was. The lease runs
 * on until the host has answered.
 */
void rdzv_client_move(struct rdzv_client *j, const char *addr, uint16_t port);
/* Checks immediately whether fenced() is due, and calls it: for an agent that was stopped and continued. NULL-safe. */
void rdzv_client_look(struct rdzv_client *j);
/*
 * Closes the connection and frees j, after all queued messages were written and the rendezvous has closed, too, or
 * after 1 s. No event follows. NULL-safe.
 */
void rdzv_client_close(struct rdzv_client *j);

#endif
