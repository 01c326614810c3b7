/* SPDX-License-Identifier: Apache-2.0 */
#include "common/fork_close.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * Held during a fork, and while a descriptor is opened or closed, so that a child closes exactly the open ones. No
 * other lock is taken under it, so its fork handlers may run before or after others.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *is_ours; /* one bit for each descriptor */
static size_t words;

static void fork_prepare(void)
{
    (void)pthread_mutex_lock(&lock);
}

static void fork_in_parent(void)
{
    (void)pthread_mutex_unlock(&lock);
}

static void fork_in_child(void)
{
    for (size_t i = 0; i < words; i++) {
        for (; is_ours[i] != 0; is_ours[i] &= is_ours[i] - 1)
            (void)close((int)(i * 64) + __builtin_ctzll(is_ours[i]));
    }
    (void)pthread_mutex_unlock(&lock);
}

static void fork_register_handlers(void)
{
    (void)pthread_atfork(fork_prepare, fork_in_parent, fork_in_child); /* without memory children keep the sockets */
}

static void fork_lock(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, fork_register_handlers);
    (void)pthread_mutex_lock(&lock);
}

/* Adds fd. Without memory for it a child keeps this descriptor. */
static void fork_add(int fd)
{
    size_t word = (size_t)fd / 64;

    if (word >= words) {
        uint64_t *grown = realloc(is_ours, 2 * (word + 1) * sizeof *grown);

        if (grown == NULL)
            return;
        memset(grown + words, 0, (2 * (word + 1) - words) * sizeof *grown);
        is_ours = grown;
        words = 2 * (word + 1);
    }
    is_ours[word] |= (uint64_t)1 << fd % 64;
}

/* Adds fd unless it is -1, and unlocks. */
static int fork_add_and_unlock(int fd)
{
    int why = errno;

    if (fd >= 0)
        fork_add(fd);
    (void)pthread_mutex_unlock(&lock);
    errno = why;
    return fd;
}

int cdi_fork_socket(int family)
{
    fork_lock();
    return fork_add_and_unlock(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int cdi_fork_accept(int listener)
{
    fork_lock();
    return fork_add_and_unlock(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

void cdi_fork_close(int fd)
{
    int why = errno;

    if (fd < 0)
        return;
    fork_lock();
    if ((size_t)fd / 64 < words)
        is_ours[fd / 64] &= ~((uint64_t)1 << fd % 64);
    (void)close(fd);
    (void)pthread_mutex_unlock(&lock);
    errno = why;
}
