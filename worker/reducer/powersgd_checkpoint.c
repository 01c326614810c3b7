/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reducer's state in checkpoints: PowerSGD's, if there is one. Steps, random numbers and each Q are the same on every
 * rank; the errors differ. The file has the matrices in the order of their parameters, so that a reducer with other
 * buckets can load it. Rank 0 collects and distributes.
 */
#include "common/crc64.h"
#include "worker/checkpoint/item.h"
#include "worker/reducer/powersgd.h"
#include "worker/reducer/state/state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUFFIX_BYTES 40 /* ".powersgd.error[18446744073709551615]" */

/* The identity of a state, and its values of fixed size. The file contains it verbatim. */
struct head {
    uint64_t world;  /* ranks that saved */
    uint64_t shapes; /* a hash of the matrices */
    uint64_t matrix_rank, start_step, flags, seed;
    double min_compression_rate, orthogonalization_epsilon;
    uint64_t done; /* steps since it was set */
    struct cdi_mt19937 seeds;
    uint32_t zero;
};

/* Entries: an empty one, which marks a reducer; with PowerSGD the others, too. */
enum { REDUCER, HEAD, HAS_Q, Q, FIRST_ERROR };

static size_t error_bytes(const struct cdi_powersgd_matrix *m)
{
    return m == NULL || m->error == NULL ? 0 : m->of.rows * m->of.cols * cddp_dtype_size(m->of.dtype);
}

static size_t q_bytes(const struct cdi_powersgd_matrix *m)
{
    return m == NULL ? 0 : m->of.cols * m->of.rank * cddp_dtype_size(m->of.dtype);
}

static struct head powersgd_head_of(const cddp_ddp *d)
{
    const struct cdi_powersgd *s = d->powersgd;
    struct head h;

    memset(&h, 0, sizeof h); /* padding, too: it is written to a file */
    h.world = (uint64_t)cdi_comm_world(d->comm)->size;
    h.matrix_rank = s->opt.matrix_rank;
    h.start_step = s->opt.start_step;
    h.flags = s->opt.flags;
    h.seed = s->opt.seed;
    h.min_compression_rate = s->opt.min_compression_rate;
    h.orthogonalization_epsilon = s->opt.orthogonalization_epsilon;
    h.done = d->step - s->since;
    h.seeds = s->seeds;
    for (size_t i = 0; i < d->n_params; i++) {
        const struct cdi_powersgd_matrix *m = s->of_param[i];
        const uint64_t of[] = {i, m == NULL ? 0 : m->of.rows, m == NULL ? 0 : m->of.cols,
                               m == NULL ? 0 : (uint64_t)m->of.dtype};

        h.shapes = cdi_crc64(h.shapes, of, sizeof of);
    }
    return h;
}

/* Rejects a state of other options: the run would continue as neither of the two. */
static cddp_status powersgd_compare_heads(const struct head *saved, const struct head *mine, struct cdi_error *err)
{
    const struct {
        const char *name;
        double saved, mine;
    } options[] = {
        {"matrix_rank", (double)saved->matrix_rank, (double)mine->matrix_rank},
        {"start_step", (double)saved->start_step, (double)mine->start_step},
        {"flags", (double)saved->flags, (double)mine->flags},
        {"seed", (double)saved->seed, (double)mine->seed},
        {"min_compression_rate", saved->min_compression_rate, mine->min_compression_rate},
        {"orthogonalization_epsilon", saved->orthogonalization_epsilon, mine->orthogonalization_epsilon},
    };

    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (options[i].saved != options[i].mine)
            return cdi_fail(err, CDDP_E_MISMATCH,
                            "cddp_powersgd_options.%s is %g here, but was %g where the checkpoint was saved",
                            options[i].name, options[i].mine, options[i].saved);
    if (saved->shapes != mine->shapes)
        return cdi_fail(err, CDDP_E_MISMATCH,
                        "the checkpoint's PowerSGD compresses gradients of other parameters, shapes or types than this "
                        "reducer's");
    return CDDP_OK;
}

/* Totals over all matrices. */
struct sizes {
    size_t n_m, q_bytes, error_bytes; /* error_bytes: of one rank */
};

static struct sizes powersgd_sizes_of(const cddp_ddp *d)
{
    struct sizes sum = {0};

    for (size_t i = 0; i < d->n_params && d->powersgd != NULL; i++) {
        sum.n_m += d->powersgd->of_param[i] != NULL;
        sum.q_bytes += q_bytes(d->powersgd->of_param[i]);
        sum.error_bytes += error_bytes(d->powersgd->of_param[i]);
    }
    return sum;
}

/* Adds the entries after the head, for n_ranks ranks. */
static cddp_status add_rest(struct cdi_state *w, const cddp_ddp *d, uint64_t n_ranks, struct cdi_error *err)
{
    const struct sizes sizes = powersgd_sizes_of(d);
    char suffix[SUFFIX_BYTES];

    if (n_ranks == 0 || n_ranks > CDI_CHECKPOINT_MAX_ITEMS)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the PowerSGD errors of %" PRIu64 " ranks", n_ranks);
    if (cdi_state_add(w, ".powersgd.has_q", sizes.n_m, err) == NULL ||
        cdi_state_add(w, ".powersgd.q", sizes.q_bytes, err) == NULL)
        return err->status;
    for (uint64_t r = 0; r < n_ranks && sizes.error_bytes > 0; r++) {
        (void)snprintf(suffix, sizeof suffix, ".powersgd.error[%" PRIu64 "]", r);
        if (cdi_state_add(w, suffix, sizes.error_bytes, err) == NULL)
            return err->status;
    }
    return CDDP_OK;
}

static char *errors_of(const struct cdi_state *w, size_t rank)
{
    return cdi_state_at(w, FIRST_ERROR + rank);
}

/* Checks that the reducer belongs to comm and is between two steps. */
static cddp_status powersgd_check_item(struct cdi_state *w, struct cdi_error *err)
{
    cddp_ddp *d = w->object;
    cddp_status st;

    if (d->comm != w->comm)
        return cdi_fail(err, CDDP_E_INVALID, "this reducer belongs to another communicator");
    (void)pthread_mutex_lock(&d->lock);
    st = d->sticky.status;
    if (st != CDDP_OK)
        *err = d->sticky;
    else if (d->begun)
        st = cdi_fail(err, CDDP_E_STATE, "the reducer's state was requested in the middle of step %llu",
                      (unsigned long long)d->step);
    (void)pthread_mutex_unlock(&d->lock);
    return st;
}

/* ---------------------------------------------------------------------------------------------------- saving ---- */

/* Moves the errors of `rank` to their place on rank 0. */
static cddp_status collect_from(const cddp_ddp *d, struct cdi_state *w, int rank, struct cdi_error *err)
{
    int me = cdi_comm_world(d->comm)->rank;
    char *to = me == 0 && powersgd_sizes_of(d).error_bytes > 0 ? errors_of(w, (size_t)rank) : NULL;
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++) {
        const struct cdi_powersgd_matrix *m = d->powersgd->of_param[i];
        size_t bytes = error_bytes(m);

        if (bytes == 0)
            continue;
        st = cdi_state_exchange(d->comm, rank, to, m->error, bytes, true, err);
        to = to == NULL ? NULL : to + bytes;
    }
    return st;
}

static cddp_status powersgd_collect(struct cdi_state *w, struct cdi_error *err)
{
    const cddp_ddp *d = w->object;
    const struct cdi_world *world = cdi_comm_world(d->comm);
    cddp_status st = CDDP_OK;

    for (int r = 0; r < world->size && d->powersgd != NULL && st == CDDP_OK; r++)
        if (world->rank == 0 || world->rank == r)
            st = collect_from(d, w, r, err);
    return st;
}

static cddp_status powersgd_begin_save(struct cdi_state *w, struct cdi_error *err)
{
    const cddp_ddp *d = w->object;
    size_t n = 0, at = 0;
    struct head head;
    cddp_status st;

    if (cdi_state_add(w, "", 0, err) == NULL)
        return err->status;
    if (d->powersgd == NULL)
        return CDDP_OK;
    if (cdi_state_add(w, ".powersgd", sizeof head, err) == NULL)
        return err->status;
    head = powersgd_head_of(d);
    memcpy(cdi_state_at(w, HEAD), &head, sizeof head);
    st = add_rest(w, d, head.world, err);
    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++) {
        const struct cdi_powersgd_matrix *m = d->powersgd->of_param[i];

        if (m == NULL)
            continue;
        ((uint8_t *)cdi_state_at(w, HAS_Q))[n++] = m->has_q;
        st = d->ops->copy(d->b, (char *)cdi_state_at(w, Q) + at, m->q, q_bytes(m), err);
        at += q_bytes(m);
    }
    return st;
}

/* --------------------------------------------------------------------------------------------------- loading ---- */

/* Checks that both have PowerSGD, or neither: its errors must not get lost silently. */
static cddp_status compare_kinds(const struct cdi_state *w, const struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    bool has = ((const cddp_ddp *)w->object)->powersgd != NULL;

    if (cdi_checkpoint_find(f, w->entries[HEAD].name, CDDP_ITEM_DDP, NULL) == has)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_MISMATCH,
                    has ? "it was saved from a reducer without PowerSGD, and this one has it: the checkpoint has no "
                          "PowerSGD errors; leave the item out to let PowerSGD start anew"
                        : "it contains PowerSGD errors, and this reducer has no PowerSGD: call cddp_ddp_set_powersgd "
                          "before, or leave the item out");
}

static cddp_status read_head(struct cdi_state *w, struct cdi_checkpoint_file *f, struct head *saved,
                             struct cdi_error *err)
{
    const cddp_ddp *d = w->object;
    struct head mine;
    cddp_status st = cdi_checkpoint_fit(f, w->entries, NULL, HEAD + 1, NULL, err);

    if (st == CDDP_OK)
        st = cdi_checkpoint_fill(f, w->entries, NULL, HEAD + 1, NULL, err);
    if (st != CDDP_OK)
        return st;
    memcpy(saved, cdi_state_at(w, HEAD), sizeof *saved);
    mine = powersgd_head_of(d);
    return powersgd_compare_heads(saved, &mine, err) == CDDP_OK ? CDDP_OK
                                                                : cdi_error_wrap(err, "checkpoint: item '%s'", w->name);
}

static cddp_status powersgd_begin_load(struct cdi_state *w, struct cdi_checkpoint_file *f, struct cdi_error *err)
{
    const cddp_ddp *d = w->object;
    struct head saved;
    cddp_status st;

    if (cdi_state_add(w, "", 0, err) == NULL || cdi_state_add(w, ".powersgd", sizeof saved, err) == NULL)
        return err->status;
    st = cdi_checkpoint_fit(f, w->entries, NULL, HEAD, NULL, err);
    if (st != CDDP_OK)
        return st;
    if (compare_kinds(w, f, err) != CDDP_OK)
        return cdi_error_wrap(err, "checkpoint: item '%s'", w->name);
    if (d->powersgd == NULL)
        return CDDP_OK;
    st = read_head(w, f, &saved, err);
    if (st == CDDP_OK)
        st = add_rest(w, d, saved.world, err);
    if (st == CDDP_OK)
        st = cdi_checkpoint_fit(f, w->entries, NULL, w->n_entries, NULL, err);
    return st == CDDP_OK ? cdi_checkpoint_fill(f, w->entries, NULL, w->n_entries, NULL, err) : st;
}

static double powersgd_number(cddp_dtype dtype, const char *at, size_t k)
{
    return dtype == CDDP_FLOAT64 ? ((const double *)(const void *)at)[k] : (double)((const float *)(const void *)at)[k];
}

/*
 * Computes, for one matrix, the mean of the errors of n_ranks ranks of the file, which begin at `from` in each rank's
 * errors. Stores it in the first rank's.
 */
static void powersgd_mean_of(const struct cdi_powersgd_matrix *m, const struct cdi_state *w, size_t n_ranks,
                             size_t from)
{
    char *to = errors_of(w, 0) + from;

    for (size_t k = 0; k < m->of.rows * m->of.cols; k++) {
        double sum = 0;

        for (size_t r = 0; r < n_ranks; r++)
            sum += powersgd_number(m->of.dtype, errors_of(w, r) + from, k);
        sum /= (double)n_ranks;
        if (m->of.dtype == CDDP_FLOAT64)
            ((double *)(void *)to)[k] = sum;
        else
            ((float *)(void *)to)[k] = (float)sum;
    }
}

/* Sends the errors of one matrix, at `from` on rank 0, to all: its own to each rank, or the mean. */
static cddp_status give_errors(cddp_ddp *d, const struct cdi_powersgd_matrix *m, const struct cdi_state *w,
                               size_t n_ranks, size_t from, struct cdi_error *err)
{
    const struct cdi_world *world = cdi_comm_world(d->comm);
    bool as_before = n_ranks == (size_t)world->size;
    size_t bytes = error_bytes(m);
    cddp_status st = CDDP_OK;

    if (bytes == 0)
        return CDDP_OK;
    if (as_before && world->rank != 0)
        return cdi_state_exchange(d->comm, world->rank, NULL, m->error, bytes, false, err);
    if (as_before) {
        for (int r = 0; r < world->size && st == CDDP_OK; r++)
            st = cdi_state_exchange(d->comm, r, errors_of(w, (size_t)r) + from, m->error, bytes, false, err);
        return st;
    }
    if (world->rank == 0) {
        powersgd_mean_of(m, w, n_ranks, from);
        st = d->ops->copy(d->b, m->error, errors_of(w, 0) + from, bytes, err);
    }
    return st != CDDP_OK ? st : cdi_comm_broadcast(d->comm, m->error, bytes, CDDP_UINT8, 0, err);
}

/* Distributes rank 0's whole state to all ranks. */
static cddp_status powersgd_restore(struct cdi_state *w, struct cdi_error *err)
{
    cddp_comm *comm = w->comm;
    cddp_ddp *d = w->object;
    bool is_root = cdi_comm_world(comm)->rank == 0;
    size_t n = 0, q_at = 0, error_at = 0;
    struct head head = {0};
    cddp_status st;

    if (d->powersgd == NULL)
        return CDDP_OK;
    if (is_root)
        memcpy(&head, cdi_state_at(w, HEAD), sizeof head);
    st = cdi_comm_broadcast(comm, &head, sizeof head, CDDP_UINT8, 0, err);
    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++) {
        struct cdi_powersgd_matrix *m = d->powersgd->of_param[i];
        uint8_t has_q;

        if (m == NULL)
            continue;
        has_q = is_root ? ((uint8_t *)cdi_state_at(w, HAS_Q))[n++] : 0;
        if (is_root)
            st = d->ops->copy(d->b, m->q, (char *)cdi_state_at(w, Q) + q_at, q_bytes(m), err);
        if (st == CDDP_OK)
            st = cdi_comm_broadcast(comm, &has_q, 1, CDDP_UINT8, 0, err);
        if (st == CDDP_OK)
            st = cdi_comm_broadcast(comm, m->q, q_bytes(m), CDDP_UINT8, 0, err);
        if (st == CDDP_OK)
            st = give_errors(d, m, w, (size_t)head.world, error_at, err);
        m->has_q = has_q != 0;
        q_at += q_bytes(m);
        error_at += error_bytes(m);
    }
    if (st != CDDP_OK)
        return st;
    d->powersgd->seeds = head.seeds;
    /* Otherwise the numbers drawn already are used first, or replace a degenerate Q: the same in both runs. */
    if ((d->powersgd->opt.flags & CDDP_POWERSGD_NO_WARM_START) != 0)
        d->powersgd->is_drawn = false;
    d->powersgd->since = d->step - head.done;
    return CDDP_OK;
}

const struct cdi_item_ops cdi_powersgd_item_ops = {.check = powersgd_check_item,
                                                   .begin_save = powersgd_begin_save,
                                                   .collect = powersgd_collect,
                                                   .begin_load = powersgd_begin_load,
                                                   .restore = powersgd_restore};
