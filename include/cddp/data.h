/* SPDX-License-Identifier: Apache-2.0 */
/* Which samples are of this rank, and metrics over all ranks. */
#ifndef CDDP_DATA_H
#define CDDP_DATA_H

#include <cddp/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --------------------------------------------------------------------------------------------------- metrics ---- */

/*
 * Values with weights, such as the mean losses of batches and how many samples they had. {0} is none; a program may
 * fill in sum and weight itself. It is a plain value without `size`, and never changes.
 */
typedef struct cddp_metric {
    double sum;      /* of value times weight */
    double weight;   /* of all values: their number, where each weighs 1 */
    double min, max; /* of the values, 0 while n is 0; NaN, if one was */
    uint64_t n;      /* values that were added */
} cddp_metric;

/* Adds a value. One thread at a time; NULL is ignored. */
CDDP_API void cddp_metric_add(cddp_metric *m, double value, double weight);
/* Returns sum / weight; NaN while the weight is 0. Any thread. */
CDDP_API double cddp_metric_mean(const cddp_metric *m);
/*
 * Combines metrics over all ranks: all[k] = mine[k] of every rank together, for k in [0, n), in one collective, added
 * in rank order, with the same bits on every rank. ranks (may be NULL) gets world size * n metrics: those of rank r
 * from ranks[r * n] on. all may be mine. Every rank calls it with the same n. Blocks until the numbers are there, since
 * they are for the program's eyes: on a GPU, too, they lie in host memory, and the host waits for what was begun
 * before; so it is for once in a while, and not for every step. Any thread, in the order of all collectives. Returns
 * CDDP_OK; CDDP_E_INVALID; CDDP_E_NOMEM; or what a collective may return.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_metric_reduce(cddp_comm *comm, const cddp_metric *mine, cddp_metric *all,
                                                       size_t n, cddp_metric *ranks);

/* --------------------------------------------------------------------------------------------------- sampler ---- */

/*
 * Which samples belong to this rank: PyTorch's DistributedSampler, index by index. One thread at a time. For NULL in
 * place of a sampler the functions that return a status return CDDP_E_INVALID, the others 0 or NULL.
 */
typedef struct cddp_sampler cddp_sampler;

typedef struct cddp_sampler_options {
    size_t size;    /* sizeof(cddp_sampler_options) */
    int64_t n;      /* samples in the data set, >= 0 */
    int world_size; /* >= 1; cddp_world_size(comm) */
    int rank;       /* 0 .. world_size-1; cddp_rank(comm) */
    int no_shuffle; /* 0: shuffle anew in every epoch */
    int drop_last;  /* 0: pad with the first samples so that all ranks get the same number; 1: drop the tail */
    int64_t seed;   /* the same on every rank; epoch e is shuffled with torch's generator seeded with seed + e */
} cddp_sampler_options;

/*
 * Creates a sampler, which starts at epoch 0. *out is written on success only; release it with cddp_sampler_destroy().
 *
 * Returns CDDP_OK, CDDP_E_INVALID (a value out of range), CDDP_E_NOMEM. No communication.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_sampler_create(cddp_sampler **out, const cddp_sampler_options *opt);
/* Returns the number of samples of this epoch on this rank, the same on every rank; after cddp_sampler_set_state: of
 * the rest of it. */
CDDP_API size_t cddp_sampler_count(const cddp_sampler *sampler);
/* Computes the indices of an epoch, which overwrite those of the previous one. CDDP_OK, CDDP_E_INVALID (epoch < 0). */
CDDP_API cddp_status cddp_sampler_set_epoch(cddp_sampler *sampler, int64_t epoch);
/* Returns the epoch: that of set_epoch, or after cddp_sampler_set_state the saved one. */
CDDP_API int64_t cddp_sampler_epoch(const cddp_sampler *sampler);
/* Returns cddp_sampler_count() indices in [0, n), in the sampler's memory, valid until set_epoch, set_state or destroy.
 */
CDDP_API const int64_t *cddp_sampler_indices(const cddp_sampler *sampler);

/*
 * Takes the next batch: *indices becomes the next `want` of this rank's indices, or fewer at the end of the epoch, and
 * the sampler's place moves past them. Returns how many; 0: the epoch is over, until set_epoch. A program takes its
 * batches with this function or from cddp_sampler_indices(); only this one moves the place that cddp_sampler_get_state
 * stores.
 */
CDDP_API size_t cddp_sampler_next(cddp_sampler *sampler, size_t want, const int64_t **indices);

/*
 * Where a run stands in its data: 64 opaque bytes, the same on every machine (little-endian), for a program's own
 * files; a checkpoint has them by an item of kind CDDP_ITEM_SAMPLER. They do not depend on the rank or on the number of
 * ranks.
 */
typedef struct cddp_sampler_state {
    uint64_t words[8];
} cddp_sampler_state;

/* Writes into *state where the sampler stands. Never fails (for NULL: zeros, which set_state rejects). */
CDDP_API void cddp_sampler_get_state(const cddp_sampler *sampler, cddp_sampler_state *state);
/*
 * Continues from *state, also in the middle of an epoch and with another number of ranks: the rest of the epoch's order
 * is shared among the present ranks as set_epoch shares a whole one (padding comes from the start of the order, and so
 * from samples that were taken before). With as many ranks as before, each gets exactly the rest of its samples.
 * Returns CDDP_OK; CDDP_E_INVALID (no state, or of another format); CDDP_E_MISMATCH (in the middle of an epoch: of
 * another n, seed or no_shuffle, so that its rest is unknown). On failure nothing changes.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_sampler_set_state(cddp_sampler *sampler, const cddp_sampler_state *state);
/* Frees the sampler; NULL is allowed. */
CDDP_API void cddp_sampler_destroy(cddp_sampler *sampler);

#ifdef __cplusplus
}
#endif

#endif
