/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu_delay.h"

static __device__ uint64_t now_ns(void)
{
    uint64_t ns;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

extern "C" __global__ void bench_delay(const struct gpu_delay_args args)
{
    const uint64_t from = now_ns();

    while (now_ns() - from < args.ns)
        __nanosleep(200);
}
