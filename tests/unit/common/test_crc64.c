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
