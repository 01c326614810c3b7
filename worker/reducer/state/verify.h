/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks that all ranks describe the same model. Before a reducer is made, ranks compare their arguments: one
 * all-gather of 104 bytes if they agree, and two more broadcasts if not, so that every rank can name the difference.
 */
#ifndef CDI_REDUCER_VERIFY_H
#define CDI_REDUCER_VERIFY_H

#include "common/buf.h"
#include "worker/comm/comm.h"

/* This rank's arguments, with defaults filled in. The caller keeps the memory. */
struct cdi_verify_input {
    const cddp_param *params; /* validated */
    size_t n_params;
    const size_t *tied; /* by parameter: the first one of the same memory; NULL: none share memory */
    const cddp_param *buffers;
    size_t n_buffers;
    size_t bucket_bytes, first_bucket_bytes, last_bucket_bytes;
    uint32_t flags;
    cddp_dtype comm_dtype;
    bool all_own;         /* this rank's gradients are all in the user's memory; may differ between ranks */
    bool *own_everywhere; /* set to true if it is so on every rank; written on success. May be NULL */
    uint64_t places;      /* the addresses of the gradients, as one number; 0: nowhere in particular. May differ */
    uint64_t nan_check, check_replicas; /* of the environment: nan_check.h, replicas.h */
    bool *same_places; /* set to true if it is equal on every rank, and not 0. Otherwise like own_everywhere */
};

/*
 * Compares `in` with every other rank's: a collective. `local` is an earlier error of this rank, or NULL. With an
 * error, `in` is ignored, and this rank only reports the error to the others and gets it back.
 *
 * Blocks until every rank has called it. Returns CDDP_OK; CDDP_E_MISMATCH, with the same message on every rank; the
 * status of a rank that failed earlier, with its message and number; CDDP_E_NOMEM; or what a collective may return.
 */
cddp_status cdi_verify(cddp_comm *comm, const struct cdi_verify_input *in, const struct cdi_error *local,
                       struct cdi_error *err);

/* The pure part. A parameter without a shape has the shape [count]. */
/*
 * Appends names, types, shapes and ties of all parameters, or buffers, to list. Returns CDDP_OK, CDDP_E_NOMEM or
 * CDDP_E_LIMIT.
 */
cddp_status cdi_verify_encode(struct cdi_buf *list, const cddp_param *params, const size_t *tied, size_t n,
                              bool buffers);
/* Names the first difference between two ranks' lists in err. Returns CDDP_E_MISMATCH, or CDDP_OK if there is none. */
cddp_status cdi_verify_compare(const struct cdi_buf *a, const char *who_a, const struct cdi_buf *b, const char *who_b,
                               struct cdi_error *err);

#endif
