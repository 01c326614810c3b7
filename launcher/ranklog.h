/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One output stream of one rank: bytes in, whole lines with the rank in front out. Pure; the agent's thread.
 *
 *   [3] a line                 a final line without a newline is given one
 *   [3] the first 64 KiB of a line that is longer
 *   [3]+ its next piece
 */
#ifndef RANKLOG_H
#define RANKLOG_H

#include "common/buf.h"

#include <stdbool.h>

#define RANKLOG_LINE_MAX 65536 /* bytes of a line held until its newline comes */
#define RANKLOG_TAIL_LINES 10
#define RANKLOG_TAIL_BYTES 400 /* kept of each of them, NUL included */

struct ranklog {
    uint32_t rank;
    struct cdi_buf part;              /* a line whose end has not come yet */
    bool continued;                   /* a piece of this line is out already */
    char (*tail)[RANKLOG_TAIL_BYTES]; /* ring of the last lines; NULL: not kept */
    unsigned n_tail;                  /* lines seen */
};

/* keep_tail: remember the last lines (without memory for it they are not remembered). */
void ranklog_init(struct ranklog *log, uint32_t rank, bool keep_tail);
void ranklog_release(struct ranklog *log);
/* Append the lines that these bytes complete to out. CDDP_E_NOMEM or CDDP_E_LIMIT (out's): some text is lost. */
cddp_status ranklog_feed(struct ranklog *log, const char *bytes, size_t n, struct cdi_buf *out);
/* The stream has ended: append the line that was not completed. */
cddp_status ranklog_end(struct ranklog *log, struct cdi_buf *out);
/* How many lines are remembered, and the i-th of them, the oldest first. */
unsigned ranklog_tail_count(const struct ranklog *log);
const char *ranklog_tail_line(const struct ranklog *log, unsigned i);

#endif
