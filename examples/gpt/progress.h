/* SPDX-License-Identifier: Apache-2.0 */
/* What rank 0 tells: a line that moves on a terminal, plain lines elsewhere, and JSON lines in the file of --log. */
#ifndef GPT_PROGRESS_H
#define GPT_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define CDDP_EXPERIMENTAL 1
#include <cddp/experimental/ddp.h> /* cddp_ddp_get_stats */

struct progress {
    bool shown, terminal;       /* shown: on rank 0 */
    bool alone;                 /* one rank: nothing is communicated */
    bool open;                  /* the moving line has not ended */
    FILE *log;                  /* or NULL */
    int error;                  /* errno of the first line that could not be written; 0: none */
    int64_t first, steps;       /* this run's first step, and the last one of all */
    int64_t last;               /* the step of the last line, or the first */
    double began, at;           /* seconds: of the first step, and of the last line */
    double paused;              /* of the time since then: evaluations and checkpoints */
    int64_t comm_ns, hidden_ns; /* of the reducer until the last line */
};

/* One step, all ranks together. */
struct step_report {
    int64_t step; /* done */
    double loss, lr, norm;
    size_t tokens; /* of one step */
};

/* Opens the log file for rank 0; with `keep`, what it holds stays for now. False: errno says why. */
bool progress_open(struct progress *p, const cddp_comm *comm, const char *log, bool keep);
/* Keeps the lines of the log up to `step`, where a resumed run goes on. False: errno says why. */
bool progress_cut(struct progress *p, int64_t step);
/* The clock starts. */
void progress_begin(struct progress *p, int64_t first, int64_t steps);

void progress_step(struct progress *p, const struct step_report *r, cddp_ddp *ddp);
void progress_held_out(struct progress *p, int64_t step, double loss);
/* Time from here to progress_go_on() does not count for tokens/s. */
void progress_pause(struct progress *p);
void progress_go_on(struct progress *p);
/* Ends the moving line, if there is one, before something else is printed. */
void progress_end_line(struct progress *p);
/* Closes the log. False: it could not be written. */
bool progress_close(struct progress *p);

#endif
