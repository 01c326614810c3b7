/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/base/fork_close.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * Held over a fork, and while a descriptor is made or closed: what the child closes is what there is. Nothing else is
 * locked under it, so that it may come before or after the locks of other fork handlers.
 */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *is_ours; /* one bit for each descriptor */
static size_t words;

static void before_fork(void)
{
    (void)pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    (void)pthread_mutex_unlock(&lock);
}

static void in_child(void)
{
    for (size_t i = 0; i < words; i++) {
        for (; is_ours[i] != 0; is_ours[i] &= is_ours[i] - 1)
            (void)close((int)(i * 64) + __builtin_ctzll(is_ours[i]));
    }
    (void)pthread_mutex_unlock(&lock);
}

static void ask_to_be_told(void)
{
    (void)pthread_atfork(before_fork, in_parent, in_child); /* out of memory: as without it */
}

static void begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, ask_to_be_told);
    (void)pthread_mutex_lock(&lock);
}

/* Where there is no memory for it, a child keeps this one. */
static void add(int fd)
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

/* Gives the lock back. */
static int end(int fd)
{
    int why = errno;

    if (fd >= 0)
        add(fd);
    (void)pthread_mutex_unlock(&lock);
    errno = why;
    return fd;
}

int cdi_fork_socket(int family)
{
    begin();
    return end(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int cdi_fork_accept(int listener)
{
    begin();
    return end(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

void cdi_fork_close(int fd)
{
    int why = errno;

    if (fd < 0)
        return;
    begin();
    if ((size_t)fd / 64 < words)
        is_ours[fd / 64] &= ~((uint64_t)1 << fd % 64);
    (void)close(fd);
    (void)pthread_mutex_unlock(&lock);
    errno = why;
}
