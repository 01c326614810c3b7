/* SPDX-License-Identifier: Apache-2.0 */
/* torch.randperm on the CPU, bit for bit; the sampler itself is public (data.h). Pure. */
#ifndef CDI_DATA_SAMPLER_H
#define CDI_DATA_SAMPLER_H

#include "common/error.h"
#include "worker/math/mt19937.h"

#include <cddp/cddp.h>
#include <stdbool.h>
#include <stdint.h>

/* With this many elements (UINT32_MAX / 20) or more, torch draws 64 bits per element, since 32 would be too biased. */
#define CDI_RANDPERM_WIDE 214748364

/*
 * Stores torch.randperm(n), of a generator freshly seeded with `seed`, in out[0..n). n >= 0; out may be NULL if n is 0.
 */
void cdi_randperm(int64_t *out, int64_t n, uint64_t seed);

/*
 * Does, for the wide form, one step of an inside-out shuffle. Element i is put at the returned index, which is in [0,
 * i]; the element there moves to i. A separate function, so that it can be tested without memory for that many
 * elements.
 */
uint64_t cdi_randperm_wide_place(struct cdi_mt19937 *g, uint64_t i);

/* Checks whether cddp_sampler_set_state would accept the state. Returns the same status, and changes nothing. */
cddp_status cdi_sampler_check_state(const cddp_sampler *sampler, const cddp_sampler_state *state,
                                    struct cdi_error *err);

/*
 * Returns the index of the earliest of n places. *one_order (may be NULL) becomes false if some of them are in the
 * middle of epochs of different orders, or are not places: then the earliest one says nothing about the others.
 */
size_t cdi_sampler_first_place(const cddp_sampler_state *places, size_t n, bool *one_order);

#endif
