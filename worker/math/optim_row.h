/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An optimizer whose arithmetic runs on a device: its parameters' numbers, and a step. The rows are on the device,
 * which counts each parameter's steps itself, so that a step can be skipped without the host. nvcc includes this file
 * too.
 */
#ifndef CDI_MATH_OPTIM_ROW_H
#define CDI_MATH_OPTIM_ROW_H

#include <cddp/cddp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One parameter. */
struct cdi_optim_row {
    uint64_t steps;                           /* its number of steps */
    double lr_factor, weight_decay;           /* its group's */
    double lr, step_size, correction, shrink; /* for this step, computed when the step is counted: see optim_update.c */
    int32_t idle;                             /* it is not updated in this step */
    uint32_t unused;
};

/* A range of one parameter: elements of its type, with their state in float32, or in float64 for float64. */
struct cdi_optim_piece {
    void *w, *g;
    void *state[2]; /* NULL: the rule has fewer */
    float *master;  /* for 16-bit types: the values that are updated; w is the rounded copy */
    size_t count;
    cddp_dtype dtype;
    bool long_g; /* dtype has 16 bits, and g is float32 */
    size_t row;
};

/* What a captured step tells the host about numbers that are not finite, in pinned memory; see nan_check.h. */
struct cdi_nan_report {
    uint64_t number; /* of the launch, from 1; 0: there is none, or it is being written */
    uint64_t all;    /* the first finding of all ranks (nan_check.h) */
};

struct cdi_optim_rule;

/* One step. */
struct cdi_optim_step {
    const struct cdi_optim_rule *rule; /* its weight_decay is not used: the rows have their own */
    struct cdi_optim_row *rows;        /* on the device */
    size_t n_rows;
    const uint8_t *idle;             /* on the host, by row: it is not updated. NULL: all are */
    const double *largest;           /* on the device: if it is not finite, nothing is updated. NULL: not checked */
    uint64_t *skipped;               /* on the device: how often that happened */
    const uint64_t *bad;             /* on the device: if it is not 0, nothing is updated. NULL: not checked */
    const double *lr_at, *factor_at; /* on the device: in place of the rule's. NULL: the rule's */
    bool publish;                    /* the new values also replace the gradients */
    bool collect;                    /* instead, w becomes g: new values of other ranks; rows and rule are not used */
};

#endif
