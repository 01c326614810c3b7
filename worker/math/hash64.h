/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash of 64 bits that is as fast as memory: four lanes of 8 bytes, each multiplied and rotated, the scheme of XXH64
 * (github.com/Cyan4973/xxHash, doc/xxhash_spec.md) with other constants. It depends on the place of every byte. Each
 * step is a bijection of the word that it takes, so two inputs of equal length that differ within one aligned word of
 * 8 bytes never have the same hash; others have it with a probability of 2^-64. It does not protect against forgery.
 * Pure; any thread. The same on every machine of one byte order.
 */
#ifndef CDI_MATH_HASH64_H
#define CDI_MATH_HASH64_H

#include <stddef.h>
#include <stdint.h>

struct cdi_hash64 {
    uint64_t lane[4];
    uint64_t bytes;
};

/* Begins a hash; different seeds give different hashes of the same bytes. */
void cdi_hash64_begin(struct cdi_hash64 *h, uint64_t seed);
/* Adds n bytes. All pieces but the last one have a multiple of 32 bytes. */
void cdi_hash64_add(struct cdi_hash64 *h, const void *p, size_t n);
uint64_t cdi_hash64_end(const struct cdi_hash64 *h);

#endif
