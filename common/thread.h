/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library in the program's process. */
#ifndef CDI_THREAD_H
#define CDI_THREAD_H

#include "common/float_state.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <time.h>

/*
 * Starts a thread that receives no signals: they are for the program, which does not know the thread. Only those that
 * the thread's own faults cause are open, since the kernel would ignore the program's handlers for them. It computes in
 * the default floating-point state, whatever that of the caller is. stack: in bytes; 0: the system's default. Returns 0
 * or an errno.
 */
static inline int cdi_thread_create(pthread_t *thread, size_t stack, void *(*run)(void *arg), void *arg)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    struct cdi_float_state state = cdi_float_read();
    sigset_t all, before;
    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);

    if (rc != 0)
        return rc;
    if (stack > 0)
        (void)pthread_attr_setstacksize(&attr, stack);
    (void)sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        (void)sigdelset(&all, faults[i]);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    cdi_float_set_default(state); /* the new thread inherits it */
    rc = pthread_create(thread, &attr, run, arg);
    cdi_float_restore(state);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    return rc;
}

/*
 * Initialises a condition whose timed waits count by CLOCK_MONOTONIC, as cdi_now_ns() does: the default clock jumps
 * when somebody sets it. The caller destroys it.
 */
static inline void cdi_cond_init_monotonic(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    (void)pthread_condattr_init(&attr); /* on Linux none of these can fail */
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(cond, &attr);
    (void)pthread_condattr_destroy(&attr);
}

/* Names the calling thread for debuggers and for reports of stacks: at most 15 bytes, such as "cddp-comm". */
static inline void cdi_thread_name(const char *name)
{
    (void)prctl(PR_SET_NAME, name, 0, 0, 0);
}

#endif
