/* SPDX-License-Identifier: Apache-2.0 */
/* Checks UTF-8, for texts of users and programs that go into JSON. Pure, any thread. */
#ifndef CDI_UTF8_H
#define CDI_UTF8_H

#include <stddef.h>

/* Returns the length of the UTF-8 character at s, where `left` bytes (at least 1) may be read: 1 to 4; 0: not UTF-8, as
 * overlong forms and surrogates are. */
size_t cdi_utf8_char(const char *s, size_t left);
/* Copies n bytes, with a '?' for each byte that is not UTF-8. `to` holds at least n bytes, and may be text itself. */
void cdi_utf8_clean(char *to, const char *text, size_t n);

#endif
