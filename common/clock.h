/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time. Deadlines are absolute, timeouts relative; both in the unit that the name carries. */
#ifndef CDI_CLOCK_H
#define CDI_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t cdi_now_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* Returns the same clock at the kernel's last tick (1 to 10 ms ago), for a quarter of the cost. */
static inline int64_t cdi_now_coarse_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static inline int64_t cdi_now_ms(void)
{
    return cdi_now_ns() / 1000000;
}

/* A deadline that is never reached: "no limit". */
#define CDI_NEVER_MS INT64_MAX

/* Returns now + timeout, without overflow. A negative timeout means never. */
static inline int64_t cdi_deadline_ms(int64_t now_ms, int64_t timeout_ms)
{
    if (timeout_ms < 0 || timeout_ms > INT64_MAX - now_ms)
        return CDI_NEVER_MS;
    return now_ms + timeout_ms;
}

/* Returns Unix time, for texts and records that leave this process. */
static inline int64_t cdi_wall_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

#endif
