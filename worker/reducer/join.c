/* SPDX-License-Identifier: Apache-2.0 */
/* cddp_ddp_join: a rank whose samples are used up takes part in the steps of the others. */
#include "common/float_state.h"
#include "worker/reducer/grads/buffers.h"
#include "worker/reducer/launch.h"
#include "worker/reducer/nan_check.h"
#include "worker/reducer/plan.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/captured.h"
#include "worker/reducer/state/replicate.h"
#include "worker/reducer/step.h"
#include "worker/reducer/uneven.h"
#include "worker/reducer/unused.h"

#include <stdlib.h>

/* Takes part in one step of the others with zeros. With the lock held. */
static cddp_status shadow_step(cddp_ddp *d, int *active)
{
    cddp_status st = cdi_buffers_sync(d, false);
    struct cdi_error err, bad;

    if (st == CDDP_OK)
        st = cdi_plan_sort_idle(d);
    if (st == CDDP_OK)
        st = cdi_uneven_begin(d, false);
    if (st == CDDP_OK)
        st = cdi_frozen_begin(d);
    for (size_t i = d->n_params; i-- > 0 && st == CDDP_OK && d->unused.missing == NULL;) {
        if (cdi_ddp_is_frozen(d, i))
            continue;
        if (cdi_unused_zero(d, i, &err) != CDDP_OK)
            return cdi_ddp_fail_misuse(d, &err);
        (void)cdi_bucket_claim(&d->plan, i);
        st = cdi_launch_count_down(d, i);
    }
    if (st == CDDP_OK)
        st = cdi_unused_fill(d);
    if (st == CDDP_OK)
        st = cdi_nan_send(d);
    if (st == CDDP_OK)
        st = cdi_step_check(d, &bad); /* the ranks that train return it; this one goes on with them */
    if (st == CDDP_OK)
        st = cdi_step_complete(d);
    if (st == CDDP_OK && cdi_uneven_count(d, active, &err) != CDDP_OK)
        st = cdi_ddp_set_error(d, &err);
    if (st == CDDP_OK)
        st = cdi_step_next(d);
    return st;
}

/*
 * Copies the model from the rank that trained longest, and has the highest number, to all. If all trained equally long,
 * they have the same parameters already, but different buffers, from different last steps.
 */
static cddp_status share_model(cddp_ddp *d, uint64_t trained, struct cdi_error *err)
{
    int size = cdi_comm_world(d->comm)->size, last = 0;
    uint64_t *all = calloc((size_t)size, sizeof *all), least = UINT64_MAX;
    cddp_status st;

    if (all == NULL) {
        (void)cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d ranks", size);
        (void)pthread_mutex_lock(&d->lock);
        st = cdi_ddp_fail_misuse(d, err); /* the others wait for this rank */
        (void)pthread_mutex_unlock(&d->lock);
        return st;
    }
    st = cdi_ddp_all_gather(d, d->comm, &trained, all, 1, CDDP_UINT64, err);
    for (int r = 0; r < size; r++) {
        last = all[r] >= all[last] ? r : last;
        least = all[r] < least ? all[r] : least;
    }
    if (st == CDDP_OK && all[last] != least)
        st = cdi_replicate(d, d->slices, d->n_params + d->n_buffers, last, true, err);
    else if (st == CDDP_OK)
        st = cdi_replicate(d, d->slices + d->n_params, d->n_buffers, last, true, err);
    free(all);
    return st;
}

static cddp_status join_others(cddp_ddp *d, struct cdi_error *err)
{
    uint64_t trained;
    cddp_status st;
    int active = 1;

    (void)pthread_mutex_lock(&d->lock);
    trained = d->step;
    st = cdi_captured_refuse(d, "cddp_ddp_join", err);
    if (st == CDDP_OK && d->sticky.status == CDDP_OK && d->begun) /* the step can still end */
        st = cdi_fail(err, CDDP_E_STATE, "cddp_ddp_join was called in the middle of step %llu: call %s first",
                      (unsigned long long)d->step, d->sharded ? "cddp_optim_step" : "cddp_ddp_wait");
    if (st != CDDP_OK) {
        (void)pthread_mutex_unlock(&d->lock);
        return st;
    }
    st = d->sticky.status;
    d->shadow = true;
    while (st == CDDP_OK && active > 0)
        st = shadow_step(d, &active);
    d->shadow = false;
    if (st == CDDP_OK && d->ops->on_device && cdi_ddp_stream_wait(d, 0, err) != CDDP_OK)
        st = cdi_ddp_set_error(d, err);
    if (st ==
        CDDP_E_UNSUPPORTED) /* a thread of the program captures the stream; the others must not wait for this rank */
        (void)cdi_ddp_fail_misuse(d, &d->sticky);
    if (st != CDDP_OK)
        *err = d->sticky;
    (void)pthread_mutex_unlock(&d->lock);
    return st == CDDP_OK ? share_model(d, trained, err) : st;
}

cddp_status cddp_ddp_join(cddp_ddp *ddp)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = cdi_ddp_check("cddp_ddp_join", ddp, &err);

    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    if ((ddp->flags & CDDP_DDP_JOIN) == 0)
        st = cdi_fail(&err, CDDP_E_STATE, "cddp_ddp_join: create the reducer with CDDP_DDP_JOIN on every rank");
    else
        st = join_others(ddp, &err);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
