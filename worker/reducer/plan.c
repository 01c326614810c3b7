/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reducer's plan of buckets: made at creation, and sorted by rank 0's order after the first step. With
 * CDDP_DDP_TUNE the arena is then cut in different ways, by the same schedule on every rank, until rank 0 chooses one
 * by its step times.
 */
#include "worker/reducer/plan.h"

#include "common/clock.h"
#include "worker/reducer/grads/compress.h"
#include "worker/reducer/grads/in_place.h"
#include "worker/reducer/grads/user_grads.h"
#include "worker/reducer/layout/active_ranks.h"
#include "worker/reducer/state/used.h"
#include "worker/reducer/stats.h"

#include <cddp/experimental/fsdp.h>
#include <stdlib.h>
#include <string.h>

#define GROUP_BYTES ((size_t)64 << 10) /* buckets that together are smaller are started together */
#define FIRST_TRIAL 2                  /* the step from which all ranks use the order */

/* On a device, small neighbours start together: each start costs more than their work. */
static void group_small(cddp_ddp *d)
{
    size_t bytes = 0;

    for (size_t b = 0; b < d->plan.n; b++) {
        bytes += d->plan.b[b].bytes;
        d->flight[b].more = d->ops->on_device && b + 1 < d->plan.ahead && bytes + d->plan.b[b + 1].bytes <= GROUP_BYTES;
        if (!d->flight[b].more)
            bytes = 0;
    }
}

/* Allocates the state of the buckets of a new plan. */
static cddp_status make_flights(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_ddp_flight *flight = calloc(d->plan.n, sizeof *flight);

    if (flight == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu buckets", d->plan.n);
    free(d->flight);
    d->flight = flight;
    group_small(d);
    for (size_t i = 0; i < d->n_params; i++)
        d->flight[d->plan.grads[i].bucket].n_tied += cdi_ddp_is_tied(d, i);
    cdi_compress_place(d);
    cdi_user_grads_place(d);
    if (cdi_in_place_reserve(d, err) != CDDP_OK)
        return CDDP_E_NOMEM;
    cdi_in_place_list(d);
    return CDDP_OK;
}

/*
 * Finds the sizes that make a difference for this model. The default is used first; a single size leaves nothing to
 * choose.
 */
static cddp_status make_trial(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_ddp_trial *t = calloc(1, sizeof *t);
    cddp_status status = CDDP_OK;

    if (t == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory to try bucket sizes");
    d->trial = t;
    t->clock = cdi_now_ns;
    cdi_tune_init(&t->tune, d->caps.first);
    for (size_t k = 1; k < t->tune.n && status == CDDP_OK;) {
        bool changed = false;

        d->caps.cap = t->tune.cap[k];
        status = cdi_bucket_recut(&d->plan, &d->caps, &changed, err);
        if (status == CDDP_OK)
            status = make_flights(d, err); /* this also finds the largest communication region */
        if (status == CDDP_OK && changed)
            k++;
        else if (status == CDDP_OK)
            cdi_tune_drop(&t->tune, k);
    }
    t->current = t->tune.usual;
    d->caps.cap = t->tune.cap[t->current];
    if (status == CDDP_OK)
        status = cdi_bucket_recut(&d->plan, &d->caps, NULL, err);
    if (status == CDDP_OK)
        status = make_flights(d, err);
    if (t->tune.n > 1 && cdi_comm_world(d->comm)->size > 1)
        return status;
    free(t);
    d->trial = NULL;
    return status;
}

/* Bytes of the plan's last gradient with CDDP_DDP_JOIN, if it has this type. */
static size_t flag_bytes(const cddp_ddp *d, cddp_dtype dtype)
{
    return cdi_active_ranks_elements(cdi_compress_narrowest(d, dtype), cdi_comm_world(d->comm)->size) *
           cddp_dtype_size(dtype);
}

/* Lists the plan's gradients: those of the parameters, and with CDDP_DDP_JOIN one more. */
static struct cdi_grad *list_grads(const cddp_ddp *d, size_t n, bool divided)
{
    struct cdi_grad *grads = calloc(n, sizeof *grads);

    for (size_t i = 0; grads != NULL && i < d->n_params; i++) {
        grads[i].frozen = (d->params[i].flags & CDDP_PARAM_FROZEN) != 0;
        grads[i].dtype = grads[i].frozen ? d->params[i].dtype : d->params[i].grad_dtype;
        grads[i].held = divided ? d->params[i].dtype : grads[i].dtype;
        grads[i].bytes = d->params[i].count * cddp_dtype_size(grads[i].dtype);
    }
    if (grads != NULL && n > d->n_params) {
        /* After the last parameter, which is the first in the arena: see uneven.c. */
        grads[d->n_params].dtype = grads[d->n_params - 1].dtype;
        grads[d->n_params].bytes = flag_bytes(d, grads[d->n_params].dtype);
    }
    return grads;
}

cddp_status cdi_plan_create(cddp_ddp *d, const cddp_ddp_options *opt, const size_t *unit, struct cdi_error *err)
{
    size_t n = d->n_params + ((d->flags & CDDP_DDP_JOIN) != 0);
    size_t size = (size_t)cdi_comm_world(d->comm)->size;
    struct cdi_grad *grads = list_grads(d, n, unit != NULL);
    cddp_status status;

    if (grads == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the plan of %zu gradients", d->n_params);
    d->automatic = (d->flags & CDDP_DDP_TUNE) != 0;
    d->caps = (struct cdi_bucket_caps){.first = opt->first_bucket_bytes,
                                       .cap = d->automatic ? opt->first_bucket_bytes : opt->bucket_bytes,
                                       .last = opt->last_bucket_bytes,
                                       .split = (d->flags & CDDP_DDP_SPLIT) != 0,
                                       .unit = unit};
    d->caps.parts = d->caps.split || d->automatic ? 1 : size;
    status = cdi_bucket_plan_init(&d->plan, grads, n, &d->caps, err);
    d->caps.unit = NULL; /* the caller's */
    if (status != CDDP_OK) {
        free(grads);
        return status;
    }
    status = make_flights(d, err);
    if (status == CDDP_OK && d->automatic)
        status = make_trial(d, err);
    if (status == CDDP_OK && unit == NULL && size > 1 && (d->trial != NULL || d->plan.n > 1) &&
        (d->flags & CDDP_DDP_FIND_UNUSED) == 0) {
        d->order = calloc(d->n_params, sizeof *d->order);
        if (d->order == NULL)
            return cdi_fail(err, CDDP_E_NOMEM, "no memory for the order of %zu gradients", d->n_params);
    }
    return status;
}

void cdi_plan_note_order(cddp_ddp *d, size_t i)
{
    if (d->order != NULL && d->step == 0 && d->n_ordered < d->n_params)
        d->order[d->n_ordered++] = (int32_t)i;
}

/* Sorts the buckets by rank 0's order (order), or moves the idle ones to the end (NULL). */
static cddp_status plan_sort_buckets(cddp_ddp *d, const int32_t *order, struct cdi_error *err)
{
    /* One more than needed: for size 0, calloc may return NULL. */
    struct cdi_ddp_flight *moved = calloc(d->plan.n + 1, sizeof *moved);
    size_t *to = calloc(d->plan.n + 1, sizeof *to);
    cddp_status status = CDDP_OK;

    if (moved == NULL || to == NULL)
        status = cdi_fail(err, CDDP_E_NOMEM, "no memory for the order of %zu buckets", d->plan.n);
    if (status == CDDP_OK)
        status = order != NULL ? cdi_bucket_reorder(&d->plan, order, d->n_params, to, err)
                               : cdi_bucket_sort_idle(&d->plan, to, err);
    for (size_t b = 0; b < d->plan.n && status == CDDP_OK; b++)
        moved[to[b]] = d->flight[b];
    if (status == CDDP_OK) {
        memcpy(d->flight, moved, d->plan.n * sizeof *moved);
        group_small(d);
        cdi_stats_planned(d);
    }
    free(moved);
    free(to);
    return status;
}

static void plan_drop_order(cddp_ddp *d)
{
    free(d->order);
    d->order = NULL;
}

/* Broadcasts a value of rank 0 while the next step runs; it is complete at that step's end. */
static cddp_status plan_broadcast(cddp_ddp *d, int32_t *what, size_t n, uint64_t *ticket, struct cdi_error *err)
{
    struct cdi_coll op = {.kind = CDI_BROADCAST,
                          .in = what,
                          .out = what,
                          .count = n,
                          .dtype = CDDP_INT32,
                          .bucket = -1,
                          .spare = true,
                          .lazy = true};
    cddp_status status = cdi_ddp_begin(d, &op, ticket, err);

    if (status == CDDP_OK)
        d->enqueued = d->spare_ticket = *ticket;
    return status;
}

static cddp_status plan_apply_order(cddp_ddp *d, struct cdi_error *err)
{
    cddp_status status;

    if (d->order == NULL || d->step > FIRST_TRIAL)
        return CDDP_OK;
    if (d->step == 1)
        return plan_broadcast(d, d->order, d->n_params, &d->order_ticket, err);
    status = d->ops->join(d->b, d->order_ticket, err);
    if (status == CDDP_OK)
        status = plan_sort_buckets(d, d->order, err);
    if (d->trial == NULL)
        plan_drop_order(d);
    return status;
}

/* Applies size k. */
static cddp_status plan_use_size(cddp_ddp *d, size_t k, struct cdi_error *err)
{
    cddp_status status;

    if (k == d->trial->current)
        return CDDP_OK;
    d->trial->current = k;
    d->caps.cap = d->trial->tune.cap[k];
    status = cdi_bucket_recut(&d->plan, &d->caps, NULL, err);
    if (status == CDDP_OK)
        status = make_flights(d, err);
    if (status == CDDP_OK && d->order == NULL)
        cdi_stats_planned(d);
    return status == CDDP_OK && d->order != NULL ? plan_sort_buckets(d, d->order, err) : status;
}

/* Records the time of the step that has ended, if this rank had samples in it. */
static cddp_status plan_measure_step(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_ddp_trial *t = d->trial;
    cddp_status status = CDDP_OK;

    if (t->begun_ns != 0 && d->ops->on_device) /* nothing has waited for it yet */
        status = d->ops->join(d->b, d->enqueued, err);
    if (t->begun_ns != 0)
        cdi_tune_note(&t->tune, t->current, t->clock() - t->begun_ns);
    return status;
}

static cddp_status plan_apply_size(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_ddp_trial *t = d->trial;
    uint64_t n = t == NULL ? 0 : cdi_tune_steps(&t->tune), at = d->step - FIRST_TRIAL;
    cddp_status status = CDDP_OK;

    if (t == NULL || d->step < FIRST_TRIAL)
        return CDDP_OK;
    if (at > 0 && at <= n)
        status = plan_measure_step(d, err);
    t->begun_ns = 0;
    if (status != CDDP_OK)
        return status;
    if (at < n)
        return plan_use_size(d, cdi_tune_turn(&t->tune, at), err);
    if (at == n) {
        t->choice = (int32_t)cdi_tune_best(&t->tune);
        return plan_broadcast(d, &t->choice, 1, &t->ticket, err);
    }
    status = d->ops->join(d->b, t->ticket, err);
    if (status == CDDP_OK && (t->choice < 0 || (size_t)t->choice >= t->tune.n))
        status = cdi_fail(err, CDDP_E_PROTOCOL, "rank 0 has chosen bucket size %d of %zu", (int)t->choice, t->tune.n);
    if (status == CDDP_OK)
        status = plan_use_size(d, (size_t)t->choice, err);
    plan_drop_order(d);
    free(t);
    d->trial = NULL;
    return status;
}

/* Moves the buckets that no rank used in the last step to the end, so that no other bucket waits for them. */
static cddp_status plan_move_idle(cddp_ddp *d, struct cdi_error *err)
{
    bool changed = false;
    /* On a device nothing may have waited for the map yet. */
    cddp_status status = d->ops->join(d->b, d->unused.map_ticket, err);
    for (size_t b = 0; b < d->plan.n && status == CDDP_OK; b++) {
        bool idle = !cdi_used_in_bucket(d, b);

        changed |= d->plan.b[b].idle != idle;
        d->plan.b[b].idle = idle;
    }
    return status == CDDP_OK && changed ? plan_sort_buckets(d, NULL, err) : status;
}

static cddp_status plan_result(cddp_ddp *d, cddp_status status, const struct cdi_error *err)
{
    if (status == CDDP_E_NOMEM || status == CDDP_E_PROTOCOL)
        return cdi_ddp_fail_misuse(d, err); /* this rank alone: the others have the new plan */
    return status == CDDP_OK ? status : cdi_ddp_set_error(d, err);
}

cddp_status cdi_plan_update(cddp_ddp *d)
{
    bool moves = d->step <= FIRST_TRIAL || d->trial != NULL;
    struct cdi_error err;
    cddp_status status = plan_apply_order(d, &err);

    if (status == CDDP_OK)
        status = plan_apply_size(d, &err);
    d->idle_due |= (d->flags & CDDP_DDP_SKIP_UNUSED) != 0 || (d->n_frozen > 0 && moves);
    return plan_result(d, status, &err);
}

cddp_status cdi_plan_sort_idle(cddp_ddp *d)
{
    struct cdi_error err;

    if (!d->idle_due)
        return CDDP_OK;
    d->idle_due = false;
    return plan_result(d, plan_move_idle(d, &err), &err);
}

void cdi_plan_trial_begin(cddp_ddp *d)
{
    if (d->trial != NULL)
        d->trial->begun_ns = d->trial->clock();
}

cddp_status cdi_plan_check_final(const cddp_ddp *d, const char *function, struct cdi_error *err)
{
    if (d->trial == NULL)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_STATE,
                    "%s: bucket sizes are still being tried (CDDP_DDP_TUNE), in step %llu of %llu: call it after "
                    "cddp_ddp_bucket_cap returns a size",
                    function, (unsigned long long)d->step,
                    (unsigned long long)(cdi_tune_steps(&d->trial->tune) + FIRST_TRIAL + 1));
}

size_t cddp_ddp_bucket_cap(const cddp_ddp *ddp)
{
    return ddp == NULL || ddp->trial != NULL ? 0 : ddp->caps.cap;
}
