/* SPDX-License-Identifier: Apache-2.0 */
/* Training on all ranks, in float32 or float64. */
#ifndef WINE_TRAIN_H
#define WINE_TRAIN_H

#include "data.h"
#include "options.h"

#define CDDP_EXPERIMENTAL 1 /* the divided optimizer and PowerSGD */
#include <cddp/cddp.h>
#include <stdio.h>

struct job {
    const struct options *opt;
    const struct wine_data *data;
    cddp_comm *comm;
    FILE *metrics;     /* rank 0, or NULL; with --resume also readable */
    FILE *weights_out; /* rank 0, or NULL */
};

/* How it ended, of rank 0; the loss is the last epoch's, over all ranks. */
struct result {
    double train_loss, test_loss;
    size_t n_right; /* of the test rows */
    long epochs, steps;
    bool left; /* the job was to stop: the state is saved, and the other members but epochs and steps say nothing */
};

/* CDDP_OK, or a status whose error message is in cddp_last_error(), or (of a local cause) in `why`. */
cddp_status train_f32(const struct job *job, struct result *result, char *why, size_t cap);
cddp_status train_f64(const struct job *job, struct result *result, char *why, size_t cap);

#endif
