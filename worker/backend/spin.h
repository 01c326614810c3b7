/* SPDX-License-Identifier: Apache-2.0 */
/* Short waits: a thread spins, then yields, and only then sleeps. */
#ifndef CDI_BACKEND_SPIN_H
#define CDI_BACKEND_SPIN_H

#define CDI_SPIN_YIELD_US 100 /* so long a waiting thread yields before it sleeps */

/* Tells the processor that this thread spins, which helps the other hardware thread of the core. */
static inline void cdi_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#endif
