/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The number of ranks that take part, encoded in elements that are reduced with the gradients: each rank adds 1 to one
 * of them. A type of 16 bits cannot distinguish 511 of 512 from 512 of 512. So no element counts more ranks than its
 * type can represent, in any order of addition. Pure.
 */
#ifndef CDI_REDUCER_ACTIVE_RANKS_H
#define CDI_REDUCER_ACTIVE_RANKS_H

#include <cddp/cddp.h>

/*
 * Returns the number of elements, at least 1, for a world of `size` ranks if they are sent as `sent` (floating-point).
 */
size_t cdi_active_ranks_elements(cddp_dtype sent, int size);
/* Writes a participating rank's contribution: that many elements of dtype, at `to`. */
void cdi_active_ranks_put(cddp_dtype dtype, cddp_dtype sent, int size, int rank, void *to);
/* Returns the number, decoded from the reduced elements: their sums, or their means (then factor is the world size). */
int cdi_active_ranks_get(cddp_dtype dtype, cddp_dtype sent, int size, double factor, const void *from);

#endif
