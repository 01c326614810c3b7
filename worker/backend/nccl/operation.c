/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/operation.h"

#include "worker/backend/describe.h"
#include "worker/backend/nccl/graph_capture.h"
#include "worker/backend/nccl/issue.h"
#include "worker/backend/nccl/stage.h"
#include "worker/backend/nccl/state/failure.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/nccl/state/ring.h"

/* Returns whether the slot has messages alone; a group that also has a collective has it on every rank. */
static bool op_all_messages(struct cdi_slot *s)
{
    const struct cdi_ring_op *p;
    bool all = cdi_op_is_message(&s->one.op);

    for (size_t i = 0; (p = cdi_slot_op(s, i)) != NULL; i++)
        all = all && cdi_op_is_message(&p->op);
    return all;
}

/* Gives the slot the next ticket. With `lock`. */
static void op_give_ticket(struct cdi_backend *b, struct cdi_slot *s, enum cdi_flight_op what)
{
    const struct cdi_coll *op = &s->one.op;

    s->started_ms = 0;
    s->number = op_all_messages(s) ? 0 : ++b->n_collectives;
    (void)pthread_mutex_lock(&b->ring_lock);
    s->flight_seq = cdi_host->flight_enqueue(b->record, what, (uint32_t)op->dtype, op->count, op->bucket);
    b->enqueued++;
    (void)pthread_mutex_unlock(&b->ring_lock);
    cdi_gpu_set_busy(b); /* before this thread may block on a full stream */
}

/* Gives the operation a ticket, and starts it unless others follow. With `lock`. */
static cddp_status op_append(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_staging *staged,
                             struct cdi_error *err)
{
    size_t bytes = op->count * (op->dtype != CDDP_DTYPE_NONE ? cddp_dtype_size(op->dtype) : 1);
    struct cdi_slot *s = NULL;
    cddp_status st = CDDP_OK;

    if (b->begun < b->enqueued &&
        (b->pending_bytes + bytes > CDI_GROUP_BYTES || b->enqueued - b->begun >= CDI_GROUP_MAX)) {
        cdi_issue_close(b);
        st = cdi_issue_start(b, err);
    }
    if (st == CDDP_OK)
        st = cdi_ring_next(b, &s, err);
    if (st != CDDP_OK)
        return st;
    s->one = (struct cdi_ring_op){*op, staged};
    s->counts = NULL;
    st = cdi_slot_copy_counts(b, s, err);
    if (st != CDDP_OK)
        return st;
    op_give_ticket(b, s, cdi_flight_op_of(op->kind));
    if (staged != NULL)
        cdi_stage_add_result(b, staged);
    b->pending_bytes += bytes;
    if (op->more && bytes <= CDI_GROUP_BYTES)
        return CDDP_OK;
    cdi_issue_close(b);
    /* Work that the user of the stream enqueues next must follow it. */
    return b->n_acquired > 0 ? cdi_issue_flush(b, err) : cdi_issue_start(b, err);
}

/*
 * Does the same for a group, which starts separately from pending operations. The slot owns the group once it has a
 * ticket.
 */
static cddp_status op_append_group(struct cdi_backend *b, const struct cdi_coll *ops, size_t n,
                                   struct cdi_op_group *several, struct cdi_error *err)
{
    struct cdi_slot *s = NULL;
    cddp_status st;

    cdi_issue_close(b);
    st = b->begun < b->enqueued ? cdi_issue_start(b, err) : CDDP_OK;
    if (st == CDDP_OK)
        st = cdi_ring_next(b, &s, err);
    if (st != CDDP_OK)
        return st;
    s->one = (struct cdi_ring_op){.op = ops[0]};
    s->one.op.counts = NULL;
    s->group = several;
    op_give_ticket(b, s, cdi_flight_op_of_group(ops, n));
    for (size_t i = 0; i < several->n; i++)
        if (several->op[i].staged != NULL)
            cdi_stage_add_result(b, several->op[i].staged);
    cdi_issue_close(b);
    return b->n_acquired > 0 ? cdi_issue_flush(b, err) : cdi_issue_start(b, err);
}

cddp_status cdi_gpu_enqueue(struct cdi_backend *b, const struct cdi_coll *op, uint64_t *ticket, struct cdi_error *err)
{
    struct cdi_staging *staged = NULL;
    uint64_t before_it;
    cddp_status st = cdi_gpu_health(b, err);
    bool brief = op->region != NULL || op->known; /* nothing is allocated for this operation */

    if (cdi_gpu_captures(b))
        return cdi_capture_enqueue(b, op, ticket, err);
    if (st != CDDP_OK)
        return st;
    st = (brief ? cdi_device_enter_briefly : cdi_device_enter)(&b->device, err);
    if (st == CDDP_OK)
        st = cdi_stage_prepare(b, op, &staged, err);
    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&b->lock);
        before_it = b->enqueued;
        st = op_append(b, op, staged, err);
        *ticket = b->enqueued;
        if (b->enqueued == before_it && staged != NULL) /* otherwise the list of results owns it */
            cdi_stage_release(b, staged);
        (void)pthread_mutex_unlock(&b->lock);
    }
    (brief ? cdi_device_leave_briefly : cdi_device_leave)(&b->device);
    return cdi_gpu_call_status(b, st, op, err);
}

cddp_status cdi_gpu_can_enqueue(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, size_t calls,
                                struct cdi_error *err)
{
    bool captures = cdi_gpu_captures(b), on_host = false;
    cddp_status st = cdi_gpu_health(b, err);

    if (st != CDDP_OK)
        return st;
    st = cdi_device_enter(&b->device, err);
    for (size_t i = 0; i < n && st == CDDP_OK; i++) {
        st = cdi_stage_is_needed(b, &ops[i], &on_host, err);
        if (st == CDDP_OK && on_host && (captures || ops[i].streamed))
            st = cdi_stage_reject(err);
    }
    if (st == CDDP_OK && !captures) {
        (void)pthread_mutex_lock(&b->lock);
        st = cdi_ring_make_room(b, calls, err);
        (void)pthread_mutex_unlock(&b->lock);
    }
    cdi_device_leave(&b->device);
    return st;
}

/* ---------------------------------------------------------------------------------------------- several as one ---- */

/* Releases the blocks of a group that was not begun. With `lock`. */
static void op_release_group(struct cdi_backend *b, const struct cdi_op_group *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->op[i].staged != NULL)
            cdi_stage_release(b, s->op[i].staged);
}

static cddp_status op_enqueue_group(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, struct cdi_op_group *s,
                                    uint64_t *ticket, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    uint64_t before_it;
    bool taken = false;

    for (size_t i = 0; i < s->n && st == CDDP_OK; i++)
        st = cdi_stage_prepare(b, &s->op[i].op, &s->op[i].staged, err);
    (void)pthread_mutex_lock(&b->lock);
    before_it = b->enqueued;
    if (st == CDDP_OK)
        st = op_append_group(b, ops, n, s, err);
    *ticket = b->enqueued;
    taken = b->enqueued != before_it;
    if (!taken)
        op_release_group(b, s);
    (void)pthread_mutex_unlock(&b->lock);
    if (!taken)
        cdi_host->release(s);
    return st;
}

cddp_status cdi_gpu_enqueue_group(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, uint64_t *ticket,
                                  struct cdi_error *err)
{
    struct cdi_op_group *s = NULL;
    cddp_status st;

    if (cdi_gpu_captures(b)) {
        *ticket = 0;
        return cdi_capture_enqueue_group(b, ops, n, err);
    }
    st = cdi_gpu_health(b, err);
    if (st == CDDP_OK)
        st = cdi_op_group_create(&s, ops, n, b->world.size, err);
    if (st != CDDP_OK)
        return st;
    st = cdi_device_enter(&b->device, err);
    if (st == CDDP_OK)
        st = op_enqueue_group(b, ops, n, s, ticket, err);
    else
        cdi_host->release(s);
    cdi_device_leave(&b->device);
    return cdi_gpu_call_status(b, st, &ops[0], err);
}
