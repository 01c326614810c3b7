/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/process/stdin_copy.h"

#include "common/buf.h"
#include "common/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define READ_SIZE 65536
#define SLOW_MS 5000 /* of waiting for a worker that is STDIN_COPY_MAX, until a warning */

struct place {
    int fd;      /* the writing end; -1: none, or its worker has closed the other one */
    size_t done; /* bytes of `bytes` that are in the pipe; only the thread reads it */
};

struct stdin_copy {
    pthread_t thread;
    pthread_mutex_t lock;
    int changed; /* an eventfd: a round has all its pipes */
    uint32_t n;
    uint64_t round;       /* of workers, counted from 1; the first one's pipe begins it */
    uint32_t in_round;    /* pipes of this round */
    bool ended;           /* the thread has: later workers read an empty file */
    struct cdi_buf bytes; /* that some worker still has to get; only the thread uses it and the next members */
    uint64_t now_round;   /* the round that `bytes` are for */
    bool no_input;        /* stdin has ended */
    bool warned;          /* in this round */
    struct pollfd *fds;   /* `changed`, stdin, then one for each place */
    struct place places[];
};

static void close_end(struct place *p)
{
    if (p->fd >= 0)
        (void)close(p->fd);
    p->fd = -1;
}

/* With the lock. Bytes that a worker of the last round has got are lost; the next ones are for this round. */
static void enter_round(struct stdin_copy *c)
{
    size_t got = 0;

    for (uint32_t i = 0; i < c->n; i++) {
        got = c->places[i].done > got ? c->places[i].done : got;
        c->places[i].done = 0;
    }
    cdi_buf_consume(&c->bytes, got);
    c->now_round = c->round;
    c->warned = false;
}

/* With the lock. Writes what the pipe takes. */
static void feed(struct stdin_copy *c, struct place *p)
{
    ssize_t n = 1;

    while (p->fd >= 0 && p->done < c->bytes.len && n > 0) {
        n = write(p->fd, cdi_buf_data(&c->bytes) + p->done, c->bytes.len - p->done);
        if (n > 0)
            p->done += (size_t)n;
        else if (errno == EINTR)
            n = 1;
        else if (errno != EAGAIN)
            close_end(p); /* its worker has closed it, or has ended */
    }
    if (c->no_input && p->done == c->bytes.len)
        close_end(p);
}

/* With the lock: feeds the workers, and drops what all have got. Returns the slowest place, or NULL. */
static struct place *feed_all(struct stdin_copy *c)
{
    struct place *last = NULL;

    for (struct place *p = c->places, *end = p + c->n; p < end; p++) {
        feed(c, p);
        if (p->fd >= 0 && (last == NULL || p->done < last->done))
            last = p;
    }
    if (last != NULL) {
        size_t all = last->done;

        cdi_buf_consume(&c->bytes, all);
        for (uint32_t i = 0; i < c->n; i++)
            c->places[i].done -= c->places[i].done < all ? c->places[i].done : all;
    }
    return last;
}

/* Writes, and sets what to wait for. Returns the place that holds up all others, or NULL; *end: nothing will follow. */
static const struct place *prepare(struct stdin_copy *c, bool *end)
{
    struct place *last = NULL;
    bool whole, late;

    (void)pthread_mutex_lock(&c->lock);
    whole = c->round > 0 && c->in_round >= c->n;
    if (whole && c->round != c->now_round)
        enter_round(c);
    if (whole)
        last = feed_all(c);
    *end = c->ended = whole && c->no_input && last == NULL;
    for (uint32_t i = 0; i < c->n; i++)
        c->fds[2 + i] = (struct pollfd){.fd = whole ? c->places[i].fd : -1,
                                        .events = (short)(c->places[i].done < c->bytes.len ? POLLOUT : 0)};
    (void)pthread_mutex_unlock(&c->lock);
    late = c->bytes.len > STDIN_COPY_MAX - READ_SIZE;
    c->fds[0] = (struct pollfd){.fd = c->changed, .events = POLLIN};
    c->fds[1] = (struct pollfd){.fd = last != NULL && !late && !c->no_input ? STDIN_FILENO : -1, .events = POLLIN};
    return late && !c->no_input ? last : NULL;
}

static void read_input(struct stdin_copy *c)
{
    uint8_t *room = cdi_buf_reserve(&c->bytes, READ_SIZE);
    ssize_t n = room == NULL ? 0 : read(STDIN_FILENO, room, READ_SIZE);

    if (n > 0)
        cdi_buf_commit(&c->bytes, (size_t)n);
    else if (n == 0 || (errno != EINTR && errno != EAGAIN))
        c->no_input = true;
}

static void *copy_stdin(void *arg)
{
    struct stdin_copy *c = arg;
    bool end = false;

    for (;;) {
        const struct place *late = prepare(c, &end);
        eventfd_t seen;
        int n;

        if (end)
            break;
        n = poll(c->fds, 2 + c->n, late != NULL && !c->warned ? SLOW_MS : -1);
        if (n == 0) {
            c->warned = true;
            cdi_log(CDI_LOG_WARN, "NEAR-STDIN",
                    "local rank %td does not read its copy of stdin: %zu MiB wait for it, and no rank gets more until "
                    "it reads or closes it (--stdin=all)",
                    late - c->places, c->bytes.len >> 20);
        }
        if (n <= 0)
            continue;
        if (c->fds[0].revents != 0)
            (void)eventfd_read(c->changed, &seen);
        if (c->fds[1].revents != 0)
            read_input(c);
        (void)pthread_mutex_lock(&c->lock);
        for (uint32_t i = 0; i < c->n && c->round == c->now_round; i++)
            if ((c->fds[2 + i].revents & POLLERR) != 0)
                close_end(&c->places[i]);
        (void)pthread_mutex_unlock(&c->lock);
    }
    cdi_buf_release(&c->bytes);
    return NULL;
}

cddp_status stdin_copy_start(struct stdin_copy **out, uint32_t n, struct cdi_error *err)
{
    struct stdin_copy *c = calloc(1, sizeof *c + n * sizeof c->places[0] + (2 + n) * sizeof c->fds[0]);
    sigset_t all, before;
    int rc;

    if (c == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    c->n = n;
    c->fds = (struct pollfd *)(c->places + n);
    for (uint32_t i = 0; i < n; i++)
        c->places[i].fd = -1;
    cdi_buf_init(&c->bytes, STDIN_COPY_MAX);
    (void)pthread_mutex_init(&c->lock, NULL);
    c->changed = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = c->changed < 0 ? errno : pthread_create(&c->thread, NULL, copy_stdin, c);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        if (c->changed >= 0)
            (void)close(c->changed);
        free(c);
        return cdi_fail_errno(err, rc, "cannot start a thread for --stdin=all");
    }
    *out = c;
    return CDDP_OK;
}

int stdin_copy_pipe(struct stdin_copy *c, uint32_t place)
{
    struct place *p = &c->places[place];
    int ends[2];

    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    (void)fcntl(ends[1], F_SETFL, O_NONBLOCK);
    (void)pthread_mutex_lock(&c->lock);
    if (place == 0) {
        c->round++;
        c->in_round = 0;
    }
    close_end(p);
    p->fd = ends[1];
    if (c->ended)
        close_end(p);
    c->in_round++;
    (void)eventfd_write(c->changed, 1);
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
    (void)close(c->changed);
    free(c);
}
