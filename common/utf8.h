/* SPDX-License-Identifier: Apache-2.0 */
/* What is UTF-8 and what is not: texts of users and of their programs go into JSON. Pure, any thread. */
#ifndef CDI_UTF8_H
#define CDI_UTF8_H

#include <stddef.h>

/* Bytes of the UTF-8 character at s, of which `left` bytes (at least 1) may be read: 1 to 4, or 0 if there is none.
 * Overlong forms and surrogates are none. */
size_t cdi_utf8_char(const char *s, size_t left);
/* Copy n bytes, with one '?' for each that is not UTF-8; to holds n bytes at least, and may be text itself. */
void cdi_utf8_clean(char *to, const char *text, size_t n);

#endif
