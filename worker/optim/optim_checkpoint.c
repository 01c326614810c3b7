/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer's state in checkpoints. In the file it is whole, parameter by parameter, and independent of ranks, so
 * that a world of another size can load it. Rank 0 collects all shares to write them, and distributes them after
 * reading; of a sharded checkpoint each rank writes and reads its own. The entries have PyTorch's names.
 */
#include "common/cleanup.h"
#include "common/crc64.h"
#include "worker/backend/describe.h"
#include "worker/checkpoint/item.h"
#include "worker/optim/optim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARRAYS (CDI_OPTIM_STATES + 1) /* those that are divided: states, then masters */
#define MASTER CDI_OPTIM_STATES
#define MARKS ".params"

/* What a state belongs to; the file contains it verbatim. */
struct head {
    uint64_t params; /* a hash of the parameters */
    uint64_t rule;   /* 1: SGD; 2: Adam and AdamW */
    uint64_t n_states;
};

/* These two entries come first, then arrays. */
enum { HEAD, STEPS, FIRST_ARRAY };

/* Rank 0's buffers for exchanging shares. */
struct room {
    struct cdi_shard *shards; /* of one rank */
    uint8_t *share;
};

static const char *name_of(const cddp_optim *o, int array)
{
    static const char *const averages[] = {".exp_avg", ".exp_avg_sq"};

    if (array == MASTER)
        return ".master";
    return o->rule.kind == CDDP_OPTIM_SGD ? ".momentum_buffer" : averages[array];
}

/*
 * Returns the bytes of one element of parameter i in an array; 0: it is not in that array, as all that are tied, or
 * have no gradients.
 */
static size_t optim_element_size(const cddp_optim *o, int array, size_t i)
{
    cddp_dtype dtype = o->ddp->params[i].dtype;

    if (cdi_ddp_is_tied(o->ddp, i) || o->ddp->plan.grads[i].frozen)
        return 0;
    if (array == MASTER)
        return cdi_shard_has_master(dtype) ? sizeof(float) : 0;
    return cdi_shard_state_size(dtype);
}

static bool optim_has_array(const cddp_optim *o, int array)
{
    if (array < MASTER)
        return array < cdi_optim_n_states(&o->rule);
    for (size_t i = 0; i < o->ddp->n_params; i++)
        if (optim_element_size(o, array, i) > 0)
            return true;
    return false;
}

static uint64_t hash_param(const cddp_ddp *d, size_t i, uint64_t hash)
{
    const uint64_t of[] = {d->params[i].count, (uint64_t)d->params[i].dtype};

    hash = cdi_crc64(hash, d->params[i].name, strlen(d->params[i].name) + 1);
    hash = cdi_crc64(hash, of, sizeof of);
    return cdi_ddp_is_tied(d, i) ? cdi_crc64(hash, &d->tied.first[i], sizeof d->tied.first[i]) : hash;
}

/* Hashes the parameters: with other sizes, ties or another order, arrays would be divided at the wrong places. */
static uint64_t hash_params(const cddp_ddp *d)
{
    uint64_t hash = 0;

    for (size_t i = 0; i < d->n_params; i++) {
        hash = hash_param(d, i, hash);
        if (d->plan.grads[i].frozen)
            hash = cdi_crc64(hash, "frozen", 6);
    }
    return hash;
}

/* The file has one of each parameter, so that a load can tell which one differs, and whether only in being frozen. */
static uint64_t mark_of(const cddp_ddp *d, size_t i)
{
    return (hash_param(d, i, 0) & ~UINT64_C(1)) | (d->plan.grads[i].frozen ? 1 : 0);
}

/* Adds the marks, after all other entries. */
static cddp_status add_marks(struct cdi_state *s, struct cdi_error *err)
{
    const cddp_ddp *d = ((const cddp_optim *)s->object)->ddp;
    uint64_t *marks = cdi_state_add(s, MARKS, d->n_params * sizeof *marks, err);

    for (size_t i = 0; marks != NULL && i < d->n_params; i++)
        marks[i] = mark_of(d, i);
    return marks != NULL ? CDDP_OK : err->status;
}

static struct head optim_head_of(const cddp_optim *o)
{
    return (struct head){.params = hash_params(o->ddp),
                         .rule = o->rule.kind == CDDP_OPTIM_SGD ? 1 : 2,
                         .n_states = (uint64_t)cdi_optim_n_states(&o->rule)};
}

/* Checks that the optimizer belongs to comm, has a reducer, and is between two steps. */
static cddp_status optim_check_item(struct cdi_state *s, struct cdi_error *err)
{
    const cddp_optim *o = s->object;
    cddp_ddp *d = o->ddp;
    cddp_status st = cdi_optim_check(cdi_api_call_name((uint32_t)cdi_api_caller()), o, err);

    if (st != CDDP_OK)
        return st;
    if (d->comm != s->comm)
        return cdi_fail(err, CDDP_E_INVALID, "this optimizer's reducer belongs to another communicator");
    (void)pthread_mutex_lock(&d->lock);
    st = d->sticky.status;
    if (st != CDDP_OK)
        *err = d->sticky;
    else if (d->begun)
        st = cdi_fail(err, CDDP_E_STATE, "the optimizer's state was requested in the middle of step %llu",
                      (unsigned long long)d->step);
    (void)pthread_mutex_unlock(&d->lock);
    return st;
}

static struct room room_of(const struct cdi_state *s)
{
    const cddp_optim *o = s->object;

    return (struct room){s->scratch, (uint8_t *)((struct cdi_shard *)s->scratch + o->ddp->n_params)};
}

/* Adds all entries, empty, and the buffers. */
static cddp_status add_entries(struct cdi_state *s, struct cdi_error *err)
{
    const cddp_optim *o = s->object;
    const cddp_ddp *d = o->ddp;
    size_t most = 0;

    if (cdi_state_add(s, "", sizeof(struct head), err) == NULL ||
        cdi_state_add(s, ".steps", d->n_params * sizeof *o->steps, err) == NULL)
        return err->status;
    for (int k = 0; k < ARRAYS; k++) {
        size_t bytes = 0;

        for (size_t i = 0; i < d->n_params && optim_has_array(o, k); i++)
            bytes += d->params[i].count * optim_element_size(o, k, i);
        if (optim_has_array(o, k) && cdi_state_add(s, name_of(o, k), bytes, err) == NULL)
            return err->status;
        most = bytes > most ? bytes : most;
    }
    /* No share is larger than a whole array plus the padding of its ranges. */
    s->scratch = malloc(1 + d->n_params * (sizeof(struct cdi_shard) + CDI_GRAD_ALIGN) + most);
    return s->scratch != NULL ? CDDP_OK : cdi_fail(err, CDDP_E_NOMEM, "rank 0 has no memory for a share of the state");
}

static cddp_status optim_begin_save(struct cdi_state *s, struct cdi_error *err)
{
    cddp_optim *o = s->object;
    const struct head head = optim_head_of(o);
    cddp_status st = add_entries(s, err);

    if (st == CDDP_OK)
        st = add_marks(s, err);
    if (st == CDDP_OK && o->on_device)
        st = cdi_optim_device_pull(o, err);
    if (st != CDDP_OK)
        return st;
    memcpy(cdi_state_at(s, HEAD), &head, sizeof head);
    memcpy(cdi_state_at(s, STEPS), o->steps, o->ddp->n_params * sizeof *o->steps);
    return CDDP_OK;
}

static cddp_status read_entry(const char *name, void *data, size_t bytes, struct cdi_checkpoint_file *f,
                              struct cdi_error *err)
{
    const cddp_checkpoint_item item = {
        .size = sizeof item, .name = name, .data = data, .bytes = bytes, .kind = CDDP_ITEM_OPTIM};
    cddp_status st = cdi_checkpoint_fit(f, &item, NULL, 1, NULL, err);

    return st == CDDP_OK ? cdi_checkpoint_fill(f, &item, NULL, 1, NULL, err) : st;
}

/* Says which parameter of the file's state is not this model's. */
static cddp_status name_param(const struct cdi_state *s, struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    static const char text[] = "its state belongs to other parameters than this model's";
    const cddp_ddp *d = ((const cddp_optim *)s->object)->ddp;
    CDI_AUTOFREE uint64_t *marks = NULL;
    char name[256]; /* an object's name has 200 bytes at most */
    size_t bytes = 0, n, i = 0;

    (void)snprintf(name, sizeof name, "%s" MARKS, s->name);
    if (!cdi_checkpoint_find(f, name, s->kind, &bytes))
        return cdi_fail(err, CDDP_E_MISMATCH, "%s", text);
    n = bytes / sizeof *marks;
    marks = malloc(bytes + 1);
    if (marks == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory to compare %zu parameters", n);
    if (read_entry(name, marks, bytes, f, err) != CDDP_OK)
        return err->status;
    while (i < n && i < d->n_params && marks[i] == mark_of(d, i))
        i++;
    if (i == n || i == d->n_params)
        return cdi_fail(err, CDDP_E_MISMATCH, "%s: it has %zu parameters, and this model has %zu", text, n,
                        d->n_params);
    if ((marks[i] ^ mark_of(d, i)) == 1)
        return cdi_fail(err, CDDP_E_MISMATCH,
                        "%s: parameter %zu '%.200s' was %s when it was saved, and is %s now: freeze the same ones, or "
                        "load without this item, so that a new optimizer begins at the loaded parameters",
                        text, i, d->params[i].name, (marks[i] & 1) != 0 ? "frozen" : "trained",
                        (marks[i] & 1) != 0 ? "trained" : "frozen");
    return cdi_fail(err, CDDP_E_MISMATCH,
                    "%s: the first that differs is parameter %zu, now '%.200s': it had another name, size or type, or "
                    "was tied otherwise or in another order",
                    text, i, d->params[i].name);
}

/* Checks that the state in the file belongs to this rule and to these parameters. */
static cddp_status compare_heads(const struct cdi_state *s, struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    static const char *const rules[] = {"an unknown rule", "SGD", "Adam or AdamW"};
    const struct head mine = optim_head_of(s->object);
    struct head saved;

    if (read_entry(s->name, &saved, sizeof saved, f, err) != CDDP_OK)
        return err->status;
    if (saved.rule != mine.rule)
        return cdi_fail(err, CDDP_E_MISMATCH, "its state was made by %s, and this optimizer is %s",
                        rules[saved.rule <= 2 ? saved.rule : 0], rules[mine.rule]);
    if (saved.n_states != mine.n_states)
        return cdi_fail(err, CDDP_E_MISMATCH, "its state was made %s momentum, and this optimizer works %s",
                        saved.n_states > 0 ? "with" : "without", mine.n_states > 0 ? "with" : "without");
    return saved.params == mine.params ? CDDP_OK : name_param(s, f, err);
}

static cddp_status optim_begin_load(struct cdi_state *s, struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    cddp_status st = add_entries(s, err);

    if (st != CDDP_OK)
        return st;
    if (compare_heads(s, f, err) != CDDP_OK)
        return cdi_error_wrap(err, "checkpoint: item '%s'", s->name);
    st = cdi_checkpoint_fit(f, s->entries, NULL, s->n_entries, NULL, err);
    return st == CDDP_OK ? cdi_checkpoint_fill(f, s->entries, NULL, s->n_entries, NULL, err) : st;
}

static void *own_array(const cddp_optim *o, int array)
{
    return array == MASTER ? (void *)o->master : o->state[array];
}

/* Copies between a rank's share of an array and the whole array. */
static void copy_share(const cddp_optim *o, int array, const struct cdi_shard *shards, uint8_t *whole, uint8_t *share,
                       bool into_whole)
{
    size_t at = 0;

    for (size_t i = 0; i < o->ddp->n_params; i++) {
        size_t size = optim_element_size(o, array, i), bytes = shards[i].count * size;
        uint8_t *here = whole + at + shards[i].lo * size;
        uint8_t *there = share + (array == MASTER ? shards[i].master_at : shards[i].state_at);

        if (bytes > 0 && into_whole)
            memcpy(here, there, bytes);
        else if (bytes > 0)
            memcpy(there, here, bytes);
        at += o->ddp->params[i].count * size;
    }
}

/* Exchanges shares with `rank` on rank 0, array by array. */
static cddp_status exchange_with(struct cdi_state *s, int rank, bool into_whole, struct cdi_error *err)
{
    cddp_optim *o = s->object;
    const struct room room = room_of(s);
    struct cdi_shard_sizes sizes =
        cdi_shard_all(room.shards, &o->ddp->plan, o->ddp->params, o->ddp->tied.first, o->ddp->n_params, rank);
    size_t entry = FIRST_ARRAY;
    cddp_status st = CDDP_OK;

    for (int k = 0; k < ARRAYS && st == CDDP_OK; k++) {
        size_t bytes = k == MASTER ? sizes.master : sizes.state;
        bool apart =
            rank != 0 || o->on_device; /* the share is not in the memory of the whole array, and must be exchanged */
        uint8_t *share = apart ? room.share : own_array(o, k), *whole;

        if (!optim_has_array(o, k))
            continue;
        whole = cdi_state_at(s, entry++);
        if (bytes == 0)
            continue;
        if (apart && into_whole)
            st = cdi_state_exchange(o->ddp->comm, rank, share, own_array(o, k), bytes, true, err);
        if (st == CDDP_OK)
            copy_share(o, k, room.shards, whole, share, into_whole);
        if (apart && !into_whole && st == CDDP_OK)
            st = cdi_state_exchange(o->ddp->comm, rank, share, own_array(o, k), bytes, false, err);
    }
    return st;
}

/* Exchanges all shares with rank 0's whole arrays. */
static cddp_status exchange_all(struct cdi_state *s, bool into_whole, struct cdi_error *err)
{
    cddp_optim *o = s->object;
    const struct cdi_world *world = cdi_comm_world(o->ddp->comm);
    cddp_status st = o->on_device ? cdi_ddp_follow(o->ddp, o->ddp->stream, err) : CDDP_OK;

    for (int r = 0; r < world->size && world->rank == 0 && st == CDDP_OK; r++)
        st = exchange_with(s, r, into_whole, err);
    for (int k = 0; k < ARRAYS && world->rank != 0 && st == CDDP_OK; k++)
        if (optim_has_array(o, k))
            st = cdi_state_exchange(o->ddp->comm, world->rank, NULL, own_array(o, k),
                                    k == MASTER ? o->sizes.master : o->sizes.state, into_whole, err);
    return st;
}

static cddp_status optim_collect(struct cdi_state *s, struct cdi_error *err)
{
    return exchange_all(s, true, err);
}

static cddp_status optim_restore(struct cdi_state *s, struct cdi_error *err)
{
    cddp_optim *o = s->object;
    cddp_status st;

    if (s->n_entries > 0)
        memcpy(o->steps, cdi_state_at(s, STEPS), o->ddp->n_params * sizeof *o->steps);
    st = cdi_comm_broadcast(s->comm, o->steps, o->ddp->n_params, CDDP_UINT64, 0, err);
    if (st == CDDP_OK && o->on_device)
        st = cdi_optim_device_push(o, err);
    return st == CDDP_OK ? exchange_all(s, false, err) : st;
}

/* Adds this rank's pieces of one array. */
static cddp_status add_array(struct cdi_state *s, int array, struct cdi_pieces *p, struct cdi_error *err)
{
    const cddp_optim *o = s->object;
    const char *name = cdi_pieces_name(p, s->name, name_of(o, array), err);
    uint64_t whole = 0, at = 0;
    cddp_status st = name == NULL ? err->status : CDDP_OK;

    for (size_t i = 0; i < o->ddp->n_params; i++)
        whole += o->ddp->params[i].count * optim_element_size(o, array, i);
    for (size_t i = 0; i < o->ddp->n_params && st == CDDP_OK; i++) {
        const struct cdi_shard *own = &o->shards[i];
        size_t size = optim_element_size(o, array, i);
        cddp_checkpoint_item piece = {
            .size = sizeof piece, .name = name, .bytes = own->count * size, .kind = CDDP_ITEM_OPTIM};

        if (piece.bytes > 0)
            piece.data = (uint8_t *)own_array(o, array) + (array == MASTER ? own->master_at : own->state_at);
        st = cdi_pieces_add(p, &piece, (struct cdi_range){whole, at + own->lo * size}, err);
        at += o->ddp->params[i].count * size;
    }
    return st;
}

static cddp_status optim_pieces(struct cdi_state *s, struct cdi_checkpoint_file *f, struct cdi_pieces *p,
                                struct cdi_error *err)
{
    cddp_optim *o = s->object;
    const size_t bytes = o->ddp->n_params * sizeof *o->steps;
    cddp_checkpoint_item steps = {.size = sizeof steps, .data = o->steps, .bytes = bytes, .kind = CDDP_ITEM_OPTIM};
    const struct head head = optim_head_of(o);
    cddp_status st = f != NULL ? compare_heads(s, f, err) : CDDP_OK;

    o->is_loaded = f != NULL;
    if (st == CDDP_OK && o->on_device)
        st = cdi_ddp_follow(o->ddp, o->ddp->stream, err);
    if (st == CDDP_OK && f == NULL && o->on_device)
        st = cdi_optim_device_pull(o, err);
    if (st == CDDP_OK && f == NULL && cddp_rank(s->comm) == 0) {
        if (cdi_state_add(s, "", sizeof head, err) == NULL || cdi_state_add(s, ".steps", bytes, err) == NULL)
            return err->status;
        memcpy(cdi_state_at(s, HEAD), &head, sizeof head);
        memcpy(cdi_state_at(s, STEPS), o->steps, bytes);
        st = add_marks(s, err);
    }
    if (st == CDDP_OK && f != NULL) {
        steps.name = cdi_pieces_name(p, s->name, ".steps", err);
        st = steps.name == NULL ? err->status : cdi_pieces_add(p, &steps, (struct cdi_range){bytes, 0}, err);
    }
    for (int k = 0; k < ARRAYS && st == CDDP_OK; k++)
        if (optim_has_array(o, k))
            st = add_array(s, k, p, err);
    return st;
}

static cddp_status optim_loaded(struct cdi_state *s, struct cdi_error *err)
{
    cddp_optim *o = s->object;

    return o->on_device ? cdi_optim_device_push(o, err) : CDDP_OK;
}

cddp_status cdi_optim_follow_params(cddp_optim *o, struct cdi_error *err)
{
    cddp_ddp *d = o->ddp;
    cddp_status st;

    if (o->is_loaded)
        return CDDP_OK;
    if (!o->on_device) {
        cdi_optim_host_copy(o);
        return CDDP_OK;
    }
    st = cdi_ddp_follow(d, d->stream, err);
    if (st == CDDP_OK)
        st = cdi_optim_device_copy(o, err);
    return st == CDDP_OK ? cdi_ddp_stream_wait(d, 0, err) : st; /* a graph's steps are there */
}

static uint32_t optim_history(const struct cdi_state *s)
{
    const cddp_optim *o = s->object;

    return o->ddp->steps;
}

const struct cdi_item_ops cdi_optim_item_ops = {.check = optim_check_item,
                                                .begin_save = optim_begin_save,
                                                .collect = optim_collect,
                                                .begin_load = optim_begin_load,
                                                .restore = optim_restore,
                                                .pieces = optim_pieces,
                                                .loaded = optim_loaded,
                                                .history = optim_history};
