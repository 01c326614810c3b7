/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replicas of a sharded group (HSDP). When a reduce-scatter has made the group's mean of a share, the ranks with the
 * same share make the mean over the groups, in their own communicator, in the order of the reduce-scatters.
 *
 * On a device streams wait for each other. On the host the first call of the program after the end of a reduce-scatter
 * begins it: so no thread of one communicator waits for another one. Without replicas these functions do nothing. With
 * the reducer's lock, except for creation.
 */
#ifndef CDI_FSDP_ACROSS_H
#define CDI_FSDP_ACROSS_H

#include "worker/reducer/state/state.h"

struct cdi_across {
    cddp_comm *comm; /* NULL: there are no replicas */
    cddp_ddp *ddp;
    size_t *bucket;  /* those whose reduce-scatter was begun in this step, in this order */
    size_t n, begun; /* of these, and of the means over the groups, which have begun for the first ones */
    uint64_t ticket; /* of the last such mean; 0: none yet */
};

/*
 * Checks that all ranks of comm have `replicas`, or none (NULL). If they differ, every rank of comm, and every one that
 * would wait for one of these, gets the same CDDP_E_MISMATCH; the communicators on the way there are ended, but not
 * that of the ranks that differ. A collective of both. Returns also what a collective may return.
 */
cddp_status cdi_across_check(cddp_comm *comm, cddp_comm *replicas, struct cdi_error *err);
/*
 * Checks that comm and replicas are rows and columns of one grid of ranks, and that all replicas describe the same
 * model (a hash). A collective of both; `alone` is CDDP_OK, or the error that all ranks of comm have, also those
 * without replicas: then it is a collective of `replicas` alone. *goes_on: the ranks of `replicas` expect each other in
 * cdi_across_share, whatever this returns.
 */
cddp_status cdi_across_meet(cddp_comm *comm, cddp_comm *replicas, uint64_t model, cddp_status alone, bool *goes_on,
                            struct cdi_error *err);
/*
 * Ends creation: gives all replicas the first values of the first one. A collective of `replicas`; `alone` as above,
 * and with an error d may be NULL.
 */
cddp_status cdi_across_share(struct cdi_across *a, cddp_comm *replicas, cddp_ddp *d, cddp_status alone,
                             struct cdi_error *err);
/* Waits for operations that have begun, and frees. The replicas may be gone. */
void cdi_across_release(struct cdi_across *a);

/* Notes that the reduce-scatter of a bucket was begun. */
void cdi_across_note(struct cdi_across *a, size_t bucket);
/* Begins what can begin; never waits. Sets the sticky error. */
cddp_status cdi_across_advance(struct cdi_across *a);
/* For the end of a step: waits until all shares have the mean over all ranks. On a device no host waits. */
cddp_status cdi_across_settle(void *across);

#endif
