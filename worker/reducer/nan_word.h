/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank has found, as a number that can be reduced, and as text for an error message. Pure. */
#ifndef CDI_REDUCER_NAN_WORD_H
#define CDI_REDUCER_NAN_WORD_H

#include "worker/reducer/state/state.h"

#define CDI_NAN_RANK_MAX 0xffffff

/* Returns a finding as a number: of several the largest one counts. 0: none. */
uint64_t cdi_nan_word(size_t param, int rank, int kind);
/* Returns the rank that brought it. */
int cdi_nan_rank(uint64_t word);
/* Writes "the gradient of 'x' (bucket 1) has NaN", and returns the rank that brought it. */
int cdi_nan_describe_one(const cddp_ddp *d, uint64_t word, char *buf, size_t cap);
/* Describes, in err, what the ranks of `world` found: n words, one of them not 0. */
void cdi_nan_describe(const cddp_ddp *d, uint64_t step, const uint64_t *words, int n, struct cdi_error *err);

#endif
