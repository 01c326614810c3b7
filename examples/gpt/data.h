/* SPDX-License-Identifier: Apache-2.0 */
/* The text, and which pieces of it are trained on in a step. */
#ifndef GPT_DATA_H
#define GPT_DATA_H

#include <cddp/cddp.h>
#include <stdbool.h>

/*
 * The text is cut into windows of `context` tokens, which an epoch takes in a random order, the same for any number of
 * ranks: step k of an epoch has the windows k * batch .. (k + 1) * batch - 1 of that order, each rank an equal share of
 * them. So the number of the step alone says where a run stands in its data.
 */
struct data {
    uint8_t *text;
    size_t n, n_train; /* bytes; the rest is held out */
    uint64_t digest;   /* of all bytes: FNV-1a */
    size_t context;
    size_t share;          /* windows of a step on this rank */
    size_t epoch_steps;    /* steps of an epoch */
    size_t held_out;       /* windows of the held-out part */
    cddp_sampler *sampler; /* stands at `epoch` */
    int64_t epoch;
};

/*
 * Reads `path` (NULL: data/kjv.txt beside the program) and prepares steps of `batch` windows over all ranks of comm,
 * which divides them evenly. False: `why` names the file and the error. Release it in any case.
 */
bool data_open(struct data *d, cddp_comm *comm, const char *path, size_t context, size_t batch, int64_t seed, char *why,
               size_t cap);
void data_release(struct data *d);

/* Copies n windows of this rank's share of a step, from number `first` on: tokens, and for each the one that follows.
 */
cddp_status data_take(struct data *d, int64_t step, size_t first, size_t n, uint8_t *tokens, uint8_t *targets);
/* The same for one window of the held-out part. */
void data_held_out(const struct data *d, size_t window, uint8_t *tokens, uint8_t *targets);

#endif
