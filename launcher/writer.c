/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/writer.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREAD_STACK (256u * 1024)

struct chunk {
    struct chunk *next;
    int fd;
    size_t len;
    char bytes[];
};

struct writer {
    uv_async_t wake; /* first: handle and writer have one address */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    void (*room)(void *arg);
    void *arg;
    void (*closed)(void *arg, bool flushed);
    void *closed_arg;
    bool joined;

    /* Under the lock. */
    struct chunk *head, **tail;
    size_t queued;
    bool wanted;  /* somebody waits for room */
    bool closing; /* end when the queue is empty */
    bool ended;   /* the thread is about to return */

    bool dead[3]; /* the thread's: this descriptor fails */
};

/* All of it, or the descriptor counts as dead. */
static void write_all(struct writer *w, const struct chunk *c)
{
    size_t done = 0;

    while (done < c->len && !w->dead[c->fd]) {
        ssize_t n = write(c->fd, c->bytes + done, c->len - done);

        if (n >= 0) {
            done += (size_t)n;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            /* Somebody else made the shared descriptor non-blocking. */
            struct pollfd p = {.fd = c->fd, .events = POLLOUT};
            (void)poll(&p, 1, -1);
        } else if (errno != EINTR) {
            w->dead[c->fd] = true;
        }
    }
}

static void *run(void *arg)
{
    struct writer *w = arg;

    (void)pthread_mutex_lock(&w->lock);
    while (w->head != NULL || !w->closing) {
        struct chunk *c = w->head;

        if (c == NULL) {
            (void)pthread_cond_wait(&w->more, &w->lock);
            continue;
        }
        w->head = c->next;
        if (w->head == NULL)
            w->tail = &w->head;
        (void)pthread_mutex_unlock(&w->lock);
        write_all(w, c);
        (void)pthread_mutex_lock(&w->lock);
        w->queued -= c->len;
        free(c);
        if (w->wanted && w->queued < WRITER_LOW) {
            w->wanted = false;
            (void)uv_async_send(&w->wake);
        }
    }
    w->ended = true;
    /* Under the lock: the loop frees w only after it has taken the lock once more. */
    (void)uv_async_send(&w->wake);
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void on_handle_closed(uv_handle_t *h)
{
    struct writer *w = (struct writer *)h;
    void (*closed)(void *arg, bool flushed) = w->closed;
    void *arg = w->closed_arg;
    bool joined = w->joined;

    if (joined) {
        (void)pthread_mutex_destroy(&w->lock);
        (void)pthread_cond_destroy(&w->more);
        free(w);
    }
    if (closed != NULL)
        closed(arg, joined);
}

static void on_wake(uv_async_t *h)
{
    struct writer *w = (struct writer *)h;
    bool ended, full;

    (void)pthread_mutex_lock(&w->lock);
    ended = w->ended;
    full = w->queued >= WRITER_LOW;
    (void)pthread_mutex_unlock(&w->lock);
    if (!full && !ended)
        w->room(w->arg);
    if (ended && !w->joined && !uv_is_closing((uv_handle_t *)h)) {
        (void)pthread_join(w->thread, NULL);
        w->joined = true;
        uv_close((uv_handle_t *)h, on_handle_closed);
    }
}

static int start_thread(struct writer *w)
{
    sigset_t all, before;
    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);

    if (rc != 0)
        return rc;
    /* Small: under a tight address-space limit the default of 8 MiB hurts. */
    (void)pthread_attr_setstacksize(&attr, THREAD_STACK);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&w->thread, &attr, run, w);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    return rc;
}

cddp_status writer_start(struct writer **out, uv_loop_t *loop, void (*room)(void *arg), void *arg,
                         struct cdi_error *err)
{
    struct writer *w = calloc(1, sizeof *w);
    int rc;

    if (w == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "output queue: out of memory");
    w->tail = &w->head;
    w->room = room;
    w->arg = arg;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->more, NULL);
    rc = uv_async_init(loop, &w->wake, on_wake);
    if (rc != 0) {
        free(w);
        return cdi_fail_errno(err, -rc, "output queue");
    }
    rc = start_thread(w);
    if (rc != 0) {
        w->joined = true;
        uv_close((uv_handle_t *)&w->wake, on_handle_closed);
        return cdi_fail_errno(err, rc, "cannot start the thread that writes the output");
    }
    *out = w;
    return CDDP_OK;
}

void writer_push(struct writer *w, int fd, const void *bytes, size_t n)
{
    struct chunk *c;

    if (n == 0 || fd < 1 || fd > 2 || (c = malloc(sizeof *c + n)) == NULL)
        return;
    *c = (struct chunk){.fd = fd, .len = n};
    memcpy(c->bytes, bytes, n);
    (void)pthread_mutex_lock(&w->lock);
    if (w->queued + n > WRITER_MAX) {
        free(c);
    } else {
        *w->tail = c;
        w->tail = &c->next;
        w->queued += n;
        (void)pthread_cond_signal(&w->more);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

bool writer_full(struct writer *w)
{
    bool full;

    (void)pthread_mutex_lock(&w->lock);
    full = w->queued >= WRITER_HIGH;
    if (full)
        w->wanted = true;
    (void)pthread_mutex_unlock(&w->lock);
    return full;
}

void writer_close(struct writer *w, void (*closed)(void *arg, bool flushed), void *arg)
{
    w->closed = closed;
    w->closed_arg = arg;
    (void)pthread_mutex_lock(&w->lock);
    w->closing = true;
    (void)pthread_cond_signal(&w->more);
    (void)pthread_mutex_unlock(&w->lock);
}

void writer_abandon(struct writer *w)
{
    if (uv_is_closing((uv_handle_t *)&w->wake))
        return;
    /* The thread still uses w, which therefore stays for the few moments until _exit(). */
    uv_close((uv_handle_t *)&w->wake, on_handle_closed);
}
