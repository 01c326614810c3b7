/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one communicator over MPI, and the functions that the files of this folder share.
 *
 * MPI only moves bytes: every message is a non-blocking send or receive between two ranks on a duplicate of the
 * program's communicator. It is polled with a deadline, so that no call waits forever for a rank that is gone.
 * Arithmetic is that of worker/math/reduce.h, in rank order: MPI_Allreduce guarantees neither an order nor equal bits
 * on every rank. A communicator and its parts share such a duplicate, and have different tags.
 *
 * MPI's own non-blocking collectives cannot take the place of these messages. The standard forbids to cancel one
 * (MPI 3.1, 5.12), so after a failure it could still write into memory that the program has freed, unless each byte is
 * copied once more. They have no tags, so every part would need MPI_Comm_create_group, which waits forever for a rank
 * that dies. With Open MPI 4.1.4 on one node they are slower, too: MPI_Iallgather for openings and MPI_Ialltoallv
 * around cdi_reduce took 1.2 to 1.6 times as long at 4 B, 1.1 to 1.4 times at 4 KiB to 1 MiB.
 *
 * Threads. The queue (worker/backend/queue.h) runs one operation of a communicator at a time, on its own thread or on
 * that of a waiting caller; the state of an operation needs no lock. If MPI does not allow calls of several threads at
 * once, cdi_mpi_enter() and _leave() (CDI_MPI) serialise those of several communicators, and only callers' threads
 * work.
 */
#ifndef CDI_MPI_STATE_H
#define CDI_MPI_STATE_H

#include "worker/backend/loader.h"
#include "worker/backend/peer_error.h"
#include "worker/backend/queue.h"

#include <mpi.h>
#include <stdatomic.h>

#define CDI_MPI_TAGS 4 /* of one communicator */
enum cdi_mpi_tag {
    CDI_TAG_MOVE,   /* openings of collectives, and moved data; messages of two ranks keep their order */
    CDI_TAG_PART,   /* input of reductions, which is in transit together with earlier results */
    CDI_TAG_FAILED, /* the sender has failed, and has stored the reason */
    CDI_TAG_PAIR,   /* send and recv, whose order differs from that of collectives with other ranks */
};

/* ------------------------------------------------------ the process: duplicates of communicators (process.c) ---- */

struct cdi_mpi_process {
    struct cdi_mpi_process *next;
    MPI_Comm comm;       /* a duplicate of the program's, which only libcddp uses */
    MPI_Datatype mega;   /* 1 MiB, for messages whose bytes an int cannot count */
    bool in_use;         /* by a communicator that this process has not left */
    int64_t n_used;      /* numbers of communicators that have used it */
    int n_communicators; /* for which there are tags */
    bool own_threads;    /* MPI allows calls of threads of libcddp */
    bool main_only;      /* MPI allows calls of one thread only */
    char library[96];    /* "Open MPI v4.1.4" */
};

extern const struct cdi_host *cdi_mpi_host;
/*
 * Initialises MPI, unless the program has, and compares the rank and size of this process in MPI_COMM_WORLD, or in
 * world->mpi_comm, with `world`. MPI_Init has no deadline. CDDP_E_INVALID: the launcher of this MPI did not start the
 * process, or the order differs; CDDP_E_SYSTEM.
 */
cddp_status cdi_mpi_process_begin(const struct cdi_world *world, struct cdi_error *err);
/* Does MPI allow calls of one thread only? After cdi_mpi_process_begin(). */
bool cdi_mpi_process_main_only(void);
/*
 * Returns the index of a duplicate that no communicator of this process uses; one more than there are means a new one.
 * Rank 0 calls it, and sends the index to the others. _number returns the number of communicators that have used the
 * duplicate, which becomes the number of the next one.
 */
int cdi_mpi_process_choose(const struct cdi_world *world);
int64_t cdi_mpi_process_number(const struct cdi_world *world, int index);
/* Takes it into use; for a new one a collective of all ranks. CDDP_E_TIMEOUT, CDDP_E_INVALID, CDDP_E_SYSTEM. */
cddp_status cdi_mpi_process_open(struct cdi_mpi_process **out, const struct cdi_world *world, int index,
                                 struct cdi_error *err);
/* Releases it after this process has left its communicator; all numbers up to `last` were used. */
void cdi_mpi_process_close(struct cdi_mpi_process *p, int64_t last);
/* Records that a communicator has failed: messages may be in transit forever, so MPI is not finalised at exit. */
void cdi_mpi_process_broken(void);
/* Is MPI still initialised? The program may have finalised it. */
bool cdi_mpi_process_lives(void);
/* CDI_MPI(MPI_Test(...)) makes one short call, under a lock if MPI needs one. */
void cdi_mpi_enter(void);
int cdi_mpi_leave(int rc);
#define CDI_MPI(call) (cdi_mpi_enter(), cdi_mpi_leave(call))
/* Sets *err to "TEXT: " and the error message of MPI. CDDP_E_SYSTEM. */
cddp_status cdi_mpi_fail(int rc, const char *text, struct cdi_error *err);

/* --------------------------------------------------------------------------------------- one communicator ---- */

/* The operation that a rank calls, which the others compare, with the data of small operations. */
#define CDI_OPENING_BYTES 64
#define CDI_OPENING_DATA 32
#define CDI_MPI_SMALL 4096 /* data up to this size take few steps and an extra copy; larger ones go directly */
struct cdi_opening {
    uint64_t number; /* of earlier collectives */
    uint64_t count;  /* elements; of a region: bytes */
    uint32_t parts;  /* a checksum of counts */
    int32_t root;
    uint8_t kind, dtype, op, asked /* if the collective is made of others */;
    uint16_t model, steps; /* the low bits of its origin */
    uint8_t data[CDI_OPENING_DATA];
};
#define CDI_KIND_REGION 100 /* beside enum cdi_coll_kind */

/* Messages in transit. */
struct cdi_requests {
    MPI_Request *req;
    bool *receives;
    int n, cap;
};

/* A peer in a group of messages: its messages pass one after another, in parallel with those of other peers. */
struct cdi_pair {
    struct cdi_requests q;           /* of the message in transit: its openings, or its data */
    struct cdi_opening mine, theirs; /* of that message */
    const struct cdi_coll *op;       /* that message; NULL: none */
    const struct cdi_coll *end;      /* after the last one */
    bool opens;
};

/* Exchanges in pieces have two of each kind in transit. */
#define CDI_SETS 2

/* A rank of this node, whose death the kernel reports. */
struct cdi_neighbour {
    int pidfd; /* -1: a rank of another node, or one that cannot be watched */
    int pid;
};

struct cdi_backend {
    struct cdi_world world;          /* of this communicator */
    struct cdi_mpi_process *process; /* a part has that of its parent */
    struct cdi_queue *queue;
    bool is_part;
    struct cdi_oob numbers; /* of the first parent, which counts its parts there */
    int64_t number;         /* of that communicator in this process */
    int first_tag;
    int *world_rank; /* by rank here */
    struct cdi_neighbour *neighbours;
    uint64_t n_collectives;      /* that have begun; only the queue uses it */
    struct cdi_peer_place place; /* what peers know of it; likewise */
    int64_t n_left;              /* ranks that have left, as far as this rank knows */
    int left_rank;               /* the first of them */
    int64_t left_after;          /* its number of collectives */
    atomic_bool stopped;         /* the running operation has to end */
    atomic_bool failure_sent;    /* this rank has reported its failure to the peers, or knows theirs */

    struct cdi_opening *openings; /* of all ranks, by block_of(); then two for send and recv */
    struct cdi_requests parts[CDI_SETS], results[CDI_SETS];
    struct cdi_pair *pairs; /* by rank */
    uint8_t *scratch;       /* of 2 * size + 2 pieces */
    size_t piece;           /* bytes */
    bool left;              /* this rank has left it: only memory remains */
    bool in_use_by_mpi;     /* MPI may still write to openings and scratch: they are never freed */
};

/* One running operation. */
struct cdi_mpi_run {
    struct cdi_backend *b;
    const struct cdi_work *work;
    const struct cdi_coll *op; /* of work */
    int64_t timeout_ms;
    uint64_t number; /* of this collective */
    int peer;        /* of send and recv; otherwise -1 */
};

/* ------------------------------------------------------------------------------------- waiting (await.c) ---- */

/* Starts to send any number of bytes. */
cddp_status cdi_mpi_send(struct cdi_backend *b, struct cdi_requests *q, const void *p, size_t bytes, int to,
                         enum cdi_mpi_tag tag, struct cdi_error *err);
/* Starts to receive any number of bytes. */
cddp_status cdi_mpi_receive(struct cdi_backend *b, struct cdi_requests *q, void *p, size_t bytes, int from,
                            enum cdi_mpi_tag tag, struct cdi_error *err);
/*
 * Waits until all of q is done; empties it. CDDP_E_TIMEOUT (names the ranks that are missing), CDDP_E_PEER (one died or
 * left), CDDP_E_ABORTED, the error that a peer reported, CDDP_E_SYSTEM. After an error receives are cancelled.
 */
cddp_status cdi_mpi_await(struct cdi_mpi_run *run, struct cdi_requests *q, struct cdi_error *err);
/* Sets *done if all of q is done, and empties it then. Does not wait. */
cddp_status cdi_mpi_test(struct cdi_requests *q, bool *done, struct cdi_error *err);
/* The result of one check of messages in transit. */
enum cdi_mpi_progress { CDI_MPI_NOTHING, CDI_MPI_MOVED, CDI_MPI_DONE };
typedef cddp_status (*cdi_mpi_step)(void *arg, enum cdi_mpi_progress *got, struct cdi_error *err);
/* Waits like cdi_mpi_await(), until `step` sets DONE; each MOVED restarts the timeout. */
cddp_status cdi_mpi_poll(struct cdi_mpi_run *run, cdi_mpi_step step, void *arg, struct cdi_error *err);
/* Reports to all ranks why this communicator has failed, once. If MPI may be called, they check at once. */
void cdi_mpi_tell_peers(struct cdi_backend *b, const struct cdi_error *why);
/* Returns CDDP_OK if no rank has reported a failure, or this one is still connecting. Does not wait. */
cddp_status cdi_mpi_peer_failure(struct cdi_backend *b, struct cdi_error *err);
/* Cancels messages in transit after an error, as far as MPI allows. */
void cdi_mpi_give_up(struct cdi_backend *b);
/* Writes the name of an operation: "all_reduce(sum) of 10 float32". */
void cdi_mpi_what(const struct cdi_work *work, char *buf, size_t cap);
/* Returns the exchange of errors with the peers. */
struct cdi_peer_error cdi_mpi_peer_error(const struct cdi_backend *b);

/* ------------------------------------------------- operations: exchange.c, then reduction.c, then operation.c ---- */

/*
 * Opens a collective: every rank receives the opening of every other rank, with n bytes of its data (at most
 * CDI_MPI_SMALL; the same n on every rank). CDDP_E_MISMATCH: ranks call different collectives; all of them get this
 * error.
 */
cddp_status cdi_mpi_open(struct cdi_mpi_run *run, const void *data, size_t n, struct cdi_error *err);
/* Returns the n bytes of rank r, after cdi_mpi_open(), or after that of a collective with at most CDI_OPENING_DATA. */
const uint8_t *cdi_mpi_data_of(const struct cdi_backend *b, int r, size_t n);
/*
 * Open a send or a receive: both ranks exchange their openings. Then move its data. CDDP_E_MISMATCH: the openings do
 * not match.
 */
cddp_status cdi_mpi_open_pair(struct cdi_mpi_run *run, const struct cdi_coll *op, struct cdi_requests *q,
                              struct cdi_opening *mine, struct cdi_opening *theirs, struct cdi_error *err);
cddp_status cdi_mpi_move_pair(struct cdi_mpi_run *run, const struct cdi_coll *op, struct cdi_requests *q,
                              const struct cdi_opening *mine, const struct cdi_opening *theirs, struct cdi_error *err);
/*
 * Runs n sends and receives, those of one peer next to each other, and none to this rank itself (messages.c). Sets work
 * and peer of *run to those that it waits for.
 */
cddp_status cdi_mpi_messages(struct cdi_mpi_run *run, const struct cdi_coll *ops, size_t n, struct cdi_error *err);
/* Runs an operation that only moves data: broadcast, all_gather(v), all_to_all, send or recv. */
cddp_status cdi_mpi_exchange(struct cdi_mpi_run *run, struct cdi_error *err);
/* Runs all_reduce, reduce or reduce_scatter, their opening included. */
cddp_status cdi_mpi_reduction(struct cdi_mpi_run *run, struct cdi_error *err);
/* Runs one operation or creates a region, from the opening to the end (operation.c). */
cddp_status cdi_mpi_run(struct cdi_mpi_run *run, struct cdi_error *err);

#endif
