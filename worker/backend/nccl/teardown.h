/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a communicator, on a thread of its own. ncclCommDestroy, and until NCCL 2.23 ncclCommAbort, come back when
 * all peers of this host have left the communicator too (commFree in init.cc joins the proxy's thread, which ends with
 * its last connection). A rank that waited for that could not leave the next one, for which a peer may wait in turn.
 */
#ifndef CDI_NCCL_TEARDOWN_H
#define CDI_NCCL_TEARDOWN_H

#include "worker/backend/nccl/device.h"
#include "worker/backend/peer_error.h"

/* What such a call needs; made with the communicator, so that leaving wants no memory. */
struct cdi_teardown {
    char name[CDI_WORD_PREFIX_MAX]; /* of the communicator: NCCL keeps the pointer */
    ncclComm_t comm;
    CUcontext context;
    CUdevice device;
    bool aborts;
    struct cdi_teardown *next;
    _Atomic int state;
};

/* NULL: out of memory. Released with cdi_host->release, or given to one of the two below. */
struct cdi_teardown *cdi_teardown_create(void);
/*
 * Destroy comm, which was finalized, and free l. Returns at once; the memory of comm is free when all peers of this
 * host have come as far. At its end the process waits for that, but not for long.
 */
void cdi_teardown_destroy_comm(struct cdi_teardown *l, const struct cdi_device *d, ncclComm_t comm);
/* Abort comm and free l. False: NCCL has not come back within timeout_ms, and what comm uses must stay. */
bool cdi_teardown_abort_comm(struct cdi_teardown *l, const struct cdi_device *d, ncclComm_t comm, int64_t timeout_ms);

#endif
