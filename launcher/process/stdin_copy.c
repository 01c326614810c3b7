/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/stdin_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#define READ_SIZE 65536

struct stdin_copy {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t made_one;
    uint32_t n;
    uint64_t round;    /* of workers, counted from 1; the first one's pipe begins it */
    uint32_t in_round; /* pipes of this round */
    bool ended;        /* stdin has */
    char bytes[READ_SIZE];
    int fds[]; /* the writing ends; -1: none, or its worker has closed the other one */
};

/*
 * Returns a descriptor of the thread's own, since stdin_copy_pipe() may close the other one meanwhile; -1: none, or
 * another round has begun.
 */
static int take_fd(struct stdin_copy *c, uint32_t place, uint64_t round)
{
    int fd;

    (void)pthread_mutex_lock(&c->lock);
    fd = c->fds[place] < 0 || c->round != round ? -1 : fcntl(c->fds[place], F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    (void)pthread_mutex_unlock(&c->lock);
    return fd;
}

static void close_end(struct stdin_copy *c, uint32_t place)
{
    if (c->fds[place] >= 0)
        (void)close(c->fds[place]);
    c->fds[place] = -1;
}

/* A worker that does not read blocks this until it ends. Returns false if it has. */
static bool copy_to(struct stdin_copy *c, uint32_t place, uint64_t round, size_t n)
{
    int fd = take_fd(c, place, round);
    ssize_t done = fd < 0 ? -1 : 0;

    for (size_t at = 0; fd >= 0 && at < n && (done >= 0 || errno == EINTR); at += done > 0 ? (size_t)done : 0)
        done = write(fd, c->bytes + at, n - at);
    if (fd >= 0)
        (void)close(fd);
    return done >= 0;
}

/* Waits until a round after this one has all its pipes; returns it. */
static uint64_t wait_for_round(struct stdin_copy *c, uint64_t after)
{
    uint64_t round;

    (void)pthread_mutex_lock(&c->lock);
    while (c->round <= after || c->in_round < c->n)
        (void)pthread_cond_wait(&c->made_one, &c->lock);
    round = c->round;
    (void)pthread_mutex_unlock(&c->lock);
    return round;
}

static void *copy_stdin(void *arg)
{
    struct stdin_copy *c = arg;
    uint64_t round = wait_for_round(c, 0);
    ssize_t n;

    while ((n = read(STDIN_FILENO, c->bytes, sizeof c->bytes)) > 0 || (n < 0 && errno == EINTR)) {
        bool taken = n < 0;

        round = wait_for_round(c, round - 1); /* each rank of a round gets the same bytes */
        for (uint32_t i = 0; n > 0 && i < c->n; i++)
            taken = copy_to(c, i, round, (size_t)n) || taken;
        if (!taken) /* no worker reads stdin any more: those of the next round may */
            round = wait_for_round(c, round);
    }
    (void)pthread_mutex_lock(&c->lock);
    c->ended = true;
    for (uint32_t i = 0; i < c->n; i++)
        close_end(c, i);
    (void)pthread_mutex_unlock(&c->lock);
    return NULL;
}

cddp_status stdin_copy_start(struct stdin_copy **out, uint32_t n, struct cdi_error *err)
{
    struct stdin_copy *c = calloc(1, sizeof *c + n * sizeof c->fds[0]);
    sigset_t all, before;
    int rc;

    if (c == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    c->n = n;
    for (uint32_t i = 0; i < n; i++)
        c->fds[i] = -1;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_cond_init(&c->made_one, NULL);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&c->thread, NULL, copy_stdin, c);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        free(c);
        return cdi_fail_errno(err, rc, "cannot start a thread for --stdin=all");
    }
    *out = c;
    return CDDP_OK;
}

int stdin_copy_pipe(struct stdin_copy *c, uint32_t place)
{
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    (void)pthread_mutex_lock(&c->lock);
    if (place == 0) {
        c->round++;
        c->in_round = 0;
    }
    close_end(c, place);
    c->fds[place] = ends[1];
    if (c->ended)
        close_end(c, place);
    c->in_round++;
    (void)pthread_cond_signal(&c->made_one);
    (void)pthread_mutex_unlock(&c->lock);
    return ends[0];
}

void stdin_copy_end(struct stdin_copy *c)
{
    bool ended;

    if (c == NULL)
        return;
    (void)pthread_mutex_lock(&c->lock);
    ended = c->ended;
    (void)pthread_mutex_unlock(&c->lock);
    if (!ended)
        return;
    (void)pthread_join(c->thread, NULL);
    free(c);
}
