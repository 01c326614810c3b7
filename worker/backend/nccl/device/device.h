/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU of a rank: its primary context, streams, kernels, and memory. The context must be current (cdi_device_enter),
 * except where a comment says otherwise.
 */
#ifndef CDI_NCCL_DEVICE_H
#define CDI_NCCL_DEVICE_H

#include "worker/backend/nccl/device/library.h"
#include "worker/backend/nccl/device/pinned_blocks.h"
#include "worker/backend/nccl/kernels/kernel.h"

struct cdi_device {
    cddp_device_info info;
    CUdevice id;
    CUuuid uuid;               /* distinguishes MIG instances of one GPU, which share its PCI address */
    CUcontext context;         /* NULL: not open */
    bool retained;             /* by this struct; not by its copy for a subcommunicator */
    CUstream stream;           /* communication, of the highest priority */
    CUstream side;             /* copies of the caller's, without another order */
    CUstream captured;         /* used only while the program captures a graph */
    struct cdi_blocks *blocks; /* for copies */
    CUlibrary library;
    CUfunction kernel[CDI_N_KERNELS];
    uint32_t n_sm;
    int capability; /* 90 is 9.0 */
};

/*
 * Chooses one of n_visible devices: the one that the program has named, the only one, or that of the local rank. share:
 * more ranks than devices are intended. Pure. CDDP_E_INVALID (there is no such device; the error message has their
 * number).
 */
cddp_status cdi_device_choose(const struct cdi_world *world, int n_visible, bool share, int *device,
                              struct cdi_error *err);

/* Opens the device of this rank; its context is then current in the calling thread. */
cddp_status cdi_device_open(struct cdi_device *d, const struct cdi_world *world, bool share, struct cdi_error *err);
/* Opens the same device for another communicator, with its own streams and kernels. */
cddp_status cdi_device_open_same(struct cdi_device *d, const struct cdi_device *of, struct cdi_error *err);
/*
 * Frees everything; the work on the streams has ended. Safe on a zeroed struct, in any state of opening, in any thread.
 */
void cdi_device_close(struct cdi_device *d);

/*
 * Enter makes the context current in this thread; leave restores the previous one. In between, no call of this thread
 * ends a graph capture of the program (queries, waits, allocations would). Calls may be nested, up to 32 deep. Any
 * thread. Returns CDDP_OK, or CDDP_E_SYSTEM: the context cannot be made current, for example after cudaDeviceReset, so
 * that nothing may be done that another context would take for its own. In either case call leave, which then leaves
 * the program's contexts alone.
 */
cddp_status cdi_device_enter(const struct cdi_device *d, struct cdi_error *err);
void cdi_device_leave(const struct cdi_device *d);
/* The same at half the cost, to enqueue work on streams only: CUDA allows that beside any capture. */
cddp_status cdi_device_enter_briefly(const struct cdi_device *d, struct cdi_error *err);
void cdi_device_leave_briefly(const struct cdi_device *d);

/*
 * For several calls in a row of one thread, during which no code of the program runs: between hold and let_go entering
 * the device costs no call of the driver. Not nested. After CDDP_OK, call let_go. CDDP_E_SYSTEM: nothing has changed.
 */
cddp_status cdi_device_hold(const struct cdi_device *d, struct cdi_error *err);
void cdi_device_let_go(const struct cdi_device *d);

/* Makes later launches of this thread part of the graph that d->captured captures, or ends that. */
void cdi_device_capture(const struct cdi_device *d, bool begins);
/* Returns the stream of this thread's launches: the communication stream, or d->captured. */
CUstream cdi_device_stream(const struct cdi_device *d);

/* Enqueues a launch on that stream, or on a given one. A grid of 0 launches nothing. */
cddp_status cdi_device_launch(const struct cdi_device *d, struct cdi_launch *launch, struct cdi_error *err);
cddp_status cdi_device_launch_on(const struct cdi_device *d, CUstream stream, struct cdi_launch *launch,
                                 struct cdi_error *err);

/*
 * Finds out whether p is memory of this GPU, or managed memory. Otherwise it is host memory, pinned or not; NULL counts
 * as host memory. Any thread, with the context current. Returns CDDP_OK, or, with *on_device true so that no caller
 * takes the memory for the host's: CDDP_E_INVALID (memory of another GPU, named in the error message with this one, or
 * of another context, out of reach of this one's kernels), CDDP_E_SYSTEM (the driver does not answer, for example after
 * a fault of the GPU).
 */
cddp_status cdi_device_owns(const struct cdi_device *d, const void *p, bool *on_device, struct cdi_error *err);

/* Returns device memory as the driver's type. */
static inline CUdeviceptr cdi_device_ptr(const void *p)
{
    return (CUdeviceptr)(uintptr_t)p;
}

#endif
