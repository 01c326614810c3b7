/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one communicator over MPI, and what the files of this folder do with it.
 *
 * MPI moves bytes and nothing else: every message is a non-blocking send or receive between two ranks on one duplicate
 * of the program's communicator, polled with a deadline, so that no call waits for ever for a rank that is gone.
 * Arithmetic is the CPU backend's (cdi_reduce), in rank order: MPI_Allreduce promises neither an order nor the same
 * bits on every rank. A communicator and its parts have such a duplicate, and are told apart by their tags.
 *
 * Threads. The queue (cpu/thread.h) runs one operation of a communicator at a time, on its own thread or on that of a
 * caller who waits; what belongs to an operation needs no lock. Where MPI does not take calls of several threads at
 * once, cdi_mpi_enter and _leave (CDI_MPI) keep those of several communicators apart, and callers' threads do all work.
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
    CDI_TAG_MOVE,   /* openings of collectives, and what is moved; messages of two ranks keep their order */
    CDI_TAG_PART,   /* what is to be reduced: it and the results before it are under way together */
    CDI_TAG_FAILED, /* its sender has failed, and has said why in the store */
    CDI_TAG_PAIR,   /* send and recv, which may come in another order than collectives with other ranks */
};

/* ---------------------------------------------------- one per communicator at a time of a process (process.c) ---- */

struct cdi_mpi_process {
    struct cdi_mpi_process *next;
    MPI_Comm comm;       /* a duplicate of the program's, ours alone */
    MPI_Datatype mega;   /* 1 MiB, for messages whose bytes an int cannot count */
    bool in_use;         /* by a communicator that this process has not left */
    int64_t n_used;      /* numbers of communicators that were on it */
    int n_communicators; /* that tags can tell apart */
    bool own_threads;    /* MPI takes calls of threads that the program does not know */
    bool main_only;      /* it takes those of one thread alone */
    char library[96];    /* "Open MPI v4.1.4" */
};

extern const struct cdi_host *cdi_mpi_host;
/*
 * Initialise MPI, unless the program has, and look whether it agrees with `world` about who this process is: in
 * MPI_COMM_WORLD, or in world->mpi_comm. MPI's own start has no deadline. CDDP_E_INVALID: the process was not started
 * by this MPI's launcher, or in another order; CDDP_E_SYSTEM.
 */
cddp_status cdi_mpi_process_begin(const struct cdi_world *world, struct cdi_error *err);
/* MPI takes calls of one thread alone. After begin. */
bool cdi_mpi_process_main_only(void);
/*
 * Which of the duplicates of world's communicator no other communicator of this process uses; one more than there are:
 * a new one. Rank 0 asks, and tells the others. _number: of communicators that were on it, so that the next one gets
 * that.
 */
int cdi_mpi_process_choose(const struct cdi_world *world);
int64_t cdi_mpi_process_number(const struct cdi_world *world, int index);
/* Take it. Where it is a new one a collective of all ranks. CDDP_E_TIMEOUT, CDDP_E_INVALID, CDDP_E_SYSTEM. */
cddp_status cdi_mpi_process_open(struct cdi_mpi_process **out, const struct cdi_world *world, int index,
                                 struct cdi_error *err);
/* This process has left the communicator that used it; all numbers up to `last` were. */
void cdi_mpi_process_close(struct cdi_mpi_process *p, int64_t last);
/* A communicator has failed: messages may be under way for ever, so MPI is not finalised at the process's end. */
void cdi_mpi_process_broken(void);
/* Has MPI not been finalised, by the program? */
bool cdi_mpi_process_lives(void);
/* CDI_MPI(MPI_Test(...)): one short call, by itself where MPI needs that. */
void cdi_mpi_enter(void);
int cdi_mpi_leave(int rc);
#define CDI_MPI(call) (cdi_mpi_enter(), cdi_mpi_leave(call))
/* "TEXT: MPI says ...". CDDP_E_SYSTEM. */
cddp_status cdi_mpi_fail(int rc, const char *text, struct cdi_error *err);

/* --------------------------------------------------------------------------------------- one communicator ---- */

/* What a rank calls, for the others to compare, with the data of small operations. */
#define CDI_OPENING_BYTES 64
#define CDI_OPENING_DATA 32
struct cdi_opening {
    uint64_t number; /* collectives before it */
    uint64_t count;  /* elements; of a region: bytes */
    uint32_t parts;  /* a checksum of counts */
    int32_t root;
    uint8_t kind, dtype, op, asked /* of a collective that is made of others */, unused[4];
    uint8_t data[CDI_OPENING_DATA];
};
#define CDI_KIND_REGION 100 /* beside enum cdi_coll_kind */

/* Messages under way. */
struct cdi_requests {
    MPI_Request *req;
    bool *receives;
    int n, cap;
};

/* A partner in a group of messages: they go one after another, those of other partners meanwhile. */
struct cdi_pair {
    struct cdi_requests q;           /* of the message under way: its openings, or its data */
    struct cdi_opening mine, theirs; /* of it */
    const struct cdi_coll *op;       /* it; NULL: there is none */
    const struct cdi_coll *end;      /* behind the last one */
    bool opens;
};

/* What is exchanged in pieces has two of each under way. */
#define CDI_SETS 2

/* A rank of this host, whose death the kernel tells. */
struct cdi_neighbour {
    int pidfd; /* -1: of another host, or not to be watched */
    int pid;
};

struct cdi_backend {
    struct cdi_world world;          /* of this communicator */
    struct cdi_mpi_process *process; /* also of parts: the whole's */
    struct cdi_queue *queue;
    struct cdi_flight *own_flight; /* of a part */
    char prefix[CDI_WORD_PREFIX_MAX];
    _Atomic uint32_t n_splits;
    struct cdi_oob numbers; /* the whole's: there its parts are counted */
    int64_t number;         /* of the whole communicator, in this process */
    int first_tag;
    int *world_rank; /* by rank here */
    struct cdi_neighbour *neighbours;
    uint64_t n_collectives; /* that have begun; the queue's */
    int64_t n_left;         /* ranks that were seen to have left; of them the first: */
    int leaver;
    int64_t left_after;  /* that many collectives */
    atomic_bool stopped; /* what runs is to end */
    atomic_bool told;    /* peers know that it has failed: from this rank, or this rank from them */

    struct cdi_opening *openings; /* of all ranks, by cdi_mpi_block_of; then two of send and recv */
    struct cdi_requests parts[CDI_SETS], results[CDI_SETS];
    struct cdi_pair *pairs; /* by rank */
    uint8_t *scratch;       /* of 2 * size + 2 pieces */
    size_t piece;           /* bytes */
    bool left;              /* nothing but memory is left of it */
    bool entangled;         /* MPI may still write to openings and scratch: they are never freed */
};

/* One operation under way. */
struct cdi_mpi_run {
    struct cdi_backend *b;
    const struct cdi_work *work;
    const struct cdi_coll *op; /* work's */
    int64_t timeout_ms;
    uint64_t number; /* of the collectives: which this is */
    int peer;        /* of send and recv; -1 */
};

/* ------------------------------------------------------------------------------------- waiting (await.c) ---- */

/* Begin to send or to receive; any number of bytes. */
cddp_status cdi_mpi_send(struct cdi_backend *b, struct cdi_requests *q, const void *p, size_t bytes, int to,
                         enum cdi_mpi_tag tag, struct cdi_error *err);
cddp_status cdi_mpi_receive(struct cdi_backend *b, struct cdi_requests *q, void *p, size_t bytes, int from,
                            enum cdi_mpi_tag tag, struct cdi_error *err);
/*
 * Until all of q is done; empties it. CDDP_E_TIMEOUT (the ranks that did not come are named), CDDP_E_PEER (one died or
 * left), CDDP_E_ABORTED, what a peer says its reason is, CDDP_E_SYSTEM. After an error receives were cancelled.
 */
cddp_status cdi_mpi_await(struct cdi_mpi_run *run, struct cdi_requests *q, struct cdi_error *err);
/* Is all of q done? Empties it then. No wait. */
cddp_status cdi_mpi_test(struct cdi_requests *q, bool *done, struct cdi_error *err);
/* What one look at messages under way has found. */
enum cdi_mpi_progress { CDI_MPI_NOTHING, CDI_MPI_MOVED, CDI_MPI_DONE };
typedef cddp_status (*cdi_mpi_step)(void *arg, enum cdi_mpi_progress *got, struct cdi_error *err);
/* The same as cdi_mpi_await, until `step` says DONE; with each MOVED a new wait begins. */
cddp_status cdi_mpi_poll(struct cdi_mpi_run *run, cdi_mpi_step step, void *arg, struct cdi_error *err);
/* Tell all ranks of this communicator why it has failed, once; if MPI may be called, they also look at once. */
void cdi_mpi_tell_peers(struct cdi_backend *b, const struct cdi_error *why);
/* CDDP_OK: no rank has said that it has failed, or this one is still connecting. No wait. */
cddp_status cdi_mpi_heard_failure(struct cdi_backend *b, struct cdi_error *err);
/* After an error: take back what is under way, as far as MPI lets. */
void cdi_mpi_give_up(struct cdi_backend *b);
/* "all_reduce(sum) of 10 float32" */
void cdi_mpi_what(const struct cdi_work *work, char *buf, size_t cap);
struct cdi_peer_error cdi_mpi_word(const struct cdi_backend *b);

/* ------------------------------------------------- operations: exchange.c, then reduction.c, then operation.c ---- */

/*
 * Begin a collective: every rank learns what every other one calls, and n bytes of its data (at most CDI_OPENING_DATA).
 * CDDP_E_MISMATCH: ranks call different ones, and all of them learn it.
 */
cddp_status cdi_mpi_open(struct cdi_mpi_run *run, const void *data, size_t n, struct cdi_error *err);
/* Rank r's opening, after cdi_mpi_open. */
const struct cdi_opening *cdi_mpi_opening(const struct cdi_backend *b, int r);
/* Equal blocks of all ranks, in few steps: for small ones. Rank r's is block (r - own rank) mod size of `all`. */
cddp_status cdi_mpi_gather(struct cdi_mpi_run *run, void *all, size_t block, struct cdi_error *err);
static inline size_t cdi_mpi_block_of(const struct cdi_backend *b, int r)
{
    return (size_t)((r - b->world.rank + b->world.size) % b->world.size);
}
/* Begin a send or a receive: both ranks say what they call. Then its data, if they call the same: CDDP_E_MISMATCH. */
cddp_status cdi_mpi_open_pair(struct cdi_mpi_run *run, const struct cdi_coll *op, struct cdi_requests *q,
                              struct cdi_opening *mine, struct cdi_opening *theirs, struct cdi_error *err);
cddp_status cdi_mpi_move_pair(struct cdi_mpi_run *run, const struct cdi_coll *op, struct cdi_requests *q,
                              const struct cdi_opening *mine, const struct cdi_opening *theirs, struct cdi_error *err);
/*
 * n sends and receives, those of one partner behind one another, and none to this rank itself (messages.c). run's work
 * and peer are those that are waited for.
 */
cddp_status cdi_mpi_messages(struct cdi_mpi_run *run, const struct cdi_coll *ops, size_t n, struct cdi_error *err);
/* Runs an operation that only moves data: broadcast, all_gather(v), all_to_all, send or recv. */
cddp_status cdi_mpi_exchange(struct cdi_mpi_run *run, struct cdi_error *err);
/* Runs all_reduce, reduce or reduce_scatter, their opening included. */
cddp_status cdi_mpi_reduction(struct cdi_mpi_run *run, struct cdi_error *err);
/* Runs one operation or creates a region, from the opening to the end (operation.c). */
cddp_status cdi_mpi_run(struct cdi_mpi_run *run, struct cdi_error *err);

#endif
