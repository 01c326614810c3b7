/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP requests: every parsed request gets a response. */
#include "watch/views.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct page_agent agents[2] = {{"[::1]:2", 0, 0, 4, "h<&\xff"}, {"10.0.0.2:3", -1, 0, 0, NULL}};
    struct page_job job = {
        .run_id = "a<&\"\\\n\xff", .state = "running", .why = "\xfe", .agents = agents, .n_agents = 2};
    const struct page_data status = {.version = "1", .jobs = &job, .n_jobs = 1};
    const struct http_page *page;
    struct http_request req;
    struct cdi_buf in, out;
    cddp_status st;

    cdi_buf_init(&in, 0);
    cdi_buf_init(&out, 0);
    (void)cdi_buf_append(&in, data, size);
    st = http_parse(&in, &req, NULL);
    if (st == CDDP_IN_PROGRESS && size >= HTTP_HEAD_MAX)
        abort();
    page = st == CDDP_OK ? http_page_of(watch_views.pages, &req) : NULL;
    if (st != CDDP_IN_PROGRESS && http_answer(st == CDDP_OK ? &req : NULL, page, &status, &out) != CDDP_OK)
        abort();
    cdi_buf_release(&in);
    cdi_buf_release(&out);
    return 0;
}
