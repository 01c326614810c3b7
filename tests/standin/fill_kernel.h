/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel, "fill", for tests of reducers: x[0..n) = value. It exists only as a twin on the host. */
#ifndef FILL_KERNEL_H
#define FILL_KERNEL_H

#include "standin.h"

static void fill_thread(const struct standin_thread *t, void *const *args)
{
    float *x = standin_host(*(float *const *)args[0]);
    size_t n = *(const size_t *)args[1], i = (size_t)t->at.x * t->block.x + t->thread.x;

    if (i < n)
        x[i] = *(const float *)args[2];
}

static void fill_ranges(const struct standin_thread *grid, void *const *args, struct standin_ranges *r)
{
    (void)grid;
    standin_writes(r, *(float *const *)args[0], *(const size_t *)args[1] * sizeof(float));
}

static const struct standin_kernel fill_kernel = {.name = "fill",
                                                  .n_args = 3,
                                                  .arg_size = {sizeof(float *), sizeof(size_t), sizeof(float)},
                                                  .thread = fill_thread,
                                                  .ranges = fill_ranges};

#endif
