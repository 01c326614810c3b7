/* SPDX-License-Identifier: Apache-2.0 */
#include "tune.h"

#include "common/cpus.h"
#include "room.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TABLE_ENV "CDDP_COLL_TABLE"
#define BUDGET_S 50.0  /* for all; after the least rounds none begins that would end later */
#define POINT_S 0.05   /* for one size by one way in one round, at most */
#define MEASURED 0.6   /* of the budget; buffers, checks and the first operations take the rest */
#define LEAST_ROUNDS 3 /* so that a median ignores one that was disturbed */
#define MOST_ITERS 200
#define MOST_BYTES (UINT64_C(64) << 20) /* of one buffer */
#define BLOCK_BYTES 16                  /* blocks are multiples of it (measure.h) */

static _Noreturn void give_up(const char *why)
{
    (void)fflush(stdout);
    (void)fprintf(stderr, "cddp-bench: %s\n", why);
    exit(1);
}

void bench_tune_prepare(void)
{
    (void)unsetenv(TABLE_ENV);
}

/* ---------------------------------------------------------------------------------------------------- joins ---- */

/* Rank 0 gets a table that leaves no choice. It is a file without a name, so none is left however the program ends. */
static int offer_table(const struct bench_tune *t, enum bench_way way)
{
    int fd = memfd_create("cddp-bench-table", MFD_CLOEXEC);
    char path[48];

    if (fd < 0)
        give_up("cannot make a table for " TABLE_ENV " (memfd_create)");
    for (int k = 0; k < BENCH_TUNE_KINDS; k++)
        if (dprintf(fd, "%s 2 %llu %llu\n", t->series[k].of.name,
                    (unsigned long long)(way == BENCH_ROUNDS ? BENCH_TUNE_ANY : 0),
                    (unsigned long long)(way == BENCH_SHARDS ? BENCH_TUNE_ANY : 0)) < 0)
            give_up("cannot write a table for " TABLE_ENV);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (setenv(TABLE_ENV, path, 1) != 0)
        give_up("out of memory");
    return fd;
}

static void join_again(struct bench *b, const struct bench_tune *t, enum bench_way way)
{
    cddp_init_options init = {.size = sizeof init, .timeout_ms = b->opt.timeout_s * 1000};
    cddp_comm *left = b->world;
    int fd = -1;

    b->world = b->comm = NULL;
    if (cddp_finalize(left) != CDDP_OK)
        give_up(cddp_last_error());
    if (b->prints)
        fd = offer_table(t, way);
    if (cddp_init(&b->world, &init) != CDDP_OK)
        give_up(cddp_last_error());
    b->comm = b->world;
    if (fd >= 0)
        (void)close(fd);
}

/* ----------------------------------------------------------------------------------------------------- plan ---- */

/* Sets the nodes and their ranks. Returns the bytes that a buffer may have. */
static uint64_t look_around(const struct bench *b, struct bench_tune *t)
{
    struct {
        int32_t node, ranks;
        uint64_t room;
    } mine = {cddp_node_rank(b->world), cddp_local_world_size(b->world), (uint64_t)cdi_memory_available("", false)},
      *all;
    int n = cddp_world_size(b->world);
    uint64_t most = MOST_BYTES;

    all = calloc((size_t)n, sizeof *all);
    if (all == NULL)
        give_up("out of memory");
    bench_need(b, cddp_all_gather(b->world, &mine, all, sizeof mine, CDDP_UINT8), "gathering the nodes");
    for (int r = 0; r < n; r++) {
        uint64_t room = bench_most_bytes(all[r].room, all[r].ranks, 0, 1);

        most = room < most ? room : most;
        t->nodes = all[r].node + 1 > t->nodes ? all[r].node + 1 : t->nodes;
        t->most_ranks = all[r].ranks > t->most_ranks ? all[r].ranks : t->most_ranks;
        t->least_ranks = r == 0 || all[r].ranks < t->least_ranks ? all[r].ranks : t->least_ranks;
    }
    free(all);
    return most;
}

/* The bytes that all ranks bring together. */
static uint64_t total_of(const struct bench_tune_kind *k, uint64_t bytes, int n)
{
    return k->kind->rooted && !k->kind->reduces ? bytes : bytes * (uint64_t)n; /* a broadcast: the root's */
}

/* What bench_buffers_get calls the size: that of the input or output, the larger one. */
static uint64_t buffer_of(const struct bench_tune_kind *k, uint64_t bytes, int n)
{
    return k->kind->blocks_out && !k->kind->blocks_in ? bytes * (uint64_t)n : bytes;
}

/* Returns the number of points in a round. */
static size_t plan(const struct bench *b, struct bench_tune *t, uint64_t most)
{
    struct bench_tune_kind kinds[BENCH_TUNE_KINDS];
    int n = cddp_world_size(b->world);
    size_t points = 0;

    bench_tune_kinds(kinds);
    for (int k = 0; k < BENCH_TUNE_KINDS; k++) {
        struct bench_tune_series *s = &t->series[k];
        uint64_t unit = BLOCK_BYTES * (kinds[k].kind->blocks_in ? (uint64_t)n : 1);

        s->of = kinds[k];
        for (uint64_t size = b->opt.min_bytes; size <= b->opt.max_bytes && s->n < BENCH_TUNE_SIZES; size *= 2) {
            uint64_t bytes = size / unit * unit;

            if (bytes > most || buffer_of(&s->of, bytes, n) > most)
                break;
            if (bytes == 0 || (s->n > 0 && bytes <= s->bytes[s->n - 1]))
                continue;
            s->sizes[s->n] = size;
            s->bytes[s->n++] = bytes;
            for (int way = 0; way < BENCH_WAYS; way++)
                points += bench_tune_possible(&s->of.limits, (enum bench_way)way, bytes, total_of(&s->of, bytes, n),
                                              t->most_ranks);
        }
    }
    return points;
}

/* -------------------------------------------------------------------------------------------------- measure ---- */

/* Returns the seconds of one operation: the slowest rank's. In the first round it checks a result, too; below 0: wrong.
 */
static double measure_point(struct bench *b, const struct bench_tune_kind *k, struct bench_case *c, uint64_t bytes,
                            bool checks, double seconds)
{
    struct bench_buffers m;
    struct bench_figure f;
    double iters;

    bench_buffers_get(b, k->kind, c, buffer_of(k, bytes, c->n), &m);
    b->opt.checks = 0;
    b->opt.warmup = b->opt.iters = 1;
    f = bench_measure(b, k->kind, &m, c, false);
    iters = f.seconds > 0 ? seconds / (2 * f.seconds) : MOST_ITERS; /* each waits for a barrier as well */
    b->opt.iters = iters < 1 ? 1 : iters > MOST_ITERS ? MOST_ITERS : (int)iters;
    b->opt.warmup = 0;
    b->opt.checks = checks;
    f = bench_measure(b, k->kind, &m, c, false);
    bench_buffers_free(b, &m);
    if (f.wrong > 0 && b->prints)
        (void)fprintf(stderr, "cddp-bench: --tune: %s of %llu bytes: %.0f wrong elements\n", k->name,
                      (unsigned long long)bytes, f.wrong);
    return f.wrong > 0 ? -1 : f.seconds;
}

static void measure_way(struct bench *b, struct bench_tune *t, enum bench_way way, double seconds)
{
    int n = cddp_world_size(b->world);
    struct bench_case c = {.comm = b->comm, .rank = cddp_rank(b->comm), .n = n, .blocking = true, .together = 1};

    c.counts = calloc(2 * (size_t)n, sizeof *c.counts);
    if (c.counts == NULL)
        give_up("out of memory");
    c.type = &bench_types[b->opt.type];
    for (int k = 0; k < BENCH_TUNE_KINDS; k++) {
        struct bench_tune_series *s = &t->series[k];

        c.op = s->of.kind->reduces ? &bench_ops[b->opt.op] : NULL;
        for (size_t i = 0; i < s->n && !t->is_wrong; i++) {
            double *to = &s->seconds[i][way][t->rounds];

            if (!bench_tune_possible(&s->of.limits, way, s->bytes[i], total_of(&s->of, s->bytes[i], n), t->most_ranks))
                continue;
            *to = measure_point(b, &s->of, &c, s->bytes[i], t->rounds == 0, seconds);
            t->is_wrong = *to < 0;
        }
    }
    free(c.counts);
}

/* Each round measures all ways, and begins with another one. */
static void measure_all(struct bench *b, struct bench_tune *t, size_t points)
{
    double began = bench_now(), seconds = MEASURED * BUDGET_S / BENCH_TUNE_ROUNDS / (double)points, took;
    int32_t ends = 0;

    seconds = seconds < POINT_S ? seconds : POINT_S;
    for (t->rounds = 0; t->rounds < BENCH_TUNE_ROUNDS && !ends; t->rounds++) {
        for (int i = 0; i < BENCH_WAYS && !t->is_wrong; i++) {
            enum bench_way way = (enum bench_way)((t->rounds + i) % BENCH_WAYS);

            join_again(b, t, way);
            measure_way(b, t, way, seconds);
        }
        took = bench_now() - began; /* rank 0's clock counts */
        ends = t->is_wrong || (t->rounds + 1 >= LEAST_ROUNDS && took + took / (t->rounds + 1) > BUDGET_S);
        bench_need(b, cddp_broadcast(b->world, &ends, 1, CDDP_INT32, 0), "agreeing to go on");
    }
}

/* Returns the exit status of what rank 0 finds before it measures, and prints why. */
static int refuse(const struct bench *b, const struct bench_tune *t, size_t points)
{
    if (strcmp(cddp_backend_name(b->world), "cpu") != 0)
        (void)fprintf(stderr, "cddp-bench: --tune: backend \"%s\" uses no " TABLE_ENV "; set CDDP_BACKEND=cpu\n",
                      cddp_backend_name(b->world));
    else if (t->nodes < 2)
        (void)fputs("cddp-bench: --tune: one node: there is nothing to choose within a node; start it on several\n",
                    stderr);
    else if (points == 0)
        (void)fprintf(stderr, "cddp-bench: --tune: no size from -b %zu to -e %zu can be measured\n", b->opt.min_bytes,
                      b->opt.max_bytes);
    else
        return bench_tune_can_write(b->opt.tune) ? 0 : 1;
    return 2;
}

int bench_tune_run(struct bench *b)
{
    struct bench_tune *t = calloc(1, sizeof *t);
    char *text = NULL;
    int32_t status = 0;
    size_t points;

    if (t == NULL)
        give_up("out of memory");
    points = plan(b, t, look_around(b, t));
    if (b->prints)
        status = refuse(b, t, points);
    bench_need(b, cddp_broadcast(b->world, &status, 1, CDDP_INT32, 0), "agreeing to begin");
    if (status == 0) {
        if (b->prints)
            printf("# cddp-bench --tune: measures %d nodes, for about a minute at most\n", t->nodes);
        b->opt.blocking = BENCH_WAIT_BARRIER_APART; /* all ranks begin at the same time: the root of a broadcast, too */
        b->opt.average = BENCH_MAX;
        measure_all(b, t, points);
        status = t->is_wrong;
        text = b->prints && !t->is_wrong ? bench_tune_text(t) : NULL;
        if (b->prints && !t->is_wrong && text == NULL)
            give_up("out of memory");
        if (text != NULL)
            status = bench_tune_write(b->opt.tune, text) && fputs(text, stdout) >= 0 && fflush(stdout) == 0 ? 0 : 1;
    }
    free(text);
    free(t);
    return status;
}
