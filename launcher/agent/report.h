/* SPDX-License-Identifier: Apache-2.0 */
/* The failure report for people: the first cause first, in what fits on a screen. Pure but for reading the error file.
 */
#ifndef REPORT_H
#define REPORT_H

#include "common/buf.h"
#include "protocol/message.h"

#define REPORT_MESSAGE_MAX 2000 /* bytes read of a worker's own message */
#define REPORT_OTHERS_MAX 5     /* others that failed, one line each */
#define REPORT_PROGRESS "at that moment: "

struct report_other {
    int32_t rank;
    int code, signal; /* signal 0: it exited with code */
    int64_t later_ms; /* than the first; -1: not known */
};

struct report {
    struct cdi_failure first; /* text: a sentence, and what report_details() has put behind it */
    const char *program;
    int64_t after_ms;       /* from the start of that worker to its end; -1: not known here */
    const char *error_file; /* TORCHELASTIC_ERROR_FILE of that worker; NULL: it ran elsewhere */
    const char *progress;   /* where this node's ranks were then; NULL or "": not known */
    bool elsewhere;         /* it ran on another node, or a whole node was lost */
    uint32_t n_others;      /* other workers of this node */
    uint32_t n_ended_well;  /* of them: had ended with 0 */
    uint32_t n_ended_after; /* of them: ended badly after the first, or were stopped */
    uint32_t restart_count, max_restarts;
    struct report_other others[REPORT_OTHERS_MAX];
    unsigned n_other_failures; /* may be more than others holds */
};

/*
 * One sentence about a worker's end: "rank 3 (pid 77 on node1) was killed by signal 9 (SIGKILL)". It goes to the flight
 * pages of the others and into the report.
 */
void report_sentence(const struct cdi_failure *f, char *buf, size_t cap);
/*
 * Why, in one line, as the worker itself has said it (report_details()): the first line of its message or, where it
 * exited without one, the last line of its stderr, called that. At most cap - 1 bytes of more than 40; "": nothing is
 * known, or the sentence says it.
 */
void report_cause(const struct cdi_failure *f, char *buf, size_t cap);
/*
 * Appends a line that explains the end to f->text, after the sentence and before what report_details() adds; cuts what
 * does not fit.
 */
void report_note(struct cdi_failure *f, const char *note);
/*
 * Put behind the sentence in f->text (and its notes), as further lines, the message in the worker's error file (NULL:
 * none) and the last n lines of its stderr, oldest first: what fits, the newest lines first of all. Lines that repeat
 * the message are left out.
 */
void report_details(struct cdi_failure *f, const char *error_file, const char *const *lines, unsigned n);
/* Append the whole report, several lines. CDDP_E_NOMEM. */
cddp_status report_write(const struct report *r, struct cdi_buf *out);
/*
 * What a worker wrote into its error file as torch's @record does, {"message": {"message": TEXT}} or {"message": TEXT}:
 * false if there is no such text. At most cap - 1 bytes.
 */
bool report_error_file(const char *path, char *buf, size_t cap);
/* The status with which the worker was about to exit when it wrote that file, as libcddp notes it; else `otherwise`. */
int report_error_status(const char *path, int otherwise);
/*
 * Write cddprun's own error file (TORCHELASTIC_ERROR_FILE of who started it), as torchrun does: the worker's, or one
 * with the sentence where there is none, with errorCode = status in its message. 0, or the errno of why it could not be
 * written.
 */
int report_copy_error_file(const struct report *r, int status, const char *to);

#endif
