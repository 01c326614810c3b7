/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on the communication stream: the ring of them, and how each becomes NCCL's calls. */
#include "common/clock.h"
#include "worker/backend/describe.h"
#include "worker/backend/nccl/mean.h"
#include "worker/backend/nccl/reduction_support.h"
#include "worker/backend/nccl/state.h"
#include "worker/base/dtype.h"

#include <stdio.h>
#include <string.h>

/* The sentence names the operation; the communicator is broken. */
static cddp_status broken(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_error *err)
{
    char text[CDI_OP_TEXT];

    cdi_coll_text(op, text, sizeof text);
    (void)cdi_error_wrap(err, "%s", text);
    return cdi_gpu_fail(b, err);
}

/* -------------------------------------------------------------------------------------------------- the ring ---- */

static bool grow(struct cdi_backend *b)
{
    size_t size = b->ring_size == 0 ? CDI_RING_FIRST : b->ring_size * 2;
    struct cdi_slot *ring = size <= CDI_RING_LIMIT ? cdi_host->alloc(size, sizeof *ring) : NULL;

    if (ring == NULL)
        return false;
    (void)pthread_mutex_lock(&b->page);
    for (uint64_t t = b->given - b->ring_size + 1; b->ring_size > 0 && t <= b->given; t++)
        ring[t & (size - 1)] = *cdi_slot_of(b, t);
    cdi_host->release(b->ring);
    b->ring = ring;
    b->ring_size = size;
    (void)pthread_mutex_unlock(&b->page);
    return true;
}

/* The slot of the next ticket, with its event. */
static cddp_status next_slot(struct cdi_backend *b, struct cdi_slot **out, struct cdi_error *err)
{
    struct cdi_slot *s;
    cddp_status st = CDDP_OK;
    bool full = b->ring_size == 0 || (b->given >= b->ring_size && !cdi_gpu_is_done(b, b->given - b->ring_size + 1));

    if (full && !grow(b))
        return cdi_fail(err, b->ring_size >= CDI_RING_LIMIT ? CDDP_E_LIMIT : CDDP_E_NOMEM,
                        "%zu collectives are under way: join some of them", b->ring_size);
    s = cdi_slot_of(b, b->given + 1);
    if (s->done == NULL)
        st = cdi_cuda_check(cdi_cuda.event_create(&s->done, CU_EVENT_DISABLE_TIMING), "creating an event", err);
    *out = s;
    return st;
}

static cddp_status copy_counts(const struct cdi_backend *b, struct cdi_slot *s, struct cdi_error *err)
{
    size_t n = (size_t)b->world.size;

    if (s->one.op.kind != CDI_ALL_GATHERV)
        return CDDP_OK;
    s->counts = cdi_host->alloc(n, sizeof *s->counts);
    if (s->counts == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a collective");
    memcpy(s->counts, s->one.op.counts, n * sizeof *s->counts);
    s->one.op.counts = s->counts;
    return CDDP_OK;
}

/* What a slot has of its own, but for its event. */
static void empty_slot(struct cdi_slot *s)
{
    cdi_host->release(s->counts);
    cdi_host->release(s->several);
    s->counts = NULL;
    s->several = NULL;
    s->one.staged = NULL;
}

static void retire(struct cdi_backend *b, struct cdi_slot *s)
{
    empty_slot(s);
    b->done++;
}

void cdi_gpu_free_ring(struct cdi_backend *b)
{
    for (size_t i = 0; i < b->ring_size; i++) {
        if (b->ring[i].done != NULL)
            (void)cdi_cuda.event_destroy(b->ring[i].done);
        empty_slot(&b->ring[i]);
    }
    cdi_host->release(b->ring);
    b->ring = NULL;
    b->ring_size = 0;
}

/* The operations of a slot, from 0 on; NULL: no more. */
static struct cdi_part *part_of(struct cdi_slot *s, size_t i)
{
    if (s->several != NULL)
        return i < s->several->n ? &s->several->part[i] : NULL;
    return i == 0 ? &s->one : NULL;
}

bool cdi_gpu_poll(struct cdi_backend *b)
{
    uint32_t done, started;
    bool rest;

    (void)pthread_mutex_lock(&b->page);
    /* In this order, so that none is seen done and not started. */
    done = atomic_load_explicit(&b->words->done, memory_order_acquire);
    started = atomic_load_explicit(&b->words->started, memory_order_acquire);
    while (b->done < b->issued) {
        uint64_t ticket = b->done + 1;
        struct cdi_slot *s = cdi_slot_of(b, ticket);

        if (s->started_ms == 0 && cdi_ticket_reached(started, ticket)) {
            s->started_ms = cdi_now_ms();
            cdi_host->flight_start(b->record, s->flight_seq);
        }
        if (!cdi_ticket_reached(done, ticket))
            break;
        cdi_host->flight_done(b->record, s->flight_seq);
        retire(b, s);
    }
    rest = b->done == b->given;
    (void)pthread_mutex_unlock(&b->page);
    return rest;
}

bool cdi_gpu_is_done(struct cdi_backend *b, uint64_t ticket)
{
    bool is;

    (void)pthread_mutex_lock(&b->page);
    is = ticket <= b->done;
    (void)pthread_mutex_unlock(&b->page);
    return is;
}

static size_t n_parts(const struct cdi_slot *s)
{
    return s->several != NULL ? s->several->n : 1;
}

/* "recv of 4 float32 from rank 1 and 2 more": messages of a group are not all like the first one. */
static void glance_at_slot(const struct cdi_slot *s, uint64_t ticket, struct cdi_glance *out)
{
    size_t used;

    out->ticket = ticket;
    out->number = s->number;
    cdi_coll_text(&s->one.op, out->op, sizeof out->op);
    used = strlen(out->op);
    if (s->number == 0 && n_parts(s) > 1)
        (void)snprintf(out->op + used, sizeof out->op - used, " and %zu more", n_parts(s) - 1);
}

void cdi_gpu_current(struct cdi_backend *b, struct cdi_glance *out)
{
    const struct cdi_slot *s;

    *out = (struct cdi_glance){.ticket = 0};
    (void)pthread_mutex_lock(&b->page);
    s = b->done < b->given ? cdi_slot_of(b, b->done + 1) : NULL;
    if (s != NULL) {
        bool begun = s->started_ms == 0 && b->done == b->issued && b->begun > b->issued;

        glance_at_slot(s, b->done + 1, out);
        out->since_ms = begun ? b->begun_ms : s->started_ms;
    }
    (void)pthread_mutex_unlock(&b->page);
}

/* With `page`. */
static bool has_peer(const struct cdi_slot *s, int rank)
{
    if (s->several == NULL)
        return s->one.op.root == rank;
    for (size_t i = 0; i < s->several->n; i++)
        if (s->several->ops[i]->root == rank)
            return true;
    return false;
}

void cdi_gpu_peers(struct cdi_backend *b, uint64_t ticket, struct cdi_rank_list *peers)
{
    (void)pthread_mutex_lock(&b->page);
    for (int r = 0; r < b->world.size && ticket > b->done && ticket <= b->given; r++)
        if (r != b->world.rank && has_peer(cdi_slot_of(b, ticket), r))
            cdi_rank_list_add(peers, r);
    (void)pthread_mutex_unlock(&b->page);
}

void cdi_gpu_forgive(struct cdi_backend *b, int64_t ms)
{
    int64_t now_ms = cdi_now_ms();

    (void)pthread_mutex_lock(&b->page);
    for (uint64_t ticket = b->done + 1; ticket <= b->issued; ticket++) {
        struct cdi_slot *s = cdi_slot_of(b, ticket);

        if (s->started_ms > 0)
            s->started_ms = s->started_ms + ms < now_ms ? s->started_ms + ms : now_ms;
    }
    cdi_capture_forgive(b, ms, now_ms);
    (void)pthread_mutex_unlock(&b->page);
}

/* ------------------------------------------------------------------------------------------------ NCCL's calls ---- */

static ncclDataType_t nccl_type(cddp_dtype dtype)
{
    _Static_assert(ncclInt8 == CDDP_INT8 - 1 && ncclFloat16 == CDDP_FLOAT16 - 1 && ncclBfloat16 == CDDP_BFLOAT16 - 1,
                   "the types are NCCL's own, counted from 1");
    return (ncclDataType_t)(dtype - 1);
}

cddp_status cdi_gpu_check_reduction(struct cdi_backend *b, cddp_dtype dtype, cddp_redop op, struct cdi_error *err)
{
    const struct cdi_reduction_facts facts = {.nccl_code = cdi_nccl.code, .old_gpu = b->old_gpu};

    return cdi_reduction_support_check(&facts, dtype, op, err);
}

static enum cdi_mean mean_of(const struct cdi_backend *b, const struct cdi_coll *op)
{
    const struct cdi_mean_facts facts = {.nccl_code = cdi_nccl.code,
                                         .n_ranks = b->world.size,
                                         .n_nodes = b->world.n_nodes,
                                         .window = cdi_gpu_is_window(op->region)};

    return cdi_mean_of(op, &facts);
}

static ncclRedOp_t nccl_op(const struct cdi_backend *b, const struct cdi_coll *op)
{
    _Static_assert((int)ncclSum == (int)CDDP_SUM && (int)ncclProd == (int)CDDP_PROD && (int)ncclMax == (int)CDDP_MAX &&
                       (int)ncclMin == (int)CDDP_MIN && (int)ncclAvg == (int)CDDP_AVG,
                   "the reductions are NCCL's own");
    return op->op == CDDP_AVG && mean_of(b, op) != CDI_MEAN_BY_NCCL ? ncclSum : (ncclRedOp_t)op->op;
}

/* The first error of several calls; a call inside a group is never "in progress" for long. */
static void keep(ncclResult_t *first, ncclResult_t r)
{
    if (*first == ncclSuccess && r != ncclInProgress)
        *first = r;
}

/* Parts of different length: each is broadcast by who has it. */
static ncclResult_t call_all_gatherv(const struct cdi_backend *b, ncclComm_t comm, const struct cdi_coll *op)
{
    size_t size = cddp_dtype_size(op->dtype), at = 0;
    ncclResult_t r = ncclSuccess;

    for (int k = 0; k < b->world.size; k++) {
        const struct cdi_wire w = cdi_wire_of(op->dtype, op->counts[k]);
        uint8_t *to = (uint8_t *)op->out + at;

        if (w.count > 0)
            keep(&r, cdi_nccl.broadcast(k == b->world.rank ? op->in : to, to, w.count, nccl_type(w.dtype), k, comm,
                                        b->call.stream));
        at += op->counts[k] * size;
    }
    return r;
}

static ncclResult_t call_all_to_all(const struct cdi_backend *b, ncclComm_t comm, const struct cdi_coll *op)
{
    const struct cdi_wire w = cdi_wire_of(op->dtype, op->count);
    size_t block = op->count * cddp_dtype_size(op->dtype);
    ncclResult_t r = ncclSuccess;

    for (int k = 0; k < b->world.size; k++) {
        keep(&r, cdi_nccl.send((const uint8_t *)op->in + (size_t)k * block, w.count, nccl_type(w.dtype), k, comm,
                               b->call.stream));
        keep(&r, cdi_nccl.recv((uint8_t *)op->out + (size_t)k * block, w.count, nccl_type(w.dtype), k, comm,
                               b->call.stream));
    }
    return r;
}

static ncclResult_t call(const struct cdi_backend *b, ncclComm_t comm, const struct cdi_coll *op)
{
    const struct cdi_wire w = cdi_wire_of(op->dtype, op->count);
    CUstream s = b->call.stream;

    switch (op->kind) {
    case CDI_BARRIER:
        return cdi_nccl.all_reduce(b->token, b->token, 1, ncclInt32, ncclMax, comm, s);
    case CDI_ALL_REDUCE:
        return cdi_nccl.all_reduce(op->in, op->out, op->count, nccl_type(op->dtype), nccl_op(b, op), comm, s);
    case CDI_BROADCAST:
        return cdi_nccl.broadcast(op->in, op->out, w.count, nccl_type(w.dtype), op->root, comm, s);
    case CDI_REDUCE:
        return cdi_nccl.reduce(op->in, op->root == b->world.rank ? op->out : NULL, op->count, nccl_type(op->dtype),
                               nccl_op(b, op), op->root, comm, s);
    case CDI_ALL_GATHER:
        return cdi_nccl.all_gather(op->in, op->out, w.count, nccl_type(w.dtype), comm, s);
    case CDI_REDUCE_SCATTER:
        return cdi_nccl.reduce_scatter(op->in, op->out, op->count, nccl_type(op->dtype), nccl_op(b, op), comm, s);
    case CDI_ALL_GATHERV:
        return call_all_gatherv(b, comm, op);
    case CDI_ALL_TO_ALL:
        return call_all_to_all(b, comm, op);
    case CDI_SEND:
        return cdi_nccl.send(op->in, w.count, nccl_type(w.dtype), op->root, comm, s);
    case CDI_RECV:
        return cdi_nccl.recv(op->out, w.count, nccl_type(w.dtype), op->root, comm, s);
    }
    return ncclInvalidArgument;
}

/* Nothing to move; equal on all ranks that take part. */
static bool is_empty(const struct cdi_coll *op)
{
    return op->kind != CDI_BARRIER && op->kind != CDI_ALL_GATHERV && op->count == 0;
}

static bool makes_several_calls(const struct cdi_coll *op)
{
    return op->kind == CDI_ALL_GATHERV || op->kind == CDI_ALL_TO_ALL;
}

/* ---------------------------------------------------------------------------------------------------- issuing ---- */

static cddp_status record(struct cdi_backend *b, CUevent e, struct cdi_error *err)
{
    return cdi_cuda_check(cdi_cuda.event_record(e, b->device.stream), "recording an event", err);
}

typedef void tell_fn(struct cdi_backend *b, uint64_t ticket, struct cdi_launch *scale);

/* Multiply with 1 / size. tell: the kernel tells of the ticket; NULL: it does not. */
static cddp_status divide(struct cdi_backend *b, void *x, size_t count, cddp_dtype dtype, tell_fn *tell,
                          uint64_t ticket, struct cdi_error *err)
{
    struct cdi_launch scale;
    cddp_status st = cdi_launch_scale(&scale, b->device.n_sm, x, count, dtype, 1.0 / b->world.size, err);

    if (st == CDDP_OK && tell != NULL)
        tell(b, ticket, &scale);
    return st == CDDP_OK ? cdi_device_launch(&b->device, &scale, err) : st;
}

/* Elements that this rank brings to a reduction. */
static size_t n_given(const struct cdi_backend *b, const struct cdi_coll *op)
{
    return op->kind == CDI_REDUCE_SCATTER ? op->count * (size_t)b->world.size : op->count;
}

/* What the program gives stays as it is. */
static cddp_status copy_to_out(struct cdi_backend *b, struct cdi_coll *op, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    if (op->kind != CDI_ALL_REDUCE || op->in == op->out)
        return CDDP_OK;
    st = cdi_cuda_check(cdi_cuda.on_device(cdi_device_ptr(op->out), cdi_device_ptr(op->in),
                                           op->count * cddp_dtype_size(op->dtype), cdi_device_stream(&b->device)),
                        "copying", err);
    op->in = op->out;
    return st;
}

static bool divides_before(const struct cdi_backend *b, const struct cdi_coll *op)
{
    return op->count > 0 && mean_of(b, op) == CDI_MEAN_BEFORE;
}

static bool divides_after(const struct cdi_backend *b, const struct cdi_coll *op)
{
    bool here = op->kind != CDI_REDUCE || op->root == b->world.rank;

    return here && op->count > 0 && mean_of(b, op) == CDI_MEAN_AFTER;
}

cddp_status cdi_gpu_before(struct cdi_backend *b, struct cdi_coll *op, struct cdi_error *err)
{
    cddp_status st;

    if (!divides_before(b, op))
        return CDDP_OK;
    st = copy_to_out(b, op, err);
    return st == CDDP_OK ? divide(b, (void *)(uintptr_t)op->in, n_given(b, op), op->dtype, NULL, 0, err) : st;
}

cddp_status cdi_gpu_after(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_error *err)
{
    return divides_after(b, op) ? divide(b, op->out, op->count, op->dtype, NULL, 0, err) : CDDP_OK;
}

/*
 * The last kernel of what has begun with this operation writes its ticket, which spares a call of the driver: where
 * nothing is put behind the kernel, no copy to the host and no event.
 */
static bool tells_its_end(const struct cdi_backend *b, const struct cdi_slot *last)
{
    return last->several == NULL && divides_after(b, &last->one.op) && !last->marked && last->one.staged == NULL;
}

/* What comes before NCCL's part of tickets first to last, and the word that they have started. */
static cddp_status put_before(struct cdi_backend *b, uint64_t first, uint64_t last, struct cdi_error *err)
{
    const struct cdi_slot *end = cdi_slot_of(b, last);
    bool by_kernel = end->several == NULL && divides_before(b, &end->one.op);
    struct cdi_part *p;
    cddp_status st = CDDP_OK;

    for (uint64_t t = first; t <= last; t++)
        for (size_t i = 0; (p = part_of(cdi_slot_of(b, t), i)) != NULL && st == CDDP_OK; i++) {
            st = cdi_stage_in(b, p, err);
            if (st != CDDP_OK || !divides_before(b, &p->op))
                continue;
            st = copy_to_out(b, &p->op, err);
            if (st == CDDP_OK)
                st = divide(b, (void *)(uintptr_t)p->op.in, n_given(b, &p->op), p->op.dtype,
                            by_kernel && t == last ? cdi_completion_started_by_kernel : NULL, last, err);
        }
    return st == CDDP_OK && !by_kernel ? cdi_completion_write_started(b, last, err) : st;
}

/* What comes behind it, and the word that they are done. */
static cddp_status put_behind(struct cdi_backend *b, uint64_t first, uint64_t last, struct cdi_error *err)
{
    const struct cdi_slot *end = cdi_slot_of(b, last);
    bool by_kernel = tells_its_end(b, end);
    const struct cdi_part *p;
    cddp_status st = CDDP_OK;

    for (uint64_t t = first; t <= last; t++)
        for (size_t i = 0; (p = part_of(cdi_slot_of(b, t), i)) != NULL && st == CDDP_OK; i++) {
            if (divides_after(b, &p->op))
                st = divide(b, p->op.out, p->op.count, p->op.dtype,
                            by_kernel && t == last ? cdi_completion_done_by_kernel : NULL, last, err);
            if (st == CDDP_OK)
                st = cdi_stage_out(b, p, err);
        }
    /* The event first: it has come when the host sees the word. A reducer's bucket has none: who waits for it waits for
     * all. */
    if (st == CDDP_OK && end->marked)
        st = record(b, end->done, err);
    return st == CDDP_OK && !by_kernel ? cdi_completion_write_done(b, last, err) : st;
}

/*
 * What NCCL says to the operations of b->call, as one group if that takes several calls.
 *
 * A group holds any number of messages, also several between two ranks and to oneself. NCCL keeps a queue of sends and
 * one of receives for each peer, and takes one of each per round of a schedule that all ranks have alike: so those of a
 * pair match in their order, and where a group needs several kernels no two ranks wait for each other's later ones
 * (scheduleP2pTasksToPlan in enqueue.cc, from line 610 in v2.19.3-1 to line 1131 in v2.30.7-1). A message to oneself
 * needs both ends in the group (ncclInvalidUsage there), and is left out where both are the same memory. Collectives of
 * a group may change places: they are sorted by their size, which is alike on all ranks (ncclTaskCollSorterInsert,
 * since v2.22.3-1).
 */
ncclResult_t cdi_gpu_calls(void *arg)
{
    const struct cdi_backend *b = arg;
    const struct cdi_call *c = &b->call;
    bool group = c->n_ops > 1 || (c->n_ops == 1 && makes_several_calls(c->ops[0]));
    ncclResult_t r = group ? cdi_nccl.group_start() : ncclSuccess;

    if (r != ncclSuccess)
        return r;
    for (size_t i = 0; i < c->n_ops; i++)
        if (!is_empty(c->ops[i])) {
            ncclResult_t one = call(b, c->comm, c->ops[i]);

            if (group)
                keep(&r, one);
            else
                r = one;
        }
    if (group) {
        ncclResult_t end = cdi_nccl.group_end();

        r = r == ncclSuccess ? end : r;
    }
    return r;
}

/*
 * The calls of tickets first to last. On a blocking communicator an operation that was there before is connected, and
 * waits for nobody; a new one is made aside, of a copy, since the ring may grow meanwhile.
 */
static ncclResult_t make_calls(struct cdi_backend *b, uint64_t first, uint64_t last)
{
    const struct cdi_several *several = cdi_slot_of(b, last)->several;
    struct cdi_call *c = &b->call;
    uint64_t shape = 0;

    c->comm = b->comm;
    c->stream = b->device.stream;
    c->n_ops = several != NULL ? several->n : 0;
    c->ops = several != NULL ? several->ops : c->list;
    for (uint64_t t = first; t <= last && several == NULL; t++)
        c->list[c->n_ops++] = &cdi_slot_of(b, t)->one.op;
    for (size_t i = 0; i < c->n_ops; i++)
        shape = cdi_launch_shape(shape, c->ops[i], b->world.size);
    if (b->aside == NULL || c->n_ops == 0 || cdi_launch_shape_seen(&b->shapes, shape))
        return cdi_gpu_calls(b);
    for (size_t i = 0; i < c->n_ops && several == NULL; i++) {
        c->op[i] = *c->list[i];
        c->list[i] = &c->op[i];
    }
    return cdi_communicator_call(b, cdi_gpu_calls);
}

cddp_status cdi_nccl_poll_async(struct cdi_backend *b, ncclResult_t r, struct cdi_error *err)
{
    uint64_t first = b->issued + 1;
    struct cdi_error why;
    cddp_status st;

    if (b->issued == b->begun)
        return CDDP_OK;
    st = cdi_nccl_wait_ready(b, b->comm, r, "starting it", cdi_deadline_ms(b->begun_ms, b->world.timeout_ms), &why);
    /* Our own deadline, not a timeout that NCCL or a peer has told: it waits for a rank, but for which? */
    if (st == CDDP_E_TIMEOUT && !atomic_load(&b->failed) &&
        cdi_now_ms() >= cdi_deadline_ms(b->begun_ms, b->world.timeout_ms)) {
        struct cdi_glance g = {.ticket = 0};

        glance_at_slot(cdi_slot_of(b, first), first, &g);
        cdi_gpu_too_late(b, &g);
        return cdi_gpu_health_now(b, err);
    }
    if (st == CDDP_OK)
        st = put_behind(b, first, b->begun, &why);
    (void)pthread_mutex_lock(&b->page);
    b->issued = st == CDDP_OK ? b->begun : b->issued;
    (void)pthread_mutex_unlock(&b->page);
    if (st != CDDP_OK)
        st = broken(b, &cdi_slot_of(b, first)->one.op, &why);
    if (st != CDDP_OK && err != NULL)
        *err = why;
    return st;
}

/*
 * Begin all that has a ticket. NCCL puts it on the stream in a thread of its own, and says "in progress" meanwhile:
 * that is not waited for here, in the middle of a backward pass, but by whoever comes next.
 */
static cddp_status begin(struct cdi_backend *b, struct cdi_error *err)
{
    uint64_t first = b->begun + 1, last = b->given;
    cddp_status st = cdi_nccl_poll_async(b, ncclInProgress, err);
    bool marked = false;
    ncclResult_t r;

    if (st != CDDP_OK || first > last)
        return st;
    b->pending_bytes = 0;
    for (uint64_t t = first; t <= last; t++) {
        cdi_slot_of(b, t)->last = last;
        marked |= !cdi_slot_of(b, t)->one.op.unmarked;
    }
    cdi_slot_of(b, last)->marked = marked;
    st = put_before(b, first, last, err);
    if (st != CDDP_OK)
        return broken(b, &cdi_slot_of(b, first)->one.op, err);
    if (!cdi_nccl_enter(b))
        return cdi_gpu_health_now(b, err);
    r = make_calls(b, first, last);
    cdi_nccl_leave(b);
    (void)pthread_mutex_lock(&b->page);
    b->begun = last;
    b->begun_ms = cdi_now_ms();
    (void)pthread_mutex_unlock(&b->page);
    r = cdi_communicator_state(b, b->comm, r);
    return r == ncclInProgress ? CDDP_OK : cdi_nccl_poll_async(b, r, err);
}

/* begin, where the communicator is well. */
static cddp_status start(struct cdi_backend *b, struct cdi_error *err)
{
    struct cdi_error why;
    cddp_status st = cdi_gpu_health_now(b, &why);

    if (st == CDDP_OK)
        st = begin(b, &why);
    if (st != CDDP_OK && err != NULL)
        *err = why;
    return st;
}

cddp_status cdi_gpu_flush(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st = start(b, err);

    return st == CDDP_OK ? cdi_nccl_poll_async(b, ncclInProgress, err) : st;
}

/* What the program sends and receives; not what a collective is made of. */
static bool is_message(const struct cdi_coll *op)
{
    return (op->kind == CDI_SEND || op->kind == CDI_RECV) && !cdi_asked_is_coll(op->asked);
}

/* With the lock: the slot is the next ticket's, from now on. */
static void give_ticket(struct cdi_backend *b, struct cdi_slot *s, enum cdi_flight_op what)
{
    const struct cdi_coll *op = &s->one.op;

    s->started_ms = 0;
    s->number = is_message(op) ? 0 : ++b->n_collectives;
    (void)pthread_mutex_lock(&b->page);
    s->flight_seq = cdi_host->flight_enqueue(b->record, what, (uint32_t)op->dtype, op->count, op->bucket);
    b->given++;
    (void)pthread_mutex_unlock(&b->page);
    cdi_gpu_busy(b); /* before this thread comes to a stream that is full */
}

/* With the lock: a ticket for the operation, and all that goes with it. */
static cddp_status append(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_staged *staged,
                          struct cdi_error *err)
{
    size_t bytes = op->count * (op->dtype != CDDP_DTYPE_NONE ? cddp_dtype_size(op->dtype) : 1);
    struct cdi_slot *s = NULL;
    cddp_status st = CDDP_OK;

    if (b->begun < b->given && (b->pending_bytes + bytes > CDI_GROUP_BYTES || b->given - b->begun >= CDI_GROUP_MAX))
        st = start(b, err);
    if (st == CDDP_OK)
        st = next_slot(b, &s, err);
    if (st != CDDP_OK)
        return st;
    s->one = (struct cdi_part){*op, staged};
    s->counts = NULL;
    st = copy_counts(b, s, err);
    if (st != CDDP_OK)
        return st;
    give_ticket(b, s, cdi_flight_op_of(op->kind));
    if (staged != NULL)
        cdi_stage_keep(b, staged);
    b->pending_bytes += bytes;
    if (b->lent > 0) /* what the borrower puts on the stream next comes behind it */
        return cdi_gpu_flush(b, err);
    return op->more && bytes <= CDI_GROUP_BYTES ? CDDP_OK : start(b, err);
}

/* The same of several, which are begun apart from what was held back. They are the slot's once there is a ticket. */
static cddp_status append_several(struct cdi_backend *b, const struct cdi_coll *ops, size_t n,
                                  struct cdi_several *several, struct cdi_error *err)
{
    struct cdi_slot *s = NULL;
    cddp_status st = b->begun < b->given ? start(b, err) : CDDP_OK;

    if (st == CDDP_OK)
        st = next_slot(b, &s, err);
    if (st != CDDP_OK)
        return st;
    s->one = (struct cdi_part){.op = ops[0]};
    s->one.op.counts = NULL;
    s->several = several;
    give_ticket(b, s, cdi_flight_op_of_group(ops, n));
    for (size_t i = 0; i < several->n; i++)
        if (several->part[i].staged != NULL)
            cdi_stage_keep(b, several->part[i].staged);
    return b->lent > 0 ? cdi_gpu_flush(b, err) : start(b, err);
}

void cdi_gpu_nudge(struct cdi_backend *b)
{
    if (b->begun < b->given && cdi_communicator_state(b, b->comm, ncclInProgress) == ncclSuccess)
        (void)start(b, NULL); /* its error sticks */
}

cddp_status cdi_gpu_failed_call(struct cdi_backend *b, cddp_status st, const struct cdi_coll *op, struct cdi_error *err)
{
    cddp_status well = st == CDDP_E_SYSTEM ? cdi_gpu_ask(b, op, err) : CDDP_OK;

    if (st != CDDP_OK && atomic_load(&b->failed)) /* the sentence may not have been complete */
        return cdi_gpu_health(b, err);
    return well != CDDP_OK ? well : st;
}

cddp_status cdi_gpu_enqueue(struct cdi_backend *b, const struct cdi_coll *op, uint64_t *ticket, struct cdi_error *err)
{
    struct cdi_staged *staged = NULL;
    uint64_t before_it;
    cddp_status st = cdi_gpu_health(b, err);
    /* Nothing is allocated for it. Where a graph holds the communicator NCCL asks for events at each launch
     * (enqueue.cc, cudaEventQuery), which would end a capture of another thread's. */
    bool brief = (op->region != NULL || op->known) && atomic_load(&b->captured.n_groups) == 0;

    if (cdi_gpu_captures(b)) {
        *ticket = 0;
        return cdi_capture_enqueue(b, op, err);
    }
    if (st != CDDP_OK)
        return st;
    st = (brief ? cdi_device_enter_briefly : cdi_device_enter)(&b->device, err);
    if (st == CDDP_OK)
        st = cdi_stage_prepare(b, op, &staged, err);
    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&b->lock);
        before_it = b->given;
        st = append(b, op, staged, err);
        *ticket = b->given;
        if (b->given == before_it && staged != NULL) /* else it is the list's of results */
            cdi_stage_spare(b, staged);
        (void)pthread_mutex_unlock(&b->lock);
    }
    (brief ? cdi_device_leave_briefly : cdi_device_leave)(&b->device);
    return cdi_gpu_failed_call(b, st, op, err);
}

/* ---------------------------------------------------------------------------------------------- several as one ---- */

static size_t n_with_counts(const struct cdi_coll *ops, size_t n)
{
    size_t k = 0;

    for (size_t i = 0; i < n; i++)
        k += ops[i].kind == CDI_ALL_GATHERV;
    return k;
}

cddp_status cdi_several_make(struct cdi_several **out, const struct cdi_coll *ops, size_t n, int n_ranks,
                             struct cdi_error *err)
{
    size_t one = sizeof(struct cdi_part) + sizeof(const struct cdi_coll *),
           each = (size_t)n_ranks * sizeof *ops->counts;
    size_t bytes = sizeof **out + n_with_counts(ops, n) * each;
    struct cdi_several *s = n <= (PTRDIFF_MAX - bytes) / one ? cdi_host->alloc(1, bytes + n * one) : NULL;
    size_t *counts;

    if (s == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a group of %zu operations", n);
    s->ops = (const struct cdi_coll **)(s->part + n);
    counts = (size_t *)(s->ops + n);
    for (size_t i = 0; i < n; i++) {
        struct cdi_coll *op = &s->part[s->n].op;

        if (ops[i].kind == CDI_BARRIER && cdi_asked_is_coll(ops[i].asked))
            continue;
        *op = ops[i];
        if (op->kind == CDI_ALL_GATHERV) {
            memcpy(counts, op->counts, each);
            op->counts = counts;
            counts += n_ranks;
        }
        s->ops[s->n++] = op;
    }
    *out = s;
    return CDDP_OK;
}

/* With `lock`: it was not begun. */
static void spare_several(struct cdi_backend *b, const struct cdi_several *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->part[i].staged != NULL)
            cdi_stage_spare(b, s->part[i].staged);
}

static cddp_status enqueue_several(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, struct cdi_several *s,
                                   uint64_t *ticket, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    uint64_t before_it;
    bool taken = false;

    for (size_t i = 0; i < s->n && st == CDDP_OK; i++)
        st = cdi_stage_prepare(b, &s->part[i].op, &s->part[i].staged, err);
    (void)pthread_mutex_lock(&b->lock);
    before_it = b->given;
    if (st == CDDP_OK)
        st = append_several(b, ops, n, s, err);
    *ticket = b->given;
    taken = b->given != before_it;
    if (!taken)
        spare_several(b, s);
    (void)pthread_mutex_unlock(&b->lock);
    if (!taken)
        cdi_host->release(s);
    return st;
}

cddp_status cdi_gpu_enqueue_group(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, uint64_t *ticket,
                                  struct cdi_error *err)
{
    struct cdi_several *s = NULL;
    cddp_status st;

    if (cdi_gpu_captures(b)) {
        *ticket = 0;
        return cdi_capture_enqueue_group(b, ops, n, err);
    }
    st = cdi_gpu_health(b, err);
    if (st == CDDP_OK)
        st = cdi_several_make(&s, ops, n, b->world.size, err);
    if (st != CDDP_OK)
        return st;
    st = cdi_device_enter(&b->device, err);
    if (st == CDDP_OK)
        st = enqueue_several(b, ops, n, s, ticket, err);
    else
        cdi_host->release(s);
    cdi_device_leave(&b->device);
    return cdi_gpu_failed_call(b, st, &ops[0], err);
}
