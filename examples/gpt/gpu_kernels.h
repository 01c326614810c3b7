/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of the model on a GPU: what one thread of each does, or one warp for a row (gpu_bodies.h), in float32 and
 * in bfloat16. The same text is compiled by nvcc, and by a C compiler for tests on the host. All sums are made in
 * float32 or float64 and in a fixed order, so that a run gives the same bits again.
 */
#ifndef GPT_GPU_KERNELS_H
#define GPT_GPU_KERNELS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define GPU_BLOCK 256 /* threads of a block */
#define GPU_LANES 32  /* threads that share a row */
#define GPU_CHUNKS 64 /* partial sums of a column */
#define GPU_EPS 1e-5f /* of the layer norm */
#define GPU_BETA1 0.9 /* of AdamW */
#define GPU_ADAM_EPS 1e-8

/* Memory of the device, and how much of it a kernel uses. */
struct gpu_span {
    void *at;
    uint64_t bytes;
};

/* Every kernel takes this struct by value; gpu_bodies.h says what each has where. */
struct gpu_args {
    struct gpu_span in[4], out[4];
    uint64_t n; /* threads, or rows of a warp each */
    uint32_t rows, width, time, add;
    float scale;
    double decay, beta2; /* of AdamW */
};

/* At the start of the device's memory for input; the tokens follow. */
struct gpu_step {
    double lr;
    uint64_t step; /* from 1 */
};

/* What AdamW's element needs in a step: for tensors that do not decay, and for those that do. */
struct gpu_adam {
    float step_size, correction, shrink, take_m, take_v, keep_v;
};

/* X(kernel): a thread makes one element. Y(kernel): a warp makes one row. */
/* clang-format off */
#define GPU_MAP(X, Y)                                                                             \
    X(embed) X(bias) X(bias_gelu) X(bias_plus) X(gelu_back) X(bias_columns) X(norm_columns)       \
    X(columns) X(place_back) X(one_hot) X(adam_now) X(adam)                                       \
    Y(norm) Y(norm_back) Y(causal) Y(causal_back) Y(entropy) Y(total)
/* clang-format on */

enum gpu_kernel {
#define X(kernel) GPU_##kernel,
    GPU_MAP(X, X)
#undef X
        GPU_N_KERNELS
};

#ifdef __CUDACC__
#define GPU_BODY static __device__ __forceinline__
#else
#define GPU_BODY static inline
#endif

GPU_BODY float gpu_widen(uint16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float wide;

    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* To the nearest, ties to even; a NaN stays one. */
GPU_BODY uint16_t gpu_round(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    if (x != x)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Multiplications alone: every processor has its own pow. */
GPU_BODY double gpu_power(double x, uint64_t n)
{
    double product = 1;

    for (; n > 0; n >>= 1) {
        if ((n & 1) != 0)
            product *= x;
        x *= x;
    }
    return product;
}

/* (1 + tanh(u)) / 2 of GELU, as in kernels_cpu.c. */
GPU_BODY float gpu_gate(float x)
{
    return 1 / (1 + expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
}

/*
 * A row: GPU_EACH runs over its elements, GPU_SUM and GPU_MAX give the sum and the largest of a term over them to all
 * lanes. On the host one thread does the work of all lanes, and adds in their order.
 */
#ifdef __CUDACC__
template <typename T> GPU_BODY T gpu_fold(T x)
{
    for (int o = GPU_LANES / 2; o > 0; o /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}
GPU_BODY float gpu_largest(float x)
{
    for (int o = GPU_LANES / 2; o > 0; o /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}
#define GPU_EACH(i, n) for (uint32_t i = lane; i < (n); i += GPU_LANES)
#define GPU_SUM(type, sum, i, n, term) \
    do {                               \
        type part_ = 0;                \
        GPU_EACH(i, n)                 \
        part_ += (term);               \
        (sum) = gpu_fold(part_);       \
    } while (0)
#define GPU_LARGEST(x) gpu_largest(x)
#define GPU_FIRST_LANE (lane == 0)
#else
#define GPU_EACH(i, n) for (uint32_t i = 0; i < (n); i++)
#define GPU_SUM(type, sum, i, n, term)                     \
    do {                                                   \
        type part_[GPU_LANES] = {0};                       \
        GPU_EACH(i, n)                                     \
        part_[i % GPU_LANES] += (term);                    \
        for (uint32_t o_ = GPU_LANES / 2; o_ > 0; o_ /= 2) \
            for (uint32_t l_ = 0; l_ < o_; l_++)           \
                part_[l_] += part_[l_ + o_];               \
        (sum) = part_[0];                                  \
    } while (0)
#define GPU_LARGEST(x) (x) /* one lane has seen all */
#define GPU_FIRST_LANE 1
#endif
#define GPU_MAX(max, i, n, term)      \
    do {                              \
        float part_ = -INFINITY;      \
        GPU_EACH(i, n)                \
        part_ = fmaxf(part_, (term)); \
        (max) = GPU_LARGEST(part_);   \
    } while (0)

#define NUM float
#define GET(x) (x)
#define PUT(x) (x)
#define NAME(x) x##_f32
#include "gpu_bodies.h"
#undef NUM
#undef GET
#undef PUT
#undef NAME

#define NUM uint16_t
#define GET(x) gpu_widen(x)
#define PUT(x) gpu_round(x)
#define NAME(x) x##_bf16
#include "gpu_bodies.h"
#undef NUM
#undef GET
#undef PUT
#undef NAME

#endif
