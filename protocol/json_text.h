/* SPDX-License-Identifier: Apache-2.0 */
/* Whatever a user or a program has said, as a JSON string: bytes that are not UTF-8 become '?'. Pure. */
#ifndef JSON_TEXT_H
#define JSON_TEXT_H

#include <jansson.h>

/* NULL: no memory. */
json_t *json_text(const char *text);

#endif
