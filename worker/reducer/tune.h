/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which bucket size is best, found out by trying: a few sizes take turns, a step each, for some rounds; the one whose
 * steps had the smallest median wins. Pure: the reducer (reducer_plan.c) says what steps took, and does the rest.
 */
#ifndef CDI_REDUCER_TUNE_H
#define CDI_REDUCER_TUNE_H

#include <stddef.h>
#include <stdint.h>

#define CDI_TUNE_SIZES 6
#define CDI_TUNE_ROUNDS 7 /* odd: a median is one of the steps */

struct cdi_tune {
    size_t cap[CDI_TUNE_SIZES]; /* bytes at which buckets close, growing */
    size_t n;                   /* sizes, 1 or more */
    size_t usual;               /* the one for want of any measurement */
    int64_t ns[CDI_TUNE_SIZES][CDI_TUNE_ROUNDS];
    size_t n_ns[CDI_TUNE_SIZES]; /* steps that were measured */
};

/* The sizes to try, of which those that make no difference are still to be left out: unit (>= 1) times 1, 4, 10, 25, 50
 * and 100. The usual one is 25 times the unit, as 25 MiB beside 1 MiB for the first bucket. */
void cdi_tune_init(struct cdi_tune *t, size_t unit);
/* Leave size k (not the only one) out. If it was the usual one, its smaller neighbour is that now, or its larger one.
 */
void cdi_tune_drop(struct cdi_tune *t, size_t k);
/* How many steps are tried. */
uint64_t cdi_tune_steps(const struct cdi_tune *t);
/* Whose turn it is in trial step `step`, 0 to cdi_tune_steps - 1; every second round goes from the largest down. */
size_t cdi_tune_turn(const struct cdi_tune *t, uint64_t step);
/* A step of size k took so long, in ns. What is more than CDI_TUNE_ROUNDS of one size is left out. */
void cdi_tune_note(struct cdi_tune *t, size_t k, int64_t ns);
/* The size with the smallest median among those that were measured; of equal ones the larger; the usual one if none
 * was.
 */
size_t cdi_tune_best(const struct cdi_tune *t);

#endif
