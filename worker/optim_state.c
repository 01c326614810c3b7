/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer's state in checkpoints. In the file it is whole, parameter by parameter, and knows nothing of ranks, so
 * that a world of another size can take it up: rank 0 collects all shares to write them, and hands them out when it has
 * read them. Its items have PyTorch's names. Where the reducer has PowerSGD, its state comes along.
 */
#include "common/cleanup.h"
#include "common/crc64.h"
#include "worker/checkpoint.h"
#include "worker/optim.h"
#include "worker/powersgd.h"

#include <stdlib.h>
#include <string.h>

#define ARRAYS (CDI_OPTIM_STATES + 1) /* those that are divided: states, and masters behind them */
#define MASTER CDI_OPTIM_STATES

/* What a checkpoint gets beside the user's items. Memory is there on rank 0 only. */
struct whole {
    uint8_t *array[ARRAYS]; /* NULL: there is no such array */
    size_t bytes[ARRAYS];
    uint8_t *share;  /* room for one rank's share of an array */
    uint64_t *steps; /* a copy: where a load fails on the user's items, those of the optimizer stay */
    uint64_t params; /* a hash of what the state is of */
    cddp_checkpoint_item items[ARRAYS + 2];
    size_t n_items;
};

static const char *name_of(const cddp_optim *o, int array)
{
    static const char *const averages[] = {"optim.exp_avg", "optim.exp_avg_sq"};

    if (array == MASTER)
        return "optim.master";
    return o->rule.kind == CDDP_OPTIM_SGD ? "optim.momentum_buffer" : averages[array];
}

static bool has(const cddp_optim *o, int array)
{
    if (array < MASTER)
        return array < cdi_optim_n_states(&o->rule);
    for (size_t i = 0; i < o->ddp->n_params; i++)
        if (cdi_shard_has_master(o->ddp->params[i].dtype))
            return true;
    return false;
}

/* Bytes of one number of parameter i in an array; 0: it has none there. */
static size_t size_in(const cddp_optim *o, int array, size_t i)
{
    cddp_dtype dtype = o->ddp->params[i].dtype;

    if (array == MASTER)
        return cdi_shard_has_master(dtype) ? sizeof(float) : 0;
    return cdi_shard_state_size(dtype);
}

static void whole_release(struct whole *w)
{
    for (int k = 0; k < ARRAYS; k++)
        free(w->array[k]);
    free(w->share);
    free(w->steps);
}

/* Of parameters in another order, or of other sizes, the arrays would be taken apart at the wrong places. */
static uint64_t hash_params(const cddp_ddp *d)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < d->n_params; i++) {
        const uint64_t of[] = {d->params[i].count, (uint64_t)d->params[i].dtype};

        hash = cdi_crc64(hash, d->params[i].name, strlen(d->params[i].name) + 1);
        hash = cdi_crc64(hash, of, sizeof of);
    }
    return hash;
}

static cddp_checkpoint_item params_item(uint64_t *hash)
{
    return (cddp_checkpoint_item){
        .size = sizeof(cddp_checkpoint_item), .name = "optim.params", .data = hash, .bytes = sizeof *hash};
}

/* Rank 0: is the newest checkpoint's state of these parameters? */
static cddp_status check_params(const cddp_ddp *d, const char *dir, struct cdi_error *err)
{
    uint64_t saved = 0;
    const cddp_checkpoint_item item = params_item(&saved);
    cddp_status st = cdi_checkpoint_peek(d->comm, dir, &item, err);

    if (st != CDDP_OK || saved == hash_params(d))
        return st;
    return cdi_fail(err, CDDP_E_MISMATCH,
                    "the state of the optimizer in '%.200s' is of parameters of other names, sizes or types, or in "
                    "another order, than this reducer's; cddp_checkpoint_load loads items without it",
                    dir);
}

static cddp_status whole_init(struct whole *w, cddp_optim *o, struct cdi_error *err)
{
    const cddp_ddp *d = o->ddp;
    size_t most = 1;

    w->steps = calloc(d->n_params, sizeof *w->steps);
    if (w->steps == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "rank 0 has no memory for the steps of %zu parameters", d->n_params);
    memcpy(w->steps, o->steps, d->n_params * sizeof *w->steps);
    w->params = hash_params(d);
    w->items[w->n_items++] = params_item(&w->params);
    w->items[w->n_items++] = (cddp_checkpoint_item){.size = sizeof(cddp_checkpoint_item),
                                                    .name = "optim.steps",
                                                    .data = w->steps,
                                                    .bytes = d->n_params * sizeof *w->steps};
    for (int k = 0; k < ARRAYS; k++) {
        if (!has(o, k))
            continue;
        for (size_t i = 0; i < d->n_params; i++)
            w->bytes[k] += d->params[i].count * size_in(o, k, i);
        w->array[k] = calloc(w->bytes[k] + 1, 1); /* no size that calloc may answer with NULL */
        if (w->array[k] == NULL)
            return cdi_fail(err, CDDP_E_NOMEM, "rank 0 has no memory for the whole state of the optimizer: %zu bytes",
                            w->bytes[k]);
        w->items[w->n_items++] = (cddp_checkpoint_item){
            .size = sizeof(cddp_checkpoint_item), .name = name_of(o, k), .data = w->array[k], .bytes = w->bytes[k]};
        most = w->bytes[k] > most ? w->bytes[k] : most;
    }
    /* No share is larger than all of an array and the padding of its stretches. */
    w->share = malloc(most + d->n_params * CDI_GRAD_ALIGN);
    return w->share != NULL ? CDDP_OK : cdi_fail(err, CDDP_E_NOMEM, "rank 0 has no memory for a share of the state");
}

static void *own_array(const cddp_optim *o, int array)
{
    return array == MASTER ? (void *)o->master : o->state[array];
}

/* Between a rank's share of an array and the whole one. */
static void copy_share(const cddp_optim *o, int array, const struct cdi_shard *shards, uint8_t *whole, uint8_t *share,
                       bool into_whole)
{
    size_t at = 0;

    for (size_t i = 0; i < o->ddp->n_params; i++) {
        size_t size = size_in(o, array, i), bytes = shards[i].count * size;
        uint8_t *here = whole + at + shards[i].lo * size;
        uint8_t *there = share + (array == MASTER ? shards[i].master_at : shards[i].state_at);

        if (bytes > 0 && into_whole)
            memcpy(here, there, bytes);
        else if (bytes > 0)
            memcpy(there, here, bytes);
        at += o->ddp->params[i].count * size;
    }
}

/* Rank 0's part of the exchange with `rank`, array by array. */
static cddp_status exchange_with(cddp_optim *o, struct whole *w, int rank, struct cdi_shard *shards, bool into_whole,
                                 struct cdi_error *err)
{
    struct cdi_shard_sizes sizes = cdi_shard_all(shards, &o->ddp->plan, o->ddp->n_params, rank);
    cddp_status st = CDDP_OK;

    for (int k = 0; k < ARRAYS && st == CDDP_OK; k++) {
        size_t bytes = k == MASTER ? sizes.master : sizes.state;
        bool own = rank == 0, far = own && o->on_device;
        uint8_t *share = own && !far ? own_array(o, k) : w->share;

        if (w->array[k] == NULL || bytes == 0)
            continue;
        if (far && into_whole)
            st = o->ddp->ops->copy(o->ddp->b, share, own_array(o, k), bytes, err);
        if (!own && into_whole)
            st = cdi_checkpoint_move(o->ddp->comm, CDI_RECV, share, bytes, rank, err);
        if (st == CDDP_OK)
            copy_share(o, k, shards, w->array[k], share, into_whole);
        if (far && !into_whole && st == CDDP_OK)
            st = o->ddp->ops->copy(o->ddp->b, own_array(o, k), share, bytes, err);
        if (!own && !into_whole && st == CDDP_OK)
            st = cdi_checkpoint_move(o->ddp->comm, CDI_SEND, share, bytes, rank, err);
    }
    return st;
}

/* Between all shares and rank 0's whole arrays. */
static cddp_status exchange_all(cddp_optim *o, struct whole *w, struct cdi_shard *shards, bool into_whole,
                                struct cdi_error *err)
{
    const struct cdi_world *world = cdi_comm_world(o->ddp->comm);
    cddp_status st = CDDP_OK;

    for (int r = 0; r < world->size && world->rank == 0 && st == CDDP_OK; r++)
        st = exchange_with(o, w, r, shards, into_whole, err);
    for (int k = 0; k < ARRAYS && world->rank != 0 && st == CDDP_OK; k++)
        if (has(o, k))
            st = cdi_checkpoint_move(o->ddp->comm, into_whole ? CDI_SEND : CDI_RECV, own_array(o, k),
                                     k == MASTER ? o->sizes.master : o->sizes.state, 0, err);
    return st;
}

/* Between two steps? And on rank 0, memory for all of it. A collective. */
static cddp_status begin(cddp_optim *o, struct whole *w, struct cdi_shard **shards, struct cdi_error *err)
{
    cddp_ddp *d = o->ddp;
    cddp_status st = CDDP_OK;

    (void)pthread_mutex_lock(&d->lock);
    if (d->sticky.status != CDDP_OK)
        *err = d->sticky;
    st = d->sticky.status;
    if (st == CDDP_OK && d->begun)
        st = cdi_fail(err, CDDP_E_STATE, "the optimizer's state was asked for in the middle of step %llu",
                      (unsigned long long)d->step);
    (void)pthread_mutex_unlock(&d->lock);
    if (st != CDDP_OK)
        return st;
    if (o->on_device)
        st = cdi_optim_device_pull(o, err);
    if (st == CDDP_OK && cdi_comm_world(d->comm)->rank == 0) {
        *shards = calloc(d->n_params, sizeof **shards);
        st = *shards == NULL
                 ? cdi_fail(err, CDDP_E_NOMEM, "rank 0 has no memory for the shares of %zu parameters", d->n_params)
                 : whole_init(w, o, err);
    }
    return cdi_checkpoint_share(d->comm, st, err);
}

/* The program's list, and both states after it; to be freed. NULL on rank 0, and all are told. */
static cddp_status join_lists(cddp_comm *comm, const cddp_checkpoint_item *a, size_t n_a, const struct whole *w,
                              const struct cdi_powersgd_saved *more, cddp_checkpoint_item **out, size_t *n,
                              struct cdi_error *err)
{
    CDI_AUTOFREE cddp_checkpoint_item *two = cdi_checkpoint_join(a, n_a, w->items, w->n_items, err);
    size_t n_more;
    const cddp_checkpoint_item *last = cdi_powersgd_items(more, &n_more);

    *n = n_a + w->n_items + n_more;
    *out = two == NULL ? NULL : cdi_checkpoint_join(two, n_a + w->n_items, last, n_more, err);
    return cdi_checkpoint_share(comm, *out != NULL ? CDDP_OK : err->status, err);
}

static cddp_status save(cddp_optim *o, const char *dir, uint64_t step, const cddp_checkpoint_item *items,
                        size_t n_items, const cddp_checkpoint_options *opt, struct cdi_error *err)
{
    CDI_AUTOFREE struct cdi_shard *shards = NULL;
    CDI_AUTOFREE cddp_checkpoint_item *all = NULL;
    struct cdi_powersgd_saved *more = NULL;
    struct whole w = {0};
    size_t n_all = 0;
    cddp_status st = begin(o, &w, &shards, err);

    if (st == CDDP_OK)
        st = cdi_powersgd_open_save(o->ddp, &more, err);
    if (st == CDDP_OK) /* on rank 0 both states, too */
        st = join_lists(o->ddp->comm, items, n_items, &w, more, &all, &n_all, err);
    if (st == CDDP_OK)
        st = exchange_all(o, &w, shards, true, err);
    if (st == CDDP_OK)
        st = cdi_checkpoint_save(o->ddp->comm, dir, step, all, n_all, opt, err);
    cdi_powersgd_close(more);
    whole_release(&w);
    return st;
}

static cddp_status load(cddp_optim *o, const char *dir, const cddp_checkpoint_item *items, size_t n_items,
                        cddp_checkpoint_info *info, struct cdi_error *err)
{
    CDI_AUTOFREE struct cdi_shard *shards = NULL;
    CDI_AUTOFREE cddp_checkpoint_item *alone = NULL;
    struct cdi_powersgd_saved *more = NULL;
    cddp_ddp *d = o->ddp;
    struct whole w = {0};
    size_t n_alone = 0;
    cddp_status st = begin(o, &w, &shards, err);

    if (st == CDDP_OK) {
        st = cdi_comm_world(d->comm)->rank == 0 ? check_params(d, dir, err) : CDDP_OK;
        st = cdi_checkpoint_share(d->comm, st, err);
    }
    if (st == CDDP_OK)
        st = cdi_powersgd_open_load(d, dir, &more, err);
    if (st == CDDP_OK)
        st = join_lists(d->comm, NULL, 0, &w, more, &alone, &n_alone, err);
    if (st == CDDP_OK)
        st = cdi_checkpoint_load(d->comm, dir, alone, n_alone, items, n_items, info, err);
    if (st == CDDP_OK && w.steps != NULL)
        memcpy(o->steps, w.steps, d->n_params * sizeof *w.steps);
    if (st == CDDP_OK)
        st = cdi_comm_broadcast(d->comm, o->steps, d->n_params, CDDP_UINT64, 0, err);
    if (st == CDDP_OK && o->on_device)
        st = cdi_optim_device_push(o, err);
    if (st == CDDP_OK)
        st = exchange_all(o, &w, shards, false, err);
    if (st == CDDP_OK)
        st = cdi_powersgd_take_up(d, more, err);
    cdi_powersgd_close(more);
    whole_release(&w);
    return st;
}

static cddp_status check(const char *function, const cddp_optim *o, const char *dir, const cddp_checkpoint_item *items,
                         size_t n_items, struct cdi_error *err)
{
    if (o == NULL || dir == NULL || *dir == '\0' || (items == NULL && n_items > 0))
        return cdi_fail(err, CDDP_E_INVALID, "%s: no optimizer, no directory, or no items", function);
    return cdi_optim_check(function, o, err);
}

cddp_status cddp_optim_save(cddp_optim *optim, const char *dir, uint64_t step, const cddp_checkpoint_item *items,
                            size_t n_items, const cddp_checkpoint_options *opt)
{
    struct cdi_error err;
    enum cdi_asked before = cdi_comm_ask(CDI_ASKED_OPTIM_SAVE);
    cddp_status st = check("cddp_optim_save", optim, dir, items, n_items, &err);

    if (st == CDDP_OK)
        st = save(optim, dir, step, items, n_items, opt, &err);
    (void)cdi_comm_ask(before);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

cddp_status cddp_optim_load(cddp_optim *optim, const char *dir, const cddp_checkpoint_item *items, size_t n_items,
                            cddp_checkpoint_info *info)
{
    struct cdi_error err;
    enum cdi_asked before = cdi_comm_ask(CDI_ASKED_OPTIM_LOAD);
    cddp_status st = check("cddp_optim_load", optim, dir, items, n_items, &err);

    if (st == CDDP_OK)
        st = load(optim, dir, items, n_items, info, &err);
    (void)cdi_comm_ask(before);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
