/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reducer against a plain model of it, to the last bit. cddprun starts the ranks; a seed decides the model, its
 * types and buckets, which gradients come to which rank, how often they are added to before (no_sync), in which order
 * several threads say that they are ready, and how they dawdle. Every rank knows what all others give, and adds it up
 * in rank order. Gradients of the program's own lie alone, or side by side in memory of all ranks.
 *
 *     cddprun --standalone --nproc_per_node=4 stress_reducer [FIRST_SEED [SEEDS]]
 *
 * A seed that fails is printed, and shows the same again: stress_reducer SEED 1. Exit status: 0 all was right.
 */
#include <cddp/cddp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PARAMS 24
#define MAX_COUNT 6000
#define THREADS 3
#define STEPS 6
#define AUTO_STEPS 47 /* until a bucket size is chosen (CDDP_DDP_TUNE), and one more */

struct job {
    cddp_comm *comm;
    cddp_ddp *ddp;
    uint64_t seed;
    int rank, size, step, micros;
    bool unused; /* some gradients are not ready */
    size_t n, count[MAX_PARAMS], order[MAX_PARAMS];
    cddp_dtype dtype[MAX_PARAMS];
    double data[MAX_PARAMS][MAX_COUNT]; /* of the parameters: not used */
    double *own[MAX_PARAMS], *want[MAX_PARAMS];
    bool placed; /* in memory of all ranks, next to each other in another order: */
    double *block;
    _Atomic size_t next;
    _Atomic int failed;
};

/* Returns a number that depends only on these arguments. */
static uint64_t hash(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t h = a * UINT64_C(0x9e3779b97f4a7c15) ^ b * UINT64_C(0xd1342543de82ef95) ^
                 c * UINT64_C(0xaf251af3b0f025b5) ^ d * UINT64_C(0xb564ef22ec7aece5);

    h = (h ^ h >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ h >> 27) * UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 31;
}

static size_t dice(struct job *j, uint64_t what, uint64_t which, size_t n)
{
    return (size_t)(hash(j->seed, what, which, 77) % n);
}

static bool comes(const struct job *j, int rank, size_t i)
{
    /* Some are ready on no rank for two steps or more. */
    if (j->unused && hash(j->seed, (uint64_t)j->step / 3, 0, 2000 + i) % 3 == 0)
        return false;
    return !j->unused || hash(j->seed, (uint64_t)j->step, (uint64_t)rank, 1000 + i) % 3 != 0;
}

/* Returns what a rank adds to element k of gradient i in one pass: sevenths, so that every sum is rounded. */
static double part(const struct job *j, int rank, int micro, size_t i, size_t k)
{
    uint64_t h = hash(j->seed * 64 + (uint64_t)j->step, (uint64_t)(rank * 8 + micro), i, k);

    return ((double)(h & 0xffff) - 32768) / 7;
}

/* The sum of all passes of one rank, and the mean over ranks, in the type's own arithmetic. */
#define MODEL(name, type)                                                       \
    static type given_##name(const struct job *j, int rank, size_t i, size_t k) \
    {                                                                           \
        type sum = (type)part(j, rank, 0, i, k);                                \
                                                                                \
        for (int m = 1; m < j->micros; m++)                                     \
            sum += (type)part(j, rank, m, i, k);                                \
        return sum;                                                             \
    }                                                                           \
    static type mean_##name(const struct job *j, size_t i, size_t k)            \
    {                                                                           \
        type sum = comes(j, 0, i) ? given_##name(j, 0, i, k) : 0;               \
                                                                                \
        for (int r = 1; r < j->size; r++)                                       \
            sum += comes(j, r, i) ? given_##name(j, r, i, k) : 0;               \
        return sum * ((type)1 / (type)j->size);                                 \
    }
MODEL(f32, float)
MODEL(f64, double)

static void make_gradient(struct job *j, size_t i)
{
    void *g = cddp_ddp_grad(j->ddp, i);

    for (size_t k = 0; k < j->count[i]; k++)
        if (j->dtype[i] == CDDP_FLOAT32)
            ((float *)g)[k] = given_f32(j, j->rank, i, k);
        else
            ((double *)g)[k] = given_f64(j, j->rank, i, k);
}

static void *backward(void *arg)
{
    struct job *j = arg;
    size_t at;

    while ((at = atomic_fetch_add(&j->next, 1)) < j->n) {
        size_t i = j->order[at];

        if (!comes(j, j->rank, i))
            continue;
        make_gradient(j, i);
        if (dice(j, 500 + (uint64_t)j->rank, (uint64_t)j->step * 100 + i, 4) == 0)
            (void)usleep((useconds_t)dice(j, 600 + (uint64_t)j->rank, (uint64_t)j->step * 100 + i, 500));
        if (cddp_ddp_grad_ready(j->ddp, i) != CDDP_OK)
            j->failed = 1;
    }
    return NULL;
}

/* The order in which this rank's gradients become ready: another one on every rank and in every step. */
static void shuffle(struct job *j)
{
    for (size_t i = 0; i < j->n; i++) {
        size_t other = dice(j, 300 + (uint64_t)j->rank, (uint64_t)j->step * 100 + i, i + 1);

        j->order[i] = j->order[other];
        j->order[other] = i;
    }
}

static int compare(struct job *j)
{
    for (size_t i = 0; i < j->n; i++) {
        bool used = false;
        size_t bytes = j->count[i] * cddp_dtype_size(j->dtype[i]);

        for (int r = 0; r < j->size; r++)
            used |= comes(j, r, i);
        for (size_t k = 0; used && k < j->count[i]; k++)
            if (j->dtype[i] == CDDP_FLOAT32)
                ((float *)j->want[i])[k] = mean_f32(j, i, k);
            else
                j->want[i][k] = mean_f64(j, i, k);
        if (memcmp(cddp_ddp_grad(j->ddp, i), j->want[i], bytes) == 0)
            continue;
        fprintf(stderr, "rank %d: seed %llu: step %d: gradient %zu of %zu is wrong (%d ranks)\n", j->rank,
                (unsigned long long)j->seed, j->step, i, j->n, j->size);
        return 1;
    }
    return 0;
}

static int one_step(struct job *j)
{
    pthread_t threads[THREADS];
    size_t early = dice(j, 400 + (uint64_t)j->rank, (uint64_t)j->step, j->n);

    j->micros = 1 + (int)dice(j, 200, (uint64_t)j->step, 3);
    shuffle(j);
    j->next = 0;
    for (int t = 0; t < THREADS; t++)
        if (pthread_create(&threads[t], NULL, backward, j) != 0)
            return 1;
    for (int t = 0; t < THREADS; t++)
        (void)pthread_join(threads[t], NULL);
    if (j->failed || (!j->unused && cddp_ddp_wait_param(j->ddp, early) != CDDP_OK) ||
        cddp_ddp_wait(j->ddp) != CDDP_OK) {
        fprintf(stderr, "rank %d: seed %llu: step %d: %s\n", j->rank, (unsigned long long)j->seed, j->step,
                cddp_last_error());
        return 1;
    }
    return compare(j);
}

/* Allocates the program's gradients: separately, or in one block. */
static int lay_own(struct job *j)
{
    size_t order[MAX_PARAMS], at = 0;
    void *block;

    if (j->placed && cddp_alloc(j->comm, sizeof j->data, CDDP_MEM_COLLECTIVE, &block) != CDDP_OK)
        return 1;
    if (j->placed)
        memset(j->block = block, 0, sizeof j->data);
    for (size_t i = 0; i < j->n; i++) {
        size_t other = dice(j, 16, 0, 2) == 0 ? i : dice(j, 15, i, i + 1);

        order[i] = order[other];
        order[other] = i;
    }
    for (size_t k = 0; k < j->n; k++) {
        size_t i = order[k], size = cddp_dtype_size(j->dtype[i]);

        at = (at + size - 1) / size * size;
        if (!j->placed)
            j->own[i] = dice(j, 11, i, 3) == 0 ? calloc(MAX_COUNT, sizeof(double)) : NULL;
        else if (dice(j, 11, i, 24) != 0)
            j->own[i] = (double *)(void *)((char *)j->block + at);
        at += j->count[i] * size;
    }
    return 0;
}

static int run_seed(cddp_comm *comm, uint64_t seed)
{
    static struct job job;
    struct job *j = &job;
    cddp_param params[MAX_PARAMS] = {{0}};
    cddp_ddp_options opt = {.size = sizeof opt};
    bool automatic;
    int bad = 0;

    *j = (struct job){.comm = comm, .seed = seed, .rank = cddp_rank(comm), .size = cddp_world_size(comm)};
    j->n = 1 + dice(j, 1, 0, MAX_PARAMS);
    j->unused = dice(j, 2, 0, 3) == 0;
    opt.flags = (j->unused ? CDDP_DDP_FIND_UNUSED | (dice(j, 13, 0, 2) == 0 ? CDDP_DDP_SKIP_UNUSED : 0) : 0) |
                (dice(j, 3, 0, 2) == 0 ? CDDP_DDP_SPLIT : 0);
    automatic = dice(j, 12, 0, 8) == 0;
    opt.flags |= automatic ? CDDP_DDP_TUNE : 0;
    j->placed = dice(j, 14, 0, 3) == 0; /* then larger ones, for long contiguous ranges */
    j->n = j->placed ? MAX_PARAMS : j->n;
    opt.bucket_bytes = automatic ? 0 : 64 + dice(j, 4, 0, j->placed ? 400000 : 12000);
    opt.first_bucket_bytes = 64 + dice(j, 5, 0, automatic ? 400 : 4000);
    opt.last_bucket_bytes = dice(j, 6, 0, 2) * dice(j, 7, 0, 4000);
    for (size_t i = 0; i < j->n; i++) {
        j->count[i] = 1 + dice(j, 8, i, j->placed || dice(j, 9, i, 3) == 0 ? MAX_COUNT : 50);
        j->dtype[i] = dice(j, 10, i, j->placed ? 16 : 3) == 0 ? CDDP_FLOAT64 : CDDP_FLOAT32;
        j->want[i] = calloc(MAX_COUNT, sizeof(double));
    }
    if (lay_own(j) != 0) {
        fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, cddp_last_error());
        return 1;
    }
    for (size_t i = 0; i < j->n; i++)
        params[i] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = "p",
                                 .data = j->data[i],
                                 .count = j->count[i],
                                 .dtype = j->dtype[i],
                                 .grad = j->own[i]};
    if (cddp_ddp_create(&j->ddp, comm, params, j->n, &opt) != CDDP_OK) {
        fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, cddp_last_error());
        return 1;
    }
    for (j->step = 0; j->step < (automatic ? AUTO_STEPS : STEPS) && bad == 0; j->step++)
        bad = one_step(j);
    if (bad == 0 && cddp_ddp_bucket_cap(j->ddp) == 0) {
        fprintf(stderr, "rank %d: seed %llu: no bucket size is chosen after %d steps\n", j->rank,
                (unsigned long long)seed, j->step);
        bad = 1;
    }
    cddp_ddp_destroy(j->ddp);
    for (size_t i = 0; i < j->n; i++) {
        if (!j->placed)
            free(j->own[i]);
        free(j->want[i]);
    }
    cddp_free(comm, j->block);
    return bad;
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, n = argc > 2 ? strtoull(argv[2], NULL, 10) : 40;
    cddp_comm *comm;
    int bad = 0;

    if (cddp_init(&comm, NULL) != CDDP_OK) {
        fprintf(stderr, "%s\n", cddp_last_error());
        return 1;
    }
    for (uint64_t seed = first; seed < first + n && bad == 0; seed++)
        bad = run_seed(comm, seed);
    if (bad == 0 && cddp_rank(comm) == 0)
        printf("%llu seeds from %llu on %d ranks: every gradient as the model says\n", (unsigned long long)n,
               (unsigned long long)first, cddp_world_size(comm));
    return cddp_finalize(comm) != CDDP_OK || bad != 0;
}
