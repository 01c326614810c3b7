/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel, "gate", that ends when the host opens it: until then, any wait for later work on its stream hangs. */
#ifndef GATE_KERNEL_H
#define GATE_KERNEL_H

#include "standin.h"

#include <stdatomic.h>
#include <time.h>

static atomic_bool gate_is_open;

static void gate_thread(const struct standin_thread *t, void *const *args)
{
    const struct timespec nap = {.tv_nsec = 100000};

    (void)t, (void)args;
    while (!atomic_load(&gate_is_open))
        (void)nanosleep(&nap, NULL);
}

static void gate_ranges(const struct standin_thread *grid, void *const *args, struct standin_ranges *r)
{
    (void)grid, (void)args, (void)r;
}

static const struct standin_kernel gate_kernel = {
    .name = "gate", .n_args = 0, .thread = gate_thread, .ranges = gate_ranges};

#endif
