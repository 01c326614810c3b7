/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Do all ranks mean the same model? Before a reducer is made, ranks compare what they were given: one all-gather of 88
 * bytes when they agree, and two broadcasts more when they do not, so that every rank can name the difference.
 */
#ifndef CDI_REDUCER_VERIFY_H
#define CDI_REDUCER_VERIFY_H

#include "common/buf.h"
#include "worker/comm/comm.h"

/* What this rank wants to reduce, with defaults filled in. The memory stays the caller's. */
struct cdi_verify_input {
    const cddp_param *params; /* checked */
    size_t n_params;
    const cddp_param *buffers;
    size_t n_buffers;
    size_t bucket_bytes, first_bucket_bytes, last_bucket_bytes;
    uint32_t flags;
    cddp_dtype comm_dtype;
    bool all_own;         /* this rank's gradients are all in memory of its own; may differ between ranks */
    bool *own_everywhere; /* becomes true where it is so on every rank; written on success. May be NULL */
    uint64_t places;      /* where gradients lie, as one number; 0: nowhere in particular. May differ */
    bool *same_places;    /* becomes true where it is equal on every rank, and not 0. As own_everywhere */
};

/*
 * A collective: compare `in` with every other rank's. `local` is what went wrong on this rank before, or NULL: then
 * `in` is not looked at, this rank only tells the others, and gets its own error back.
 *
 * Blocks until every rank has come. CDDP_OK; CDDP_E_MISMATCH, with the same sentence on every rank; the status of a
 * rank that failed before, with its sentence and its number; CDDP_E_NOMEM; what a collective may return.
 */
cddp_status cdi_verify(cddp_comm *comm, const struct cdi_verify_input *in, const struct cdi_error *local,
                       struct cdi_error *err);

/* The pure half. A parameter without a shape has the shape [count]. */
/* Append names, types and shapes of all parameters, or buffers, to list. CDDP_OK, CDDP_E_NOMEM, CDDP_E_LIMIT. */
cddp_status cdi_verify_encode(struct cdi_buf *list, const cddp_param *params, size_t n, bool buffers);
/* Name the first difference between two ranks' lists in err. CDDP_E_MISMATCH, or CDDP_OK if there is none. */
cddp_status cdi_verify_compare(const struct cdi_buf *a, int rank_a, const struct cdi_buf *b, int rank_b,
                               struct cdi_error *err);

#endif
