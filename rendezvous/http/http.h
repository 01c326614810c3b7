/* SPDX-License-Identifier: Apache-2.0 */
/* A minimal HTTP server: GET and HEAD of a few paths, one request per connection. Pure: from bytes to bytes. */
#ifndef RDZV_HTTP_H
#define RDZV_HTTP_H

#include "common/buf.h"
#include "common/error.h"
#include "rendezvous/http/page_data.h"

#include <stdbool.h>

#define HTTP_HEAD_MAX 8192 /* bytes of request line and headers */
#define HTTP_PATH_MAX 256

struct http_request {
    bool get;                 /* GET or HEAD */
    char path[HTTP_PATH_MAX]; /* without the query */
    bool head;                /* HEAD: a response without a body */
};

/*
 * Parses the request in `in`, without consuming it. Returns CDDP_OK, CDDP_IN_PROGRESS (the head is not complete),
 * CDDP_E_PROTOCOL or CDDP_E_LIMIT (with an error message; the response is 400).
 */
cddp_status http_parse(const struct cdi_buf *in, struct http_request *req, struct cdi_error *err);

/* A page about jobs. */
struct http_page {
    const char *path, *type; /* path NULL: the end of a list of pages */
    cddp_status (*write)(const struct page_data *s, struct cdi_buf *out);
};

/* Returns the page that is requested, for which http_answer() needs data; NULL: none of these. */
const struct http_page *http_page_of(const struct http_page *pages, const struct http_request *req);

/*
 * Appends the response. req NULL: 400. page: that of http_page_of(). data NULL: the client may not see pages about jobs
 * (403). Returns CDDP_OK, CDDP_E_NOMEM or CDDP_E_LIMIT.
 */
cddp_status http_answer(const struct http_request *req, const struct http_page *page, const struct page_data *data,
                        struct cdi_buf *out);

#endif
