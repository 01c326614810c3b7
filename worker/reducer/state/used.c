/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/state/used.h"

bool cdi_used_stays_on_device(const cddp_ddp *d)
{
    return d->ops->on_device && !d->sharded && d->powersgd == NULL && (d->flags & CDDP_DDP_SKIP_UNUSED) == 0 &&
           (!cdi_ddp_is_static(d) || !d->unused.known);
}

cddp_status cdi_used_await(cddp_ddp *d, struct cdi_error *err)
{
    const struct cdi_ddp_unused *u = &d->unused;

    return u->missing != NULL && u->n_missing > 0 && !u->known ? d->ops->join(d->b, u->map_ticket, err) : CDDP_OK;
}

bool cdi_used_nowhere(const cddp_ddp *d, size_t i)
{
    return cdi_ddp_is_frozen(d, i) ||
           (d->unused.missing != NULL && !cdi_used_stays_on_device(d) && d->unused.missing[i] && !d->unused.used[i]);
}

bool cdi_used_nowhere_tied(const cddp_ddp *d, size_t i)
{
    bool nowhere = cdi_used_nowhere(d, i);

    for (size_t k = i; nowhere && d->tied.first != NULL && (k = d->tied.next[k]) < d->n_params;)
        nowhere = cdi_used_nowhere(d, k);
    return nowhere;
}

bool cdi_used_in_bucket(const cddp_ddp *d, size_t b)
{
    bool used = false;

    for (size_t k = 0; k < d->plan.b[b].n_grads && !used; k++) {
        size_t i = cdi_bucket_grad(&d->plan, b, k);

        /* The element after the parameters (uneven.c) always is. */
        used = i >= d->n_params || (d->unused.used != NULL ? d->unused.used[i] != 0 : !cdi_ddp_is_frozen(d, i));
    }
    return used;
}
