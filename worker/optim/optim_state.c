/* SPDX-License-Identifier: Apache-2.0 */
/* Primitives that the optimizer's other files share. */
#include "worker/optim/optim.h"

#include "worker/reducer/state/used.h"

cddp_status cdi_optim_check(const char *function, const cddp_optim *o, struct cdi_error *err)
{
    if (o == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: optim must not be NULL", function);
    if (o->ddp == NULL)
        return cdi_fail(err, CDDP_E_STATE,
                        "%s: this optimizer's model was destroyed: only cddp_optim_destroy may be called now",
                        function);
    return cdi_comm_own(function, o->ddp->comm, err);
}

bool cdi_optim_is_idle(const cddp_optim *o, size_t i)
{
    return o->own[i].is_frozen != 0 || cdi_ddp_is_tied(o->ddp, i) || cdi_used_nowhere_tied(o->ddp, i);
}

bool cdi_optim_has_wide_grad(const cddp_param *p)
{
    return p->grad_dtype != p->dtype;
}

bool cdi_optim_exchanges(const cddp_optim *o)
{
    return cdi_comm_world(o->ddp->comm)->size > 1 && !cdi_ddp_is_divided(o->ddp);
}

bool cdi_optim_bucket_has_untied(const cddp_optim *o, size_t bucket)
{
    return o->ddp->flight[bucket].n_tied < o->ddp->plan.b[bucket].n_grads;
}

cddp_status cdi_optim_exchange(cddp_optim *o, size_t bucket)
{
    cddp_ddp *d = o->ddp;
    const struct cdi_bucket *b = &d->plan.b[bucket];
    size_t part = b->room / d->plan.parts;
    char *at = (char *)d->region->base + b->offset;
    struct cdi_coll op = {
        .kind = CDI_ALL_GATHER,
        .in = at + part * (size_t)cdi_comm_world(d->comm)->rank,
        .out = at,
        .count = part / cddp_dtype_size(b->dtype),
        .dtype = b->dtype,
        .region = d->region,
        .bucket = (int)bucket,
        .name_bucket = d->ops->on_device ? NULL : cdi_ddp_name_bucket,
        .ddp = d,
        .timed = cdi_ddp_times_step(d, d->step),
        .lazy = bucket + 1 == d->plan.n, /* the only one that is waited for at once */
        .more = d->ops->on_device && d->flight[bucket].more && bucket + 1 < d->plan.n &&
                cdi_optim_bucket_has_untied(o, bucket + 1),
        .times = d->stats != NULL && !d->ops->on_device ? &d->flight[bucket].exchange : NULL,
    };
    cddp_status st = cdi_ddp_enqueue(d, &op, &o->tickets[bucket]);

    d->flight[bucket].exchanged = o->tickets[bucket];
    return st;
}
