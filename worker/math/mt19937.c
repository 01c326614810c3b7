/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MT19937 by its definition: M. Matsumoto and T. Nishimura, "Mersenne Twister: A 623-dimensionally equidistributed
 * uniform pseudo-random number generator", ACM TOMACS 8 (1998), with the seeding of their revision of 2002.
 */
#include "worker/math/mt19937.h"

#define N CDI_MT19937_N
#define M 397

void cdi_mt19937_seed(struct cdi_mt19937 *g, uint64_t seed)
{
    g->state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < N; i++)
        g->state[i] = 1812433253u * (g->state[i - 1] ^ (g->state[i - 1] >> 30)) + i;
    g->next = N;
}

static uint32_t twist(uint32_t high, uint32_t low, uint32_t far)
{
    uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);

    return far ^ (y >> 1) ^ ((y & 1u) != 0 ? 0x9908b0dfu : 0u);
}

static void refill(struct cdi_mt19937 *g)
{
    uint32_t *s = g->state;

    for (unsigned i = 0; i < N - M; i++)
        s[i] = twist(s[i], s[i + 1], s[i + M]);
    for (unsigned i = N - M; i < N - 1; i++)
        s[i] = twist(s[i], s[i + 1], s[i + M - N]);
    s[N - 1] = twist(s[N - 1], s[0], s[M - 1]);
    g->next = 0;
}

uint32_t cdi_mt19937_u32(struct cdi_mt19937 *g)
{
    uint32_t y;

    if (g->next == N)
        refill(g);
    y = g->state[g->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}
