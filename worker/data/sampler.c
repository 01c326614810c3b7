/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides which samples belong to this rank in this epoch: PyTorch's DistributedSampler, index by index, so that a run
 * can be compared with PyTorch number by number. Pure except for its memory, all of which is allocated at creation.
 */
#include "worker/data/sampler.h"

#include "worker/base/sized.h"
#include "worker/comm/comm.h"

#include <endian.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

struct cddp_sampler {
    cddp_sampler_options opt;
    int64_t epoch;
    int64_t before;   /* samples taken by all ranks before set_state */
    size_t count;     /* indices of the rest of the epoch on this rank */
    size_t next;      /* the first of them that was not taken yet */
    int64_t *order;   /* all n samples in this epoch's order; NULL: they are not shuffled */
    int64_t *indices; /* this rank's; large enough for a whole epoch */
};

static void swap(int64_t *a, int64_t *b)
{
    int64_t t = *a;

    *a = *b;
    *b = t;
}

/* Swaps each element with a random one at or after it. */
static void randperm_narrow(int64_t *out, int64_t n, struct cdi_mt19937 *g)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = i;
    for (int64_t i = 0; i < n - 1; i++)
        swap(&out[i], &out[i + cdi_mt19937_u32(g) % (n - i)]);
}

uint64_t cdi_randperm_wide_place(struct cdi_mt19937 *g, uint64_t i)
{
    uint64_t high = cdi_mt19937_u32(g);

    return (high << 32 | cdi_mt19937_u32(g)) % (i + 1);
}

static void randperm_wide(int64_t *out, int64_t n, struct cdi_mt19937 *g)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t place = cdi_randperm_wide_place(g, (uint64_t)i);

        out[i] = i;
        out[i] = out[place];
        out[place] = i;
    }
}

void cdi_randperm(int64_t *out, int64_t n, uint64_t seed)
{
    struct cdi_mt19937 g;

    cdi_mt19937_seed(&g, seed);
    if (n < CDI_RANDPERM_WIDE)
        randperm_narrow(out, n, &g);
    else
        randperm_wide(out, n, &g);
}

static cddp_status sampler_read_options(cddp_sampler_options *opt, const cddp_sampler_options *given,
                                        struct cdi_error *err)
{
    cddp_status st = cdi_sized_get(opt, sizeof *opt, given, "cddp_sampler_options", err);

    if (st != CDDP_OK)
        return st;
    if (opt->n < 0)
        return cdi_fail(err, CDDP_E_INVALID, "a data set cannot have %" PRId64 " samples", opt->n);
    if (opt->world_size < 1)
        return cdi_fail(err, CDDP_E_INVALID, "a sampler's world_size must be at least 1, not %d", opt->world_size);
    if (opt->rank < 0 || opt->rank >= opt->world_size)
        return cdi_fail(err, CDDP_E_INVALID, "a sampler's rank must be from 0 to %d, not %d", opt->world_size - 1,
                        opt->rank);
    return CDDP_OK;
}

/* `before`: number of samples taken already; with padding it may be larger than the number of samples. */
static uint64_t count_per_rank(const cddp_sampler_options *opt, int64_t before)
{
    uint64_t n = before < opt->n ? (uint64_t)(opt->n - before) : 0, world = (uint64_t)opt->world_size;

    return n / world + (n % world != 0 && !opt->drop_last);
}

/* Allocates n indices; at least one byte, so that NULL always means "no memory". */
static int64_t *make_indices(uint64_t n)
{
    if (n > PTRDIFF_MAX / sizeof(int64_t))
        return NULL;
    return malloc(n == 0 ? 1 : (size_t)n * sizeof(int64_t));
}

static cddp_status sampler_create(cddp_sampler **out, const cddp_sampler_options *given, struct cdi_error *err)
{
    cddp_sampler_options opt;
    cddp_sampler *s;
    cddp_status status;

    if (out == NULL || given == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_sampler_create: out and opt must not be NULL");
    status = sampler_read_options(&opt, given, err);
    if (status != CDDP_OK)
        return status;
    s = calloc(1, sizeof *s);
    if (s == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for a sampler");
    s->opt = opt;
    s->indices = make_indices(count_per_rank(&opt, 0));
    s->order = opt.no_shuffle ? NULL : make_indices((uint64_t)opt.n);
    if (s->indices == NULL || (s->order == NULL && !opt.no_shuffle)) {
        cddp_sampler_destroy(s);
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the indices of %" PRId64 " samples", opt.n);
    }
    (void)cddp_sampler_set_epoch(s, 0);
    *out = s;
    return CDDP_OK;
}

cddp_status cddp_sampler_create(cddp_sampler **out, const cddp_sampler_options *opt)
{
    struct cdi_error err;
    cddp_status status = sampler_create(out, opt, &err);

    return status == CDDP_OK ? status : cdi_last_error_set(&err);
}

size_t cddp_sampler_count(const cddp_sampler *sampler)
{
    return sampler == NULL ? 0 : sampler->count;
}

/* Computes the indices of the epoch after the first `before` samples. */
static void sampler_fill(cddp_sampler *s, int64_t epoch, int64_t before)
{
    const cddp_sampler_options *opt = &s->opt;
    uint64_t n = (uint64_t)opt->n;

    s->epoch = epoch;
    s->before = before;
    s->count = (size_t)count_per_rank(opt, before);
    s->next = 0;
    if (s->order != NULL)
        cdi_randperm(s->order, opt->n, (uint64_t)opt->seed + (uint64_t)epoch);
    /* Every world-size-th sample belongs to this rank; an incomplete last round is filled up from the start. */
    for (uint64_t k = 0; k < s->count; k++) {
        uint64_t at = ((uint64_t)before + (uint64_t)opt->rank + k * (uint64_t)opt->world_size) % n;

        s->indices[k] = s->order != NULL ? s->order[at] : (int64_t)at;
    }
}

cddp_status cddp_sampler_set_epoch(cddp_sampler *sampler, int64_t epoch)
{
    struct cdi_error err;

    if (sampler == NULL || epoch < 0) {
        if (sampler == NULL)
            (void)cdi_fail(&err, CDDP_E_INVALID, "cddp_sampler_set_epoch: sampler must not be NULL");
        else
            (void)cdi_fail(&err, CDDP_E_INVALID, "an epoch cannot be %" PRId64, epoch);
        return cdi_last_error_set(&err);
    }
    sampler_fill(sampler, epoch, 0);
    return CDDP_OK;
}

int64_t cddp_sampler_epoch(const cddp_sampler *sampler)
{
    return sampler == NULL ? 0 : sampler->epoch;
}

const int64_t *cddp_sampler_indices(const cddp_sampler *sampler)
{
    return sampler == NULL ? NULL : sampler->indices;
}

size_t cddp_sampler_next(cddp_sampler *sampler, size_t want, const int64_t **indices)
{
    size_t left, n;

    if (sampler == NULL || indices == NULL)
        return 0;
    left = sampler->count - sampler->next;
    n = want < left ? want : left;
    *indices = sampler->indices + sampler->next;
    sampler->next += n;
    return n;
}

/* The words of a cddp_sampler_state, each little-endian; the remaining ones are 0. */
enum { W_FORMAT, W_EPOCH, W_TAKEN, W_N, W_SEED, W_NO_SHUFFLE, N_WORDS };

#define FORMAT UINT64_C(0x014d415350444443) /* "CDDPSAM" and the format's version, 1 */

/* The same as numbers. */
struct place {
    int64_t epoch; /* of set_epoch */
    int64_t taken; /* samples of it taken by all ranks together, if each took as many as this one */
    int64_t n;     /* the options that determine the order of the samples */
    int64_t seed;
    bool no_shuffle;
};

void cddp_sampler_get_state(const cddp_sampler *sampler, cddp_sampler_state *state)
{
    const cddp_sampler_options *opt;

    if (state == NULL)
        return;
    *state = (cddp_sampler_state){{0}}; /* not the state of any sampler: set_state rejects it */
    if (sampler == NULL)
        return;
    opt = &sampler->opt;
    state->words[W_FORMAT] = htole64(FORMAT);
    state->words[W_EPOCH] = htole64((uint64_t)sampler->epoch);
    state->words[W_TAKEN] = htole64((uint64_t)(sampler->before + (int64_t)sampler->next * opt->world_size));
    state->words[W_N] = htole64((uint64_t)opt->n);
    state->words[W_SEED] = htole64((uint64_t)opt->seed);
    state->words[W_NO_SHUFFLE] = htole64(opt->no_shuffle != 0);
}

static bool read_state(struct place *p, const cddp_sampler_state *st)
{
    const uint64_t *w = st->words;

    for (size_t k = N_WORDS; k < sizeof st->words / sizeof st->words[0]; k++)
        if (w[k] != 0)
            return false;
    *p = (struct place){.epoch = (int64_t)le64toh(w[W_EPOCH]),
                        .taken = (int64_t)le64toh(w[W_TAKEN]),
                        .n = (int64_t)le64toh(w[W_N]),
                        .seed = (int64_t)le64toh(w[W_SEED]),
                        .no_shuffle = w[W_NO_SHUFFLE] != 0};
    return le64toh(w[W_FORMAT]) == FORMAT && le64toh(w[W_NO_SHUFFLE]) <= 1 && p->epoch >= 0 && p->taken >= 0 &&
           p->taken <= INT64_MAX - INT_MAX;
}

/*
 * Checks that the position means the same to a sampler of these options. At the start of an epoch every position does.
 */
static cddp_status sampler_check_place(const struct place *p, const cddp_sampler_options *opt, struct cdi_error *err)
{
    if (p->taken == 0)
        return CDDP_OK;
    if (p->n != opt->n)
        return cdi_fail(err, CDDP_E_MISMATCH,
                        "the sampler was saved in the middle of an epoch over %" PRId64
                        " samples, and the data set now has %" PRId64 ": begin an epoch (cddp_sampler_set_epoch)",
                        p->n, opt->n);
    if (p->no_shuffle != (opt->no_shuffle != 0) || (!opt->no_shuffle && p->seed != opt->seed))
        return cdi_fail(err, CDDP_E_MISMATCH,
                        "the sampler was saved in the middle of an epoch %s %" PRId64 ", and is now %s %" PRId64
                        ": use the same, or begin an epoch (cddp_sampler_set_epoch)",
                        p->no_shuffle ? "not shuffled, seed" : "shuffled by seed", p->seed,
                        opt->no_shuffle ? "not shuffled, seed" : "shuffled by seed", opt->seed);
    return CDDP_OK;
}

/* Reads the position from a state, for this sampler. */
static cddp_status sampler_find_place(struct place *p, const cddp_sampler *s, const cddp_sampler_state *state,
                                      struct cdi_error *err)
{
    if (s == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_sampler_set_state: sampler must not be NULL");
    if (state == NULL || !read_state(p, state))
        return cdi_fail(err, CDDP_E_INVALID,
                        "this is not a cddp_sampler_state, or it has the format of another version");
    return sampler_check_place(p, &s->opt, err);
}

cddp_status cdi_sampler_check_state(const cddp_sampler *sampler, const cddp_sampler_state *state, struct cdi_error *err)
{
    struct place p;

    return sampler_find_place(&p, sampler, state, err);
}

size_t cdi_sampler_first_place(const cddp_sampler_state *places, size_t n, bool *one_order)
{
    struct place first = {0};
    bool one = true, begun = false;
    size_t at = 0;

    for (size_t i = 0; i < n; i++) {
        struct place p = {0}; /* one that cannot be read counts as the beginning: no sample is lost */

        one = read_state(&p, &places[i]) && one;
        begun = begun || p.taken > 0;
        if (i == 0)
            first = p;
        one = one && p.n == first.n && p.no_shuffle == first.no_shuffle && (p.no_shuffle || p.seed == first.seed);
        if (p.epoch < first.epoch || (p.epoch == first.epoch && p.taken < first.taken)) {
            first.epoch = p.epoch;
            first.taken = p.taken;
            at = i;
        }
    }
    if (one_order != NULL)
        *one_order = one || !begun;
    return at;
}

static cddp_status set_state(cddp_sampler *s, const cddp_sampler_state *state, struct cdi_error *err)
{
    struct place p = {0};
    cddp_status st = sampler_find_place(&p, s, state, err);

    if (st == CDDP_OK)
        sampler_fill(s, p.epoch, p.taken);
    return st;
}

cddp_status cddp_sampler_set_state(cddp_sampler *sampler, const cddp_sampler_state *state)
{
    struct cdi_error err;
    cddp_status status = set_state(sampler, state, &err);

    return status == CDDP_OK ? status : cdi_last_error_set(&err);
}

void cddp_sampler_destroy(cddp_sampler *sampler)
{
    if (sampler == NULL)
        return;
    free(sampler->order);
    free(sampler->indices);
    free(sampler);
}
