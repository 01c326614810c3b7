/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Missing gradients. As in PyTorch, a gradient that no rank used keeps its old value, so that an optimizer does not
 * move the parameter. One that only other ranks used becomes their mean, to which this rank contributed zeros. With
 * CDDP_DDP_FIND_UNUSED the ranks exchange in every step which gradients they used, in one small all-reduce after the
 * buckets. With CDDP_DDP_STATIC_GRAPH they do so in the first step only, and a step that differs from it is an error.
 *
 * With CDDP_DDP_SKIP_UNUSED a bucket that no rank used in the previous step is idle: no other bucket waits for it.
 * Whether it is reduced is known after the exchange at the end of the step.
 *
 * On a device the map of used gradients stays there, and the copy that restores old values reads it: the host neither
 * waits nor knows. If the host needs the map, it is copied there, and the host waits. The host needs it for a bucket
 * that is skipped, since the host launches collectives; for an optimizer's count of steps; and for PowerSGD's errors.
 * With a static graph it is copied while the second step runs.
 */
#include "worker/reducer/unused.h"

#include "common/float_state.h"
#include "worker/reducer/launch.h"
#include "worker/reducer/nan_check.h"
#include "worker/reducer/plan.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/captured.h"
#include "worker/reducer/state/used.h"

#include <stdlib.h>
#include <string.h>

cddp_status cdi_unused_init(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_ddp_unused *u = &d->unused;

    if ((d->flags & (CDDP_DDP_FIND_UNUSED | CDDP_DDP_STATIC_GRAPH)) == 0)
        return CDDP_OK;
    u->missing = calloc(d->n_params, sizeof *u->missing);
    u->used = calloc(d->n_params, sizeof *u->used);
    u->expected = calloc(d->n_params, sizeof *u->expected);
    u->seen = calloc(d->n_params, sizeof *u->seen);
    if (d->ops->on_device) {
        u->slices = calloc(2 * d->n_params, sizeof *u->slices);
        u->of = calloc(2 * d->n_params, sizeof *u->of);
    }
    if (u->missing == NULL || u->used == NULL || u->expected == NULL || u->seen == NULL ||
        (d->ops->on_device && (u->slices == NULL || u->of == NULL)))
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the used flags of %zu parameters", d->n_params);
    return d->ops->on_device ? d->ops->alloc(d->b, d->n_params, &u->map, err) : CDDP_OK;
}

void cdi_unused_release(cddp_ddp *d)
{
    free(d->frozen);
    free(d->unused.missing);
    free(d->unused.used);
    free(d->unused.expected);
    free(d->unused.seen);
    free(d->unused.slices);
    free(d->unused.of);
    if (d->unused.map != NULL)
        d->ops->release(d->b, d->unused.map);
    if (d->unused.saved != NULL)
        d->ops->release(d->b, d->unused.saved);
    if (d->unused.zeros != NULL)
        d->ops->release(d->b, d->unused.zeros);
}

/* Allocates the zeros when they are first needed: most reducers never need them. */
static cddp_status make_zeros(cddp_ddp *d, struct cdi_error *err)
{
    size_t largest = 1;

    if (d->unused.zeros != NULL)
        return CDDP_OK;
    for (size_t i = 0; i < d->n_params; i++)
        if (d->plan.grads[i].bytes > largest)
            largest = d->plan.grads[i].bytes;
    return cdi_backend_zeros(d->ops, d->b, largest, &d->unused.zeros, err);
}

static cddp_status unused_graph_changed(cddp_ddp *d, size_t i, const char *how)
{
    struct cdi_error err;

    (void)cdi_fail(&err, CDDP_E_STATE,
                   "the graph has changed: in step %llu the gradient of parameter %zu '%.200s' %s; a reducer with "
                   "CDDP_DDP_STATIC_GRAPH needs every step to be like the first",
                   (unsigned long long)d->step, i, d->params[i].name, how);
    return cdi_ddp_fail_misuse(d, &err);
}

cddp_status cdi_unused_on_ready(cddp_ddp *d, size_t i, bool *now)
{
    struct cdi_ddp_unused *u = &d->unused;

    *now = true;
    if (!cdi_ddp_is_static(d))
        return CDDP_OK;
    u->seen[i]++;
    if (!u->known) {
        if (u->seen[i] == 1)
            cdi_plan_note_order(d, i);
        *now = false; /* it may be reported again: all are counted at the end of this step */
        return CDDP_OK;
    }
    if (u->seen[i] > u->expected[i])
        return unused_graph_changed(
            d, i, u->expected[i] == 0 ? "became ready, which it did not in the first" : "became ready more often");
    *now = u->seen[i] == u->expected[i];
    return CDDP_OK;
}

cddp_status cdi_unused_zero(cddp_ddp *d, size_t i, struct cdi_error *err)
{
    struct cdi_slice none = {.bytes = d->plan.grads[i].bytes};
    cddp_status st = make_zeros(d, err);

    none.data = d->unused.zeros;
    return st == CDDP_OK ? d->ops->pack(d->b, cdi_arena_grad(d, i), &none, 1, err) : st;
}

/* Waits, once per step, for the compute stream: the program may have written the old value there, without notice. */
static cddp_status follow_once(cddp_ddp *d, struct cdi_error *err)
{
    bool first = !d->unused.followed;

    d->unused.followed = true;
    return first && d->ops->on_device ? cdi_ddp_follow(d, d->stream, err) : CDDP_OK;
}

/*
 * Writes zeros in the gradient's place, and saves its old value. If the device decides, the final value of the arena is
 * copied to the user's own memory in any case, so that memory's value is saved.
 */
static cddp_status fill_one(cddp_ddp *d, size_t i, struct cdi_error *err)
{
    bool own = d->params[i].grad != NULL && (cdi_used_stays_on_device(d) || cdi_ddp_is_frozen(d, i));
    struct cdi_slice old = {.data = own ? d->params[i].grad : cdi_arena_grad(d, i), .bytes = d->plan.grads[i].bytes};
    cddp_status st = follow_once(d, err);

    if (st != CDDP_OK)
        return st;
    if (d->unused.saved == NULL)
        st = d->ops->alloc(d->b, d->plan.arena_bytes, &d->unused.saved, err);
    if (st == CDDP_OK)
        st = d->ops->pack(d->b, (char *)d->unused.saved + d->plan.grads[i].offset, &old, 1, err);
    return st == CDDP_OK ? cdi_unused_zero(d, i, err) : st;
}

cddp_status cdi_frozen_begin(cddp_ddp *d)
{
    cddp_status st = CDDP_OK;
    struct cdi_error err;

    for (size_t i = d->n_params; d->n_frozen > 0 && i-- > 0 && st == CDDP_OK;) {
        if (!cdi_ddp_is_frozen(d, i))
            continue;
        (void)cdi_bucket_claim(&d->plan, i);
        if (d->plan.grads[i].bucket >= d->plan.ahead)
            continue;
        if (fill_one(d, i, &err) != CDDP_OK)
            return cdi_ddp_fail_misuse(d, &err);
        st = cdi_launch_count_down(d, i);
    }
    return st;
}

/* Skips the buckets that hold frozen gradients alone, which come last in the order of the first step. */
static void skip_frozen(cddp_ddp *d)
{
    for (size_t b = d->plan.ahead; b < d->plan.n && d->n_frozen > 0; b++)
        d->flight[b].skipped = true;
    for (size_t i = d->n_params; d->n_frozen > 0 && i-- > 0;)
        if (cdi_ddp_is_frozen(d, i) && d->plan.grads[i].bucket >= d->plan.ahead)
            cdi_plan_note_order(d, i);
}

static cddp_status unused_send_map(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_ddp_unused *u = &d->unused;
    struct cdi_coll op = {.kind = CDI_ALL_REDUCE,
                          .in = u->used,
                          .out = cdi_used_stays_on_device(d) ? u->map : u->used,
                          .count = d->n_params,
                          .dtype = CDDP_UINT8,
                          .op = CDDP_MAX,
                          .bucket = -1,
                          .lazy = true};
    cddp_status st = cdi_ddp_begin(d, &op, &u->map_ticket, err);

    if (st == CDDP_OK && cdi_ddp_is_static(d) && op.out != op.in) { /* and to the host, for the following steps */
        op.out = u->used;
        st = cdi_ddp_begin(d, &op, &u->map_ticket, err);
    }
    if (st == CDDP_OK)
        d->enqueued = u->map_ticket;
    u->there = op.out != u->used;
    return st;
}

/* Counts parameter i at the end of the step, or records it as missing. */
static cddp_status unused_close_param(cddp_ddp *d, size_t i)
{
    struct cdi_ddp_unused *u = &d->unused;
    struct cdi_slice own = {.data = d->params[i].grad, .bytes = d->plan.grads[i].bytes};
    cddp_status st = CDDP_OK;
    struct cdi_error err;

    if (cdi_ddp_is_static(d) && u->known && u->seen[i] < u->expected[i])
        return unused_graph_changed(d, i, u->seen[i] == 0 ? "did not become ready" : "became ready less often");
    u->missing[i] = !d->plan.grads[i].claimed && u->seen[i] == 0;
    if (!u->known)
        u->used[i] = !u->missing[i];
    if (d->plan.grads[i].claimed)
        return CDDP_OK;
    u->n_missing += u->missing[i];
    if (u->missing[i] && d->plan.grads[i].bucket >= d->plan.ahead)
        return CDDP_OK; /* perhaps no rank needs it: see launch_idle */
    (void)cdi_bucket_claim(&d->plan, i);
    if (u->missing[i]) {
        cdi_plan_note_order(d, i);
        st = fill_one(d, i, &err);
    } else if (own.data != NULL && !d->ops->on_device) {
        st = d->ops->pack(d->b, cdi_arena_grad(d, i), &own, 1, &err);
    }
    if (st != CDDP_OK)
        return cdi_ddp_fail_misuse(d, &err);
    if (!u->missing[i])
        cdi_nan_look(d, i);
    return cdi_launch_count_down(d, i);
}

/* Fills the missing gradients of idle bucket b, which is reduced after all, with zeros. */
static cddp_status fill_idle(cddp_ddp *d, size_t b)
{
    cddp_status st = CDDP_OK;
    struct cdi_error err;

    for (size_t k = 0; k < d->plan.b[b].n_grads && st == CDDP_OK; k++) {
        size_t i = cdi_bucket_grad(&d->plan, b, k);

        if (i >= d->n_params || d->plan.grads[i].claimed)
            continue;
        (void)cdi_bucket_claim(&d->plan, i);
        if (fill_one(d, i, &err) != CDDP_OK)
            return cdi_ddp_fail_misuse(d, &err);
        st = cdi_launch_count_down(d, i);
    }
    return st;
}

/* Launches the idle buckets that some rank uses in this step. All ranks know them from the map. */
static cddp_status launch_idle(cddp_ddp *d)
{
    cddp_status st = CDDP_OK;
    struct cdi_error err;

    if (d->plan.ahead == d->plan.n)
        return CDDP_OK;
    if (d->ops->join(d->b, d->unused.map_ticket, &err) != CDDP_OK)
        return cdi_ddp_set_error(d, &err);
    for (size_t b = d->plan.ahead; b < d->plan.n && st == CDDP_OK; b++)
        if (cdi_used_in_bucket(d, b))
            st = fill_idle(d, b);
        else
            d->flight[b].skipped = true;
    for (size_t b = d->plan.ahead; b < d->plan.n && st == CDDP_OK; b++)
        if (!d->flight[b].skipped)
            st = cdi_launch_late(d, b);
    return st;
}

cddp_status cdi_unused_fill(cddp_ddp *d)
{
    struct cdi_ddp_unused *u = &d->unused;
    cddp_status st = CDDP_OK;
    struct cdi_error err;

    skip_frozen(d);
    if (u->missing == NULL)
        return CDDP_OK;
    u->n_missing = 0;
    /* The map of the previous step. A map that stays on the device was copied when it was enqueued. */
    if (u->map_ticket > 0 && !cdi_used_stays_on_device(d) && d->ops->join(d->b, u->map_ticket, &err) != CDDP_OK)
        return cdi_ddp_set_error(d, &err);
    if (u->known)
        u->map_ticket = 0; /* the host knows the graph now, and no further step needs to ask */
    for (size_t i = d->n_params; i-- > 0 && st == CDDP_OK;)
        st = unused_close_param(d, i);
    if (st == CDDP_OK && !u->known && unused_send_map(d, &err) != CDDP_OK)
        st = cdi_ddp_set_error(d, &err);
    return st == CDDP_OK ? launch_idle(d) : st;
}

void cdi_unused_next_step(cddp_ddp *d)
{
    d->unused.followed = false;
    d->unused.known = cdi_ddp_is_static(d);
    if (d->unused.missing != NULL)
        memset(d->unused.missing, 0, d->n_params * sizeof *d->unused.missing);
}

/* Restores the old values of the gradients that no rank used, by the device's map. */
static cddp_status restore_there(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_ddp_unused *u = &d->unused;
    size_t n = 0, end = 0;
    cddp_status st = CDDP_OK;
    void *begin = NULL;

    for (size_t i = d->n_params; i-- > 0 && st == CDDP_OK;) { /* in the arena's order, within each type */
        const struct cdi_grad *g = &d->plan.grads[i];

        if (!u->missing[i])
            continue;
        /* If some are reduced in place, neighbours in the plan are not always neighbours in the arena. */
        if (n > 0 && (g->offset < end || d->in_place.any)) {
            st = d->ops->pack_unless(d->b, begin, u->slices, n, u->map, u->of, err);
            n = 0;
        }
        if (n == 0)
            begin = cdi_arena_grad(d, i);
        else if (g->offset > end)
            u->slices[n++] = (struct cdi_slice){.bytes = g->offset - end};
        u->of[n] = (uint32_t)i;
        u->slices[n++] = (struct cdi_slice){.data = (char *)u->saved + g->offset, .bytes = g->bytes};
        end = g->offset + g->bytes;
    }
    if (n > 0 && st == CDDP_OK)
        st = d->ops->pack_unless(d->b, begin, u->slices, n, u->map, u->of, err);
    return st;
}

/* Writes back the values of the frozen gradients whose buckets were sent. */
static cddp_status restore_frozen(cddp_ddp *d, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < d->n_params && d->n_frozen > 0 && st == CDDP_OK; i++) {
        if (cdi_ddp_is_frozen(d, i) && d->params[i].grad == NULL && !d->flight[d->plan.grads[i].bucket].skipped) {
            const struct cdi_slice old = {.data = (char *)d->unused.saved + d->plan.grads[i].offset,
                                          .bytes = d->plan.grads[i].bytes};

            st = d->ops->pack(d->b, cdi_arena_grad(d, i), &old, 1, err);
        }
    }
    return st;
}

cddp_status cdi_unused_restore(cddp_ddp *d)
{
    struct cdi_ddp_unused *u = &d->unused;
    struct cdi_error err;
    cddp_status st = restore_frozen(d, &err);

    if (st != CDDP_OK)
        return cdi_ddp_set_error(d, &err);
    if (u->missing == NULL)
        return CDDP_OK;
    /* The host has to know, but only if something is missing here. */
    st = cdi_used_stays_on_device(d) ? restore_there(d, &err) : cdi_used_await(d, &err);
    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++) {
        struct cdi_slice old = {.bytes = d->plan.grads[i].bytes};

        if (!cdi_used_nowhere(d, i) || d->flight[d->plan.grads[i].bucket].skipped)
            continue;
        old.data = (char *)u->saved + d->plan.grads[i].offset;
        st = d->ops->pack(d->b, cdi_arena_grad(d, i), &old, 1, &err);
    }
    if (cdi_ddp_is_static(d) && !u->known)
        memcpy(u->expected, u->seen, d->n_params * sizeof *u->seen);
    memset(u->seen, 0, d->n_params * sizeof *u->seen);
    return st == CDDP_OK ? st : cdi_ddp_set_error(d, &err);
}

/* Brings the last step's map to the host, with the lock held. */
static cddp_status fetch_map(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_ddp_unused *u = &d->unused;
    cddp_status st = cdi_captured_refuse(d, "cddp_ddp_was_used", err);

    if (st != CDDP_OK)
        return st;
    if (u->map_ticket > 0)
        st = d->ops->join(d->b, u->map_ticket, err);
    if (st == CDDP_OK && u->there)
        st = d->ops->copy(d->b, u->used, u->map, d->n_params, err);
    if (st != CDDP_OK)
        return cdi_ddp_set_error(d, err);
    u->there = false;
    return CDDP_OK;
}

/* Answers with the lock held. A question at a wrong time breaks nothing. */
static cddp_status was_used(cddp_ddp *d, size_t i, int *used, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    if (d->sticky.status != CDDP_OK) {
        *err = d->sticky;
        return err->status;
    }
    if (i >= d->n_params)
        return cdi_fail(err, CDDP_E_INVALID, "there is no parameter %zu, only 0 to %zu", i, d->n_params - 1);
    if (d->begun || d->finishing)
        return cdi_fail(err, CDDP_E_STATE,
                        "cddp_ddp_was_used was called in the middle of step %llu: call it between two steps",
                        (unsigned long long)d->step);
    if (!d->ended)
        return cdi_fail(err, CDDP_E_STATE,
                        "cddp_ddp_was_used was called before a step has ended%s: call it after cddp_ddp_wait",
                        d->step == 0 ? "" : " since cddp_ddp_join or cddp_ddp_set_frozen");
    if (d->unused.missing != NULL)
        st = fetch_map(d, err);
    if (st == CDDP_OK)
        *used = d->unused.missing == NULL ? !cdi_ddp_is_frozen(d, i) : d->unused.used[i] != 0;
    return st;
}

cddp_status cddp_ddp_was_used(cddp_ddp *ddp, size_t i, int *used)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = cdi_ddp_check("cddp_ddp_was_used", ddp, &err);

    if (st == CDDP_OK && used == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_ddp_was_used: used must not be NULL");
    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&ddp->lock);
        st = was_used(ddp, i, used, &err);
        (void)pthread_mutex_unlock(&ddp->lock);
    }
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
