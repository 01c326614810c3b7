/* SPDX-License-Identifier: Apache-2.0 */
/* One POST at a time by libcurl, in the caller's loop: it never blocks, and starts no process. */
#ifndef HTTP_POST_H
#define HTTP_POST_H

#include "common/buf.h"
#include "launcher/etcd/libcurl.h"

#include <stdbool.h>
#include <uv.h>

struct http_post;

struct http_post_options {
    const char *cacert, *cert, *key; /* PEM files; "": none. They must outlive the client */
    size_t answer_max;               /* bytes */
};

struct http_post_answer {
    int status; /* 0: no answer, and text says why */
    bool fatal; /* the reason lies in the files of the options */
    const char *text;
    const uint8_t *bytes;
    size_t n;
    char local_ip[64]; /* of this end of the connection; "": none was made */
};

/* Creates a client. *out is set on success only. CDDP_E_NOT_FOUND without libcurl, CDDP_E_NOMEM, CDDP_E_SYSTEM. */
cddp_status http_post_open(struct http_post **out, uv_loop_t *loop, const struct http_post_options *opt,
                           struct cdi_error *err);
/*
 * Sends the body to the URL; token: the value of Authorization, or "". The loop calls done(arg) once, within about
 * timeout_ms; the answer is valid during that call, which may send the next one. Returns false without a call if one is
 * under way, or out of memory.
 */
bool http_post_send(struct http_post *p, const char *url, const char *token, const struct cdi_buf *body,
                    int64_t timeout_ms, void (*done)(void *arg, const struct http_post_answer *a), void *arg);
/* Drops the request that is under way, and frees p from the loop. done() is not called any more. NULL-safe. */
void http_post_close(struct http_post *p);

#endif
