/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time. Deadlines are absolute, timeouts relative; both in the unit that the name carries. */
#ifndef CDI_CLOCK_H
#define CDI_CLOCK_H

#include <stdbool.h>
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

/* Returns the processor time of this thread. A system call. */
static inline int64_t cdi_thread_cpu_ns(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/*
 * Returns the time of cdi_now_ns() for about half of its cost: the processor's counter, compared with the clock
 * every CDI_TICKS_MS. Times of one thread may go back by less than a microsecond. Where the counter cannot be trusted
 * (the kernel itself uses another clock), it is cdi_now_ns(); if that takes a system call, cdi_now_coarse_ns(). Any
 * thread.
 */
int64_t cdi_now_ticks_ns(void);

#define CDI_TICKS_MS 20

/*
 * The counter and the clock: where both were at the last comparison, and how fast the counter is. Pure. Zeroed: not
 * known yet.
 */
struct cdi_ticks {
    uint64_t rate;       /* ns per tick, times 2^32; 0: not known yet */
    uint64_t most_ticks; /* since the last comparison; beyond them compare again */
    uint64_t ticks, early_ticks, late_ticks;
    int64_t ns, early_ns, late_ns; /* two comparisons of the last seconds, of which the rate is made */
    bool began;
};

/* Records one comparison. A counter or a clock that has jumped begins anew. */
void cdi_ticks_compare(struct cdi_ticks *t, uint64_t ticks, int64_t ns);
/* Sets *ns to the time of `ticks`. false: compare first. */
static inline bool cdi_ticks_read(const struct cdi_ticks *t, uint64_t ticks, int64_t *ns)
{
    uint64_t since = ticks - t->ticks;

    if (since > t->most_ticks || t->rate == 0)
        return false;
    *ns = t->ns + (int64_t)(since * t->rate >> 32);
    return true;
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
