/* SPDX-License-Identifier: Apache-2.0 */
/* A dump of PyTorch's flight recorder: a pickle. */
#include "launcher/agent/torch_dump.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct torch_dump dump;
    struct cdi_error err = {.status = CDDP_OK};
    char text[64];

    if (torch_dump_read(data, size, &dump, &err) != CDDP_OK && (err.msg[0] == '\0' || dump.n != 0))
        abort();
    torch_dump_text(&dump, text, sizeof text);
    for (const char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7F)
            abort();
    if ((text[0] != '\0') != (dump.has_open || dump.has_last) || strlen(text) >= sizeof text)
        abort();
    return 0;
}
