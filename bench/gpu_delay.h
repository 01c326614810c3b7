/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel that only takes time, in one thread of each block: what a wire would take, where there is none. nvcc
 * includes this file, too.
 */
#ifndef CDI_BENCH_GPU_DELAY_H
#define CDI_BENCH_GPU_DELAY_H

#include <stdint.h>

#define GPU_DELAY_KERNEL "bench_delay"

/* Its one argument. */
struct gpu_delay_args {
    uint64_t ns;
};

#endif
