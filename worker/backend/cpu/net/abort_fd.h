/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A descriptor for poll(2) that becomes readable, and stays so, once the agent or an abort has ended all waits. Both
 * change futex words, on which poll() cannot wait, and any rank of the node may abort; so a separate thread of this
 * rank sleeps on them. It exists only where there are sockets to wait for.
 */
#ifndef CDI_NET_ABORT_FD_H
#define CDI_NET_ABORT_FD_H

#include "worker/backend/cpu/node/wait.h"

#include <pthread.h>

struct cdi_abort_fd {
    int fd; /* poll for POLLIN, never read; -1: none, and the caller of poll() has to check by itself */
    const struct cdi_wait *wait;
    pthread_t thread;
    _Atomic uint32_t stop; /* a futex */
};

/*
 * Starts the thread; a->fd becomes readable when cdi_wait_check(wait) fails. wait must outlive it; only its shm and
 * flight are used. Without futex_waitv, a descriptor or a thread, a->fd is -1, which is not an error.
 */
void cdi_abort_fd_start(struct cdi_abort_fd *a, const struct cdi_wait *wait);
/* Ends the thread and closes the descriptor, which no other thread may be polling. Does nothing if a->fd is -1. */
void cdi_abort_fd_stop(struct cdi_abort_fd *a);

#endif
