/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/json_text.h"

#include "common/utf8.h"

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
