/* SPDX-License-Identifier: Apache-2.0 */
/* Control frames in random pieces: the result must be the same as for all bytes at once. */
#include "protocol/frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cdi_buf in;
    struct cdi_frame f;
    uint32_t state = size > 0 ? data[0] : 0;
    size_t consumed = 0;

    cdi_buf_init(&in, CDI_FRAME_MAX + 4096);
    for (size_t at = 0, n; at < size; at += n) {
        cddp_status st;

        state = state * 1664525u + 1013904223u;
        n = 1 + (state >> 20) % 64;
        n = n < size - at ? n : size - at;
        (void)cdi_buf_append(&in, data + at, n);
        if (consumed == 0)
            (void)cdi_frame_take_opening(&in);
        while ((st = cdi_frame_next(&in, &f, NULL)) == CDDP_OK) {
            if (f.size != f.len + CDI_FRAME_HEADER || f.size > in.len ||
                f.payload != cdi_buf_data(&in) + CDI_FRAME_HEADER)
                abort();
            consumed += f.size;
            cdi_buf_consume(&in, f.size);
        }
        if (st < 0)
            break;
    }
    cdi_buf_release(&in);
    return 0;
}
