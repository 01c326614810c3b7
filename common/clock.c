/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processor's counter as a clock. The last comparison is published under a sequence number, odd while it changes; a
 * thread that cannot read it, or finds it old, asks the kernel's clock.
 */
#include "common/clock.h"

#include "common/cleanup.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

#define FIRST_NS 10000000   /* least time between the two comparisons of the first rate: an error of 50 ns is 5 ppm */
#define APART_NS 1000000000 /* least time between kept comparisons: short enough to follow the kernel's corrections */
#define JUMP_PARTS 1000     /* a rate that changes by more than a thousandth was a jump, and not a rate */
#define SLOW_NS 150         /* a call of the kernel's clock that takes longer is a system call */
#define SLICE_NS 2000       /* a comparison that takes longer was interrupted */
#define CLOCK_SOURCE "/sys/devices/system/clocksource/clocksource0/current_clocksource"

enum mode { MODE_UNKNOWN, MODE_TICKS, MODE_KERNEL, MODE_COARSE };

static struct {
    _Atomic uint32_t mode, seq;
    _Atomic uint64_t rate, most_ticks, ticks;
    _Atomic int64_t ns;
    struct cdi_ticks of; /* of the thread that has made seq odd */
} shared;

void cdi_ticks_compare(struct cdi_ticks *t, uint64_t ticks, int64_t ns)
{
    uint64_t rate;

    if (t->began && (ticks <= t->early_ticks || ns <= t->early_ns))
        t->began = false;
    if (!t->began) {
        *t = (struct cdi_ticks){.ticks = ticks, .early_ticks = ticks, .late_ticks = ticks, .began = true};
        t->ns = t->early_ns = t->late_ns = ns;
        return;
    }
    if (ns - t->early_ns < FIRST_NS)
        return;
    rate = (uint64_t)((double)(ns - t->early_ns) / (double)(ticks - t->early_ticks) * 4294967296.0);
    if (rate == 0 ||
        (t->rate != 0 && (rate > t->rate + t->rate / JUMP_PARTS || rate < t->rate - t->rate / JUMP_PARTS))) {
        *t = (struct cdi_ticks){0};
        cdi_ticks_compare(t, ticks, ns);
        return;
    }
    t->rate = rate;
    t->most_ticks = (uint64_t)((double)CDI_TICKS_MS * 1e6 * 4294967296.0 / (double)rate);
    t->ticks = ticks;
    t->ns = ns;
    if (ns - t->late_ns >= APART_NS) {
        t->early_ticks = t->late_ticks;
        t->early_ns = t->late_ns;
        t->late_ticks = ticks;
        t->late_ns = ns;
    }
}

static inline uint64_t read_ticks(void)
{
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t now;

    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now;
#else
    return 0;
#endif
}

/* Does the counter run at one rate, whatever the processor does? */
static bool is_invariant(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d = 0;

    return __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d & 1u << 8) != 0;
#elif defined(__aarch64__)
    return true;
#else
    return false;
#endif
}

/* Does the kernel itself use the counter? It has checked that it is the same on all processors. */
static bool kernel_uses_it(void)
{
    CDI_AUTOCLOSE int fd = open(CLOCK_SOURCE, O_RDONLY | O_CLOEXEC);
    char name[32] = "";
    ssize_t n = fd < 0 ? -1 : read(fd, name, sizeof name - 1);

    return n > 0 && (strcmp(name, "tsc\n") == 0 || strcmp(name, "arch_sys_counter\n") == 0);
}

static enum mode choose(void)
{
    int64_t least = INT64_MAX, before = cdi_now_ns();

    if (is_invariant() && kernel_uses_it())
        return MODE_TICKS;
    for (int i = 0; i < 8; i++) {
        int64_t now = cdi_now_ns();

        least = now - before < least ? now - before : least;
        before = now;
    }
    return least > SLOW_NS ? MODE_COARSE : MODE_KERNEL;
}

/* Compares the counter with the clock, unless another thread does. Returns the time. */
static int64_t compare(void)
{
    uint64_t before = read_ticks();
    int64_t ns = cdi_now_ns();
    uint64_t took = read_ticks() - before;
    uint32_t seq = atomic_load_explicit(&shared.seq, memory_order_relaxed);
    const struct cdi_ticks *t = &shared.of;

    if (seq % 2 != 0 || !atomic_compare_exchange_strong_explicit(&shared.seq, &seq, seq + 1, memory_order_acquire,
                                                                 memory_order_relaxed))
        return ns;
    /* The rate is not known yet, but no counter has more than 8 ticks a nanosecond. */
    if (t->rate == 0 ? took < 8 * SLICE_NS : (took * t->rate >> 32) < SLICE_NS)
        cdi_ticks_compare(&shared.of, before + took / 2, ns);
    atomic_store_explicit(&shared.rate, t->rate, memory_order_release);
    atomic_store_explicit(&shared.most_ticks, t->most_ticks, memory_order_release);
    atomic_store_explicit(&shared.ticks, t->ticks, memory_order_release);
    atomic_store_explicit(&shared.ns, t->ns, memory_order_release);
    atomic_store_explicit(&shared.seq, seq + 2, memory_order_release);
    return ns;
}

/* The slow path: chooses the mode at the first call, then compares the counter again or asks the kernel. */
static __attribute__((noinline)) int64_t other_ns(uint32_t mode)
{
    if (mode == MODE_UNKNOWN) {
        mode = (uint32_t)choose();
        atomic_store_explicit(&shared.mode, mode, memory_order_relaxed);
    }
    if (mode == MODE_TICKS)
        return compare();
    return mode == MODE_COARSE ? cdi_now_coarse_ns() : cdi_now_ns();
}

int64_t cdi_now_ticks_ns(void)
{
    uint32_t seq = atomic_load_explicit(&shared.seq, memory_order_acquire);
    struct cdi_ticks t = {.ticks = atomic_load_explicit(&shared.ticks, memory_order_acquire),
                          .ns = atomic_load_explicit(&shared.ns, memory_order_acquire),
                          .rate = atomic_load_explicit(&shared.rate, memory_order_acquire),
                          .most_ticks = atomic_load_explicit(&shared.most_ticks, memory_order_acquire)};
    uint64_t now = read_ticks();
    int64_t ns;

    if (seq % 2 == 0 && atomic_load_explicit(&shared.seq, memory_order_relaxed) == seq && cdi_ticks_read(&t, now, &ns))
        return ns;
    return other_ns(atomic_load_explicit(&shared.mode, memory_order_relaxed));
}
