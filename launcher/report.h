/* SPDX-License-Identifier: Apache-2.0 */
/* The failure report for people: the first cause first, in what fits on a screen. Pure but for reading the error file.
 */
#ifndef REPORT_H
#define REPORT_H

#include "common/buf.h"
#include "protocol/message.h"

#define REPORT_MESSAGE_MAX 2000 /* bytes of a worker's own message that are shown */

struct report {
    struct cdi_failure first;
    const char *program;
    int64_t after_ms;         /* from the start of that worker to its end; -1: not known here */
    const char *const *lines; /* the last of its stderr, oldest first */
    unsigned n_lines;
    const char *error_file; /* TORCHELASTIC_ERROR_FILE of that worker; NULL: it ran elsewhere */
    bool elsewhere;         /* it ran on another node, or a whole node was lost */
    uint32_t n_others;      /* other workers of this node */
    uint32_t n_ended_well;  /* of them: had ended with 0 */
    uint32_t n_ended_after; /* of them: ended badly after the first, or were stopped */
    uint32_t restart_count, max_restarts;
};

/*
 * One sentence about a worker's end: "rank 3 (pid 77 on node1) was killed by signal 9 (SIGKILL)". It goes to the flight
 * pages of the others and into the report.
 */
void report_sentence(const struct cdi_failure *f, char *buf, size_t cap);
/* Append the whole report, several lines. CDDP_E_NOMEM. */
cddp_status report_write(const struct report *r, struct cdi_buf *out);
/*
 * What a worker wrote into its error file as torch's @record does, {"message": {"message": TEXT}} or {"message": TEXT}:
 * false if there is no such text. At most cap - 1 bytes.
 */
bool report_error_file(const char *path, char *buf, size_t cap);

#endif
