/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer's plan of buckets: made at creation, and put into rank 0's order when the first step has shown it. */
#include "worker/reducer.h"

#include <stdlib.h>
#include <string.h>

#define GROUP_BYTES ((size_t)64 << 10) /* buckets that are smaller together are started together */

/* On a device neighbours that are small together start as one: each start costs more than their work. */
static void group_small(cddp_ddp *d)
{
    size_t bytes = 0;

    for (size_t b = 0; b < d->plan.n; b++) {
        bytes += d->plan.b[b].bytes;
        d->flight[b].more = d->ops->on_device && b + 1 < d->plan.n && bytes + d->plan.b[b + 1].bytes <= GROUP_BYTES;
        if (!d->flight[b].more)
            bytes = 0;
    }
}

cddp_status cdi_ddp_plan(cddp_ddp *d, const cddp_ddp_options *opt, struct cdi_error *err)
{
    size_t n = d->n_params + ((d->flags & CDDP_DDP_JOIN) != 0);
    size_t size = (size_t)cdi_comm_world(d->comm)->size;
    bool split = (d->flags & CDDP_DDP_SPLIT) != 0;
    struct cdi_grad *grads = calloc(n, sizeof *grads);
    cddp_status status;

    if (grads == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the plan of %zu gradients", d->n_params);
    for (size_t i = 0; i < d->n_params; i++) {
        grads[i].bytes = d->params[i].count * cddp_dtype_size(d->params[i].dtype);
        grads[i].dtype = d->params[i].dtype;
    }
    if (n > d->n_params) {
        /* One element behind the last parameter, which is the first in the arena: see uneven.c. */
        grads[d->n_params].dtype = grads[d->n_params - 1].dtype;
        grads[d->n_params].bytes = cddp_dtype_size(grads[d->n_params].dtype);
    }
    status = cdi_bucket_plan_init(&d->plan, grads, n,
                                  &(struct cdi_bucket_caps){.first = opt->first_bucket_bytes,
                                                            .cap = opt->bucket_bytes,
                                                            .last = opt->last_bucket_bytes,
                                                            .split = split,
                                                            .parts = split ? 1 : size},
                                  err);
    if (status != CDDP_OK) {
        free(grads);
        return status;
    }
    d->flight = calloc(d->plan.n, sizeof *d->flight);
    if (d->flight == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu buckets", d->plan.n);
    group_small(d);
    if (cdi_comm_world(d->comm)->size > 1 && d->plan.n > 1 && (d->flags & CDDP_DDP_FIND_UNUSED) == 0) {
        d->order = calloc(d->n_params, sizeof *d->order);
        if (d->order == NULL)
            return cdi_fail(err, CDDP_E_NOMEM, "no memory for the order of %zu gradients", d->n_params);
    }
    return CDDP_OK;
}

void cdi_ddp_note_order(cddp_ddp *d, size_t i)
{
    if (d->order != NULL && d->step == 0 && d->n_ordered < d->n_params)
        d->order[d->n_ordered++] = (int32_t)i;
}

/* Buckets are launched in the order in which rank 0's first step made them, from the third step on. */
static cddp_status adopt_order(cddp_ddp *d)
{
    /* One more than there are: no size that calloc may answer with NULL. */
    struct cdi_ddp_flight *moved = calloc(d->plan.n + 1, sizeof *moved);
    size_t *to = calloc(d->plan.n + 1, sizeof *to);
    cddp_status status = CDDP_OK;
    struct cdi_error err;

    if (moved == NULL || to == NULL)
        status = cdi_fail(&err, CDDP_E_NOMEM, "no memory for the order of %zu buckets", d->plan.n);
    if (status == CDDP_OK)
        status = cdi_bucket_reorder(&d->plan, d->order, d->n_params, to, &err);
    for (size_t b = 0; b < d->plan.n && status == CDDP_OK; b++)
        moved[to[b]] = d->flight[b];
    if (status == CDDP_OK) {
        memcpy(d->flight, moved, d->plan.n * sizeof *moved);
        group_small(d);
    }
    free(moved);
    free(to);
    return status == CDDP_OK ? status : cdi_ddp_misused(d, &err); /* the others do have the order */
}

/* Rank 0's order is told to all while the second step runs. */
cddp_status cdi_ddp_settle_order(cddp_ddp *d)
{
    struct cdi_op tell = {.kind = CDI_BROADCAST,
                          .in = d->order,
                          .out = d->order,
                          .count = d->n_params,
                          .dtype = CDDP_INT32,
                          .bucket = -1,
                          .lazy = true};
    cddp_status status;
    struct cdi_error err;

    if (d->order == NULL)
        return CDDP_OK;
    if (d->step == 1) {
        if (d->ops->enqueue(d->b, &tell, &d->order_ticket, &err) != CDDP_OK)
            return cdi_ddp_stick(d, &err);
        d->enqueued = d->order_ticket;
        return CDDP_OK;
    }
    if (d->ops->join(d->b, d->order_ticket, &err) != CDDP_OK)
        return cdi_ddp_stick(d, &err);
    status = adopt_order(d);
    free(d->order);
    d->order = NULL;
    return status;
}
