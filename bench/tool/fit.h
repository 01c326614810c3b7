/* SPDX-License-Identifier: Apache-2.0 */
/* cddp-bench --fit: does a model fit? The arithmetic of docs/fsdp.md; nothing is run. */
#ifndef BENCH_FIT_H
#define BENCH_FIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What the flags say. */
struct bench_fit {
    const char *model, *optim; /* model NULL: no --fit */
    int units, ranks;          /* 0: none was given */
    size_t memory;             /* bytes of a rank; 0: none was given */
};

struct bench_model {
    uint64_t params, largest; /* largest: parameters of the largest unit */
    int units;
};

/* Fills in *m for a name such as "7B", or with units > 0 for a number of parameters in as many equal units. */
bool bench_fit_model(const char *model, int units, struct bench_model *m);
/* Bytes of the optimizer's state for each parameter of as many bytes; false: no such optimizer. */
bool bench_fit_state(const char *optim, size_t param, size_t *state);
/*
 * Bytes of a rank without activations. stage: 0 (nothing is divided), 1, 2 or 3. param, state: bytes of a parameter and
 * of its state.
 */
uint64_t bench_fit_bytes(const struct bench_model *m, int stage, int ranks, size_t param, size_t state);
/* Prints the table. type: of the parameters, for its heading. False: why has one line. */
bool bench_fit_print(const struct bench_fit *f, const char *type, size_t param, FILE *to, char *why, size_t cap);

#endif
