/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls without libc, for code that has no libc (the shim) or shares its parent's (a spawned child before it
 * execs, whose errno would be the agent's). sys() returns the kernel's result, a negative errno for a failure. Without
 * SYSCALLS_RAW it is syscall(2), which sets errno.
 */
#ifndef SYSCALLS_H
#define SYSCALLS_H

#include <sys/syscall.h>

#if defined __x86_64__
#define SYSCALLS_RAW 1

static inline long sys(long n, long a, long b, long c, long d, long e)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    long rc;

    __asm__ volatile("syscall" : "=a"(rc) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return rc;
}
#elif defined __aarch64__
#define SYSCALLS_RAW 1

static inline long sys(long n, long a, long b, long c, long d, long e)
{
    register long x8 __asm__("x8") = n;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;

    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
    return x0;
}
#else
#include <errno.h>
#include <unistd.h>

static inline long sys(long n, long a, long b, long c, long d, long e)
{
    long rc = syscall(n, a, b, c, d, e);

    return rc < 0 ? -errno : rc;
}
#endif

#endif
