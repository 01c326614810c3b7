/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/report.h"
#include "launcher/process/stack_text.h"

#include <stdio.h>
#include <string.h>

#define LINE_FRAME "| "  /* as of other lines of a worker in the report */
#define FRAME_COLUMNS 74 /* of a terminal's 80, after the report's indent and LINE_FRAME */
#define STACK_SPARES 300 /* bytes of a failure's text, for what follows a stack */

/* Returns the lines of text. */
static int count_lines(const char *text)
{
    int n = 0;

    for (; *text != '\0'; text += strcspn(text, "\n"), text += *text == '\n')
        n++;
    return n;
}

/* Copies a frame into `most` bytes: a function's name that is too long loses its end, and never the place after it. */
static void copy_frame(char *to, size_t most, const char *line, size_t len)
{
    size_t place = len, head;

    if (len <= most) {
        (void)snprintf(to, most + 1, "%.*s", (int)len, line);
        return;
    }
    while (place > 0 && strncmp(line + place, " at ", 4) != 0 && strncmp(line + place, " in ", 4) != 0)
        place--;
    head = place == 0 || len - place + 3 > most ? most - 3 : most - 3 - (len - place);
    (void)snprintf(to, most + 1, "%.*s...%.*s", (int)head, line, head == most - 3 ? 0 : (int)(len - place),
                   line + place);
}

/* Each frame takes one row of the report, and the rest of the failure's text is for the worker's own words. */
void report_stack(struct cdi_failure *f, const char *text)
{
    const size_t cap = sizeof f->text - STACK_SPARES, frame_room = strlen("\n" LINE_FRAME STACK_CUT);
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
