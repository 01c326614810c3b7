/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An optimizer whose arithmetic a device does: what it is told of each parameter, and of a step. The rows lie on the
 * device, which counts each parameter's steps itself, so that a step may be left out without a word of the host.
 * nvcc includes this file too.
 */
#ifndef CDI_MATH_OPTIM_ROW_H
#define CDI_MATH_OPTIM_ROW_H

#include <cddp/cddp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One parameter. */
struct cdi_optim_row {
    uint64_t steps;                           /* that it has taken */
    double lr_factor, weight_decay;           /* its group's */
    double lr, step_size, correction, shrink; /* of this step, made when it is counted: see optim_update.c */
    int32_t idle;                             /* it stays as it is in this step */
    uint32_t unused;
};

/* A stretch of one parameter: elements of its type, with their state in float32, or in float64 for float64. */
struct cdi_optim_piece {
    void *w, *g;
    void *state[2]; /* NULL: the rule has fewer */
    float *master;  /* of 16 bits: what is updated, of which w is the rounded copy */
    size_t count;
    cddp_dtype dtype;
    size_t row;
};

struct cdi_optim_rule;

/* One step. */
struct cdi_optim_step {
    const struct cdi_optim_rule *rule; /* its weight_decay is not used: the rows have it */
    struct cdi_optim_row *rows;        /* on the device */
    size_t n_rows;
    const uint8_t *idle;   /* on the host, by row: it stays as it is. NULL: none does */
    const double *largest; /* on the device: where it is no finite number, all stay as they are. NULL: not asked for */
    uint64_t *skipped;     /* on the device: how often that was so */
    bool publish;          /* the new values also take the gradients' place */
};

#endif
