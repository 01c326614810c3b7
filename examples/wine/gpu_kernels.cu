/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of the training step (gpu_kernels.h), compiled for the GPU alone: wine_hidden_f32, wine_hidden_f64, ... */
#include "gpu_kernels.h"

#define KERNEL(kernel, threads, type)                                                                                  \
    extern "C" __global__ void __launch_bounds__(WINE_GPU_BLOCK)                                                       \
        wine_kernel_##kernel##_##type(const struct wine_args_##type args)                                              \
    {                                                                                                                  \
        const int n = args.n, i = (int)(blockIdx.x * blockDim.x + threadIdx.x);                                        \
                                                                                                                       \
        if (i < (threads) && n > 0)                                                                                    \
            wine_##kernel##_##type(&args, i);                                                                          \
    }
#define KERNELS(kernel, threads)                                                                                       \
    KERNEL(kernel, threads, f32)                                                                                       \
    KERNEL(kernel, threads, f64)

WINE_GPU_MAP(KERNELS)
