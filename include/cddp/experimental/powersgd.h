/* SPDX-License-Identifier: Apache-2.0 */
/* PowerSGD: gradients are sent as products of small matrices. */
#ifndef CDDP_EXPERIMENTAL_POWERSGD_H
#define CDDP_EXPERIMENTAL_POWERSGD_H

#ifndef CDDP_EXPERIMENTAL
#error "this may change in any version: define CDDP_EXPERIMENTAL to use it"
#endif

#include <cddp/ddp.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------- experimental PowerSGD ---- */

typedef struct cddp_powersgd_options {
    size_t size;         /* sizeof(cddp_powersgd_options) */
    size_t matrix_rank;  /* columns of P and of Q, at most: more approximate better, and cost more; 0: 1 */
    uint64_t start_step; /* that many steps are averaged as they are before; 0: 1000 */
    /* Compress what has more than this many times the elements of its P and Q; 0: 2. Below 1: also what grows. */
    double min_compression_rate;
    double orthogonalization_epsilon; /* is added to a column's length before the division by it */
    uint32_t seed;                    /* of the first Qs */
    uint32_t flags;                   /* CDDP_POWERSGD_... below */
} cddp_powersgd_options;

/* cddp_powersgd_options.flags. */
enum {
    /* Do not add to the gradients of a step what the one before has left out. */
    CDDP_POWERSGD_NO_ERROR_FEEDBACK = 1,
    /* Begin with a random Q in each step, not with that of the step before. On a GPU the host, which draws it, waits.
     */
    CDDP_POWERSGD_NO_WARM_START = 2
};

/*
 * Makes the reducer communicate by PowerSGD, PyTorch's powerSGD_hook (T. Vogels and others, "PowerSGD: Practical
 * Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019, arXiv:1905.13727): a gradient of n x m
 * elements (n: the first size of its shape, m: the rest) becomes P Q^T of n x rank and m x rank, all that is sent, in
 * two collectives for each bucket; the part that this leaves out is added to the same rank's gradient of the next step.
 * Gradients without a shape, small ones, and those of 16 bits are averaged as they are. Numbers are those of PyTorch
 * within rounding, from the same seed; all ranks get the same bits. Differences: a column of zeros, or one that depends
 * on those before it, stays zeros, and the next step begins with the first, random Q again, where PyTorch makes NaNs or
 * noise of it; a NaN or an infinity does not stay in what is left out; start_step may be 1.
 *
 * On a GPU all of it is work of the communication stream, to the CPU's bits where the means are, and the host waits for
 * nothing; but with CDDP_DDP_FIND_UNUSED it waits in every step.
 *
 * It takes as much memory again as the gradients that it compresses. It begins with nothing left out; what a run needs
 * to go on after a checkpoint is loaded (CDDP_ITEM_DDP). cddp_ddp_wait_param() cannot be used with it. opt may be NULL.
 * A collective, between two steps: every rank calls it, with equal options. cddp_ddp_set_hook(ddp, NULL) ends it. One
 * thread. Returns CDDP_OK; CDDP_E_INVALID (bad options, a reducer that compresses, sums, splits or skips);
 * CDDP_E_MISMATCH (ranks have different options); CDDP_E_STATE (in the middle of a step, or bucket sizes are still
 * being tried); CDDP_E_UNSUPPORTED (parameters are frozen: cddp_ddp_set_frozen); CDDP_E_NOMEM; or what a collective may
 * return. If it fails on one rank it fails on all, and nothing has changed.
 */
CDDP_API CDDP_NODISCARD cddp_status cddp_ddp_set_powersgd(cddp_ddp *ddp, const cddp_powersgd_options *opt);

#ifdef __cplusplus
}
#endif

#endif
