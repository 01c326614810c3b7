/* SPDX-License-Identifier: Apache-2.0 */
/* Replies of a rendezvous, as text for a terminal: no control character, and no line that is too long. */
#include "launcher/query/where.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *reply = json_loadb((const char *)data, size, 0, NULL);
    struct cdi_error err;
    struct cdi_buf out;
    size_t line = 0;

    cdi_buf_init(&out, 1 << 20);
    if (reply != NULL && where_text(reply, 12, 80, &out, &err) == CDDP_OK)
        for (size_t i = 0; i < out.len; i++) {
            uint8_t c = cdi_buf_data(&out)[i];

            line = c == '\n' ? 0 : line + ((c & 0xc0) != 0x80);
            if (line > 80 || (c < ' ' && c != '\n') || c == 0x7f)
                abort();
        }
    cdi_buf_release(&out);
    json_decref(reply);
    return 0;
}
