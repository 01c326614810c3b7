/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives and messages: blocking, begun and waited for, and in groups. */
#ifndef CDDP_COLL_H
#define CDDP_COLL_H

#include <cddp/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------------------------------------- collectives ---- */

/*
 * Blocking collectives over host memory, or over the GPU's where the backend is "nccl" (work that writes it must have
 * been waited for; host memory is then copied there and back). They may be called from any thread, but the order of all
 * collectives of a communicator (those of reducers included) must be the same on every rank. Two communicators are two
 * orders: on the CPU, ranks may start collectives on both in different orders (cddp_coll_start); with NCCL that may
 * hang (cddp_comm_split). They return CDDP_OK; CDDP_E_INVALID (a bad argument; nothing was communicated);
 * CDDP_E_UNSUPPORTED (a reduction that the backend does not do, see cddp_redop; likewise); CDDP_E_MISMATCH (ranks
 * called different collectives); CDDP_E_PEER (a rank died; the error message names it); CDDP_E_TIMEOUT (the error
 * message names the missing ranks); CDDP_E_IO (the connection of two ranks broke, and neither is known to have died;
 * the error message names them); CDDP_E_ABORTED; CDDP_E_NOMEM. A count of 0 is allowed.
 */

/*
 * Reduces over all ranks: out[i] = op over all ranks of in[i], the same bits on every rank. On the CPU sums are made in
 * rank order, ((r0+r1)+r2)+..., on a GPU in NCCL's. in and out hold `count` elements and are the same (in place) or do
 * not overlap.
 */
CDDP_API cddp_status cddp_all_reduce(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype,
                                     cddp_redop op);
/* Copies buf[0..count) of rank `root` to buf on every rank. */
CDDP_API cddp_status cddp_broadcast(cddp_comm *comm, void *buf, size_t count, cddp_dtype dtype, int root);
/*
 * Gathers on every rank: out[r * count .. (r+1) * count) = in[0..count) of rank r. out holds world size * count
 * elements; in may be this rank's own part of out (in place).
 */
CDDP_API cddp_status cddp_all_gather(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype);
/* Gathers parts of uneven size: rank r gives counts[r] elements (counts is equal on all ranks), one after another in
 * out.
 */
CDDP_API cddp_status cddp_all_gatherv(cddp_comm *comm, const void *in, void *out, const size_t *counts,
                                      cddp_dtype dtype);
/* Reduces as cddp_all_reduce, but writes out on rank `root` only; elsewhere out may be NULL. */
CDDP_API cddp_status cddp_reduce(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype,
                                 cddp_redop op, int root);
/*
 * Reduces, and gives block r of the result to rank r: in holds world size * count elements, out holds count. In place:
 * out is this rank's block of in, whose other blocks stay as they were.
 */
CDDP_API cddp_status cddp_reduce_scatter(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype,
                                         cddp_redop op);
/*
 * Exchanges blocks: block s of in goes to rank s, and block r of out is from rank r. in and out hold world size * count
 * elements and do not overlap.
 */
CDDP_API cddp_status cddp_all_to_all(cddp_comm *comm, const void *in, void *out, size_t count, cddp_dtype dtype);
/*
 * Sends or receives a message of `count` elements; the other rank calls the other function with the same count and
 * type. Messages of one rank to another arrive in the order of sending. cddp_send returns when buf may be used again,
 * which may be only after the other rank has begun to receive: two ranks that exchange messages must not both send
 * first (the "cpu" backend returns CDDP_E_MISMATCH). Put both into one group instead: cddp_coll_run.
 */
CDDP_API cddp_status cddp_send(cddp_comm *comm, const void *buf, size_t count, cddp_dtype dtype, int to);
CDDP_API cddp_status cddp_recv(cddp_comm *comm, void *buf, size_t count, cddp_dtype dtype, int from);
/* Returns once every rank has called it. */
CDDP_API cddp_status cddp_barrier(cddp_comm *comm);

/*
 * What an operation of cddp_coll_args does: what the function of its name does, or one of these.
 *
 * - GATHER: out[r * count .. (r+1) * count) of rank `root` = in[0..count) of rank r. Elsewhere out is not used. In
 *   place: root's in is its own part of out.
 * - SCATTER: out[0..count) of rank r = in[r * count .. (r+1) * count) of rank `root`. Elsewhere in is not used. In
 *   place: root's out is its own part of in.
 * - ALL_TO_ALLV: rank r gives in_counts[s] elements to rank s, which has that number as its out_counts[r]. in and out
 *   do not overlap.
 * - REDUCE_SCATTERV: in_counts[r] elements of the reduction go to out of rank r. in_counts is equal on all ranks. In
 *   place: out is this rank's part of in, whose other parts stay as they were.
 */
typedef enum cddp_coll {
    CDDP_COLL_ALL_REDUCE = 1,
    CDDP_COLL_BROADCAST = 2,
    CDDP_COLL_ALL_GATHER = 3,
    CDDP_COLL_BARRIER = 4,
    CDDP_COLL_REDUCE = 5,
    CDDP_COLL_ALL_GATHERV = 6,
    CDDP_COLL_REDUCE_SCATTER = 7,
    CDDP_COLL_ALL_TO_ALL = 8,
    CDDP_COLL_SEND = 9,
    CDDP_COLL_RECV = 10,
    CDDP_COLL_GATHER = 11,
    CDDP_COLL_SCATTER = 12,
    CDDP_COLL_ALL_TO_ALLV = 13,
    CDDP_COLL_REDUCE_SCATTERV = 14,
    CDDP_ENUM_32(CDDP_COLL)
} cddp_coll;

/*
 * One operation. Members that it does not use are zero. Counts and offsets have one entry for each rank, in elements,
 * and are copied: they may lie on the caller's stack. Without offsets, parts lie one after another; parts of `out` do
 * not overlap. Offsets may differ from rank to rank; but a rank gives an ALL_GATHERV out_offsets where the others do.
 */
typedef struct cddp_coll_args {
    size_t size; /* sizeof(cddp_coll_args), in each of an array */
    cddp_coll coll;
    cddp_dtype dtype;
    cddp_redop op;
    int32_t root;   /* of SEND and RECV the other rank */
    const void *in; /* of BROADCAST, on the root: the source of all ranks' out; NULL: it is in out already */
    void *out;
    size_t count;              /* not of the four with counts: */
    const size_t *in_counts;   /* ALL_TO_ALLV, REDUCE_SCATTERV */
    const size_t *in_offsets;  /* the same; NULL: one after another */
    const size_t *out_counts;  /* ALL_GATHERV, ALL_TO_ALLV */
    const size_t *out_offsets; /* the same; NULL: one after another */
    uint32_t flags;            /* 0 */
    uint32_t zero;             /* 0 */
} cddp_coll_args;

/*
 * Starts n operations as one group, and returns at once. A communicator is a queue: groups run one after another, in
 * the order in which they were begun, on the communication thread (on a GPU: stream). *ticket is for cddp_coll_test and
 * cddp_coll_wait; ticket may be NULL, since each ticket also stands for all groups before it. n may be 0: nothing is
 * begun, and the ticket is 0, which is always done. args is copied; memory that in and out name must stay until the
 * group is done. On a GPU the group begins after what had been waited for when cddp_coll_start was called. Any thread.
 *
 * A group has either collectives, the same ones in the same order on every rank, or sends and receives. Within a group
 * operations run in any order, so none uses what another one writes. Sends and receives of a group do not block each
 * other: ranks exchange messages in one group each, and name them in any order. Several messages from one rank to
 * another match in the order of the array, without tags. So in a ring of two, where the left neighbour is the right
 * one, too: receive from the left, then from the right, and send to the right, then to the left. A rank may send to
 * itself, if the same group receives it. Put messages that ranks exchange at the same time into one group on each of
 * them. A rank that takes its messages one by one may wait for a rank that waits for another of them.
 *
 * All arguments are checked before anything is started. Returns CDDP_OK; CDDP_E_INVALID (nothing was started, as with
 * the next three; the error message names the operation); CDDP_E_UNSUPPORTED (a member of a later version; a reduction
 * that the backend does not do, see cddp_redop; or it has no groups); CDDP_E_NOMEM; CDDP_E_LIMIT (65536 are waiting to
 * be run: wait for some); or the sticky error. cddp_coll_wait returns later errors; among them is CDDP_E_MISMATCH,
 * where ranks disagree about a collective, or two ranks about the count or the type of a message ("cpu" and "mpi").
 */
CDDP_API cddp_status cddp_coll_start(cddp_comm *comm, const cddp_coll_args *args, size_t n, uint64_t *ticket);
/*
 * Returns CDDP_OK if the group with this ticket, and all that were begun before it on comm, are done. Otherwise it
 * returns CDDP_IN_PROGRESS, which is not an error. It does not block, with one exception: a process without a
 * communication thread (an MPI below MPI_THREAD_MULTIPLE, or no thread could be made) does the work in this call. Any
 * thread, any number of times. Returns also CDDP_E_INVALID (no such ticket), CDDP_E_UNSUPPORTED (the backend cannot
 * tell), or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_coll_test(cddp_comm *comm, uint64_t ticket);
/*
 * Blocks until the group with this ticket, and all that were begun before it on comm, are done. Any thread, any number
 * of times. Returns CDDP_OK, CDDP_E_INVALID (no such ticket), or what a collective may return.
 */
CDDP_API cddp_status cddp_coll_wait(cddp_comm *comm, uint64_t ticket);
/*
 * Starts a group and waits for it, which costs less than cddp_coll_start and cddp_coll_wait: the calling thread does
 * the work. Any thread. Returns what the two return.
 */
CDDP_API cddp_status cddp_coll_run(cddp_comm *comm, const cddp_coll_args *args, size_t n);

#ifdef __cplusplus
}
#endif

#endif
