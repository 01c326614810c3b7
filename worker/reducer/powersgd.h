/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PowerSGD: matrices among the gradients are sent as a product of two narrow ones, and what that leaves out is added to
 * the gradients of the next step. T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient
 * Compression for Distributed Optimization", NeurIPS 2019 (arXiv:1905.13727), in the form that PyTorch's powerSGD_hook
 * has given it. Called with the reducer's lock held, as a part of it. powersgd_state.c saves and loads what a run needs
 * to go on (worker/checkpoint/item.h).
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
    char *fresh; /* another Q, random, to begin with */
    char *error; /* as large as m: what was not sent; NULL: not kept */
    bool has_q;  /* from the step before */
};

/* What there is of a bucket. */
struct cdi_powersgd_packet {
    struct cdi_powersgd_matrix *m;
    size_t n_m;
    struct cdi_slice *plain; /* what lies between the matrices: it is averaged as it is */
    size_t n_plain;
    cddp_dtype dtype;
    /* On the backend: */
    char *sent;  /* plain, then each P */
    char *qs;    /* each Q */
    char *fresh; /* a random one for each, orthonormal */
    char *errors;
    struct cdi_lowrank_matrix *work; /* room for a list of those that something is done with */
    size_t plain_bytes, sent_bytes, q_bytes, error_bytes;
    bool begun; /* in this step */
    uint64_t ticket;
};

struct cdi_powersgd {
    cddp_powersgd_options opt;
    uint64_t since; /* the step in which it was set; less what was done before a checkpoint */
    const struct cdi_backend_ops *ops;
    struct cdi_backend *b;
    struct cdi_mt19937 seeds, after;     /* the same on every rank; after what is drawn in advance */
    bool is_drawn;                       /* there is a fresh Q for each matrix */
    bool has_begun;                      /* in this step: each matrix has its Q */
    struct cdi_powersgd_packet *packets; /* by cdi_bucket.made; those without a matrix have n_m 0 */
    size_t n;
    struct cdi_powersgd_matrix **of_param; /* by parameter; NULL: it is no matrix, or a small one */
};

/* NULL-safe. */
void cdi_powersgd_destroy(struct cdi_powersgd *s);
/* Is this full bucket to be sent by cdi_powersgd_begin in this step? The same answer on every rank. */
bool cdi_powersgd_takes(const cddp_ddp *d, size_t bucket);
/* In place of its all-reduce; never waits for peers. Sticks. */
cddp_status cdi_powersgd_begin(cddp_ddp *d, size_t bucket);
/* All that was begun in this step has arrived: make means of it, by further collectives. Sticks. */
cddp_status cdi_powersgd_complete(cddp_ddp *d);

/* --- powersgd_checkpoint.c */
extern const struct cdi_item_ops cdi_powersgd_item_ops;

#endif
