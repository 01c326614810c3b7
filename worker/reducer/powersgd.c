/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/powersgd.h"

#include "common/float_state.h"
#include "worker/backend/who.h"
#include "worker/base/sized.h"
#include "worker/comm/agree.h"
#include "worker/math/randn.h"
#include "worker/reducer/grads/in_place.h"
#include "worker/reducer/plan.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/used.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_START_STEP 1000
#define DEFAULT_RATE 2.0
#define SEEDS 1000000000u /* upper bound, exclusive, of the random numbers that seed a matrix Q */

/* ---------------------------------------------------------------------------------------------------- set up ---- */

static void release_packet(const struct cdi_powersgd *s, struct cdi_powersgd_packet *k)
{
    void *there[] = {k->sent, k->qs, k->fresh, k->errors};

    for (size_t i = 0; i < sizeof there / sizeof there[0]; i++)
        if (there[i] != NULL)
            s->ops->release(s->b, there[i]);
    free(k->m);
    free(k->plain);
    free(k->work);
}

void cdi_powersgd_destroy(struct cdi_powersgd *s)
{
    struct cdi_error err;

    if (s == NULL)
        return;
    if (s->ops->on_device) /* everything that still uses it is complete then; a communicator that has failed keeps it */
        (void)s->ops->copy(s->b, NULL, NULL, 0, &err);
    for (size_t b = 0; s->packets != NULL && b < s->n; b++)
        release_packet(s, &s->packets[b]);
    free(s->packets);
    free(s->of_param);
    free(s);
}

/* Returns true if the parameter is a matrix worth compressing. */
static bool compresses(const struct cdi_powersgd *s, const cddp_ddp *d, size_t i, struct cdi_lowrank *of)
{
    size_t rows = d->rows[i], cols = d->params[i].count / rows, rank = s->opt.matrix_rank;

    rank = rank > rows ? rows : rank;
    rank = rank > cols ? cols : rank;
    *of = (struct cdi_lowrank){.dtype = d->params[i].grad_dtype, .rows = rows, .cols = cols, .rank = rank};
    return (of->dtype == CDDP_FLOAT32 || of->dtype == CDDP_FLOAT64) &&
           ((double)rows + (double)cols) * (double)rank * s->opt.min_compression_rate < (double)rows * (double)cols;
}

/* Lists the bucket's matrices in the order of the arena, but those of one shape together, as PyTorch does. */
static void list_matrices(const struct cdi_powersgd *s, const cddp_ddp *d, size_t bucket, struct cdi_powersgd_packet *k)
{
    for (size_t at = 0, n = d->plan.b[bucket].n_grads; at < n; at++) {
        size_t first = cdi_bucket_grad(&d->plan, bucket, at);
        struct cdi_lowrank of, other;
        bool known = false;

        if (first >= d->n_params || !compresses(s, d, first, &of))
            continue;
        for (size_t j = 0; j < k->n_m && !known; j++)
            known = k->m[j].of.rows == of.rows && k->m[j].of.cols == of.cols;
        for (size_t later = at; !known && later < n; later++) {
            size_t i = cdi_bucket_grad(&d->plan, bucket, later);

            if (compresses(s, d, i, &other) && other.rows == of.rows && other.cols == of.cols)
                k->m[k->n_m++] = (struct cdi_powersgd_matrix){.of = other, .param = i, .m = cdi_arena_grad(d, i)};
        }
    }
}

/* Lists what of the bucket is not in a matrix. */
static void list_plain(const struct cdi_powersgd *s, const cddp_ddp *d, size_t bucket, struct cdi_powersgd_packet *k)
{
    const struct cdi_bucket *b = &d->plan.b[bucket];
    size_t at = b->offset;

    for (size_t j = 0; j < b->n_grads; j++) {
        size_t i = cdi_bucket_grad(&d->plan, bucket, j);
        const struct cdi_grad *g = &d->plan.grads[i];

        if (i >= d->n_params || s->of_param[i] == NULL)
            continue;
        if (g->offset > at)
            k->plain[k->n_plain++] = (struct cdi_slice){.data = (char *)d->region->base + at, .bytes = g->offset - at};
        at = g->offset + g->bytes;
    }
    if (b->offset + b->bytes > at)
        k->plain[k->n_plain++] =
            (struct cdi_slice){.data = (char *)d->region->base + at, .bytes = b->offset + b->bytes - at};
    for (size_t j = 0; j < k->n_plain; j++)
        k->plain_bytes += k->plain[j].bytes;
}

/* Allocates zeroed memory of the backend: what a checkpoint stores of it is never undefined. */
static cddp_status powersgd_get(const struct cdi_powersgd *s, size_t bytes, char **out, struct cdi_error *err)
{
    void *p = NULL;
    cddp_status st = cdi_backend_zeros(s->ops, s->b, bytes > 0 ? bytes : 1, &p, err);

    *out = p;
    return st;
}

/* Computes the offset of each P, Q and error in the packet's memory. */
static cddp_status powersgd_place(const struct cdi_powersgd *s, struct cdi_powersgd_packet *k, struct cdi_error *err)
{
    size_t size = cddp_dtype_size(k->dtype);
    bool keeps = (s->opt.flags & CDDP_POWERSGD_NO_ERROR_FEEDBACK) == 0;
    char *p, *q, *e;
    cddp_status st;

    k->sent_bytes = k->plain_bytes;
    for (size_t j = 0; j < k->n_m; j++) {
        k->sent_bytes += k->m[j].of.rows * k->m[j].of.rank * size;
        k->q_bytes += k->m[j].of.cols * k->m[j].of.rank * size;
        k->error_bytes += keeps ? k->m[j].of.rows * k->m[j].of.cols * size : 0;
    }
    st = powersgd_get(s, k->sent_bytes, &k->sent, err);
    if (st == CDDP_OK)
        st = powersgd_get(s, k->q_bytes, &k->qs, err);
    if (st == CDDP_OK)
        st = powersgd_get(s, k->q_bytes, &k->fresh, err);
    if (st == CDDP_OK)
        st = powersgd_get(s, k->error_bytes, &k->errors, err);
    if (st != CDDP_OK)
        return st;
    p = k->sent + k->plain_bytes;
    q = k->qs;
    e = k->errors;
    for (size_t j = 0; j < k->n_m; j++) {
        k->m[j].p = p;
        k->m[j].q = q;
        k->m[j].fresh = k->fresh + (q - k->qs);
        k->m[j].error = keeps ? e : NULL;
        p += k->m[j].of.rows * k->m[j].of.rank * size;
        q += k->m[j].of.cols * k->m[j].of.rank * size;
        e += k->m[j].of.rows * k->m[j].of.cols * size;
    }
    return CDDP_OK;
}

static cddp_status set_up_packet(const struct cdi_powersgd *s, const cddp_ddp *d, size_t bucket, struct cdi_error *err)
{
    struct cdi_powersgd_packet *k = &s->packets[d->plan.b[bucket].made];
    size_t n = d->plan.b[bucket].n_grads;

    k->dtype = d->plan.b[bucket].dtype;
    k->m = calloc(n + 1, sizeof *k->m);
    k->plain = calloc(n + 1, sizeof *k->plain);
    k->work = calloc(n + 1, sizeof *k->work);
    if (k->m == NULL || k->plain == NULL || k->work == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for PowerSGD's list of %zu gradients", n);
    list_matrices(s, d, bucket, k);
    for (size_t j = 0; j < k->n_m; j++)
        s->of_param[k->m[j].param] = &k->m[j];
    if (k->n_m == 0)
        return CDDP_OK;
    list_plain(s, d, bucket, k);
    return powersgd_place(s, k, err);
}

/* Like numpy's RandomState.randint(SEEDS), which discards numbers that are too large. */
static uint32_t draw_seed(struct cdi_mt19937 *g)
{
    uint32_t v;

    do
        v = cdi_mt19937_u32(g) & ((UINT32_C(1) << 30) - 1);
    while (v >= SEEDS);
    return v;
}

/* Draws normally distributed numbers row by row into `drawn`, and stores the orthonormalized columns in q. */
static void draw_q(const struct cdi_lowrank *of, struct cdi_normal *g, double epsilon, void *drawn, char *q)
{
    size_t size = cddp_dtype_size(of->dtype);

    if (of->dtype == CDDP_FLOAT32)
        cdi_normal_f32(g, drawn, of->cols * of->rank);
    else
        cdi_normal_f64(g, drawn, of->cols * of->rank);
    for (size_t j = 0; j < of->cols; j++)
        for (size_t r = 0; r < of->rank; r++)
            memcpy(q + (r * of->cols + j) * size, (char *)drawn + (j * of->rank + r) * size, size);
    (void)cdi_lowrank_orthogonalize(of->dtype, q, of->cols, of->rank, epsilon);
}

/* Draws a fresh Q for each matrix of a bucket. On a device the host waits until it is there. */
static cddp_status draw_packet(struct cdi_powersgd *s, const struct cdi_powersgd_packet *k, struct cdi_error *err)
{
    char *room = calloc(1, 2 * k->q_bytes + 1), *qs = s->ops->on_device ? room : k->fresh;
    struct cdi_normal g;

    if (room == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu bytes of random numbers", k->q_bytes);
    cdi_normal_seed(&g, draw_seed(&s->after));
    for (size_t j = 0; j < k->n_m; j++)
        draw_q(&k->m[j].of, &g, s->opt.orthogonalization_epsilon, room + k->q_bytes, qs + (k->m[j].q - k->qs));
    if (s->ops->on_device && s->ops->copy(s->b, k->fresh, qs, k->q_bytes, err) != CDDP_OK) {
        free(room);
        return err->status;
    }
    free(room);
    return CDDP_OK;
}

/*
 * Draws those of all buckets at once, in the order in which the plan was made: random numbers must not depend on the
 * launch order of the buckets, which a run that continues from a checkpoint has not learned yet. It is done in advance,
 * so that no step waits for it.
 */
static cddp_status powersgd_draw(struct cdi_powersgd *s, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    s->after = s->seeds;
    for (size_t b = 0; b < s->n && st == CDDP_OK; b++)
        if (s->packets[b].n_m > 0)
            st = draw_packet(s, &s->packets[b], err);
    s->is_drawn = st == CDDP_OK;
    return st;
}

static cddp_status powersgd_create(struct cdi_powersgd **out, const cddp_ddp *d, const cddp_powersgd_options *opt,
                                   struct cdi_error *err)
{
    struct cdi_powersgd *s = calloc(1, sizeof *s);
    cddp_status st = CDDP_OK;

    if (s == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for PowerSGD");
    s->opt = *opt;
    s->ops = d->ops;
    s->b = d->b;
    s->since = d->step;
    s->n = d->plan.n;
    cdi_mt19937_seed(&s->seeds, opt->seed);
    s->packets = calloc(s->n, sizeof *s->packets);
    s->of_param = calloc(d->n_params, sizeof(void *));
    if (s->packets == NULL || s->of_param == NULL)
        st = cdi_fail(err, CDDP_E_NOMEM, "no memory for PowerSGD's list of %zu gradients", d->n_params);
    for (size_t b = 0; b < s->n && st == CDDP_OK; b++)
        st = set_up_packet(s, d, b, err);
    if (st == CDDP_OK)
        st = powersgd_draw(s, err);
    if (st == CDDP_OK)
        *out = s;
    else
        cdi_powersgd_destroy(s);
    return st;
}

/* --------------------------------------------------------------------------------------------------- in a step ---- */

static struct cdi_powersgd_packet *packet_of(const cddp_ddp *d, size_t bucket)
{
    return &d->powersgd->packets[d->plan.b[bucket].made];
}

bool cdi_powersgd_applies(const cddp_ddp *d, size_t bucket)
{
    return d->powersgd != NULL && d->step - d->powersgd->since >= d->powersgd->opt.start_step &&
           packet_of(d, bucket)->n_m > 0;
}

static cddp_status powersgd_reduce(cddp_ddp *d, size_t bucket, bool last, void *at, size_t bytes,
                                   struct cdi_powersgd_packet *k, struct cdi_error *err)
{
    struct cdi_coll op = {.kind = CDI_ALL_REDUCE,
                          .in = at,
                          .out = at,
                          .count = bytes / cddp_dtype_size(k->dtype),
                          .dtype = k->dtype,
                          .op = CDDP_AVG,
                          .bucket = (int)bucket,
                          .name_bucket = d->ops->on_device ? NULL : cdi_ddp_name_bucket,
                          .ddp = d,
                          .timed = cdi_ddp_times_step(d, d->step),
                          .lazy = last,
                          .grace = last && cdi_comm_world(d->comm)->size > 1};
    cddp_status st = cdi_ddp_begin(d, &op, &k->ticket, err);

    if (st == CDDP_OK)
        d->enqueued = d->flight[bucket].ticket = k->ticket;
    return st;
}

/*
 * Lists the bucket's matrices in k->work (with_q: those that have a Q), and returns their number. If no rank used a
 * gradient, its result is discarded, so nothing of it was sent: `nowhere` leaves the errors of those out.
 */
static size_t list_work(const cddp_ddp *d, struct cdi_powersgd_packet *k, bool with_q, bool nowhere)
{
    size_t n = 0;

    for (size_t j = 0; j < k->n_m; j++) {
        const struct cdi_powersgd_matrix *m = &k->m[j];

        if (m->has_q || !with_q)
            k->work[n++] = (struct cdi_lowrank_matrix){
                .of = m->of,
                .m = m->m,
                .p = m->p,
                .q = m->q,
                .error = nowhere && cdi_used_nowhere(d, m->param) ? NULL : m->error,
                .fresh = m->fresh,
            };
    }
    return n;
}

static cddp_status compute(const cddp_ddp *d, enum cdi_lowrank_step step, const struct cdi_powersgd_packet *k, size_t n,
                           double epsilon, struct cdi_error *err)
{
    if (d->ops->on_device)
        return d->ops->lowrank(d->b, step, k->work, n, epsilon, err);
    cdi_lowrank_do(step, k->work, n, epsilon);
    return CDDP_OK;
}

/*
 * Sets a basis for each matrix of a bucket: that of the last step, or a fresh one, also if the last one is degenerate.
 */
static cddp_status make_qs(const cddp_ddp *d, struct cdi_powersgd_packet *k, bool *used, struct cdi_error *err)
{
    bool keeps = (d->powersgd->opt.flags & CDDP_POWERSGD_NO_WARM_START) == 0;
    size_t n = list_work(d, k, true, false);
    cddp_status st = compute(d, CDI_LOWRANK_BASIS_Q, k, n, d->powersgd->opt.orthogonalization_epsilon, err);

    for (size_t j = 0; j < k->n_m && st == CDDP_OK; j++) {
        struct cdi_powersgd_matrix *m = &k->m[j];
        const struct cdi_slice fresh = {m->fresh, m->of.cols * m->of.rank * cddp_dtype_size(m->of.dtype)};

        if (m->has_q)
            continue;
        st = d->ops->pack(d->b, m->q, &fresh, 1, err);
        m->has_q = keeps;
        *used = true;
    }
    return st;
}

/* Draws what this step needs, once per step. */
static cddp_status make_all_qs(const cddp_ddp *d, struct cdi_powersgd *s, struct cdi_error *err)
{
    cddp_status st = s->is_drawn || s->has_begun ? CDDP_OK : powersgd_draw(s, err);
    bool used = false;

    for (size_t b = 0; b < s->n && st == CDDP_OK && !s->has_begun; b++)
        st = make_qs(d, &s->packets[b], &used, err);
    if (used)
        s->seeds = s->after;
    if (used && (s->opt.flags & CDDP_POWERSGD_NO_WARM_START) != 0)
        s->is_drawn = false;
    s->has_begun = true;
    return st;
}

cddp_status cdi_powersgd_begin(cddp_ddp *d, size_t bucket)
{
    struct cdi_powersgd_packet *k = packet_of(d, bucket);
    struct cdi_error err;
    cddp_status st = make_all_qs(d, d->powersgd, &err);
    size_t n;

    if (st != CDDP_OK)
        return cdi_ddp_fail_misuse(d, &err);
    n = list_work(d, k, false, false);
    st = d->ops->pack(d->b, k->sent, k->plain, k->n_plain, &err);
    if (st == CDDP_OK)
        st = compute(d, CDI_LOWRANK_FEED, k, n, 0, &err);
    if (st == CDDP_OK)
        st = compute(d, CDI_LOWRANK_LEFT, k, n, 0, &err);
    if (st == CDDP_OK)
        st = powersgd_reduce(d, bucket, bucket + 1 == d->plan.n, k->sent, k->sent_bytes, k, &err);
    k->begun = st == CDDP_OK;
    return st == CDDP_OK ? st : cdi_ddp_set_error(d, &err);
}

/* Continues after the means of M Q over all ranks' M are there (on a device: are enqueued). */
static cddp_status second_half(cddp_ddp *d, size_t bucket, struct cdi_powersgd_packet *k, struct cdi_error *err)
{
    /* PyTorch compares epsilon with the sum's length; this is the mean. */
    double epsilon = d->powersgd->opt.orthogonalization_epsilon / cdi_comm_world(d->comm)->size;
    size_t n = list_work(d, k, false, false);
    cddp_status st = d->ops->unpack(d->b, k->plain, k->n_plain, k->sent, err);

    if (st == CDDP_OK)
        st = compute(d, CDI_LOWRANK_BASIS_P, k, n, epsilon, err);
    if (st == CDDP_OK)
        st = compute(d, CDI_LOWRANK_RIGHT, k, n, 0, err);
    return st == CDDP_OK ? powersgd_reduce(d, bucket, bucket + 1 == d->plan.n, k->qs, k->q_bytes, k, err) : st;
}

/* Continues after the means of M^T P are there. */
static cddp_status decompress(cddp_ddp *d, struct cdi_powersgd_packet *k, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    if (!d->ops->on_device) {
        st = d->ops->join(d->b, k->ticket, err);
        d->joined = st == CDDP_OK ? k->ticket : d->joined;
    }
    k->begun = false;
    return st == CDDP_OK ? compute(d, CDI_LOWRANK_PRODUCT, k, list_work(d, k, false, true), 0, err) : st;
}

cddp_status cdi_powersgd_complete(cddp_ddp *d)
{
    struct cdi_powersgd *s = d->powersgd;
    cddp_status st = CDDP_OK;
    struct cdi_error err;

    for (size_t b = 0; s != NULL && b < d->plan.n && st == CDDP_OK; b++)
        if (packet_of(d, b)->begun)
            st = second_half(d, b, packet_of(d, b), &err);
    if (s != NULL && st == CDDP_OK && d->ops->on_device)
        st = cdi_used_await(d, &err); /* the host decides whose error is kept */
    for (size_t b = 0; s != NULL && b < d->plan.n && st == CDDP_OK; b++)
        if (packet_of(d, b)->begun)
            st = decompress(d, packet_of(d, b), &err);
    if (s != NULL)
        s->has_begun = false;
    return st == CDDP_OK ? st : cdi_ddp_set_error(d, &err);
}

/* ---------------------------------------------------------------------------------------------------- public ---- */

/* Reads the program's options, or NULL, with defaults; after a failure only those are valid. */
static cddp_status powersgd_read_options(cddp_powersgd_options *opt, const cddp_powersgd_options *given,
                                         struct cdi_error *err)
{
    cddp_status st;

    *opt = (cddp_powersgd_options){.size = sizeof *opt};
    st = given == NULL ? CDDP_OK : cdi_sized_get(opt, sizeof *opt, given, "cddp_powersgd_options", err);
    opt->matrix_rank = opt->matrix_rank == 0 ? 1 : opt->matrix_rank;
    opt->start_step = opt->start_step == 0 ? DEFAULT_START_STEP : opt->start_step;
    opt->min_compression_rate = opt->min_compression_rate == 0 ? DEFAULT_RATE : opt->min_compression_rate;
    if (st != CDDP_OK)
        return st;
    if (!(opt->min_compression_rate >= 0) || !(opt->orthogonalization_epsilon >= 0) ||
        !isfinite(opt->orthogonalization_epsilon))
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_powersgd_options: min_compression_rate and orthogonalization_epsilon must be 0 or more");
    if ((opt->flags & ~(CDDP_POWERSGD_NO_ERROR_FEEDBACK | CDDP_POWERSGD_NO_WARM_START)) != 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_powersgd_options.flags has unknown bits (%#x)", opt->flags);
    return CDDP_OK;
}

static cddp_status powersgd_check_reducer(const cddp_ddp *d, struct cdi_error *err)
{
    if (d->begun)
        return cdi_fail(err, CDDP_E_STATE, "cddp_ddp_set_powersgd was called in the middle of step %llu",
                        (unsigned long long)d->step);
    if (cdi_plan_check_final(d, "cddp_ddp_set_powersgd", err) != CDDP_OK)
        return err->status;
    if ((d->flags & CDDP_DDP_SKIP_UNUSED) != 0)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_ddp_set_powersgd: this reducer leaves out unused buckets (CDDP_DDP_SKIP_UNUSED)");
    if (d->n_frozen > 0)
        return cdi_fail(err, CDDP_E_UNSUPPORTED, "cddp_ddp_set_powersgd: parameters are frozen (cddp_ddp_set_frozen)");
    if (d->comm_dtype != CDDP_DTYPE_NONE)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_ddp_set_powersgd: this reducer compresses gradients already "
                        "(comm_dtype)");
    if ((d->flags & CDDP_DDP_SPLIT) != 0)
        return cdi_fail(
            err, CDDP_E_INVALID,
            "cddp_ddp_set_powersgd: it needs whole gradients, not gradients in several buckets (CDDP_DDP_SPLIT)");
    if ((d->flags & CDDP_DDP_SUM) != 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_ddp_set_powersgd: it computes means, not sums (CDDP_DDP_SUM)");
    return CDDP_OK;
}

/* What all ranks must agree on: another seed would give another basis, with no other symptom. */
struct agreed {
    uint64_t flags, seed, step, matrix_rank, start_step, rate, epsilon; /* the last two: their bits */
};

static cddp_status powersgd_agree(cddp_ddp *d, const cddp_powersgd_options *o, const struct cdi_error *alone,
                                  struct cdi_error *err)
{
    const struct cdi_world *world = cdi_comm_world(d->comm);
    struct agreed mine = {.flags = o->flags,
                          .seed = o->seed,
                          .step = d->step,
                          .matrix_rank = o->matrix_rank,
                          .start_step = o->start_step};
    const struct agreed *all;
    void *cards;
    cddp_status st;

    memcpy(&mine.rate, &o->min_compression_rate, sizeof mine.rate);
    memcpy(&mine.epsilon, &o->orthogonalization_epsilon, sizeof mine.epsilon);
    st = cdi_comm_agree(d->comm, "use PowerSGD", &mine, sizeof mine, &cards, alone, err);
    all = cards;
    for (int r = 1; r < world->size && st == CDDP_OK; r++)
        if (memcmp(&all[r], &all[0], sizeof mine) != 0)
            st = cdi_fail_by(err, cdi_rank_of_job(world, r), CDDP_E_MISMATCH,
                             "cddp_ddp_set_powersgd: %s has other options than rank 0, or is in another step",
                             cdi_who(world->ranks, r).text);
    free(cards);
    return st;
}

static cddp_status set_powersgd(cddp_ddp *d, const cddp_powersgd_options *opt, struct cdi_error *err)
{
    struct cdi_powersgd *s = NULL;
    cddp_powersgd_options o;
    struct cdi_error alone;
    cddp_status mine, st;

    if (d->sticky.status != CDDP_OK) {
        *err = d->sticky;
        return err->status;
    }
    mine = powersgd_read_options(&o, opt, &alone);
    if (mine == CDDP_OK)
        mine = powersgd_check_reducer(d, &alone);
    mine = cdi_in_place_disable(d, "use PowerSGD", mine, &alone);
    if (mine == CDDP_OK)
        mine = powersgd_create(&s, d, &o, &alone);
    st = powersgd_agree(d, &o, mine == CDDP_OK ? NULL : &alone, err);
    if (st == CDDP_OK) {
        cdi_powersgd_destroy(d->powersgd);
        d->powersgd = s;
        d->hook = (cddp_hook){0};
        return CDDP_OK;
    }
    cdi_powersgd_destroy(s);
    return st;
}

cddp_status cddp_ddp_set_powersgd(cddp_ddp *ddp, const cddp_powersgd_options *opt)
{
    CDI_DEFAULT_FLOAT_STATE;
    enum cdi_api_call before = cdi_api_enter(CDI_API_SET_POWERSGD);
    struct cdi_error err;
    cddp_status st = cdi_ddp_check("cddp_ddp_set_powersgd", ddp, &err);

    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&ddp->lock);
        st = set_powersgd(ddp, opt, &err);
        (void)pthread_mutex_unlock(&ddp->lock);
    }
    (void)cdi_api_enter(before);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
