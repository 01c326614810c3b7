/* SPDX-License-Identifier: Apache-2.0 */
/* Payloads of control messages: a decoded message must encode, and decode to the same again. */
#include "protocol/frame.h"
#include "protocol/message.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct cdi_msg msg, again;
    struct cdi_buf wire;
    struct cdi_frame f;
    struct cdi_error err;

    if (size < 1 || cdi_msg_decode(data[0], data + 1, size - 1, &msg, &err) != CDDP_OK)
        return 0;
    cdi_buf_init(&wire, 0);
    if (cdi_msg_encode(&msg, &wire, &err) != CDDP_OK || cdi_frame_next(&wire, &f, &err) != CDDP_OK ||
        cdi_msg_decode(f.type, f.payload, f.len, &again, &err) != CDDP_OK)
        abort();
    /* Texts are cut at their NUL, so equal bytes are equal messages. */
    if (memcmp(&msg, &again, sizeof msg) != 0)
        abort();
    cdi_buf_release(&wire);
    return 0;
}
