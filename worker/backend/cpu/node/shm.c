/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/node/shm.h"

#include "common/cleanup.h"
#include "common/cpus.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SHM_MAGIC 0x4d48535044444443u /* "CDDDPSHM" */
#define SHM_VERSION 11u
#define HUGE_PAGE ((size_t)2 << 20) /* with another size the request fails, without harm */
#define PAGE ((size_t)4096)
#define GRAIN ((size_t)1 << 20) /* of one call that allocates */
#define LOOK (16 * GRAIN)       /* after so much, the memory that is left is read again */
#define RESERVE (4 * LOOK)      /* stays for others, and for peers that allocate at the same time */
#define MANY_RANKS 16           /* more than these watch their RSS */

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum { ABORT_NONE = 0, ABORT_WRITING = 1, ABORT_TOLD = 2 };

struct cdi_shm_header {
    uint64_t magic;
    uint32_t version, size;
    _Alignas(64) _Atomic uint32_t abort;
    _Atomic int32_t status;
    _Atomic int32_t blamed; /* as in struct cdi_error */
    _Atomic char text[CDI_SHM_TEXT];
};

static size_t page_up(size_t n)
{
    return (n + PAGE - 1) / PAGE * PAGE;
}

static size_t head_bytes(int size)
{
    return page_up(sizeof(struct cdi_shm_header)) + page_up((size_t)size * sizeof(struct cdi_shm_rank));
}

static size_t mails_bytes(int size)
{
    return (size_t)size * CDI_SHM_MAIL_BYTES;
}

static size_t slots_bytes(int size)
{
    return (size_t)size * 2 * CDI_SHM_SLOT_BYTES;
}

static size_t stages_bytes(int size, bool staged)
{
    return staged ? (size_t)size * 2 * CDI_SHM_STAGES * CDI_SHM_PIECE_BYTES : 0;
}

size_t cdi_shm_bytes(int size, bool staged)
{
    return head_bytes(size) + mails_bytes(size) + slots_bytes(size) + stages_bytes(size, staged);
}

/* Reserves address space for `bytes` bytes, whole pages, aligned for huge pages. Returns NULL with errno set. */
static void *reserve(size_t bytes)
{
    uint8_t *p = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t before;

    if (p == MAP_FAILED)
        return NULL;
    before = -(uintptr_t)p % HUGE_PAGE;
    if (before > 0)
        (void)munmap(p, before);
    (void)munmap(p + before + bytes, HUGE_PAGE - before);
    return p + before;
}

static void *map_memfd(int fd, size_t bytes)
{
    void *at = bytes >= HUGE_PAGE ? reserve(page_up(bytes)) : NULL;
    void *p = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at != NULL ? MAP_FIXED : 0), fd, 0);

    if (p != MAP_FAILED)
        return p;
    if (at != NULL) {
        int error = errno;

        (void)munmap(at, bytes);
        errno = error;
    }
    return NULL;
}

/* The kernel does not refuse what it lacks: it kills a process, maybe another one, when all memory is taken. */
static cddp_status shm_check_room(int fd, size_t bytes, struct cdi_error *err)
{
    uint64_t left = (uint64_t)cdi_memory_available("", true), need = bytes, reserve;
    struct stat sb = {.st_blocks = 0};

    if (fstat(fd, &sb) == 0)
        need -= (uint64_t)sb.st_blocks * 512 < need ? (uint64_t)sb.st_blocks * 512 : need;
    reserve = need / 8 < RESERVE ? need / 8 : RESERVE;
    if (left >= reserve && need <= left - reserve)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_NOMEM,
                    "cannot allocate %zu bytes of shared memory: %llu are missing, and %llu bytes of memory are "
                    "available to this process",
                    bytes, (unsigned long long)need, (unsigned long long)left);
}

/*
 * Older kernels undo a call that a signal interrupts. In small parts, so that a program with a frequent signal (a
 * profiler's) does not begin again for ever.
 */
static cddp_status shm_allocate(int fd, size_t bytes, struct cdi_error *err)
{
    cddp_status st;
    int rc = 0;

    for (size_t done = 0, n; done < bytes && (rc == 0 || rc == EINTR); done += rc == 0 ? n : 0) {
        if (done > 0 && done % LOOK == 0 && shm_check_room(fd, bytes, err) != CDDP_OK)
            return CDDP_E_NOMEM;
        n = bytes - done < GRAIN ? bytes - done : GRAIN;
        rc = posix_fallocate(fd, (off_t)done, (off_t)n);
    }
    if (rc == 0)
        return CDDP_OK;
    st = cdi_fail_errno(err, rc, "cannot allocate %zu bytes of shared memory", bytes);
    if (rc == ENOMEM || rc == ENOSPC || rc == EFBIG)
        st = CDDP_E_NOMEM;
    if (err != NULL)
        err->status = st;
    return st;
}

/*
 * Requests a huge page for each complete one: sums over large arenas are a seventh faster, and allocating them is
 * faster than allocating 512 small ones. Collapsing works for any system setting for shared memory. Where it fails (an
 * old kernel, no free huge page), the page stays a hole here, and small pages fill it.
 */
static void try_huge(int fd, size_t bytes)
{
    uint8_t *p;

    if (bytes < HUGE_PAGE || ftruncate(fd, (off_t)bytes) != 0)
        return;
    p = map_memfd(fd, bytes);
    for (size_t at = 0; p != NULL && at + HUGE_PAGE <= bytes; at += HUGE_PAGE)
        if ((at > 0 && at % LOOK == 0 && shm_check_room(fd, bytes, NULL) != CDDP_OK) ||
            posix_fallocate(fd, (off_t)at, 1) != 0 || /* a hole has no pages */
            madvise(p + at, HUGE_PAGE, MADV_COLLAPSE) != 0)
            break;
    if (p != NULL)
        (void)munmap(p, bytes);
}

bool cdi_shm_suits_huge(int size, size_t bytes)
{
    return size <= MANY_RANKS || bytes / (size_t)size >= 2 * HUGE_PAGE;
}

cddp_status cdi_shm_memfd(const char *name, size_t bytes, bool huge, int *out, struct cdi_error *err)
{
    CDI_AUTOCLOSE int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct rlimit most;
    cddp_status st;

    if (fd < 0)
        return cdi_fail_errno(err, errno, "cannot create shared memory");
    if (shm_check_room(fd, bytes, err) != CDDP_OK)
        return CDDP_E_NOMEM;
    if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY && bytes > most.rlim_cur)
        return cdi_fail(err, CDDP_E_NOMEM, /* else the kernel sends SIGXFSZ */
                        "cannot allocate %zu bytes of shared memory: files of this process may have %llu bytes; raise "
                        "the limit (ulimit -f)",
                        bytes, (unsigned long long)most.rlim_cur);
    if (huge)
        try_huge(fd, bytes);
    st = shm_allocate(fd, bytes, err);
    if (st != CDDP_OK)
        return st;
    (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    *out = cdi_steal_fd(&fd);
    return CDDP_OK;
}

cddp_status cdi_shm_map(const struct cdi_mapper *m, int fd, size_t bytes, void **out, struct cdi_error *err)
{
    struct stat sb;
    void *p;

    if (fstat(fd, &sb) != 0 || (uint64_t)sb.st_size < bytes || (fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) == 0)
        return cdi_fail(err, CDDP_E_PROTOCOL, "the shared memory of a peer is invalid");
    p = m->map != NULL ? m->map(m->arg, fd, bytes) : map_memfd(fd, bytes);
    if (p == NULL) {
        (void)cdi_fail_errno(err, errno, "cannot map %zu bytes of shared memory", bytes);
        if (err != NULL)
            err->status = CDDP_E_NOMEM;
        return CDDP_E_NOMEM;
    }
    *out = p;
    return CDDP_OK;
}

size_t cdi_shm_page_words(size_t bytes)
{
    return (bytes / PAGE + 64) / 64;
}

void cdi_shm_map_pages(uint64_t *mapped, void *base, size_t at, size_t n)
{
    size_t k = at / PAGE, end = (at + n + PAGE - 1) / PAGE;

    while (n > 0 && k < end) {
        size_t first = k;

        for (; k < end && (mapped[k / 64] >> k % 64 & 1) == 0; k++)
            mapped[k / 64] |= UINT64_C(1) << k % 64;
        if (k > first) /* an older kernel refuses: then reading maps them, and their neighbours */
            (void)madvise((uint8_t *)base + first * PAGE, (k - first) * PAGE, MADV_POPULATE_WRITE);
        else
            k++;
    }
}

void cdi_shm_unmap(const struct cdi_mapper *m, void *p, size_t bytes)
{
    if (p == NULL)
        return;
    if (m->map != NULL)
        m->unmap(m->arg, p, bytes);
    else
        (void)munmap(p, bytes);
}

cddp_status cdi_shm_create(struct cdi_shm **out, int rank, int size, int first, bool staged, const struct cdi_mapper *m,
                           struct cdi_error *err)
{
    struct cdi_shm *s = calloc(1, sizeof *s);

    if (s != NULL)
        s->socks = calloc((size_t)size, sizeof *s->socks);
    if (s != NULL && size > MANY_RANKS)
        s->mapped = calloc(cdi_shm_page_words(slots_bytes(size) + stages_bytes(size, staged)), sizeof *s->mapped);
    if (s == NULL || s->socks == NULL || (size > MANY_RANKS && s->mapped == NULL)) {
        if (s != NULL)
            free(s->socks);
        free(s);
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d ranks", size);
    }
    s->rank = rank;
    s->size = size;
    s->first = first;
    s->staged = staged;
    s->bytes = cdi_shm_bytes(size, staged);
    s->life = -1;
    if (m != NULL)
        s->mapper = *m;
    for (int r = 0; r < size; r++)
        s->socks[r] = -1;
    *out = s;
    return CDDP_OK;
}

static struct cdi_shm *attached; /* of this process */
static pthread_mutex_t attached_lock = PTHREAD_MUTEX_INITIALIZER;

static void attached_prepare(void)
{
    (void)pthread_mutex_lock(&attached_lock);
}

static void attached_parent(void)
{
    (void)pthread_mutex_unlock(&attached_lock);
}

/* A child made by fork() may join another job. Deaths in that one are nothing to its parent's segments. */
static void attached_child(void)
{
    attached = NULL;
    attached_parent();
}

static void attached_handlers(void)
{
    (void)pthread_atfork(attached_prepare, attached_parent, attached_child);
}

static void attach(struct cdi_shm *s)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, attached_handlers);
    (void)pthread_mutex_lock(&attached_lock);
    s->next = attached;
    attached = s;
    (void)pthread_mutex_unlock(&attached_lock);
}

void cdi_shm_note_lost(int of_job)
{
    (void)pthread_mutex_lock(&attached_lock);
    for (struct cdi_shm *s = attached; s != NULL; s = s->next) {
        int32_t none = 0;

        (void)atomic_compare_exchange_strong(&s->ranks[s->rank].lost, &none, of_job + 1);
    }
    (void)pthread_mutex_unlock(&attached_lock);
}

static void detach(struct cdi_shm *s)
{
    struct cdi_shm **at = &attached;

    (void)pthread_mutex_lock(&attached_lock);
    while (*at != NULL && *at != s)
        at = &(*at)->next;
    if (*at != NULL)
        *at = s->next;
    (void)pthread_mutex_unlock(&attached_lock);
}

/* Returns a number that another process does not have, unless it is this one's child. */
static uint64_t this_process(void)
{
    static _Atomic uint64_t number;
    uint64_t drawn, none = 0;

    if (atomic_load(&number) == 0 && getrandom(&drawn, sizeof drawn, GRND_NONBLOCK) == (ssize_t)sizeof drawn)
        (void)atomic_compare_exchange_strong(&number, &none, drawn | 1);
    return atomic_load(&number);
}

static bool is_this_process(const struct cdi_shm_rank *r)
{
    return atomic_load(&r->pid) == getpid() && atomic_load(&r->process) == this_process();
}

static void take_over(struct cdi_shm *s, void *segment)
{
    uint8_t *base = segment;
    uint64_t cpus[CDI_SHM_CPU_WORDS];

    s->header = segment;
    s->ranks = (void *)(base + page_up(sizeof *s->header));
    s->mails = base + head_bytes(s->size);
    s->slots = s->mails + mails_bytes(s->size);
    s->stages = s->staged ? s->slots + slots_bytes(s->size) : NULL;
    atomic_store(&s->ranks[s->rank].pid, (int32_t)getpid());
    atomic_store(&s->ranks[s->rank].process, this_process());
    (void)cdi_shm_tell_cpu(s);
    atomic_store(&s->ranks[s->rank].autogroup, cdi_cpus_autogroup(""));
    cdi_cpus_affinity(cpus, CDI_SHM_CPU_WORDS);
    for (int i = 0; i < CDI_SHM_CPU_WORDS; i++)
        atomic_store_explicit(&s->ranks[s->rank].cpus[i], cpus[i], memory_order_relaxed);
    attach(s);
}

bool cdi_shm_can_yield(const struct cdi_shm *s)
{
    uint64_t mine = atomic_load(&s->ranks[s->rank].autogroup);
    bool one = true;

    for (int r = 0; r < s->size; r++)
        one = one && atomic_load(&s->ranks[r].autogroup) == mine;
    return one;
}

int cdi_shm_usable_cpus(const struct cdi_shm *s)
{
    int n = 0, quota = cdi_cpus_quota("");

    for (int i = 0; i < CDI_SHM_CPU_WORDS; i++) {
        uint64_t any = 0;

        for (int r = 0; r < s->size; r++)
            any |= atomic_load_explicit(&s->ranks[r].cpus[i], memory_order_relaxed);
        n += __builtin_popcountll(any);
    }
    return quota > 0 && quota < n ? quota : n;
}

void cdi_shm_format(struct cdi_shm *s, void *segment)
{
    struct cdi_shm_header *h = segment;

    /* A new memfd is all zero, which is the right initial value of everything else. */
    h->magic = SHM_MAGIC;
    h->version = SHM_VERSION;
    h->size = (uint32_t)s->size;
    take_over(s, segment);
}

cddp_status cdi_shm_adopt(struct cdi_shm *s, void *segment, struct cdi_error *err)
{
    const struct cdi_shm_header *h = segment;

    if (h->magic != SHM_MAGIC || h->version != SHM_VERSION || h->size != (uint32_t)s->size)
        return cdi_fail(err, CDDP_E_VERSION,
                        "rank %d's shared memory has another layout: were all ranks built with the same libcddp?",
                        s->first);
    take_over(s, segment);
    return CDDP_OK;
}

void cdi_shm_hold(struct cdi_shm *s, int fd)
{
    struct flock mine = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = s->rank, .l_len = 1};

    s->life = fd;
    if (fcntl(fd, F_SETLK, &mine) == 0)
        atomic_store(&s->ranks[s->rank].holds, 1);
}

/* Ranks that may be threads of this process (tests) count as alive: a process does not see its own locks. */
bool cdi_shm_has_died(const struct cdi_shm *s, int rank)
{
    struct flock theirs = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
    const struct cdi_shm_rank *r = &s->ranks[rank];

    return rank != s->rank && s->life >= 0 && atomic_load(&r->holds) != 0 && !is_this_process(r) &&
           fcntl(s->life, F_GETLK, &theirs) == 0 && theirs.l_type == F_UNLCK && !cdi_shm_left(s, rank);
}

static void shm_wake_all(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void cdi_shm_say_goodbye(struct cdi_shm *s)
{
    struct cdi_shm_rank *me = &s->ranks[s->rank];

    atomic_store(&me->left, 1);
    for (uint32_t parity = 0; parity < 2; parity++) /* unchanged, but sleepers must check `left` */
        shm_wake_all(&me->post[parity].value);
    shm_wake_all(&me->mail.sent.value);
    for (int r = 0; r < s->size; r++)
        shm_wake_all(&s->ranks[r].mail.taken.value);
}

void cdi_shm_leave(struct cdi_shm *s)
{
    if (s == NULL)
        return;
    if (s->header != NULL) {
        cdi_shm_say_goodbye(s);
        detach(s);
        cdi_shm_unmap(&s->mapper, s->header, s->bytes);
        s->header = NULL;
    }
    for (int r = 0; r < s->size; r++) {
        if (s->socks[r] >= 0)
            (void)close(s->socks[r]);
        s->socks[r] = -1;
    }
    if (s->life >= 0)
        (void)close(s->life);
    s->life = -1;
}

void cdi_shm_destroy(struct cdi_shm *s)
{
    if (s == NULL)
        return;
    cdi_shm_leave(s);
    free(s->mapped);
    free(s->socks);
    free(s);
}

void cdi_counter_wake(struct cdi_counter *c)
{
    /*
     * Changes of `sleepers`, including this one, have one order. This call sees and wakes a sleeper before it; a
     * sleeper after it sees the new value and does not sleep.
     */
    if (atomic_fetch_add_explicit(&c->sleepers, 0, memory_order_acq_rel) != 0)
        shm_wake_all(&c->value);
}

void cdi_counter_post(struct cdi_counter *c, uint32_t step)
{
    cdi_counter_set(c, step);
    cdi_counter_wake(c);
}

void cdi_shm_abort(struct cdi_shm *s, const struct cdi_error *why)
{
    struct cdi_shm_header *h = s->header;
    const char *text = why->msg;
    uint32_t none = ABORT_NONE;

    if (h == NULL)
        return;
    if (!atomic_compare_exchange_strong(&h->abort, &none, ABORT_WRITING)) {
        shm_wake_all(&h->abort); /* the first rank may have died before it stored the text */
        return;
    }
    shm_wake_all(&h->abort); /* a rank that wakes up here waits for the text, but not for long */
    atomic_store(&h->status, (int32_t)why->status);
    atomic_store(&h->blamed, why->blamed);
    for (size_t i = 0; i + 1 < sizeof h->text && text[i] != '\0'; i++)
        atomic_store_explicit(&h->text[i], text[i], memory_order_relaxed);
    atomic_store_explicit(&h->abort, ABORT_TOLD, memory_order_release);
    shm_wake_all(&h->abort);
}

/* The abort has a text. */
static cddp_status read_abort(struct cdi_shm_header *h, struct cdi_error *err)
{
    char text[CDI_SHM_TEXT];

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = atomic_load_explicit(&h->text[i], memory_order_relaxed);
    text[sizeof text - 1] = '\0';
    return cdi_fail_told(err, atomic_load(&h->blamed), (cddp_status)atomic_load(&h->status), text);
}

cddp_status cdi_shm_peek(const struct cdi_shm *s, struct cdi_error *err)
{
    struct cdi_shm_header *h = s->header;

    return atomic_load_explicit(&h->abort, memory_order_acquire) == ABORT_TOLD ? read_abort(h, err) : CDDP_OK;
}

cddp_status cdi_shm_aborted(const struct cdi_shm *s, struct cdi_error *err)
{
    struct cdi_shm_header *h = s->header;
    uint32_t state = atomic_load_explicit(&h->abort, memory_order_acquire);

    if (state == ABORT_NONE)
        return CDDP_OK;
    /* The writer needs a microsecond, unless it was killed. */
    for (int i = 0; i < 100 && state != ABORT_TOLD; i++) {
        const struct timespec ms = {.tv_nsec = 1000000};

        (void)nanosleep(&ms, NULL);
        state = atomic_load_explicit(&h->abort, memory_order_acquire);
    }
    if (state != ABORT_TOLD)
        return cdi_fail(err, CDDP_E_ABORTED, "another rank failed, and died or was stopped before it could report why");
    return read_abort(h, err);
}

_Atomic uint32_t *cdi_shm_abort_word(const struct cdi_shm *s)
{
    return &s->header->abort;
}

int cdi_shm_find_dead(const struct cdi_shm *s)
{
    for (int r = 0; r < s->size; r++)
        if (cdi_shm_has_died(s, r))
            return r;
    return -1;
}
