/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/math/hash64.h"

#include "hygiene.h"

#include <string.h>

CDI_SUITE(hash64);

static uint8_t bytes[4096];

static uint64_t hash_of(const void *p, size_t n, uint64_t seed)
{
    return cdi_hash64(seed, n, cdi_hash64_sum(p, n, 0));
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

/* Word by word, as the header defines it: the loops for vectors give the same. */
Test(hash64, sum_is_that_of_the_words)
{
    fill();
    for (size_t n = 0; n < 700; n++) {
        uint64_t sum = 0;

        for (size_t at = 0; at < n; at += 8) {
            uint64_t word = 0;

            memcpy(&word, bytes + 3 + at, n - at < 8 ? n - at : 8);
            sum += cdi_hash64_word(word, 5 + at / 8);
        }
        cr_assert_eq(cdi_hash64_sum(bytes + 3, n, 5), sum, "%zu bytes", n);
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

/* The same bit in two words, in all pairs of words: a sum must not cancel them. */
Test(hash64, two_bits_do_not_cancel)
{
    uint64_t before;

    memset(bytes, 0, sizeof bytes);
    before = hash_of(bytes, 512, 0);
    for (size_t bit = 0; bit < 64; bit++)
        for (size_t a = 0; a < 64; a++)
            for (size_t b = a + 1; b < 64; b++) {
                bytes[8 * a + bit / 8] ^= (uint8_t)(1u << bit % 8);
                bytes[8 * b + bit / 8] ^= (uint8_t)(1u << bit % 8);
                cr_assert_neq(hash_of(bytes, 512, 0), before, "bit %zu of words %zu and %zu", bit, a, b);
                bytes[8 * a + bit / 8] ^= (uint8_t)(1u << bit % 8);
                bytes[8 * b + bit / 8] ^= (uint8_t)(1u << bit % 8);
            }
}

static void expect_places_count(size_t size)
{
    uint64_t before = hash_of(bytes, 1024, 0);

    for (size_t a = 0; a < 1024; a += size)
        for (size_t b = a + size; b < 1024; b += size) {
            uint8_t x[8], y[8];

            memcpy(x, bytes + a, size);
            memcpy(y, bytes + b, size);
            if (memcmp(x, y, size) == 0)
                continue;
            memcpy(bytes + a, y, size);
            memcpy(bytes + b, x, size);
            cr_assert_neq(hash_of(bytes, 1024, 0), before, "%zu bytes at %zu and %zu, swapped", size, a, b);
            memcpy(bytes + a, x, size);
            memcpy(bytes + b, y, size);
        }
}

Test(hash64, places_count)
{
    fill();
    for (size_t size = 2; size <= 8; size *= 2)
        expect_places_count(size);
    for (uint64_t k = 0; k < 128; k++) /* words that differ little */
        memcpy(bytes + 8 * k, &k, sizeof k);
    expect_places_count(8);
}

/* A row that moves by one word: each word is the same, at another place. */
Test(hash64, moved_rows_differ)
{
    uint64_t before;

    fill();
    before = hash_of(bytes, 1024, 0);
    for (size_t by = 1; by < 64; by++)
        cr_assert_neq(hash_of(bytes + 8 * by, 1024, 0), before, "by %zu words", by);
}

Test(hash64, zeros_after_the_end_change_the_hash)
{
    memset(bytes, 0, sizeof bytes);
    for (size_t a = 0; a < 100; a++)
        for (size_t b = a + 1; b < 100; b++)
            cr_assert_neq(hash_of(bytes, a, 0), hash_of(bytes, b, 0), "%zu and %zu zeros", a, b);
}

Test(hash64, sums_of_parts_give_the_sum_of_the_whole)
{
    fill();
    for (size_t piece = 8; piece < 4096; piece += 8) {
        uint64_t sum = 0;

        for (size_t at = 0; at < 4001; at += piece)
            sum += cdi_hash64_sum(bytes + at, 4001 - at < piece ? 4001 - at : piece, at / 8);
        cr_assert_eq(sum, cdi_hash64_sum(bytes, 4001, 0), "pieces of %zu", piece);
    }
}
