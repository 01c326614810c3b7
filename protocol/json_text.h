/* SPDX-License-Identifier: Apache-2.0 */
/* Text from a user or a program as a JSON string. Pure. */
#ifndef JSON_TEXT_H
#define JSON_TEXT_H

#include <jansson.h>

/* Returns a JSON string, in which invalid UTF-8 is replaced by '?'; NULL: out of memory. */
json_t *json_text(const char *text);

#endif
