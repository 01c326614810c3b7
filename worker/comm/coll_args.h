/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From what the program says (cddp_coll_args) to what the backend does (cdi_coll). Arguments are checked here and
 * nowhere else. Pure.
 */
#ifndef CDI_COMM_COLL_ARGS_H
#define CDI_COMM_COLL_ARGS_H

#include "worker/backend/backend.h"

/*
 * What an operation does not use is zero: it may get a meaning in a later version. For what a program has written;
 * cdi_coll_ops asks by itself. CDDP_E_INVALID.
 */
cddp_status cdi_coll_check_unused(const cddp_coll_args *a, struct cdi_error *err);
/* Is it made of others? Of what is no collective: no. */
bool cdi_coll_is_made(const cddp_coll_args *a);
/*
 * The operation of a collective that is not made of others, outside of a group. Neither lazy nor asked is set.
 * CDDP_E_INVALID.
 */
cddp_status cdi_coll_op(const struct cdi_world *w, const cddp_coll_args *a, struct cdi_coll *op, struct cdi_error *err);

/* What a group becomes. Zeroed by its owner; cdi_coll_release frees it, also after an error. */
struct cdi_coll_ops {
    struct cdi_coll *ops;
    size_t n; /* may be 0 */
};

/*
 * Any group; counts stay the caller's. gather, scatter and all_to_allv become messages after a BARRIER, reduce_scatterv
 * reductions, one for each rank, and an all_gatherv with offsets broadcasts. CDDP_E_INVALID (of several, "args[2]"
 * stands before the reason), CDDP_E_NOMEM.
 */
cddp_status cdi_coll_ops(const struct cdi_world *w, const cddp_coll_args *args, size_t n, struct cdi_coll_ops *out,
                         struct cdi_error *err);
void cdi_coll_release(struct cdi_coll_ops *ops);
/* How many of n > 0 operations, from the first one on, enqueue_group takes as one: collectives, or messages. */
size_t cdi_coll_part(const struct cdi_coll *ops, size_t n);

#endif
