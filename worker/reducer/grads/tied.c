/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/grads/tied.h"

#include "worker/reducer/layout/shard.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/used.h"

/* Adds the means of those that are tied to parameter i. The content for a gradient that no rank used is not one. */
static cddp_status fold_one(cddp_ddp *d, size_t i, struct cdi_error *err)
{
    const struct cdi_shard own = cdi_shard_one(&d->plan, i, cdi_comm_world(d->comm)->rank);
    const cddp_dtype dtype = d->params[i].grad_dtype;
    const size_t skip = own.lo * cddp_dtype_size(dtype);
    bool made = !cdi_used_nowhere(d, i);
    cddp_status st = CDDP_OK;

    for (size_t k = d->tied.next[i]; k < d->n_params && own.count > 0 && st == CDDP_OK; k = d->tied.next[k]) {
        /* PowerSGD's sum of a matrix and its error is this one. It also lands in k's place, which is not used again. */
        const struct cdi_lowrank_matrix sum = {.of = {.dtype = dtype, .rows = own.count, .cols = 1},
                                               .m = (char *)cdi_arena_grad(d, i) + skip,
                                               .error = (char *)cdi_arena_grad(d, k) + skip};
        const struct cdi_slice alone = {sum.error, own.count * cddp_dtype_size(dtype)};

        if (cdi_used_nowhere(d, k))
            continue;
        if (!made)
            st = d->ops->pack(d->b, sum.m, &alone, 1, err);
        else if (d->ops->on_device)
            st = d->ops->lowrank(d->b, CDI_LOWRANK_FEED, &sum, 1, 0, err);
        else
            cdi_lowrank_do(CDI_LOWRANK_FEED, &sum, 1, 0);
        made = true;
    }
    return st;
}

cddp_status cdi_tied_fold(cddp_ddp *d, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    if (d->tied.first == NULL || d->tied.folded)
        return CDDP_OK;
    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++)
        if (d->tied.first[i] == i)
            st = fold_one(d, i, err);
    d->tied.folded = st == CDDP_OK;
    return st;
}
