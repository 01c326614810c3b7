/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What --top shows: from a REPLY (protocol/bulk.h) to the lines of a terminal, the late ranks first. Pure.
 * The reply is another machine's: wrong members count as missing, and all text becomes printable ASCII.
 */
#ifndef WATCH_SCREEN_H
#define WATCH_SCREEN_H

#include "protocol/node_report.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SCREEN_WIDTH 400  /* of the widest line */
#define SCREEN_HEIGHT 400 /* lines */

enum screen_look { SCREEN_PLAIN, SCREEN_TITLE, SCREEN_HEAD, SCREEN_LATE };

struct screen_line {
    enum screen_look look;
    char text[SCREEN_WIDTH + 1]; /* at most width characters */
};

struct screen {
    unsigned n;          /* lines, at most height */
    unsigned scroll;     /* the first row that is shown; the wanted one, or less if there are not so many rows */
    unsigned max_scroll; /* the largest that makes sense */
    unsigned page;       /* rows on the screen */
    struct screen_line lines[SCREEN_HEIGHT];
};

struct screen_input {
    const char *endpoint;
    json_t *reply;          /* the newest; NULL: none yet */
    json_t *previous;       /* the one before it, for rates of jobs that have no records of steps; NULL: none */
    int64_t between_ms;     /* between the two */
    const char *trouble;    /* such as "connection lost, trying again"; "": none */
    unsigned width, height; /* of the terminal; larger ones are used in part */
    unsigned scroll;        /* the wanted first row */
};

/* Composes the screen. CDDP_E_NOMEM. */
cddp_status screen_compose(const struct screen_input *in, struct screen *out);

#endif
