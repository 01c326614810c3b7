/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For who sleeps in poll(2): a descriptor that becomes readable, and stays so, once the agent's word or an abort has
 * ended all waits. Both are futex words, on which poll cannot wait, and an abort may come from any rank of the node; so
 * a thread of this rank's own sleeps on them. It exists only where there are sockets to wait for.
 */
#ifndef CDI_NET_ABORT_FD_H
#define CDI_NET_ABORT_FD_H

#include "worker/backend/cpu/node/wait.h"

#include <pthread.h>

struct cdi_abort_fd {
    int fd; /* to be polled for POLLIN, never read; -1: there is none, and who polls has to look by himself */
    const struct cdi_wait *wait;
    pthread_t thread;
    _Atomic uint32_t stop; /* a futex */
};

/*
 * Make it ring when cdi_wait_check(wait) fails. wait must outlive it; only its shm and flight are looked at. Where the
 * kernel has no futex_waitv, or no descriptor or thread is to be had, there is none: no error.
 */
void cdi_abort_fd_start(struct cdi_abort_fd *bell, const struct cdi_wait *wait);
/* End the thread and close the descriptor, which nobody may be polling. A bell with fd -1 is left as it is. */
void cdi_abort_fd_stop(struct cdi_abort_fd *bell);

#endif
