/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --report: one HTML file with the data of a run and the script that draws it (report.html). Nothing that a rank has
 * written can become part of the page's own text or script.
 */
#ifndef WATCH_RUN_REPORT_PAGE_H
#define WATCH_RUN_REPORT_PAGE_H

#include "common/buf.h"
#include "common/error.h"
#include "launcher/plan/machine.h"
#include "watch/run/run_record.h"

/* What the report says besides the record. The strings need to live only during the call. */
struct report_page_about {
    const char *version, *run_id, *directory;
    char *const *command; /* ends with NULL */
    const char *why;      /* why the run ended, if not by a failure; "": as it should */
    int64_t ended_ms;     /* Unix time */
    int exit_status;
    uint32_t restarts, n_local; /* n_local: ranks whose steps this node has seen by itself */
    const struct machine *machine;
    uint64_t memory_bytes;
    const char *processor, *system, *libc; /* processor "": not known */
};

/* Appends the page. CDDP_E_NOMEM, CDDP_E_LIMIT (the buffer's). */
cddp_status report_page_make(const struct run_record *rr, const struct report_page_about *about, struct cdi_buf *out);
/*
 * Checks before the run that a report can be written to this path: CDDP_E_INVALID with a message if it is not a file,
 * or the directory is missing or not writable. Sets *target to the path that report_page_write() needs, with symbolic
 * links followed and absolute; free() it. Blocks on the file system.
 */
cddp_status report_page_check(const char *path, char **target, struct cdi_error *err);
/*
 * Writes the file as a whole, or leaves an older one as it is: a temporary file beside it is renamed. Blocks on the
 * file system. CDDP_E_SYSTEM.
 */
cddp_status report_page_write(const char *target, const struct cdi_buf *page, struct cdi_error *err);

#endif
