/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the facts about jobs are explained to people. The program hands this table to the server (server.h), which knows
 * none of the texts. All functions are pure.
 */
#ifndef RDZV_VIEWS_H
#define RDZV_VIEWS_H

#include "rendezvous/http/http.h"

struct rdzv_views {
    const struct http_page *pages; /* about jobs; ends with a path that is NULL */
    struct hang_ops hang;
    /* Fills in the explained members of a job (page_data.h), which snapshot_release() frees. CDDP_E_NOMEM. */
    cddp_status (*explain)(struct page_job *j);
    /* Appends the REPLY (protocol/bulk.h) about the job of this name, or with NULL about all. CDDP_E_NOMEM. */
    cddp_status (*reply)(const struct page_data *data, const char *job, struct cdi_buf *out);
};

#endif
