/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/json_text.h"

#include "common/utf8.h"
#include "common/visible.h"

#include <stdlib.h>
#include <string.h>

json_t *json_text(const char *text)
{
    size_t n = strlen(text);
    char *clean = malloc(n + 1);
    json_t *out = NULL;

    if (clean == NULL)
        return NULL;
    cdi_utf8_clean(clean, text, n);
    out = json_stringn(clean, n);
    free(clean);
    return out;
}

/* Replaces the text of v by what `make` makes of it. */
static const char *json_visible(json_t *v, size_t (*make)(char *to, size_t cap, const char *text, size_t n))
{
    const char *text = json_string_value(v);
    size_t n = json_string_length(v), size;
    char *clean;
    int rc;

    if (text == NULL || cdi_is_visible_line(text, n))
        return text;
    size = make(NULL, 0, text, n) + 1;
    clean = malloc(size);
    if (clean == NULL)
        return "";
    (void)make(clean, size, text, n);
    rc = json_string_set(v, clean);
    free(clean);
    return rc == 0 ? json_string_value(v) : "";
}

const char *json_line(json_t *v)
{
    return json_visible(v, cdi_visible_line);
}

const char *json_lines(json_t *v)
{
    return json_visible(v, cdi_visible_lines);
}

void json_cut(char *to, size_t cap, const char *text)
{
    size_t n = text == NULL ? 0 : strnlen(text, cap - 1);

    while (n > 0 && (text[n] & 0xc0) == 0x80)
        n--;
    if (n > 0)
        memcpy(to, text, n);
    to[n] = '\0';
}

size_t json_text_bytes(const json_t *v)
{
    return json_string_length(v);
}
