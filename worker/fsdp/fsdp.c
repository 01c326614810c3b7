/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of a sharded model. Operations are begun in the order of the program's calls, which is the same on all ranks.
 * The backend runs them in that order: so a gather that is begun ahead waits for the reductions before it.
 */
#include "worker/fsdp/fsdp.h"

#include "common/float_state.h"
#include "worker/base/sized.h"
#include "worker/reducer/layout/shard.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/captured.h"
#include "worker/reducer/step.h"

#include <string.h>

void *cdi_fsdp_param_at(const struct cddp_fsdp *f, size_t slot_begin, size_t u, size_t i)
{
    const struct cdi_bucket_plan *plan = &f->ddp->plan;
    const struct cdi_grad *g = &plan->grads[f->unit[u].first + i];
    size_t k = f->unit[u].part;

    while (f->parts[k].bucket != g->bucket)
        k++;
    return cdi_fsdp_part_at(f, slot_begin, k) + (g->offset - plan->b[g->bucket].offset);
}

/* Checks f and the unit. */
static cddp_status fsdp_check(const char *function, const cddp_fsdp *f, size_t u, struct cdi_error *err)
{
    if (f == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: f must not be NULL", function);
    if (cdi_comm_own(function, f->ddp->comm, err) != CDDP_OK)
        return err->status;
    return u < f->n_units
               ? CDDP_OK
               : cdi_fail(err, CDDP_E_INVALID, "%s: there is no unit %zu, only 0 to %zu", function, u, f->n_units - 1);
}

/* Checks parameter i of the unit, too. */
static cddp_status check_param(const char *function, const cddp_fsdp *f, size_t u, size_t i, struct cdi_error *err)
{
    cddp_status st = fsdp_check(function, f, u, err);

    if (st != CDDP_OK || i < f->unit[u].n_params)
        return st;
    return cdi_fail(err, CDDP_E_INVALID, "%s: unit %zu '%.200s' has no parameter %zu, only 0 to %zu", function, u,
                    f->unit[u].name, i, f->unit[u].n_params - 1);
}

/*
 * Checks, with the lock held, that the communicator works, and that the stream captures no graph: nothing here becomes
 * part of one.
 */
static cddp_status fsdp_health(const char *function, const cddp_fsdp *f, struct cdi_error *err)
{
    cddp_ddp *d = f->ddp;

    if (d->sticky.status == CDDP_OK && d->ops->on_device && d->ops->health(d->b, err) != CDDP_OK)
        return cdi_ddp_set_error(d, err);
    if (d->sticky.status == CDDP_OK)
        return cdi_captured_refuse(d, function, err);
    *err = d->sticky;
    return err->status;
}

/* After the end of a step all whole parameters are old. */
static cddp_status follow_step(cddp_fsdp *f, struct cdi_error *err)
{
    for (size_t u = 0; u < f->n_units; u++)
        if (f->pool.unit[u].users > 0)
            return cdi_fail(err, CDDP_E_STATE,
                            "unit %zu '%.200s' was gathered in step %llu and not released before its end, so its "
                            "parameters are old: call cddp_fsdp_release",
                            u, f->unit[u].name, (unsigned long long)f->step);
    cdi_pool_next_step(&f->pool);
    f->step = f->ddp->step;
    return CDDP_OK;
}

/* Starts an operation on part k of a unit. Sets the sticky error. */
static cddp_status start(cddp_fsdp *f, struct cdi_coll *op, size_t k, uint64_t *ticket)
{
    cddp_ddp *d = f->ddp;
    const struct cdi_bucket *b = &d->plan.b[f->parts[k].bucket];

    op->count = b->room / d->plan.parts / cddp_dtype_size(b->dtype);
    op->dtype = b->dtype;
    op->region = f->region;
    op->anywhere = !d->ops->on_device; /* slots are equal as long as programs are: a rank that differs is detected */
    op->known = true;
    op->bucket = (int)f->parts[k].bucket;
    op->name_bucket = d->ops->on_device ? NULL : cdi_ddp_name_bucket;
    op->ddp = d;
    return cdi_ddp_enqueue(d, op, ticket);
}

/* ------------------------------------------------------------------------------------------------ parameters ---- */

/* Starts to gather unit u into its slot. Sets the sticky error. */
static cddp_status gather(cddp_fsdp *f, size_t u)
{
    cddp_ddp *d = f->ddp;
    size_t slot = f->pool.unit[u].slot, rank = (size_t)cdi_comm_world(d->comm)->rank;
    struct cdi_error err;
    /* On a device the slot is free when the work that the compute stream has now is done. */
    cddp_status st = d->ops->on_device ? cdi_ddp_follow(d, d->stream, &err) : CDDP_OK;

    if (st != CDDP_OK)
        return cdi_ddp_set_error(d, &err);
    /* A unit that was begun ahead, and was then not wanted: peers may still read it. */
    if (!d->ops->on_device && f->slot_ticket[slot] > d->joined)
        st = cdi_ddp_join_ticket(d, f->slot_ticket[slot]);
    for (size_t k = f->unit[u].part; k < f->unit[u].part + f->unit[u].n_parts && st == CDDP_OK; k++) {
        size_t b = f->parts[k].bucket, part = d->plan.b[b].room / d->plan.parts;
        char *out = cdi_fsdp_part_at(f, f->slot_at[slot], k);
        struct cdi_coll op = {.kind = CDI_ALL_GATHER,
                              .in = d->shares.params + cdi_arena_share_at(d, b),
                              .out = out,
                              .asked = CDI_ASKED_FSDP_GATHER};

        if (!d->ops->on_device) { /* from here the ranks of the node read it */
            memcpy(out + part * rank, op.in, part);
            op.in = out + part * rank;
        }
        st = start(f, &op, k, &f->unit[u].ticket);
    }
    f->slot_ticket[slot] = f->unit[u].ticket;
    return st;
}

/* Begins the units that the forecast wants next, as long as there is room. Sets the sticky error. */
static cddp_status gather_ahead(cddp_fsdp *f)
{
    cddp_status st = CDDP_OK;

    for (size_t k = 0; st == CDDP_OK; k++) {
        size_t u = cdi_pool_forecast(&f->pool, k);

        if (u == CDI_POOL_NONE)
            break;
        if (f->pool.unit[u].is_fresh)
            continue;
        if (!cdi_pool_place(&f->pool, u, true))
            break;
        st = gather(f, u);
    }
    return st;
}

/* With the lock held. */
static cddp_status fsdp_gather(cddp_fsdp *f, size_t u, struct cdi_error *err)
{
    struct cdi_pool_unit *unit = &f->pool.unit[u];
    bool was_fresh = unit->is_fresh;
    cddp_status st = fsdp_health("cddp_fsdp_gather", f, err);

    if (st == CDDP_OK && f->step != f->ddp->step) {
        st = follow_step(f, err);
        was_fresh = false;
    }
    if (st != CDDP_OK)
        return st;
    if (!was_fresh && !cdi_pool_place(&f->pool, u, false))
        return cdi_fail(err, CDDP_E_STATE,
                        "unit %zu '%.200s' cannot be gathered: %zu units are held, which is "
                        "cddp_fsdp_options.max_live_units: release one before",
                        u, f->unit[u].name, f->pool.n_slots);
    if (!was_fresh)
        st = gather(f, u);
    if (st == CDDP_OK && unit->users == 0 && !cdi_pool_want(&f->pool, u))
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    unit->users++;
    if (st == CDDP_OK)
        st = gather_ahead(f);
    if (st != CDDP_OK)
        *err = f->ddp->sticky;
    return st;
}

cddp_status cddp_fsdp_gather(cddp_fsdp *f, size_t u)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = fsdp_check("cddp_fsdp_gather", f, u, &err);

    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&f->ddp->lock);
        st = fsdp_gather(f, u, &err);
        (void)pthread_mutex_unlock(&f->ddp->lock);
    }
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

static cddp_status refuse_unheld(const char *function, const cddp_fsdp *f, size_t u, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_STATE, "%s: unit %zu '%.200s' is not held: call cddp_fsdp_gather before", function, u,
                    f->unit[u].name);
}

cddp_status cddp_fsdp_wait_unit(cddp_fsdp *f, size_t u)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = fsdp_check("cddp_fsdp_wait_unit", f, u, &err);

    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    (void)pthread_mutex_lock(&f->ddp->lock);
    st = fsdp_health("cddp_fsdp_wait_unit", f, &err);
    if (st == CDDP_OK && f->pool.unit[u].users == 0)
        st = refuse_unheld("cddp_fsdp_wait_unit", f, u, &err);
    else if (st == CDDP_OK && f->step != f->ddp->step)
        st = follow_step(f, &err); /* the unit is held, so it is named */
    else if (st == CDDP_OK && f->ddp->ops->on_device)
        st = cdi_ddp_stream_wait(f->ddp, f->unit[u].ticket, &err);
    else if (st == CDDP_OK && (st = cdi_ddp_join_ticket(f->ddp, f->unit[u].ticket)) != CDDP_OK)
        err = f->ddp->sticky;
    (void)pthread_mutex_unlock(&f->ddp->lock);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

const void *cddp_fsdp_param(const cddp_fsdp *f, size_t u, size_t i)
{
    if (f == NULL || u >= f->n_units || i >= f->unit[u].n_params || f->pool.unit[u].users == 0 ||
        f->step != f->ddp->step)
        return NULL;
    return cdi_fsdp_param_at(f, f->slot_at[f->pool.unit[u].slot], u, i);
}

cddp_status cddp_fsdp_release(cddp_fsdp *f, size_t u)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = fsdp_check("cddp_fsdp_release", f, u, &err);

    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    (void)pthread_mutex_lock(&f->ddp->lock);
    if (f->pool.unit[u].users == 0)
        st = refuse_unheld("cddp_fsdp_release", f, u, &err);
    else
        f->pool.unit[u].users--;
    (void)pthread_mutex_unlock(&f->ddp->lock);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

/* ------------------------------------------------------------------------------------------------- gradients ---- */

static size_t grad_slot_at(const cddp_fsdp *f, size_t s)
{
    return f->grads_at + s * f->grad_bytes;
}

/*
 * Gives unit u a slot for its gradients, of which one is that of parameter i: the one whose last use has ended first.
 * With the lock held.
 */
static cddp_status take_grad_slot(cddp_fsdp *f, size_t u, size_t i, struct cdi_error *err)
{
    cddp_ddp *d = f->ddp;
    size_t best = CDI_POOL_NONE;
    cddp_status st = fsdp_health("cddp_fsdp_grad", f, err);

    if (st == CDDP_OK && cdi_ddp_is_frozen(d, f->unit[u].first + i))
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_fsdp_grad: parameter %zu '%.200s' of unit %zu '%.200s' is frozen (CDDP_PARAM_FROZEN), so "
                        "it has no gradient",
                        i, d->params[f->unit[u].first + i].name, u, f->unit[u].name);
    if (st != CDDP_OK || f->unit[u].grad_slot != CDI_POOL_NONE)
        return st;
    for (size_t s = 0; s < f->n_grad_slots; s++)
        if (f->grad_slot[s].unit == CDI_POOL_NONE &&
            (best == CDI_POOL_NONE || f->grad_slot[s].ticket < f->grad_slot[best].ticket))
            best = s;
    if (best == CDI_POOL_NONE)
        return cdi_fail(err, CDDP_E_STATE,
                        "no memory for the gradients of unit %zu '%.200s': %zu units hold all of it, which is "
                        "cddp_fsdp_options.max_live_gradients: call cddp_fsdp_grads_ready for one before",
                        u, f->unit[u].name, f->n_grad_slots);
    if (f->grad_slot[best].ticket != 0 && d->ops->on_device)
        st = cdi_ddp_stream_wait(d, f->grad_slot[best].ticket, err);
    else if (f->grad_slot[best].ticket != 0 && (st = cdi_ddp_join_ticket(d, f->grad_slot[best].ticket)) != CDDP_OK)
        *err = d->sticky;
    if (st == CDDP_OK) {
        f->grad_slot[best].unit = u;
        f->unit[u].grad_slot = best;
    }
    return st;
}

void *cddp_fsdp_grad(cddp_fsdp *f, size_t u, size_t i)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = check_param("cddp_fsdp_grad", f, u, i, &err);

    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&f->ddp->lock);
        st = take_grad_slot(f, u, i, &err);
        (void)pthread_mutex_unlock(&f->ddp->lock);
    }
    if (st == CDDP_OK)
        return cdi_fsdp_param_at(f, grad_slot_at(f, f->unit[u].grad_slot), u, i);
    (void)cdi_last_error_set(&err);
    return NULL;
}

/* Counts the unit's gradients in the reducer's plan, which knows at the step's end what is missing. */
static void count_grads(cddp_fsdp *f, size_t u)
{
    struct cdi_bucket_plan *plan = &f->ddp->plan;

    f->ddp->begun = true;
    for (size_t i = f->unit[u].first; i < f->unit[u].first + f->unit[u].n_params; i++) {
        if (cdi_ddp_is_frozen(f->ddp, i))
            continue;
        (void)cdi_bucket_claim(plan, i);
        (void)cdi_bucket_grad_ready(plan, i);
    }
    while (plan->next < plan->ahead && plan->b[plan->next].state == CDI_BUCKET_READY)
        cdi_bucket_launched(plan);
}

/* With the lock held. */
static cddp_status divide_grads(cddp_fsdp *f, size_t u, struct cdi_error *err)
{
    cddp_ddp *d = f->ddp;
    struct cdi_fsdp_grad_slot *slot;
    cddp_status st = fsdp_health("cddp_fsdp_grads_ready", f, err);

    if (st != CDDP_OK)
        return st;
    if (f->unit[u].n_made == 0)
        return cdi_fail(
            err, CDDP_E_STATE,
            "cddp_fsdp_grads_ready: unit %zu '%.200s' is frozen (CDDP_PARAM_FROZEN), so it has no gradients "
            "to report",
            u, f->unit[u].name);
    if (d->plan.b[f->parts[f->unit[u].part].bucket].state != CDI_BUCKET_FILLING)
        return cdi_fail(err, CDDP_E_STATE,
                        "the gradients of unit %zu '%.200s' were ready already in this step: call "
                        "cddp_fsdp_grads_ready once per unit and step",
                        u, f->unit[u].name);
    if (f->unit[u].grad_slot == CDI_POOL_NONE)
        return cdi_fail(err, CDDP_E_STATE,
                        "cddp_fsdp_grads_ready: unit %zu '%.200s' has no gradients in this step: write them to "
                        "cddp_fsdp_grad before",
                        u, f->unit[u].name);
    count_grads(f, u);
    if (d->ops->on_device && cdi_ddp_follow(d, d->stream, err) != CDDP_OK)
        st = cdi_ddp_set_error(d, err); /* they count as ready, and are not */
    if (st != CDDP_OK)
        return st;
    slot = &f->grad_slot[f->unit[u].grad_slot];
    for (size_t k = f->unit[u].part; k < f->unit[u].part + f->unit[u].n_made && st == CDDP_OK; k++) {
        size_t b = f->parts[k].bucket;
        struct cdi_coll op = {.kind = CDI_REDUCE_SCATTER,
                              .in = cdi_fsdp_part_at(f, grad_slot_at(f, f->unit[u].grad_slot), k),
                              .out = d->shares.grads + cdi_arena_share_at(d, b),
                              .op = CDDP_AVG,
                              .asked = CDI_ASKED_FSDP_READY};

        st = start(f, &op, k, &slot->ticket);
        d->flight[b].ticket = slot->ticket;
    }
    slot->unit = CDI_POOL_NONE;
    f->unit[u].grad_slot = CDI_POOL_NONE;
    if (st != CDDP_OK)
        *err = d->sticky;
    return st;
}

cddp_status cddp_fsdp_grads_ready(cddp_fsdp *f, size_t u)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = fsdp_check("cddp_fsdp_grads_ready", f, u, &err);

    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&f->ddp->lock);
        st = divide_grads(f, u, &err);
        (void)pthread_mutex_unlock(&f->ddp->lock);
    }
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

/* -------------------------------------------------------------------------------------------------- the rest ---- */

cddp_status cddp_optim_create_sharded(cddp_optim **out, cddp_fsdp *f, const cddp_optim_options *opt)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;

    if (f != NULL)
        return cddp_optim_create(out, f->ddp, opt);
    (void)cdi_fail(&err, CDDP_E_INVALID, "cddp_optim_create_sharded: f must not be NULL");
    return cdi_last_error_set(&err);
}

/* On a device the compute stream waits for the shares, on the host this thread. */
static cddp_status complete_shares(cddp_ddp *d, void *arg)
{
    struct cdi_error err;

    (void)arg;
    if (!d->ops->on_device)
        return cdi_ddp_join_ticket(d, d->enqueued);
    return cdi_ddp_stream_wait(d, 0, &err) == CDDP_OK ? CDDP_OK : cdi_ddp_set_error(d, &err);
}

cddp_status cddp_fsdp_end_step(cddp_fsdp *f)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = fsdp_check("cddp_fsdp_end_step", f, 0, &err);

    if (st == CDDP_OK && f->ddp->sharded)
        st = cdi_fail(&err, CDDP_E_STATE,
                      "cddp_fsdp_end_step: there is an optimizer (cddp_optim_create_sharded): end "
                      "the step with cddp_optim_step");
    return st == CDDP_OK ? cdi_step_finish(f->ddp, complete_shares, NULL) : cdi_last_error_set(&err);
}

cddp_status cddp_fsdp_shard(const cddp_fsdp *f, size_t u, size_t i, cddp_fsdp_shard_info *info)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = check_param("cddp_fsdp_shard", f, u, i, &err);

    if (st == CDDP_OK)
        st = cdi_sized_check(info, "cddp_fsdp_shard_info", &err);
    if (st == CDDP_OK) {
        cddp_ddp *d = f->ddp;
        size_t n = f->unit[u].first + i, size = cddp_dtype_size(d->params[n].dtype);
        struct cdi_shard own = cdi_shard_one(&d->plan, n, cdi_comm_world(d->comm)->rank);
        cddp_fsdp_shard_info full = {.size = sizeof full, .begin = own.lo, .count = own.count};

        if (own.count > 0) {
            full.param = (char *)d->params[n].data + own.lo * size;
            full.grad = cdi_ddp_is_frozen(d, n) ? NULL : (char *)cdi_arena_grad(d, n) + own.lo * size;
        }
        cdi_sized_put(info, &full, sizeof full);
    }
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

size_t cddp_fsdp_bytes(const cddp_fsdp *f)
{
    return f == NULL ? 0 : cdi_arena_share_bytes(f->ddp) + f->region->bytes;
}
