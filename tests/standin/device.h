/* SPDX-License-Identifier: Apache-2.0 */
/* For tests on the stand-in: a device with its context, and a kernel of the test, y[i] = a * x[i] + y[i]. */
#ifndef SI_TEST_DEVICE_H
#define SI_TEST_DEVICE_H

#include "standin.h"

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program if the call fails. */
#define CU(call)                                                                     \
    do {                                                                             \
        CUresult cu_rc_ = (call);                                                    \
        const char *cu_name_ = "?";                                                  \
        if (cu_rc_ != CUDA_SUCCESS) {                                                \
            (void)cuGetErrorName(cu_rc_, &cu_name_);                                 \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cu_name_); \
            abort();                                                                 \
        }                                                                            \
    } while (0)

static inline void axpy_thread(const struct standin_thread *t, void *const *args)
{
    const float a = *(const float *)args[0], *x = standin_host(*(float *const *)args[1]);
    float *y = standin_host(*(float *const *)args[2]);
    size_t n = *(const size_t *)args[3], i = (size_t)t->at.x * t->block.x + t->thread.x;

    if (i < n)
        y[i] += a * x[i];
}

static inline void axpy_ranges(const struct standin_thread *grid, void *const *args, struct standin_ranges *r)
{
    size_t n = *(const size_t *)args[3];

    (void)grid;
    standin_reads(r, *(float *const *)args[1], n * sizeof(float));
    standin_writes(r, *(float *const *)args[2], n * sizeof(float));
}

static const struct standin_kernel axpy_kernel = {
    .name = "axpy",
    .n_args = 4,
    .arg_size = {sizeof(float), sizeof(float *), sizeof(float *), sizeof(size_t)},
    .thread = axpy_thread,
    .ranges = axpy_ranges};

struct device {
    CUcontext ctx;
    CUlibrary library;
    CUkernel axpy;
};

/* Runs one thread of a kernel. */
static inline void device_run(CUkernel kernel, CUstream s, void **args)
{
    CU(cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 1, 1, 1, 0, s, args, NULL));
}

/* Returns a kernel of the test, which it registers. */
static inline CUkernel device_kernel(const struct device *d, const struct standin_kernel *k)
{
    CUkernel kernel;

    standin_kernel_register(k);
    CU(cuLibraryGetKernel(&kernel, d->library, k->name));
    return kernel;
}

/* Opens device `ordinal`, with its context current. */
static inline void device_open(struct device *d, int ordinal)
{
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&d->ctx, ordinal));
    CU(cuCtxSetCurrent(d->ctx));
    CU(cuLibraryLoadData(&d->library, "standin", NULL, NULL, 0, NULL, NULL, 0));
    d->axpy = device_kernel(d, &axpy_kernel);
}

static inline void device_close(struct device *d, int ordinal)
{
    CU(cuLibraryUnload(d->library));
    CU(cuCtxSetCurrent(NULL));
    CU(cuDevicePrimaryCtxRelease(ordinal));
}

static inline CUdeviceptr device_floats(size_t n, float value)
{
    unsigned bits;
    CUdeviceptr p;

    __builtin_memcpy(&bits, &value, sizeof bits);
    CU(cuMemAlloc(&p, n * sizeof(float)));
    CU(cuMemsetD32Async(p, bits, n, NULL));
    CU(cuStreamSynchronize(NULL));
    return p;
}

static inline CUstream device_stream(void)
{
    CUstream s;

    CU(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, 0));
    return s;
}

static inline CUevent device_event(void)
{
    CUevent e;

    CU(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    return e;
}

/* y += a * x on the stream. */
static inline void device_axpy(struct device *d, float a, CUdeviceptr x, CUdeviceptr y, size_t n, CUstream s)
{
    void *args[] = {&a, &x, &y, &n};

    CU(cuLaunchKernel((CUfunction)d->axpy, (unsigned)((n + 63) / 64), 1, 1, 64, 1, 1, 0, s, args, NULL));
}

/* Returns what can be launched. */
static inline CUgraphExec device_instantiate(CUgraph graph)
{
    CUgraphExec exec;

    CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CU(cuGraphDestroy(graph));
    return exec;
}

/* Ends a capture of the stream. */
static inline CUgraphExec device_end_capture(CUstream s)
{
    CUgraph graph;

    CU(cuStreamEndCapture(s, &graph));
    return device_instantiate(graph);
}

#endif
