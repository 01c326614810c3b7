/* SPDX-License-Identifier: Apache-2.0 */
#include "edge.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ThreadSanitizer's functions: accesses of this thread between them are not recorded. */
extern void AnnotateIgnoreReadsBegin(const char *file, int line) __attribute__((weak));
extern void AnnotateIgnoreReadsEnd(const char *file, int line) __attribute__((weak));
extern void AnnotateIgnoreWritesBegin(const char *file, int line) __attribute__((weak));
extern void AnnotateIgnoreWritesEnd(const char *file, int line) __attribute__((weak));

static uint32_t word; /* 0: free, 1: taken, 2: taken, with waiting threads */

void si_futex_wait(const uint32_t *w, uint32_t seen, int64_t timeout_ns, bool shared)
{
    const struct timespec ts = {.tv_sec = timeout_ns / 1000000000, .tv_nsec = timeout_ns % 1000000000};

    (void)syscall(SYS_futex, w, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, seen, timeout_ns > 0 ? &ts : NULL, NULL, 0);
}

void si_futex_wake(const uint32_t *w, bool shared)
{
    (void)syscall(SYS_futex, w, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void si_lock(void)
{
    uint32_t none = 0;

    if (!__atomic_compare_exchange_n(&word, &none, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
        while (__atomic_exchange_n(&word, 2, __ATOMIC_ACQUIRE) != 0)
            si_futex_wait(&word, 2, 0, false);
    }
    if (AnnotateIgnoreReadsBegin != NULL) {
        AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
        AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    }
}

void si_unlock(void)
{
    if (AnnotateIgnoreReadsBegin != NULL) {
        AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
        AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    }
    if (__atomic_exchange_n(&word, 0, __ATOMIC_RELEASE) == 2)
        si_futex_wake(&word, false);
}

void si_copy(void *to, const void *from, unsigned long bytes)
{
    volatile unsigned char *t = to;
    const volatile unsigned char *f = from;

    for (unsigned long i = 0; i < bytes; i++)
        t[i] = f[i];
}
