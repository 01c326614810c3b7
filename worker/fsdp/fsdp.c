/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of a sharded model. Operations are begun in the order of the program's calls, which is the same on all ranks.
 * The backend runs them in that order: so a gather that is begun ahead waits for the reductions before it.
 *
 * A captured step decides once: its units get their slots, and others are gathered ahead, and all launches do the same.
 * So it relies on nothing that the pool has, and leaves nothing there. Once there may be a graph, its launches come
 * unnoticed between any two calls. Then units outside of graphs are gathered anew, one at a time, and the compute
 * stream waits at once.
 */
#include "worker/fsdp/fsdp.h"

#include "common/float_state.h"
#include "worker/base/sized.h"
#include "worker/reducer/layout/shard.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/captured.h"
#include "worker/reducer/step.h"

#include <stdio.h>
#include <string.h>

#define NAMED 4u /* units in a message */
#define NAMES 320u

/* Returns the part of unit u that has its parameter i. */
static size_t part_of(const struct cddp_fsdp *f, size_t u, size_t i)
{
    size_t k = f->unit[u].part;

    while (f->parts[k].bucket != f->ddp->plan.grads[f->unit[u].first + i].bucket)
        k++;
    return k;
}

/* Returns the bytes of gradients in its bucket before that of parameter i. */
static size_t bytes_before(const struct cddp_fsdp *f, size_t u, size_t i)
{
    const struct cdi_grad *g = &f->ddp->plan.grads[f->unit[u].first + i];

    return g->offset - f->ddp->plan.b[g->bucket].offset;
}

void *cdi_fsdp_param_at(const struct cddp_fsdp *f, size_t slot_begin, size_t u, size_t i)
{
    size_t k = part_of(f, u, i);
    const struct cdi_bucket *b = &f->ddp->plan.b[f->parts[k].bucket];

    return cdi_fsdp_part_at(f, slot_begin, k) + bytes_before(f, u, i) / (b->room / b->held_room);
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

static bool is_old(const struct cddp_fsdp *f)
{
    return f->step != f->ddp->step || f->captured_steps != f->ddp->captured_steps;
}

/* All whole parameters are old, and nothing is in flight that a device has not ordered. */
static void begin_step(cddp_fsdp *f)
{
    cdi_pool_next_step(&f->pool);
    f->step = f->ddp->step;
    f->captured_steps = f->ddp->captured_steps;
    if (!f->ddp->ops->on_device)
        return;
    /* Tickets of the last step may be a graph's. */
    for (size_t u = 0; u < f->n_units; u++)
        f->unit[u].ticket = 0;
    for (size_t s = 0; s < f->n_grad_slots + f->n_own_grad_slots; s++)
        f->grad_slot[s].ticket = 0;
}

/* Forgets, after a captured step, what it held. */
static void forget_captured(cddp_fsdp *f)
{
    for (size_t u = 0; u < f->n_units; u++) {
        f->pool.unit[u].users = 0;
        f->unit[u].grad_slot = CDI_POOL_NONE;
        f->unit[u].is_here = false;
    }
    for (size_t s = 0; s < f->n_grad_slots + f->n_own_grad_slots; s++)
        f->grad_slot[s].unit = CDI_POOL_NONE;
    begin_step(f);
}

static cddp_status refuse_old(const cddp_fsdp *f, size_t u, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_STATE,
                    "unit %zu '%.200s' was gathered in step %llu and not released before its end, so its parameters "
                    "are old: call cddp_fsdp_release",
                    u, f->unit[u].name, (unsigned long long)f->step);
}

/* After the end of a step all whole parameters are old. */
static cddp_status follow_step(cddp_fsdp *f, struct cdi_error *err)
{
    for (size_t u = 0; u < f->n_units; u++)
        if (f->pool.unit[u].users > 0)
            return refuse_old(f, u, err);
    begin_step(f);
    return CDDP_OK;
}

/* Begins a captured step, with nothing in use. */
static cddp_status begin_captured(cddp_fsdp *f, struct cdi_error *err)
{
    const unsigned long long step = f->ddp->step;
    bool in_use = !is_old(f) && !f->in_graphs && f->pool.at > 0; /* its gathers may be under way */

    if (step == 0)
        return cdi_fail(err, CDDP_E_STATE,
                        "the stream captures a graph, but the order of the units is not known yet: take a step before "
                        "the capture");
    for (size_t u = 0; u < f->n_units; u++)
        in_use |= f->pool.unit[u].users > 0 || f->unit[u].grad_slot != CDI_POOL_NONE;
    if (in_use)
        return cdi_fail(err, CDDP_E_STATE,
                        "the capture began in the middle of step %llu, in which units were gathered or their gradients "
                        "written: begin it between two steps",
                        step);
    begin_step(f);
    f->in_graphs = true;
    return CDDP_OK;
}

/*
 * Begins a call, with the lock held, if the communicator works: decides whether it becomes part of a graph. After a
 * success call fsdp_leave.
 */
static cddp_status fsdp_enter(cddp_fsdp *f, bool *captured, struct cdi_error *err)
{
    cddp_ddp *d = f->ddp;
    cddp_status st;

    *captured = false;
    if (d->sticky.status == CDDP_OK && d->ops->on_device && d->ops->health(d->b, err) != CDDP_OK)
        return cdi_ddp_set_error(d, err);
    if (d->sticky.status == CDDP_OK)
        (void)cdi_across_advance(&f->across);
    if (d->sticky.status != CDDP_OK) {
        *err = d->sticky;
        return err->status;
    }
    if (f->across.comm != NULL) /* its all-reduces are not part of a graph */
        return cdi_captured_refuse(d, "a model with cddp_fsdp_options.replicas", err);
    st = cdi_captured_enter(d, d->stream, true, captured, err);
    if (f->captured_steps != d->captured_steps)
        forget_captured(f);
    if (!*captured || d->begun)
        return st;
    st = begin_captured(f, err);
    if (st != CDDP_OK)
        return cdi_captured_leave(d, d->stream, st, err);
    d->begun = true; /* at its first gather, not at its first gradient */
    return CDDP_OK;
}

/* Ends it. st is its result, and *err its error. */
static cddp_status fsdp_leave(cddp_fsdp *f, bool captured, cddp_status st, struct cdi_error *err)
{
    return captured ? cdi_captured_leave(f->ddp, f->ddp->stream, st, err) : st;
}

/* Starts an operation on part k of unit u. Sets the sticky error. */
static cddp_status start(cddp_fsdp *f, struct cdi_coll *op, size_t u, size_t k, uint64_t *ticket)
{
    cddp_ddp *d = f->ddp;
    const struct cdi_bucket *b = &d->plan.b[f->parts[k].bucket];

    op->count = b->room / d->plan.parts / cddp_dtype_size(b->dtype);
    op->dtype = op->kind == CDI_ALL_GATHER ? b->held : b->dtype;
    op->region = f->region;
    op->anywhere = !d->ops->on_device; /* slots are equal as long as programs are: a rank that differs is detected */
    op->known = true;
    op->captured_mark = true;
    cdi_ddp_name_after_unit(d, op, u);
    return cdi_ddp_enqueue(d, op, ticket);
}

/* Writes "'a', 'b' and 3 more are": the units that fill the pool of parameters, or of gradients. Returns names. */
static const char *list_units(const cddp_fsdp *f, bool gradients, char names[NAMES])
{
    size_t at = 0, n = 0;

    for (size_t u = 0; u < f->n_units; u++) {
        const struct cdi_pool_unit *p = &f->pool.unit[u];
        bool fills = gradients ? f->unit[u].grad_slot < f->n_grad_slots : p->users > 0 && !p->is_kept;

        if (fills && n++ < NAMED)
            at += (size_t)snprintf(names + at, NAMES - at, "%s'%.48s'", n == 1 ? "" : ", ", f->unit[u].name);
    }
    if (n > NAMED)
        at += (size_t)snprintf(names + at, NAMES - at, " and %zu more", n - NAMED);
    (void)snprintf(names + at, NAMES - at, n == 1 ? " is" : " are");
    return names;
}

/* ------------------------------------------------------------------------------------------------ parameters ---- */

/* Starts to gather unit u into its slot. ahead: before the program wants it. Sets the sticky error. */
static cddp_status gather(cddp_fsdp *f, size_t u, bool ahead)
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
        size_t b = f->parts[k].bucket, part = d->plan.b[b].held_room / d->plan.parts;
        char *out = cdi_fsdp_part_at(f, f->slot_at[slot], k);
        struct cdi_coll op = {.kind = CDI_ALL_GATHER,
                              .in = d->shares.params + cdi_arena_held_at(d, b),
                              .out = out,
                              .asked = CDI_API_FSDP_GATHER,
                              .ahead = ahead};

        if (!d->ops->on_device) { /* from here the ranks of the node read it */
            memcpy(out + part * rank, op.in, part);
            op.in = out + part * rank;
        }
        st = start(f, &op, u, k, &f->unit[u].ticket);
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
        st = gather(f, u, true);
    }
    return st;
}

/* With the lock held, after fsdp_enter. alone: beside graphs. */
static cddp_status fsdp_gather(cddp_fsdp *f, size_t u, bool alone, struct cdi_error *err)
{
    struct cdi_pool_unit *unit = &f->pool.unit[u];
    cddp_status st = is_old(f) ? follow_step(f, err) : CDDP_OK;
    bool was_fresh = unit->is_fresh && (unit->users > 0 || !alone);
    char names[NAMES];

    if (st != CDDP_OK)
        return st;
    if (!was_fresh && !cdi_pool_place(&f->pool, u, false))
        return cdi_fail(err, CDDP_E_STATE,
                        "unit %zu '%.200s' cannot be gathered: cddp_fsdp_options.max_live_units is %zu, and %s "
                        "not released yet",
                        u, f->unit[u].name, f->pool.n_slots, list_units(f, false, names));
    if (!was_fresh)
        st = gather(f, u, false);
    if (st == CDDP_OK && unit->users == 0 && !cdi_pool_want(&f->pool, u))
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    unit->users++;
    if (st == CDDP_OK && alone)
        return cdi_ddp_stream_wait(f->ddp, f->unit[u].ticket, err);
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
    bool captured;

    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&f->ddp->lock);
        st = fsdp_enter(f, &captured, &err);
        if (st == CDDP_OK)
            st = fsdp_leave(f, captured, fsdp_gather(f, u, f->in_graphs && !captured, &err), &err);
        (void)pthread_mutex_unlock(&f->ddp->lock);
    }
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

static cddp_status refuse_unheld(const char *function, const cddp_fsdp *f, size_t u, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_STATE, "%s: unit %zu '%.200s' is not held: call cddp_fsdp_gather before", function, u,
                    f->unit[u].name);
}

/* With the lock held, after fsdp_enter. */
static cddp_status wait_unit(cddp_fsdp *f, size_t u, struct cdi_error *err)
{
    if (f->pool.unit[u].users == 0)
        return refuse_unheld("cddp_fsdp_wait_unit", f, u, err);
    if (is_old(f))
        return follow_step(f, err); /* the unit is held, so it is named */
    if (f->ddp->ops->on_device)
        return cdi_ddp_stream_wait(f->ddp, f->unit[u].ticket, err);
    if (cdi_ddp_join_ticket(f->ddp, f->unit[u].ticket) != CDDP_OK)
        *err = f->ddp->sticky;
    return f->ddp->sticky.status;
}

cddp_status cddp_fsdp_wait_unit(cddp_fsdp *f, size_t u)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = fsdp_check("cddp_fsdp_wait_unit", f, u, &err);
    bool captured;

    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    (void)pthread_mutex_lock(&f->ddp->lock);
    st = fsdp_enter(f, &captured, &err);
    if (st == CDDP_OK)
        st = fsdp_leave(f, captured, wait_unit(f, u, &err), &err);
    if (st == CDDP_OK)
        f->unit[u].is_here = true;
    (void)pthread_mutex_unlock(&f->ddp->lock);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

const void *cddp_fsdp_param(const cddp_fsdp *f, size_t u, size_t i)
{
    struct cdi_error err;
    cddp_status st = check_param("cddp_fsdp_param", f, u, i, &err);

    if (st == CDDP_OK && f->pool.unit[u].users == 0)
        st = refuse_unheld("cddp_fsdp_param", f, u, &err);
    else if (st == CDDP_OK && is_old(f))
        st = refuse_old(f, u, &err);
    else if (st == CDDP_OK && !f->unit[u].is_here)
        st = cdi_fail(&err, CDDP_E_STATE,
                      "cddp_fsdp_param: unit %zu '%.200s' is being gathered: call cddp_fsdp_wait_unit after "
                      "cddp_fsdp_gather",
                      u, f->unit[u].name);
    if (st == CDDP_OK)
        return cdi_fsdp_param_at(f, f->slot_at[f->pool.unit[u].slot], u, i);
    (void)cdi_last_error_set(&err);
    return NULL;
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
    else if (--f->pool.unit[u].users == 0)
        f->unit[u].is_here = false;
    (void)pthread_mutex_unlock(&f->ddp->lock);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

/* ------------------------------------------------------------------------------------------------- gradients ---- */

/* Returns where the gradients of part k are in slot s. */
static char *grad_part_at(const cddp_fsdp *f, size_t s, size_t k)
{
    return (char *)f->region->base + f->grad_slot[s].at + f->parts[k].grad_at;
}

/* Were the unit's gradients reported in this step? */
static bool is_reported(const cddp_fsdp *f, size_t u)
{
    const cddp_ddp *d = f->ddp;

    for (size_t i = f->unit[u].first; i < f->unit[u].first + f->unit[u].n_params; i++)
        if (!cdi_ddp_is_frozen(d, i))
            return d->plan.grads[i].claimed;
    return false;
}

static cddp_status refuse_reported(const cddp_fsdp *f, size_t u, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_STATE,
                    "the gradients of unit %zu '%.200s' were ready already in this step: call cddp_fsdp_grads_ready "
                    "once per unit and step (max_live_gradients of all units lets gradients add up before it)",
                    u, f->unit[u].name);
}

/*
 * Gives unit u a slot for its gradients, of which one is that of parameter i: the one whose last use has ended first.
 * With the lock held, after fsdp_enter.
 */
static cddp_status take_grad_slot(cddp_fsdp *f, size_t u, size_t i, struct cdi_error *err)
{
    cddp_ddp *d = f->ddp;
    size_t best = f->unit[u].own_grad_slot;
    cddp_status st = CDDP_OK;
    char names[NAMES];

    if (cdi_ddp_is_frozen(d, f->unit[u].first + i))
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_fsdp_grad: parameter %zu '%.200s' of unit %zu '%.200s' is frozen (CDDP_PARAM_FROZEN), so "
                        "it has no gradient",
                        i, d->params[f->unit[u].first + i].name, u, f->unit[u].name);
    if (f->unit[u].grad_slot != CDI_POOL_NONE)
        return CDDP_OK;
    if (is_reported(f, u))
        return refuse_reported(f, u, err);
    for (size_t s = 0; f->unit[u].own_grad_slot == CDI_POOL_NONE && s < f->n_grad_slots; s++)
        if (f->grad_slot[s].unit == CDI_POOL_NONE &&
            (best == CDI_POOL_NONE || f->grad_slot[s].ticket < f->grad_slot[best].ticket))
            best = s;
    if (best == CDI_POOL_NONE)
        return cdi_fail(err, CDDP_E_STATE,
                        "no memory for the gradients of unit %zu '%.200s': cddp_fsdp_options.max_live_gradients is "
                        "%zu, and %s not reported yet (cddp_fsdp_grads_ready)",
                        u, f->unit[u].name, f->n_grad_slots, list_units(f, true, names));
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
    bool captured;

    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&f->ddp->lock);
        st = fsdp_enter(f, &captured, &err);
        if (st == CDDP_OK)
            st = fsdp_leave(f, captured, take_grad_slot(f, u, i, &err), &err);
        (void)pthread_mutex_unlock(&f->ddp->lock);
    }
    if (st == CDDP_OK)
        return grad_part_at(f, f->unit[u].grad_slot, part_of(f, u, i)) + bytes_before(f, u, i);
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

/* With the lock held, after fsdp_enter. */
static cddp_status divide_grads(cddp_fsdp *f, size_t u, struct cdi_error *err)
{
    cddp_ddp *d = f->ddp;
    struct cdi_fsdp_grad_slot *slot;
    cddp_status st = CDDP_OK;

    if (f->unit[u].n_made == 0)
        return cdi_fail(
            err, CDDP_E_STATE,
            "cddp_fsdp_grads_ready: unit %zu '%.200s' is frozen (CDDP_PARAM_FROZEN), so it has no gradients "
            "to report",
            u, f->unit[u].name);
    if (is_reported(f, u))
        return refuse_reported(f, u, err);
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
                              .in = grad_part_at(f, f->unit[u].grad_slot, k),
                              .out = d->shares.grads + cdi_arena_share_at(d, b),
                              .op = CDDP_AVG,
                              .asked = CDI_API_FSDP_READY};

        st = start(f, &op, u, k, &slot->ticket);
        d->flight[b].ticket = d->captured.id == 0 ? slot->ticket : 0;
        if (st == CDDP_OK)
            cdi_across_note(&f->across, b);
    }
    if (st == CDDP_OK && d->ops->on_device)
        st = cdi_across_advance(&f->across);
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
    bool captured;

    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&f->ddp->lock);
        st = fsdp_enter(f, &captured, &err);
        if (st == CDDP_OK)
            st = fsdp_leave(f, captured, divide_grads(f, u, &err), &err);
        (void)pthread_mutex_unlock(&f->ddp->lock);
    }
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

/* -------------------------------------------------------------------------------------------------- the rest ---- */

cddp_status cddp_optim_create_sharded(cddp_optim **out, cddp_fsdp *f, const cddp_optim_options *opt)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st;

    if (f == NULL) {
        (void)cdi_fail(&err, CDDP_E_INVALID, "cddp_optim_create_sharded: f must not be NULL");
        return cdi_last_error_set(&err);
    }
    st = cddp_optim_create(out, f->ddp, opt);
    if (st == CDDP_OK)
        f->optim = *out;
    return st;
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
    bool captured = false;

    if (st == CDDP_OK && f->ddp->sharded)
        st = cdi_fail(&err, CDDP_E_STATE,
                      "cddp_fsdp_end_step: there is an optimizer (cddp_optim_create_sharded): end "
                      "the step with cddp_optim_step");
    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    st = cdi_step_finish_captured(f->ddp, complete_shares, NULL, &captured);
    return captured || st != CDDP_OK ? st : cdi_step_finish(f->ddp, complete_shares, NULL);
}

cddp_status cddp_fsdp_grad_norm(cddp_fsdp *f, double norm_type, double *norm)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = fsdp_check("cddp_fsdp_grad_norm", f, 0, &err);

    CDI_FLOAT_FENCE(norm_type);
    if (st == CDDP_OK && norm == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_fsdp_grad_norm: norm must not be NULL");
    return st == CDDP_OK ? cddp_ddp_grad_norm(f->ddp, norm_type, norm) : cdi_last_error_set(&err);
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
        size_t n = f->unit[u].first + i;
        struct cdi_shard own = cdi_shard_one(&d->plan, n, cdi_comm_world(d->comm)->rank);
        cddp_fsdp_shard_info full = {.size = sizeof full, .begin = own.lo, .count = own.count};

        if (own.count > 0) {
            full.param = (char *)d->params[n].data + own.lo * cddp_dtype_size(d->params[n].dtype);
            full.grad = cdi_ddp_is_frozen(d, n)
                            ? NULL
                            : (char *)cdi_arena_grad(d, n) + own.lo * cddp_dtype_size(d->params[n].grad_dtype);
        }
        cdi_sized_put(info, &full, sizeof full);
    }
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

size_t cddp_fsdp_bytes(const cddp_fsdp *f)
{
    return f == NULL ? 0 : cdi_arena_share_bytes(f->ddp) + f->region->bytes;
}
