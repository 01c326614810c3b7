/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sharded model in checkpoints: each rank has its elements of each parameter. In the file a parameter is an item of
 * memory, as that of a program that has all of it.
 */
#include "worker/checkpoint/item.h"
#include "worker/fsdp/fsdp.h"
#include "worker/optim/optim.h"
#include "worker/reducer/layout/shard.h"

#include <stdio.h>

/* Checks that the model belongs to the communicator, and is between two steps. */
static cddp_status fsdp_check_item(struct cdi_state *s, struct cdi_error *err)
{
    cddp_fsdp *f = s->object;
    cddp_ddp *d = f->ddp;
    cddp_status st;

    if (d->comm != s->comm)
        return cdi_fail(err, CDDP_E_INVALID, "this sharded model belongs to another communicator");
    (void)pthread_mutex_lock(&d->lock);
    if (d->held_by != NULL)
        f->optim->is_loaded = false; /* unless it is an item, too */
    st = d->sticky.status;
    if (st != CDDP_OK)
        *err = d->sticky;
    else if (d->begun)
        st = cdi_fail(err, CDDP_E_STATE, "the sharded model is in the middle of step %llu: end it before",
                      (unsigned long long)d->step);
    (void)pthread_mutex_unlock(&d->lock);
    return st;
}

/* A load replaces the parameters that units have gathered. */
static cddp_status check_released(const cddp_fsdp *f, struct cdi_error *err)
{
    for (size_t u = 0; u < f->n_units; u++)
        if (f->pool.unit[u].users > 0)
            return cdi_fail(err, CDDP_E_STATE,
                            "unit %zu '%.200s' is held, and its parameters would be old: call cddp_fsdp_release before",
                            u, f->unit[u].name);
    return CDDP_OK;
}

static cddp_status fsdp_pieces(struct cdi_state *s, struct cdi_checkpoint_file *file, struct cdi_pieces *p,
                               struct cdi_error *err)
{
    cddp_fsdp *f = s->object;
    cddp_ddp *d = f->ddp;
    int rank = cddp_rank(s->comm);
    cddp_status st = file != NULL ? check_released(f, err) : CDDP_OK;

    if (st == CDDP_OK && d->ops->on_device) /* the last update may be on its way there */
        st = cdi_ddp_follow(d, d->stream, err);
    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++) {
        size_t size = cddp_dtype_size(d->params[i].dtype);
        const struct cdi_shard own = cdi_shard_one(&d->plan, i, rank);
        cddp_checkpoint_item piece = {.size = sizeof piece, .bytes = own.count * size, .kind = CDDP_ITEM_MEMORY};
        char prefix[256]; /* a name has 200 bytes at most */

        (void)snprintf(prefix, sizeof prefix, "%.200s%s", s->name, *s->name != '\0' ? "." : "");
        piece.name = cdi_pieces_name(p, prefix, d->params[i].name, err);
        if (own.count > 0)
            piece.data = (char *)d->params[i].data + own.lo * size;
        st = piece.name == NULL
                 ? err->status
                 : cdi_pieces_add(p, &piece, (struct cdi_range){d->params[i].count * size, own.lo * size}, err);
    }
    return st;
}

static cddp_status fsdp_loaded(struct cdi_state *s, struct cdi_error *err)
{
    cddp_fsdp *f = s->object;
    cddp_status st;

    (void)pthread_mutex_lock(&f->ddp->lock);
    f->step = UINT64_MAX; /* the next gather finds all whole parameters old */
    st = f->ddp->held_by != NULL ? cdi_optim_follow_params(f->optim, err) : CDDP_OK;
    (void)pthread_mutex_unlock(&f->ddp->lock);
    return st;
}

static uint32_t fsdp_history(const struct cdi_state *s)
{
    const cddp_fsdp *f = s->object;

    return f->ddp->steps;
}

const struct cdi_item_ops cdi_fsdp_item_ops = {
    .check = fsdp_check_item, .pieces = fsdp_pieces, .loaded = fsdp_loaded, .history = fsdp_history};
