/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One GPU as a rank uses it: its primary context, two streams, the kernels, memory and copies. Functions want the
 * context to be current (cdi_device_enter), except where they say otherwise.
 */
#ifndef CDI_NCCL_DEVICE_H
#define CDI_NCCL_DEVICE_H

#include "worker/backend/nccl/kernels/kernel.h"
#include "worker/backend/nccl/library.h"
#include "worker/backend/nccl/pinned_blocks.h"

struct cdi_device {
    cddp_device_info info;
    CUdevice id;
    CUuuid uuid;               /* tells MIG instances of one GPU apart, which share its PCI address */
    CUcontext context;         /* NULL: not open */
    bool retained;             /* by this struct; a copy for a part of the communicator has not */
    CUstream stream;           /* communication, of the highest priority */
    CUstream side;             /* copies of the caller's that nothing else orders */
    CUstream captured;         /* only ever used while the program captures a graph */
    struct cdi_blocks *blocks; /* for copies */
    CUlibrary library;
    CUfunction kernel[CDI_N_KERNELS];
    uint32_t n_sm;
    int capability; /* 90 is 9.0 */
};

/*
 * Which of n_visible devices: the one that the program asked for, the only one, or that of the local rank. share: more
 * ranks than devices is meant. Pure. CDDP_E_INVALID (there is no such device; the sentence says how many there are).
 */
cddp_status cdi_device_choose(const struct cdi_world *world, int n_visible, bool share, int *device,
                              struct cdi_error *err);

/* Open the device that is this rank's; its context is then current in the calling thread. */
cddp_status cdi_device_open(struct cdi_device *d, const struct cdi_world *world, bool share, struct cdi_error *err);
/* The same device for another communicator: streams and kernels of its own. */
cddp_status cdi_device_open_same(struct cdi_device *d, const struct cdi_device *of, struct cdi_error *err);
/* Free all; what runs on the streams must have ended. Safe on a zeroed struct, any state of opening, any thread. */
void cdi_device_close(struct cdi_device *d);

/*
 * Make the context current in this thread, and what was before again; in between, nothing that this thread calls ends a
 * graph capture of the program's (queries, waits, allocations would). Calls may be nested, up to 32 deep. Any thread.
 * CDDP_OK, or CDDP_E_SYSTEM: the context is not current, as after cudaDeviceReset, so nothing may be done that another
 * one would take for its own. Either way a leave belongs to it, which then leaves the program's contexts alone.
 */
cddp_status cdi_device_enter(const struct cdi_device *d, struct cdi_error *err);
void cdi_device_leave(const struct cdi_device *d);
/* The same at half the price, for what only puts work on streams: CUDA allows that beside any capture. */
cddp_status cdi_device_enter_briefly(const struct cdi_device *d, struct cdi_error *err);
void cdi_device_leave_briefly(const struct cdi_device *d);

/*
 * For several calls in a row of one thread, in which no code of the program's runs: between hold and let_go entering
 * the device costs no call of the driver. Not to be nested. CDDP_OK: let go later. CDDP_E_SYSTEM: nothing has happened.
 */
cddp_status cdi_device_hold(const struct cdi_device *d, struct cdi_error *err);
void cdi_device_let_go(const struct cdi_device *d);

/* From now on, or no longer, launches of this thread are part of the graph that d->captured is captured into. */
void cdi_device_capture(const struct cdi_device *d, bool begins);
/* Where this thread's launches go: the communication stream, or d->captured. */
CUstream cdi_device_stream(const struct cdi_device *d);

/* Put a launch on that stream. A grid of 0 is nothing to do. */
cddp_status cdi_device_launch(const struct cdi_device *d, struct cdi_launch *launch, struct cdi_error *err);

/*
 * Is it this GPU's memory, or managed memory? Else it is the host's, pinned or not. NULL is the host's. Any thread,
 * with the context current. CDDP_OK; and with *on_device true, since nobody may take it for the host's: CDDP_E_INVALID
 * (another GPU's, of which the sentence names both, or of another context, out of reach of this one's kernels),
 * CDDP_E_SYSTEM (the driver does not say, as after a fault of the GPU).
 */
cddp_status cdi_device_owns(const struct cdi_device *d, const void *p, bool *on_device, struct cdi_error *err);

/* Device memory as a pointer, and back. */
static inline CUdeviceptr cdi_device_ptr(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

#endif
