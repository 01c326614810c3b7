/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/views.h"

#include "watch/explain.h"
#include "watch/hang.h"
#include "watch/pages.h"
#include "watch/reply.h"

static const struct http_page pages[] = {
    {"/", "text/html; charset=utf-8", page_html},
    {"/status", "application/json", page_json},
    {"/metrics", "text/plain; version=0.0.4; charset=utf-8", page_metrics},
    {NULL, NULL, NULL},
};

const struct rdzv_views watch_views = {.pages = pages,
                                       .hang = {hang_judge, hang_first, hang_text, hang_stacks},
                                       .explain = explain_job,
                                       .reply = reply_write};
