/* SPDX-License-Identifier: Apache-2.0 */
/*
 *   sim [--seed=S] [--nodes=LO:HI] [--events=N] [--trace]    jobs of LO to HI nodes, seed by seed, until N events
 *   sim --full                                               10 million events over 1 to 1,000 nodes, and 100,000 nodes
 *   sim --must-break ...                                     succeeds if a guarantee is broken, and again with the
 * same seed
 *
 * --seed runs one job only. A broken guarantee is status 1, and prints the command that reproduces it.
 */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct arguments {
    uint64_t seed, events;
    uint32_t lo, hi;
    bool trace, full, must_break;
};

static bool read_arguments(struct arguments *a, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "--seed=%lu", &a->seed) == 1 || sscanf(argv[i], "--events=%lu", &a->events) == 1 ||
            sscanf(argv[i], "--nodes=%u:%u", &a->lo, &a->hi) == 2)
            continue;
        if (strcmp(argv[i], "--trace") == 0)
            a->trace = true;
        else if (strcmp(argv[i], "--full") == 0)
            a->full = true;
        else if (strcmp(argv[i], "--must-break") == 0)
            a->must_break = true;
        else
            return false;
    }
    return a->lo >= 1 && a->lo <= a->hi && a->hi <= ROUND_NODES_MAX / 2;
}

/* Runs jobs from this seed on, up to this many events. Returns the seed of a job that broke a guarantee, or 0. */
static uint64_t run(const struct arguments *a, struct sim *w)
{
    uint64_t events = 0, rounds = 0, seed = a->seed == 0 ? 1 : a->seed;
    struct timespec from, to;
    double s;

    (void)clock_gettime(CLOCK_MONOTONIC, &from);
    for (;; seed++) {
        if (!sim_run(w, seed, a->lo, a->hi, a->trace))
            return seed;
        events += w->n_events;
        rounds += w->n_rounds;
        if (a->seed != 0 || events >= a->events)
            break;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &to);
    s = (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9;
    printf("%lu jobs of %u to %u nodes, %lu rounds, %lu events: no promise broken (%.1f s)\n",
           (unsigned long)(a->seed != 0 ? 1 : seed), a->lo, a->hi, (unsigned long)rounds, (unsigned long)events, s);
    return 0;
}

static int report(const struct arguments *a, const struct sim *w, uint64_t seed)
{
    printf("seed %lu, after %lld ms and %lu events: %s\n", (unsigned long)seed, (long long)w->now,
           (unsigned long)w->n_events, w->why);
    printf("reproduce: sim --seed=%lu --nodes=%u:%u --trace\n", (unsigned long)seed, a->lo, a->hi);
    return 1;
}

static int must_break(const struct arguments *a, struct sim *w)
{
    uint64_t seed = run(a, w);
    char why[sizeof w->why];

    if (seed == 0) {
        puts("the planted fault was not found");
        return 1;
    }
    (void)report(a, w, seed);
    memcpy(why, w->why, sizeof why);
    if (!sim_run(w, seed, a->lo, a->hi, false) && strcmp(why, w->why) == 0)
        return 0;
    puts("the seed does not reproduce it");
    return 1;
}

int main(int argc, char **argv)
{
    struct arguments a = {.events = 300000, .lo = 1, .hi = 1000};
    struct arguments large = {.seed = 7, .lo = 100000, .hi = 100000};
    static struct sim w;
    uint64_t seed;

    if (!read_arguments(&a, argc, argv)) {
        fputs("usage: sim [--seed=S] [--nodes=LO:HI] [--events=N] [--trace] | --full | --must-break ...\n", stderr);
        return 2;
    }
    if (a.full)
        a.events = 10000000;
    if (a.must_break)
        return must_break(&a, &w);
    seed = run(&a, &w);
    if (seed != 0)
        return report(&a, &w, seed);
    if (!a.full)
        return 0;
    seed = run(&large, &w);
    return seed == 0 ? 0 : report(&large, &w, seed);
}
