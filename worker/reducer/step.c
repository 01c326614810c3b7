/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps of a reducer: cddp_ddp_grad_ready, cddp_ddp_wait and cddp_ddp_wait_param, and what they need. It is
 * independent of the backend.
 *
 * Threads: several may call cddp_ddp_grad_ready at once. One lock covers the plan and the sticky error. It is not held
 * while waiting for a peer in a collective of gradients, nor while a gradient is copied (but it is while one is
 * compressed).
 */
#include "worker/reducer/step.h"

#include "common/float_state.h"
#include "worker/base/nvtx.h"
#include "worker/reducer/grads/user_grads.h"
#include "worker/reducer/launch.h"
#include "worker/reducer/nan_check.h"
#include "worker/reducer/plan.h"
#include "worker/reducer/powersgd.h"
#include "worker/reducer/replicas.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/captured.h"
#include "worker/reducer/state/check.h"
#include "worker/reducer/state/debug.h"
#include "worker/reducer/state/weight.h"
#include "worker/reducer/stats.h"
#include "worker/reducer/uneven.h"
#include "worker/reducer/unused.h"

#include <stdio.h>
#include <string.h>

#define SHOWN_NAMES 8 /* missing gradients named in one message */

static cddp_status step_check(const char *function, const cddp_ddp *ddp)
{
    struct cdi_error err;
    cddp_status status = cdi_ddp_check(function, ddp, &err);

    return status == CDDP_OK ? status : cdi_last_error_set(&err);
}

void *cddp_ddp_grad(cddp_ddp *ddp, size_t i)
{
    bool over = ddp != NULL && cdi_comm_is_over(ddp->comm); /* the gradients live as long as the reducer */

    if (over ? cdi_comm_is_others("cddp_ddp_grad", ddp->comm) : step_check("cddp_ddp_grad", ddp) != CDDP_OK)
        return NULL;
    if (ddp == NULL || i >= ddp->n_params) /* NULL is an error above, too, which the analyzer does not see */
        return NULL;
    cdi_debug_asked(ddp, i);
    return ddp->params[i].grad != NULL ? ddp->params[i].grad : cdi_arena_grad(ddp, i);
}

/* Returns the function that ends a step of d, for messages. */
static const char *end_of_step(const cddp_ddp *d)
{
    return d->sharded ? "cddp_optim_step" : cdi_ddp_is_divided(d) ? "cddp_fsdp_end_step" : "cddp_ddp_wait";
}

/*
 * Claims gradient i, with the lock held. If *now is set, the caller alone must copy it into the arena and count it
 * down.
 */
static cddp_status step_claim(cddp_ddp *d, size_t i, bool *now)
{
    cddp_status status = d->sticky.status;
    struct cdi_error err;

    if (status == CDDP_OK && d->ops->on_device && d->ops->health(d->b, &err) != CDDP_OK)
        status = cdi_ddp_set_error(d, &err); /* an earlier failure that nobody has waited for */
    if (status == CDDP_OK && i >= d->n_params) {
        (void)cdi_fail(&err, CDDP_E_INVALID, "there is no parameter %zu, only 0 to %zu", i, d->n_params - 1);
        return cdi_ddp_fail_misuse(d, &err);
    }
    if (status == CDDP_OK && !d->begun) {
        d->begun = true;
        cdi_stats_first(d);
        cdi_plan_trial_begin(d);
        status = cdi_plan_sort_idle(d);
        if (status == CDDP_OK)
            status = cdi_uneven_begin(d, true);
        if (status == CDDP_OK)
            status = cdi_frozen_begin(d);
    }
    if (status == CDDP_OK && cdi_ddp_is_frozen(d, i)) {
        (void)cdi_fail(
            &err, CDDP_E_STATE,
            "the gradient of parameter %zu '%.200s' was reported ready, but the parameter is frozen: thaw it with "
            "cddp_ddp_set_frozen before the step",
            i, d->params[i].name);
        return cdi_ddp_fail_misuse(d, &err);
    }
    if (status == CDDP_OK)
        status = cdi_unused_on_ready(d, i, now);
    if (status == CDDP_OK && *now && !cdi_bucket_claim(&d->plan, i)) {
        (void)cdi_fail(&err, CDDP_E_STATE,
                       "the gradient of parameter %zu '%.200s' was ready already in this step: call "
                       "cddp_ddp_grad_ready once per parameter and step, then %s",
                       i, d->params[i].name, end_of_step(d));
        return cdi_ddp_fail_misuse(d, &err);
    }
    return status;
}

/* Records, on a device, that gradient i is made on `stream`. */
static cddp_status note_stream(cddp_ddp *d, size_t i, void *stream)
{
    struct cdi_ddp_flight *f = &d->flight[d->plan.grads[i].bucket];
    struct cdi_error err;

    for (int s = 0; s < f->n_streams; s++)
        if (f->stream[s] == stream)
            return CDDP_OK;
    if (f->n_streams < CDI_DDP_STREAMS) {
        f->stream[f->n_streams++] = stream;
        return CDDP_OK;
    }
    return cdi_ddp_follow(d, stream, &err) == CDDP_OK ? CDDP_OK : cdi_ddp_set_error(d, &err);
}

cddp_status cddp_ddp_grad_ready(cddp_ddp *ddp, size_t i)
{
    return cddp_ddp_grad_ready_on(ddp, i, ddp != NULL ? ddp->stream : NULL);
}

/*
 * Counts gradient i in a capture, with the lock held. Misuse is reported and breaks nothing: no peer waits for a
 * capture.
 */
static cddp_status ready_in_capture(cddp_ddp *d, size_t i, void *stream, struct cdi_error *err)
{
    cddp_status status;

    if (i >= d->n_params)
        return cdi_fail(err, CDDP_E_INVALID, "there is no parameter %zu, only 0 to %zu", i, d->n_params - 1);
    if (!cdi_bucket_claim(&d->plan, i))
        return cdi_fail(err, CDDP_E_STATE,
                        "the gradient of parameter %zu '%.200s' was ready already in this captured step: call "
                        "cddp_ddp_grad_ready once per parameter and step, then cddp_ddp_wait",
                        i, d->params[i].name);
    d->begun = true;
    status = note_stream(d, i, stream);
    return status == CDDP_OK ? cdi_launch_count_down(d, i) : status;
}

/* Counts gradient i, with the lock held. */
static cddp_status step_ready(cddp_ddp *ddp, size_t i, void *stream)
{
    bool now = false;
    cddp_status status = step_claim(ddp, i, &now);

    if (status == CDDP_OK && ddp->ops->on_device) {
        cdi_stats_first_on(ddp, stream);
        status = note_stream(ddp, i, stream);
    } else if (status == CDDP_OK && now && (ddp->params[i].grad != NULL || ddp->nan != NULL)) {
        (void)pthread_mutex_unlock(&ddp->lock);
        if (ddp->params[i].grad != NULL)
            memcpy(cdi_arena_grad(ddp, i), ddp->params[i].grad, ddp->plan.grads[i].bytes);
        cdi_nan_look(ddp, i);
        (void)pthread_mutex_lock(&ddp->lock);
    }
    if (status == CDDP_OK && now) {
        cdi_debug_ready(ddp, i);
        status = cdi_launch_count_down(ddp, i);
    }
    return status;
}

cddp_status cddp_ddp_grad_ready_on(cddp_ddp *ddp, size_t i, void *stream)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    bool captured;
    cddp_status status = step_check("cddp_ddp_grad_ready", ddp);

    if (ddp == NULL || status != CDDP_OK)
        return status;
    if (cdi_ddp_check_stream(ddp, stream, &err) != CDDP_OK)
        return cdi_last_error_set(&err);
    (void)pthread_mutex_lock(&ddp->lock);
    status = cdi_captured_enter(ddp, stream, false, &captured, &err);
    if (captured) {
        status = cdi_captured_leave(ddp, stream, ready_in_capture(ddp, i, stream, &err), &err);
    } else if (status == CDDP_OK) {
        status = step_ready(ddp, i, stream);
        if (status != CDDP_OK)
            err = ddp->sticky;
    }
    if (status != CDDP_OK)
        (void)cdi_last_error_set(&err);
    (void)pthread_mutex_unlock(&ddp->lock);
    return status;
}

/* The same of divided parameters: "unit 2 'h.1' has not reported its gradients in step 7; ..." */
static cddp_status step_name_units(const cddp_ddp *d, struct cdi_error *err)
{
    char names[SHOWN_NAMES * 80 + 64] = "";
    size_t n = 0, at = 0, last = SIZE_MAX, u;

    for (size_t i = 0; i < d->n_params; i++) {
        const char *name = d->shares.unit_of(d->shares.model, i, &u);

        if (d->plan.grads[i].claimed || d->plan.grads[i].frozen || u == last)
            continue;
        last = u;
        if (n++ < SHOWN_NAMES)
            at += (size_t)snprintf(names + at, sizeof names - at, "%sunit %zu '%.48s'", n == 1 ? "" : ", ", u, name);
    }
    if (n > SHOWN_NAMES)
        (void)snprintf(names + at, sizeof names - at, " and %zu more", n - SHOWN_NAMES);
    return cdi_fail(err, CDDP_E_STATE,
                    "%s %s not reported gradients in step %llu: call cddp_fsdp_grads_ready for every unit before %s",
                    names, n == 1 ? "has" : "have", (unsigned long long)d->step, end_of_step(d));
}

/* "2 of 4 gradients are missing in step 7: 'fc1.weight', 'fc1.bias'; ..." */
static cddp_status step_name_missing(const cddp_ddp *d, struct cdi_error *err)
{
    char names[SHOWN_NAMES * 64 + 64] = "";
    size_t n = 0, at = 0, all = 0;

    if (d->shares.unit_of != NULL)
        return step_name_units(d, err);
    for (size_t i = 0; i < d->n_params; i++) {
        all += !d->plan.grads[i].frozen;
        if (d->plan.grads[i].claimed || d->plan.grads[i].frozen)
            continue;
        if (n++ < SHOWN_NAMES)
            at += (size_t)snprintf(names + at, sizeof names - at, "%s'%.48s'", n == 1 ? "" : ", ", d->params[i].name);
    }
    if (n == 0)
        return cdi_fail(err, CDDP_E_STATE,
                        "cddp_ddp_wait was called while another thread was still in cddp_ddp_grad_ready");
    if (n > SHOWN_NAMES)
        (void)snprintf(names + at, sizeof names - at, " and %zu more", n - SHOWN_NAMES);
    return cdi_fail(err, CDDP_E_STATE,
                    "%zu of %zu gradients are missing in step %llu: %s; call cddp_ddp_grad_ready for every parameter "
                    "before %s",
                    n, all, (unsigned long long)d->step, names, end_of_step(d));
}

/* Waits until the means are in the arena. On a device it does not wait, but orders the work. */
static cddp_status complete_arena(cddp_ddp *d)
{
    cddp_status status = d->ops->on_device ? CDDP_OK : cdi_ddp_join_ticket(d, d->enqueued), local = CDDP_OK;
    struct cdi_error err;

    if (status == CDDP_OK)
        status = cdi_powersgd_complete(d);
    if (status != CDDP_OK)
        return status;
    for (size_t b = 0; b < d->plan.n && local == CDDP_OK; b++)
        local = cdi_launch_finish(d, b, &err);
    if (local != CDDP_OK)
        return cdi_ddp_set_error(d, &err);
    status = cdi_uneven_complete(d);
    return status == CDDP_OK ? cdi_unused_restore(d) : status;
}

cddp_status cdi_step_complete_share(cddp_ddp *d)
{
    bool plain = d->comm_dtype == CDDP_DTYPE_NONE && d->hook.begin == NULL && d->powersgd == NULL;

    if (d->share_complete)
        return CDDP_OK;
    return plain ? cdi_unused_restore(d) : complete_arena(d);
}

cddp_status cdi_step_complete(cddp_ddp *d)
{
    cddp_status status = complete_arena(d), local = CDDP_OK;
    struct cdi_error err;

    for (size_t b = 0; d->has_own && b < d->plan.n && status == CDDP_OK && local == CDDP_OK; b++)
        local = cdi_user_grads_scatter(d, b, &err);
    if (status == CDDP_OK && local == CDDP_OK && d->ops->on_device && !d->shadow) /* which waits once, at its end */
        local = cdi_ddp_stream_wait(d, 0, &err);
    return local == CDDP_OK ? status : cdi_ddp_set_error(d, &err);
}

cddp_status cdi_step_next(cddp_ddp *d)
{
    cdi_stats_step(d);
    cdi_bucket_next_step(&d->plan);
    for (size_t b = 0; b < d->plan.n; b++)
        d->flight[b].unpacked = d->flight[b].skipped = false;
    cdi_unused_next_step(d);
    cdi_weight_next_step(d);
    d->n_copied = 0;
    d->begun = false;
    d->ended = !d->shadow;
    d->synced = false;
    d->share_complete = d->tied.folded = false;
    d->step++;
    cdi_comm_set_step(d->comm, d, d->step);
    cdi_nvtx_end(d->nvtx_range);
    d->nvtx_range = 0;
    return cdi_plan_update(d);
}

cddp_status cdi_step_close(cddp_ddp *d)
{
    cddp_status status = d->sticky.status;
    struct cdi_error err;

    if (status != CDDP_OK || d->share_complete)
        return status;
    if (!d->begun && (d->unused.missing != NULL || d->n_frozen > 0)) {
        status = cdi_plan_sort_idle(d);
        if (status == CDDP_OK)
            status = cdi_uneven_begin(d, true);
        if (status == CDDP_OK)
            status = cdi_frozen_begin(d);
    }
    if (status == CDDP_OK)
        status = cdi_unused_fill(d);
    if (status == CDDP_OK && !cdi_bucket_all_launched(&d->plan)) {
        (void)step_name_missing(d, &err);
        status = cdi_ddp_fail_misuse(d, &err);
    }
    if (status == CDDP_OK && d->across.settle != NULL)
        status = d->across.settle(d->across.arg);
    return status == CDDP_OK ? cdi_nan_send(d) : status;
}

cddp_status cdi_step_check(cddp_ddp *d, struct cdi_error *bad)
{
    cddp_status status = cdi_weight_await(d);

    bad->status = CDDP_OK;
    if (status == CDDP_OK)
        status = cdi_nan_verdict(d, bad);
    if (status == CDDP_OK && bad->status == CDDP_OK)
        status = cdi_replicas_check(d, bad);
    if (status == CDDP_OK && bad->status == CDDP_OK)
        cdi_weight_check(d, bad);
    return status;
}

/* Completes a step with bad numbers: an optimizer must not use them. */
static cddp_status complete_bad(cddp_ddp *d, cddp_status (*complete)(cddp_ddp *d, void *arg), void *arg)
{
    cddp_status status = CDDP_OK;
    struct cdi_error err;

    if (!d->sharded)
        return complete(d, arg);
    if (!d->ops->on_device)
        status = cdi_ddp_join_ticket(d, d->enqueued);
    if (status == CDDP_OK)
        status = cdi_step_complete_share(d);
    if (status == CDDP_OK && d->ops->on_device && cdi_ddp_stream_wait(d, 0, &err) != CDDP_OK)
        status = cdi_ddp_set_error(d, &err);
    return status;
}

/*
 * Rejects a second thread, with the lock held: two threads would count the step twice, on this rank alone. The first
 * one continues.
 */
static cddp_status refuse_second(const cddp_ddp *d)
{
    struct cdi_error err = d->sticky; /* also if the second one is a hook, which the first one has called */

    if (err.status == CDDP_OK)
        (void)cdi_fail(&err, CDDP_E_STATE,
                       "another thread is ending this step (cddp_ddp_wait, cddp_optim_step): one thread calls it, once "
                       "per step");
    return cdi_last_error_set(&err);
}

cddp_status cdi_step_finish(cddp_ddp *ddp, cddp_status (*complete)(cddp_ddp *d, void *arg), void *arg)
{
    struct cdi_error bad = {.status = CDDP_OK};
    cddp_status status;

    (void)pthread_mutex_lock(&ddp->lock);
    if (ddp->finishing) {
        status = refuse_second(ddp);
        (void)pthread_mutex_unlock(&ddp->lock);
        return status;
    }
    ddp->finishing = true;
    status = cdi_step_close(ddp);
    if (status == CDDP_OK)
        status = cdi_step_check(ddp, &bad);
    if (status == CDDP_OK) {
        cdi_debug_complete(ddp);
        status = bad.status == CDDP_OK ? complete(ddp, arg) : complete_bad(ddp, complete, arg);
    }
    if (status == CDDP_OK) {
        cdi_debug_completed(ddp);
        status = cdi_step_next(ddp);
    }
    if (status != CDDP_OK)
        (void)cdi_last_error_set(&ddp->sticky);
    else if (bad.status != CDDP_OK)
        status = cdi_last_error_set(&bad);
    ddp->finishing = false;
    (void)pthread_mutex_unlock(&ddp->lock);
    return status;
}

static cddp_status complete_means(cddp_ddp *d, void *arg)
{
    (void)arg;
    return cdi_step_complete(d);
}

/* Rejects a call that needs whole means: with an optimizer no rank has them. */
static cddp_status refuse_sharded(const char *function)
{
    struct cdi_error err;

    (void)cdi_fail(&err, CDDP_E_STATE,
                   "%s: this reducer has an optimizer (cddp_optim_create), which has only the mean of its share: end "
                   "the step with cddp_optim_step",
                   function);
    return cdi_last_error_set(&err);
}

cddp_status cdi_step_close_captured(const cddp_ddp *d, struct cdi_error *err)
{
    return cdi_bucket_all_launched(&d->plan) ? CDDP_OK : step_name_missing(d, err);
}

/* Ends a captured step, with the lock held. */
static cddp_status end_in_capture(cddp_ddp *d, cddp_status (*complete)(cddp_ddp *d, void *arg), void *arg,
                                  struct cdi_error *err)
{
    cddp_status status = cdi_step_close_captured(d, err);

    if (status == CDDP_OK)
        status = cdi_nan_send_captured(d, err);
    if (status == CDDP_OK)
        status = complete(d, arg);
    if (status == CDDP_OK)
        cdi_captured_forget(d);
    return status;
}

cddp_status cdi_step_finish_captured(cddp_ddp *d, cddp_status (*complete)(cddp_ddp *d, void *arg), void *arg,
                                     bool *captured)
{
    struct cdi_error err;
    cddp_status status = CDDP_OK;

    *captured = false;
    if (d->ops->capture_of == NULL)
        return CDDP_OK;
    (void)pthread_mutex_lock(&d->lock);
    if (!d->finishing)
        status = cdi_captured_enter(d, d->stream, true, captured, &err);
    if (*captured)
        status = cdi_captured_leave(d, d->stream, end_in_capture(d, complete, arg, &err), &err);
    if (status != CDDP_OK)
        (void)cdi_last_error_set(&err);
    (void)pthread_mutex_unlock(&d->lock);
    return status;
}

cddp_status cddp_ddp_wait(cddp_ddp *ddp)
{
    CDI_DEFAULT_FLOAT_STATE;
    cddp_status status = step_check("cddp_ddp_wait", ddp);
    bool captured;

    if (status != CDDP_OK)
        return status;
    if (ddp->sharded)
        return refuse_sharded("cddp_ddp_wait");
    status = cdi_step_finish_captured(ddp, complete_means, NULL, &captured);
    if (captured || status != CDDP_OK)
        return status;
    return cdi_step_finish(ddp, complete_means, NULL);
}

/* Waits for one parameter, with the lock held. */
static cddp_status wait_param(cddp_ddp *d, size_t i, struct cdi_error *err)
{
    size_t b = d->plan.grads[i].bucket, end = b + d->plan.grads[i].n_parts;
    /* On a device: further work follows the operation of the ticket. */
    bool moved = d->params[i].grad != NULL || d->flight[b].compressed || d->hook.begin != NULL;
    uint64_t step = d->step, ticket = 0;
    cddp_status status = CDDP_OK;

    d->by_param = true;
    if (cdi_ddp_is_frozen(d, i))
        return CDDP_OK;
    if ((d->flags & CDDP_DDP_JOIN_ACTIVE) != 0)
        return cdi_fail(err, CDDP_E_STATE,
                        "parameter %zu '%.200s' cannot be waited for alone: with CDDP_DDP_JOIN_ACTIVE all gradients "
                        "are scaled together, in cddp_ddp_wait",
                        i, d->params[i].name);
    if (d->powersgd != NULL)
        return cdi_fail(err, CDDP_E_STATE,
                        "parameter %zu '%.200s' cannot be waited for alone: PowerSGD completes all gradients together, "
                        "in cddp_ddp_wait",
                        i, d->params[i].name);
    if (end > d->plan.next)
        return cdi_fail(err, CDDP_E_STATE,
                        "parameter %zu '%.200s' cannot be waited for: its bucket %zu has not started, since some "
                        "gradients of it or of an earlier one are not ready",
                        i, d->params[i].name, b);
    for (size_t k = b; k < end; k++)
        ticket = d->flight[k].ticket > ticket ? d->flight[k].ticket : ticket;
    if (!d->ops->on_device && cdi_ddp_join_ticket(d, ticket) != CDDP_OK) {
        *err = d->sticky;
        return err->status;
    }
    if (d->step != step)
        return CDDP_OK; /* meanwhile another thread has waited for all of it */
    for (size_t k = b; k < end && status == CDDP_OK; k++)
        status = cdi_launch_finish(d, k, err);
    if (status == CDDP_OK)
        status = cdi_user_grads_scatter(d, b, err);
    if (status == CDDP_OK && d->ops->on_device)
        status = cdi_ddp_stream_wait(d, moved ? 0 : ticket, err);
    return status == CDDP_OK ? status : cdi_ddp_set_error(d, err);
}

cddp_status cddp_ddp_wait_param(cddp_ddp *ddp, size_t i)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    bool captured = false;
    cddp_status status = step_check("cddp_ddp_wait_param", ddp);

    if (status != CDDP_OK)
        return status;
    if (ddp->sharded)
        return refuse_sharded("cddp_ddp_wait_param");
    (void)pthread_mutex_lock(&ddp->lock);
    status = ddp->sticky.status;
    if (status != CDDP_OK)
        err = ddp->sticky;
    else if (i >= ddp->n_params)
        status = cdi_fail(&err, CDDP_E_INVALID, "there is no parameter %zu, only 0 to %zu", i, ddp->n_params - 1);
    else /* in any step: a wait is timed by events, which would end the capture of a step that is not */
        status = cdi_captured_enter(ddp, ddp->stream, true, &captured, &err);
    if (status == CDDP_OK)
        status = wait_param(ddp, i, &err);
    if (captured)
        status = cdi_captured_leave(ddp, ddp->stream, status, &err);
    if (status != CDDP_OK)
        (void)cdi_last_error_set(&err);
    (void)pthread_mutex_unlock(&ddp->lock);
    return status;
}

/* -------------------------------------------------------------------------------------------------- the rest ---- */

double cddp_ddp_grad_scale(const cddp_ddp *ddp)
{
    CDI_DEFAULT_FLOAT_STATE;
    double scale = ddp != NULL && (ddp->flags & CDDP_DDP_SUM) != 0 ? 1.0 / cdi_comm_world(ddp->comm)->size : 1.0;

    CDI_FLOAT_FENCE(scale);
    return scale;
}

void *cddp_ddp_user(const cddp_ddp *ddp, size_t i)
{
    return ddp == NULL || i >= ddp->n_params ? NULL : ddp->params[i].user;
}

size_t cddp_ddp_bucket_count(const cddp_ddp *ddp)
{
    return ddp == NULL ? 0 : ddp->plan.n;
}

size_t cddp_ddp_bucket_bytes(const cddp_ddp *ddp, size_t b)
{
    return ddp == NULL || b >= ddp->plan.n ? 0 : ddp->plan.b[b].bytes;
}
