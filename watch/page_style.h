/* SPDX-License-Identifier: Apache-2.0 */
/* How the page for people looks, and the script that refreshes it. Constant data. */
#ifndef WATCH_PAGE_STYLE_H
#define WATCH_PAGE_STYLE_H

#include <stddef.h>

extern const char *const page_style[]; /* the parts of a <style> element */
extern const size_t page_style_parts;
extern const char page_script[]; /* a <script> element */

#endif
