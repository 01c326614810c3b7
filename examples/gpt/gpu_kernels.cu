/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of the model (gpu_kernels.h), compiled for the GPU alone: gpt_embed_f32, gpt_embed_bf16, ... */
#include "gpu_kernels.h"

#define THREAD ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x)
#define KERNEL(kernel, type)                                                                                         \
    extern "C" __global__ void __launch_bounds__(GPU_BLOCK) gpt_##kernel##_##type(const struct gpu_args a)           \
    {                                                                                                                \
        if (THREAD < a.n)                                                                                            \
            gpu_##kernel##_##type(&a, THREAD);                                                                       \
    }
#define ROW_KERNEL(kernel, type)                                                                                     \
    extern "C" __global__ void __launch_bounds__(GPU_BLOCK) gpt_##kernel##_##type(const struct gpu_args a)           \
    {                                                                                                                \
        if (THREAD / GPU_LANES < a.n)                                                                                \
            gpu_##kernel##_##type(&a, THREAD / GPU_LANES, threadIdx.x % GPU_LANES);                                  \
    }
#define KERNELS(kernel) KERNEL(kernel, f32) KERNEL(kernel, bf16)
#define ROW_KERNELS(kernel) ROW_KERNEL(kernel, f32) ROW_KERNEL(kernel, bf16)

GPU_MAP(KERNELS, ROW_KERNELS)
