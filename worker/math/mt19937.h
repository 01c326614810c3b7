/* SPDX-License-Identifier: Apache-2.0 */
/* The Mersenne Twister MT19937, seeded and read like PyTorch's CPU generator. Pure; one thread at a time. */
#ifndef CDI_MATH_MT19937_H
#define CDI_MATH_MT19937_H

#include <stdint.h>

#define CDI_MT19937_N 624

struct cdi_mt19937 {
    uint32_t state[CDI_MT19937_N];
    uint32_t next; /* index of the next word to return; CDI_MT19937_N: generate new ones first */
};

/*
 * Seeds the generator like torch.manual_seed(seed): only the low 32 bits count. A negative seed is its two's
 * complement.
 */
void cdi_mt19937_seed(struct cdi_mt19937 *g, uint64_t seed);
/* Returns the next 32 random bits. */
uint32_t cdi_mt19937_u32(struct cdi_mt19937 *g);

#endif
