/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --progress: the text of one line about the running job, made of this node's flight pages:
 *   step 390, 12.3 steps/s, 81 % of communication hidden, slowest rank 5, 2 restarts, 00:03:12
 * Pure.
 */
#ifndef WATCH_RUN_PROGRESS_LINE_H
#define WATCH_RUN_PROGRESS_LINE_H

#include "protocol/node_report.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROGRESS_LINE_MAX 200      /* bytes of the text, NUL included */
#define PROGRESS_LINE_POINTS 16    /* remembered for the rate */
#define PROGRESS_LINE_RATE_MS 5000 /* the rate is that of this time */

/* Zeroed before the first call. */
struct progress_line {
    struct {
        int64_t ms;
        uint64_t step;
    } points[PROGRESS_LINE_POINTS];
    size_t n_points; /* ever noted */
};

struct progress_facts {
    uint32_t n_ranks;
    uint64_t step;      /* completed by all of these ranks */
    double rate;        /* steps per second; negative: not known */
    int hidden_percent; /* of communication; -1: not known */
    int32_t late_rank;  /* -1: not known */
    uint32_t restarts;
    int64_t elapsed_ms;
};

/* Notes where the ranks are now, and returns the facts; restarts and elapsed_ms are the caller's. */
struct progress_facts progress_line_note(struct progress_line *p, const struct cdi_node_report *r, int64_t now_ms);
/*
 * Writes the line in ASCII, of fewer than `columns` characters: parts that do not fit are left out, the least important
 * first. Returns buf.
 */
const char *progress_line_text(const struct progress_facts *f, unsigned columns, char buf[PROGRESS_LINE_MAX]);

#endif
