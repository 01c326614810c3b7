/* SPDX-License-Identifier: Apache-2.0 */
/* The failure report: the first cause first, and no longer than a screen. Pure but for reading the error file. */
#ifndef REPORT_H
#define REPORT_H

#include "common/buf.h"
#include "protocol/message.h"

#define REPORT_MESSAGE_MAX 2000 /* bytes read of a worker's error message */
#define REPORT_OTHERS_MAX 5     /* others that failed, one line each */
#define REPORT_PROGRESS "at that moment: "

struct report_other {
    int32_t rank;
    int code, signal; /* signal 0: it exited with code */
    int64_t later_ms; /* than the first; -1: not known */
};

struct report {
    struct cdi_failure first; /* text: one line, and the lines that report_details() has added */
    const char *program;
    int64_t after_ms;       /* from the start of that worker to its end; -1: not known here */
    const char *error_file; /* TORCHELASTIC_ERROR_FILE of that worker; NULL: it ran elsewhere */
    const char *progress;   /* the progress of this node's ranks then; NULL or "": not known */
    bool elsewhere;         /* the worker ran on another node, or a whole node was lost */
    uint32_t n_others;      /* other workers of this node */
    uint32_t n_succeeded;   /* of them: exited with status 0 */
    uint32_t n_ended_after; /* of them: failed after the first, or were stopped */
    uint32_t restart_count, max_restarts;
    struct report_other others[REPORT_OTHERS_MAX];
    unsigned n_other_failures; /* may be more than others holds */
};

/*
 * Writes one line about a worker's end: "rank 3 (pid 77 on node1) was killed by signal 9 (SIGKILL)". The flight pages
 * of the others and the report have it.
 */
void report_headline(const struct cdi_failure *f, char *buf, size_t cap);
/*
 * Writes the cause in one line, by the worker's own words (report_details()): the first line of its error message, or
 * the last line of its stderr, marked as such, if it exited without a message. At most cap - 1 bytes, with cap over 40;
 * "": not known, or in the headline already.
 */
void report_cause(const struct cdi_failure *f, char *buf, size_t cap);
/*
 * Appends a line that explains the end to f->text, cut if too long. Call it before report_details().
 */
void report_note(struct cdi_failure *f, const char *note);
/*
 * Appends a stack, or the reason why there is none, to f->text: a first line, and frames, of which those that fit into
 * REPORT_STACK_ROWS are shown. Call it before report_details().
 */
#define REPORT_STACK_ROWS 11
void report_stack(struct cdi_failure *f, const char *text);
/*
 * Appends to f->text, as further lines, the message of the worker's error file (NULL: none) and the last n lines of its
 * stderr, oldest first. If they do not all fit, the oldest lines are dropped. Lines that repeat the message are
 * skipped.
 */
void report_details(struct cdi_failure *f, const char *error_file, const char *const *lines, unsigned n);
/* Appends the whole report, several lines, to out. CDDP_E_NOMEM. */
cddp_status report_write(const struct report *r, struct cdi_buf *out);
/*
 * Reads the message of a worker's error file in the format of torch's @record, {"message": {"message": TEXT}} or
 * {"message": TEXT}; false if there is none. At most cap - 1 bytes.
 */
bool report_error_file(const char *path, char *buf, size_t cap);
/* Returns the exit status that libcddp has noted in that file, or `otherwise`. */
int report_error_status(const char *path, int otherwise);
/*
 * Writes cddprun's own error file (the TORCHELASTIC_ERROR_FILE in its environment), as torchrun does: the worker's
 * error file, or one with the headline if there is none, with errorCode = status in its message. Returns 0, or the
 * errno of a failed write.
 */
int report_copy_error_file(const struct report *r, int status, const char *to);

#endif
