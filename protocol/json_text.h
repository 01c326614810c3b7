/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text as JSON strings, in both directions. No other source reads the text of a JSON string (tests/lint), so no code
 * gets text of another process or host that is not visible (common/visible.h). Pure; one thread for a value.
 */
#ifndef JSON_TEXT_H
#define JSON_TEXT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Returns a JSON string, in which invalid UTF-8 is replaced by '?'; NULL: out of memory. */
json_t *json_text(const char *text);
/*
 * Returns the text of a JSON string as one visible line; NULL: v is NULL or no string. It belongs to v, in which it
 * takes the place of the text that was there. Without memory for that: "".
 */
const char *json_line(json_t *v);
/* Does the same for a text that may have several lines, such as a stack. */
const char *json_lines(json_t *v);
/* Copies a text, cut between two characters if it is longer than cap - 1 bytes; NULL: "". */
void json_cut(char *to, size_t cap, const char *text);
/* Returns the bytes of a JSON string; 0: v is NULL or no string. */
size_t json_text_bytes(const json_t *v);

#endif
