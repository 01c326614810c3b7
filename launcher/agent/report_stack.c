/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/report.h"
#include "launcher/process/stack_text.h"

#include <stdio.h>
#include <string.h>

#define LINE_FRAME "| "     /* begins each line of a worker's text in the report */
#define FRAME_COLUMNS 74    /* of a terminal's 80, after the report's indent and LINE_FRAME */
#define INLINED ", inlined" /* before the name of an inlined function */
#define STACK_LEAVES 300    /* bytes of a failure's text, for what follows a stack */

/* Returns the lines of text. */
static int count_lines(const char *text)
{
    int n = 0;

    for (; *text != '\0'; text += strcspn(text, "\n"), text += *text == '\n')
        n++;
    return n;
}

/* Returns where the place of a frame begins, " at FILE:LINE" or " in FILE", in the first len bytes; len: there is none.
 */
static size_t place_in(const char *line, size_t len)
{
    for (size_t i = len; i-- > 0;)
        if (strncmp(line + i, " at ", 4) == 0 || strncmp(line + i, " in ", 4) == 0)
            return i;
    return len;
}

/*
 * Copies a frame into `most` bytes: a function's name that is too long loses its end, and never the place after it. The
 * name of an inlined function goes first; its place stays apart, since it is not that of the function.
 */
static void copy_frame(char *to, size_t most, const char *line, size_t len)
{
    size_t own = len, inner = len, place, tail, head;

    if (len <= most) {
        (void)snprintf(to, most + 1, "%.*s", (int)len, line);
        return;
    }
    for (size_t i = 0; i + sizeof INLINED <= len && own == len; i++)
        if (strncmp(line + i, INLINED, sizeof INLINED - 1) == 0)
            own = i;
    if (own < len)
        inner = place_in(line, len) > own ? place_in(line, len) : len;
    place = place_in(line, own);
    tail = own - place + (inner < len ? sizeof INLINED - 1 + len - inner : 0);
    if (tail + 3 > most) { /* the function's own place alone */
        inner = len;
        tail = own - place;
    }
    if (tail + 3 > most) {
        (void)snprintf(to, most + 1, "%.*s...", (int)most - 3, line);
        return;
    }
    head = place < most - tail ? place : most - 3 - tail;
    (void)snprintf(to, most + 1, "%.*s%s%.*s%s%.*s", (int)head, line, head < place ? "..." : "", (int)(own - place),
                   line + place, inner < len ? INLINED : "", (int)(len - inner), line + inner);
}

/* Each frame takes one row of the report, and the rest of the failure's text is for the worker's own words. */
void report_stack(struct cdi_failure *f, const char *text)
{
    const size_t cap = sizeof f->text - STACK_LEAVES, frame_room = strlen("\n" LINE_FRAME STACK_CUT);
    char frame[FRAME_COLUMNS + 1];
    size_t at = strlen(f->text), len = strcspn(text, "\n");
    int rows = count_lines(text);

    if (at + len + 1 >= cap)
        return;
    at += (size_t)snprintf(f->text + at, cap - at, "\n%.*s", (int)len, text);
    for (int row = 1; row < rows; row++) {
        text += len + 1;
        len = strcspn(text, "\n");
        copy_frame(frame, FRAME_COLUMNS, text + strspn(text, " "), len - strspn(text, " "));
        if ((row + 1 == REPORT_STACK_ROWS && row + 1 < rows) || at + strlen(frame) + frame_room >= cap)
            rows = row; /* the last one */
        if (rows == row)
            (void)snprintf(frame, sizeof frame, STACK_CUT);
        at += (size_t)snprintf(f->text + at, sizeof f->text - at, "\n" LINE_FRAME "%s", frame);
    }
}
