/* SPDX-License-Identifier: Apache-2.0 */
/* What gpu_step, gpu_train and gpu_wire share: their arguments, the clock, and how they end after an error. */
#ifndef BENCH_GPU_PROGRAM_H
#define BENCH_GPU_PROGRAM_H

#include "tests/gpu/card.h"

#include <cddp/cddp.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* Ends the program with libcddp's error message unless status is CDDP_OK. */
static inline void must(cddp_status status)
{
    if (status != CDDP_OK)
        card_die("%s: %s", program_invocation_short_name, cddp_last_error());
}

static inline double now_us(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

/* Zeroed; ends the program where there is none. */
static inline void *get_memory(size_t bytes)
{
    void *p = calloc(1, bytes);

    if (p == NULL)
        card_die("%s: out of memory", program_invocation_short_name);
    return p;
}

/* For qsort() of doubles. */
static inline int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* An argument; ends the program where it is not such a number. */
static inline long number(const char *text, long low, long high)
{
    char *end;
    long n;

    errno = 0;
    n = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || n < low || n > high)
        card_die("%s: '%s' is not an integer from %ld to %ld", program_invocation_short_name, text, low, high);
    return n;
}

#endif
