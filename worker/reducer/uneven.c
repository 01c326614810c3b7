/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks with different numbers of steps. Each step's first bucket has an additional element (active_ranks.h), which is
 * 1 on a rank that trains. A rank whose samples are used up continues in cddp_ddp_join with zeros. So it takes part in
 * the reductions of the others, until that element shows that no rank trains any more. It costs no separate collective.
 */
#include "worker/reducer/uneven.h"

#include "worker/reducer/grads/buffers.h"
#include "worker/reducer/grads/compress.h"
#include "worker/reducer/launch.h"
#include "worker/reducer/layout/active_ranks.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/weight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the type of element n_params of the plan. */
static cddp_dtype flag_dtype(const cddp_ddp *d)
{
    return d->plan.grads[d->n_params].dtype;
}

cddp_status cdi_uneven_init(cddp_ddp *d, struct cdi_error *err)
{
    const struct cdi_world *world = cdi_comm_world(d->comm);
    size_t bytes;
    cddp_status st = cdi_weight_init(d, err);

    if (st != CDDP_OK || (d->flags & CDDP_DDP_JOIN) == 0)
        return st;
    bytes = d->plan.grads[d->n_params].bytes;
    d->active_elements = calloc(1, bytes);
    if (d->active_elements == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d ranks", world->size);
    st = d->ops->alloc(d->b, bytes, &d->zero, err);
    if (st == CDDP_OK)
        st = d->ops->copy(d->b, d->zero, d->active_elements, bytes, err);
    if (st == CDDP_OK)
        st = d->ops->alloc(d->b, bytes, &d->one, err);
    cdi_active_ranks_put(flag_dtype(d), cdi_compress_narrowest(d, flag_dtype(d)), world->size, world->rank,
                         d->active_elements);
    return st == CDDP_OK ? d->ops->copy(d->b, d->one, d->active_elements, bytes, err) : st;
}

void cdi_uneven_release(cddp_ddp *d)
{
    cdi_weight_release(d);
    if (d->one != NULL)
        d->ops->release(d->b, d->one);
    if (d->zero != NULL)
        d->ops->release(d->b, d->zero);
    free(d->active_elements);
}

cddp_status cdi_uneven_begin(cddp_ddp *d, bool trains)
{
    struct cdi_slice flag = {.data = trains ? d->one : d->zero};
    cddp_status st = cdi_weight_begin(d, trains);
    struct cdi_error err;

    if (st != CDDP_OK || (d->flags & CDDP_DDP_JOIN) == 0)
        return st;
    if (cdi_buffers_check(d) != CDDP_OK)
        return d->sticky.status;
    flag.bytes = d->plan.grads[d->n_params].bytes;
    if (d->ops->pack(d->b, cdi_arena_grad(d, d->n_params), &flag, 1, &err) != CDDP_OK)
        return cdi_ddp_set_error(d, &err);
    (void)cdi_bucket_claim(&d->plan, d->n_params);
    return cdi_launch_count_down(d, d->n_params);
}

cddp_status cdi_uneven_count(cddp_ddp *d, int *active, struct cdi_error *err)
{
    int size = cdi_comm_world(d->comm)->size;
    cddp_status st;

    if (d->weight.all != NULL) { /* the element was multiplied like the gradients of its bucket */
        *active = d->weight.active;
        return CDDP_OK;
    }
    st = d->ops->on_device ? d->ops->join(d->b, d->enqueued, err) : CDDP_OK;
    if (st == CDDP_OK)
        st = d->ops->copy(d->b, d->active_elements, cdi_arena_grad(d, d->n_params), d->plan.grads[d->n_params].bytes,
                          err);
    if (st == CDDP_OK)
        *active = cdi_active_ranks_get(flag_dtype(d), cdi_compress_narrowest(d, flag_dtype(d)), size,
                                       (d->flags & CDDP_DDP_SUM) != 0 ? 1 : size, d->active_elements);
    return st;
}

/*
 * Finds out, with the lock held, which rank had no samples in a step in which others trained. All ranks call it in the
 * same step.
 */
static cddp_status ended_early(cddp_ddp *d, int active, struct cdi_error *err)
{
    int size = cdi_comm_world(d->comm)->size, first = 0;
    int32_t ended = d->shadow, *all = calloc((size_t)size, sizeof *all);
    char more[32] = "";
    cddp_status st;

    if (all == NULL) {
        (void)cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d ranks", size);
        return cdi_ddp_fail_misuse(d, err);
    }
    (void)pthread_mutex_unlock(&d->lock);
    st = cdi_ddp_all_gather(d, d->comm, &ended, all, 1, CDDP_INT32, err);
    (void)pthread_mutex_lock(&d->lock);
    while (first < size - 1 && all[first] == 0)
        first++;
    free(all);
    if (st != CDDP_OK)
        return st;
    if (size - active > 1)
        (void)snprintf(more, sizeof more, " (and %d more)", size - active - 1);
    return cdi_fail(err, CDDP_E_STATE,
                    "%s%s had no samples left in step %llu, in which %d of %d ranks trained: with "
                    "CDDP_DDP_JOIN_STRICT all ranks need the same number of steps",
                    cdi_comm_who(d->comm, first).text, more, (unsigned long long)d->step, active, size);
}

cddp_status cdi_uneven_complete(cddp_ddp *d)
{
    bool strict = (d->flags & CDDP_DDP_JOIN_STRICT) != 0;
    bool scales = (d->flags & CDDP_DDP_JOIN_ACTIVE) != 0 && !d->shadow && !d->weight.differ;
    int size = cdi_comm_world(d->comm)->size, active = size;
    cddp_status st = CDDP_OK;
    struct cdi_error err;

    if (!strict && !scales)
        return CDDP_OK;
    st = cdi_uneven_count(d, &active, &err);
    if (st == CDDP_OK && strict && active > 0 && active < size)
        st = ended_early(d, active, &err);
    for (size_t b = 0; scales && b < d->plan.n && active < size && st == CDDP_OK; b++)
        st = d->flight[b].skipped ? CDDP_OK : cdi_arena_scale(d, b, (double)size / active, &err);
    return st == CDDP_OK ? st : cdi_ddp_set_error(d, &err);
}
