/* SPDX-License-Identifier: Apache-2.0 */
/* Text for people in HTML: escaping, plural forms, units. Pure. */
#ifndef WATCH_HTML_TEXT_H
#define WATCH_HTML_TEXT_H

#include "common/buf.h"

/* A page that is being written: after an error (st) nothing more is appended. */
struct html {
    struct cdi_buf *out;
    cddp_status st; /* CDDP_OK, CDDP_E_NOMEM or CDDP_E_LIMIT */
};

/* Appends HTML. */
void html_put(struct html *h, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Appends text with <, >, &, " and control characters made harmless. */
void html_text(struct html *h, const char *s);

#endif
