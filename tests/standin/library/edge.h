/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in's lock, and the edges that CUDA itself has. For ThreadSanitizer a mutex would be an edge from everything
 * on one stream to everything on the other, and would hide a missing event wait. So the lock is a bare futex in code
 * that is not instrumented, accesses under it are not recorded, and only real edges are declared.
 */
#ifndef SI_EDGE_H
#define SI_EDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Declared if the program runs under ThreadSanitizer, otherwise NULL. */
extern void __tsan_acquire(void *addr) __attribute__((weak));
extern void __tsan_release(void *addr) __attribute__((weak));

static inline void si_edge_from(void *addr)
{
    if (__tsan_release != NULL)
        __tsan_release(addr);
}

static inline void si_edge_to(void *addr)
{
    if (__tsan_acquire != NULL)
        __tsan_acquire(addr);
}

/* One lock for all data of the stand-in; not recursive. */
void si_lock(void);
void si_unlock(void);

/* Waits until *word differs from seen, another thread wakes it, or timeout_ns have passed (0: no limit). */
void si_futex_wait(const uint32_t *word, uint32_t seen, int64_t timeout_ns, bool shared);
void si_futex_wake(const uint32_t *word, bool shared);

/* Not instrumented and not intercepted, unlike memcpy and memset. */
void si_copy(void *to, const void *from, unsigned long bytes);

#endif
