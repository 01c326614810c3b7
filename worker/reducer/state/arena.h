/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of gradients: the arena, and the gradients outside it that are reduced in place (in_place.h).
 */
#ifndef CDI_REDUCER_ARENA_H
#define CDI_REDUCER_ARENA_H

#include "worker/reducer/state/state.h"

/* Returns true if gradient i of the parameters is reduced in place, outside the arena. */
bool cdi_arena_excludes(const cddp_ddp *d, size_t i);
/*
 * Returns the address at which gradient i is reduced. If it is divided, only this rank's elements are there: the
 * address is where element 0 would be.
 */
void *cdi_arena_grad(const cddp_ddp *d, size_t i);
/* Return the bytes of a rank's shares of all parameters, and of gradients. */
size_t cdi_arena_share_bytes(const cddp_ddp *d);
size_t cdi_arena_made_bytes(const cddp_ddp *d);
/* Return where a rank's share of bucket b is in its shares of gradients, and of parameters, in bytes. */
size_t cdi_arena_share_at(const cddp_ddp *d, size_t b);
size_t cdi_arena_held_at(const cddp_ddp *d, size_t b);
/* Returns where element 0 of parameter i would be, if this rank's shares of parameters contained it. */
void *cdi_arena_param(const cddp_ddp *d, size_t i);
/* Returns the offset of gradient i, which the arena holds. */
size_t cdi_arena_offset(const cddp_ddp *d, size_t i);
/* Returns the size of the arena in bytes. */
size_t cdi_arena_bytes(const cddp_ddp *d);
/* Returns the number of contiguous stretches that bucket b consists of: 1 if no gradient is reduced in place. */
size_t cdi_arena_n_stretches(const cddp_ddp *d, size_t b);
/* Returns stretch k of bucket b. */
struct cdi_ddp_stretch cdi_arena_stretch(const cddp_ddp *d, size_t b, size_t k);
/* Multiplies bucket b by factor. A factor of 0 gives zeros, also where a NaN was. */
cddp_status cdi_arena_scale(cddp_ddp *d, size_t b, double factor, struct cdi_error *err);

#endif
