/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CPU backend under ThreadSanitizer: ranks are threads that share one mapping of every segment, so that the
 * happens-before order that the steps promise is really checked; between emulated nodes they use TCP. Each rank uses
 * its backend from several threads.
 */
#include "ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 3
#define ROUNDS 100
#define BUCKETS 4
#define COUNT 20000u

#define CHECK_OK(st)                                                                          \
    do {                                                                                      \
        if ((st) != CDDP_OK) {                                                                \
            fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, r->rank, r->err.msg); \
            return 1;                                                                         \
        }                                                                                     \
    } while (0)

/* Private memory: every rank knows the inputs of all others. */
static int reduce_private(struct rank *r)
{
    static const size_t counts[] = {1, 100, 5000, 100000};

    CHECK_OK(rank_open(r));
    for (int round = 0; round < ROUNDS; round++) {
        size_t count =
            round % 20 == 19 ? 600000 : counts[round % 4]; /* between nodes more pieces than there are stages */
        float *x = malloc(count * sizeof *x);
        struct cdi_coll op = {.kind = CDI_ALL_REDUCE,
                              .in = x,
                              .out = x,
                              .count = count,
                              .dtype = CDDP_FLOAT32,
                              .op = CDDP_SUM,
                              .bucket = -1,
                              .lazy = true};

        for (size_t i = 0; i < count; i++)
            x[i] = (float)(r->rank + round);
        CHECK_OK(rank_do(r, &op));
        for (size_t i = 0; i < count; i++) {
            if (x[i] == (float)(RANKS * round + 3))
                continue;
            fprintf(stderr, "rank %d: round %d: element %zu is %g\n", r->rank, round, i, (double)x[i]);
            free(x);
            return 1;
        }
        op = (struct cdi_coll){.kind = CDI_BROADCAST,
                               .in = x,
                               .out = x,
                               .count = count,
                               .dtype = CDDP_FLOAT32,
                               .root = round % RANKS,
                               .bucket = -1,
                               .lazy = true};
        CHECK_OK(rank_do(r, &op));
        free(x);
    }
    return 0;
}

/* A step of training: one thread enqueues buckets, another waits for them, both on all ranks. */
struct step {
    struct rank *r;
    struct cdi_region *region;
    pthread_barrier_t go;
    uint64_t ticket;
    int rc;
};

static int make_gradients(struct step *s, int round)
{
    struct rank *r = s->r;

    for (int k = 0; k < BUCKETS; k++) {
        float *p = (float *)s->region->base + (size_t)k * COUNT;
        struct cdi_coll op = {.kind = CDI_ALL_REDUCE,
                              .in = p,
                              .out = p,
                              .count = COUNT,
                              .dtype = CDDP_FLOAT32,
                              .op = CDDP_SUM,
                              .region = s->region,
                              .bucket = k,
                              .lazy = round % 3 == 0};

        for (size_t i = 0; i < COUNT; i++)
            p[i] = (float)(r->rank + k + round);
        CHECK_OK(cdi_cpu_backend.enqueue(r->b, &op, &s->ticket, &r->err));
    }
    return 0;
}

static void *backward(void *arg)
{
    struct step *s = arg;

    for (int round = 0; round < ROUNDS; round++) {
        (void)pthread_barrier_wait(&s->go);
        s->rc |= make_gradients(s, round);
        (void)pthread_barrier_wait(&s->go);
    }
    return NULL;
}

static int reduce_buckets(struct rank *r)
{
    struct step s = {.r = r};
    pthread_t thread;
    int bad = 0;

    CHECK_OK(rank_open(r));
    CHECK_OK(cdi_cpu_backend.region_create(r->b, BUCKETS * COUNT * sizeof(float), &s.region, &r->err));
    (void)pthread_barrier_init(&s.go, NULL, 2);
    if (pthread_create(&thread, NULL, backward, &s) != 0)
        return 1;
    for (int round = 0; round < ROUNDS; round++) {
        struct cdi_error err;

        (void)pthread_barrier_wait(&s.go);
        (void)pthread_barrier_wait(&s.go);
        if (cdi_cpu_backend.join(r->b, s.ticket, &err) != CDDP_OK) {
            fprintf(stderr, "rank %d: %s\n", r->rank, err.msg);
            bad = 1;
        }
        for (size_t i = 0; i < BUCKETS * COUNT && !bad; i++)
            bad = ((float *)s.region->base)[i] != (float)(3 + RANKS * (int)(i / COUNT + (size_t)round));
    }
    (void)pthread_join(thread, NULL);
    (void)pthread_barrier_destroy(&s.go);
    cdi_cpu_backend.region_destroy(r->b, s.region);
    return bad | s.rc;
}

static void *abort_soon(void *arg)
{
    struct rank *r = arg;

    while (atomic_load(&r->board->flag[0]) < 50)
        ;
    cdi_cpu_backend.abort(r->b, &(struct cdi_error){.status = CDDP_E_ABORTED, .msg = "enough"});
    return NULL;
}

/* One thread of rank 1 aborts the operations of all threads of all ranks. */
static int abort_from_elsewhere(struct rank *r)
{
    const struct cdi_coll barrier = {.kind = CDI_BARRIER, .bucket = -1, .lazy = false};
    pthread_t thread;
    cddp_status st = CDDP_OK;

    CHECK_OK(rank_open(r));
    if (r->rank == 1 && pthread_create(&thread, NULL, abort_soon, r) != 0)
        return 1;
    for (int i = 0; i < 10000000 && st == CDDP_OK; i++) {
        st = rank_do(r, &barrier);
        (void)atomic_fetch_add(&r->board->flag[0], 1);
    }
    if (r->rank == 1)
        (void)pthread_join(thread, NULL);
    if (st != CDDP_E_ABORTED || strstr(r->err.msg, "enough") == NULL) {
        fprintf(stderr, "rank %d: %d %s\n", r->rank, (int)st, r->err.msg);
        return 1;
    }
    return 0;
}

int main(void)
{
    static const struct ranks_layout layouts[] = {
        {.name = "shared memory", .node_size = {RANKS}},
        {.name = "TCP", .node_size = {1, 1, 1}},
        {.name = "both", .node_size = {2, 1}},
    };
    int bad = 0;

    for (int l = 0; l < 3; l++) {
        bad += ranks_threads_on(&layouts[l], reduce_private, NULL);
        bad += ranks_threads_on(&layouts[l], reduce_buckets, NULL);
        for (int i = 0; i < 5; i++)
            bad += ranks_threads_on(&layouts[l], abort_from_elsewhere, NULL);
        if (bad != 0)
            fprintf(stderr, "over %s: %d ranks failed\n", layouts[l].name, bad);
    }
    return bad != 0;
}
