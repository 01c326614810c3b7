/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Eight bytes per round through eight tables ("slicing by 8", Kounavis and Berry, 2005): table[k][b] is the remainder
 * of byte b followed by k zero bytes. The tables are made on first use.
 *
 * Where the processor multiplies without carries, 64 bytes per round are folded into the next 64 (Gopal and others,
 * "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009), and the last 16 go through
 * the tables: they are congruent to everything before them.
 */
#include "common/crc64.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__)
#include <wmmintrin.h>
#endif

#define POLY UINT64_C(0xc96c5795d7870f42)

static uint64_t table[8][256];
static pthread_once_t made = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
static bool can_fold;
static uint64_t over_64[2], over_16[2]; /* how a lower and an upper half move over so many bytes */

/* Returns x^n modulo the polynomial, reflected. */
static uint64_t power(unsigned n)
{
    uint64_t v = UINT64_C(1) << 63;

    while (n-- > 0)
        v = (v >> 1) ^ ((v & 1) ? POLY : 0);
    return v;
}

#define FOLDS __attribute__((target("pclmul")))

FOLDS static inline __m128i load(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

/* Moves v over the bytes of `over`, and adds what is there. */
FOLDS static inline __m128i fold(__m128i v, __m128i over, __m128i there)
{
    return _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(v, over, 0x00), _mm_clmulepi64_si128(v, over, 0x11)),
                         there);
}

/* Replaces len bytes, a multiple of 64 and at least that, and the crc before them, by 16 bytes with the same one. */
FOLDS static void fold_all(uint64_t crc, const uint8_t *p, size_t len, void *out)
{
    const __m128i by_64 = load(over_64), by_16 = load(over_16);
    __m128i v[4];

    for (int k = 0; k < 4; k++)
        v[k] = load(p + 16 * k);
    v[0] = _mm_xor_si128(v[0], _mm_cvtsi64_si128((long long)crc));
    for (p += 64, len -= 64; len > 0; p += 64, len -= 64)
        for (int k = 0; k < 4; k++)
            v[k] = fold(v[k], by_64, load(p + 16 * k));
    for (int k = 1; k < 4; k++)
        v[0] = fold(v[0], by_16, v[k]);
    _mm_storeu_si128((__m128i *)out, v[0]);
}

/* A product of reflected numbers is one place too far, so the exponents are one less. */
static void make_folding(void)
{
    over_64[0] = power(512 + 64 - 1);
    over_64[1] = power(512 - 1);
    over_16[0] = power(128 + 64 - 1);
    over_16[1] = power(128 - 1);
    can_fold = __builtin_cpu_supports("pclmul");
}
#endif

static void make_tables(void)
{
    for (unsigned b = 0; b < 256; b++) {
        uint64_t crc = b;

        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) ? POLY : 0);
        table[0][b] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (unsigned b = 0; b < 256; b++)
            table[k][b] = table[0][table[k - 1][b] & 0xff] ^ (table[k - 1][b] >> 8);
#if defined(__x86_64__)
    make_folding();
#endif
}

static uint64_t by_table(uint64_t crc, const uint8_t *p, size_t len)
{
    for (; len >= 8; len -= 8, p += 8) {
        for (int i = 0; i < 8; i++) /* the compiler makes one load of it on little-endian machines */
            crc ^= (uint64_t)p[i] << (8 * i);
        crc = table[7][crc & 0xff] ^ table[6][(crc >> 8) & 0xff] ^ table[5][(crc >> 16) & 0xff] ^
              table[4][(crc >> 24) & 0xff] ^ table[3][(crc >> 32) & 0xff] ^ table[2][(crc >> 40) & 0xff] ^
              table[1][(crc >> 48) & 0xff] ^ table[0][crc >> 56];
    }
    for (; len > 0; len--, p++)
        crc = table[0][(crc ^ *p) & 0xff] ^ (crc >> 8);
    return crc;
}

uint64_t cdi_crc64(uint64_t crc, const void *data, size_t len)
{
    const uint8_t *p = data;

    (void)pthread_once(&made, make_tables);
    crc = ~crc;
#if defined(__x86_64__)
    if (can_fold && len >= 64) {
        size_t n = len / 64 * 64;
        uint8_t rest[16];

        fold_all(crc, p, n, rest);
        crc = by_table(0, rest, sizeof rest);
        p += n;
        len -= n;
    }
#endif
    return ~by_table(crc, p, len);
}
