/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of every type whose reductions every rank can compute alone: whole numbers so small that all sums are exact.
 */
#ifndef CDI_TEST_MIX_VALUE_H
#define CDI_TEST_MIX_VALUE_H

#include <cddp/cddp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns a number that depends only on these arguments. */
uint64_t mix_hash(uint64_t a, uint64_t b, uint64_t c);

/* Returns element i of the input of `rank` in operation `nr`. */
struct mix_source {
    uint64_t seed, nr;
    cddp_dtype dtype;
    cddp_redop op;
};
/* Fills n elements with those of rank from number `first` on. */
void mix_fill(const struct mix_source *s, int rank, size_t first, void *to, size_t n);
/* Are n elements those of rank, or (rank < 0) the reduction over `ranks` ranks? *at: the first that is not. */
bool mix_is(const struct mix_source *s, int rank, int ranks, size_t first, const void *p, size_t n, size_t *at);
/* Element i as a number, for messages. */
double mix_get(cddp_dtype dtype, const void *p, size_t i);

#endif
