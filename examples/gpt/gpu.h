/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU that libcddp works on: a stream, the kernels of gpu_kernels.cu, and cuBLAS. The driver and cuBLAS are opened
 * by name at run time, so that the program also runs where there are none. One thread. Functions that can fail return
 * false and keep the first error message in gpu->why.
 */
#ifndef GPT_GPU_H
#define GPT_GPU_H

#include "gpu_kernels.h"
#include "kernels.h" /* struct view's shape */

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

/* X(function, version of CUDA whose variant is meant): the newest since that one which this program knows. */
#define GPU_DRIVER_MAP(X)                 \
    X(cuInit, 2000)                       \
    X(cuGetErrorString, 6000)             \
    X(cuStreamCreateWithPriority, 5050)   \
    X(cuStreamDestroy, 4000)              \
    X(cuStreamSynchronize, 2000)          \
    X(cuEventCreate, 2000)                \
    X(cuEventRecord, 2000)                \
    X(cuEventSynchronize, 2000)           \
    X(cuEventDestroy, 4000)               \
    X(cuMemcpyHtoDAsync, 3020)            \
    X(cuMemcpyDtoHAsync, 3020)            \
    X(cuLibraryLoadData, 12000)           \
    X(cuLibraryUnload, 12000)             \
    X(cuLibraryGetKernel, 12000)          \
    X(cuKernelGetFunction, 12000)         \
    X(cuLaunchKernel, 4000)               \
    X(cuStreamBeginCapture, 10010)        \
    X(cuStreamEndCapture, 10000)          \
    X(cuGraphInstantiateWithFlags, 11040) \
    X(cuGraphLaunch, 10000)               \
    X(cuGraphExecDestroy, 10000)          \
    X(cuGraphDestroy, 10000)

struct cublas; /* cublas.h */

struct gpu {
    void *library;
    struct gpu_driver {
#define X(function, version) __typeof__(&(function)) p_##function;
        GPU_DRIVER_MAP(X)
#undef X
    } cu;
    bool bf16;
    CUstream stream;
    CUgraphExec graph; /* NULL: none */
    CUlibrary image;
    CUfunction function[GPU_N_KERNELS]; /* of the type of the numbers */
    struct cublas *blas;
    char why[400];
};

/* Opens the driver in the context that is current, loads the kernels for bfloat16 or float32, and makes a stream. */
bool gpu_open(struct gpu *g, bool bf16);
/* Waits for the stream and frees everything; a gpu that was not opened is allowed. */
void gpu_close(struct gpu *g);

/* Keeps the first failure. Returns whether it was none. */
bool gpu_ok(struct gpu *g, CUresult result, const char *what);
#define GPU_DO(g, function, ...) gpu_ok(g, (g)->cu.p_##function(__VA_ARGS__), #function)

/* Enqueues a kernel; a->n says how many threads it has, or rows. Does not wait. */
bool gpu_launch(struct gpu *g, enum gpu_kernel kernel, const struct gpu_args *a);
/*
 * Captures what is enqueued on the stream between the first two calls, instead of running it; keep false: forgets it,
 * and returns false. Launch enqueues it all again. Drop before libcddp's reducer is destroyed.
 */
bool gpu_graph_begin(struct gpu *g);
bool gpu_graph_end(struct gpu *g, bool keep);
bool gpu_graph_launch(struct gpu *g);
void gpu_graph_drop(struct gpu *g);
/* Waits until all that was enqueued is done. */
bool gpu_wait(struct gpu *g);

#endif
