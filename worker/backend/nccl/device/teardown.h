/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a communicator, in a separate thread. ncclCommDestroy, and until NCCL 2.23 ncclCommAbort, return only when
 * all peers of this node have left the communicator (commFree in init.cc joins the proxy's thread, which ends with its
 * last connection). A rank that waited for that could not leave the next communicator, for which a peer may wait in
 * turn.
 */
#ifndef CDI_NCCL_TEARDOWN_H
#define CDI_NCCL_TEARDOWN_H

#include "worker/backend/nccl/device/device.h"
#include "worker/backend/peer_error.h"

/* The arguments of such a call; allocated with the communicator, so that its end needs no memory. */
struct cdi_teardown {
    char name[CDI_PEER_ERROR_PREFIX_MAX]; /* of the communicator: NCCL keeps the pointer */
    ncclComm_t comm;
    CUcontext context;
    CUdevice device;
    bool aborts;
    struct cdi_teardown *next;
    _Atomic int state;
};

/* Returns NULL if out of memory. Release it with cdi_host->release, or pass it to one of the functions below. */
struct cdi_teardown *cdi_teardown_create(void);
/*
 * Destroys comm, which was finalized, and frees l. Returns at once; the memory of comm is free when all peers of this
 * node have come as far. At exit the process waits for that, but not for long.
 */
void cdi_teardown_destroy_comm(struct cdi_teardown *l, const struct cdi_device *d, ncclComm_t comm);
/*
 * Aborts comm and frees l. Returns false if NCCL has not returned within timeout_ms; then all that comm uses must stay.
 */
bool cdi_teardown_abort_comm(struct cdi_teardown *l, const struct cdi_device *d, ncclComm_t comm, int64_t timeout_ms);

#endif
