/* SPDX-License-Identifier: Apache-2.0 */
#include "common/visible.h"

#include "common/utf8.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define PART 12 /* bytes of one character's text, NUL included */

static uint32_t code_of(const char *text, size_t len)
{
    const unsigned char *s = (const unsigned char *)text;

    return len == 1   ? s[0]
           : len == 2 ? (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu)
           : len == 3 ? (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu)
                      : 0x10000u; /* none of those is escaped */
}

/* Characters that reorder or break a line without being control characters. */
static bool moves_text(uint32_t code)
{
    return code == 0x061c || code == 0x200e || code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069) || code == 0xfeff;
}

/* Writes the first character of a text of n bytes. Returns the bytes that it takes up, and their number in *used. */
static size_t put_first(char part[PART], const char *text, size_t n, bool lines, size_t *used)
{
    size_t len = cdi_utf8_char(text, n);
    uint32_t code = len == 0 ? (unsigned char)text[0] : code_of(text, len);

    *used = len == 0 ? 1 : len;
    if (lines && code == '\r' && (n == 1 || text[1] == '\n'))
        return 0;
    if (len == 0 || (code < ' ' && code != '\t' && !(lines && code == '\n')) || (code >= 0x7f && code <= 0x9f))
        return (size_t)snprintf(part, PART, "\\x%02x", (unsigned)code);
    if (moves_text(code))
        return (size_t)snprintf(part, PART, "\\u%04x", (unsigned)code);
    memcpy(part, text, len);
    return len;
}

/* Appends n bytes, or, of plain ones, those for which there is room. Returns whether there was room for all. */
static bool append(char *to, size_t cap, size_t at, const char *bytes, size_t n, bool plain)
{
    size_t room = at + 1 < cap ? cap - 1 - at : 0, len = n <= room ? n : plain ? room : 0;

    if (len > 0) {
        memcpy(to + at, bytes, len);
        to[at + len] = '\0';
    }
    return len == n;
}

/* Most texts are plain, and an agent reads many names of collectives: plain characters are copied as one. */
static size_t plain_run(const char *text, size_t n)
{
    size_t run = 0;

    while (run < n && text[run] >= ' ' && text[run] <= '~')
        run++;
    return run;
}

static size_t put_all(char *to, size_t cap, const char *text, size_t n, bool lines)
{
    size_t at = 0, used;
    bool fits = cap > 0;
    char part[PART];

    if (cap > 0)
        to[0] = '\0';
    for (size_t i = 0; i < n; i += used) {
        size_t len = used = plain_run(text + i, n - i);
        bool plain = used > 0;

        if (!plain)
            len = put_first(part, text + i, n - i, lines, &used);
        fits = fits && append(to, cap, at, plain ? text + i : part, len, plain);
        at += len;
    }
    return at;
}

size_t cdi_visible_line(char *to, size_t cap, const char *text, size_t n)
{
    return put_all(to, cap, text, n, false);
}

size_t cdi_visible_lines(char *to, size_t cap, const char *text, size_t n)
{
    return put_all(to, cap, text, n, true);
}

bool cdi_is_visible_line(const char *text, size_t n)
{
    return put_all(NULL, 0, text, n, false) == n; /* no escape is as short as what it stands for */
}
