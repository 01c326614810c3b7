/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver for programs that run on a GPU without libcddp: opened at run time, in the same way as in libcddp
 * (CDDP_CUDA_LIBRARY, otherwise libcuda.so.1), so that they build and run with the stand-in too. A failure ends the
 * program with one line on stderr and status 1; without a GPU the status is 77.
 */
#ifndef CDI_TEST_CARD_H
#define CDI_TEST_CARD_H

#include "worker/backend/nccl/kernels/kernel.h"

#include <cuda.h>

/* X(function, the version of CUDA of the variant) */
#define CARD_MAP(X)                       \
    X(cuInit, 2000)                       \
    X(cuDriverGetVersion, 2020)           \
    X(cuGetErrorString, 6000)             \
    X(cuDeviceGetCount, 2000)             \
    X(cuDeviceGet, 2000)                  \
    X(cuDeviceGetName, 2000)              \
    X(cuDeviceGetAttribute, 2000)         \
    X(cuDevicePrimaryCtxRetain, 7000)     \
    X(cuDevicePrimaryCtxRelease, 11000)   \
    X(cuCtxSetCurrent, 4000)              \
    X(cuStreamCreateWithPriority, 5050)   \
    X(cuStreamDestroy, 4000)              \
    X(cuStreamSynchronize, 2000)          \
    X(cuStreamWaitEvent, 3020)            \
    X(cuStreamBeginCapture, 10010)        \
    X(cuStreamEndCapture, 10000)          \
    X(cuGraphInstantiateWithFlags, 11040) \
    X(cuGraphLaunch, 10000)               \
    X(cuGraphExecDestroy, 10000)          \
    X(cuGraphDestroy, 10000)              \
    X(cuEventCreate, 2000)                \
    X(cuEventDestroy, 4000)               \
    X(cuEventRecord, 2000)                \
    X(cuEventSynchronize, 2000)           \
    X(cuEventElapsedTime, 2000)           \
    X(cuMemAlloc, 3020)                   \
    X(cuMemFree, 3020)                    \
    X(cuMemsetD8Async, 3020)              \
    X(cuMemcpyHtoDAsync, 3020)            \
    X(cuMemcpyDtoHAsync, 3020)            \
    X(cuLibraryLoadData, 12000)           \
    X(cuLibraryUnload, 12000)             \
    X(cuLibraryGetKernel, 12000)          \
    X(cuKernelGetFunction, 12000)         \
    X(cuLaunchKernel, 4000)

struct card {
    void *library;
#define X(function, version) __typeof__(&(function)) p_##function;
    CARD_MAP(X)
#undef X
    int driver_version; /* 13000 */
    CUdevice device;
    char name[96];
    uint32_t n_sm;
    CUlibrary image; /* the project's kernels */
    CUfunction function[CDI_N_KERNELS];
    CUstream stream;
};

/* Opens the driver and, on this device, whose primary context becomes current, a stream and the project's kernels. */
void card_open(struct card *c, int device);
void card_close(struct card *c);

/* Ends the program unless r is CUDA_SUCCESS. */
void card_check(const struct card *c, CUresult r, const char *what);
#define CARD(c, function, ...) card_check(c, (c)->p_##function(__VA_ARGS__), #function)

/* Prints "cannot ..." on stderr, and exits with status 1. */
_Noreturn void card_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Opens a library: the variable's value, otherwise `name`; ends the program if there is none. */
void *card_library(const char *variable, const char *name, int status);
/* Returns the function; never NULL. */
void *card_symbol(void *library, const char *name);

/* Launches one of the project's kernels on a stream; a grid of 0 does nothing. */
void card_launch(const struct card *c, CUstream stream, const struct cdi_launch *launch);

#endif
