/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model whose parameters are divided, beside the same model with whole parameters and cddp_optim, over real ranks;
 * started by cddprun. Gradients depend on parameters, rank and step, so one wrong bit anywhere spreads. After some
 * steps both have the same bits, in every way of gathering: sharded_ranks [WHAT [WORD]], in those with WORD in their
 * names only.
 *
 *     any     gradients are what they are, unless the two models add the ranks in different orders
 *     exact   sums of gradients are exact, in any order
 *     alone   each unit has one parameter, so that both models send the same messages
 *     loop    as `exact`, over and over, until a call fails, after it has printed "running"
 *
 * NCCL adds an element's ranks in an order that depends on the element's place in its message. So more than two ranks
 * on NCCL need `exact` or `alone`.
 */
#include "by_hand.h"

#include <cddp/cddp.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 6
#define UNITS 7
#define PARAMS_MAX 3
#define COUNT_MAX 70001

/* Elements of the parameters of each unit; 0: it has fewer. Small, odd and large ones, and more ranks than elements. */
static const size_t counts[UNITS][PARAMS_MAX] = {{1003, 17}, {1},       {4096, 1, 33}, {COUNT_MAX, 5},
                                                 {250},      {2, 2, 2}, {9000}};

static const struct kind {
    const char *name;
    cddp_dtype dtype, second; /* of each unit's second parameter */
    int stage;
    size_t live, gradients;
    uint64_t keep;    /* a bit for each unit */
    uint64_t frozen;  /* a bit for each parameter of the model */
    bool fill, turns; /* values by a callback; the order of units changes with the step */
    bool own;         /* the program has its own optimizer */
    bool twice;       /* the first parameter is the output layer, too */
    bool hybrid;      /* groups of ranks have replicas: another order of addition, so sums are exact */
    bool rounded;     /* with it: they are not, and parameters are only near */
    bool skips;       /* a step of which one gradient is not a number */
    bool wide;        /* gradients are float32, whatever their parameters are */
    cddp_optim_kind rule;
    double max_norm; /* 0: gradients are not clipped */
} kinds[] = {
    {.name = "stage 3", .rule = CDDP_OPTIM_ADAMW},
    {.name = "SGD", .rule = CDDP_OPTIM_SGD},
    {.name = "clipped", .rule = CDDP_OPTIM_ADAMW, .max_norm = 2.5},
    {.name = "clipped, two types", .second = CDDP_BFLOAT16, .stage = 2, .rule = CDDP_OPTIM_SGD, .max_norm = 1.5},
    {.name = "one live unit", .live = 1, .gradients = 1, .rule = CDDP_OPTIM_ADAMW},
    {.name = "all units live", .live = 100, .gradients = 100, .rule = CDDP_OPTIM_ADAMW},
    {.name = "stage 2", .stage = 2, .rule = CDDP_OPTIM_ADAMW},
    {.name = "kept units", .keep = 0x1a, .rule = CDDP_OPTIM_ADAMW},
    {.name = "values by a callback", .fill = true, .rule = CDDP_OPTIM_ADAM},
    {.name = "another order in each step", .turns = true, .live = 2, .rule = CDDP_OPTIM_ADAMW},
    {.name = "bfloat16", .dtype = CDDP_BFLOAT16, .rule = CDDP_OPTIM_SGD},
    {.name = "bfloat16, AdamW", .dtype = CDDP_BFLOAT16, .rule = CDDP_OPTIM_ADAMW},
    {.name = "an optimizer of the program", .own = true, .rule = CDDP_OPTIM_SGD},
    {.name = "float64", .dtype = CDDP_FLOAT64, .rule = CDDP_OPTIM_ADAMW},
    {.name = "two types", .second = CDDP_FLOAT64, .rule = CDDP_OPTIM_ADAMW},
    {.name = "two types, kept", .second = CDDP_BFLOAT16, .keep = 0x7f, .rule = CDDP_OPTIM_ADAMW},
    {.name = "gradients of float32", .dtype = CDDP_BFLOAT16, .wide = true, .rule = CDDP_OPTIM_ADAMW, .max_norm = 2.5},
    {.name = "gradients of float32, three types",
     .dtype = CDDP_FLOAT16,
     .second = CDDP_BFLOAT16,
     .wide = true,
     .live = 1,
     .rule = CDDP_OPTIM_SGD},
    {.name = "gradients of float32, two types, frozen",
     .second = CDDP_BFLOAT16,
     .wide = true,
     .frozen = 0x0a6a,
     .keep = 0x12,
     .rule = CDDP_OPTIM_ADAMW},
    {.name = "gradients of float32, an optimizer of the program",
     .dtype = CDDP_BFLOAT16,
     .wide = true,
     .stage = 2,
     .fill = true,
     .own = true,
     .rule = CDDP_OPTIM_SGD},
    {.name = "gradients of float32, replicas",
     .second = CDDP_BFLOAT16,
     .wide = true,
     .hybrid = true,
     .rule = CDDP_OPTIM_ADAMW},
    {.name = "a step left out", .skips = true, .rule = CDDP_OPTIM_ADAMW},
    {.name = "replicas, clipped", .hybrid = true, .rule = CDDP_OPTIM_ADAMW, .max_norm = 2.5},
    {.name = "replicas, a step left out",
     .hybrid = true,
     .skips = true,
     .live = 1,
     .gradients = 1,
     .rule = CDDP_OPTIM_SGD},
    {.name = "replicas, two types, stage 2",
     .hybrid = true,
     .second = CDDP_BFLOAT16,
     .stage = 2,
     .rule = CDDP_OPTIM_ADAM},
    {.name = "replicas, an optimizer of the program",
     .hybrid = true,
     .own = true,
     .fill = true,
     .rule = CDDP_OPTIM_SGD},
    {.name = "replicas, frozen", .hybrid = true, .frozen = 0x1895, .turns = true, .rule = CDDP_OPTIM_ADAMW},
    {.name = "replicas, any sums", .hybrid = true, .rounded = true, .rule = CDDP_OPTIM_SGD, .max_norm = 2.5},
    {.name = "a parameter with two uses", .twice = true, .rule = CDDP_OPTIM_ADAMW, .max_norm = 2.5},
    {.name = "two uses, stage 2", .twice = true, .stage = 2, .gradients = 3, .rule = CDDP_OPTIM_SGD},
    /* Parameters of all units, and all of units 1 and 6. */
    {.name = "frozen, clipped", .frozen = 0x1895, .rule = CDDP_OPTIM_ADAMW, .max_norm = 2.5},
    {.name = "frozen, two types, stage 2",
     .frozen = 0x0a6a,
     .second = CDDP_BFLOAT16,
     .stage = 2,
     .rule = CDDP_OPTIM_SGD},
    {.name = "frozen, an optimizer of the program", .frozen = 0x17f3, .own = true, .rule = CDDP_OPTIM_SGD},
    {.name = "all but one frozen", .frozen = 0x1fef, .gradients = 100, .rule = CDDP_OPTIM_ADAMW},
};

struct model {
    const struct kind *kind;
    size_t n; /* parameters */
    char names[UNITS * PARAMS_MAX][24];
    size_t unit[UNITS * PARAMS_MAX], in_unit[UNITS * PARAMS_MAX];
    cddp_param params[UNITS * PARAMS_MAX];
    size_t first[UNITS + 1];
};

static cddp_comm *comm, *group, *replicas;
static cddp_comm *here;           /* whose memory and order of work it is: comm or group */
static bool exact, alone;         /* see above */
static double room[3][COUNT_MAX]; /* on the host: the model's memory is where the backend has it */

static void *to_host(int n, const void *from, size_t bytes)
{
    CHECK(cddp_copy(here, room[n], from, bytes) == CDDP_OK);
    return room[n];
}

static void from_host(void *to, int n, size_t bytes)
{
    CHECK(cddp_copy(here, to, room[n], bytes) == CDDP_OK);
}

static bool is_frozen(const struct model *m, size_t i)
{
    return (m->kind->frozen >> i & 1) != 0;
}

/* Are all parameters of unit u frozen? */
static bool is_frozen_unit(const struct model *m, size_t u)
{
    bool all = true;

    for (size_t i = m->first[u]; i < m->first[u + 1]; i++)
        all &= is_frozen(m, i);
    return all;
}

static size_t bytes_of(const cddp_param *p)
{
    return p->count * cddp_dtype_size(p->dtype);
}

static cddp_dtype grad_dtype(const cddp_param *p)
{
    return p->grad_dtype != 0 ? p->grad_dtype : p->dtype;
}

static size_t grad_bytes(const cddp_param *p)
{
    return p->count * cddp_dtype_size(grad_dtype(p));
}

static double noise(uint64_t x)
{
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    return (double)(int64_t)(x ^ (x >> 32)) / 9223372036854775808.0;
}

static double get(const void *at, cddp_dtype dtype, size_t k)
{
    uint32_t bits;
    float f;

    if (dtype == CDDP_FLOAT64)
        return ((const double *)at)[k];
    if (dtype == CDDP_FLOAT32)
        return (double)((const float *)at)[k];
    if (dtype == CDDP_FLOAT16)
        return (double)((const uint16_t *)at)[k] / 65536; /* some number that its bits decide */
    bits = (uint32_t)((const uint16_t *)at)[k] << 16;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static void put(void *at, cddp_dtype dtype, size_t k, double x)
{
    float f = (float)x;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    if (dtype == CDDP_FLOAT64)
        ((double *)at)[k] = x;
    else if (dtype == CDDP_FLOAT32)
        ((float *)at)[k] = f;
    else if (dtype == CDDP_FLOAT16)
        ((uint16_t *)at)[k] = (uint16_t)(0x3000 | (bits >> 18 & 0x7ff)); /* from 1/8 to 1/2 */
    else
        ((uint16_t *)at)[k] = (uint16_t)(bits >> 16);
}

static void first_values(const struct model *m, size_t i, void *at)
{
    for (size_t k = 0; k < m->params[i].count; k++) /* rank 0's count */
        put(room[0], m->params[i].dtype, k, noise(i * 1000003 + k) + (cddp_rank(comm) > 0 ? 100 : 0));
    from_host(at, 0, bytes_of(&m->params[i]));
}

static bool is_exact(const struct kind *k)
{
    return exact || (k->hybrid && !k->rounded);
}

/* Sets element k of the gradient that is made in room[1]. */
static void put_grad(const struct model *m, cddp_dtype type, size_t k, double x)
{
    int odd = cddp_world_size(comm) % 2 == 0 ? 1 : cddp_world_size(comm);
    double unit = odd == 1 ? 16 : 4;

    CHECK(fabs(x) < 2 || type != CDDP_BFLOAT16);
    /* The sum of 8 ranks has 8 bits, as bfloat16 has; and an odd number of ranks, up to 5, divides each term. */
    put(room[1], type, k, is_exact(m->kind) ? nearbyint(x * unit) / unit * odd : x);
}

static void backward(const struct model *m, size_t i, int step, const void *w, void *g)
{
    uint64_t seed = (uint64_t)(cddp_rank(comm) + 1) * 7919 + (uint64_t)step * 104729 + i;
    const void *old = to_host(0, w, bytes_of(&m->params[i]));
    bool adds = i == 0 && m->kind->twice; /* to what the output layer has made */
    cddp_dtype type = grad_dtype(&m->params[i]);

    (void)to_host(2, g, adds ? grad_bytes(&m->params[i]) : 0);
    for (size_t k = 0; k < m->params[i].count; k++)
        put_grad(m, type, k,
                 (adds ? get(room[2], type, k) : 0) + noise(seed * 1000003 + k) +
                     get(old, m->params[i].dtype, k) * 0.25);
    if (m->kind->skips && step == 2 && i == 4 && cddp_rank(comm) == cddp_world_size(comm) - 1)
        put(room[1], type, 0, (double)NAN);
    from_host(g, 1, grad_bytes(&m->params[i]));
}

/* The output layer's part of the first parameter's gradient. */
static void backward_output(const struct model *m, int step, const void *w, void *g)
{
    const void *old = to_host(0, w, bytes_of(&m->params[0]));

    for (size_t k = 0; k < m->params[0].count; k++)
        put_grad(m, m->params[0].dtype, k,
                 noise((uint64_t)(cddp_rank(comm) + 1) * 15485863 + (uint64_t)step * 7919 + k) -
                     get(old, m->params[0].dtype, k) * 0.125);
    from_host(g, 1, bytes_of(&m->params[0]));
}

static void make_model(struct model *m, const struct kind *k)
{
    *m = (struct model){.kind = k};
    for (size_t u = 0; u < UNITS; u++) {
        m->first[u] = m->n;
        for (size_t i = 0; i < PARAMS_MAX && counts[u][i] > 0; i++, m->n++) {
            cddp_dtype dtype = k->dtype != 0 ? k->dtype : CDDP_FLOAT32;
            cddp_param *p = &m->params[m->n];

            if (alone && i > 0 && (i > 1 || k->second == 0))
                break;
            (void)snprintf(m->names[m->n], sizeof m->names[0], "block.%zu.%zu", u, i);
            m->unit[m->n] = u;
            m->in_unit[m->n] = i;
            *p = (cddp_param){.size = sizeof *p,
                              .name = m->names[m->n],
                              .count = counts[u][i],
                              .dtype = i == 1 && k->second != 0 ? k->second : dtype,
                              .grad_dtype = k->wide ? CDDP_FLOAT32 : 0};
            CHECK(cddp_alloc(comm, bytes_of(p), 0, &p->data) == CDDP_OK);
        }
    }
    m->first[UNITS] = m->n;
}

static cddp_optim_options rule_of(const struct kind *k)
{
    cddp_optim_options rule;

    cddp_optim_defaults(&rule, sizeof rule, k->rule);
    rule.lr = 0.05;
    rule.weight_decay = 0.01;
    if (k->rule == CDDP_OPTIM_SGD)
        rule.momentum = 0.9;
    return rule;
}

static double norms[STEPS]; /* of whole gradients */

static void step_optim(const struct kind *k, cddp_optim *optim)
{
    const cddp_optim_step_args args = {
        .size = sizeof args, .max_norm = k->max_norm, .flags = k->skips ? CDDP_OPTIM_SKIP_NONFINITE : 0};
    cddp_status st = cddp_optim_step(optim, k->max_norm > 0 || k->skips ? &args : NULL);

    CHECK(st == CDDP_OK || (k->skips && st == CDDP_E_NONFINITE));
}

static uint64_t skipped(cddp_optim *optim)
{
    uint64_t n = 0;

    CHECK(optim == NULL || cddp_optim_skipped(optim, &n) == CDDP_OK);
    return n;
}

/* The program's own optimizer: on elements [begin, begin + count) of a parameter. */
static void update(const cddp_param *p, void *w, const void *g, size_t count)
{
    size_t bytes = count * cddp_dtype_size(p->dtype);

    if (count == 0)
        return;
    (void)to_host(0, w, bytes);
    (void)to_host(1, g, count * cddp_dtype_size(grad_dtype(p)));
    for (size_t k = 0; k < count; k++)
        put(room[0], p->dtype, k,
            (double)(float)(get(room[0], p->dtype, k) - 0.03125 * get(room[1], grad_dtype(p), k)));
    from_host(w, 0, bytes);
}

static void update_shards(const struct model *m, cddp_fsdp *f)
{
    CHECK(cddp_fsdp_end_step(f) == CDDP_OK);
    for (size_t i = 0; i < m->n; i++) {
        cddp_fsdp_shard_info own = {.size = sizeof own};

        CHECK(cddp_fsdp_shard(f, m->unit[i], m->in_unit[i], &own) == CDDP_OK);
        if (!is_frozen(m, i))
            update(&m->params[i], own.param, own.grad, own.count);
        else
            CHECK(own.grad == NULL);
    }
}

static void update_whole(const struct model *m, cddp_ddp *ddp)
{
    CHECK(cddp_ddp_wait(ddp) == CDDP_OK);
    for (size_t i = 0; i < m->n; i++)
        if (!is_frozen(m, i))
            update(&m->params[i], m->params[i].data, cddp_ddp_grad(ddp, i), m->params[i].count);
}

/* Trains the model with whole parameters; they stay in m->params. */
static void train_whole(struct model *m)
{
    const cddp_ddp_options opt = {
        .size = sizeof opt, .bucket_bytes = alone ? 1 : 20000, .first_bucket_bytes = alone ? 1 : 5000};
    const cddp_optim_options rule = rule_of(m->kind);
    size_t frozen[UNITS * PARAMS_MAX], n_frozen = 0;
    cddp_optim *optim = NULL;
    cddp_ddp *ddp;

    for (size_t i = 0; i < m->n; i++) {
        first_values(m, i, m->params[i].data);
        if (is_frozen(m, i))
            frozen[n_frozen++] = i;
    }
    CHECK(cddp_ddp_create(&ddp, comm, m->params, m->n, &opt) == CDDP_OK);
    CHECK(m->kind->own || cddp_optim_create(&optim, ddp, &rule) == CDDP_OK);
    CHECK(n_frozen == 0 || cddp_ddp_set_frozen(ddp, frozen, n_frozen, 1) == CDDP_OK);
    for (int step = 0; step < STEPS; step++) {
        if (m->kind->twice)
            backward_output(m, step, m->params[0].data, cddp_ddp_grad(ddp, 0));
        for (size_t i = m->n; i-- > 0;) {
            if (is_frozen(m, i))
                continue;
            backward(m, i, step, m->params[i].data, cddp_ddp_grad(ddp, i));
            CHECK(cddp_ddp_grad_ready(ddp, i) == CDDP_OK);
        }
        if (m->kind->own)
            update_whole(m, ddp);
        CHECK(cddp_ddp_grad_norm(ddp, 2, &norms[step]) == CDDP_OK);
        if (!m->kind->own)
            step_optim(m->kind, optim);
    }
    CHECK(skipped(optim) == m->kind->skips);
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(ddp);
}

static const struct model *filling;

static cddp_status fill(void *arg, size_t u, void *const *data)
{
    CHECK(arg == &filling);
    for (size_t i = filling->first[u]; i < filling->first[u + 1]; i++)
        first_values(filling, i, data[i - filling->first[u]]);
    return CDDP_OK;
}

static cddp_fsdp *make_sharded(struct model *m)
{
    cddp_fsdp_options opt = {.size = sizeof opt,
                             .stage = m->kind->stage,
                             .max_live_units = m->kind->live,
                             .max_live_gradients = m->kind->gradients};
    cddp_fsdp_unit units[UNITS];
    char names[UNITS][16];
    cddp_fsdp *f;

    for (size_t u = 0; u < UNITS; u++) {
        (void)snprintf(names[u], sizeof names[u], "block.%zu", u);
        units[u] = (cddp_fsdp_unit){.size = sizeof units[u],
                                    .name = names[u],
                                    .params = &m->params[m->first[u]],
                                    .n_params = m->first[u + 1] - m->first[u],
                                    .flags = (m->kind->keep >> u & 1) != 0 ? CDDP_FSDP_KEEP : 0};
    }
    filling = m;
    for (size_t i = 0; i < m->n; i++) {
        m->params[i].flags = is_frozen(m, i) ? CDDP_PARAM_FROZEN : 0;
        if (m->kind->fill) {
            cddp_free(comm, m->params[i].data);
            m->params[i].data = NULL;
        } else {
            first_values(m, i, m->params[i].data);
        }
    }
    if (m->kind->fill) {
        opt.fill = fill;
        opt.arg = &filling;
    }
    opt.replicas = m->kind->hybrid ? replicas : NULL;
    CHECK(cddp_fsdp_create(&f, here, units, UNITS, &opt) == CDDP_OK);
    return f;
}

static void hold(cddp_fsdp *f, size_t u)
{
    CHECK(cddp_fsdp_gather(f, u) == CDDP_OK && cddp_fsdp_wait_unit(f, u) == CDDP_OK);
}

/* Takes a step: a forward pass, which only looks, and a backward pass. */
static void step_sharded(const struct model *m, cddp_fsdp *f, int step)
{
    for (size_t u = 0; u < UNITS; u++) {
        hold(f, u);
        for (size_t i = m->first[u]; i < m->first[u + 1]; i++)
            CHECK(isfinite(get(to_host(0, cddp_fsdp_param(f, u, i - m->first[u]), bytes_of(&m->params[i])),
                               m->params[i].dtype, m->params[i].count - 1)));
        CHECK(cddp_fsdp_release(f, u) == CDDP_OK);
    }
    if (m->kind->twice) { /* the gradient stays in its place until the first unit's is reported */
        hold(f, 0);
        backward_output(m, step, cddp_fsdp_param(f, 0, 0), cddp_fsdp_grad(f, 0, 0));
        CHECK(cddp_fsdp_release(f, 0) == CDDP_OK);
    }
    for (size_t n = 0; n < UNITS; n++) {
        size_t u = m->kind->turns ? (n * 3 + (size_t)step) % UNITS : UNITS - 1 - n;

        hold(f, u);
        for (size_t i = m->first[u]; i < m->first[u + 1]; i++)
            if (!is_frozen(m, i))
                backward(m, i, step, cddp_fsdp_param(f, u, i - m->first[u]), cddp_fsdp_grad(f, u, i - m->first[u]));
        CHECK(cddp_fsdp_release(f, u) == CDDP_OK);
        CHECK(is_frozen_unit(m, u) || cddp_fsdp_grads_ready(f, u) == CDDP_OK);
    }
}

static uint64_t hash;

static void hash_bytes(const void *from, size_t n)
{
    for (size_t k = 0; k < n; k++)
        hash = (hash ^ ((const uint8_t *)from)[k]) * 0x100000001b3u;
}

/* All ranks have gathered the same bits, whatever their group. */
static void check_hash(void)
{
    uint64_t least = 0, most = 0;

    CHECK(cddp_all_reduce(comm, &hash, &least, 1, CDDP_UINT64, CDDP_MIN) == CDDP_OK);
    CHECK(cddp_all_reduce(comm, &hash, &most, 1, CDDP_UINT64, CDDP_MAX) == CDDP_OK && least == most);
}

static void differs(const struct kind *k, const char *what)
{
    fprintf(stderr, "%s: %s differs on rank %d\n", k->name, what, cddp_rank(comm));
    exit(1);
}

/* Compares with the whole model's parameters. */
static void compare(const struct model *m, cddp_fsdp *f, const struct model *whole)
{
    for (size_t u = 0; u < UNITS; u++) {
        hold(f, u);
        for (size_t i = m->first[u]; i < m->first[u + 1]; i++) {
            cddp_fsdp_shard_info own = {.size = sizeof own};
            size_t size = cddp_dtype_size(m->params[i].dtype);
            const char *w = to_host(0, whole->params[i].data, bytes_of(&m->params[i]));

            const void *found = to_host(1, cddp_fsdp_param(f, u, i - m->first[u]), bytes_of(&m->params[i]));

            bool same = memcmp(found, w, bytes_of(&m->params[i])) == 0;

            hash_bytes(found, bytes_of(&m->params[i]));
            for (size_t k = 0; m->kind->rounded && k < m->params[i].count; k++) {
                double x = get(found, m->params[i].dtype, k), y = get(w, m->params[i].dtype, k);

                same = (k == 0 || same) && fabs(x - y) <= 1e-5 * (1 + fabs(y));
            }
            if (!same)
                differs(m->kind, m->names[i]);
            CHECK(cddp_fsdp_shard(f, u, i - m->first[u], &own) == CDDP_OK);
            CHECK(own.begin + own.count <= m->params[i].count);
            memcpy(room[0], found, bytes_of(&m->params[i]));
            if (own.count > 0)
                CHECK(memcmp(to_host(1, own.param, own.count * size), w + own.begin * size, own.count * size) == 0);
        }
        CHECK(cddp_fsdp_release(f, u) == CDDP_OK);
    }
    check_hash();
}

static void run(const struct kind *k)
{
    struct model whole, m;
    const cddp_optim_options rule = rule_of(k);
    cddp_optim *optim = NULL;
    cddp_fsdp *f;
    double norm;

    here = comm;
    make_model(&whole, k);
    make_model(&m, k);
    train_whole(&whole);
    here = k->hybrid ? group : comm;
    f = make_sharded(&m);
    CHECK(k->own || cddp_optim_create_sharded(&optim, f, &rule) == CDDP_OK);
    CHECK(cddp_fsdp_bytes(f) > 0 && cddp_fsdp_bytes(NULL) == 0);
    for (int step = 0; step < STEPS; step++) {
        step_sharded(&m, f, step);
        CHECK(cddp_fsdp_grad_norm(f, 2, &norm) == CDDP_OK);
        if (norm != norms[step] && !(isnan(norm) && isnan(norms[step])) && !k->rounded)
            differs(k, "the norm of gradients");
        if (k->own)
            update_shards(&m, f);
        else
            step_optim(k, optim);
    }
    compare(&m, f, &whole);
    CHECK(skipped(optim) == k->skips);
    cddp_optim_destroy(optim);
    cddp_fsdp_destroy(f);
    for (size_t i = 0; i < m.n; i++) {
        cddp_free(comm, m.params[i].data);
        cddp_free(comm, whole.params[i].data);
    }
}

/* Ranks that differ all hear in what, and nothing is broken. */
static void refuse_different(void)
{
    bool differs = cddp_rank(comm) == cddp_world_size(comm) - 1 && cddp_rank(comm) > 0;
    const cddp_param param = {.size = sizeof param, .name = "p", .count = 4, .dtype = CDDP_FLOAT32};
    const cddp_fsdp_options opt = {.size = sizeof opt, .stage = differs ? 2 : 3};
    cddp_fsdp_unit unit = {.size = sizeof unit, .name = "u", .params = &param, .n_params = 1};
    cddp_fsdp *f = NULL;

    if (cddp_world_size(comm) == 1)
        return;
    CHECK(cddp_fsdp_create(&f, comm, &unit, 1, &opt) == CDDP_E_MISMATCH && f == NULL);
    CHECK(strstr(cddp_last_error(), "stage is 3 on rank 0 but 2 on rank") != NULL);
    unit.name = differs ? "v" : "u";
    CHECK(cddp_fsdp_create(&f, comm, &unit, 1, NULL) == CDDP_E_MISMATCH && f == NULL);
    CHECK(strstr(cddp_last_error(), "unit 0 has another name") != NULL);
    unit.n_params = differs ? 0 : 1;
    CHECK(cddp_fsdp_create(&f, comm, &unit, 1, NULL) == CDDP_E_INVALID && f == NULL);
}

/* Two groups with the same number of ranks, or as many groups as ranks. */
static void make_groups(void)
{
    int n = cddp_world_size(comm), size = n % 2 == 0 ? n / 2 : 1, rank = cddp_rank(comm);

    CHECK(cddp_comm_split(&group, comm, rank / size, rank, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(&replicas, comm, rank % size, rank, NULL) == CDDP_OK);
}

static cddp_status fail_in_other_groups(void *arg, size_t u, void *const *data)
{
    (void)arg;
    (void)u;
    (void)data;
    return cddp_rank(replicas) > 0 ? CDDP_E_IO : CDDP_OK;
}

/* Ranks that are not a grid, and replicas with another model or optimizer, are refused everywhere; nothing is broken.
 */
static void refuse_different_replicas(void)
{
    bool differs = cddp_rank(replicas) > 0;
    cddp_param param = {.size = sizeof param, .name = "p", .count = 4, .dtype = CDDP_FLOAT32};
    const cddp_fsdp_unit unit = {.size = sizeof unit, .name = "u", .params = &param, .n_params = 1};
    cddp_fsdp_options opt = {.size = sizeof opt, .replicas = group};
    cddp_optim_options rule;
    cddp_comm *twisted;
    cddp_optim *optim = NULL;
    cddp_fsdp *f = NULL;

    if (cddp_world_size(comm) == 1)
        return;
    if (cddp_world_size(group) > 1) {
        CHECK(cddp_fsdp_create(&f, group, &unit, 1, &opt) == CDDP_E_MISMATCH && f == NULL);
        CHECK(strstr(cddp_last_error(), "it has another rank in its group") != NULL);
        CHECK(cddp_comm_split(&twisted, comm, cddp_rank(group), cddp_rank(comm) * (cddp_rank(group) % 2 == 0 ? 1 : -1),
                              NULL) == CDDP_OK);
        opt.replicas = twisted;
        CHECK(cddp_fsdp_create(&f, group, &unit, 1, &opt) == CDDP_E_MISMATCH && f == NULL);
        CHECK(strstr(cddp_last_error(), "leads to other groups") != NULL);
        CHECK(cddp_finalize(twisted) == CDDP_OK);
    }
    opt.replicas = replicas;
    param.count = differs ? 5 : 4;
    CHECK(cddp_fsdp_create(&f, group, &unit, 1, &opt) == CDDP_E_MISMATCH && f == NULL);
    CHECK(strstr(cddp_last_error(), "it has other units, parameters") != NULL);
    param.count = 4;
    opt.fill = fail_in_other_groups;
    CHECK(cddp_fsdp_create(&f, group, &unit, 1, &opt) == CDDP_E_IO && f == NULL);
    CHECK(strstr(cddp_last_error(), "fill failed") != NULL);
    opt.fill = NULL;
    CHECK(cddp_fsdp_create(&f, group, &unit, 1, &opt) == CDDP_OK);
    cddp_optim_defaults(&rule, sizeof rule, CDDP_OPTIM_SGD);
    rule.lr = differs ? 0.5 : 0.25;
    CHECK(cddp_optim_create_sharded(&optim, f, &rule) == CDDP_E_MISMATCH && optim == NULL);
    CHECK(strstr(cddp_last_error(), "replicas: cddp_optim_options.lr is 0.25 on rank 0 but 0.5 on rank") != NULL);
    cddp_fsdp_destroy(f);
}

/* CDDP_CHECK_REPLICAS finds a share that was changed on one rank, and all ranks leave out that step. */
static void find_other_values(void)
{
    const cddp_param param = {.size = sizeof param, .name = "p", .count = 400, .dtype = CDDP_FLOAT32};
    const cddp_fsdp_unit unit = {.size = sizeof unit, .name = "u", .params = &param, .n_params = 1};
    const cddp_fsdp_options opt = {.size = sizeof opt, .replicas = replicas};
    cddp_fsdp_shard_info own = {.size = sizeof own};
    cddp_optim_options rule;
    cddp_optim *optim;
    cddp_fsdp *f;

    CHECK(setenv("CDDP_CHECK_REPLICAS", "2", 1) == 0);
    here = group;
    CHECK(cddp_fsdp_create(&f, group, &unit, 1, &opt) == CDDP_OK);
    cddp_optim_defaults(&rule, sizeof rule, CDDP_OPTIM_SGD);
    CHECK(cddp_optim_create_sharded(&optim, f, &rule) == CDDP_OK);
    CHECK(cddp_fsdp_shard(f, 0, 0, &own) == CDDP_OK);
    for (int step = 0; step < 5; step++) {
        bool differs = step >= 2 && cddp_world_size(replicas) > 1;

        if (step == 1 && cddp_rank(comm) == cddp_world_size(comm) - 1) {
            put(room[0], CDDP_FLOAT32, 0, 0.5);
            from_host((char *)own.param + 4, 0, 4);
        }
        memset(room[0], 0, 1600);
        from_host(cddp_fsdp_grad(f, 0, 0), 0, 1600);
        CHECK(cddp_fsdp_grads_ready(f, 0) == CDDP_OK);
        CHECK(cddp_optim_step(optim, NULL) == (differs && step % 2 == 0 ? CDDP_E_MISMATCH : CDDP_OK));
        if (differs && step == 2 && cddp_rank(group) == cddp_world_size(group) - 1)
            CHECK(strstr(cddp_last_error(), "after 2 steps: the parameter 'p' differs: rank") != NULL);
        else if (differs && step == 2)
            CHECK(strstr(cddp_last_error(), "after 2 steps: the shares of rank") != NULL);
    }
    cddp_optim_destroy(optim);
    cddp_fsdp_destroy(f);
    CHECK(unsetenv("CDDP_CHECK_REPLICAS") == 0);
}

/*
 * Alone, do both models have the same messages? Not if the program has its own optimizer: then the whole one's is an
 * all-reduce. Nor if gradients are wider than parameters: then the divided one's shares end elsewhere.
 */
static bool sends_the_same(const struct kind *k)
{
    return !k->own && !k->wide;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "any", *word = argc > 2 ? argv[2] : "";
    bool loop = strcmp(what, "loop") == 0;
    size_t n = 0;

    exact = loop || strcmp(what, "exact") == 0;
    alone = strcmp(what, "alone") == 0;
    CHECK(exact || alone || strcmp(what, "any") == 0);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    make_groups();
    if (loop) {
        printf("running\n");
        (void)fflush(stdout);
    } else {
        refuse_different();
        refuse_different_replicas();
        find_other_values();
    }
    do {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
            if (strstr(kinds[k].name, word) != NULL && (!alone || sends_the_same(&kinds[k]) || is_exact(&kinds[k]))) {
                run(&kinds[k]);
                n++;
            }
        CHECK(n > 0);
    } while (loop);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}
