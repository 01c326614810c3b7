/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers: the part of a model's state that gradients do not update, such as running statistics. Each step may begin
 * with copying one rank's buffers to all: rank 0's, or with CDDP_DDP_JOIN, as in PyTorch, those of the highest rank
 * that still trains.
 */
#include "worker/reducer/grads/buffers.h"

#include "common/float_state.h"
#include "worker/reducer/state/captured.h"
#include "worker/reducer/state/replicate.h"

#include <stdlib.h>

/* Finds the rank whose buffers are copied in this step; -1: no rank trains any more. */
static cddp_status find_root(cddp_ddp *d, bool trains, int *root, struct cdi_error *err)
{
    int size = cdi_comm_world(d->comm)->size;
    int32_t mine = trains ? cdi_comm_world(d->comm)->rank : -1, *all;
    cddp_status st;

    *root = 0;
    if ((d->flags & CDDP_DDP_JOIN) == 0)
        return CDDP_OK;
    all = calloc((size_t)size, sizeof *all);
    if (all == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d ranks", size);
    st = cdi_ddp_all_gather(d, d->comm, &mine, all, 1, CDDP_INT32, err);
    *root = -1;
    for (int r = 0; r < size; r++)
        *root = all[r] > *root ? all[r] : *root;
    free(all);
    return st;
}

cddp_status cdi_buffers_sync(cddp_ddp *d, bool trains)
{
    struct cdi_error err;
    cddp_status st;
    int root;

    if (d->n_buffers == 0)
        return CDDP_OK;
    d->synced = true;
    (void)pthread_mutex_unlock(&d->lock);
    st = find_root(d, trains, &root, &err);
    if (st == CDDP_OK && root >= 0)
        st = cdi_replicate(d, d->slices + d->n_params, d->n_buffers, root, false, &err);
    (void)pthread_mutex_lock(&d->lock);
    if (st == CDDP_OK)
        return st;
    return st == CDDP_E_NOMEM ? cdi_ddp_fail_misuse(d, &err)
                              : cdi_ddp_set_error(d, &err); /* peers wait for a rank that has no memory */
}

cddp_status cdi_buffers_check(cddp_ddp *d)
{
    struct cdi_error err;

    if (d->n_buffers == 0 || d->synced || (d->flags & CDDP_DDP_JOIN) == 0)
        return CDDP_OK;
    (void)cdi_fail(&err, CDDP_E_STATE,
                   "step %llu began without cddp_ddp_sync_buffers: with CDDP_DDP_JOIN every step begins with it, since "
                   "ranks without samples take part",
                   (unsigned long long)d->step);
    return cdi_ddp_fail_misuse(d, &err);
}

/* Copies the buffers now, with the lock held. */
static cddp_status sync_now(cddp_ddp *d, struct cdi_error *err)
{
    const char *wrong = NULL;

    if (d->sticky.status == CDDP_OK && d->begun)
        wrong = "was called in the middle of a step: call it before the first gradient";
    else if (d->sticky.status == CDDP_OK && d->synced && (d->flags & CDDP_DDP_JOIN) != 0)
        wrong = "was called twice in a step: with CDDP_DDP_JOIN call it once";
    if (wrong != NULL) {
        (void)cdi_fail(err, CDDP_E_STATE, "cddp_ddp_sync_buffers %s (step %llu)", wrong, (unsigned long long)d->step);
        (void)cdi_ddp_fail_misuse(d, err);
    }
    if (d->sticky.status == CDDP_OK)
        (void)cdi_buffers_sync(d, true);
    *err = d->sticky;
    return err->status;
}

cddp_status cddp_ddp_sync_buffers(cddp_ddp *ddp)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = cdi_ddp_check("cddp_ddp_sync_buffers", ddp, &err);

    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&ddp->lock);
        st = cdi_captured_refuse(ddp, "cddp_ddp_sync_buffers", &err);
        if (st == CDDP_OK)
            st = sync_now(ddp, &err);
        (void)pthread_mutex_unlock(&ddp->lock);
    }
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
