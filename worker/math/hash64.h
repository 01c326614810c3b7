/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash of 64 bits that any number of threads can make together: the sum, modulo 2^64, over the words of 8 bytes, of a
 * mix of each word with its place. The last word ends with zeros, and the number of bytes is hashed, too. A sum has no
 * order, so a GPU makes the same hash as a CPU, whatever its size.
 *
 * What it finds:
 * - A difference within one aligned word, such as one flipped bit, always: for each place the mix is a bijection of the
 *   word, and the sum changes by the difference of two mixes.
 * - Other differences with a probability of 1 - 2^-64, as far as the mix is a random function. Two words that change
 *   places are such a difference: the mix gets the word plus its place times a large odd constant, so it gets two other
 *   numbers than before, unless the words are equal.
 *
 * The mix is the finalizer of splitmix64 with its constants (Steele, Lea, Flood: Fast splittable pseudorandom number
 * generators, 2014; Stafford's variant 13): each bit reaches all of the result. It does not protect against forgery.
 * Pure; any thread. The same on every machine of one byte order. nvcc includes this file, too.
 */
#ifndef CDI_MATH_HASH64_H
#define CDI_MATH_HASH64_H

#include "worker/math/float16.h"

#include <stddef.h>

#define CDI_HASH64_PLACE 0x9e3779b97f4a7c15u /* 2^64 divided by the golden ratio, odd */

CDI_INLINE uint64_t cdi_hash64_mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Returns what the word at `place`, counted from 0, adds to the sum. */
CDI_INLINE uint64_t cdi_hash64_word(uint64_t word, uint64_t place)
{
    return cdi_hash64_mix(word + (place + 1) * CDI_HASH64_PLACE);
}

#ifndef __CUDACC__

/*
 * Returns the sum of n bytes, whose first word is at `place`. Sums of parts can be added, if all parts but the last one
 * have a multiple of 8 bytes.
 */
uint64_t cdi_hash64_sum(const void *bytes, size_t n, uint64_t place);
/* Returns the hash of n bytes with this sum. Different seeds give different hashes of the same bytes. */
uint64_t cdi_hash64(uint64_t seed, size_t n, uint64_t sum);

#endif
#endif
