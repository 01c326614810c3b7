/* SPDX-License-Identifier: Apache-2.0 */
#include "common/buf.h"
#include "hygiene.h"

#include <string.h>

CDI_SUITE(buf);

Test(buf, returns_bytes_in_order)
{
    struct cdi_buf b;

    cdi_buf_init(&b, 0);
    cr_assert_eq(cdi_buf_append(&b, "hello ", 6), CDDP_OK);
    cr_assert_eq(cdi_buf_append(&b, "world", 5), CDDP_OK);
    cr_assert_eq(b.len, 11);
    cr_assert_eq(memcmp(cdi_buf_data(&b), "hello world", 11), 0);
    cdi_buf_consume(&b, 6);
    cr_assert_eq(b.len, 5);
    cr_assert_eq(memcmp(cdi_buf_data(&b), "world", 5), 0);
    cdi_buf_release(&b);
}

Test(buf, rejects_bytes_beyond_the_limit)
{
    struct cdi_buf b;

    cdi_buf_init(&b, 8);
    cr_assert_eq(cdi_buf_append(&b, "12345678", 8), CDDP_OK);
    cr_assert_eq(cdi_buf_append(&b, "9", 1), CDDP_E_LIMIT);
    cr_assert_eq(cdi_buf_append(&b, "9", SIZE_MAX), CDDP_E_LIMIT);
    cr_assert_eq(b.len, 8);
    cdi_buf_consume(&b, 1);
    cr_assert_eq(cdi_buf_append(&b, "9", 1), CDDP_OK);
    cr_assert_eq(memcmp(cdi_buf_data(&b), "23456789", 8), 0);
    cdi_buf_release(&b);
}

Test(buf, long_queue_keeps_its_bytes)
{
    struct cdi_buf b;
    uint32_t in = 0, out = 0;

    cdi_buf_init(&b, 0);
    for (int round = 0; round < 5000; round++) {
        for (int i = 0; i < round % 7 + 1; i++)
            cr_assert_eq(cdi_buf_put_u32(&b, in++), CDDP_OK);
        for (int i = 0; i < round % 5 + 1 && b.len >= 4; i++) {
            uint32_t v;

            memcpy(&v, cdi_buf_data(&b), 4);
            cr_assert_eq(v, out);
            out++;
            cdi_buf_consume(&b, 4);
        }
    }
    cr_assert_eq(b.len, (size_t)(in - out) * 4);
    cdi_buf_release(&b);
}

Test(buf, integers_are_little_endian)
{
    struct cdi_buf b;
    const uint8_t want[] = {0x01, 0x05, 0x04, 0x03, 0x02, 0x0d, 0x0c, 0x0b, 0x0a, 0x09, 0x08, 0x07, 0x06};

    cdi_buf_init(&b, 0);
    (void)cdi_buf_put_u8(&b, 1);
    (void)cdi_buf_put_u32(&b, 0x02030405);
    (void)cdi_buf_put_u64(&b, 0x060708090a0b0c0d);
    cr_assert_eq(b.len, sizeof want);
    cr_assert_eq(memcmp(cdi_buf_data(&b), want, sizeof want), 0);
    cdi_buf_release(&b);
}

Test(buf, printf_appends_no_nul)
{
    struct cdi_buf b;

    cdi_buf_init(&b, 16);
    cr_assert_eq(cdi_buf_printf(&b, "%s-%d", "rank", 3), CDDP_OK);
    cr_assert_eq(b.len, 6);
    cr_assert_eq(memcmp(cdi_buf_data(&b), "rank-3", 6), 0);
    cr_assert_eq(cdi_buf_printf(&b, "%s", "far too long for it"), CDDP_E_LIMIT);
    cr_assert_eq(b.len, 6);
    cdi_buf_release(&b);
}
