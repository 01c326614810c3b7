/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks on several nodes. The nodes form a chain in the order of their ranks; local rank j of a node is connected with
 * local rank j of the node before and after, as far as the smallest node reaches: so many chains there are. send and
 * recv between nodes make a connection of their own at the first message of a pair. A connection is two sockets, one
 * for data and one for control, on which an abort or a goodbye never waits behind data, and whose end without a
 * goodbye is a death.
 */
#ifndef CDI_NET_TCP_H
#define CDI_NET_TCP_H

#include "worker/backend/backend.h"
#include "worker/backend/cpu/net/abort_fd.h"
#include "worker/backend/cpu/net/tcp_frame.h"
#include "worker/backend/cpu/node/fd_exchange.h"
#include "worker/backend/cpu/node/wait.h"
#include "worker/base/interfaces.h"

#include <poll.h>
#include <pthread.h>

/* How much longer than the timeout who waits behind others waits, so that who knows best speaks first. */
#define CDI_TCP_SLACK_OP_MS 500    /* for a neighbour to begin the operation */
#define CDI_TCP_SLACK_DATA_MS 1000 /* for one that has begun it to go on */
#define CDI_TCP_SLACK_NODE_MS 1500 /* for a rank of the own node that waits for a neighbour */
#define CDI_TCP_SLICE_MS 10 /* how often a rank that waits for sockets looks at shared memory, where no bell rings */
#define CDI_TCP_RING 4      /* pieces between arrival and departure */

/* One direction of the data socket: a frame under way. */
struct cdi_flow {
    uint8_t head[CDI_TCP_HEADER];
    size_t head_done, body_done;
    uint32_t seq; /* of the next frame */
    bool busy;    /* sending: a frame was begun */
    bool wanted;  /* to be polled for */
};

enum cdi_link_fate {
    CDI_LINK_LIVES = 0,
    CDI_LINK_LEFT, /* the other side said goodbye, or why it aborted; what it sent before may still be on its way */
    CDI_LINK_DIED, /* control ended without a word */
    CDI_LINK_BABBLES,
};

struct cdi_link {
    int rank;    /* of the other side; -1: no link */
    int data;    /* socket, -1: none yet */
    int control; /* the same; changed under tcp->lock, since other threads than the one that connects speak there */
    _Atomic int fate; /* what was heard on control */
    bool made;        /* both sockets are there for good; tcp->lock */
    bool said;        /* an abort or a goodbye went out on control; tcp->lock */
    bool begun;       /* the other side has sent its operation */
    bool suspect;     /* control became readable, which the data may explain */
    char who[64];     /* "pid 77 on node1"; changed under tcp->lock, not after both sockets are there */
    struct cdi_flow rx, tx;
    uint8_t control_in[CDI_TCP_HEADER + CDI_TCP_ABORT_MAX]; /* tcp->lock */
    size_t control_got;                                     /* tcp->lock */
};

/* A thread that listens to all control sockets (tcp_control.c). */
struct cdi_ear {
    int epoll, nudge; /* -1: there is none */
    pthread_t thread;
    _Atomic int stop;
};

#define CDI_TCP_LINKS 2    /* at most, that one operation uses */
#define CDI_TCP_WAITING 64 /* connections that have not yet said who they are */

/* Where others connect to. */
struct cdi_door {
    struct cdi_stranger {
        int fd;
        int64_t until_ms;
        struct cdi_address from;
        size_t got;
        uint8_t in[CDI_TCP_HEADER + CDI_TCP_HELLO];
    } waiting[CDI_TCP_WAITING];
    int listener[CDI_NET_ADDRESSES];
    int n_listeners;
};

struct cdi_tcp {
    int rank, size, node, n_nodes, n_chains, largest; /* ranks of the largest node */
    int *first;                                       /* by node: its first rank; first[n_nodes] is size */
    uint8_t token[CDI_TCP_TOKEN];
    struct cdi_wait *wait;
    const struct cdi_world *making; /* until the links are there */
    struct cdi_abort_fd bell;
    struct cdi_ear ear;
    struct pollfd *polled; /* scratch: two links, the bell, the node's other ranks */
    struct cdi_oob oob;
    struct cdi_door door;
    struct cdi_link prev, next;
    struct cdi_link **pair; /* by rank, NULL: none yet */
    pthread_mutex_t lock;   /* over pair[] and what threads beside the one that runs operations use of a link */
    struct cdi_tcp *other;  /* of this process (tcp_heir.c) */
    uint8_t *ring;          /* CDI_TCP_RING pieces; NULL where this rank has no link */
};

/*
 * Learn where all nodes are and connect with the neighbours. A collective of all ranks; blocks until the links of this
 * rank are made, at most for world->join_timeout_ms. `reached`: this host's address on the way to the job's endpoint.
 * world->keys and wait must outlive *out. *out on success only. CDDP_E_TIMEOUT, CDDP_E_PEER, CDDP_E_INVALID (the ranks'
 * nodes do not fit together; CDDP_SOCKET_IFNAME), CDDP_E_SYSTEM, CDDP_E_NOMEM, what another rank failed with.
 */
cddp_status cdi_tcp_create(struct cdi_tcp **out, const struct cdi_world *world, struct cdi_wait *wait,
                           const struct cdi_address *reached, struct cdi_error *err);
/* Say goodbye, or pass on why the node has aborted; close everything; free. NULL-safe. */
void cdi_tcp_destroy(struct cdi_tcp *tcp);
/* Tell all neighbours what cdi_shm_aborted() says. Any thread, repeatable. */
void cdi_tcp_pass_abort(struct cdi_tcp *tcp);
/* The goodbye alone. */
void cdi_tcp_say_bye(struct cdi_tcp *tcp);
/* Reports to the ranks of all nodes why this rank could not connect. */
void cdi_tcp_tell_broken(const struct cdi_oob *oob, const struct cdi_error *why);

/*
 * Starts the thread that listens to all control sockets. Without a thread or a descriptor there is none: no error.
 * tcp->bell was started, or its fd is -1. Stop the thread before the bell is stopped and any socket is closed.
 */
void cdi_ear_start(struct cdi_tcp *tcp);
void cdi_ear_stop(struct cdi_tcp *tcp);
/*
 * Between these two calls a child that this process forks closes its copies of the sockets (tcp_heir.c). While it had
 * them, the other nodes would not see this process die. Any thread.
 */
void cdi_heir_begin(struct cdi_tcp *tcp);
void cdi_heir_end(struct cdi_tcp *tcp);

/* Both sockets of this link are there: from now on the ear listens to it. */
void cdi_ear_add(struct cdi_tcp *tcp, struct cdi_link *l);

/*
 * Read what the other side said on control. CDDP_IN_PROGRESS: nothing that ends a wait. CDDP_E_PEER: it died.
 * CDDP_E_PROTOCOL; what the node was aborted with, also by what was heard here.
 */
cddp_status cdi_link_hear(struct cdi_tcp *tcp, struct cdi_link *l, struct cdi_error *err);
/* The data socket has ended: say why, after a moment in which control may tell. Never CDDP_OK. */
cddp_status cdi_link_last_words(struct cdi_tcp *tcp, struct cdi_link *l, struct cdi_error *err);

static inline bool cdi_link_gone(const struct cdi_link *l)
{
    return atomic_load(&l->fate) == CDI_LINK_LEFT;
}

/* How long to poll when there are left_ms: to the end where a bell rings for all else that can happen. */
int cdi_tcp_poll_ms(const struct cdi_tcp *tcp, int64_t left_ms);

int cdi_tcp_node_of(const struct cdi_tcp *tcp, int rank);

/* The link with another rank, made now if it is not there; blocks. For send and recv. */
cddp_status cdi_tcp_pair(struct cdi_tcp *tcp, int rank, struct cdi_link **out, struct cdi_error *err);

/* ------------------------------------------------------------------------------------- moving frames (tcp.c) ---- */

/* Try to go on; CDDP_OK: the frame is through, CDDP_IN_PROGRESS: not yet. *moved is set if any byte was. */
cddp_status cdi_link_send(struct cdi_link *l, enum cdi_tcp_type type, const void *body, size_t len, bool *moved,
                          struct cdi_error *err);
/* As above: a frame of just this type and length into body. */
cddp_status cdi_link_recv(struct cdi_link *l, enum cdi_tcp_type type, void *body, size_t len, bool *moved,
                          struct cdi_error *err);

/* One round of attempts on some links: CDDP_OK: all is done; CDDP_IN_PROGRESS. */
typedef cddp_status (*cdi_pump_fn)(void *arg, bool *moved, struct cdi_error *err);

/*
 * Call fn until it is done, and wait in between for the sockets that it could not go on with, for what ends all waits,
 * and for the links' control sockets. links: n of them, CDI_TCP_LINKS at most. what, what_arg: as in cdi_wait_all.
 */
cddp_status cdi_tcp_pump(struct cdi_tcp *tcp, struct cdi_link *const *links, int n, cdi_pump_fn fn, void *arg,
                         void (*what)(const void *arg, char *buf, size_t cap), const void *what_arg,
                         struct cdi_error *err);

#endif
