/* SPDX-License-Identifier: Apache-2.0 */
#include "slow.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS 10   /* of messages */
#define LOOK_S 0.05 /* for which a rank copies */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double bench_slow(const double *times, int n, int i)
{
    double *sorted = n > 0 ? malloc((size_t)n * sizeof *sorted) : NULL, usual;

    if (sorted == NULL)
        return 0;
    memcpy(sorted, times, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, ascending);
    usual = sorted[(n - 1) / 2];
    free(sorted);
    return usual > 0 && times[i] >= BENCH_SLOW_TIMES * usual ? times[i] / usual : 0;
}

double bench_slow_link(const double *times, const int32_t *nodes, int n, int i)
{
    double *alike = n > 0 ? malloc((size_t)n * sizeof *alike) : NULL, slow;
    int m = 0, at = 0;

    if (alike == NULL)
        return 0;
    for (int r = 0; r < n; r++)
        if ((nodes[r] == nodes[(r + 1) % n]) == (nodes[i] == nodes[(i + 1) % n])) {
            at = r == i ? m : at;
            alike[m++] = times[r];
        }
    slow = bench_slow(alike, m, at);
    free(alike);
    return slow;
}

/* Of one copy, on average over a time in which a rank that has to share its core loses it. */
static double copy_s(const struct bench *b, void *to, const void *from, size_t bytes)
{
    double began = bench_now(), passed = 0;
    int n = 0;

    for (; passed < LOOK_S; n++) {
        bench_need(b, cddp_copy(b->world, to, from, bytes), "copying");
        passed = bench_now() - began;
    }
    return passed / n;
}

/* A message there and back between neighbours; `first` writes first. Their common time is as good on either side. */
static double link_s(const struct bench *b, int peer, bool first, void *out, const void *in, size_t bytes)
{
    double began = bench_now();

    for (int i = 0; i < 2 * ROUNDS; i++) {
        cddp_coll_args a = {.size = sizeof a, .dtype = CDDP_UINT8, .root = peer, .count = bytes};
        bool sends = first == (i % 2 == 0);

        a.coll = sends ? CDDP_COLL_SEND : CDDP_COLL_RECV;
        a.in = sends ? in : NULL;
        a.out = sends ? NULL : out;
        bench_need(b, cddp_coll_run(b->world, &a, 1), "a message to a neighbour");
    }
    return (bench_now() - began) / (2 * ROUNDS);
}

/*
 * The link from this rank to the next one. Links run in two rounds, or three where the ring is odd, so that a rank has
 * one at a time: 0-1 and 2-3, then 1-2, then the one that closes the ring.
 */
static double ring_s(const struct bench *b, void *out, const void *in, size_t bytes)
{
    int n = cddp_world_size(b->world), rank = cddp_rank(b->world), next = (rank + 1) % n, before = (rank + n - 1) % n;
    double mine = 0;

    for (int round = 0; round < 3; round++) {
        int of_mine = rank == n - 1 ? 2 : rank % 2, of_before = before == n - 1 ? 2 : before % 2;

        bench_need(b, cddp_barrier(b->world), "a barrier");
        if (of_mine == round)
            mine = link_s(b, next, true, out, in, bytes);
        else if (of_before == round)
            (void)link_s(b, before, false, out, in, bytes);
    }
    return mine;
}

void bench_find_slow(const struct bench *b, struct bench_table *t, size_t bytes)
{
    int n = cddp_world_size(b->world);
    double mine, *copies = calloc((size_t)n, sizeof *copies), *links = calloc((size_t)n, sizeof *links);
    int32_t node = cddp_node_rank(b->world), *nodes = calloc((size_t)n, sizeof *nodes);
    void *in, *out;

    if (copies == NULL || links == NULL || nodes == NULL) {
        (void)fputs("cddp-bench: out of memory\n", stderr);
        exit(1);
    }
    bench_need(b, cddp_alloc(b->world, bytes, 0, &in), "no memory to look for slow ranks");
    bench_need(b, cddp_alloc(b->world, bytes, 0, &out), "no memory to look for slow ranks");
    bench_need(b, cddp_copy(b->world, out, in, bytes), "copying"); /* pages that are not there yet */
    bench_need(b, cddp_barrier(b->world), "a barrier");
    mine = copy_s(b, out, in, bytes);
    bench_need(b, cddp_all_gather(b->world, &mine, copies, 1, CDDP_FLOAT64), "gathering the times");
    if (n > 2) {
        mine = ring_s(b, out, in, bytes);
        bench_need(b, cddp_all_gather(b->world, &mine, links, 1, CDDP_FLOAT64), "gathering the times");
        bench_need(b, cddp_all_gather(b->world, &node, nodes, 1, CDDP_INT32), "gathering the nodes");
    }
    cddp_free(b->world, in);
    cddp_free(b->world, out);
    for (int r = 0; r < n && b->prints; r++) {
        double times = bench_slow(copies, n, r);

        if (times > 0)
            bench_table_note(t, "slow: rank %d takes %.1f times as long as usual to copy its own memory", r, times);
        times = n > 2 ? bench_slow_link(links, nodes, n, r) : 0;
        if (times > 0)
            bench_table_note(t, "slow: messages between ranks %d and %d take %.1f times as long as usual", r,
                             (r + 1) % n, times);
    }
    free(copies);
    free(links);
    free(nodes);
}
