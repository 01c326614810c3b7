/* SPDX-License-Identifier: Apache-2.0 */
#include "measure.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_BEGUN 4096 /* operations under way at once: libcddp keeps 65536 groups at most, and some take several */
#define WRITE_BYTES ((size_t)1 << 20) /* of the buffers at once */

void bench_need(const struct bench *b, cddp_status status, const char *doing)
{
    if (status == CDDP_OK)
        return;
    (void)fflush(stdout);
    (void)fprintf(stderr, "cddp-bench: rank %d: %s: %s\n", cddp_rank(b->world), doing, cddp_last_error());
    exit(1);
}

double bench_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --------------------------------------------------------------------------------------------------- memory ---- */

/* The count of a size, as nccl-tests makes it: blocks are whole multiples of 16 bytes. */
static size_t count_of(const struct bench_kind *kind, size_t bytes, size_t size, int n)
{
    size_t count = bytes / size;

    if (!kind->blocks_in && !kind->blocks_out)
        return count;
    return count / (size_t)n & ~(16 / size - 1);
}

static void *allocate(const struct bench *b, size_t bytes)
{
    void *p;

    bench_need(b, cddp_alloc(b->comm, bytes, b->opt.shared ? CDDP_MEM_COLLECTIVE : 0, &p), "no memory for the buffers");
    return p;
}

/*
 * Writes ones and twos into all of it. Pages that nobody has written are one page of zeros for all, which the cache
 * holds: reading them would be timed as nothing. Memory that was used before may hold numbers that are slow to add.
 */
static void write_all(const struct bench *b, const struct bench_case *c, void *memory, size_t bytes)
{
    size_t size = cddp_dtype_size(c->type->dtype), at_once = bytes < WRITE_BYTES ? bytes : WRITE_BYTES;
    void *host = malloc(at_once + size);

    if (host == NULL) {
        (void)fputs("cddp-bench: out of memory\n", stderr);
        exit(1);
    }
    bench_fill(host, (at_once + size - 1) / size, c->type, c->rank, 0, 0);
    for (size_t done = 0, n; done < bytes; done += n) {
        n = bytes - done < at_once ? bytes - done : at_once;
        bench_need(b, cddp_copy(c->comm, (char *)memory + done, host, n), "writing the buffers");
    }
    free(host);
}

void bench_buffers_get(const struct bench *b, const struct bench_kind *kind, struct bench_case *c, size_t bytes,
                       struct bench_buffers *m)
{
    size_t size = cddp_dtype_size(c->type->dtype), shift = (size_t)b->opt.unalign * size, n = (size_t)c->n;

    c->count = count_of(kind, bytes, size, c->n);
    m->in_bytes = c->count * size * (kind->blocks_in ? n : 1);
    m->out_bytes = c->count * size * (kind->blocks_out ? n : 1);
    m->in_memory = allocate(b, m->in_bytes * (size_t)c->together + shift + 1);
    m->out_memory = allocate(b, m->out_bytes * (size_t)c->together + shift + 1);
    write_all(b, c, m->in_memory, m->in_bytes * (size_t)c->together + shift);
    write_all(b, c, m->out_memory, m->out_bytes * (size_t)c->together + shift);
    m->in = (char *)m->in_memory + shift;
    m->out = (char *)m->out_memory + shift;
}

void bench_buffers_free(const struct bench *b, struct bench_buffers *m)
{
    cddp_free(b->comm, m->in_memory);
    cddp_free(b->comm, m->out_memory);
}

static size_t block_offset(const struct bench_case *c)
{
    return c->count * (size_t)c->rank * cddp_dtype_size(c->type->dtype);
}

static void place(const struct bench_kind *kind, const struct bench_buffers *m, bool in_place, struct bench_case *c)
{
    c->in = m->in;
    c->out = m->out;
    c->in_step = m->in_bytes;
    c->out_step = m->out_bytes;
    if (!in_place)
        return;
    if (kind->place == BENCH_PART_IN) {
        c->out = m->in + block_offset(c);
        c->out_step = c->in_step;
        return;
    }
    c->in = kind->place == BENCH_SAME ? m->out : m->out + block_offset(c);
    c->in_step = c->out_step;
}

/* ---------------------------------------------------------------------------------------------------- times ---- */

/*
 * Runs `times` groups of operations on the ranks that take part. Returns the seconds until all are done; of -z 3,
 * without the barriers. *host_s: those that the host needed to begin them.
 */
static double run(const struct bench *b, const struct bench_kind *kind, const struct bench_case *c, int times,
                  double *host_s)
{
    const enum bench_blocking how = b->opt.blocking;
    const bool takes_part = bench_takes_part(kind, c);
    double began = bench_now(), from = began, alone = 0;
    uint64_t ticket = 0;

    for (int i = 0; i < times; i++) {
        if (how == BENCH_WAIT_BARRIER_APART)
            from = bench_now();
        if (takes_part)
            bench_need(b, bench_start(kind, c, &ticket), kind->name);
        if (how == BENCH_WAIT_BARRIER_APART)
            alone += bench_now() - from;
        if (how == BENCH_WAIT_BARRIER || how == BENCH_WAIT_BARRIER_APART)
            bench_need(b, cddp_barrier(c->comm), "a barrier");
        if (how == BENCH_BEGUN && i % MOST_BEGUN == MOST_BEGUN - 1)
            bench_need(b, cddp_coll_wait(c->comm, ticket), kind->name);
    }
    *host_s = how == BENCH_WAIT_BARRIER_APART ? alone : bench_now() - began;
    bench_need(b, cddp_coll_wait(c->comm, ticket), kind->name);
    return how == BENCH_WAIT_BARRIER_APART ? alone : bench_now() - began;
}

/* Of the times of the ranks that took part; the rest say less than 0. */
static void combine(const struct bench *b, const struct bench_case *c, double mine, struct bench_figure *f)
{
    double *all = malloc((size_t)c->n * sizeof *all), sum = 0, least = 0, most = 0;
    int n = 0;

    if (all == NULL) {
        (void)fputs("cddp-bench: out of memory\n", stderr);
        exit(1);
    }
    bench_need(b, cddp_all_gather(c->comm, &mine, all, 1, CDDP_FLOAT64), "gathering the times");
    for (int r = 0; r < c->n; r++) {
        if (all[r] < 0)
            continue;
        sum += all[r];
        least = n == 0 || all[r] < least ? all[r] : least;
        if (n++ == 0 || all[r] > most) {
            most = all[r];
            f->slowest_rank = r;
        }
    }
    f->slowest = most;
    f->seconds = b->opt.average == BENCH_RANK_0 ? all[0] : b->opt.average == BENCH_MIN ? least : most;
    if (b->opt.average == BENCH_AVERAGE)
        f->seconds = sum / n;
    free(all);
}

/* --------------------------------------------------------------------------------------------------- checks ---- */

static struct bench_case part_of(const struct bench_case *c, int i)
{
    struct bench_case one = *c;

    one.in = (char *)one.in + (size_t)i * one.in_step;
    one.out = (char *)one.out + (size_t)i * one.out_step;
    one.round += (unsigned)i;
    return one;
}

/* One group of operations on known values; how many elements are wrong on all ranks together. */
static double check(const struct bench *b, const struct bench_kind *kind, const struct bench_buffers *m,
                    struct bench_case *c)
{
    size_t result = kind->blocks_out ? m->out_bytes : c->count * cddp_dtype_size(c->type->dtype);
    void *host = malloc((m->in_bytes > m->out_bytes ? m->in_bytes : m->out_bytes) + 1);
    const bool takes_part = bench_takes_part(kind, c);
    double wrong = 0, unused;

    if (host == NULL) {
        (void)fprintf(stderr, "cddp-bench: no memory to check %zu bytes in (-c 0: without checks)\n", m->out_bytes);
        exit(1);
    }
    for (int i = 0; i < c->together && takes_part; i++) {
        struct bench_case one = part_of(c, i);

        memset(host, 0x5a, m->out_bytes);
        bench_need(b, cddp_copy(c->comm, m->out + (size_t)i * m->out_bytes, host, m->out_bytes), "copying");
        kind->fill(&one, host);
        bench_need(b, cddp_copy(c->comm, one.in, host, m->in_bytes), "copying");
    }
    (void)run(b, kind, c, 1, &unused);
    for (int i = 0; i < c->together && takes_part; i++) {
        struct bench_case one = part_of(c, i);

        bench_need(b, cddp_copy(c->comm, host, one.out, result), "copying");
        wrong += (double)kind->wrong(&one, host);
    }
    free(host);
    bench_need(b, cddp_all_reduce(c->comm, &wrong, &wrong, 1, CDDP_FLOAT64, CDDP_SUM), "counting what is wrong");
    return wrong;
}

struct bench_figure bench_measure(const struct bench *b, const struct bench_kind *kind, const struct bench_buffers *m,
                                  struct bench_case *c, bool in_place)
{
    struct bench_figure f = {.wrong = b->opt.checks > 0 ? 0 : -1};
    double mine = -1, host_s;
    size_t size = cddp_dtype_size(c->type->dtype);

    place(kind, m, in_place, c);
    (void)run(b, kind, c, b->opt.warmup, &host_s);
    bench_need(b, cddp_barrier(c->comm), "a barrier");
    mine = run(b, kind, c, b->opt.iters, &host_s) / b->opt.iters / c->together;
    host_s = host_s / b->opt.iters / c->together;
    if (strcmp(kind->name, "latency") == 0)
        mine /= 2;
    if (!bench_takes_part(kind, c))
        mine = host_s = -1;
    combine(b, c, mine, &f);
    f.algorithm = f.seconds > 0 ? kind->algorithm(c->n) * (double)(c->count * size) / f.seconds / 1e9 : 0;
    f.bus = f.algorithm * kind->bus(c->n);
    if (b->opt.host_time)
        combine(b, c, host_s, &f);
    for (int i = 0; i < b->opt.checks && f.wrong == 0; i++) {
        c->round += (unsigned)c->together;
        f.wrong += check(b, kind, m, c);
    }
    return f;
}
