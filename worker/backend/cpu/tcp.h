/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks on several nodes. The nodes form a chain in the order of their ranks; local rank j of a node is connected with
 * local rank j of the node before and after, as far as the smallest node reaches: so many chains there are. send and
 * recv between nodes make a connection of their own at the first message of a pair. A connection is two sockets, one
 * for data and one for control, on which an abort or a goodbye never waits behind data, and whose end without a
 * goodbye is a death.
 */
#ifndef CDI_CPU_TCP_H
#define CDI_CPU_TCP_H

#include "worker/backend.h"
#include "worker/backend/cpu/bell.h"
#include "worker/backend/cpu/handover.h"
#include "worker/backend/cpu/net.h"
#include "worker/backend/cpu/tcp_frame.h"
#include "worker/backend/cpu/wait.h"

#include <poll.h>
#include <pthread.h>

/* How much longer than the timeout who waits behind others waits, so that who knows best speaks first. */
#define CDI_TCP_SLACK_OP_MS 500    /* for a neighbour to begin the operation */
#define CDI_TCP_SLACK_DATA_MS 1000 /* for one that has begun it to go on */
#define CDI_TCP_SLACK_NODE_MS 1500 /* for a rank of the own node that waits for a neighbour */
#define CDI_TCP_RING 4             /* pieces between arrival and departure */

/* One direction of the data socket: a frame under way. */
struct cdi_flow {
    uint8_t head[CDI_TCP_HEADER];
    size_t head_done, body_done;
    uint32_t seq; /* of the next frame */
    bool busy;    /* sending: a frame was begun */
    bool wanted;  /* to be polled for */
};

struct cdi_link {
    int rank;          /* of the other side; -1: no link */
    int data, control; /* sockets, -1: none yet */
    _Atomic int said;  /* an abort or a goodbye went out on control */
    bool begun;        /* the other side has sent its operation */
    bool suspect;      /* control became readable, which the data may explain */
    bool gone;         /* it said goodbye; what it sent before may still be on its way */
    char who[64];      /* "pid 77 on node1" */
    struct cdi_flow rx, tx;
    uint8_t control_in[CDI_TCP_HEADER + 4 + CDI_SHM_TEXT];
    size_t control_got;
};

#define CDI_TCP_LINKS 2    /* at most, that one operation uses */
#define CDI_TCP_WAITING 16 /* connections that have not yet said who they are */

/* Where others connect to. */
struct cdi_door {
    struct cdi_stranger {
        int fd;
        int64_t until_ms;
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
    struct cdi_bell bell;
    struct pollfd *polled; /* scratch: two links, the bell, the node's other ranks */
    struct cdi_meet meet;
    struct cdi_door door;
    struct cdi_link prev, next;
    struct cdi_link **pair; /* by rank, NULL: none yet */
    pthread_mutex_t lock;   /* over pair[], at which who aborts looks from any thread */
    uint8_t *ring;          /* CDI_TCP_RING pieces; NULL where this rank has no link */
};

/*
 * Learn where all nodes are and connect with the neighbours. A collective of all ranks; blocks until the links of this
 * rank are made, at most for world->join_timeout_ms. `reached`: this host's address on the way to the job's endpoint.
 * meet and wait must outlive *out. *out on success only. CDDP_E_TIMEOUT, CDDP_E_PEER, CDDP_E_INVALID (the ranks' nodes
 * do not fit together; CDDP_SOCKET_IFNAME), CDDP_E_SYSTEM, CDDP_E_NOMEM, what another rank failed with.
 */
cddp_status cdi_tcp_create(struct cdi_tcp **out, const struct cdi_world *world, struct cdi_wait *wait,
                           const struct cdi_meet *meet, const struct cdi_address *reached, struct cdi_error *err);
/* Say goodbye, or pass on why the node has aborted; close everything; free. NULL-safe. */
void cdi_tcp_destroy(struct cdi_tcp *tcp);
/* Tell all neighbours what cdi_shm_aborted() says. Any thread, repeatable. */
void cdi_tcp_pass_abort(struct cdi_tcp *tcp);
/* The goodbye alone. */
void cdi_tcp_say_bye(struct cdi_tcp *tcp);
/* In the meeting place: this rank could not join, and why. */
void cdi_tcp_tell_broken(const struct cdi_meet *meet, const struct cdi_error *why);

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
