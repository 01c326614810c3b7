/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whatever the floating-point state of the calling threads is, results have the bits of a run in the default state, and
 * each call leaves the state as it found it. Started by cddprun or mpirun. Everything that computes runs once in the
 * default state, and then in each other state: on one rank, on all of them, and with another state at every call. The
 * communicators are made in that state, too, and so are their threads.
 *
 * - flushing: this program was linked with -ffast-math, and so flushes small numbers to zero from its start. It must be
 *   in that state before and after, and makes its communicator there
 *
 * Inputs are made of bits, not by arithmetic: many are denormal, or their sums are.
 */
#include "float_words.h"
#include "mean_hook.h"
#include "rank_check.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#define PUT_MAX 4096
#define MOST 5000 /* elements */
#define PARAMS 3
#define STEPS 2

enum who { NOBODY, THE_LAST, ALL, IN_TURNS };

static const char *const who_names[] = {"nobody", "the last rank", "all ranks", "all ranks in turns"};

static int rank, n_ranks;
static cddp_comm *comm;
static enum who who;
static enum float_word word;
static unsigned n_calls;

/* ------------------------------------------------------------------------------------------------ the results ---- */

static struct {
    char what[96];
    void *bits;
    size_t bytes;
} first[PUT_MAX];
static size_t n_put, n_first, n_different, n_changed;

/* The first time a result is kept; later it must be the same. */
static void put(const char *what, const void *p, size_t bytes)
{
    size_t k = n_put++;

    CHECK(k < PUT_MAX, "too many results");
    if (who == NOBODY) {
        first[k].bits = malloc(bytes);
        CHECK(first[k].bits != NULL, "memory");
        memcpy(first[k].bits, p, bytes);
        first[k].bytes = bytes;
        (void)snprintf(first[k].what, sizeof first[k].what, "%s", what);
        n_first = n_put;
        return;
    }
    CHECK(k < n_first && strcmp(first[k].what, what) == 0 && first[k].bytes == bytes, "%s", what);
    if (memcmp(first[k].bits, p, bytes) == 0)
        return;
    if (n_different++ < 20)
        fprintf(stderr, "rank %d: other bits of %s where %s had %s\n", rank, what, who_names[who], float_names[word]);
}

/* ------------------------------------------------------------------------------------------------- the states ---- */

static uint64_t set_for_call(void)
{
    enum float_word w = word;

    if (who == NOBODY || (who == THE_LAST && rank != n_ranks - 1))
        w = FLOAT_DEFAULT;
    if (who == IN_TURNS)
        w = (enum float_word)((n_calls + 2 * (unsigned)rank) % N_FLOAT_WORDS);
    n_calls++;
    float_set(float_words[w]);
    return float_words[w];
}

static void end_call(const char *call, uint64_t set)
{
    uint64_t after = float_get();

    float_set(float_words[FLOAT_DEFAULT]);
    if (after != set && n_changed++ < 20)
        fprintf(stderr, "rank %d: the state was %#llx, and is %#llx after %s\n", rank, (unsigned long long)set,
                (unsigned long long)after, call);
}

/* A call in the state of the day; all around it is in the default state. */
#define DO(call)                                            \
    do {                                                    \
        uint64_t set_ = set_for_call();                     \
        cddp_status st_ = (call);                           \
                                                            \
        end_call(#call, set_);                              \
        CHECK(st_ == CDDP_OK, "%s", cddp_status_name(st_)); \
    } while (0)
#define DO_VOID(call)                   \
    do {                                \
        uint64_t set_ = set_for_call(); \
                                        \
        call;                           \
        end_call(#call, set_);          \
    } while (0)

/* ------------------------------------------------------------------------------------------------- the inputs ---- */

static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 32);
}

/* A number of `bits` bits, of which the exponent has `exponent` and a bias: denormal, near the smallest, or near 1. */
static uint64_t number(uint64_t seed, unsigned bits, unsigned exponent)
{
    uint64_t r = mixed(seed), fraction = bits - 1 - exponent, bias = (UINT64_C(1) << (exponent - 1)) - 1;
    uint64_t e = r % 3 == 0 ? 0 : r % 3 == 1 ? 1 + (r >> 8) % 2 : bias - (r >> 8) % 2;

    return ((r >> 16) & ((UINT64_C(1) << fraction) - 1)) | e << fraction | ((r >> 10) & 1) << (bits - 1);
}

static void fill(void *to, size_t count, cddp_dtype dtype, unsigned salt)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t seed = (uint64_t)i * 64 + (uint64_t)rank * 7919 + (uint64_t)salt * 104729 + 1;

        uint64_t f64 = number(seed, 64, 11);
        uint32_t f32 = (uint32_t)number(seed, 32, 8);
        uint16_t f16 = (uint16_t)number(seed, 16, dtype == CDDP_FLOAT16 ? 5 : 8);

        if (dtype == CDDP_FLOAT64)
            memcpy((char *)to + 8 * i, &f64, 8);
        else if (dtype == CDDP_FLOAT32)
            memcpy((char *)to + 4 * i, &f32, 4);
        else
            memcpy((char *)to + 2 * i, &f16, 2);
    }
}

/* ------------------------------------------------------------------------------------------------ collectives ---- */

static const struct {
    cddp_dtype dtype;
    const char *name;
} types[] = {
    {CDDP_FLOAT16, "float16"}, {CDDP_BFLOAT16, "bfloat16"}, {CDDP_FLOAT32, "float32"}, {CDDP_FLOAT64, "float64"}};

static const struct {
    cddp_redop op;
    const char *name;
} operations[] = {{CDDP_SUM, "sum"}, {CDDP_AVG, "mean"}, {CDDP_PROD, "product"}, {CDDP_MAX, "maximum"}};

static uint64_t in[MOST * 4], out[MOST * 4]; /* of any type */

static void wait_for_thread(uint64_t ticket)
{
    const struct timespec moment = {.tv_nsec = 100000};
    cddp_status st = CDDP_IN_PROGRESS;

    for (int i = 0; i < 300000 && st == CDDP_IN_PROGRESS; i++) {
        DO_VOID(st = cddp_coll_test(comm, ticket));
        if (st == CDDP_IN_PROGRESS)
            (void)nanosleep(&moment, NULL);
    }
    CHECK(st == CDDP_OK, "the communication thread");
}

static void reduce_all(void)
{
    char what[96];

    for (unsigned t = 0; t < 4; t++)
        for (unsigned o = 0; o < 4; o++)
            for (unsigned big = 0; big < 2; big++) {
                size_t n = big ? MOST : 5;

                fill(in, n, types[t].dtype, t * 4 + o);
                DO(cddp_all_reduce(comm, in, out, n, types[t].dtype, operations[o].op));
                (void)snprintf(what, sizeof what, "all-reduce: %s of %zu %s", operations[o].name, n, types[t].name);
                put(what, out, n * cddp_dtype_size(types[t].dtype));
            }
}

static void reduce_otherwise(void)
{
    /* Every exception there is: infinity less infinity, overflow, 0 times infinity, and a NaN that signals. */
    const uint32_t special[4] = {rank == 0 ? 0x7f800000 : 0xff800000, 0x7f7fffff, rank == 0 ? 0 : 0x7f800000,
                                 0x7f800001};
    cddp_coll_args two[2];
    uint64_t ticket;

    for (unsigned t = 0; t < 4; t++) {
        size_t size = cddp_dtype_size(types[t].dtype);

        fill(in, MOST * (size_t)n_ranks / 4, types[t].dtype, 100 + t);
        memset(out, 0, sizeof out);
        DO(cddp_reduce(comm, in, out, 999, types[t].dtype, CDDP_AVG, 0));
        put("reduce", out, 999 * size);
        DO(cddp_reduce_scatter(comm, in, out, 999, types[t].dtype, CDDP_SUM));
        put("reduce-scatter", out, 999 * size);
        for (size_t k = 0; k < 2; k++)
            two[k] = (cddp_coll_args){.size = sizeof two[k],
                                      .coll = CDDP_COLL_ALL_REDUCE,
                                      .dtype = types[t].dtype,
                                      .op = CDDP_AVG,
                                      .in = (uint8_t *)in + k * 1000 * size,
                                      .out = (uint8_t *)out + k * 1000 * size,
                                      .count = 1000};
        DO(cddp_coll_run(comm, two, 2));
        put("a group", out, 2000 * size);
        DO(cddp_coll_enqueue(comm, two, 1, NULL));
        put("cddp_coll_enqueue", out, 1000 * size);
        DO(cddp_coll_start(comm, two, 2, &ticket));
        wait_for_thread(ticket);
        put("the communication thread", out, 2000 * size);
        DO(cddp_coll_start(comm, two, 1, &ticket));
        DO(cddp_coll_wait(comm, ticket));
        put("cddp_coll_wait", out, 1000 * size);
    }
    for (unsigned o = 0; o < 4; o++) {
        DO(cddp_all_reduce(comm, special, out, 4, CDDP_FLOAT32, operations[o].op));
        put("an all-reduce of infinities", out, 4 * sizeof(float));
    }
}

static void measure(void)
{
    cddp_metric mine[2] = {0}, all[2], of[2 * 64];
    double x[8], mean;

    fill(x, 8, CDDP_FLOAT64, 200);
    for (unsigned k = 0; k < 8; k++)
        DO_VOID(cddp_metric_add(&mine[k % 2], x[k], x[7 - k]));
    put("cddp_metric_add", mine, sizeof mine);
    DO(cddp_metric_reduce(comm, mine, all, 2, n_ranks <= 64 ? of : NULL));
    put("cddp_metric_reduce", all, sizeof all);
    for (unsigned k = 0; k < 2; k++) {
        DO_VOID(mean = cddp_metric_mean(&all[k]));
        put("cddp_metric_mean", &mean, sizeof mean);
    }
}

/* --------------------------------------------------------------------------------------------------- reducers ---- */

static const size_t counts[PARAMS] = {12, 1200, 77}, shape[] = {40, 30};
static double data[PARAMS][1200], own[77]; /* of any type */

static const struct kind {
    const char *name;
    uint32_t flags;
    cddp_dtype dtype, comm_dtype;
    bool hook, powersgd, optim;
    cddp_optim_kind rule;
} kinds[] = {
    {.name = "float32", .dtype = CDDP_FLOAT32},
    {.name = "float64, joined", .dtype = CDDP_FLOAT64, .flags = CDDP_DDP_JOIN | CDDP_DDP_JOIN_ACTIVE},
    {.name = "float32, weights", .dtype = CDDP_FLOAT32, .flags = CDDP_DDP_WEIGHTED},
    {.name = "bfloat16, sums", .dtype = CDDP_BFLOAT16, .flags = CDDP_DDP_SUM},
    {.name = "float16 as float32", .dtype = CDDP_FLOAT16, .comm_dtype = CDDP_FLOAT32},
    {.name = "float32 as float16", .dtype = CDDP_FLOAT32, .comm_dtype = CDDP_FLOAT16},
    {.name = "float32 as bfloat16, sums", .dtype = CDDP_FLOAT32, .comm_dtype = CDDP_BFLOAT16, .flags = CDDP_DDP_SUM},
    {.name = "hook", .dtype = CDDP_FLOAT32, .hook = true},
    {.name = "PowerSGD", .dtype = CDDP_FLOAT32, .powersgd = true},
    {.name = "PowerSGD of float64", .dtype = CDDP_FLOAT64, .powersgd = true},
    {.name = "SGD", .dtype = CDDP_FLOAT32, .optim = true, .rule = CDDP_OPTIM_SGD},
    {.name = "Adam of float64", .dtype = CDDP_FLOAT64, .optim = true, .rule = CDDP_OPTIM_ADAM},
    {.name = "AdamW of bfloat16", .dtype = CDDP_BFLOAT16, .optim = true, .rule = CDDP_OPTIM_ADAMW},
};

static uint64_t hook_expects;

/* The mean, of a hook that must have the caller's state. */
static cddp_status hook_begin(void *arg, cddp_comm *c, const cddp_bucket *b, uint64_t *ticket)
{
    if (float_get() != hook_expects && n_changed++ < 20)
        fprintf(stderr, "rank %d: the hook has the state %#llx\n", rank, (unsigned long long)float_get());
    return mean_hook_begin(arg, c, b, ticket);
}

static cddp_status hook_end(void *arg, cddp_comm *c, const cddp_bucket *b)
{
    (void)arg, (void)c, (void)b;
    if (float_get() != hook_expects && n_changed++ < 20)
        fprintf(stderr, "rank %d: the hook's end has the state %#llx\n", rank, (unsigned long long)float_get());
    return CDDP_OK;
}

static void put_gradients(const char *what, const struct kind *k, cddp_ddp *ddp)
{
    for (size_t i = 0; i < PARAMS; i++)
        put(what, cddp_ddp_grad(ddp, i), counts[i] * cddp_dtype_size(k->dtype));
}

static void report_gradients(const struct kind *k, cddp_ddp *ddp, unsigned step)
{
    static const double weights[] = {0.3, 0.7, 1e-310, 5};

    if ((k->flags & CDDP_DDP_WEIGHTED) != 0)
        DO(cddp_ddp_set_weight(ddp, weights[rank % 4]));
    for (size_t i = PARAMS; i-- > 0;) {
        fill(cddp_ddp_grad(ddp, i), counts[i], k->dtype, 300 + step * PARAMS + (unsigned)i);
        DO((hook_expects = float_get(), cddp_ddp_grad_ready(ddp, i)));
    }
}

static void end_with_norms(const struct kind *k, cddp_ddp *ddp)
{
    double norm;

    if ((k->flags & CDDP_DDP_JOIN_ACTIVE) == 0 && !k->powersgd && k->comm_dtype == CDDP_DTYPE_NONE)
        DO((hook_expects = float_get(), cddp_ddp_wait_param(ddp, 1)));
    DO((hook_expects = float_get(), cddp_ddp_wait(ddp)));
    put_gradients(k->name, k, ddp);
    DO(cddp_ddp_grad_norm(ddp, 2, &norm));
    put("cddp_ddp_grad_norm", &norm, sizeof norm);
    DO_VOID(norm = cddp_ddp_grad_scale(ddp));
    put("cddp_ddp_grad_scale", &norm, sizeof norm);
    DO(cddp_ddp_clip_grad_norm(ddp, 0.7, INFINITY, 0, &norm));
    put("the largest gradient", &norm, sizeof norm);
    DO(cddp_ddp_clip_grad_norm(ddp, 1e-3, 2, 1, &norm));
    put("cddp_ddp_clip_grad_norm", &norm, sizeof norm);
    put_gradients("clipped gradients", k, ddp);
}

static void end_with_optimizer(const struct kind *k, cddp_optim *optim)
{
    cddp_optim_step_args args = {.size = sizeof args, .grad_scale = 0.3, .max_norm = 0.1};

    DO(cddp_optim_set_lr(optim, 3e-3));
    DO(cddp_optim_set_grad_scale(optim, 1e-310)); /* a denormal one is above 0, in each state */
    DO(cddp_optim_step(optim, &args));
    for (size_t i = 0; i < PARAMS; i++)
        put(k->name, data[i], counts[i] * cddp_dtype_size(k->dtype));
}

static cddp_optim *make_optimizer(const struct kind *k, cddp_ddp *ddp)
{
    static const size_t mine[] = {1};
    const cddp_optim_group group = {
        .size = sizeof group, .params = mine, .n_params = 1, .lr_factor = 1.0 / 3, .weight_decay = 0.01};
    cddp_optim_options opt;
    cddp_optim *optim = NULL;

    cddp_optim_defaults(&opt, sizeof opt, k->rule);
    opt.momentum = k->rule == CDDP_OPTIM_SGD ? 0.9 : 0;
    opt.groups = &group;
    opt.n_groups = 1;
    DO(cddp_optim_create(&optim, ddp, &opt));
    return optim;
}

static void reduce_gradients(const struct kind *k)
{
    const cddp_hook hook = {.size = sizeof hook, .begin = hook_begin, .end = hook_end};
    const cddp_powersgd_options low = {.size = sizeof low, .matrix_rank = 2, .start_step = 1, .seed = 5};
    const cddp_ddp_options opt = {.size = sizeof opt,
                                  .flags = k->flags,
                                  .comm_dtype = k->comm_dtype,
                                  .bucket_bytes = 64,
                                  .first_bucket_bytes = 64};
    bool joins = (k->flags & CDDP_DDP_JOIN) != 0;
    cddp_optim *optim = NULL;
    cddp_ddp *ddp = NULL;
    cddp_param p[PARAMS];

    for (size_t i = 0; i < PARAMS; i++) {
        p[i] = (cddp_param){.size = sizeof p[i],
                            .name = "p",
                            .data = data[i],
                            .count = counts[i],
                            .dtype = k->dtype,
                            .grad = i == 2 ? own : NULL,
                            .shape = i == 1 ? shape : NULL,
                            .n_dims = i == 1 ? 2 : 0};
        fill(data[i], counts[i], k->dtype, 400 + (unsigned)i);
    }
    DO(cddp_ddp_create(&ddp, comm, p, PARAMS, &opt));
    if (k->hook)
        DO(cddp_ddp_set_hook(ddp, &hook));
    if (k->powersgd)
        DO(cddp_ddp_set_powersgd(ddp, &low));
    if (k->optim)
        optim = make_optimizer(k, ddp);
    for (unsigned step = 0; step < (joins && rank == n_ranks - 1 ? STEPS : STEPS + 1); step++) {
        report_gradients(k, ddp, step);
        if (optim != NULL)
            end_with_optimizer(k, optim);
        else
            end_with_norms(k, ddp);
    }
    if (joins)
        DO(cddp_ddp_join(ddp));
    DO_VOID(cddp_optim_destroy(optim));
    DO_VOID(cddp_ddp_destroy(ddp));
}

/* --------------------------------------------------------------------------------------------------- the runs ---- */

static void run(enum who by, enum float_word w, cddp_comm *whole)
{
    who = by;
    word = w;
    n_put = 0;
    comm = whole;
    if (who != NOBODY)
        DO(cddp_comm_split(&comm, whole, 0, rank, NULL));
    reduce_all();
    reduce_otherwise();
    measure();
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        reduce_gradients(&kinds[k]);
    CHECK(n_put == n_first, "%zu results, not %zu", n_put, n_first);
}

int main(int argc, char **argv)
{
    uint64_t at_start = float_get();
    bool flushing = argc > 1 && strcmp(argv[1], "flushing") == 0;
    cddp_comm *whole = NULL;

    CHECK(flushing == ((at_start & ~(uint64_t)0x3f) == (float_words[FLOAT_FLUSH] & ~(uint64_t)0x3f)), "state %#llx",
          (unsigned long long)at_start);
    CHECK(cddp_init(&whole, NULL) == CDDP_OK, "cddp_init");
    CHECK(float_get() == at_start, "state %#llx", (unsigned long long)float_get());
    float_set(float_words[FLOAT_DEFAULT]);
    rank = cddp_rank(whole);
    n_ranks = cddp_world_size(whole);
    run(NOBODY, FLOAT_DEFAULT, whole);
    for (unsigned w = FLOAT_DEFAULT + 1; w < N_FLOAT_WORDS; w++) {
        run(THE_LAST, (enum float_word)w, whole);
        run(ALL, (enum float_word)w, whole);
    }
    run(IN_TURNS, FLOAT_DEFAULT, whole);
    CHECK(cddp_finalize(whole) == CDDP_OK, "cddp_finalize");
    for (size_t k = 0; k < n_first; k++)
        free(first[k].bits);
    CHECK(n_different == 0 && n_changed == 0, "%zu of %zu results in 9 runs differ, and %zu calls changed the state",
          n_different, 9 * n_first, n_changed);
    return 0;
}
