/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many ranks take part, told in elements of a gradient's type that are reduced with the gradients: each rank adds 1
 * to one of them. A type of 16 bits cannot tell 511 of 512 from 512 of 512, so there no element counts more ranks than
 * it can, whatever order they are added in. Pure.
 */
#ifndef CDI_REDUCER_ACTIVE_RANKS_H
#define CDI_REDUCER_ACTIVE_RANKS_H

#include <cddp/cddp.h>

/* How many elements a world of `size` ranks needs, where they travel as `sent` (floating-point). At least 1. */
size_t cdi_active_ranks_elements(cddp_dtype sent, int size);
/* What rank adds, if it takes part: that many elements of dtype, at `to`. */
void cdi_active_ranks_put(cddp_dtype dtype, cddp_dtype sent, int size, int rank, void *to);
/* The number, from what the elements have become: their sums, or their means (then factor is the world's size). */
int cdi_active_ranks_get(cddp_dtype dtype, cddp_dtype sent, int size, double factor, const void *from);

#endif
