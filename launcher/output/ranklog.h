/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One output stream of one rank: bytes in, whole lines with a prefix out. Pure; the agent's thread.
 *   [3] a line                 a final line without a newline gets one
 *   [3] the first 64 KiB of a line that is longer
 *   [3]+ its next piece
 * On a terminal, text that ends with a lone carriage return (such as a progress bar) is shown immediately, and the next
 * output overwrites it. Only the text at the time of the newline remains, and counts as the line.
 */
#ifndef RANKLOG_H
#define RANKLOG_H

#include "common/buf.h"

#include <stdbool.h>

#define RANKLOG_LINE_MAX 65536 /* bytes of a line held until its newline arrives */
#define RANKLOG_TAIL_LINES 10
#define RANKLOG_TAIL_BYTES 400 /* kept of each line, NUL included */
#define RANKLOG_PREFIX_MAX 128
#define RANKLOG_ERASE "\033[K" /* a terminal's: to the end of the line */
/* The longest output of n bytes: all newlines, each after a prefix with a colour, and a line that was held. */
#define RANKLOG_OUT_MAX(n) \
    (RANKLOG_LINE_MAX + (size_t)(n) * (RANKLOG_PREFIX_MAX + sizeof "+ \033[36m\033[0m" RANKLOG_ERASE))

struct ranklog_filter {
    const char *words; /* consecutive, each with a NUL at its end */
    unsigned n;        /* 0: no line matches */
};

/* The prefix of a line. */
struct ranklog_front {
    const char *text;
    size_t len;
};

struct ranklog {
    char *fronts; /* the memory of the following prefixes; NULL: out of memory, and they are empty */
    struct ranklog_front plain[2], shown[2]; /* of a line, of a continued one; shown: with the colour */
    struct ranklog_filter filter;
    struct cdi_buf part;              /* a line whose end has not arrived yet */
    bool continued;                   /* a piece of this line is written already */
    bool *drawn;                      /* the option */
    char (*tail)[RANKLOG_TAIL_BYTES]; /* ring of the last lines; NULL: not kept */
    unsigned n_tail;                  /* lines seen */
};

struct ranklog_options {
    const char *prefix;
    bool colour; /* put the prefix in a colour, by `rank` */
    uint32_t rank;
    bool *drawn;    /* whether text to be overwritten is on the terminal, for all its streams; NULL: not a terminal */
    bool keep_tail; /* remember the last lines, if there is memory for it */
    struct ranklog_filter filter;
};

/* The outputs of a stream. */
struct ranklog_out {
    struct cdi_buf *shown;   /* all lines; NULL: none */
    struct cdi_buf *matched; /* lines that match the filter, with the prefix but no colour; NULL if filter.n is 0 */
};

/*
 * Writes the prefix of a rank's lines by torchrun's template (${role_name}, ${rank}, ${local_rank}; other macros stay
 * unchanged) to buf, cut if too long. template NULL: "[rank] ". Returns buf.
 */
const char *ranklog_prefix(char buf[RANKLOG_PREFIX_MAX], const char *template, const char *role, uint32_t rank,
                           uint32_t local_rank);

/* Initializes a log. It copies the prefix, but not filter.words. Without memory it has no prefix. */
void ranklog_init(struct ranklog *log, const struct ranklog_options *opt);
void ranklog_release(struct ranklog *log);
/* Appends the lines that these bytes complete. CDDP_E_NOMEM or CDDP_E_LIMIT (a buffer's): some text is lost. */
cddp_status ranklog_feed(struct ranklog *log, const char *bytes, size_t n, const struct ranklog_out *out);
/* Ends the stream: appends the incomplete line. */
cddp_status ranklog_end(struct ranklog *log, const struct ranklog_out *out);
/* Returns the number of remembered lines, and the i-th of them, the oldest first. */
unsigned ranklog_tail_count(const struct ranklog *log);
const char *ranklog_tail_line(const struct ranklog *log, unsigned i);

#endif
