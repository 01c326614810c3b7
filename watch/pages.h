/* SPDX-License-Identifier: Apache-2.0 */
/* The pages about the server and its jobs, in three formats: JSON, Prometheus, HTML. Pure. */
#ifndef WATCH_PAGES_H
#define WATCH_PAGES_H

#include "common/buf.h"
#include "rendezvous/http/page_data.h"

/* Append a page to out. Return CDDP_OK, CDDP_E_NOMEM or CDDP_E_LIMIT; after an error discard the appended bytes. */
cddp_status page_json(const struct page_data *s, struct cdi_buf *out);
cddp_status page_metrics(const struct page_data *s, struct cdi_buf *out);
cddp_status page_html(const struct page_data *s, struct cdi_buf *out);

#endif
