/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of the training step on a GPU: what one thread of each does, in float and in double (gpu_bodies.h). The
 * same text is compiled by nvcc, and by a C compiler for tests on the host. Sums are made in the order of train_real.h,
 * so that results differ from the CPU's only by what exp and log differ.
 */
#ifndef WINE_GPU_KERNELS_H
#define WINE_GPU_KERNELS_H

#include "data.h"

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define WINE_BODY static __host__ __device__ __forceinline__
#else
#define WINE_BODY static inline
#endif

#define IN WINE_FEATURES
#define HIDDEN WINE_HIDDEN
#define OUT WINE_CLASSES

#define WINE_GPU_BLOCK 128 /* threads of a block */

/* X(kernel, its threads for a step on n samples); each thread makes one value. Nothing in a step waits for the host. */
#define WINE_GPU_MAP(X)  \
    X(hidden, n *HIDDEN) \
    X(output, n) X(second, OUT *HIDDEN + OUT + 1) X(first, HIDDEN *IN + HIDDEN) X(adam, WINE_WEIGHTS)

enum wine_kernel {
#define X(kernel, threads) WINE_##kernel,
    WINE_GPU_MAP(X)
#undef X
        WINE_N_KERNELS
};

#define REAL float
#define NAME(x) x##_f32
#define EXP expf
#define LOG logf
#define SQRT sqrtf
#include "gpu_bodies.h"
#undef REAL
#undef NAME
#undef EXP
#undef LOG
#undef SQRT

#define REAL double
#define NAME(x) x##_f64
#define EXP exp
#define LOG log
#define SQRT sqrt
#include "gpu_bodies.h"
#undef REAL
#undef NAME
#undef EXP
#undef LOG
#undef SQRT

#endif
