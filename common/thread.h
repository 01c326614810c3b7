/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library in the program's process. */
#ifndef CDI_THREAD_H
#define CDI_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/*
 * Starts a thread that receives no signals: they are for the program, which does not know the thread. stack: in bytes;
 * 0: the system's default. Returns 0 or an errno.
 */
static inline int cdi_thread_create(pthread_t *thread, size_t stack, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;
    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);

    if (rc != 0)
        return rc;
    if (stack > 0)
        (void)pthread_attr_setstacksize(&attr, stack);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(thread, &attr, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    return rc;
}

#endif
