/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An anchor: an event of the GPU whose time by CLOCK_MONOTONIC is known. Times of other events are counted from it.
 * Pure.
 *
 * cuEventElapsedTime gives float32 milliseconds "with a resolution of around 0.5 microseconds" (CUDA Driver API, Event
 * Management). Their 24 bits are coarser than that after 8 s, and both clocks drift. So an anchor ages, and the host
 * takes a new one now and then: it records an event on a stream without work, and sees it complete a moment later.
 */
#ifndef CDI_NCCL_ANCHOR_H
#define CDI_NCCL_ANCHOR_H

#include <stdint.h>

/*
 * The most that the clocks differ by in a while, in parts per million: CLOCK_MONOTONIC is slewed by up to 500
 * (adjtimex), and a GPU's quartz is off by less than 100.
 */
#define CDI_ANCHOR_PPM 600
#define CDI_ANCHOR_RESOLUTION_NS 500

struct cdi_anchor {
    int64_t ns;       /* when the GPU reached the event, */
    int64_t error_ns; /* give or take this */
};

/* Returns the anchor of an event that the host recorded after before_ns, and saw complete before after_ns. */
struct cdi_anchor cdi_anchor_between(int64_t before_ns, int64_t after_ns);
/* Returns the time of an event that the GPU reached elapsed_ms after the anchor. */
int64_t cdi_anchor_time(const struct cdi_anchor *a, float elapsed_ms);
/* Returns the largest error of that time. */
int64_t cdi_anchor_error(const struct cdi_anchor *a, float elapsed_ms);

#endif
