/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/sniff.h"
#include "protocol/c10d.h"
#include "protocol/frame.h"

#include <string.h>

static const struct {
    const char *bytes;
    size_t len;
    enum cdi_sniff what;
} openings[] = {
    {CDI_C10D_HELLO, CDI_C10D_HELLO_LEN, CDI_SNIFF_STORE},
    {CDI_CONTROL_OPENING, CDI_CONTROL_OPENING_LEN, CDI_SNIFF_CONTROL},
    {"GET ", 4, CDI_SNIFF_HTTP},
    {"HEAD ", 5, CDI_SNIFF_HTTP},
    {"POST ", 5, CDI_SNIFF_HTTP},
    {"PUT ", 4, CDI_SNIFF_HTTP},
    {"DELETE ", 7, CDI_SNIFF_HTTP},
    {"OPTIONS ", 8, CDI_SNIFF_HTTP},
    {"PATCH ", 6, CDI_SNIFF_HTTP},
    {"TRACE ", 6, CDI_SNIFF_HTTP},
    {"CONNECT ", 8, CDI_SNIFF_HTTP},
};

enum cdi_sniff cdi_sniff(const void *bytes, size_t len)
{
    enum cdi_sniff answer = CDI_SNIFF_GARBAGE;

    if (len == 0)
        return CDI_SNIFF_UNDECIDED;
    for (size_t i = 0; i < sizeof openings / sizeof openings[0]; i++) {
        size_t n = len < openings[i].len ? len : openings[i].len;

        if (memcmp(bytes, openings[i].bytes, n) != 0)
            continue;
        if (n == openings[i].len)
            return openings[i].what;
        answer = CDI_SNIFF_UNDECIDED;
    }
    return answer;
}
