/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/state/weight.h"

#include "common/float_state.h"
#include "worker/reducer/state/arena.h"

#include <math.h>
#include <stdlib.h>

/* What a rank sends that has set no weight, or has no samples left. */
#define UNSET (-1.0)
#define JOINED (-2.0)

cddp_status cdi_weight_init(cddp_ddp *d, struct cdi_error *err)
{
    size_t size = (size_t)cdi_comm_world(d->comm)->size;

    if ((d->flags & CDDP_DDP_WEIGHTED) == 0)
        return CDDP_OK;
    d->weight.mine = UNSET;
    d->weight.all = calloc(size, sizeof *d->weight.all);
    return d->weight.all != NULL ? CDDP_OK : cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu weights", size);
}

void cdi_weight_release(cddp_ddp *d)
{
    free(d->weight.all);
}

cddp_status cdi_weight_begin(cddp_ddp *d, bool trains)
{
    struct cdi_ddp_weight *w = &d->weight;
    const struct cdi_coll op = {.kind = CDI_ALL_GATHER,
                                .in = &w->mine,
                                .out = w->all,
                                .count = 1,
                                .dtype = CDDP_FLOAT64,
                                .bucket = -1,
                                .asked = CDI_API_WEIGHTS,
                                .lazy = true,
                                .grace = cdi_comm_world(d->comm)->size > 1};

    if (w->all == NULL)
        return CDDP_OK;
    if (!trains)
        w->mine = JOINED;
    w->pending = true;
    return cdi_ddp_enqueue(d, &op, &w->ticket);
}

/* Computes this rank's share from the weights of all ranks, in the same order on each. */
static void settle(cddp_ddp *d)
{
    struct cdi_ddp_weight *w = &d->weight;
    int size = cdi_comm_world(d->comm)->size;
    double first = 0, largest = 0, sum = 0, mine = w->mine < 0 ? 1 : w->mine;
    bool set = false, equal = true;

    w->active = 0;
    for (int r = 0; r < size; r++) {
        bool joined = w->all[r] == JOINED;

        set |= w->all[r] >= 0;
        w->all[r] = w->all[r] == UNSET ? 1 : joined ? 0 : w->all[r];
        if (joined)
            continue;
        first = w->active++ == 0 ? w->all[r] : first;
        equal &= w->all[r] == first;
        largest = w->all[r] > largest ? w->all[r] : largest;
    }
    for (int r = 0; r < size && largest > 0; r++)
        sum += w->all[r] / largest; /* relative to the largest, so that no sum overflows */
    w->none = set && largest == 0;
    /* If the mean is over all ranks, or over those that train, equal weights change nothing. */
    w->differ = set && (!equal || w->none || (w->active < size && (d->flags & CDDP_DDP_JOIN_ACTIVE) == 0));
    w->share = largest > 0 ? mine / largest / sum : 0;
    if ((d->flags & CDDP_DDP_SUM) != 0 || (w->differ && !cdi_weight_sums(d)))
        w->share *= size;
}

cddp_status cdi_weight_await(cddp_ddp *d)
{
    struct cdi_error err;

    if (!d->weight.pending)
        return CDDP_OK;
    if (d->ops->join(d->b, d->weight.ticket, &err) != CDDP_OK)
        return cdi_ddp_set_error(d, &err);
    d->weight.pending = false;
    settle(d);
    return CDDP_OK;
}

cddp_status cdi_weight_apply(cddp_ddp *d, size_t b, bool copied, struct cdi_error *err)
{
    /* A product with 0 may be NaN: a rank without samples often has such gradients. */
    if (!d->weight.differ || (copied && d->weight.share != 0))
        return CDDP_OK;
    return cdi_arena_scale(d, b, d->weight.share, err);
}

void cdi_weight_check(const cddp_ddp *d, struct cdi_error *bad)
{
    if (d->weight.none)
        (void)cdi_fail(bad, CDDP_E_INVALID,
                       "every rank that trained had weight 0 in step %llu, so there is no mean: leave such a step out, "
                       "or give a rank with samples their number (cddp_ddp_set_weight)",
                       (unsigned long long)d->step);
}

void cdi_weight_next_step(cddp_ddp *d)
{
    d->weight.mine = UNSET;
    d->weight.differ = d->weight.none = false;
}

static cddp_status set_weight(cddp_ddp *d, double weight, struct cdi_error *err)
{
    if (d->sticky.status != CDDP_OK) {
        *err = d->sticky;
        return err->status;
    }
    if (d->begun)
        return cdi_fail(err, CDDP_E_STATE,
                        "cddp_ddp_set_weight was called in the middle of step %llu: call it before the step's first "
                        "cddp_ddp_grad_ready",
                        (unsigned long long)d->step);
    d->weight.mine = weight;
    return CDDP_OK;
}

cddp_status cddp_ddp_set_weight(cddp_ddp *ddp, double weight)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = cdi_ddp_check("cddp_ddp_set_weight", ddp, &err);

    CDI_FLOAT_FENCE(weight);
    if (st == CDDP_OK && (ddp->flags & CDDP_DDP_WEIGHTED) == 0)
        st = cdi_fail(&err, CDDP_E_STATE,
                      "cddp_ddp_set_weight: create the reducer with CDDP_DDP_WEIGHTED on every rank");
    else if (st == CDDP_OK && !(weight >= 0 && isfinite(weight)))
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_ddp_set_weight: the weight is %g: it must be finite, and 0 or more",
                      weight);
    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&ddp->lock);
        st = set_weight(ddp, weight, &err);
        (void)pthread_mutex_unlock(&ddp->lock);
    }
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
