/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/html_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *escape_of(char c)
{
    switch (c) {
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '&':
        return "&amp;";
    case '"':
        return "&quot;";
    default:
        return (unsigned char)c < ' ' || c == 0x7f ? " " : NULL;
    }
}

void html_put(struct html *h, const char *fmt, ...)
{
    char line[2048];
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (h->st == CDDP_OK)
        h->st = n < 0 || (size_t)n >= sizeof line ? CDDP_E_LIMIT : cdi_buf_append(h->out, line, (size_t)n);
}

void html_text(struct html *h, const char *s)
{
    for (; h->st == CDDP_OK && *s != '\0'; s++) {
        const char *escape = escape_of(*s);

        h->st = escape == NULL ? cdi_buf_put_u8(h->out, (uint8_t)*s) : cdi_buf_append(h->out, escape, strlen(escape));
    }
}
