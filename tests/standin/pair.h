/* SPDX-License-Identifier: Apache-2.0 */
/* Two streams, an event and two arrays on the stand-in's device 0, for its unit tests. */
#ifndef STANDIN_PAIR_H
#define STANDIN_PAIR_H

#include "device.h"

#include <criterion/criterion.h>

struct pair {
    struct device device;
    CUstream a, b;
    CUevent event;
    CUdeviceptr x, y;
};

/* n floats each: ones at x, twos at y. */
static inline void pair_open(struct pair *p, size_t n)
{
    device_open(&p->device, 0);
    p->a = device_stream();
    p->b = device_stream();
    p->event = device_event();
    p->x = device_floats(n, 1);
    p->y = device_floats(n, 2);
}

/* Checks that nothing is left on the device. */
static inline void pair_close(struct pair *p)
{
    struct standin_live live;

    CU(cuStreamDestroy(p->a));
    CU(cuStreamDestroy(p->b));
    CU(cuEventDestroy(p->event));
    CU(cuMemFree(p->x));
    CU(cuMemFree(p->y));
    device_close(&p->device, 0);
    standin_live(&live);
    cr_assert_eq(live.device_memory + live.pinned_memory + live.streams + live.events + live.libraries, 0);
}

static inline float first(CUdeviceptr at)
{
    float x;

    CU(cuMemcpyDtoH(&x, at, sizeof x));
    return x;
}

#endif
