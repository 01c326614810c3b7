/* SPDX-License-Identifier: Apache-2.0 */
/* The facts about jobs as a REPLY (docs/internals/protocol.md): from the server's to a client's. Pure. */
#ifndef WATCH_REPLY_H
#define WATCH_REPLY_H

#include "common/buf.h"
#include "rendezvous/http/page_data.h"

/* Appends the frames about the job of this name, or with NULL about all. CDDP_E_NOMEM. */
cddp_status reply_write(const struct page_data *data, const char *job, struct cdi_buf *out);

struct reply_job {
    struct page_job facts;           /* as far as a reply has them */
    struct cdi_node_report *reports; /* hold the strings of the ranks */
};

struct reply_jobs {
    size_t n;
    struct reply_job *v;
};

/*
 * Reads the jobs of a reply. The texts are those of the reply, which must outlive them. strict: a wrong form is
 * CDDP_E_PROTOCOL; otherwise what is wrong counts as missing. groups: of ranks in equal places, at most, in each job.
 * CDDP_E_NOMEM; reply_release() is to be called in any case.
 */
cddp_status reply_read(json_t *reply, bool strict, size_t groups, struct reply_jobs *out, struct cdi_error *err);
void reply_release(struct reply_jobs *r);

#endif
