/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CDDP_CHECK_REPLICAS=N: before the end of every N-th step the ranks compare a hash of all parameters, which are those
 * that the previous steps have made. Only if hashes differ, they exchange one for each parameter. On the host the hash
 * is made while the last buckets are under way. On a device a kernel makes it, with the same bits, and the host waits
 * for 8 bytes per parameter. Without the variable these functions do nothing.
 *
 * With divided parameters the replicas of a share (fsdp/across.c) compare what they have of each parameter, and then
 * all ranks of a group hear the result.
 *
 * A rank that waits in cddp_ddp_join has old parameters: it takes part, but is not compared.
 */
#ifndef CDI_REDUCER_REPLICAS_H
#define CDI_REDUCER_REPLICAS_H

#include "worker/reducer/state/state.h"

/* Reads the variable. CDDP_OK, CDDP_E_INVALID, CDDP_E_NOMEM, errors of the device. */
cddp_status cdi_replicas_init(cddp_ddp *d, struct cdi_error *err);
void cdi_replicas_release(cddp_ddp *d);
/* Returns N, 0: off. */
uint64_t cdi_replicas_period(const cddp_ddp *d);
/*
 * Checks, with the lock held, if it is this step's turn: sets *bad to CDDP_E_MISMATCH if parameters differ, on every
 * rank alike. Waits for the ranks. Returns CDDP_OK, or the sticky error.
 */
cddp_status cdi_replicas_check(cddp_ddp *d, struct cdi_error *bad);

/* What one rank says. */
struct cdi_replica {
    uint64_t hash;
    uint64_t holds; /* 0: it is not compared */
};

/* Returns true if all that are compared are equal. Pure. */
bool cdi_replicas_agree(const struct cdi_replica *of, int n);
/*
 * Writes "rank 3 has other values than ranks 0 to 2": against the values that most ranks have; of several, those of the
 * lowest rank. In a part, each with its ranks of the job; ranks: as in struct cdi_world. Sets *odd to the first rank
 * that differs. Pure.
 */
void cdi_replicas_name(const struct cdi_replica *of, int n, const int *ranks, char *buf, size_t cap, int *odd);

#endif
