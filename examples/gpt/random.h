/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers: SplitMix64 (Steele, Lea and Flood 2014), the same sequence on every machine. */
#ifndef GPT_RANDOM_H
#define GPT_RANDOM_H

#include <stdint.h>

#define RANDOM_STEP UINT64_C(0x9e3779b97f4a7c15)

static inline uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += RANDOM_STEP;

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* As n calls of random_next(). */
static inline void random_skip(uint64_t *state, uint64_t n)
{
    *state += n * RANDOM_STEP;
}

/* A number in [0, 1). */
static inline double random_uniform(uint64_t *state)
{
    return (double)(random_next(state) >> 11) * 0x1p-53;
}

#endif
