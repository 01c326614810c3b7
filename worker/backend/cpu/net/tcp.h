/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections between nodes. The nodes form a chain in the order of their ranks. Local rank j of a node is connected
 * with local rank j of the previous and of the next node; there are as many chains as the smallest node has ranks.
 * Algorithms that need other nodes connect with local rank j there, at their first use (tcp_mesh.c). send and recv
 * between nodes make a separate connection at the first message of a pair. A connection is two sockets, one
 * for data and one for control. An abort or a goodbye on control never waits for data. The end of control without a
 * goodbye is a death, since the kernel of a dead process closes both sockets. An error of control, or the end of data
 * alone, is a broken connection.
 */
#ifndef CDI_NET_TCP_H
#define CDI_NET_TCP_H

#include "worker/backend/backend.h"
#include "worker/backend/cpu/net/abort_fd.h"
#include "worker/backend/cpu/net/tcp_frame.h"
#include "worker/backend/cpu/node/shm_bootstrap.h"
#include "worker/backend/cpu/node/wait.h"
#include "worker/base/interfaces.h"

#include <poll.h>
#include <pthread.h>

/*
 * A rank that waits for others which wait themselves gets this much more time than the timeout, so that the rank that
 * knows the cause reports it first.
 */
#define CDI_TCP_SLACK_OP_MS 500    /* for a neighbour to begin the operation */
#define CDI_TCP_SLACK_DATA_MS 1000 /* for a neighbour that has begun it to go on */
#define CDI_TCP_SLACK_NODE_MS 1500 /* for a rank of this node that waits for a neighbour */
#define CDI_TCP_SLICE_MS 10        /* between two checks of shared memory, where there is no abort fd */
#define CDI_TCP_RING 4             /* pieces between arrival and departure */

/* One direction of the data socket: a frame in transit. */
struct cdi_flow {
    uint8_t head[CDI_TCP_HEADER];
    size_t done;  /* bytes of the frame, header included */
    uint32_t seq; /* of the next frame */
    bool busy;    /* a frame was begun: sending, its header was made; receiving, its header was checked */
    bool wanted;  /* to be polled for */
    bool quiet;   /* the socket blocked, and no poll has found it ready since: attempts do nothing */
};

enum cdi_link_fate {
    CDI_LINK_ALIVE = 0,
    CDI_LINK_LEFT,   /* the peer sent a goodbye or an abort; data that it sent before may still be in transit */
    CDI_LINK_DIED,   /* the peer's end of the control socket was closed without either, as by its kernel */
    CDI_LINK_RESET,  /* the control socket ended by an error, as by a device in between, or with the peer's machine */
    CDI_LINK_BROKEN, /* the peer sent something that is not a control frame */
};

struct cdi_link {
    int rank;          /* of the peer; -1: no link */
    int data;          /* socket; -1: none yet */
    int control;       /* the same; changed under tcp->lock, since other threads send there */
    _Atomic int fate;  /* as received on control */
    bool made;         /* both sockets are final; tcp->lock */
    bool last_sent;    /* an abort or a goodbye was sent on control; tcp->lock */
    bool begun;        /* the peer has sent its operation */
    bool suspect;      /* control became readable, which the data may explain */
    int data_errno;    /* why data ended; 0: it has not, or the peer's end was closed */
    int control_errno; /* the same of control; tcp->lock */
    char who[64];      /* "pid 77 on node1"; changed under tcp->lock, and never after both sockets are final */
    struct cdi_flow rx, tx;
    uint8_t control_in[CDI_TCP_HEADER + CDI_TCP_ABORT_MAX]; /* tcp->lock */
    size_t control_got;                                     /* tcp->lock */
};

/* How far this rank is with a node, in frames or in bytes. */
struct cdi_progress {
    size_t sent, got;
    bool opened, met;       /* the first frame was sent; received */
    uint8_t op[CDI_TCP_OP]; /* of the peer, as far as it was received */
};

/* The thread that reads all control sockets (tcp_control.c). */
struct cdi_control_thread {
    int epoll, wake_fd; /* -1: there is no such thread */
    pthread_t thread;
    _Atomic int stop;
};

#define CDI_TCP_PARTS 4    /* of memory, that one frame moves, at most */
#define CDI_TCP_PENDING 64 /* pending connections, at most */

/* The sockets that the other nodes connect to. */
struct cdi_listener {
    /* Accepted connections that have proved nothing yet. */
    struct cdi_pending_conn {
        int fd;
        int64_t until_ms;
        struct cdi_address from;
        bool challenged; /* hello and nonce are set, and the proof is to come */
        struct cdi_tcp_hello hello;
        uint8_t nonce[CDI_AUTH_NONCE]; /* of this rank */
        size_t got;
        uint8_t in[CDI_TCP_HEADER + CDI_TCP_HELLO];
    } pending[CDI_TCP_PENDING];
    int fd[CDI_NET_ADDRESSES];
    int n_fds;
    int64_t full_since_ms; /* when accepting first failed for want of a descriptor; 0: it has not, or works again */
};

struct cdi_tcp {
    int rank, size, local_rank, node, n_nodes, n_chains, largest; /* ranks of the largest node */
    int *first;                                                   /* by node: its first rank; first[n_nodes] is size */
    struct cdi_secret token; /* of this communicator, from rank 0 through the store */
    struct cdi_wait *wait;
    const struct cdi_world *connecting; /* until the links are made */
    struct cdi_abort_fd abort_fd;
    struct cdi_control_thread control;
    struct pollfd *polled;         /* scratch: a link to each node, the abort fd */
    struct cdi_link **links;       /* scratch: one for each node */
    size_t *node_at;               /* scratch: one more than nodes */
    struct cdi_progress *progress; /* scratch: by node */
    struct cdi_oob oob;
    struct cdi_listener listener;
    struct cdi_link prev, next;
    struct cdi_link **pair; /* by rank; NULL: none yet */
    struct cdi_link **mesh; /* by node, to the same local rank there: prev, next, and others (tcp_mesh.c); NULL: none */
    bool making_mesh;       /* a rank that dies meanwhile ends the operation at once */
    pthread_mutex_t lock;   /* of pair[] and mesh[], and of the parts of a link that several threads use */
    int dialled;            /* socket of a link that is being made; -1: none; tcp->lock */
    struct cdi_tcp *other;  /* the next one of this process (tcp_fork.c) */
    uint8_t *ring;          /* CDI_TCP_RING pieces; NULL where this rank has no link */
};

/*
 * Connects this rank with its neighbours. A collective of all ranks; blocks until the links of this rank are made, at
 * most for world->init_timeout_ms. `reached` is the address of this host on the way to the job's endpoint. world->keys
 * and wait must outlive *out, which is set on success only. CDDP_E_TIMEOUT, CDDP_E_PEER, CDDP_E_INVALID (the nodes of
 * the ranks do not fit together; CDDP_SOCKET_IFNAME), CDDP_E_SYSTEM, CDDP_E_NOMEM, the error of another rank.
 */
cddp_status cdi_tcp_create(struct cdi_tcp **out, const struct cdi_world *world, struct cdi_wait *wait,
                           const struct cdi_address *reached, struct cdi_error *err);
/* Sends a goodbye, or the reason why the node has aborted; closes everything; frees. NULL-safe. */
void cdi_tcp_destroy(struct cdi_tcp *tcp);
/* Sends the result of cdi_shm_aborted() to all neighbours. Any thread, repeatable. */
void cdi_tcp_pass_abort(struct cdi_tcp *tcp);
/*
 * Sends the goodbye, or the abort, and ends the data after what was sent: by their end a peer that waits for more
 * notices it.
 */
void cdi_tcp_send_goodbye(struct cdi_tcp *tcp);
/* Reports to the ranks of all nodes why this rank could not connect. */
void cdi_tcp_report_failure(const struct cdi_oob *oob, const struct cdi_error *why);

/*
 * Starts the thread that reads all control sockets. Without a thread or a descriptor there is none, which is not an
 * error. tcp->abort_fd was started, or its fd is -1. Stop the thread before the abort fd, and before any socket is
 * closed.
 */
void cdi_control_start(struct cdi_tcp *tcp);
void cdi_control_stop(struct cdi_tcp *tcp);
/* Adds a link to that thread once both sockets of it are final. */
void cdi_control_add(struct cdi_tcp *tcp, struct cdi_link *l);

/*
 * Between these two calls a child that this process forks closes its copies of the sockets (tcp_fork.c). With its
 * copies open, the other nodes would not notice the death of this process. Any thread.
 */
void cdi_tcp_fork_register(struct cdi_tcp *tcp);
void cdi_tcp_fork_unregister(struct cdi_tcp *tcp);

/*
 * Reads the control socket of a link. CDDP_IN_PROGRESS: nothing that ends a wait. CDDP_E_PEER: the peer died.
 * CDDP_E_IO: the connection broke, and for a second nothing reported a death. CDDP_E_PROTOCOL; the reason of an abort
 * of the node, including an abort that this call reads.
 */
cddp_status cdi_link_read_control(struct cdi_tcp *tcp, struct cdi_link *l, struct cdi_error *err);
/* Returns why the data socket of a link ended; waits a moment for the control socket to tell. Never CDDP_OK. */
cddp_status cdi_link_end_cause(struct cdi_tcp *tcp, struct cdi_link *l, struct cdi_error *err);

/* Reads all control sockets. Any failure there is the caller's, so call it only while no data are expected. */
cddp_status cdi_control_look(struct cdi_tcp *tcp, struct cdi_error *err);

/* Has the peer left? */
static inline bool cdi_link_gone(const struct cdi_link *l)
{
    return atomic_load(&l->fate) == CDI_LINK_LEFT;
}

/* Returns how long to poll with left_ms to the deadline: all of it where the abort fd reports all other events. */
int cdi_tcp_poll_ms(const struct cdi_tcp *tcp, int64_t left_ms);

/* Returns the microseconds of a packet to the farther one of the neighbours; 0 if the kernel does not tell. */
uint32_t cdi_tcp_delay_us(const struct cdi_tcp *tcp);

/* Returns the node of a rank. */
int cdi_tcp_node_of(const struct cdi_tcp *tcp, int rank);
/* Returns the number of ranks of a node. */
static inline int cdi_tcp_ranks_of(const struct cdi_tcp *tcp, int node)
{
    return tcp->first[node + 1] - tcp->first[node];
}

/* Sets *out to the link with another rank for send and recv. Makes it first if there is none; then it blocks. */
cddp_status cdi_tcp_pair(struct cdi_tcp *tcp, int rank, struct cdi_link **out, struct cdi_error *err);

/* Returns the number of links, and link i of them, or NULL: there is none. With tcp->lock, or on the thread that makes
 * them. */
int cdi_tcp_n_links(const struct cdi_tcp *tcp);
struct cdi_link *cdi_tcp_nth_link(struct cdi_tcp *tcp, int i);

/*
 * Links with the same local rank of other nodes (tcp_mesh.c), beside those of send and recv. All nodes that make a link
 * with one another call this in the same operation, which they have compared. Blocks while it makes missing links.
 * Those that exist cost nothing. Only ranks below tcp->n_chains call it.
 */
cddp_status cdi_tcp_mesh(struct cdi_tcp *tcp, const int *nodes, int n, struct cdi_error *err);

/* ------------------------------------------------------------------------------------- moving frames (tcp.c) ---- */

struct iovec;

/* Continues to send a frame. CDDP_OK: all of it was sent; CDDP_IN_PROGRESS. Sets *moved if any byte was sent. */
cddp_status cdi_link_send(struct cdi_link *l, enum cdi_tcp_type type, const void *body, size_t len, bool *moved,
                          struct cdi_error *err);
/* Continues to receive a frame of just this type and length into body. Otherwise as cdi_link_send(). */
cddp_status cdi_link_recv(struct cdi_link *l, enum cdi_tcp_type type, void *body, size_t len, bool *moved,
                          struct cdi_error *err);

/* The same for a payload of several parts, at most CDI_TCP_PARTS. */
cddp_status cdi_link_send_parts(struct cdi_link *l, enum cdi_tcp_type type, const struct iovec *part, int n,
                                bool *moved, struct cdi_error *err);
cddp_status cdi_link_recv_parts(struct cdi_link *l, enum cdi_tcp_type type, const struct iovec *part, int n,
                                bool *moved, struct cdi_error *err);
/*
 * Continues to receive the first frame of the peer's operation, whose first part has CDI_TCP_OP bytes. If the peer
 * describes another operation than *mine, returns CDDP_E_MISMATCH as soon as the first part is complete, whatever the
 * type and the length of the frame; *err is not set then.
 */
cddp_status cdi_link_recv_first(struct cdi_link *l, enum cdi_tcp_type type, const struct iovec *part, int n,
                                const struct cdi_shm_desc *mine, bool *moved, struct cdi_error *err);

/* Makes one round of attempts on some links. CDDP_OK: all is done; CDDP_IN_PROGRESS. */
typedef cddp_status (*cdi_pump_fn)(void *arg, bool *moved, struct cdi_error *err);

/*
 * Calls fn until it is done. In between it waits for sockets that blocked, for any event that ends all waits, and for
 * the control sockets of the n links, at most one for each node. what, what_arg: as for cdi_wait_all().
 */
cddp_status cdi_tcp_pump(struct cdi_tcp *tcp, struct cdi_link *const *links, int n, cdi_pump_fn fn, void *arg,
                         void (*what)(const void *arg, char *buf, size_t cap), const void *what_arg,
                         struct cdi_error *err);

#endif
