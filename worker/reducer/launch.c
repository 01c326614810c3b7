/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/launch.h"

#include "worker/base/nvtx.h"
#include "worker/comm/stop.h"
#include "worker/reducer/grads/compress.h"
#include "worker/reducer/grads/user_grads.h"
#include "worker/reducer/hook.h"
#include "worker/reducer/nan_check.h"
#include "worker/reducer/plan.h"
#include "worker/reducer/powersgd.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/weight.h"
#include "worker/reducer/stats.h"

/*
 * Prepares bucket i, on a device, before it starts: waits for the streams that made its gradients, and gathers the
 * user's own gradients.
 */
static cddp_status gather_bucket(cddp_ddp *d, size_t i, struct cdi_error *err)
{
    struct cdi_ddp_flight *f = &d->flight[i];
    cddp_status status = CDDP_OK;

    for (int s = 0; s < f->n_streams && status == CDDP_OK; s++)
        status = cdi_ddp_follow(d, f->stream[s], err);
    f->n_streams = 0;
    if (status == CDDP_OK)
        status = cdi_user_grads_gather(d, i, err);
    return status == CDDP_OK ? cdi_nan_look_there(d, i, err) : status;
}

cddp_status cdi_launch_finish(cddp_ddp *d, size_t b, struct cdi_error *err)
{
    if (d->flight[b].skipped)
        return CDDP_OK;
    if (cdi_hook_end(d, b) == CDDP_OK)
        return cdi_compress_unpack(d, b, err);
    *err = d->sticky;
    return err->status;
}

/*
 * Copies, on a device and before a bucket starts, the means of earlier buckets to where the user reads them, while the
 * backward pass continues. At the end of the step only the last one's are left. It does nothing if the end of the step
 * decides what becomes of them, or with a hook, which is called for all buckets then.
 */
static cddp_status complete_early(cddp_ddp *d, struct cdi_error *err)
{
    cddp_status status = CDDP_OK;

    if (!d->ops->on_device || d->sharded || d->shadow || d->hook.begin != NULL || d->powersgd != NULL ||
        d->unused.missing != NULL || (d->flags & (CDDP_DDP_JOIN_ACTIVE | CDDP_DDP_JOIN_STRICT)) != 0)
        return CDDP_OK;
    for (; d->n_copied < d->plan.next && status == CDDP_OK; d->n_copied++) {
        size_t k = d->flight[d->n_copied].own;

        /* All pieces of a cut gradient must be there. */
        if (d->flight[d->n_copied].n_own > 0 && d->n_copied + d->plan.grads[d->own.list[k]].n_parts > d->plan.next)
            break;
        status = cdi_launch_finish(d, d->n_copied, err);
        if (status == CDDP_OK)
            status = cdi_user_grads_scatter(d, d->n_copied, err);
    }
    return status;
}

/* Hands a stretch of bucket i to the backend. more: another one follows at once. now_ns: 0: not known. */
static cddp_status enqueue_stretch(cddp_ddp *d, size_t i, const struct cdi_ddp_stretch *s, bool lazy, bool more,
                                   int64_t now_ns)
{
    const struct cdi_bucket *b = &d->plan.b[i];
    void *at = s->at;
    struct cdi_coll op = {
        .kind = CDI_ALL_REDUCE,
        .in = at,
        .out = at,
        .count = s->bytes / cddp_dtype_size(b->dtype),
        .dtype = b->dtype,
        .op = (d->flags & CDDP_DDP_SUM) != 0 || cdi_user_grads_scales(d, i) || cdi_weight_sums(d) ? CDDP_SUM : CDDP_AVG,
        .region = s->region,
        .known = true,
        .bucket = (int)i,
        /* A device's backend also formats texts after a failure, when the model may be gone. */
        .name_bucket = d->ops->on_device ? NULL : cdi_ddp_name_bucket,
        .ddp = d,
        .lazy = lazy,
        .grace = lazy && i < d->plan.ahead && cdi_comm_world(d->comm)->size > 1,
        .more = more,
        .ready_ns = d->flight[i].ready_ns,
        .enqueued_ns = now_ns,
        .times = d->stats != NULL && !d->ops->on_device ? &d->flight[i].times : NULL,
        /*
         * Until the program waits for one parameter, it always waits for all: the first such wait is longer than
         * necessary.
         */
        .timed = cdi_ddp_times_step(d, d->step),
        .unmarked = d->ops->on_device && !d->by_param,
    };
    struct cdi_error err;

    /* Every rank adds its share of tied gradients to the share of the first one, which is at another place. */
    if (d->sharded && !d->flight[i].compressed && d->flight[i].n_tied == 0) {
        op.kind = CDI_REDUCE_SCATTER;
        op.count = b->room / d->plan.parts / cddp_dtype_size(b->dtype);
        op.out = (char *)at + b->room / d->plan.parts * (size_t)cdi_comm_world(d->comm)->rank;
    }
    if (cdi_compress_pack(d, i, &op, &err) != CDDP_OK || cdi_ddp_begin(d, &op, &d->flight[i].ticket, &err) != CDDP_OK)
        return cdi_ddp_set_error(d, &err);
    if (d->captured.id != 0) /* a captured operation has no ticket */
        return CDDP_OK;
    d->enqueued = d->flight[i].sent[1] = d->flight[i].ticket;
    if (d->flight[i].sent[0] == 0)
        d->flight[i].sent[0] = d->flight[i].ticket;
    return CDDP_OK;
}

/* Hands bucket i to the backend. more: another one is launched at once. lazy: nothing is left to overlap with. */
static cddp_status enqueue_bucket(cddp_ddp *d, size_t i, bool lazy, bool more, int64_t now_ns)
{
    size_t n = cdi_arena_n_stretches(d, i);
    cddp_status status = CDDP_OK;

    for (size_t k = 0; k < n && status == CDDP_OK; k++) {
        const struct cdi_ddp_stretch s = cdi_arena_stretch(d, i, k);

        status = enqueue_stretch(d, i, &s, lazy, more || (d->ops->on_device && k + 1 < n), now_ns);
    }
    return status;
}

/* Multiplies bucket i, whose gradients are complete, by this rank's weight in the mean. */
static cddp_status weigh_bucket(cddp_ddp *d, size_t i)
{
    struct cdi_error err;

    if (cdi_weight_apply(d, i, d->flight[i].compressed || cdi_user_grads_scales(d, i), &err) == CDDP_OK)
        return CDDP_OK;
    return cdi_ddp_set_error(d, &err);
}

/* Launches the next bucket, which is weighed: by PowerSGD, by a hook, or as an all-reduce. */
static cddp_status launch_next(cddp_ddp *d, bool more, int64_t now_ns)
{
    size_t i = d->plan.next;
    cddp_status status;

    cdi_nvtx_push("cddp bucket", i);
    if (cdi_powersgd_applies(d, i)) {
        status = cdi_powersgd_begin(d, i);
    } else if (d->hook.begin != NULL) {
        status = cdi_hook_begin(d, i, &d->flight[i].ticket);
        if (status == CDDP_OK && d->flight[i].ticket > d->enqueued)
            d->enqueued = d->flight[i].ticket;
    } else {
        /* The last one: cddp_ddp_wait is called next, usually at once, and runs it. */
        status = enqueue_bucket(d, i, i + 1 == d->plan.ahead, more, now_ns);
    }
    if (status == CDDP_OK)
        cdi_bucket_launched(&d->plan);
    cdi_nvtx_pop();
    return status;
}

cddp_status cdi_launch_late(cddp_ddp *d, size_t b)
{
    cddp_status status = cdi_weight_await(d);
    struct cdi_error err;

    if (status == CDDP_OK && d->ops->on_device && gather_bucket(d, b, &err) != CDDP_OK)
        return cdi_ddp_set_error(d, &err);
    if (status == CDDP_OK)
        status = weigh_bucket(d, b);
    if (status == CDDP_OK)
        status = enqueue_bucket(d, b, true, false, 0);
    if (status == CDDP_OK)
        cdi_bucket_launched_late(&d->plan, b);
    return status;
}

/*
 * Sends the question of cddp_should_stop, if the program asks it, after the first bucket: there the backward pass
 * hides it, and the wait for a late rank is still that bucket's. A graph cannot answer.
 */
static cddp_status ask_to_stop(cddp_ddp *d)
{
    struct cdi_error err;

    if (d->captured.id != 0 || cdi_stop_ride(d->comm, d, &d->enqueued, &err) == CDDP_OK)
        return CDDP_OK;
    return cdi_ddp_set_error(d, &err);
}

/*
 * Starts buckets next to next + k together; all of them are ready. The plan decides which start together, not the time
 * at which they become ready, since NCCL requires the same groups on all ranks.
 */
static cddp_status launch_group(cddp_ddp *d, size_t k, int64_t now_ns)
{
    /* Calls the backend without interruption, except for a hook, which may do anything in its thread. */
    bool hold = d->ops->hold != NULL && d->hook.begin == NULL, first = d->plan.next == 0;
    cddp_status status = cdi_weight_await(d);
    struct cdi_error err;

    if (status != CDDP_OK)
        return status;
    if (hold && d->ops->hold(d->b, &err) != CDDP_OK)
        return cdi_ddp_set_error(d, &err);
    if (complete_early(d, &err) != CDDP_OK)
        status = cdi_ddp_set_error(d, &err);
    for (size_t j = 0; d->ops->on_device && j <= k && status == CDDP_OK; j++)
        if (gather_bucket(d, d->plan.next + j, &err) != CDDP_OK)
            status = cdi_ddp_set_error(d, &err);
    /* A rank with weight 0 also multiplies buckets that others do not: work between two would divide its group. */
    for (size_t j = 0; j <= k && status == CDDP_OK; j++)
        status = weigh_bucket(d, d->plan.next + j);
    for (size_t j = 0; j <= k && status == CDDP_OK; j++)
        status = launch_next(d, j < k, now_ns);
    if (hold)
        d->ops->let_go(d->b);
    return status == CDDP_OK && first ? ask_to_stop(d) : status;
}

cddp_status cdi_launch_count_down(cddp_ddp *d, size_t i)
{
    cddp_status status = CDDP_OK;
    int64_t now_ns;
    size_t n, k = 0;

    if (d->nvtx_range == 0)
        d->nvtx_range = cdi_nvtx_begin("cddp step", d->step);
    if (i < d->n_params && (d->flags & CDDP_DDP_STATIC_GRAPH) == 0)
        cdi_plan_note_order(d, i);
    n = cdi_bucket_grad_ready(&d->plan, i);
    now_ns = cdi_stats_ready(d, i);
    if (n == 0)
        return CDDP_OK;
    while (status == CDDP_OK && d->plan.next + k < d->plan.ahead &&
           d->plan.b[d->plan.next + k].state == CDI_BUCKET_READY) {
        if (d->flight[d->plan.next + k].more) {
            k++;
            continue;
        }
        status = launch_group(d, k, now_ns);
        k = 0;
    }
    return status;
}
