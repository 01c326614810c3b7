/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "protocol/frame.h"

#include <string.h>

CDI_SUITE(frame);

Test(frame, parses_frames_byte_by_byte)
{
    struct cdi_buf wire, in;
    struct cdi_frame f;
    struct cdi_error err;
    int seen = 0;

    cdi_buf_init(&wire, 0);
    cdi_buf_init(&in, 0);
    cr_assert_eq(cdi_frame_put_opening(&wire), CDDP_OK);
    cr_assert_eq(cdi_frame_put(&wire, 7, "seven", 5), CDDP_OK);
    cr_assert_eq(cdi_frame_put(&wire, 300, NULL, 0), CDDP_OK);
    cr_assert_eq(wire.len, 8 + 13 + 8);
    cr_assert_eq(memcmp(cdi_buf_data(&wire), "CDDP\x01\r\n\0\x05\0\0\0\x07\0\0\0seven\0\0\0\0\x2c\x01\0\0", 29), 0);
    for (size_t i = 0; i < wire.len; i++) {
        cddp_status st;

        cr_assert_eq(cdi_buf_append(&in, cdi_buf_data(&wire) + i, 1), CDDP_OK);
        if (i < 8) {
            cr_assert_eq(cdi_frame_take_opening(&in), i == 7 ? CDDP_OK : CDDP_IN_PROGRESS);
            continue;
        }
        st = cdi_frame_next(&in, &f, &err);
        cr_assert_eq(st, i == 20 || i == 28 ? CDDP_OK : CDDP_IN_PROGRESS, "byte %zu", i);
        if (st != CDDP_OK)
            continue;
        cr_assert_eq(f.type, seen == 0 ? 7 : 300);
        cr_assert_eq(f.len, seen == 0 ? 5 : 0);
        cr_assert_eq(memcmp(f.payload, "seven", f.len), 0);
        cdi_buf_consume(&in, f.size);
        seen++;
    }
    cr_assert_eq(seen, 2);
    cr_assert_eq(in.len, 0);
    cdi_buf_release(&wire);
    cdi_buf_release(&in);
}

Test(frame, rejects_large_or_flagged_frame_by_header)
{
    struct cdi_buf in;
    struct cdi_frame f;
    struct cdi_error err;
    static const uint8_t big[CDI_FRAME_MAX + 1];

    cdi_buf_init(&in, 0);
    (void)cdi_buf_append(&in, "\x01\0\x10\0\x01\0\0\0", 8);
    cr_assert_eq(cdi_frame_next(&in, &f, &err), CDDP_E_LIMIT);
    cr_assert_not_null(strstr(err.msg, "1048577"));
    cdi_buf_consume(&in, 8);
    (void)cdi_buf_append(&in, "\0\0\0\0\x01\0\x02\0", 8);
    cr_assert_eq(cdi_frame_next(&in, &f, &err), CDDP_E_PROTOCOL);
    cdi_buf_release(&in);
    cr_assert_eq(cdi_frame_put(&in, 1, big, CDI_FRAME_MAX + 1), CDDP_E_LIMIT);
    cr_assert_eq(cdi_frame_put(&in, 1, big, CDI_FRAME_MAX), CDDP_OK);
    cr_assert_eq(cdi_frame_next(&in, &f, &err), CDDP_OK);
    cr_assert_eq(f.len, CDI_FRAME_MAX);
    cdi_buf_release(&in);
}

Test(frame, rejects_opening_at_first_wrong_byte)
{
    struct cdi_buf in;

    cdi_buf_init(&in, 0);
    (void)cdi_buf_append(&in, "CDDP\x02", 5);
    cr_assert_eq(cdi_frame_take_opening(&in), CDDP_E_PROTOCOL);
    cr_assert_eq(in.len, 5);
    cdi_buf_release(&in);
}

Test(frame, full_buffer_gets_no_partial_frame)
{
    struct cdi_buf out;

    cdi_buf_init(&out, 12);
    cr_assert_eq(cdi_frame_put(&out, 1, "hello", 5), CDDP_E_LIMIT);
    cr_assert_eq(out.len, 0);
    cr_assert_eq(cdi_frame_put(&out, 1, "four", 4), CDDP_OK);
    cr_assert_eq(cdi_frame_put(&out, 1, NULL, 0), CDDP_E_LIMIT);
    cr_assert_eq(out.len, 12);
    cdi_buf_release(&out);
}
