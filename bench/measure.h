/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an all-reduce is timed, the same for every library: included by allreduce.c and by peers/mpi_allreduce.c, which
 * say how to reduce a buffer, how to wait for all ranks and how to take a maximum over them. libc only.
 *
 * A sample is a barrier and then as many operations as take about 3 ms; its time is that of the slowest rank. "back to
 * back" is the operation alone. "fair" is what a training step does to its gradients: rewrite all of the buffer, reduce
 * it, read all of it; all three are timed, since a reduction that leaves half of the data in another core's cache has
 * saved nothing. "touch" is the rewriting and reading alone.
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLE_S 0.003
#define MIN_SAMPLES 5
#define MAX_SAMPLES 101

/* One way to all-reduce `n` float32 in place, on one rank. */
struct subject {
    const char *name; /* "direct" */
    float *buf;
    size_t n;
    bool mean;  /* the result: the mean, not the sum */
    bool touch; /* measure "touch" too */
    int rank, size;
    void *arg;
    void (*reduce)(struct subject *s); /* these three end the program if they fail */
    void (*barrier)(struct subject *s);
    double (*max)(struct subject *s, double mine);
};

enum variant { TOUCH, BACK_TO_BACK, FAIR };

static const char *const variant_names[] = {"touch", "back to back", "fair"};

static volatile uint64_t sink;

static double now_s(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void rewrite(float *buf, size_t n, float value)
{
    for (size_t i = 0; i < n; i++)
        buf[i] = value;
    __asm__ volatile("" ::"r"(buf) : "memory");
}

static void read_all(const float *buf, size_t n)
{
    uint32_t x = 0, word;

    for (size_t i = 0; i < n; i++) {
        memcpy(&word, &buf[i], sizeof word);
        x ^= word;
    }
    sink = x;
}

/*
 * Ones and twos, which sums turn into infinities after a while; those cost as much to add. Not zeros: some processors
 * move them in a fifth less time.
 */
static void refill(struct subject *s)
{
    for (size_t i = 0; i < s->n; i++)
        s->buf[i] = (float)(i % 2 + 1);
}

/* Every element, once: a fast wrong result is worth nothing. */
static void check(struct subject *s)
{
    float scale = (float)(s->size * (s->size + 1)) / 2 / (s->mean ? (float)s->size : 1);

    for (size_t i = 0; i < s->n; i++)
        s->buf[i] = (float)(i % 17 + 1) * (float)(s->rank + 1);
    s->reduce(s);
    for (size_t i = 0; i < s->n; i++)
        if (s->buf[i] != (float)(i % 17 + 1) * scale) {
            (void)fprintf(stderr, "%s: rank %d: element %zu of %zu is %g, not %g\n", s->name, s->rank, i, s->n,
                          (double)s->buf[i], (double)((float)(i % 17 + 1) * scale));
            exit(1);
        }
    refill(s);
}

/* Seconds per operation, of the slowest rank. */
static double sample(struct subject *s, enum variant v, long n_ops)
{
    double began;

    s->barrier(s);
    began = now_s();
    for (long k = 0; k < n_ops; k++) {
        if (v != BACK_TO_BACK)
            rewrite(s->buf, s->n, (float)(k & 1));
        if (v != TOUCH)
            s->reduce(s);
        if (v != BACK_TO_BACK)
            read_all(s->buf, s->n);
    }
    return s->max(s, now_s() - began) / (double)n_ops;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Samples until budget_s is spent, and one line of JSON from rank 0. Every rank takes the same decisions: times agree.
 */
static void measure_variant(struct subject *s, enum variant v, double budget_s)
{
    double times[MAX_SAMPLES] = {0}, once = 0, spent = 0;
    long n_ops;
    int n = 0;

    for (int warm_up = 0; warm_up < 3; warm_up++)
        once = sample(s, v, once > 0 && once < SAMPLE_S / 10 ? 10 : 1);
    n_ops = once < SAMPLE_S ? (long)(SAMPLE_S / once) + 1 : 1;
    while (n < MAX_SAMPLES && (n < MIN_SAMPLES || spent < budget_s)) {
        times[n] = sample(s, v, n_ops);
        spent += times[n++] * (double)n_ops;
    }
    refill(s);
    qsort(times, (size_t)n, sizeof times[0], ascending);
    if (s->rank != 0)
        return;
    (void)printf("{\"what\": \"%s\", \"variant\": \"%s\", \"bytes\": %zu, \"us\": %.3f, \"us_min\": %.3f, "
                 "\"us_max\": %.3f, \"samples\": %d, \"operations\": %ld}\n",
                 s->name, variant_names[v], s->n * sizeof *s->buf, times[n / 2] * 1e6, times[0] * 1e6,
                 times[n - 1] * 1e6, n, n_ops);
    (void)fflush(stdout);
}

static void measure(struct subject *s, double budget_s)
{
    check(s);
    if (s->touch)
        measure_variant(s, TOUCH, budget_s / 2);
    measure_variant(s, BACK_TO_BACK, budget_s);
    measure_variant(s, FAIR, budget_s);
}

/* argv: seconds per measurement, then sizes in bytes. Calls one() for each. */
static int measure_sizes(int argc, char **argv, void (*one)(size_t n, double budget_s, void *arg), void *arg)
{
    double budget_s = argc > 2 ? strtod(argv[1], NULL) : 0;

    for (int i = 2; i < argc; i++) {
        size_t bytes = (size_t)strtoull(argv[i], NULL, 10);

        if (bytes < sizeof(float) || bytes % sizeof(float) != 0 || !(budget_s > 0))
            break;
        one(bytes / sizeof(float), budget_s, arg);
        if (i == argc - 1)
            return 0;
    }
    (void)fprintf(stderr, "usage: %s SECONDS BYTES... (multiples of 4)\n", argv[0]);
    return 2;
}

#endif
