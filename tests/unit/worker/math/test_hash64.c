/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/math/hash64.h"

#include "hygiene.h"

#include <string.h>

CDI_SUITE(hash64);

static uint8_t bytes[4096];

static uint64_t hash_of(const void *p, size_t n, uint64_t seed)
{
    struct cdi_hash64 h;

    cdi_hash64_begin(&h, seed);
    cdi_hash64_add(&h, p, n);
    return cdi_hash64_end(&h);
}

static void fill(void)
{
    uint64_t x = 88172645463325252u;

    for (size_t i = 0; i < sizeof bytes; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        bytes[i] = (uint8_t)x;
    }
}

Test(hash64, each_bit_counts)
{
    static const size_t sizes[] = {1, 3, 8, 31, 32, 33, 64, 100, 1000};

    for (int zeros = 0; zeros < 2; zeros++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
            uint64_t before;

            memset(bytes, 0, sizeof bytes);
            if (!zeros)
                fill();
            before = hash_of(bytes, sizes[s], 7);
            for (size_t bit = 0; bit < 8 * sizes[s]; bit++) {
                bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
                cr_assert_neq(hash_of(bytes, sizes[s], 7), before, "bit %zu of %zu bytes", bit, sizes[s]);
                bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            }
            cr_assert_eq(hash_of(bytes, sizes[s], 7), before);
            cr_assert_neq(hash_of(bytes, sizes[s], 8), before, "the seed counts");
        }
}

Test(hash64, places_count)
{
    uint64_t before;

    fill();
    before = hash_of(bytes, 1024, 0);
    for (size_t a = 0; a < 1024; a += 4)
        for (size_t b = a + 4; b < 1024; b += 4) {
            uint8_t x[4], y[4];

            memcpy(x, bytes + a, 4);
            memcpy(y, bytes + b, 4);
            if (memcmp(x, y, 4) == 0)
                continue;
            memcpy(bytes + a, y, 4);
            memcpy(bytes + b, x, 4);
            cr_assert_neq(hash_of(bytes, 1024, 0), before, "floats at %zu and %zu, swapped", a, b);
            memcpy(bytes + a, x, 4);
            memcpy(bytes + b, y, 4);
        }
}

Test(hash64, zeros_after_the_end_change_the_hash)
{
    memset(bytes, 0, sizeof bytes);
    for (size_t a = 0; a < 100; a++)
        for (size_t b = a + 1; b < 100; b++)
            cr_assert_neq(hash_of(bytes, a, 0), hash_of(bytes, b, 0), "%zu and %zu zeros", a, b);
}

Test(hash64, pieces_give_the_hash_of_the_whole)
{
    fill();
    for (size_t piece = 32; piece < 4096; piece += 32) {
        struct cdi_hash64 h;

        cdi_hash64_begin(&h, 5);
        for (size_t at = 0; at < 4001; at += piece)
            cdi_hash64_add(&h, bytes + at, 4001 - at < piece ? 4001 - at : piece);
        cr_assert_eq(cdi_hash64_end(&h), hash_of(bytes, 4001, 5), "pieces of %zu", piece);
    }
    cr_assert_eq(hash_of(bytes + 1, 4000, 5), hash_of(bytes + 1, 4000, 5), "at an odd address");
}
