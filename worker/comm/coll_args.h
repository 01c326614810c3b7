/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the arguments of the program (cddp_coll_args) to operations of the backend (cdi_coll). Arguments are checked
 * here and nowhere else. Pure.
 */
#ifndef CDI_COMM_COLL_ARGS_H
#define CDI_COMM_COLL_ARGS_H

#include "worker/backend/backend.h"

/*
 * Checks that members which the operation does not use are zero, since a later version may give them a meaning. For the
 * arguments of a program; cdi_coll_ops() calls it itself. CDDP_E_INVALID.
 */
cddp_status cdi_coll_check_unused(const cddp_coll_args *a, struct cdi_error *err);
/* Is the collective made of others? False for an unknown collective. */
bool cdi_coll_is_made(const cddp_coll_args *a);
/*
 * Sets *op to the operation of a collective that is not made of others, outside a group. Sets neither lazy nor asked.
 * CDDP_E_INVALID.
 */
cddp_status cdi_coll_op(const struct cdi_world *w, const cddp_coll_args *a, struct cdi_coll *op, struct cdi_error *err);

/* The operations of a group. Its owner zeroes it; cdi_coll_release() frees it, also after an error. */
struct cdi_coll_ops {
    struct cdi_coll *ops;
    size_t n; /* may be 0 */
};

/*
 * Makes the operations of any group; counts stay the caller's. gather, scatter and all_to_allv become messages after a
 * BARRIER; reduce_scatterv becomes one reduction for each rank; an all_gatherv with offsets becomes broadcasts.
 * CDDP_E_INVALID (with several arguments the message begins with "args[2]"), CDDP_E_NOMEM.
 */
cddp_status cdi_coll_ops(const struct cdi_world *w, const cddp_coll_args *args, size_t n, struct cdi_coll_ops *out,
                         struct cdi_error *err);
/* Frees the operations, not *ops itself. */
void cdi_coll_release(struct cdi_coll_ops *ops);
/* Returns how many of n > 0 operations, from the first one on, form one group: either collectives or messages. */
size_t cdi_coll_part(const struct cdi_coll *ops, size_t n);

#endif
