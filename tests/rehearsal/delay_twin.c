/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of bench/gpu_delay.h as a twin for the stand-in, which opens this library. */
#include "bench/gpu_delay.h"
#include "standin.h"

#include <time.h>

static void delay(const struct standin_thread *t, void *const *args)
{
    const struct gpu_delay_args *a = args[0];
    const struct timespec ts = {.tv_sec = (time_t)(a->ns / 1000000000), .tv_nsec = (long)(a->ns % 1000000000)};

    if (t->at.x == 0) /* blocks take turns here, but run at the same time on a GPU */
        (void)nanosleep(&ts, NULL);
}

static void touches_nothing(const struct standin_thread *grid, void *const *args, struct standin_ranges *r)
{
    (void)grid, (void)args, (void)r;
}

extern const struct standin_kernel standin_kernels[];
STANDIN_API const struct standin_kernel standin_kernels[] = {{.name = GPU_DELAY_KERNEL,
                                                              .n_args = 1,
                                                              .arg_size = {sizeof(struct gpu_delay_args)},
                                                              .thread = delay,
                                                              .ranges = touches_nothing},
                                                             {.name = NULL}};
