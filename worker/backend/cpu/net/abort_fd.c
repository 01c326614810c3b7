/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/net/abort_fd.h"

#include "common/thread.h"
#include "worker/backend/queue.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICE_MS 10 /* in case the sleep fails */

#ifdef SYS_futex_waitv

/* Sleeps until one of the words changes. Returns false if the kernel does not support that. */
static bool abort_fd_sleep(struct futex_waitv *v, unsigned n)
{
    return syscall(SYS_futex_waitv, v, n, 0, NULL, 0) >= 0 || errno == EAGAIN || errno == EINTR;
}

static void *abort_fd_main(void *arg)
{
    struct cdi_abort_fd *a = arg;
    _Atomic uint32_t *agent = cdi_flight_wake_word(a->wait->flight);
    const struct timespec slice = {.tv_nsec = SLICE_MS * 1000000};

    cdi_thread_name("cddp-abort");
    while (atomic_load(&a->stop) == 0) {
        struct futex_waitv v[] = {
            {.uaddr = (uintptr_t)agent, .val = atomic_load(agent), .flags = FUTEX_32},
            {.uaddr = (uintptr_t)cdi_shm_abort_word(a->wait->shm), .val = 0, .flags = FUTEX_32},
            {.uaddr = (uintptr_t)&a->stop, .val = 0, .flags = FUTEX_32},
        };
        const uint64_t one = 1;

        if (cdi_wait_check(a->wait, NULL) != CDDP_OK) {
            (void)!write(a->fd, &one, sizeof one); /* cannot fail on an eventfd that was never written to */
            break;
        }
        if (!abort_fd_sleep(v, 3))
            (void)nanosleep(&slice, NULL);
    }
    return NULL;
}

void cdi_abort_fd_start(struct cdi_abort_fd *a, const struct cdi_wait *wait)
{
    /* The word has another value, so the call returns at once: it shows whether the kernel supports it. */
    struct futex_waitv other = {.uaddr = (uintptr_t)&a->stop, .val = 1, .flags = FUTEX_32};

    a->wait = wait;
    atomic_init(&a->stop, 0);
    a->fd = abort_fd_sleep(&other, 1) ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    if (a->fd < 0 || cdi_thread_start(&a->thread, abort_fd_main, a))
        return;
    (void)close(a->fd);
    a->fd = -1;
}

#else

void cdi_abort_fd_start(struct cdi_abort_fd *a, const struct cdi_wait *wait)
{
    a->wait = wait;
    a->fd = -1;
}

#endif

void cdi_abort_fd_stop(struct cdi_abort_fd *a)
{
    if (a->fd < 0)
        return;
    atomic_store(&a->stop, 1);
    (void)syscall(SYS_futex, &a->stop, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    (void)pthread_join(a->thread, NULL);
    (void)close(a->fd);
    a->fd = -1;
}
