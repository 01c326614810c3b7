/* SPDX-License-Identifier: Apache-2.0 */
/* Replies of a rendezvous, as text for a terminal: no control character, and no line that is too long. */
#include "watch/screen.h"
#include "watch/where.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_screen(json_t *reply)
{
    static struct screen screen;
    const struct screen_input in = {.endpoint = "h:1",
                                    .reply = reply,
                                    .previous = reply,
                                    .between_ms = 1000,
                                    .trouble = "",
                                    .width = 120,
                                    .height = 24};

    if (screen_compose(&in, &screen) != CDDP_OK)
        return;
    for (unsigned i = 0; i < screen.n; i++) {
        if (strlen(screen.lines[i].text) > in.width)
            abort();
        for (const char *at = screen.lines[i].text; *at != '\0'; at++)
            if (*at < ' ' || *at > '~')
                abort();
    }
}

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
    if (reply != NULL)
        check_screen(reply);
    json_decref(reply);
    return 0;
}
