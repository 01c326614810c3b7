/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How collectives over many hosts are checked and timed, the same for every library: included by scale.c and by
 * peers/mpi_scale.c, which say how a barrier, an all-reduce and an all-to-all are done. libc only.
 *
 * The command line: SECONDS CASE..., a case being barrier, all_reduce:BYTES or all_to_all:BYTES (of a pair of ranks).
 * SECONDS is the time spent on each case; with 0 nothing is timed, and each case is checked CHECKS times instead. All
 * ranks must share a clock, as network namespaces of one machine do.
 */
#ifndef BENCH_SCALE_H
#define BENCH_SCALE_H

#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SAMPLE_S 0.003
#define LONG_S 0.3   /* an operation that takes longer is timed one by one */
#define LEAST_OPS 4L /* in a sample: ranks leave the barrier before it at different times */
#define MIN_SAMPLES 3
#define MAX_SAMPLES 101
#define CHECKS 5

struct fabric {
    int rank, size;
    bool in_order; /* sums are made in rank order, and are checked to the bit */
    void *arg;
    void (*barrier)(struct fabric *f); /* these end the program if they fail */
    void (*all_reduce)(struct fabric *f, float *buf, size_t n);
    void (*all_to_all)(struct fabric *f, const uint32_t *in, uint32_t *out, size_t n);
    double (*max)(struct fabric *f, double mine);
};

enum what { BARRIER, ALL_REDUCE, ALL_TO_ALL };

struct scale_case {
    enum what what;
    size_t n;           /* elements: of the buffer, or for a pair of ranks */
    float *buf;         /* of all_reduce */
    uint32_t *in, *out; /* of all_to_all */
};

static const char *const what_names[] = {"barrier", "all_reduce", "all_to_all"};

static double now_s(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void *memory(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

    if (p == NULL) {
        (void)fprintf(stderr, "scale: out of memory\n");
        exit(1);
    }
    memset(p, 0, bytes);
    return p;
}

static void wrong(const struct fabric *f, const struct scale_case *c, const char *text)
{
    (void)fprintf(stderr, "scale: %s of %zu elements, rank %d of %d: %s\n", what_names[c->what], c->n, f->rank, f->size,
                  text);
    exit(1);
}

static void run_case(struct fabric *f, const struct scale_case *c)
{
    if (c->what == BARRIER)
        f->barrier(f);
    else if (c->what == ALL_REDUCE)
        f->all_reduce(f, c->buf, c->n);
    else
        f->all_to_all(f, c->in, c->out, c->n);
}

/* An element of a rank. In order: values whose sum depends on the order of its terms; otherwise small integers. */
static float element(const struct fabric *f, int rank, size_t i, unsigned round)
{
    unsigned k = (unsigned)((i * 7 + round * 5 + (size_t)rank * 3) % 31);

    return f->in_order ? (k % 2 == 0 ? 1.0F : -1.0F) * (1e4F / (float)(k + 3) + 1e-3F * (float)rank) : (float)k;
}

static void check_all_reduce(struct fabric *f, const struct scale_case *c, unsigned round)
{
    for (size_t i = 0; i < c->n; i++)
        c->buf[i] = element(f, f->rank, i, round);
    run_case(f, c);
    for (size_t i = 0; i < c->n; i++) {
        float sum = element(f, 0, i, round);
        char text[128];

        for (int r = 1; r < f->size; r++)
            sum += element(f, r, i, round);
        (void)snprintf(text, sizeof text, "element %zu is %.9g, not %.9g", i, (double)c->buf[i], (double)sum);
        if (c->buf[i] != sum)
            wrong(f, c, text);
    }
    memset(c->buf, 0, c->n * sizeof *c->buf); /* zeros stay zeros, however often they are summed */
}

static uint32_t word(const struct fabric *f, int from, int to, size_t i, unsigned round)
{
    return ((uint32_t)from * (uint32_t)f->size + (uint32_t)to) * 2654435761U + (uint32_t)i * 40503U + round;
}

static void check_all_to_all(struct fabric *f, const struct scale_case *c, unsigned round)
{
    for (int r = 0; r < f->size; r++)
        for (size_t i = 0; i < c->n; i++) {
            c->in[(size_t)r * c->n + i] = word(f, f->rank, r, i, round);
            c->out[(size_t)r * c->n + i] = 0;
        }
    run_case(f, c);
    for (int r = 0; r < f->size; r++)
        for (size_t i = 0; i < c->n; i++) {
            uint32_t got = c->out[(size_t)r * c->n + i];
            char text[128];

            (void)snprintf(text, sizeof text, "word %zu from rank %d is %08x", i, r, got);
            if (got != word(f, r, f->rank, i, round))
                wrong(f, c, text);
        }
}

/* No rank may leave before the last one has entered. The last one is another rank in each round. */
static void check_barrier(struct fabric *f, const struct scale_case *c, unsigned round)
{
    double entered, left;
    char text[128];

    if (f->rank == (int)(round % (unsigned)f->size))
        (void)usleep(20000);
    entered = now_s();
    run_case(f, c);
    left = -f->max(f, -now_s());
    entered = f->max(f, entered);
    (void)snprintf(text, sizeof text, "a rank left %.6f s before the last one entered", entered - left);
    if (left < entered)
        wrong(f, c, text);
}

static void check_case(struct fabric *f, const struct scale_case *c, unsigned round)
{
    if (c->what == BARRIER)
        check_barrier(f, c, round);
    else if (c->what == ALL_REDUCE)
        check_all_reduce(f, c, round);
    else
        check_all_to_all(f, c, round);
}

/* Seconds per operation, of the slowest rank; so all ranks have the same number. */
static double sample(struct fabric *f, const struct scale_case *c, long n_ops)
{
    double began;

    f->barrier(f);
    began = now_s();
    for (long k = 0; k < n_ops; k++)
        run_case(f, c);
    return f->max(f, now_s() - began) / (double)n_ops;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Samples until budget_s is spent, and one line of JSON from rank 0. */
static void time_case(struct fabric *f, const struct scale_case *c, double budget_s)
{
    double times[MAX_SAMPLES] = {0}, once = sample(f, c, 1), spent = 0;
    long n_ops = once > LONG_S ? 1 : once * (double)LEAST_OPS > SAMPLE_S ? LEAST_OPS : (long)(SAMPLE_S / once) + 1;
    int n = 0;

    while (n < MAX_SAMPLES && (n < MIN_SAMPLES || spent < budget_s)) {
        times[n] = sample(f, c, n_ops);
        spent += times[n++] * (double)n_ops;
    }
    qsort(times, (size_t)n, sizeof times[0], ascending);
    if (f->rank != 0)
        return;
    (void)printf(
        "{\"what\": \"%s\", \"bytes\": %zu, \"us\": %.3f, \"us_min\": %.3f, \"us_max\": %.3f, \"samples\": %d, "
        "\"operations\": %ld}\n",
        what_names[c->what], c->n * sizeof(float), times[n / 2] * 1e6, times[0] * 1e6, times[n - 1] * 1e6, n, n_ops);
    (void)fflush(stdout);
}

/* Open files that are sockets. */
static int count_sockets(void)
{
    DIR *dir = opendir("/proc/self/fd");
    struct dirent *one;
    int n = 0;

    while (dir != NULL && (one = readdir(dir)) != NULL) {
        char path[280], target[64];
        ssize_t len;

        (void)snprintf(path, sizeof path, "/proc/self/fd/%s", one->d_name);
        len = readlink(path, target, sizeof target - 1);
        n += len > 7 && strncmp(target, "socket:", 7) == 0;
    }
    if (dir != NULL)
        (void)closedir(dir);
    return n;
}

static long resident_kib(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    long size, pages = 0;

    if (file != NULL && fscanf(file, "%ld %ld", &size, &pages) != 2)
        pages = 0;
    if (file != NULL)
        (void)fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* What one rank has open, and its memory: the most of any rank. */
static void tell_process(struct fabric *f, const char *when)
{
    double sockets = f->max(f, count_sockets()), kib = f->max(f, (double)resident_kib());

    if (f->rank == 0)
        (void)printf("{\"what\": \"process\", \"when\": \"%s\", \"sockets\": %.0f, \"resident_kib\": %.0f}\n", when,
                     sockets, kib);
}

/* False: not a case. */
static bool parse_case(const char *text, struct scale_case *c)
{
    const char *colon = strchr(text, ':');
    size_t len = colon == NULL ? strlen(text) : (size_t)(colon - text), bytes = 0;
    char *end = NULL;

    if (colon != NULL) {
        bytes = (size_t)strtoull(colon + 1, &end, 10);
        if (*end != '\0' || bytes == 0 || bytes % sizeof(float) != 0)
            return false;
    }
    for (int what = BARRIER; what <= ALL_TO_ALL; what++)
        if (strlen(what_names[what]) == len && memcmp(text, what_names[what], len) == 0 &&
            (what == BARRIER) == (colon == NULL)) {
            *c = (struct scale_case){.what = (enum what)what, .n = bytes / sizeof(float)};
            return true;
        }
    return false;
}

static void one_case(struct fabric *f, struct scale_case *c, double budget_s)
{
    size_t all = c->n * sizeof(uint32_t) * (size_t)f->size;

    if (c->what == ALL_REDUCE)
        c->buf = memory(c->n * sizeof *c->buf);
    if (c->what == ALL_TO_ALL) {
        c->in = memory(all);
        c->out = memory(all);
    }
    for (unsigned round = 0; round < (budget_s > 0 ? 1 : CHECKS); round++)
        check_case(f, c, round);
    if (budget_s > 0) {
        time_case(f, c, budget_s);
        check_case(f, c, 1);
    } else if (f->rank == 0) {
        (void)printf("{\"what\": \"%s\", \"bytes\": %zu, \"checked\": %d}\n", what_names[c->what], c->n * sizeof(float),
                     CHECKS);
    }
    free(c->buf);
    free(c->in);
    free(c->out);
}

static int scale_main(int argc, char **argv, struct fabric *f)
{
    double budget_s = argc > 2 ? strtod(argv[1], NULL) : -1;
    struct scale_case c;

    for (int i = 2; i < argc; i++)
        if (!parse_case(argv[i], &c))
            budget_s = -1;
    if (!(budget_s >= 0)) {
        (void)fprintf(stderr, "usage: %s SECONDS CASE... (barrier, all_reduce:BYTES, all_to_all:BYTES)\n", argv[0]);
        return 2;
    }
    f->barrier(f);
    tell_process(f, "after the first barrier");
    for (int i = 2; i < argc; i++) {
        if (parse_case(argv[i], &c)) /* as above */
            one_case(f, &c, budget_s);
    }
    tell_process(f, "at the end");
    return 0;
}

#endif
