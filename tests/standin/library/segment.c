/* SPDX-License-Identifier: Apache-2.0 */
#include "segment.h"

#include "common/clock.h"
#include "common/env.h"
#include "edge.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAGIC 0x73746e646e636c31u
#define IDS 64
#define POLL_NS 2000000 /* how long a wait sleeps before it looks whether it was aborted */

struct shared_line {
    uint32_t step;
    struct segment_word word[2]; /* of steps with an even and an odd number */
};

struct shared_rank {
    uint32_t taken, stopped;
    struct segment_place place;
    struct shared_line line[SEGMENT_LINES];
    char chunk[2][SEGMENT_CHUNK];
};

struct segment_shared {
    uint64_t nonce;
    int32_t n_ranks;
    uint32_t changes;
    struct shared_rank rank[]; /* n_ranks; then the letter boxes, n_ranks * n_ranks */
};

/* The ids that this process made and holds open. */
static struct segment_id mine[IDS];
static size_t n_mine;

static size_t letters_at(int n_ranks)
{
    return sizeof(struct segment_shared) + (size_t)n_ranks * sizeof(struct shared_rank);
}

static size_t size_for(int n_ranks)
{
    return letters_at(n_ranks) + (size_t)n_ranks * (size_t)n_ranks * sizeof(struct segment_letter);
}

bool segment_id_create(struct segment_id *id)
{
    struct segment_id new = {.magic = MAGIC, .pid = getpid()};
    bool kept = false;

    (void)getrandom(&new.nonce, sizeof new.nonce, 0);
    new.fd = memfd_create("standin", MFD_CLOEXEC);
    /* Only touched pages take memory, so it has room for the largest world. */
    if (new.fd < 0 || ftruncate(new.fd, (off_t)size_for(SEGMENT_RANKS)) != 0 ||
        pwrite(new.fd, &new.nonce, sizeof new.nonce, 0) != (ssize_t)sizeof new.nonce) {
        if (new.fd >= 0)
            (void)close(new.fd);
        return false;
    }
    si_lock();
    if (n_mine < IDS) {
        mine[n_mine++] = new;
        kept = true;
    }
    si_unlock();
    if (!kept)
        (void)close(new.fd);
    *id = new;
    return kept;
}

void segment_id_close(const struct segment_id *id)
{
    int fd = -1;

    si_lock();
    for (size_t i = 0; i < n_mine && fd < 0; i++) {
        if (mine[i].nonce != id->nonce || mine[i].pid != getpid())
            continue;
        fd = mine[i].fd;
        mine[i] = mine[--n_mine];
    }
    si_unlock();
    if (fd >= 0)
        (void)close(fd);
}

static struct segment_shared *map(const struct segment_id *id, size_t bytes)
{
    char path[64];
    void *p = MAP_FAILED;
    int fd;

    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", id->pid, id->fd);
    fd = id->magic == MAGIC ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0) {
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        (void)close(fd);
    }
    if (p == MAP_FAILED)
        return NULL;
    if (((struct segment_shared *)p)->nonce != id->nonce) {
        (void)munmap(p, bytes);
        return NULL;
    }
    return p;
}

/* All ranks of one world give the same size, and each rank joins once. */
static bool segment_take(struct segment *s, const struct segment_place *place)
{
    struct shared_rank *me = &s->shared->rank[s->rank];
    int32_t none = 0;
    uint32_t vacant = 0;

    if (!__atomic_compare_exchange_n(&s->shared->n_ranks, &none, s->n_ranks, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE) &&
        none != s->n_ranks)
        return false;
    si_copy(&me->place, place, sizeof *place);
    return __atomic_compare_exchange_n(&me->taken, &vacant, 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static bool shares_device(const struct segment *s)
{
    const struct segment_place *me = &s->shared->rank[s->rank].place;

    for (int r = 0; r < s->n_ranks; r++) {
        const struct segment_place *other = &s->shared->rank[r].place;

        if (r != s->rank && other->device == me->device && strcmp(other->host, me->host) == 0)
            return true;
    }
    return false;
}

bool segment_on_one_host(const struct segment *s)
{
    for (int r = 1; r < s->n_ranks; r++)
        if (strcmp(s->shared->rank[r].place.host, s->shared->rank[0].place.host) != 0)
            return false;
    return true;
}

enum segment_result segment_join(struct segment *s, const struct segment_id *id, int rank, int n_ranks,
                                 const struct segment_place *place, const uint32_t *abort)
{
    enum segment_result rc = SEGMENT_OK;
    const struct segment_word here = {.kind = -1};

    const char *notice = cdi_env_str("CDDP_STANDIN_NOTICE");

    *s = (struct segment){.rank = rank,
                          .n_ranks = n_ranks,
                          .abort = abort,
                          .bytes = size_for(n_ranks),
                          .notices = notice != NULL && strcmp(notice, "1") == 0};
    s->shared = map(id, s->bytes);
    if (s->shared == NULL)
        return SEGMENT_NO_FILE;
    if (!segment_take(s, place))
        rc = SEGMENT_BAD_RANK;
    else if (!segment_say(s, SEGMENT_CALLS, &here))
        rc = SEGMENT_ABORTED;
    else if (shares_device(s))
        rc = SEGMENT_SAME_DEVICE;
    segment_id_close(id);
    if (rc != SEGMENT_OK)
        segment_leave(s);
    return rc;
}

void segment_leave(struct segment *s)
{
    if (s->shared != NULL)
        (void)munmap(s->shared, s->bytes);
    s->shared = NULL;
}

/* ---------------------------------------------------------------------------------------------------------- waits --
 */

uint32_t segment_changes(const struct segment *s)
{
    return __atomic_load_n(&s->shared->changes, __ATOMIC_ACQUIRE);
}

void segment_ring(struct segment *s)
{
    (void)__atomic_add_fetch(&s->shared->changes, 1, __ATOMIC_ACQ_REL);
    si_futex_wake(&s->shared->changes, true);
}

void segment_sleep(const struct segment *s, uint32_t seen)
{
    si_futex_wait(&s->shared->changes, seen, POLL_NS, true);
}

static bool all_passed(const struct segment *s, enum segment_line line)
{
    for (int r = 0; r < s->n_ranks; r++) {
        uint32_t step = __atomic_load_n(&s->shared->rank[r].line[line].step, __ATOMIC_ACQUIRE);

        if ((int32_t)(step - s->step[line]) < 0)
            return false;
    }
    return true;
}

/* Also if its parent has not waited for it yet. */
static bool segment_has_ended(int32_t pid)
{
    struct pollfd p = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    bool ended = p.fd < 0 ? errno == ESRCH : poll(&p, 1, 0) > 0;

    if (p.fd >= 0)
        (void)close(p.fd);
    return ended;
}

bool segment_lost(struct segment *s)
{
    for (int r = 0; s->notices && s->shared != NULL && r < s->n_ranks; r++) {
        int32_t pid = __atomic_load_n(&s->shared->rank[r].place.pid, __ATOMIC_ACQUIRE);

        if (r != s->rank && pid != 0 && __atomic_load_n(&s->shared->rank[r].stopped, __ATOMIC_ACQUIRE) == 0 &&
            segment_has_ended(pid))
            __atomic_store_n(&s->lost, 1, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(&s->lost, __ATOMIC_ACQUIRE) != 0;
}

/* Pass one step and wait for the others. */
static bool segment_pass(struct segment *s, enum segment_line line)
{
    s->step[line]++;
    __atomic_store_n(&s->shared->rank[s->rank].line[line].step, s->step[line], __ATOMIC_RELEASE);
    segment_ring(s);
    for (;;) {
        uint32_t seen = segment_changes(s);

        if (all_passed(s, line))
            return true;
        if (__atomic_load_n(s->abort, __ATOMIC_ACQUIRE) != 0 || (segment_lost(s) && line == SEGMENT_CALLS))
            return false;
        segment_sleep(s, seen);
    }
}

void segment_stop(struct segment *s)
{
    if (s->shared == NULL)
        return;
    __atomic_store_n(&s->shared->rank[s->rank].stopped, 1, __ATOMIC_RELEASE);
    segment_ring(s);
}

static bool needs_us(const struct segment *s, int r)
{
    const struct segment_place *me = &s->shared->rank[s->rank].place, *other = &s->shared->rank[r].place;

    return other->pid != me->pid && strcmp(other->host, me->host) == 0 &&
           __atomic_load_n(&s->shared->rank[r].stopped, __ATOMIC_ACQUIRE) == 0 && !segment_has_ended(other->pid);
}

void segment_await_stops(const struct segment *s, int timeout_ms)
{
    int64_t until_ms = cdi_now_ms() + timeout_ms;

    for (int r = 0; s->shared != NULL && r < s->n_ranks;) {
        uint32_t seen = segment_changes(s);

        if (!needs_us(s, r))
            r++;
        else if (timeout_ms < 0 || cdi_now_ms() < until_ms)
            segment_sleep(s, seen);
        else
            return;
    }
}

bool segment_say(struct segment *s, enum segment_line line, const struct segment_word *word)
{
    si_copy(&s->shared->rank[s->rank].line[line].word[(s->step[line] + 1) % 2], word, sizeof *word);
    return segment_pass(s, line);
}

const struct segment_word *segment_heard(const struct segment *s, enum segment_line line, int r)
{
    return &s->shared->rank[r].line[line].word[s->step[line] % 2];
}

char *segment_chunk(const struct segment *s, int r)
{
    return s->shared->rank[r].chunk[s->n_chunks % 2];
}

bool segment_chunk_done(struct segment *s)
{
    if (!segment_pass(s, SEGMENT_OPERATIONS))
        return false;
    s->n_chunks++;
    return true;
}

char *segment_chunk_ready(const struct segment *s, int r)
{
    return s->shared->rank[r].chunk[(s->n_chunks + 1) % 2];
}

struct segment_letter *segment_letter(const struct segment *s, int from, int to)
{
    char *letters = (char *)s->shared + letters_at(s->n_ranks);

    return (struct segment_letter *)(void *)letters + (size_t)from * (size_t)s->n_ranks + (size_t)to;
}
