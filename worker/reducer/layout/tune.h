/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the best bucket size by trial: a few sizes take turns, one step each, for several rounds. The size with the
 * smallest median step time wins. Pure: the reducer (plan.c) reports the step times and does the rest.
 */
#ifndef CDI_REDUCER_TUNE_H
#define CDI_REDUCER_TUNE_H

#include <stddef.h>
#include <stdint.h>

#define CDI_TUNE_SIZES 6
#define CDI_TUNE_ROUNDS 7 /* odd: a median is one of the steps */

struct cdi_tune {
    size_t cap[CDI_TUNE_SIZES]; /* caps in bytes, ascending */
    size_t n;                   /* sizes, 1 or more */
    size_t usual;               /* the default if nothing was measured */
    int64_t ns[CDI_TUNE_SIZES][CDI_TUNE_ROUNDS];
    size_t n_ns[CDI_TUNE_SIZES]; /* number of measured steps */
};

/*
 * Sets the sizes to try: unit (>= 1) times 1, 4, 10, 25, 50 and 100. Sizes that make no difference are still to be
 * dropped. The default is 25 times the unit, such as 25 MiB for a first bucket of 1 MiB.
 */
void cdi_tune_init(struct cdi_tune *t, size_t unit);
/*
 * Drops size k, which is not the only one. If it was the default, its smaller neighbour becomes the default, or its
 * larger one.
 */
void cdi_tune_drop(struct cdi_tune *t, size_t k);
/* Returns the number of trial steps. */
uint64_t cdi_tune_steps(const struct cdi_tune *t);
/* Returns the size of trial step `step`, 0 to cdi_tune_steps - 1. Every second round goes from the largest down. */
size_t cdi_tune_turn(const struct cdi_tune *t, uint64_t step);
/* Records the time of a step of size k, in ns. Ignores more than CDI_TUNE_ROUNDS of one size. */
void cdi_tune_note(struct cdi_tune *t, size_t k, int64_t ns);
/* Returns the measured size with the smallest median; of equal ones the larger; the default if nothing was measured. */
size_t cdi_tune_best(const struct cdi_tune *t);

#endif
