/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the times of one step say: how long buckets were communicated, how much of it the program waited for, and for
 * whom. Pure: the reducer (reducer/stats.c) brings the times.
 */
#ifndef CDI_REDUCER_LAYOUT_STATS_H
#define CDI_REDUCER_LAYOUT_STATS_H

#include <stddef.h>
#include <stdint.h>

/* From begin to end, in ns; nothing where end <= begin. */
struct cdi_interval {
    int64_t begin, end;
};

/* Times of one bucket in ns; 0: not known. */
struct cdi_bucket_times {
    int64_t ready, started, arrived, done;
    int64_t thread; /* processor time of the backend's own thread in it */
    int late_rank;  /* -1: not known */
};

/* The times of one step. The arrays of intervals are scratch, and change. */
struct cdi_step_times {
    int64_t begun, first, end; /* end of the step before (0: not known), first gradient, end */
    const struct cdi_bucket_times *buckets;
    size_t n_buckets;
    struct cdi_interval *comm; /* room for n_buckets */
    struct cdi_interval *waits;
    size_t n_waits;
    int64_t *by_rank; /* scratch for n_ranks numbers, all 0, and again 0 afterwards */
    int n_ranks;
};

/* What they say, in ns. */
struct cdi_step_shares {
    int64_t step;     /* from the end of the step before to its own end */
    int64_t forward;  /* of it: until the first gradient */
    int64_t backward; /* from there until the last bucket is ready */
    int64_t comm, exposed, late;
    int64_t transfer; /* of comm: all ranks have arrived at some bucket, as far as known, so that it moves */
    int64_t thread;   /* processor time of the backend's own thread in comm that is not exposed */
    int late_rank;    /* -1: none */
};

/* Sorts intervals and joins those that touch or overlap; drops empty ones. Returns how many are left. */
size_t cdi_intervals_join(struct cdi_interval *v, size_t n);
/* Returns the length of n joined intervals. */
int64_t cdi_intervals_length(const struct cdi_interval *v, size_t n);
/* Returns the length of what two lists of joined intervals have in common. */
int64_t cdi_intervals_common(const struct cdi_interval *a, size_t n_a, const struct cdi_interval *b, size_t n_b);
/* Returns the shares of a step. */
struct cdi_step_shares cdi_step_shares_of(const struct cdi_step_times *t);

#endif
