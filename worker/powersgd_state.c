/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PowerSGD's state in checkpoints, public as cddp_powersgd_save and cddp_powersgd_load. Steps, random numbers and each
 * Q are the same on every rank; what was left out is each rank's own. In the file matrices are in the order of their
 * parameters, so that buckets may be others when it is loaded. Rank 0 collects and hands out.
 */
#include "common/cleanup.h"
#include "common/crc64.h"
#include "worker/checkpoint.h"
#include "worker/powersgd.h"
#include "worker/reducer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 40 /* "powersgd.error[18446744073709551615]" */

/* What a state is of, and what does not depend on the matrices' sizes. The file has it as it is. */
struct head {
    uint64_t world;  /* ranks that saved */
    uint64_t shapes; /* a hash of the matrices */
    uint64_t matrix_rank, start_step, flags, seed;
    double min_compression_rate, orthogonalization_epsilon;
    uint64_t done; /* steps since it was set */
    struct cdi_mt19937 seeds;
    uint32_t zero;
};

/* All of it, on rank 0. */
struct cdi_powersgd_saved {
    struct head head;
    uint8_t *has_q; /* by matrix */
    char *q, *errors;
    size_t n_m, q_bytes, error_bytes; /* error_bytes: of one rank */
    size_t n_ranks;                   /* whose errors there are */
    char (*names)[NAME_BYTES];        /* of the errors */
    cddp_checkpoint_item *items;
    size_t n_items;
};

static size_t error_bytes(const struct cdi_powersgd_matrix *m)
{
    return m == NULL || m->error == NULL ? 0 : m->of.rows * m->of.cols * cddp_dtype_size(m->of.dtype);
}

static size_t q_bytes(const struct cdi_powersgd_matrix *m)
{
    return m == NULL ? 0 : m->of.cols * m->of.rank * cddp_dtype_size(m->of.dtype);
}

static struct head head_of(const cddp_ddp *d)
{
    const struct cdi_powersgd *s = d->powersgd;
    struct head h;

    memset(&h, 0, sizeof h); /* padding, too: it goes into a file */
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

/* A state of other options would go on as neither of the two runs. */
static cddp_status compare(const struct head *saved, const struct head *mine, struct cdi_error *err)
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

void cdi_powersgd_close(struct cdi_powersgd_saved *w)
{
    if (w == NULL)
        return;
    free(w->has_q);
    free(w->q);
    free(w->errors);
    free(w->names);
    free(w->items);
    free(w);
}

const cddp_checkpoint_item *cdi_powersgd_items(const struct cdi_powersgd_saved *w, size_t *n)
{
    *n = w->n_items;
    return w->items;
}

static void add_item(struct cdi_powersgd_saved *w, const char *name, void *data, size_t bytes)
{
    w->items[w->n_items++] =
        (cddp_checkpoint_item){.size = sizeof(cddp_checkpoint_item), .name = name, .data = data, .bytes = bytes};
}

/* Memory for the state of n_ranks ranks, and its items. */
static cddp_status whole_init(struct cdi_powersgd_saved *w, const cddp_ddp *d, uint64_t n_ranks, struct cdi_error *err)
{
    size_t all;

    for (size_t i = 0; i < d->n_params; i++) {
        w->n_m += d->powersgd->of_param[i] != NULL;
        w->q_bytes += q_bytes(d->powersgd->of_param[i]);
        w->error_bytes += error_bytes(d->powersgd->of_param[i]);
    }
    if (n_ranks == 0 || n_ranks > CDI_CHECKPOINT_MAX_ITEMS || __builtin_mul_overflow(w->error_bytes, n_ranks, &all))
        return cdi_fail(err, CDDP_E_NOMEM, "no memory holds what %" PRIu64 " ranks have left out", n_ranks);
    w->n_ranks = (size_t)n_ranks;
    w->has_q = calloc(w->n_m + 1, 1);
    w->q = malloc(w->q_bytes + 1);
    w->errors = malloc(all + 1);
    w->names = calloc(w->n_ranks, sizeof *w->names);
    w->items = calloc(w->n_ranks + 3, sizeof *w->items);
    if (w->has_q == NULL || w->q == NULL || w->errors == NULL || w->names == NULL || w->items == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "rank 0 has no memory for what %zu ranks have left out: %zu bytes",
                        w->n_ranks, all);
    add_item(w, "powersgd.state", &w->head, sizeof w->head);
    add_item(w, "powersgd.has_q", w->has_q, w->n_m);
    add_item(w, "powersgd.q", w->q, w->q_bytes);
    for (size_t r = 0; r < w->n_ranks && w->error_bytes > 0; r++) {
        (void)snprintf(w->names[r], NAME_BYTES, "powersgd.error[%zu]", r);
        add_item(w, w->names[r], w->errors + r * w->error_bytes, w->error_bytes);
    }
    return CDDP_OK;
}

/* Between two steps, and with PowerSGD? */
static cddp_status check_reducer(cddp_ddp *d, struct cdi_error *err)
{
    cddp_status st;

    (void)pthread_mutex_lock(&d->lock);
    st = d->sticky.status;
    if (st != CDDP_OK)
        *err = d->sticky;
    else if (d->powersgd == NULL)
        st = cdi_fail(err, CDDP_E_STATE, "this reducer has no PowerSGD: call cddp_ddp_set_powersgd before");
    else if (d->begun)
        st = cdi_fail(err, CDDP_E_STATE, "PowerSGD's state was asked for in the middle of step %llu",
                      (unsigned long long)d->step);
    (void)pthread_mutex_unlock(&d->lock);
    return st;
}

/* ---------------------------------------------------------------------------------------------------- saving ---- */

/* What rank has left out, to its place on rank 0. */
static cddp_status collect(const cddp_ddp *d, struct cdi_powersgd_saved *w, int rank, struct cdi_error *err)
{
    int me = cdi_comm_world(d->comm)->rank;
    char *to = me == 0 ? w->errors + (size_t)rank * w->error_bytes : NULL;
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++) {
        const struct cdi_powersgd_matrix *m = d->powersgd->of_param[i];
        size_t bytes = error_bytes(m);

        if (bytes == 0)
            continue;
        if (me != 0)
            st = cdi_checkpoint_move(d->comm, CDI_SEND, m->error, bytes, 0, err);
        else if (rank != 0)
            st = cdi_checkpoint_move(d->comm, CDI_RECV, to, bytes, rank, err);
        else
            st = d->ops->copy(d->b, to, m->error, bytes, err);
        to = to == NULL ? NULL : to + bytes;
    }
    return st;
}

/* Rank 0's part of it that all have. */
static cddp_status fill(const cddp_ddp *d, struct cdi_powersgd_saved *w, struct cdi_error *err)
{
    size_t n = 0, at = 0;
    cddp_status st = CDDP_OK;

    w->head = head_of(d);
    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++) {
        const struct cdi_powersgd_matrix *m = d->powersgd->of_param[i];

        if (m == NULL)
            continue;
        w->has_q[n++] = m->has_q;
        st = d->ops->copy(d->b, w->q + at, m->q, q_bytes(m), err);
        at += q_bytes(m);
    }
    return st;
}

/* Empty: that of a reducer without PowerSGD, and of ranks but the first. */
static cddp_status make(struct cdi_powersgd_saved **out, struct cdi_error *err)
{
    *out = calloc(1, sizeof **out);
    return *out != NULL ? CDDP_OK : cdi_fail(err, CDDP_E_NOMEM, "no memory for PowerSGD's state");
}

/* Rank 0's status for all, but for one that has failed by itself. */
static cddp_status share(cddp_comm *comm, cddp_status st, const struct cdi_powersgd_saved *mine, struct cdi_error *err)
{
    st = cdi_checkpoint_share(comm, st, err);
    return st != CDDP_OK || mine != NULL ? st : cdi_fail(err, CDDP_E_NOMEM, "no memory for PowerSGD's state");
}

cddp_status cdi_powersgd_open_save(cddp_ddp *d, struct cdi_powersgd_saved **out, struct cdi_error *err)
{
    const struct cdi_world *world = cdi_comm_world(d->comm);
    cddp_status st = make(out, err);

    if (d->powersgd == NULL)
        return share(d->comm, st, *out, err);
    if (st == CDDP_OK && world->rank == 0)
        st = whole_init(*out, d, (uint64_t)world->size, err);
    st = share(d->comm, st, *out, err);
    if (st == CDDP_OK && world->rank == 0)
        st = fill(d, *out, err);
    for (int r = 0; r < world->size && st == CDDP_OK; r++)
        if (world->rank == 0 || world->rank == r)
            st = collect(d, *out, r, err);
    if (st == CDDP_OK)
        return st;
    cdi_powersgd_close(*out);
    *out = NULL;
    return st;
}

static cddp_status save(cddp_ddp *d, const char *dir, uint64_t step, const cddp_checkpoint_item *items, size_t n_items,
                        const cddp_checkpoint_options *opt, struct cdi_error *err)
{
    CDI_AUTOFREE cddp_checkpoint_item *all = NULL;
    struct cdi_powersgd_saved *w = NULL;
    cddp_status st = check_reducer(d, err);

    if (st != CDDP_OK)
        return st;
    st = cdi_powersgd_open_save(d, &w, err);
    if (st != CDDP_OK)
        return st;
    all = cdi_checkpoint_join(items, n_items, w->items, w->n_items, err); /* on rank 0 the state, too */
    st = cdi_checkpoint_share(d->comm, all != NULL ? CDDP_OK : err->status, err);
    if (st == CDDP_OK)
        st = cdi_checkpoint_save(d->comm, dir, step, all, n_items + w->n_items, opt, err);
    cdi_powersgd_close(w);
    return st;
}

/* --------------------------------------------------------------------------------------------------- loading ---- */

/* On rank 0: is the state in the file one that this reducer can take up, and memory for it. */
static cddp_status look(cddp_ddp *d, const char *dir, struct cdi_powersgd_saved *w, struct cdi_error *err)
{
    const struct head mine = head_of(d);
    const cddp_checkpoint_item item = {
        .size = sizeof item, .name = "powersgd.state", .data = &w->head, .bytes = sizeof w->head};
    cddp_status st = cdi_checkpoint_peek(d->comm, dir, &item, err);

    if (st == CDDP_OK)
        st = compare(&w->head, &mine, err);
    return st == CDDP_OK ? whole_init(w, d, w->head.world, err) : st;
}

static double number(cddp_dtype dtype, const char *at, size_t k)
{
    return dtype == CDDP_FLOAT64 ? ((const double *)(const void *)at)[k] : (double)((const float *)(const void *)at)[k];
}

/* Of one matrix, the mean of what all ranks of the file left out, which begins at `from` in each one's errors; there.
 */
static void mean_of(const struct cdi_powersgd_matrix *m, const struct cdi_powersgd_saved *w, size_t from)
{
    for (size_t k = 0; k < m->of.rows * m->of.cols; k++) {
        double sum = 0;

        for (size_t r = 0; r < w->n_ranks; r++)
            sum += number(m->of.dtype, w->errors + r * w->error_bytes + from, k);
        sum /= (double)w->n_ranks;
        if (m->of.dtype == CDDP_FLOAT64)
            ((double *)(void *)(w->errors + from))[k] = sum;
        else
            ((float *)(void *)(w->errors + from))[k] = (float)sum;
    }
}

/* Of one matrix, what was left out, from rank 0 (which has it at `from`) to all: its own to each, or the mean. */
static cddp_status give_errors(cddp_ddp *d, const struct cdi_powersgd_matrix *m, const struct cdi_powersgd_saved *w,
                               bool as_before, size_t from, struct cdi_error *err)
{
    const struct cdi_world *world = cdi_comm_world(d->comm);
    size_t bytes = error_bytes(m);
    cddp_status st = CDDP_OK;

    if (bytes == 0)
        return CDDP_OK;
    if (as_before && world->rank != 0)
        return cdi_checkpoint_move(d->comm, CDI_RECV, m->error, bytes, 0, err);
    if (as_before) {
        st = d->ops->copy(d->b, m->error, w->errors + from, bytes, err);
        for (int r = 1; r < world->size && st == CDDP_OK; r++)
            st = cdi_checkpoint_move(d->comm, CDI_SEND, w->errors + (size_t)r * w->error_bytes + from, bytes, r, err);
        return st;
    }
    if (world->rank == 0) {
        mean_of(m, w, from);
        st = d->ops->copy(d->b, m->error, w->errors + from, bytes, err);
    }
    return st != CDDP_OK ? st : cdi_comm_broadcast(d->comm, m->error, bytes, CDDP_UINT8, 0, err);
}

/* From rank 0's whole state to every rank's own. */
cddp_status cdi_powersgd_take_up(cddp_ddp *d, struct cdi_powersgd_saved *w, struct cdi_error *err)
{
    bool is_root = cdi_comm_world(d->comm)->rank == 0, as_before;
    size_t n = 0, q_at = 0, error_at = 0;
    cddp_status st;

    if (d->powersgd == NULL)
        return CDDP_OK;
    st = cdi_comm_broadcast(d->comm, &w->head, sizeof w->head, CDDP_UINT8, 0, err);
    as_before = w->head.world == (uint64_t)cdi_comm_world(d->comm)->size;
    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++) {
        struct cdi_powersgd_matrix *m = d->powersgd->of_param[i];
        uint8_t has_q;

        if (m == NULL)
            continue;
        has_q = is_root ? w->has_q[n++] : 0;
        if (is_root)
            st = d->ops->copy(d->b, m->q, w->q + q_at, q_bytes(m), err);
        if (st == CDDP_OK)
            st = cdi_comm_broadcast(d->comm, &has_q, 1, CDDP_UINT8, 0, err);
        if (st == CDDP_OK)
            st = cdi_comm_broadcast(d->comm, m->q, q_bytes(m), CDDP_UINT8, 0, err);
        if (st == CDDP_OK)
            st = give_errors(d, m, w, as_before, error_at, err);
        m->has_q = has_q != 0;
        q_at += q_bytes(m);
        error_at += error_bytes(m);
    }
    d->powersgd->seeds = w->head.seeds;
    /* Otherwise what was drawn comes first, or is what a lost Q becomes: the same in both runs. */
    if ((d->powersgd->opt.flags & CDDP_POWERSGD_NO_WARM_START) != 0)
        d->powersgd->is_drawn = false;
    d->powersgd->since = d->step - w->head.done;
    return st;
}

cddp_status cdi_powersgd_open_load(cddp_ddp *d, const char *dir, struct cdi_powersgd_saved **out, struct cdi_error *err)
{
    cddp_status st = make(out, err);

    if (st == CDDP_OK && d->powersgd != NULL && cdi_comm_world(d->comm)->rank == 0)
        st = look(d, dir, *out, err);
    st = share(d->comm, st, *out, err);
    if (st == CDDP_OK)
        return st;
    cdi_powersgd_close(*out);
    *out = NULL;
    return st;
}

static cddp_status load(cddp_ddp *d, const char *dir, const cddp_checkpoint_item *items, size_t n_items,
                        cddp_checkpoint_info *info, struct cdi_error *err)
{
    struct cdi_powersgd_saved *w = NULL;
    cddp_status st = check_reducer(d, err);

    if (st == CDDP_OK)
        st = cdi_powersgd_open_load(d, dir, &w, err);
    if (st != CDDP_OK)
        return st;
    st = cdi_checkpoint_load(d->comm, dir, w->items, w->n_items, items, n_items, info, err);
    if (st == CDDP_OK)
        st = cdi_powersgd_take_up(d, w, err);
    cdi_powersgd_close(w);
    return st;
}

/* ---------------------------------------------------------------------------------------------------- public ---- */

static cddp_status check(const char *function, const cddp_ddp *ddp, const char *dir, const cddp_checkpoint_item *items,
                         size_t n_items, struct cdi_error *err)
{
    if (ddp == NULL || dir == NULL || *dir == '\0' || (items == NULL && n_items > 0))
        return cdi_fail(err, CDDP_E_INVALID, "%s: no reducer, no directory, or no items", function);
    return cdi_comm_own(function, ddp->comm, err);
}

cddp_status cddp_powersgd_save(cddp_ddp *ddp, const char *dir, uint64_t step, const cddp_checkpoint_item *items,
                               size_t n_items, const cddp_checkpoint_options *opt)
{
    struct cdi_error err;
    enum cdi_asked before = cdi_comm_ask(CDI_ASKED_POWERSGD_SAVE);
    cddp_status st = check("cddp_powersgd_save", ddp, dir, items, n_items, &err);

    if (st == CDDP_OK)
        st = save(ddp, dir, step, items, n_items, opt, &err);
    (void)cdi_comm_ask(before);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

cddp_status cddp_powersgd_load(cddp_ddp *ddp, const char *dir, const cddp_checkpoint_item *items, size_t n_items,
                               cddp_checkpoint_info *info)
{
    struct cdi_error err;
    enum cdi_asked before = cdi_comm_ask(CDI_ASKED_POWERSGD_LOAD);
    cddp_status st = check("cddp_powersgd_load", ddp, dir, items, n_items, &err);

    if (st == CDDP_OK)
        st = load(ddp, dir, items, n_items, info, &err);
    (void)cdi_comm_ask(before);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
