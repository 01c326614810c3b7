/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/http/html_text.h"

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

const char *html_plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

const char *html_size(char text[32], size_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double n = (double)bytes / 1024;
    size_t unit = 0;

    if (bytes < 1024) {
        (void)snprintf(text, 32, "%zu byte%s", bytes, html_plural(bytes));
        return text;
    }
    for (; n >= 1024 && unit + 1 < sizeof units / sizeof units[0]; unit++)
        n /= 1024;
    (void)snprintf(text, 32, n < 10 ? "%.1f %s" : "%.0f %s", n, units[unit]);
    return text;
}
