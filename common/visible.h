/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text from another process or host, before it reaches a terminal, a log, a page or a label. It is made visible where
 * it is decoded: by json_line() and json_lines() (protocol/json_text.h), and by these functions where it is not JSON.
 * So the code that prints it need not think of it. Pure, any thread.
 *
 * Control characters, also the eight-bit ones (U+0080 to U+009F), and bytes that are not UTF-8 become "\x1b".
 * Characters that change the direction of a text (U+202E) or its lines (U+2028) become "\u202e". Tabs stay.
 */
#ifndef CDI_VISIBLE_H
#define CDI_VISIBLE_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Copies n bytes as one line; cut between two characters if it is longer than cap - 1 bytes. `to` and `text` do not
 * overlap. Returns the bytes of the whole line. A visible text stays as it is.
 */
size_t cdi_visible_line(char *to, size_t cap, const char *text, size_t n);
/* Does the same, and leaves newlines. "\r\n" becomes a newline. */
size_t cdi_visible_lines(char *to, size_t cap, const char *text, size_t n);
/* Would cdi_visible_line() leave it as it is? */
bool cdi_is_visible_line(const char *text, size_t n);

#endif
