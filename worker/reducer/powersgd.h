/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PowerSGD: each matrix among the gradients is sent as a product of two narrow ones, and the approximation error is
 * added to the gradients of the next step. T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank
 * Gradient Compression for Distributed Optimization", NeurIPS 2019 (arXiv:1905.13727), in the form of PyTorch's
 * powerSGD_hook. Called with the reducer's lock held. powersgd_checkpoint.c saves and loads the state that a run needs
 * to continue (worker/checkpoint/item.h).
 */
#ifndef CDI_REDUCER_POWERSGD_H
#define CDI_REDUCER_POWERSGD_H

#include "worker/backend/backend.h"
#include "worker/math/lowrank.h"
#include "worker/math/mt19937.h"

struct cdi_item_ops;

struct cdi_powersgd_matrix {
    struct cdi_lowrank of;
    size_t param;
    char *m;     /* in the arena */
    char *p, *q; /* in the bucket's memory */
    char *fresh; /* another, random Q, for initialization */
    char *error; /* as large as m: the part that was not sent; NULL: not kept */
    bool has_q;  /* from the previous step */
};

/* The state of a bucket. */
struct cdi_powersgd_packet {
    struct cdi_powersgd_matrix *m;
    size_t n_m;
    struct cdi_slice *plain; /* the gaps between the matrices, averaged without compression */
    size_t n_plain;
    cddp_dtype dtype;
    /* On the backend: */
    char *sent;  /* plain, then each P */
    char *qs;    /* each Q */
    char *fresh; /* a random one for each matrix, orthonormal */
    char *errors;
    struct cdi_lowrank_matrix *work; /* buffer for a list of matrices to process */
    size_t plain_bytes, sent_bytes, q_bytes, error_bytes;
    bool begun; /* in this step */
    uint64_t ticket;
};

struct cdi_powersgd {
    cddp_powersgd_options opt;
    uint64_t since; /* the step in which it was set, less the steps before a checkpoint */
    const struct cdi_backend_ops *ops;
    struct cdi_backend *b;
    struct cdi_mt19937 seeds, after;     /* the same on every rank; after the numbers that are drawn in advance */
    bool is_drawn;                       /* there is a fresh Q for each matrix */
    bool has_begun;                      /* in this step: each matrix has its Q */
    struct cdi_powersgd_packet *packets; /* by cdi_bucket.made; those without a matrix have n_m 0 */
    size_t n;
    struct cdi_powersgd_matrix **of_param; /* by parameter; NULL: not a matrix, or a small one */
};

/* Frees the state. Accepts NULL. */
void cdi_powersgd_destroy(struct cdi_powersgd *s);
/* Returns true if cdi_powersgd_begin sends this complete bucket in this step. All ranks get the same result. */
bool cdi_powersgd_applies(const cddp_ddp *d, size_t bucket);
/* Sends a bucket, in place of its all-reduce. Never waits for peers. Sets the sticky error. */
cddp_status cdi_powersgd_begin(cddp_ddp *d, size_t bucket);
/*
 * Computes the means of everything begun in this step, by further collectives; the earlier ones are complete. Sets the
 * sticky error.
 */
cddp_status cdi_powersgd_complete(cddp_ddp *d);

/* --- powersgd_checkpoint.c */
extern const struct cdi_item_ops cdi_powersgd_item_ops;

#endif
