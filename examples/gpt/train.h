/* SPDX-License-Identifier: Apache-2.0 */
/* A run: what all of its parts share. */
#ifndef GPT_TRAIN_H
#define GPT_TRAIN_H

#include "data.h"
#include "fsdp.h"
#include "optimizer.h"
#include "options.h"
#include "progress.h"

struct job {
    const struct options *opt;
    cddp_comm *comm;
    struct gpt model;
    struct engine *engine; /* what computes */
    struct data data;
    cddp_ddp *ddp;    /* NULL with --fsdp: */
    struct fsdp fsdp; /* the divided model */
    struct optimizer optimizer;
    struct progress progress;
    FILE *weights; /* of rank 0, for --weights-out: a path that is wrong is an error now, not after the training */
    int64_t step;  /* done */
    int64_t taken; /* of them, in this process and without a graph */
    bool has_graph;
    bool leaving;  /* the job is to stop: the state is saved, and no step follows on any rank */
    char why[400]; /* an error of this program; "": it is in cddp_last_error() */
};

/* Writes the error message into job->why. Returns CDDP_E_STATE. */
cddp_status job_fail(struct job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Trains, evaluates, saves and samples as the options say. All ranks call it. */
cddp_status train(struct job *job);

#endif
