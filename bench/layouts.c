/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where gradients and other data lie, and what that costs. Started by hand:
 *
 *     cddprun --standalone --nproc_per_node=2 build/bench/layouts collectives 104857600 15
 *     cddprun --standalone --nproc_per_node=2 build/bench/layouts gradients 15
 *
 * "collectives": cddp_all_reduce in place of so many bytes, in memory of malloc and in memory of all ranks
 * (CDDP_MEM_COLLECTIVE). "gradients": a step of a reducer, without a backward pass, for a GPT-2 of 4 layers with 256
 * channels, whose gradients lie in the arena, in one block per tensor with all layers side by side (of cddp_alloc with
 * CDDP_MEM_COLLECTIVE, registered, or of malloc), or in separate memory; and one cddp_all_reduce of such a block.
 * All ways take turns, round by round. The time of a round is that of the slowest rank; rank 0 prints the median and
 * the smallest, in ms, as a line of JSON for each way.
 */
#include <cddp/cddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LAYERS 4
#define TENSORS 16 /* wte, wpe; twelve with a part for each layer; the last norm's two */
#define PARAMS (4 + 12 * LAYERS)
#define WAYS 5 /* of reducers, */
#define FLAT 2 /* and of one cddp_all_reduce of the whole block */

static void need(cddp_status status)
{
    if (status == CDDP_OK)
        return;
    (void)fprintf(stderr, "layouts: %s\n", cddp_last_error());
    exit(1);
}

static void *must(void *p)
{
    if (p == NULL) {
        (void)fprintf(stderr, "layouts: out of memory\n");
        exit(1);
    }
    return p;
}

static double now_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec * 1e-6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void tell(cddp_comm *comm, const char *way, double *ms, int rounds)
{
    qsort(ms, (size_t)rounds, sizeof *ms, by_value);
    if (cddp_rank(comm) == 0)
        (void)printf("{\"way\": \"%s\", \"ranks\": %d, \"median_ms\": %.2f, \"min_ms\": %.2f}\n", way,
                     cddp_world_size(comm), ms[rounds / 2], ms[0]);
}

static double slowest(cddp_comm *comm, double mine)
{
    need(cddp_all_reduce(comm, &mine, &mine, 1, CDDP_FLOAT64, CDDP_MAX));
    return mine;
}

/* -------------------------------------------------------------------------------------------------- collectives ----
 */

static void collectives(cddp_comm *comm, size_t bytes, int rounds)
{
    static const char *const names[2] = {"all_reduce in memory of malloc", "all_reduce in memory of all ranks"};
    double *ms[2];
    float *at[2];
    void *shared;

    need(cddp_alloc(comm, bytes, CDDP_MEM_COLLECTIVE, &shared));
    at[0] = must(malloc(bytes));
    at[1] = shared;
    for (int k = 0; k < 2; k++) {
        ms[k] = must(calloc((size_t)rounds, sizeof **ms));
        memset(at[k], 0, bytes);
    }
    for (int round = -2; round < rounds; round++) /* the first two are not counted */
        for (int k = 0; k < 2; k++) {
            double begin;

            need(cddp_barrier(comm));
            begin = now_ms();
            need(cddp_all_reduce(comm, at[k], at[k], bytes / sizeof(float), CDDP_FLOAT32, CDDP_SUM));
            begin = slowest(comm, now_ms() - begin);
            if (round >= 0)
                ms[k][round] = begin;
        }
    for (int k = 0; k < 2; k++) {
        tell(comm, names[k], ms[k], rounds);
        free(ms[k]);
    }
    free(at[0]);
    cddp_free(comm, shared);
}

/* ---------------------------------------------------------------------------------------------------- gradients ----
 */

struct model {
    size_t count[PARAMS], offset[PARAMS], total; /* in elements, of one block */
    char name[PARAMS][16];
    float *data;
};

/* Parameters in the order of the forward pass: each layer's parts of the twelve tensors, which lie layer by layer. */
static void describe(struct model *m)
{
    enum { C = 256, V = 12800, T = 1024 };
    static const size_t of_layer[12] = {C, C, (size_t)3 * C * C, (size_t)3 * C, (size_t)C * C,     C,
                                        C, C, (size_t)4 * C * C, (size_t)4 * C, (size_t)4 * C * C, C};
    const size_t begin[2] = {(size_t)V * C, (size_t)T * C};
    size_t at = 0, first[12], n = 0;

    for (int t = 0; t < 2; t++) {
        m->offset[n] = at;
        m->count[n++] = begin[t];
        at += begin[t];
    }
    for (int t = 0; t < 12; t++) {
        first[t] = at;
        at += LAYERS * of_layer[t];
    }
    for (size_t l = 0; l < LAYERS; l++)
        for (int t = 0; t < 12; t++) {
            m->offset[n] = first[t] + l * of_layer[t];
            m->count[n++] = of_layer[t];
        }
    for (int t = 0; t < 2; t++) {
        m->offset[n] = at;
        m->count[n++] = C;
        at += C;
    }
    m->total = at;
    for (size_t i = 0; i < PARAMS; i++)
        (void)snprintf(m->name[i], sizeof m->name[i], "p%zu", i);
    m->data = must(calloc(m->total, sizeof *m->data));
}

/* base NULL: in the arena; scattered: each in separate memory. */
static cddp_ddp *make(cddp_comm *comm, const struct model *m, float *base, float **scattered)
{
    cddp_param p[PARAMS];
    cddp_ddp *ddp;

    for (size_t i = 0; i < PARAMS; i++) {
        p[i] = (cddp_param){.size = sizeof p[i],
                            .name = m->name[i],
                            .data = m->data + m->offset[i],
                            .count = m->count[i],
                            .dtype = CDDP_FLOAT32};
        if (base != NULL)
            p[i].grad = base + m->offset[i];
        if (scattered != NULL)
            p[i].grad = scattered[i] = must(calloc(m->count[i] + 16, sizeof(float)));
    }
    need(cddp_ddp_create(&ddp, comm, p, PARAMS, NULL));
    return ddp;
}

static double one_step(cddp_comm *comm, cddp_ddp *ddp)
{
    double begin;

    need(cddp_barrier(comm));
    begin = now_ms();
    for (size_t i = PARAMS; i-- > 0;)
        need(cddp_ddp_grad_ready(ddp, i));
    need(cddp_ddp_wait(ddp));
    return slowest(comm, now_ms() - begin);
}

static double one_sum(cddp_comm *comm, float *block, size_t count)
{
    double begin;

    need(cddp_barrier(comm));
    begin = now_ms();
    need(cddp_all_reduce(comm, block, block, count, CDDP_FLOAT32, CDDP_AVG));
    return slowest(comm, now_ms() - begin);
}

static void gradients(cddp_comm *comm, int rounds)
{
    static const char *const names[WAYS + FLAT] = {"arena",
                                                   "one block, cddp_alloc collective",
                                                   "one block, cddp_register",
                                                   "one block, malloc",
                                                   "scattered, malloc",
                                                   "one all_reduce, cddp_alloc collective",
                                                   "one all_reduce, malloc"};
    static struct model m;
    static float *scattered[PARAMS];
    double *ms[WAYS + FLAT];
    float *block[4] = {NULL};
    cddp_ddp *ddp[WAYS];
    void *shared;

    describe(&m);
    need(cddp_alloc(comm, m.total * sizeof(float), CDDP_MEM_COLLECTIVE, &shared));
    block[1] = shared;
    block[2] = must(calloc(m.total, sizeof(float)));
    block[3] = must(calloc(m.total, sizeof(float)));
    if (cddp_register(comm, block[2], m.total * sizeof(float), CDDP_MEM_COLLECTIVE) != CDDP_OK && cddp_rank(comm) == 0)
        (void)printf("{\"registered\": \"%s\"}\n", cddp_last_error());
    for (int k = 0; k < WAYS; k++) {
        ddp[k] = make(comm, &m, k < 4 ? block[k] : NULL, k == 4 ? scattered : NULL);
    }
    for (int k = 0; k < WAYS + FLAT; k++)
        ms[k] = must(calloc((size_t)rounds, sizeof **ms));
    if (cddp_rank(comm) == 0)
        (void)printf("{\"gradients\": %d, \"bytes\": %zu, \"buckets\": %zu}\n", PARAMS, m.total * sizeof(float),
                     cddp_ddp_bucket_count(ddp[0]));
    for (int round = -3; round < rounds; round++) /* the order of the buckets is settled in the first two */
        for (int k = 0; k < WAYS + FLAT; k++) {
            double took = k < WAYS ? one_step(comm, ddp[k]) : one_sum(comm, block[k == WAYS ? 1 : 3], m.total);

            if (round >= 0)
                ms[k][round] = took;
        }
    for (int k = 0; k < WAYS + FLAT; k++) {
        tell(comm, names[k], ms[k], rounds);
        free(ms[k]);
    }
    for (int k = 0; k < WAYS; k++)
        cddp_ddp_destroy(ddp[k]);
    for (size_t i = 0; i < PARAMS; i++)
        free(scattered[i]);
    (void)cddp_unregister(comm, block[2]); /* where it was registered */
    free(block[2]);
    free(block[3]);
    free(m.data);
    cddp_free(comm, shared);
}

int main(int argc, char **argv)
{
    cddp_comm *comm;

    need(cddp_init(&comm, NULL));
    if (argc == 4 && strcmp(argv[1], "collectives") == 0 && atoi(argv[3]) > 0)
        collectives(comm, (size_t)strtoull(argv[2], NULL, 10), atoi(argv[3]));
    else if (argc == 3 && strcmp(argv[1], "gradients") == 0 && atoi(argv[2]) > 0)
        gradients(comm, atoi(argv[2]));
    else
        (void)fprintf(stderr, "usage: layouts collectives BYTES ROUNDS | layouts gradients ROUNDS\n");
    need(cddp_finalize(comm));
    return 0;
}
