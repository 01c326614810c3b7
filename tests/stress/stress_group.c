/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random groups of messages on 2 to 7 ranks of one to four nodes, in a different order on each rank, with collectives
 * in between; and the same with two threads that have separate communicators. Ranks are threads, so that
 * ThreadSanitizer sees them, and then processes. For more: stress_group FIRST_SEED SEEDS
 */
#include "../conformance/conformance_group.h"

#include <pthread.h>
#include <stdlib.h>

#define LETTERS 40 /* in a group */
#define GROUPS 12  /* of a seed */
#define TIMEOUT_S 100

static const struct ranks_layout layouts[] = {
    {.name = "2", .node_size = {2}},           {.name = "3", .node_size = {3}},
    {.name = "1+1", .node_size = {1, 1}},      {.name = "4", .node_size = {4}},
    {.name = "2+1", .node_size = {2, 1}},      {.name = "5", .node_size = {5}},
    {.name = "2+2", .node_size = {2, 2}},      {.name = "7", .node_size = {7}},
    {.name = "1+2+1", .node_size = {1, 2, 1}}, {.name = "1+1+1+1", .node_size = {1, 1, 1, 1}},
    {.name = "3+2", .node_size = {3, 2}},      {.name = "2+3+2", .node_size = {2, 3, 2}},
};
#define LAYOUTS (sizeof layouts / sizeof layouts[0])

/* A collective checks that all ranks are at the same place. */
static int sum(struct rank *r, uint64_t seed)
{
    int64_t x = r->rank + (int64_t)seed;
    const struct cdi_coll op = {.kind = CDI_ALL_REDUCE,
                                .in = &x,
                                .out = &x,
                                .count = 1,
                                .dtype = CDDP_INT64,
                                .op = CDDP_SUM,
                                .bucket = -1,
                                .lazy = true};

    RANK_CHECK(rank_do(r, &op) == CDDP_OK);
    RANK_CHECK(x == r->size * (int64_t)seed + r->size * (r->size - 1) / 2);
    return 0;
}

static int groups(struct rank *r)
{
    uint64_t seed = *(const uint64_t *)r->arg, own = 1 + 1000 * seed + (uint64_t)r->rank;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (uint64_t i = 0; i < GROUPS; i++) {
        if (group_exchange(r, seed * GROUPS + i, &own, LETTERS) != 0)
            return 1;
        if ((seed + i) % 3 == 0 && sum(r, seed + i) != 0)
            return 1;
    }
    return 0;
}

struct side {
    struct rank r;
    uint64_t seed;
    int bad;
};

static void *one_side(void *arg)
{
    struct side *s = arg;
    uint64_t own = 7 + 1000 * s->seed + (uint64_t)s->r.rank;

    for (uint64_t i = 0; i < GROUPS && s->bad == 0; i++)
        s->bad = group_exchange(&s->r, s->seed * GROUPS + i, &own, LETTERS);
    return NULL;
}

/* A thread for each of two communicators, in the second of which the ranks are in reverse. */
static int two_threads(struct rank *r)
{
    const struct cdi_split turned = {.color = 0, .key = -r->rank};
    uint64_t seed = *(const uint64_t *)r->arg;
    struct side whole, part;
    pthread_t thread;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    whole = (struct side){.r = *r, .seed = seed};
    part = (struct side){.r = *r, .seed = seed + 1};
    RANK_CHECK(rank_split(r, &turned, &part.r.b) == CDDP_OK);
    part.r.rank = r->size - 1 - r->rank;
    RANK_CHECK(pthread_create(&thread, NULL, one_side, &part) == 0);
    (void)one_side(&whole);
    RANK_CHECK(pthread_join(thread, NULL) == 0 && whole.bad == 0 && part.bad == 0);
    r->ops->destroy(part.r.b);
    return 0;
}

static int failures(const struct ranks_layout *l, rank_fn fn, const uint64_t *seed)
{
    int threads = ranks_threads_on(l, fn, seed), processes = ranks_fork_on(l, TIMEOUT_S, fn, seed, NULL);

    if (threads + processes > 0)
        fprintf(stderr, "stress_group: seed %llu on %s, %s: %d threads and %d processes failed\n",
                (unsigned long long)*seed, l->name, fn == groups ? "one thread" : "two threads", threads, processes);
    return threads + processes;
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, n = argc > 2 ? strtoull(argv[2], NULL, 10) : 2;
    int bad = 0;

    for (uint64_t seed = first; seed < first + n; seed++)
        for (size_t i = 0; i < LAYOUTS; i++) {
            bad += failures(&layouts[i], groups, &seed);
            bad += failures(&layouts[i], two_threads, &seed);
        }
    return bad != 0;
}
