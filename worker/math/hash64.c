/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/math/hash64.h"

#include <string.h>

#define LANES 4
/* Odd, so that a multiplication loses nothing; digits of the golden ratio and of the square root of 2. */
#define TAKE 0x9e3779b97f4a7c15u
#define STIR 0x6a09e667f3bcc909u

static inline uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

/* Takes one word into a lane: for each lane a bijection of the word, and for each word one of the lane. */
static inline uint64_t take(uint64_t lane, uint64_t word)
{
    return rotate(lane + word * TAKE, 31) * STIR;
}

static inline uint64_t word_at(const uint8_t *p)
{
    uint64_t w;

    memcpy(&w, p, sizeof w);
    return w;
}

void cdi_hash64_begin(struct cdi_hash64 *h, uint64_t seed)
{
    for (uint64_t k = 0; k < LANES; k++)
        h->lane[k] = (seed + k) * TAKE + STIR;
    h->bytes = 0;
}

void cdi_hash64_add(struct cdi_hash64 *h, const void *bytes, size_t n)
{
    uint64_t a = h->lane[0], b = h->lane[1], c = h->lane[2], d = h->lane[3];
    const uint8_t *p = bytes;
    uint8_t rest[LANES * 8] = {0};

    h->bytes += n;
    for (; n >= sizeof rest; n -= sizeof rest, p += sizeof rest) {
        a = take(a, word_at(p));
        b = take(b, word_at(p + 8));
        c = take(c, word_at(p + 16));
        d = take(d, word_at(p + 24));
    }
    if (n > 0) { /* zeros after it: the number of bytes is hashed, too */
        memcpy(rest, p, n);
        a = take(a, word_at(rest));
        b = take(b, word_at(rest + 8));
        c = take(c, word_at(rest + 16));
        d = take(d, word_at(rest + 24));
    }
    h->lane[0] = a;
    h->lane[1] = b;
    h->lane[2] = c;
    h->lane[3] = d;
}

uint64_t cdi_hash64_end(const struct cdi_hash64 *h)
{
    uint64_t x = h->bytes * TAKE;

    for (int k = 0; k < LANES; k++)
        x = take(x, h->lane[k]);
    x ^= x >> 33;
    x *= STIR;
    return x ^ x >> 29;
}
