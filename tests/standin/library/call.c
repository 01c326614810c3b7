/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's operations as the program calls them: checks, groups, and enqueueing on a stream, sometimes later. */
#include "comm.h"
#include "version.h"

#include "common/env.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SI_ORDER 256

/* Calls that are collected between ncclGroupStart and ncclGroupEnd. */
struct group {
    unsigned depth;
    ncclResult_t failed;
    size_t n, n_tasks;
    struct {
        struct ncclComm *comm;
        CUstream stream;
        struct si_call call;
    } call[SI_GROUP_CALLS];
    struct {
        struct ncclComm *comm;
        ncclResult_t (*fn)(struct ncclComm *comm, void *arg);
        void *arg;
    } task[SI_ACTORS];
};

static _Thread_local struct group *group; /* NULL: none */

/* ------------------------------------------------------------------------------------------------------ onto a stream
 * -- */

struct late {
    struct si_calls *calls;
    CUstream stream;
    struct si_clock seen;
};

/* The launch that is to change places with the next one, until it has begun. Locked. */
static struct si_op *swapping;
static uint32_t swapped;

/* The calls that the next launch has left here; if none follows soon, those of this launch. */
static void await_swap(struct si_op *op, const struct ncclComm *comm)
{
    const struct timespec ms = {.tv_nsec = 1000000};

    for (int i = 0; i < 500 && __atomic_load_n(&swapped, __ATOMIC_ACQUIRE) == 0 &&
                    __atomic_load_n(&comm->abort, __ATOMIC_ACQUIRE) == 0;
         i++)
        (void)nanosleep(&ms, NULL);
    si_lock();
    if (swapping == op)
        swapping = NULL;
    si_unlock();
}

/* Locked. */
static void launch_swap(struct si_op *op)
{
    struct si_calls **a, **b = op->data, *calls;

    if (swapping != NULL) {
        a = swapping->data;
        calls = *a;
        *a = *b;
        *b = calls;
        swapping = NULL;
        __atomic_store_n(&swapped, 1, __ATOMIC_RELEASE);
    } else if (si_swap_launch()) {
        swapping = op;
        __atomic_store_n(&swapped, 0, __ATOMIC_RELEASE);
    }
}

static void call_run(struct si_op *op)
{
    bool waits;

    si_lock();
    waits = swapping == op;
    si_unlock();
    if (waits)
        await_swap(op, (*(struct si_calls **)op->data)->comm);
    si_run_calls(*(struct si_calls **)op->data);
}

static void launch_drop(struct si_op *op)
{
    struct si_calls *c = *(struct si_calls **)op->data;

    if (c->captured) {
        (void)__atomic_sub_fetch(&c->comm->captured, 1, __ATOMIC_RELEASE);
        si_futex_wake(&c->comm->captured, false);
    }
    si_comm_unref(c->comm);
    free(c);
}

/* Operations of one communicator run one after the other, whatever their streams. */
static void before_push(struct si_op *op, struct CUstream_st *s)
{
    const struct ncclComm *comm = (*(struct si_calls **)op->data)->comm;

    if (comm->last != NULL)
        si_serialise_locked(s, comm->last);
}

static void after_push(struct si_op *op, struct CUstream_st *s)
{
    struct ncclComm *comm = (*(struct si_calls **)op->data)->comm;

    si_stop_release_locked(comm->last);
    comm->last = si_stop_create_locked(s);
}

/*
 * A captured launch takes its place among the communicator's others at each launch of its graph: NCCL makes the graph
 * record an event for which its next launch waits, as long as NCCL_GRAPH_MIXING_SUPPORT is not 0 (enqueue.cc:1664 and
 * 1949 of v2.30.7; misc/strongstream.cc). The communicator does not end before the graphs that hold it (init.cc:1799 of
 * v2.19.3, 2751 of v2.30.7, commDestroySync; ncclCommAbort gets there, too).
 */
static void call_capture(struct si_calls *c, struct CUstream_st *s, const struct standin_ranges *r, struct si_op *op)
{
    c->captured = true;
    (void)__atomic_add_fetch(&c->comm->captured, 1, __ATOMIC_RELEASE);
    op->before = before_push;
    op->after = after_push;
    si_push_for_locked(s, op, r, NULL);
}

static void add_ranges(const struct si_call *c, int n_ranks, int rank, struct standin_ranges *r)
{
    size_t bytes = c->count * si_type_size(c->type), all = bytes * (size_t)n_ranks;
    bool root = rank == c->root;

    switch (c->kind) {
    case SI_ALL_REDUCE:
        si_range_add(r, c->send, bytes, false);
        si_range_add(r, c->recv, bytes, true);
        break;
    case SI_BROADCAST:
        if (root)
            si_range_add(r, c->send, bytes, false);
        si_range_add(r, c->recv, bytes, true);
        break;
    case SI_REDUCE:
        si_range_add(r, c->send, bytes, false);
        if (root)
            si_range_add(r, c->recv, bytes, true);
        break;
    case SI_ALL_GATHER:
        si_range_add(r, c->send, bytes, false);
        si_range_add(r, c->recv, all, true);
        break;
    case SI_REDUCE_SCATTER:
        si_range_add(r, c->send, all, false);
        si_range_add(r, c->recv, bytes, true);
        break;
    case SI_SEND:
        si_range_add(r, c->send, bytes, false);
        break;
    case SI_RECV:
        si_range_add(r, c->recv, bytes, true);
        break;
    }
}

/* The communicators of the launches so far. Locked. */
static uint8_t order[SI_ORDER];
static size_t n_order;

size_t standin_launch_order(uint8_t *out, size_t cap)
{
    size_t n;

    si_lock();
    n = n_order < cap ? n_order : cap;
    memcpy(out, order, n);
    si_unlock();
    return n;
}

static ncclResult_t push_locked(struct si_calls *c, CUstream handle, const struct si_clock *seen, struct si_op *op)
{
    struct ncclComm *comm = c->comm;
    struct standin_ranges r = {.n = 0};
    struct CUstream_st *s;

    if (si_stream_locked(handle, c->call[0].name, &s) != CUDA_SUCCESS)
        return ncclInvalidArgument;
    if (si_capture_state_locked(s) != CUDA_SUCCESS)
        return ncclUnhandledCudaError;
    si_room_locked(s);
    for (size_t i = 0; i < c->n; i++)
        add_ranges(&c->call[i], comm->seg.n_ranks, comm->seg.rank, &r);
    comm->refs++;
    if (n_order < SI_ORDER)
        order[n_order++] = comm->number;
    op->drop = launch_drop;
    if (si_stream_captures_locked(s)) {
        call_capture(c, s, &r, op);
        return ncclSuccess;
    }
    before_push(op, s);
    launch_swap(op);
    si_push_for_locked(s, op, &r, seen);
    after_push(op, s);
    return ncclSuccess;
}

/* Takes calls. */
static ncclResult_t call_push(struct si_calls *calls, CUstream stream, const struct si_clock *seen)
{
    struct si_op *op = si_op_create(calls->call[0].name, call_run, sizeof(struct si_calls *));
    struct ncclComm *comm = calls->comm;
    ncclResult_t rc = op == NULL ? ncclSystemError : ncclSuccess;

    if (rc == ncclSuccess) {
        *(struct si_calls **)op->data = calls;
        (void)__atomic_add_fetch(&comm->inside, 1, __ATOMIC_ACQ_REL); /* it may wait for room on the stream */
        si_lock();
        rc = push_locked(calls, stream, seen, op);
        si_unlock();
        (void)__atomic_sub_fetch(&comm->inside, 1, __ATOMIC_ACQ_REL);
    }
    if (rc == ncclSuccess) {
        op = NULL;
    } else {
        free(op);
        free(calls);
    }
    return rc;
}

static ncclResult_t push_late(struct ncclComm *comm, void *arg)
{
    struct late *l = arg;
    ncclResult_t rc = __atomic_load_n(&comm->abort, __ATOMIC_ACQUIRE) == 0 ? call_push(l->calls, l->stream, &l->seen)
                                                                           : (free(l->calls), ncclSuccess);

    free(l);
    return rc;
}

/* Returns whether they need a connection that does not exist yet. */
static bool has_both_ends(const struct si_calls *c)
{
    bool first = false;

    for (size_t i = 0; i < c->n; i++) {
        const struct si_call *one = &c->call[i];

        if ((one->kind != SI_SEND && one->kind != SI_RECV) || one->root == c->comm->seg.rank)
            continue;
        first = first || !c->comm->met[one->root];
        c->comm->met[one->root] = true;
    }
    return first;
}

/* Returns whether a thread of NCCL enqueues these, and has not done so before the call returns. */
static bool launch_later(const struct si_calls *c)
{
    struct ncclComm *comm = c->comm;
    struct cdi_error err = {0};
    int64_t percent = 25;
    bool thread = has_both_ends(c) || si_version().thread_per_group;

    if (comm->blocking || comm->seg.n_ranks == 1 || !thread ||
        cdi_env_int_or("CDDP_STANDIN_PROGRESS", 0, 100, 25, &percent, &err) != CDDP_OK)
        return false;
    return si_random(&comm->random, 100) < (uint64_t)percent;
}

/*
 * Returns whether each message to this rank itself has its other end. enqueue.cc:645 of v2.19.3, enqueue.cc:1160 of
 * v2.30.7.
 */
static bool ends_match(const struct si_calls *c)
{
    int open = 0;

    for (size_t i = 0; i < c->n; i++)
        if (c->call[i].root == c->comm->seg.rank)
            open += c->call[i].kind == SI_SEND ? 1 : c->call[i].kind == SI_RECV ? -1 : 0;
    return open == 0;
}

/*
 * The query of hostStream.serialEvent in ncclLaunchPrepare (version.c). NCCL goes on, whatever it returns; but a
 * capture that forbids it is invalid then. A communicator of one rank has no plans, and so no references of graphs.
 */
static void query_event(const struct si_calls *c, CUstream stream)
{
    struct ncclComm *comm = c->comm;
    struct CUstream_st *s;
    bool is_captured;

    if (!si_version().queries_event || comm->seg.n_ranks == 1 ||
        __atomic_load_n(&comm->captured, __ATOMIC_ACQUIRE) == 0)
        return;
    si_lock();
    is_captured = si_stream_locked(stream, c->call[0].name, &s) != CUDA_SUCCESS || si_stream_captures_locked(s);
    si_unlock();
    if (is_captured)
        return;
    if (comm->blocking)
        (void)si_capture_unsafe("cuEventQuery in a launch of NCCL");
    else
        si_capture_unsafe_elsewhere("cuEventQuery in a launch of NCCL, in a separate thread");
}

/* Takes calls. */
static ncclResult_t call_launch(struct si_calls *calls, CUstream stream)
{
    struct ncclComm *comm = calls->comm;
    struct late *l;
    struct si_clock seen;

    if (!ends_match(calls)) {
        free(calls);
        return si_comm_keep(comm, si_comm_refuse(comm, ncclInvalidUsage, "a message to oneself lacks its other end"));
    }
    if (!si_connect(calls)) {
        free(calls);
        return si_comm_cut(comm, ncclInternalError);
    }
    query_event(calls, stream);
    si_lock();
    si_seen_locked(&seen);
    si_unlock();
    if (!launch_later(calls))
        return call_push(calls, stream, &seen);
    l = malloc(sizeof *l);
    if (l == NULL) {
        free(calls);
        return ncclSystemError;
    }
    *l = (struct late){.calls = calls, .stream = stream, .seen = seen};
    return si_comm_task(comm, push_late, l);
}

/* --------------------------------------------------------------------------------------------------------- groups --
 */

bool si_group_defers(struct ncclComm *comm, ncclResult_t (*fn)(struct ncclComm *, void *), void *arg)
{
    if (group == NULL || group->depth == 0 || group->n_tasks == SI_ACTORS)
        return false;
    group->task[group->n_tasks].comm = comm;
    group->task[group->n_tasks].fn = fn;
    group->task[group->n_tasks].arg = arg;
    group->n_tasks++;
    return true;
}

/* Takes all calls for the communicator of call `from` out of the group. */
static struct si_calls *call_collect(size_t from)
{
    struct ncclComm *comm = group->call[from].comm;
    struct si_calls *c = calloc(1, sizeof *c + (group->n - from) * sizeof c->call[0]);

    if (c == NULL)
        return NULL;
    c->comm = comm;
    for (size_t i = from; i < group->n; i++) {
        if (group->call[i].comm != comm)
            continue;
        c->call[c->n++] = group->call[i].call;
        group->call[i].comm = NULL;
    }
    return c;
}

static ncclResult_t call_launch_group(void)
{
    ncclResult_t rc = ncclSuccess;

    for (size_t i = 0; i < group->n; i++) {
        struct si_calls *calls;
        ncclResult_t one;

        if (group->call[i].comm == NULL)
            continue;
        calls = call_collect(i);
        one = calls != NULL ? call_launch(calls, group->call[i].stream) : ncclSystemError;
        if (rc == ncclSuccess || (rc == ncclInProgress && one != ncclSuccess))
            rc = one;
    }
    return rc;
}

/* Blocking communicators of one thread join each other: each on a thread, then wait for all. */
static ncclResult_t run_tasks(void)
{
    ncclResult_t rc = ncclSuccess;

    for (size_t i = 0; i < group->n_tasks; i++)
        (void)si_comm_launch(group->task[i].comm, group->task[i].fn, group->task[i].arg);
    for (size_t i = 0; i < group->n_tasks; i++) {
        ncclResult_t one = si_comm_await(group->task[i].comm);

        rc = rc == ncclSuccess ? one : rc;
    }
    return rc;
}

/* No call of the group is executed, and its communicators have failed. */
static void give_up_group(ncclResult_t rc)
{
    for (size_t i = 0; i < group->n; i++)
        (void)si_comm_keep(group->call[i].comm, rc);
}

/* The declarations of the header have no attributes for arguments. */
SI_EXPORT ncclResult_t ncclGroupStart(void);
SI_EXPORT ncclResult_t ncclGroupEnd(void);

SI_EXPORT ncclResult_t ncclGroupStart(void)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclGroupStart", false);

    if (rc != ncclSuccess)
        return rc;
    if (group == NULL)
        group = calloc(1, sizeof *group);
    if (group == NULL)
        return ncclSystemError;
    group->depth++;
    return ncclSuccess;
}

SI_EXPORT ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclGroupEnd", false);

    if (group == NULL || group->depth == 0)
        return si_comm_refuse(NULL, ncclInvalidUsage, "ncclGroupEnd: there is no ncclGroupStart before it");
    if (--group->depth > 0)
        return rc;
    if (rc == ncclSuccess)
        rc = group->failed;
    if (rc == ncclSuccess)
        rc = run_tasks();
    if (rc == ncclSuccess)
        rc = call_launch_group();
    else
        give_up_group(rc);
    free(group);
    group = NULL;
    return rc;
}

/* ----------------------------------------------------------------------------------------------------- operations --
 */

/* Returns the offset of the output in a symmetric window of this communicator that has both buffers, or -1. */
static int64_t window_offset(struct ncclComm *comm, const struct si_call *c)
{
    int64_t offset = -1;
    size_t got = c->count * si_type_size(c->type),
           given = c->kind == SI_REDUCE_SCATTER ? got * (size_t)comm->seg.n_ranks : got;

    si_lock();
    for (const struct si_window *w = comm->windows; w != NULL && offset < 0; w = w->next)
        if (w->symmetric && c->send >= w->at && c->send + given <= w->at + w->bytes && c->recv >= w->at &&
            c->recv + got <= w->at + w->bytes)
            offset = c->recv - w->at;
    si_unlock();
    return offset;
}

/*
 * Returns whether the division follows the sum. The symmetric kernels of reduce-scatter do so: on one node, not for
 * float64 (sym_kernels.cc:532 of v2.30.7). A sum that the type does not hold is then infinite, and so is its mean.
 * All-reduce has no such kernels (device/symmetric/generate.py:102-107 of v2.30.3, 2.30.4 and 2.30.7), though NCCL
 * chooses one: ncclSymkGetKernelIndex returns -1, with which symmetric_sched.cc:253 reads in front of the list.
 */
static bool mean_after_sum(struct ncclComm *comm, const struct si_call *c)
{
    bool has_kernel = c->type == ncclFloat32 || c->type == ncclFloat16 || c->type == ncclBfloat16,
         symmetric = c->op == ncclAvg && has_kernel && si_version().mean_after_sum && comm->seg.n_ranks > 1 &&
                     segment_on_one_host(&comm->seg) && (c->kind == SI_ALL_REDUCE || c->kind == SI_REDUCE_SCATTER) &&
                     window_offset(comm, c) >= 0;

    if (symmetric && c->kind == SI_ALL_REDUCE)
        si_fault("%s: ncclAvg in a symmetric window, for which NCCL has no kernel", c->name);
    return symmetric;
}

/*
 * Returns whether no abort ends this operation: true for the symmetric kernels of older versions, which wait for peers
 * only.
 */
static bool is_deaf(struct ncclComm *comm, const struct si_call *c)
{
    bool adds = c->op == ncclSum &&
                (c->type == ncclFloat32 || c->type == ncclFloat16 || c->type == ncclBfloat16 || si_is_float8(c->type));

    if (si_version().symmetric_aborts || comm->seg.n_ranks == 1 || !segment_on_one_host(&comm->seg))
        return false;
    return (c->kind == SI_ALL_GATHER || ((c->kind == SI_ALL_REDUCE || c->kind == SI_REDUCE_SCATTER) && adds)) &&
           window_offset(comm, c) >= 0;
}

static ncclResult_t call_check(struct ncclComm *comm, const struct si_call *c)
{
    bool rooted = c->kind != SI_ALL_REDUCE && c->kind != SI_ALL_GATHER && c->kind != SI_REDUCE_SCATTER;
    bool message = c->kind == SI_SEND || c->kind == SI_RECV;

    if (si_type_size(c->type) == 0 || (rooted && (c->root < 0 || c->root >= comm->seg.n_ranks)) ||
        (c->kind == SI_ALL_REDUCE && c->send != c->recv && c->send < c->recv + c->count * si_type_size(c->type) &&
         c->recv < c->send + c->count * si_type_size(c->type)))
        return si_comm_refuse(comm, ncclInvalidArgument,
                              "%s: type %d, root or peer %d of %d ranks, or buffers that overlap in part", c->name,
                              (int)c->type, c->root, comm->seg.n_ranks);
    /* Every collective, also one that only moves: enqueue.cc:2125 of v2.24.3, there of all ranks' GPUs. */
    if (!message && si_is_float8(c->type) && c->count > 0 && si_settings.capability < 90)
        return si_comm_refuse(comm, ncclInvalidArgument, "%s: floats of 8 bits on a GPU of capability %d", c->name,
                              si_settings.capability);
    if (comm->finalized || comm->revoked)
        return si_comm_refuse(comm, ncclInvalidUsage, "%s: communicator '%s' has been finalized or revoked", c->name,
                              comm->name);
    return ncclSuccess;
}

/* Returns whether the call itself returns "in progress". */
static bool returns_in_progress(enum si_call_kind kind)
{
    const struct si_version v = si_version();

    return kind == SI_SEND || kind == SI_RECV ? v.message_tells : v.collective_tells;
}

static ncclResult_t operate(struct ncclComm *comm, CUstream stream, struct si_call *c)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl(c->name, false);
    struct si_calls *one;

    if (rc == ncclSuccess)
        rc = si_comm_check(comm, c->name);
    if (rc == ncclSuccess)
        rc = call_check(comm, c);
    if (rc == ncclSuccess && (unsigned)c->op >= (unsigned)ncclNumOps)
        rc = si_comm_refuse(comm, ncclInvalidArgument, "%s: %d is not a reduction for this type", c->name, (int)c->op);
    if (rc == ncclSuccess && group != NULL && group->n == SI_GROUP_CALLS)
        rc = si_comm_refuse(comm, ncclInvalidUsage, "%s: more than %d calls in one group", c->name, SI_GROUP_CALLS);
    if (rc != ncclSuccess) {
        if (group != NULL && group->failed == ncclSuccess)
            group->failed = rc;
        return si_comm_keep(comm, rc);
    }
    c->offset = c->kind == SI_ALL_REDUCE ? window_offset(comm, c) : -1;
    c->mean_after_sum = mean_after_sum(comm, c);
    c->deaf = is_deaf(comm, c);
    if (group != NULL) {
        for (size_t i = 0; i < group->n; i++)
            if (group->call[i].comm == comm && group->call[i].stream != stream)
                return group->failed = si_comm_refuse(comm, ncclInvalidUsage,
                                                      "%s: one group uses communicator '%s' on two streams, which the "
                                                      "stand-in does not do",
                                                      c->name, comm->name);
        group->call[group->n].comm = comm;
        group->call[group->n].stream = stream;
        group->call[group->n++].call = *c;
        return ncclSuccess;
    }
    one = calloc(1, sizeof *one + sizeof one->call[0]);
    if (one == NULL)
        return ncclSystemError;
    one->comm = comm;
    one->n = 1;
    one->call[0] = *c;
    rc = si_comm_keep(comm, call_launch(one, stream));
    return rc == ncclInProgress && !returns_in_progress(c->kind) ? ncclSuccess : rc;
}

SI_EXPORT ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                     ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    struct si_call c = {.kind = SI_ALL_REDUCE,
                        .name = "ncclAllReduce",
                        .send = sendbuff,
                        .recv = recvbuff,
                        .count = count,
                        .type = datatype,
                        .op = op};

    return operate(comm, stream, &c);
}

SI_EXPORT ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                     int root, ncclComm_t comm, cudaStream_t stream)
{
    struct si_call c = {.kind = SI_BROADCAST,
                        .name = "ncclBroadcast",
                        .send = sendbuff,
                        .recv = recvbuff,
                        .count = count,
                        .type = datatype,
                        .root = root};

    return operate(comm, stream, &c);
}

SI_EXPORT ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                                  ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    struct si_call c = {.kind = SI_REDUCE,
                        .name = "ncclReduce",
                        .send = sendbuff,
                        .recv = recvbuff,
                        .count = count,
                        .type = datatype,
                        .op = op,
                        .root = root};

    return operate(comm, stream, &c);
}

SI_EXPORT ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                                     ncclComm_t comm, cudaStream_t stream)
{
    struct si_call c = {.kind = SI_ALL_GATHER,
                        .name = "ncclAllGather",
                        .send = sendbuff,
                        .recv = recvbuff,
                        .count = sendcount,
                        .type = datatype};

    return operate(comm, stream, &c);
}

SI_EXPORT ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                         ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    struct si_call c = {.kind = SI_REDUCE_SCATTER,
                        .name = "ncclReduceScatter",
                        .send = sendbuff,
                        .recv = recvbuff,
                        .count = recvcount,
                        .type = datatype,
                        .op = op};

    return operate(comm, stream, &c);
}

SI_EXPORT ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                                cudaStream_t stream)
{
    struct si_call c = {
        .kind = SI_SEND, .name = "ncclSend", .send = sendbuff, .count = count, .type = datatype, .root = peer};

    return operate(comm, stream, &c);
}

SI_EXPORT ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                                cudaStream_t stream)
{
    struct si_call c = {
        .kind = SI_RECV, .name = "ncclRecv", .recv = recvbuff, .count = count, .type = datatype, .root = peer};

    return operate(comm, stream, &c);
}
