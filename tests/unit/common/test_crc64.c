/* SPDX-License-Identifier: Apache-2.0 */
#include "common/crc64.h"
#include "hygiene.h"

#include <string.h>

CDI_SUITE(crc64);

Test(crc64, gives_the_published_check_value)
{
    cr_assert_eq(cdi_crc64(0, "123456789", 9), UINT64_C(0x995dc9bbdf1939fa));
    cr_assert_eq(cdi_crc64(0, "", 0), 0);
}

Test(crc64, pieces_give_the_same_as_the_whole)
{
    uint8_t data[1000];
    uint64_t whole;

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 37 + i / 9);
    whole = cdi_crc64(0, data, sizeof data);
    for (size_t cut = 0; cut <= sizeof data; cut++)
        cr_assert_eq(cdi_crc64(cdi_crc64(0, data, cut), data + cut, sizeof data - cut), whole, "cut at %zu", cut);
}

/* The definition: one bit after the other. */
static uint64_t by_bits(uint64_t crc, const uint8_t *p, size_t len)
{
    crc = ~crc;
    while (len-- > 0) {
        crc ^= *p++;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) ? UINT64_C(0xc96c5795d7870f42) : 0);
    }
    return ~crc;
}

/* Pieces below 64 bytes take the way of processors without a faster one. */
Test(crc64, any_length_and_alignment_has_the_value_of_its_definition)
{
    static uint8_t data[5000 + 64];
    uint64_t random = 88172645463325252u;

    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * i * 31 + i / 7);
    for (int k = 0; k < 1200; k++) {
        size_t begin, len;
        uint64_t before, small, want;

        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        begin = random % 64;
        len = k < 400 ? (size_t)k : random / 64 % 5000;
        before = k % 2 == 0 ? 0 : random;
        want = by_bits(before, data + begin, len);
        cr_assert_eq(cdi_crc64(before, data + begin, len), want, "%zu bytes from %zu", len, begin);
        small = before;
        for (size_t done = 0, n; done < len; done += n) {
            n = len - done < 63 ? len - done : 63;
            small = cdi_crc64(small, data + begin + done, n);
        }
        cr_assert_eq(small, want, "%zu bytes from %zu, piece by piece", len, begin);
    }
}

Test(crc64, detects_every_flipped_bit)
{
    uint8_t data[64] = {1, 2, 3};
    uint64_t whole = cdi_crc64(0, data, sizeof data);

    for (size_t bit = 0; bit < sizeof data * 8; bit++) {
        data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        cr_assert_neq(cdi_crc64(0, data, sizeof data), whole);
        data[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
}
