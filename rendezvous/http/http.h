/* SPDX-License-Identifier: Apache-2.0 */
/* The little HTTP that the rendezvous speaks: GET and HEAD of a few paths, one request per connection. Pure: bytes in,
 * out. */
#ifndef RDZV_HTTP_H
#define RDZV_HTTP_H

#include "common/buf.h"
#include "common/error.h"
#include "rendezvous/http/pages.h"

#include <stdbool.h>

#define HTTP_HEAD_MAX 8192 /* bytes of request line and headers */
#define HTTP_PATH_MAX 256

struct http_request {
    bool get;                 /* GET or HEAD; else another method */
    char path[HTTP_PATH_MAX]; /* without the query */
    bool head;                /* HEAD: the answer has no body */
};

/*
 * Read the request at the front of `in`, which is not consumed. CDDP_OK; CDDP_IN_PROGRESS: its head is not complete;
 * CDDP_E_PROTOCOL, CDDP_E_LIMIT (with a sentence): answer 400.
 */
cddp_status http_parse(const struct cdi_buf *in, struct http_request *req, struct cdi_error *err);

/* Is it for a page that tells about jobs, so that http_answer() needs the status? */
bool http_wants_data(const struct http_request *req);

/*
 * Append the answer to a request; req NULL: 400. status NULL: such a page is not for who asks. CDDP_OK, CDDP_E_NOMEM,
 * CDDP_E_LIMIT.
 */
cddp_status http_answer(const struct http_request *req, const struct page_data *data, struct cdi_buf *out);

#endif
