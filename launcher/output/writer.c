/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/output/writer.h"

#include "common/nofollow.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREAD_STACK (256u * 1024)
#define HIGH_OF_ALL (16u * 1024 * 1024) /* divided among the sources if they are many */
#define HIGH_LEAST (64u * 1024)

struct writer_sink {
    struct writer *w;
    int fd;
    int error;       /* the thread's: the errno of its failure; 0 */
    unsigned queued; /* under the lock: chunks */
    bool done;       /* under the lock: no more chunks will follow */
    bool given_up;   /* under the lock: drops */
    char path[];     /* "": a shared descriptor */
};

struct chunk {
    struct chunk *next;
    struct writer_sink *to;
    uint32_t source;
    size_t len;
    char bytes[];
};

struct source {
    size_t queued;
    bool wanted; /* its reader waits for room */
};

struct writer {
    uv_async_t wake; /* first: handle and writer have one address */
    pthread_t thread, older;
    pthread_mutex_t lock;
    pthread_cond_t more;
    const struct writer_events *on;
    void *arg;
    void (*closed)(void *arg, bool flushed);
    void *closed_arg;
    bool joined; /* no thread uses it any more */
    bool warned_lost;
    size_t high;
    uint32_t n_sources;
    struct writer_sink *std[2];
    int said_unwritten[2]; /* reported errors of std */
    bool said_refused;

    /* Under the lock. */
    struct chunk *head, **tail;
    struct writer_sink *writing; /* the sink that the thread writes to now */
    uint64_t progress;
    bool skipped_hung; /* an older thread hangs, or did */
    bool older_over;   /* it does not use w any more */
    int unwritten[2];  /* errors of std */
    int refused;       /* the error of a writer_descriptor() */
    struct source *sources;
    bool room;    /* a source that was waited for has room */
    bool closing; /* end when the queue is empty */
    bool ended;   /* the thread is about to return */
    int lost_error;
    char *lost_path;
};

/* Writes a whole chunk; after an error the sink drops all later ones. Returns errno. */
static int writer_write_all(const struct chunk *c)
{
    size_t done = 0;

    while (done < c->len && c->to->error == 0) {
        ssize_t n = write(c->to->fd, c->bytes + done, c->len - done);

        if (n >= 0) {
            done += (size_t)n;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            /* Another process made the shared descriptor non-blocking. */
            struct pollfd p = {.fd = c->to->fd, .events = POLLOUT};
            (void)poll(&p, 1, -1);
        } else if (errno != EINTR) {
            c->to->error = errno;
            return errno;
        }
    }
    return 0;
}

static void free_sink(struct writer_sink *s)
{
    if (s->path[0] != '\0')
        (void)close(s->fd);
    free(s);
}

/* Where the first error of this chunk's descriptor is noted; NULL for files, and for what cddprun itself writes. */
static int *error_slot(struct writer *w, const struct chunk *c)
{
    if (c->to == w->std[0] || c->to == w->std[1])
        return c->source == w->n_sources - 1 ? NULL : &w->unwritten[c->to == w->std[1]];
    return c->to->path[0] == '\0' ? &w->refused : NULL;
}

/* Under the lock. Returns whether this chunk has the first error of a descriptor. */
static bool note_error(struct writer *w, const struct chunk *c)
{
    int *slot = c->to->error != 0 ? error_slot(w, c) : NULL;

    if (slot == NULL || *slot != 0)
        return false;
    *slot = c->to->error;
    return true;
}

/* Under the lock: accounts for a written chunk. Returns a sink that is not needed any more. */
static struct writer_sink *writer_finish_chunk(struct writer *w, const struct chunk *c, int error)
{
    struct source *from = &w->sources[c->source];
    struct writer_sink *to = c->to;
    bool wake = note_error(w, c);

    w->progress++;
    from->queued -= c->len;
    if (from->wanted && from->queued < w->high / 4) {
        from->wanted = false;
        w->room = true;
        wake = true;
    }
    if (error != 0 && to->path[0] != '\0' && w->lost_path == NULL) {
        w->lost_path = strdup(to->path);
        w->lost_error = error;
        wake = true;
    }
    if (wake)
        (void)uv_async_send(&w->wake);
    return --to->queued == 0 && to->done ? to : NULL;
}

/* Under the lock: removes the first chunk from the queue. */
static struct chunk *writer_dequeue(struct writer *w)
{
    struct chunk *c = w->head;

    w->head = c->next;
    if (w->head == NULL)
        w->tail = &w->head;
    w->writing = c->to;
    return c;
}

/* Under the lock: whether this thread is the current writer. */
static bool is_mine(const struct writer *w)
{
    return pthread_equal(w->thread, pthread_self()) != 0;
}

static void *writer_run(void *arg)
{
    struct writer *w = arg;

    (void)pthread_mutex_lock(&w->lock);
    while (is_mine(w) && (w->head != NULL || !w->closing)) {
        struct writer_sink *over;
        struct chunk *c;
        int error;

        if (w->head == NULL) {
            (void)pthread_cond_wait(&w->more, &w->lock);
            continue;
        }
        c = writer_dequeue(w);
        (void)pthread_mutex_unlock(&w->lock);
        error = writer_write_all(c);
        (void)pthread_mutex_lock(&w->lock);
        if (is_mine(w))
            w->writing = NULL;
        over = writer_finish_chunk(w, c, error);
        free(c);
        if (over != NULL) {
            (void)pthread_mutex_unlock(&w->lock);
            free_sink(over);
            (void)pthread_mutex_lock(&w->lock);
        }
    }
    if (is_mine(w))
        w->ended = true;
    else
        w->older_over = true;
    /* Under the lock: the loop locks once more before it frees w. */
    (void)uv_async_send(&w->wake);
    (void)pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void free_writer(struct writer *w)
{
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_cond_destroy(&w->more);
    free(w->std[0]);
    free(w->std[1]);
    free(w->sources);
    free(w->lost_path);
    free(w);
}

static void writer_on_handle_closed(uv_handle_t *h)
{
    struct writer *w = (struct writer *)h;
    void (*closed)(void *arg, bool flushed) = w->closed;
    void *arg = w->closed_arg;
    bool joined = w->joined;

    if (joined)
        free_writer(w);
    if (closed != NULL)
        closed(arg, joined);
}

static void writer_on_wake(uv_async_t *h)
{
    struct writer *w = (struct writer *)h;
    bool ended, room, lost, hangs;
    int unwritten[2], refused;

    (void)pthread_mutex_lock(&w->lock);
    ended = w->ended;
    room = w->room;
    w->room = false;
    lost = w->lost_path != NULL && !w->warned_lost;
    for (int i = 0; i < 2; i++) {
        unwritten[i] = w->said_unwritten[i] == 0 ? w->unwritten[i] : 0;
        w->said_unwritten[i] = w->unwritten[i];
    }
    refused = w->said_refused ? 0 : w->refused;
    w->said_refused |= refused != 0;
    hangs = w->skipped_hung && !w->older_over;
    (void)pthread_mutex_unlock(&w->lock);
    if (refused != 0 && w->on->refused != NULL)
        w->on->refused(w->arg, refused);
    for (int i = 0; i < 2; i++)
        if (unwritten[i] != 0 && w->on->unwritten != NULL)
            w->on->unwritten(w->arg, i + 1, unwritten[i]);
    if (lost) { /* written once, so it may be read without the lock */
        w->warned_lost = true;
        w->on->lost(w->arg, w->lost_path, w->lost_error);
    }
    if (room && !ended)
        w->on->room(w->arg);
    if (ended && !hangs && !uv_is_closing((uv_handle_t *)h)) {
        (void)pthread_join(w->thread, NULL);
        if (w->skipped_hung)
            (void)pthread_join(w->older, NULL);
        w->joined = true;
        uv_close((uv_handle_t *)h, writer_on_handle_closed);
    }
}

static int writer_start_thread(struct writer *w)
{
    sigset_t all, before;
    pthread_attr_t attr;
    pthread_t thread;
    int rc = pthread_attr_init(&attr);

    if (rc != 0)
        return rc;
    /* Small: the default of 8 MiB matters under a tight address-space limit. */
    (void)pthread_attr_setstacksize(&attr, THREAD_STACK);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    /* Under the lock: the thread compares itself with w->thread. */
    (void)pthread_mutex_lock(&w->lock);
    rc = pthread_create(&thread, &attr, writer_run, w);
    if (rc == 0)
        w->thread = thread;
    (void)pthread_mutex_unlock(&w->lock);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    return rc;
}

static struct writer_sink *make_sink(struct writer *w, int fd, const char *path)
{
    struct writer_sink *s = calloc(1, sizeof *s + strlen(path) + 1);

    if (s == NULL)
        return NULL;
    s->w = w;
    s->fd = fd;
    memcpy(s->path, path, strlen(path) + 1);
    return s;
}

static struct writer *make_writer(uint32_t n_sources)
{
    struct writer *w = calloc(1, sizeof *w);

    if (w == NULL)
        return NULL;
    w->tail = &w->head;
    w->n_sources = n_sources;
    w->high = HIGH_OF_ALL / n_sources;
    w->high = w->high > WRITER_HIGH ? WRITER_HIGH : w->high < HIGH_LEAST ? HIGH_LEAST : w->high;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_cond_init(&w->more, NULL);
    w->sources = calloc(n_sources, sizeof *w->sources);
    w->std[0] = make_sink(w, STDOUT_FILENO, "");
    w->std[1] = make_sink(w, STDERR_FILENO, "");
    if (w->sources != NULL && w->std[0] != NULL && w->std[1] != NULL)
        return w;
    free_writer(w);
    return NULL;
}

cddp_status writer_start(struct writer **out, uv_loop_t *loop, uint32_t n_sources, const struct writer_events *on,
                         void *arg, struct cdi_error *err)
{
    struct writer *w = make_writer(n_sources);
    int rc;

    if (w == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "output queue: out of memory");
    w->on = on;
    w->arg = arg;
    rc = uv_async_init(loop, &w->wake, writer_on_wake);
    if (rc != 0) {
        free_writer(w);
        return cdi_fail_errno(err, -rc, "output queue");
    }
    rc = writer_start_thread(w);
    if (rc != 0) {
        w->joined = true;
        uv_close((uv_handle_t *)&w->wake, writer_on_handle_closed);
        return cdi_fail_errno(err, rc, "cannot start the thread that writes the output");
    }
    *out = w;
    return CDDP_OK;
}

struct writer_sink *writer_std(struct writer *w, int fd)
{
    return w->std[fd - 1];
}

struct writer_sink *writer_descriptor(struct writer *w, int fd)
{
    return make_sink(w, fd, "");
}

int writer_file(struct writer *w, struct writer_sink **out, const char *path, bool anew)
{
    int fd = open(
        path, (anew ? O_TRUNC : 0) | O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | cdi_nofollow(path), 0666);
    struct writer_sink *s;

    if (fd < 0)
        return errno;
    s = make_sink(w, fd, path);
    if (s == NULL) {
        (void)close(fd);
        return ENOMEM;
    }
    *out = s;
    return 0;
}

void writer_file_done(struct writer_sink *s)
{
    bool over;

    if (s == NULL)
        return;
    (void)pthread_mutex_lock(&s->w->lock);
    s->done = true;
    over = s->queued == 0;
    (void)pthread_mutex_unlock(&s->w->lock);
    if (over)
        free_sink(s);
}

void writer_push(struct writer *w, struct writer_sink *s, uint32_t source, const void *bytes, size_t n)
{
    struct chunk *c;

    if (n == 0 || s == NULL || (c = malloc(sizeof *c + n)) == NULL)
        return;
    *c = (struct chunk){.to = s, .source = source, .len = n};
    memcpy(c->bytes, bytes, n);
    (void)pthread_mutex_lock(&w->lock);
    if (s->given_up || w->sources[source].queued + n > WRITER_MAX) {
        free(c);
    } else {
        *w->tail = c;
        w->tail = &c->next;
        w->sources[source].queued += n;
        s->queued++;
        (void)pthread_cond_broadcast(&w->more);
    }
    (void)pthread_mutex_unlock(&w->lock);
}

bool writer_full(struct writer *w, uint32_t source)
{
    bool full;

    (void)pthread_mutex_lock(&w->lock);
    full = w->sources[source].queued >= w->high;
    if (full)
        w->sources[source].wanted = true;
    (void)pthread_mutex_unlock(&w->lock);
    return full;
}

bool writer_is_idle(struct writer *w)
{
    bool idle;

    (void)pthread_mutex_lock(&w->lock);
    idle = w->head == NULL && w->writing == NULL;
    (void)pthread_mutex_unlock(&w->lock);
    return idle;
}

uint64_t writer_progress(struct writer *w)
{
    uint64_t progress;

    (void)pthread_mutex_lock(&w->lock);
    progress = w->progress;
    (void)pthread_mutex_unlock(&w->lock);
    return progress;
}

/* Under the lock: drops the chunks that are queued for it. */
static void writer_give_up(struct writer *w, struct writer_sink *s)
{
    struct chunk **at = &w->head;

    s->given_up = true;
    while (*at != NULL) {
        struct chunk *c = *at;

        if (c->to != s) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        w->sources[c->source].queued -= c->len;
        s->queued--; /* the chunk being written still counts: the sink stays */
        free(c);
    }
    w->tail = at;
}

void writer_skip_hung(struct writer *w)
{
    bool hangs;

    pthread_t older = w->thread;

    (void)pthread_mutex_lock(&w->lock);
    hangs = !w->skipped_hung && !w->ended && w->writing != NULL;
    if (hangs)
        writer_give_up(w, w->writing);
    (void)pthread_mutex_unlock(&w->lock);
    if (!hangs || writer_start_thread(w) != 0)
        return;
    (void)pthread_mutex_lock(&w->lock);
    w->skipped_hung = true;
    w->older = older;
    (void)pthread_mutex_unlock(&w->lock);
}

void writer_close(struct writer *w, void (*closed)(void *arg, bool flushed), void *arg)
{
    w->closed = closed;
    w->closed_arg = arg;
    (void)pthread_mutex_lock(&w->lock);
    w->closing = true;
    (void)pthread_cond_broadcast(&w->more);
    (void)pthread_mutex_unlock(&w->lock);
}

void writer_abandon(struct writer *w)
{
    if (uv_is_closing((uv_handle_t *)&w->wake))
        return;
    /* The thread still uses w, which is therefore kept until _exit(). */
    uv_close((uv_handle_t *)&w->wake, writer_on_handle_closed);
}
