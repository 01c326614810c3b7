/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layout and both sides of the flight page. A record is published by its seq: the writer clears seq, fills the fields,
 * stores seq; a reader copies the fields and takes them only if seq was the same before and after.
 */
#include "protocol/flight.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/env.h"
#include "common/visible.h"
#include "protocol/flight_crash.h"
#include "protocol/flight_stop.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FLIGHT_MAGIC 0x54474c4650444443u /* "CDDPFLGT" */
#define FLIGHT_VERSION 8u
#define KEPT 65536 /* records of a worker with more pending collectives than the ring holds; a power of two */
#define OP_UNKNOWN UINT32_MAX
#define FIRST_STEPS 10 /* of a GPU, that are all measured; later each eighth is */
#define STEPS_APART 8

enum { SAID_DEATH = 1, SAID_ROUND_OVER = 2, SAID_STOP = 4 };

struct record {
    _Atomic uint64_t seq;
    _Atomic uint32_t op, dtype;
    _Atomic uint64_t count;
    _Atomic int32_t bucket, late_rank;
    _Atomic int64_t enqueued_ns, started_ns, done_ns, ready_ns, arrived_ns;
};

/* A completed step: `number` is step + 1, and is cleared while the fields change. */
struct step_record {
    _Atomic uint64_t number;
    _Atomic int64_t begun_ns, end_ns, comm_ns, exposed_ns, late_ns, transfer_ns;
    _Atomic int32_t late_rank;
    _Atomic uint32_t n_buckets;
};

/* A mark: `number` is cleared while the fields change. */
struct mark_record {
    _Atomic uint64_t number, step;
    _Atomic int64_t begun_ns, end_ns;
    _Atomic uint32_t kind;
};

/*
 * A part of a communicator. `shown` is 0 while there is nothing to read, and otherwise differs with every use of the
 * slot. Each record has one writer at a time: the one that enqueues, and the one that runs operations.
 */
struct part_slot {
    _Atomic uint32_t taken, shown;
    _Atomic uint64_t started; /* the seq of `running`, set before it */
    _Atomic char who[CDI_FLIGHT_WHO];
    struct record queued, running; /* the last one enqueued, and the last one started */
};

/* at_ns is 0 while the rest changes. */
struct cdi_flight_note {
    _Atomic int64_t at_ns;
    _Atomic int32_t status, blamed_plus_1;
    _Atomic char text[CDI_FLIGHT_TEXT];
};

#define ENDED_MAX 64

struct page {
    /* Written once, before the page is shared. */
    uint64_t magic;
    uint32_t version, size;
    uint64_t nonce;
    uint32_t epoch, pad0;
    _Atomic int32_t claimed; /* pid of the worker */
    uint8_t pad1[4096 - 36];

    /* Agent -> worker. */
    _Atomic uint32_t wake;
    _Atomic uint32_t said;
    _Atomic int32_t dead_rank;
    _Atomic char text[CDI_FLIGHT_TEXT];
    _Atomic uint32_t n_ended; /* ranks that exited with status 0 */
    _Atomic int32_t ended[ENDED_MAX];
    _Atomic int64_t alone_until_ms; /* CDI_NEVER_MS: for ever */
    uint8_t pad2[4096 - 24 - CDI_FLIGHT_TEXT - 4 * ENDED_MAX];

    /* Worker -> agent. */
    _Atomic uint64_t last_seq;
    _Atomic uint64_t step;
    _Atomic int32_t missed_plus_1; /* 0: none */
    _Atomic uint32_t replay_op;
    _Atomic uint64_t replay_begun, replay_ended, replay_number;
    _Atomic int64_t replay_since_ns;
    _Atomic int32_t replay_bucket;
    _Atomic uint32_t over;
    struct record ring[CDI_FLIGHT_RING];
    struct record running; /* the collective that started last: the ring may have lost it */
    struct step_record steps[CDI_FLIGHT_STEPS];
    _Atomic char names[CDI_FLIGHT_BUCKETS][CDI_FLIGHT_NAMES];
    _Atomic uint64_t last_mark;
    struct mark_record marks[CDI_FLIGHT_MARKS];
    _Atomic uint64_t slot_uses;
    struct part_slot parts[CDI_FLIGHT_PARTS];
    struct cdi_flight_note error;

    struct cdi_flight_crash crash; /* both directions */
    struct cdi_flight_stop stop;
};

_Static_assert(offsetof(struct page, wake) == 4096, "the agent's half starts on its own page");
_Static_assert(offsetof(struct page, ring) == 8192 + 64, "the compiler has inserted no padding");
_Static_assert(offsetof(struct page, last_seq) == 8192, "the worker's half starts on its own page");
_Static_assert((CDI_FLIGHT_RING & (CDI_FLIGHT_RING - 1)) == 0, "the ring is indexed by seq modulo its size");
_Static_assert(CDI_FLIGHT_WHO <= CDI_FLIGHT_NAMES, "load_text has room for both");
_Static_assert((CDI_FLIGHT_STEPS & (CDI_FLIGHT_STEPS - 1)) == 0, "the steps are indexed by number modulo their count");

struct cdi_flight {
    struct page *page;
    bool agent; /* another process has the other half */
    bool timed; /* times are exact, */
    bool every; /* and those of every step of a GPU are known */
    bool mute;  /* no records */
    bool stays; /* mapped after the release */
    /*
     * Only of the worker, NULL until it is needed: pending records that the ring has no room for, at seq % KEPT. A
     * record is copied there before its place in the ring is cleared.
     */
    _Atomic(struct record *) kept;
    _Atomic(struct part_slot *) slot;     /* of a part's private page: where it is shown, on the worker's; or NULL */
    _Atomic uintptr_t asker;              /* the thread that calls the program while it waits; 0: none */
    struct cdi_flight_question *question; /* of that thread */
};

#define NAME_OF(NAME, number, name, ...) [number] = name,

const char *cdi_flight_op_name(uint32_t op)
{
    static const char *const names[] = {[CDI_FLIGHT_NONE] = "none",
                                        [CDI_FLIGHT_REGION] = "make_region",
                                        [CDI_FLIGHT_GROUP] = "group",
                                        CDI_COLLECTIVES(NAME_OF, NAME_OF)};

    return op < sizeof names / sizeof names[0] ? names[op] : "?";
}

static void init_page(struct page *p, uint32_t epoch, uint64_t nonce)
{
    p->magic = FLIGHT_MAGIC;
    p->version = FLIGHT_VERSION;
    p->size = sizeof *p;
    p->nonce = nonce;
    p->epoch = epoch;
    atomic_init(&p->dead_rank, -1);
    atomic_init(&p->alone_until_ms, CDI_NEVER_MS);
}

static cddp_status map_new(struct cdi_flight **out, int fd, struct cdi_error *err)
{
    struct cdi_flight *f = calloc(1, sizeof *f);
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;

    if (f == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "flight page: out of memory");
    f->page = mmap(NULL, sizeof *f->page, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (f->page == MAP_FAILED) {
        free(f);
        return cdi_fail_errno(err, errno, "flight page: mmap of %zu bytes", sizeof(struct page));
    }
    *out = f;
    return CDDP_OK;
}

cddp_status cdi_flight_create(struct cdi_flight **out, uint32_t epoch, int *fd_out, struct cdi_error *err)
{
    CDI_AUTOCLOSE int fd = memfd_create("cddp-flight", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    uint64_t nonce;
    cddp_status st;
    int rc;

    if (fd < 0)
        return cdi_fail_errno(err, errno, "flight page: memfd_create");
    /* Reserve the memory now: lack of memory is an error here, not a SIGBUS in the worker. */
    rc = posix_fallocate(fd, 0, (off_t)sizeof(struct page));
    if (rc != 0)
        return cdi_fail_errno(err, rc, "flight page: reserving %zu bytes", sizeof(struct page));
    /* The worker has this descriptor: a page that it made shorter would be a SIGBUS in the agent that reads it. */
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return cdi_fail_errno(err, errno, "flight page: sealing");
    if (getrandom(&nonce, sizeof nonce, 0) != (ssize_t)sizeof nonce)
        return cdi_fail_errno(err, errno, "flight page: getrandom");
    st = map_new(out, fd, err);
    if (st != CDDP_OK)
        return st;
    init_page((*out)->page, epoch, nonce);
    (*out)->agent = true;
    *fd_out = cdi_steal_fd(&fd);
    return CDDP_OK;
}

void cdi_flight_env(const struct cdi_flight *f, int child_fd, int own_fd, char *buf, size_t cap)
{
    (void)snprintf(buf, cap, "fd:%d,/proc/%d/fd/%d,%016" PRIx64, child_fd, (int)getpid(), own_fd, f->page->nonce);
}

static void say(struct cdi_flight *f, uint32_t what)
{
    atomic_fetch_or(&f->page->said, what);
    atomic_fetch_add(&f->page->wake, 1);
    (void)syscall(SYS_futex, &f->page->wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Publishes a text with its end, cut if it is too long. */
static void put_text(_Atomic char to[CDI_FLIGHT_TEXT], const char *text)
{
    size_t n = strlen(text);

    if (n >= CDI_FLIGHT_TEXT)
        n = CDI_FLIGHT_TEXT - 1;
    for (size_t i = 0; i < n; i++)
        atomic_store_explicit(&to[i], text[i], memory_order_relaxed);
    atomic_store_explicit(&to[n], '\0', memory_order_relaxed);
}

void cdi_flight_tell_death(struct cdi_flight *f, int rank, const char *text)
{
    if (atomic_load(&f->page->said) & SAID_DEATH)
        return;
    put_text(f->page->text, text);
    atomic_store(&f->page->dead_rank, rank);
    say(f, SAID_DEATH);
}

static int32_t claimed_pid(const struct page *p)
{
    int32_t pid = atomic_load_explicit(&p->claimed, memory_order_acquire);

    return pid > 0 ? pid : 0;
}

bool cdi_flight_is_claimed(const struct cdi_flight *f)
{
    return claimed_pid(f->page) != 0;
}

void cdi_flight_tell_ended(struct cdi_flight *f, int rank)
{
    uint32_t n = atomic_load(&f->page->n_ended);

    if (n >= ENDED_MAX)
        return;
    atomic_store(&f->page->ended[n], rank);
    atomic_store(&f->page->n_ended, n + 1);
    say(f, 0);
}

void cdi_flight_tell_round_over(struct cdi_flight *f)
{
    say(f, SAID_ROUND_OVER);
}

void cdi_flight_tell_stop_wanted(struct cdi_flight *f)
{
    say(f, SAID_STOP);
}

/*
 * Every number and text of the worker's half is read by one of these five: a worker may have written anything there.
 * The numbers can be bounds of loops, and be added and subtracted. A time or a rank out of range counts as not known.
 */
static uint64_t load_count(const _Atomic uint64_t *at)
{
    uint64_t n = atomic_load_explicit(at, memory_order_acquire);

    return n > CDI_FLIGHT_COUNT_MAX ? CDI_FLIGHT_COUNT_MAX : n;
}

static int64_t load_time(const _Atomic int64_t *at)
{
    int64_t ns = atomic_load_explicit(at, memory_order_acquire);

    return ns < 0 || ns > CDI_FLIGHT_TIME_MAX ? 0 : ns;
}

static int64_t load_span(const _Atomic int64_t *at)
{
    int64_t ns = atomic_load_explicit(at, memory_order_acquire);

    return ns < 0 || ns > CDI_FLIGHT_SPAN_MAX ? 0 : ns;
}

static int32_t load_rank(const _Atomic int32_t *at)
{
    int32_t rank = atomic_load_explicit(at, memory_order_acquire);

    return rank < -1 ? -1 : rank;
}

/* Copies a text of cap bytes, of at most CDI_FLIGHT_NAMES, as one visible line. */
static void load_text(char *to, const _Atomic char *at, size_t cap)
{
    char text[CDI_FLIGHT_NAMES];

    for (size_t i = 0; i < cap; i++)
        text[i] = atomic_load_explicit(&at[i], memory_order_acquire);
    (void)cdi_visible_line(to, cap, text, strnlen(text, cap - 1));
}

/* Copies the record of seq. Returns false while it is rewritten, or if it has another seq. */
static bool read_record(const struct record *r, uint64_t seq, struct cdi_flight_entry *e)
{
    if (seq == 0 || seq > CDI_FLIGHT_COUNT_MAX || atomic_load_explicit(&r->seq, memory_order_acquire) != seq)
        return false;
    *e = (struct cdi_flight_entry){
        .seq = seq,
        .op = atomic_load_explicit(&r->op, memory_order_acquire),
        .dtype = atomic_load_explicit(&r->dtype, memory_order_acquire),
        .count = load_count(&r->count),
        .bucket = load_rank(&r->bucket),
        .enqueued_ns = load_time(&r->enqueued_ns),
        .started_ns = load_time(&r->started_ns),
        .done_ns = load_time(&r->done_ns),
        .ready_ns = load_time(&r->ready_ns),
        .arrived_ns = load_time(&r->arrived_ns),
        .late_rank = load_rank(&r->late_rank),
    };
    return atomic_load_explicit(&r->seq, memory_order_acquire) == seq;
}

void cdi_flight_read(const struct cdi_flight *f, struct cdi_flight_view *view)
{
    const struct page *p = f->page;
    uint64_t last = load_count(&p->last_seq);
    uint64_t first = last > CDI_FLIGHT_RING ? last - CDI_FLIGHT_RING + 1 : 1;
    struct cdi_flight_entry e, running;
    bool has_running = read_record(&p->running, atomic_load_explicit(&p->running.seq, memory_order_acquire), &running);
    int32_t missed = load_rank(&p->missed_plus_1);

    *view = (struct cdi_flight_view){
        .step = load_count(&p->step),
        .claimed_pid = claimed_pid(p),
        .missed_rank = missed > 0 ? missed - 1 : -1,
        .over = atomic_load_explicit(&p->over, memory_order_acquire) != 0,
        .replay = {.ended = load_count(&p->replay_ended),
                   .begun = load_count(&p->replay_begun),
                   .number = load_count(&p->replay_number),
                   .op = atomic_load_explicit(&p->replay_op, memory_order_acquire),
                   .bucket = load_rank(&p->replay_bucket),
                   .since_ns = load_time(&p->replay_since_ns)},
    };
    for (uint64_t seq = first; seq <= last; seq++) {
        if (!read_record(&p->ring[seq % CDI_FLIGHT_RING], seq, &e))
            continue;
        if (has_running && running.seq == seq)
            e.started_ns = running.started_ns;
        view->last = e;
        if (e.done_ns == 0 && view->oldest_unfinished.seq == 0)
            view->oldest_unfinished = e;
    }
    /* More may be pending than the ring holds: then it has lost the oldest. */
    if (has_running && running.done_ns == 0 &&
        (view->oldest_unfinished.seq == 0 || running.seq < view->oldest_unfinished.seq))
        view->oldest_unfinished = running;
}

/* Copies what a slot shows. Returns false if it is empty, or has changed meanwhile. */
static bool read_slot(const struct part_slot *s, struct cdi_flight_part *part)
{
    uint32_t shown = atomic_load_explicit(&s->shown, memory_order_acquire);
    uint64_t started = load_count(&s->started);
    struct cdi_flight_entry running, queued;

    *part = (struct cdi_flight_part){.who = ""};
    if (shown == 0)
        return false;
    load_text(part->who, s->who, CDI_FLIGHT_WHO);
    if (started != 0 && !read_record(&s->running, started, &running))
        return false;
    if (started != 0 && running.done_ns == 0)
        part->unfinished = running;
    else if (started != 0)
        part->last = running;
    if (part->unfinished.seq == 0 &&
        read_record(&s->queued, atomic_load_explicit(&s->queued.seq, memory_order_acquire), &queued) &&
        queued.seq > started)
        part->unfinished = queued;
    /* An operation that has started since then may have been read as a queued one. */
    return load_count(&s->started) == started && atomic_load_explicit(&s->shown, memory_order_acquire) == shown;
}

#define SLOT_READS 3 /* attempts; each fails only if the part has moved on */

size_t cdi_flight_parts(const struct cdi_flight *f, struct cdi_flight_part out[CDI_FLIGHT_PARTS])
{
    size_t n = 0;

    for (size_t i = 0; i < CDI_FLIGHT_PARTS; i++) {
        bool is_there = false;

        for (int k = 0; k < SLOT_READS && !is_there; k++)
            is_there = read_slot(&f->page->parts[i], &out[n]);
        n += is_there;
    }
    return n;
}

size_t cdi_flight_records(const struct cdi_flight *f, uint64_t after, struct cdi_flight_entry *out, size_t cap)
{
    const struct page *p = f->page;
    uint64_t last = load_count(&p->last_seq);
    uint64_t first = last > CDI_FLIGHT_RING ? last - CDI_FLIGHT_RING + 1 : 1;
    struct cdi_flight_entry running;
    bool has_running = read_record(&p->running, atomic_load_explicit(&p->running.seq, memory_order_acquire), &running);
    size_t n = 0;

    for (uint64_t seq = first > after ? first : after + 1; seq <= last && seq > after && n < cap; seq++) {
        if (!read_record(&p->ring[seq % CDI_FLIGHT_RING], seq, &out[n]))
            continue;
        if (has_running && running.seq == seq)
            out[n].started_ns = running.started_ns;
        n++;
    }
    return n;
}

/* Copies the record of step `number` - 1. Returns false while it is rewritten, or if it has another number. */
static bool read_step(const struct step_record *r, uint64_t number, struct cdi_flight_step *s)
{
    if (atomic_load_explicit(&r->number, memory_order_acquire) != number)
        return false;
    *s = (struct cdi_flight_step){
        .step = number - 1,
        .begun_ns = load_time(&r->begun_ns),
        .end_ns = load_time(&r->end_ns),
        .comm_ns = load_span(&r->comm_ns),
        .exposed_ns = load_span(&r->exposed_ns),
        .late_ns = load_span(&r->late_ns),
        .transfer_ns = load_span(&r->transfer_ns),
        .late_rank = load_rank(&r->late_rank),
        .n_buckets = atomic_load_explicit(&r->n_buckets, memory_order_acquire),
    };
    if (s->end_ns - s->begun_ns > CDI_FLIGHT_SPAN_MAX || s->begun_ns - s->end_ns > CDI_FLIGHT_SPAN_MAX)
        s->begun_ns = s->end_ns;
    return atomic_load_explicit(&r->number, memory_order_acquire) == number;
}

size_t cdi_flight_steps(const struct cdi_flight *f, uint64_t from, struct cdi_flight_step *out, size_t cap)
{
    uint64_t done = load_count(&f->page->step);
    uint64_t first = done > CDI_FLIGHT_STEPS ? done - CDI_FLIGHT_STEPS : 0;
    size_t n = 0;

    for (uint64_t i = first > from ? first : from; i < done && n < cap; i++)
        n += read_step(&f->page->steps[i % CDI_FLIGHT_STEPS], i + 1, &out[n]);
    return n;
}

static bool read_mark(const struct mark_record *r, uint64_t number, struct cdi_flight_mark *m)
{
    if (atomic_load_explicit(&r->number, memory_order_acquire) != number)
        return false;
    *m = (struct cdi_flight_mark){
        .number = number,
        .kind = atomic_load_explicit(&r->kind, memory_order_acquire),
        .step = load_count(&r->step),
        .begun_ns = load_time(&r->begun_ns),
        .end_ns = load_time(&r->end_ns),
    };
    return atomic_load_explicit(&r->number, memory_order_acquire) == number;
}

size_t cdi_flight_marks(const struct cdi_flight *f, uint64_t after, struct cdi_flight_mark *out, size_t cap)
{
    uint64_t last = load_count(&f->page->last_mark);
    uint64_t first = last > CDI_FLIGHT_MARKS ? last - CDI_FLIGHT_MARKS + 1 : 1;
    size_t n = 0;

    for (uint64_t i = first > after ? first : after + 1; i <= last && i > after && n < cap; i++)
        n += read_mark(&f->page->marks[i % CDI_FLIGHT_MARKS], i, &out[n]);
    return n;
}

void cdi_flight_mark(struct cdi_flight *f, enum cdi_flight_mark_kind kind, uint64_t step, int64_t begun_ns,
                     int64_t end_ns)
{
    uint64_t number = atomic_fetch_add(&f->page->last_mark, 1) + 1;
    struct mark_record *r = &f->page->marks[number % CDI_FLIGHT_MARKS];

    atomic_store(&r->number, 0);
    atomic_store(&r->kind, (uint32_t)kind);
    atomic_store(&r->step, step);
    atomic_store(&r->begun_ns, begun_ns);
    atomic_store(&r->end_ns, end_ns);
    atomic_store(&r->number, number);
}

void cdi_flight_names(const struct cdi_flight *f, int bucket, char buf[CDI_FLIGHT_NAMES])
{
    buf[0] = '\0';
    if (bucket < 0 || bucket >= CDI_FLIGHT_BUCKETS)
        return;
    load_text(buf, f->page->names[bucket], CDI_FLIGHT_NAMES);
}

/* fd:N,/path,nonce in hex. */
static bool parse_env(const char *env, int *fd, char *path, size_t path_cap, uint64_t *nonce)
{
    const char *comma1 = strchr(env, ',');
    const char *comma2 = comma1 == NULL ? NULL : strchr(comma1 + 1, ',');
    char number[16];
    int64_t n;
    int used = 0;

    if (strncmp(env, "fd:", 3) != 0 || comma2 == NULL)
        return false;
    if ((size_t)(comma1 - env - 3) >= sizeof number || (size_t)(comma2 - comma1 - 1) >= path_cap)
        return false;
    memcpy(number, env + 3, (size_t)(comma1 - env - 3));
    number[comma1 - env - 3] = '\0';
    memcpy(path, comma1 + 1, (size_t)(comma2 - comma1 - 1));
    path[comma2 - comma1 - 1] = '\0';
    if (!cdi_parse_int(number, 0, INT_MAX, &n))
        return false;
    *fd = (int)n;
    return sscanf(comma2 + 1, "%16" SCNx64 "%n", nonce, &used) == 1 && comma2[1 + used] == '\0';
}

/* Maps fd if it is a flight page with this nonce. Another file may have its number, so check before mapping. */
static cddp_status map_checked(struct cdi_flight **out, int fd, uint64_t nonce, struct cdi_error *err)
{
    struct stat sb;
    struct cdi_flight *f;
    uint64_t head[2];
    cddp_status st;

    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode) || sb.st_size < (off_t)sizeof head ||
        pread(fd, head, sizeof head, 0) != (ssize_t)sizeof head || head[0] != FLIGHT_MAGIC)
        return CDDP_E_NOT_FOUND;
    if ((uint32_t)head[1] != FLIGHT_VERSION || (head[1] >> 32) != sizeof(struct page) ||
        sb.st_size < (off_t)sizeof(struct page))
        return cdi_fail(err, CDDP_E_VERSION,
                        "%s: the launcher's flight page has layout %u, this libcddp has %u; use cddprun and libcddp "
                        "of one version",
                        CDI_FLIGHT_ENV, (unsigned)head[1], FLIGHT_VERSION);
    st = map_new(&f, fd, err);
    if (st != CDDP_OK)
        return st;
    if (f->page->nonce != nonce) {
        cdi_flight_release(f);
        return CDDP_E_NOT_FOUND;
    }
    *out = f;
    return CDDP_OK;
}

/* Reads CDDP_TIMING. */
static cddp_status read_timing(struct cdi_flight *f, struct cdi_error *err)
{
    const char *how = cdi_env_str(CDI_TIMING_ENV);

    if (how != NULL && strcmp(how, "on") != 0 && strcmp(how, "all") != 0 && strcmp(how, "off") != 0 &&
        strcmp(how, "none") != 0)
        return cdi_fail(err, CDDP_E_INVALID, "%s='%.64s' is none of on, all, off, none", CDI_TIMING_ENV, how);
    f->every = how != NULL && strcmp(how, "all") == 0;
    f->timed = how == NULL || f->every || strcmp(how, "on") == 0;
    f->mute = how != NULL && strcmp(how, "none") == 0;
    return CDDP_OK;
}

static cddp_status attach_any(struct cdi_flight **out, const char *env, struct cdi_error *err)
{
    struct cdi_flight *f = NULL;
    char path[128];
    uint64_t nonce;
    int fd;
    cddp_status st;

    if (env != NULL && *env != '\0') {
        if (!parse_env(env, &fd, path, sizeof path, &nonce))
            return cdi_fail(err, CDDP_E_INVALID, "%s='%.200s' does not have the form fd:N,/proc/PID/fd/N,NONCE",
                            CDI_FLIGHT_ENV, env);
        st = map_checked(&f, fd, nonce, err);
        if (st == CDDP_E_NOT_FOUND) {
            CDI_AUTOCLOSE int opened = open(path, O_RDWR | O_CLOEXEC);

            fd = -1; /* another file has its number */
            st = opened < 0 ? CDDP_E_NOT_FOUND : map_checked(&f, opened, nonce, err);
        }
        if (st != CDDP_OK && st != CDDP_E_NOT_FOUND)
            return st;
        if (st == CDDP_OK) {
            int32_t nobody = 0, me = (int32_t)getpid();

            if (atomic_compare_exchange_strong(&f->page->claimed, &nobody, me) || nobody == me) {
                f->agent = true;
                (void)fcntl(fd, F_SETFD, FD_CLOEXEC); /* children must not inherit it; EBADF where the path was used */
                *out = f;
                return CDDP_OK;
            }
            cdi_flight_release(f);
        }
    }
    st = map_new(&f, -1, err);
    if (st != CDDP_OK)
        return st;
    init_page(f->page, 0, 0);
    *out = f;
    return CDDP_OK;
}

cddp_status cdi_flight_attach(struct cdi_flight **out, const char *env, struct cdi_error *err)
{
    struct cdi_flight *f = NULL;
    cddp_status st = attach_any(&f, env, err);

    if (st != CDDP_OK)
        return st;
    st = read_timing(f, err);
    if (st != CDDP_OK) {
        cdi_flight_release(f);
        return st;
    }
    *out = f;
    return CDDP_OK;
}

bool cdi_flight_is_timed(const struct cdi_flight *f)
{
    return f->timed;
}

bool cdi_flight_times_step(const struct cdi_flight *f, uint64_t step)
{
    return f->timed && (f->every || step < FIRST_STEPS || step % STEPS_APART == 0);
}

bool cdi_flight_has_agent(const struct cdi_flight *f)
{
    return f->agent;
}

void cdi_flight_hide(struct cdi_flight *part)
{
    struct part_slot *slot = part != NULL ? atomic_load(&part->slot) : NULL;

    if (slot != NULL)
        atomic_store(&slot->shown, 0);
}

void cdi_flight_tell_over(struct cdi_flight *f)
{
    atomic_store(&f->page->over, 1);
}

void cdi_flight_renew(struct cdi_flight *f)
{
    struct page *p = f->page;
    int64_t now_ns = cdi_flight_now(f), pending = 0;

    for (size_t i = 0; i < CDI_FLIGHT_RING; i++, pending = 0)
        (void)atomic_compare_exchange_strong(&p->ring[i].done_ns, &pending, now_ns);
    (void)atomic_compare_exchange_strong(&p->running.done_ns, &pending, now_ns);
    atomic_store(&p->replay_ended, atomic_load(&p->replay_begun));
    atomic_store(&p->over, 0);
}

void cdi_flight_release(struct cdi_flight *f)
{
    struct part_slot *slot;

    if (f == NULL)
        return;
    cdi_flight_hide(f);
    slot = atomic_exchange(&f->slot, NULL);
    if (slot != NULL)
        atomic_store(&slot->taken, 0);
    if (!f->stays)
        (void)munmap(f->page, sizeof *f->page);
    free(atomic_load(&f->kept));
    free(f);
}

void cdi_flight_keep(struct cdi_flight *f)
{
    f->stays = true;
}

/* Readers see either this record or none. Release on each field: none may become visible before seq is cleared. */
static void write_record(struct record *r, const struct cdi_flight_entry *e)
{
    atomic_store_explicit(&r->seq, 0, memory_order_release);
    atomic_store_explicit(&r->op, e->op, memory_order_release);
    atomic_store_explicit(&r->dtype, e->dtype, memory_order_release);
    atomic_store_explicit(&r->count, e->count, memory_order_release);
    atomic_store_explicit(&r->bucket, e->bucket, memory_order_release);
    atomic_store_explicit(&r->enqueued_ns, e->enqueued_ns, memory_order_release);
    atomic_store_explicit(&r->started_ns, e->started_ns, memory_order_release);
    atomic_store_explicit(&r->done_ns, e->done_ns, memory_order_release);
    atomic_store_explicit(&r->ready_ns, e->ready_ns, memory_order_release);
    atomic_store_explicit(&r->arrived_ns, e->arrived_ns, memory_order_release);
    atomic_store_explicit(&r->late_rank, e->late_rank, memory_order_release);
    atomic_store_explicit(&r->seq, e->seq, memory_order_release);
}

void cdi_flight_mirror(struct cdi_flight *part, struct cdi_flight *page, const char *who)
{
    struct part_slot *slot = NULL;
    size_t n = strnlen(who, CDI_FLIGHT_WHO - 1);
    uint32_t use;

    if (part == NULL || page == NULL || part == page || !page->agent || part->mute || atomic_load(&part->slot) != NULL)
        return;
    for (size_t i = 0; i < CDI_FLIGHT_PARTS && slot == NULL; i++) {
        uint32_t nobody = 0;

        if (atomic_compare_exchange_strong(&page->page->parts[i].taken, &nobody, 1))
            slot = &page->page->parts[i];
    }
    if (slot == NULL)
        return;
    use = (uint32_t)(atomic_fetch_add(&page->page->slot_uses, 1) + 1);
    atomic_store(&slot->started, 0);
    atomic_store(&slot->queued.seq, 0);
    atomic_store(&slot->running.seq, 0);
    for (size_t i = 0; i < CDI_FLIGHT_WHO; i++)
        atomic_store_explicit(&slot->who[i], i < n ? who[i] : '\0', memory_order_release);
    atomic_store(&part->slot, slot);
    atomic_store(&slot->shown, use != 0 ? use : 1);
}

static struct part_slot *slot_of(const struct cdi_flight *f)
{
    return atomic_load_explicit(&f->slot, memory_order_acquire);
}

/* Shows an operation that starts, if f is the page of a part. */
static void show_start(struct cdi_flight *f, const struct cdi_flight_entry *e)
{
    struct part_slot *slot = slot_of(f);

    if (slot == NULL)
        return;
    atomic_store_explicit(&slot->started, e->seq, memory_order_release);
    write_record(&slot->running, e);
}

/* Returns the running record of operation seq that the worker's page shows for a part; NULL: there is none. */
static struct record *shown_running(const struct cdi_flight *f, uint64_t seq)
{
    struct part_slot *slot = slot_of(f);

    return slot != NULL && atomic_load_explicit(&slot->running.seq, memory_order_relaxed) == seq ? &slot->running
                                                                                                 : NULL;
}

/* Keeps the record of seq, which the ring is about to overwrite. Without memory, only its name is lost. */
static void keep(struct cdi_flight *f, uint64_t seq)
{
    struct record *kept = atomic_load_explicit(&f->kept, memory_order_relaxed);
    struct cdi_flight_entry e;

    if (atomic_load_explicit(&f->page->ring[seq % CDI_FLIGHT_RING].done_ns, memory_order_relaxed) != 0)
        return;
    if (!read_record(&f->page->ring[seq % CDI_FLIGHT_RING], seq, &e) || e.done_ns != 0)
        return;
    if (kept == NULL) {
        kept = calloc(KEPT, sizeof *kept); /* unused pages stay unallocated */
        if (kept == NULL)
            return;
        atomic_store_explicit(&f->kept, kept, memory_order_release);
    }
    write_record(&kept[seq % KEPT], &e);
}

int64_t cdi_flight_now(const struct cdi_flight *f)
{
    return f->timed ? cdi_now_ticks_ns() : cdi_now_coarse_ns();
}

uint64_t cdi_flight_add(struct cdi_flight *f, struct cdi_flight_entry *e, bool start)
{
    struct page *p = f->page;

    e->seq = atomic_load_explicit(&p->last_seq, memory_order_relaxed) + 1;
    e->late_rank = -1;
    e->started_ns = e->done_ns = e->arrived_ns = 0;
    if (!f->mute) {
        if (e->enqueued_ns == 0)
            e->enqueued_ns = cdi_flight_now(f);
        if (e->seq > CDI_FLIGHT_RING)
            keep(f, e->seq - CDI_FLIGHT_RING);
        e->started_ns = start ? e->enqueued_ns : 0;
        write_record(&p->ring[e->seq % CDI_FLIGHT_RING], e);
        if (start) {
            write_record(&p->running, e);
            show_start(f, e);
        } else if (slot_of(f) != NULL) {
            write_record(&slot_of(f)->queued, e);
        }
    }
    atomic_store_explicit(&p->last_seq, e->seq, memory_order_release);
    return e->seq;
}

uint64_t cdi_flight_enqueue(struct cdi_flight *f, enum cdi_flight_op op, uint32_t dtype, uint64_t count, int bucket)
{
    struct cdi_flight_entry e = {.op = (uint32_t)op, .dtype = dtype, .count = count, .bucket = bucket};

    return cdi_flight_add(f, &e, false);
}

int64_t cdi_flight_begin(struct cdi_flight *f, uint64_t seq)
{
    struct cdi_flight_entry e;

    if (f->mute)
        return 0;
    if (!read_record(&f->page->ring[seq % CDI_FLIGHT_RING], seq, &e)) {
        const struct record *kept = atomic_load_explicit(&f->kept, memory_order_acquire);

        if (kept == NULL || !read_record(&kept[seq % KEPT], seq, &e))
            e = (struct cdi_flight_entry){.seq = seq, .op = OP_UNKNOWN, .bucket = -1, .late_rank = -1};
    }
    e.started_ns = cdi_flight_now(f);
    write_record(&f->page->running, &e);
    show_start(f, &e);
    return e.started_ns;
}

void cdi_flight_start(struct cdi_flight *f, uint64_t seq)
{
    (void)cdi_flight_begin(f, seq);
}

int64_t cdi_flight_end(struct cdi_flight *f, uint64_t seq, int rank, int64_t arrived_ns)
{
    struct record *r = &f->page->ring[seq % CDI_FLIGHT_RING], *running = &f->page->running, *shown;
    int64_t now_ns, started_ns = 0;

    if (f->mute)
        return 0;
    now_ns = cdi_flight_now(f);
    shown = shown_running(f, seq);
    if (shown != NULL)
        atomic_store_explicit(&shown->done_ns, now_ns, memory_order_release);
    if (atomic_load_explicit(&running->seq, memory_order_relaxed) == seq) {
        started_ns = atomic_load_explicit(&running->started_ns, memory_order_relaxed);
        atomic_store_explicit(&running->done_ns, now_ns, memory_order_release);
    }
    if (atomic_load_explicit(&r->seq, memory_order_acquire) != seq)
        return now_ns;
    atomic_store_explicit(&r->started_ns, started_ns, memory_order_release);
    if (rank >= 0) {
        atomic_store_explicit(&r->late_rank, rank, memory_order_release);
        atomic_store_explicit(&r->arrived_ns, arrived_ns != 0 ? arrived_ns : now_ns, memory_order_release);
    }
    atomic_store_explicit(&r->done_ns, now_ns, memory_order_release);
    /*
     * Has a later collective taken its place meanwhile? Then these are not its times, which this thread records later.
     * A fence would close the remaining nanoseconds, but would cost every collective to prevent at most a wrong report.
     */
    if (atomic_load_explicit(&r->seq, memory_order_acquire) != seq) {
        atomic_store_explicit(&r->done_ns, 0, memory_order_release);
        atomic_store_explicit(&r->started_ns, 0, memory_order_release);
        atomic_store_explicit(&r->arrived_ns, 0, memory_order_release);
        atomic_store_explicit(&r->late_rank, -1, memory_order_release);
    }
    return now_ns;
}

void cdi_flight_done(struct cdi_flight *f, uint64_t seq)
{
    (void)cdi_flight_end(f, seq, -1, 0);
}

void cdi_flight_times(struct cdi_flight *f, uint64_t seq, int64_t ready_ns, int64_t started_ns, int64_t done_ns)
{
    struct record *r = &f->page->ring[seq % CDI_FLIGHT_RING], *running = &f->page->running, *shown;

    if (f->mute || atomic_load_explicit(&r->seq, memory_order_acquire) != seq ||
        atomic_load_explicit(&r->done_ns, memory_order_relaxed) == 0)
        return;
    if (atomic_load_explicit(&running->seq, memory_order_relaxed) == seq) {
        atomic_store_explicit(&running->started_ns, started_ns, memory_order_release);
        atomic_store_explicit(&running->done_ns, done_ns, memory_order_release);
    }
    shown = shown_running(f, seq);
    if (shown != NULL && done_ns > 0)
        atomic_store_explicit(&shown->done_ns, done_ns, memory_order_release);
    atomic_store_explicit(&r->ready_ns, ready_ns, memory_order_release);
    atomic_store_explicit(&r->started_ns, started_ns, memory_order_release);
    atomic_store_explicit(&r->done_ns, done_ns, memory_order_release);
    if (atomic_load_explicit(&r->seq, memory_order_acquire) == seq)
        return;
    atomic_store_explicit(&r->done_ns, 0, memory_order_release); /* as in cdi_flight_end */
    atomic_store_explicit(&r->started_ns, 0, memory_order_release);
    atomic_store_explicit(&r->ready_ns, 0, memory_order_release);
}

void cdi_flight_arrived(struct cdi_flight *f, uint64_t seq, int rank, int64_t arrived_ns)
{
    struct record *r = &f->page->ring[seq % CDI_FLIGHT_RING], *shown = shown_running(f, seq);

    if (shown != NULL)
        atomic_store_explicit(&shown->late_rank, rank, memory_order_release);
    if (atomic_load_explicit(&r->seq, memory_order_relaxed) != seq)
        return;
    atomic_store_explicit(&r->late_rank, rank, memory_order_release);
    atomic_store_explicit(&r->arrived_ns, arrived_ns, memory_order_release);
}

void cdi_flight_step_times(struct cdi_flight *f, const struct cdi_flight_step *step)
{
    struct step_record *r = &f->page->steps[step->step % CDI_FLIGHT_STEPS];

    atomic_store_explicit(&r->number, 0, memory_order_release);
    atomic_store_explicit(&r->begun_ns, step->begun_ns, memory_order_release);
    atomic_store_explicit(&r->end_ns, step->end_ns, memory_order_release);
    atomic_store_explicit(&r->comm_ns, step->comm_ns, memory_order_release);
    atomic_store_explicit(&r->exposed_ns, step->exposed_ns, memory_order_release);
    atomic_store_explicit(&r->late_ns, step->late_ns, memory_order_release);
    atomic_store_explicit(&r->transfer_ns, step->transfer_ns, memory_order_release);
    atomic_store_explicit(&r->late_rank, step->late_rank, memory_order_release);
    atomic_store_explicit(&r->n_buckets, step->n_buckets, memory_order_release);
    atomic_store_explicit(&r->number, step->step + 1, memory_order_release);
}

void cdi_flight_step_done(struct cdi_flight *f, const struct cdi_flight_step *step)
{
    cdi_flight_step_times(f, step);
    cdi_flight_step(f, step->step + 1);
}

void cdi_flight_set_names(struct cdi_flight *f, int bucket, const char *names)
{
    size_t n = strnlen(names, CDI_FLIGHT_NAMES - 1);

    if (bucket < 0 || bucket >= CDI_FLIGHT_BUCKETS)
        return;
    for (size_t i = 0; i < CDI_FLIGHT_NAMES; i++)
        atomic_store_explicit(&f->page->names[bucket][i], i < n ? names[i] : '\0', memory_order_relaxed);
}

void cdi_flight_step(struct cdi_flight *f, uint64_t step)
{
    atomic_store_explicit(&f->page->step, step, memory_order_release);
}

void cdi_flight_replays(struct cdi_flight *f, const struct cdi_flight_replay *r)
{
    struct page *p = f->page;

    atomic_store_explicit(&p->replay_op, r->op, memory_order_release);
    atomic_store_explicit(&p->replay_bucket, r->bucket, memory_order_release);
    atomic_store_explicit(&p->replay_number, r->number, memory_order_release);
    atomic_store_explicit(&p->replay_since_ns, cdi_now_coarse_ns(), memory_order_release);
    atomic_store_explicit(&p->replay_begun, r->begun, memory_order_release);
    atomic_store_explicit(&p->replay_ended, r->ended, memory_order_release);
}

void cdi_flight_miss(struct cdi_flight *f, int rank)
{
    int32_t none = 0;

    (void)atomic_compare_exchange_strong(&f->page->missed_plus_1, &none, rank + 1);
}

struct cdi_flight_note *cdi_flight_error_note(struct cdi_flight *f)
{
    return &f->page->error;
}

void cdi_flight_note_error(struct cdi_flight_note *note, const struct cdi_error *err)
{
    atomic_store_explicit(&note->at_ns, 0, memory_order_release);
    atomic_store_explicit(&note->status, (int32_t)err->status, memory_order_release);
    atomic_store_explicit(&note->blamed_plus_1, err->blamed, memory_order_release);
    put_text(note->text, err->msg);
    atomic_store_explicit(&note->at_ns, cdi_now_ns(), memory_order_release);
}

void cdi_flight_error(const struct cdi_flight *f, struct cdi_flight_error *e)
{
    const struct cdi_flight_note *note = &f->page->error;

    *e = (struct cdi_flight_error){.blamed = -1, .at_ns = atomic_load_explicit(&note->at_ns, memory_order_acquire)};
    if (e->at_ns <= 0)
        return;
    e->status = (cddp_status)atomic_load_explicit(&note->status, memory_order_acquire);
    e->blamed = atomic_load_explicit(&note->blamed_plus_1, memory_order_acquire);
    e->blamed = e->blamed > 0 ? e->blamed - 1 : -1; /* whatever the worker has written there */
    for (size_t i = 0; i + 1 < CDI_FLIGHT_TEXT; i++)
        e->text[i] = atomic_load_explicit(&note->text[i], memory_order_acquire);
}

void cdi_flight_ask(struct cdi_flight *f, struct cdi_flight_question *q)
{
    f->question = q;
    atomic_store(&f->asker, q != NULL ? (uintptr_t)pthread_self() : 0);
}

static bool asks_here(const struct cdi_flight *f)
{
    uintptr_t asker = atomic_load_explicit(&f->asker, memory_order_relaxed);

    return asker != 0 && asker == (uintptr_t)pthread_self();
}

static cddp_status ask(struct cdi_flight_question *q, struct cdi_error *err)
{
    int64_t now = cdi_now_coarse_ns();

    if (q->answer == 0 && now >= q->next_ns) {
        q->answer = q->fn(q->arg);
        q->next_ns = cdi_now_coarse_ns() + CDI_FLIGHT_ASK_MS * INT64_C(1000000);
    }
    return q->answer == 0 ? CDDP_OK
                          : cdi_fail(err, CDDP_E_ABORTED, "%s: given up by the program (its `interrupted` returned %d)",
                                     q->what, q->answer);
}

bool cdi_flight_is_interrupted(const struct cdi_flight *f)
{
    return asks_here(f) && f->question->answer != 0;
}

cddp_status cdi_flight_check(const struct cdi_flight *f, struct cdi_error *err)
{
    uint32_t said = atomic_load_explicit(&f->page->said, memory_order_acquire);

    if ((said & (SAID_DEATH | SAID_ROUND_OVER)) == 0 && asks_here(f))
        return ask(f->question, err);
    if ((said & (SAID_DEATH | SAID_ROUND_OVER)) == 0)
        return CDDP_OK;
    if (said & SAID_DEATH) {
        char text[CDI_FLIGHT_TEXT];

        for (size_t i = 0; i < sizeof text; i++)
            text[i] = atomic_load_explicit(&f->page->text[i], memory_order_relaxed);
        text[sizeof text - 1] = '\0';
        return cdi_fail_by(err, atomic_load_explicit(&f->page->dead_rank, memory_order_relaxed), CDDP_E_PEER, "%s",
                           text);
    }
    return cdi_fail(err, CDDP_E_ABORTED, "the launcher has ended this round of the job");
}

void cdi_flight_tell_alone_until(struct cdi_flight *f, int64_t until_ms)
{
    atomic_store_explicit(&f->page->alone_until_ms, until_ms, memory_order_release);
}

static cddp_status confirm_later(const struct cdi_flight *f, int64_t now_ms, struct cdi_error *err)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    int64_t began_ms = now_ms;
    cddp_status st = CDDP_OK;

    while (st == CDDP_OK && now_ms >= atomic_load_explicit(&f->page->alone_until_ms, memory_order_acquire)) {
        if (now_ms - began_ms >= CDI_FLIGHT_CONFIRM_MS)
            return cdi_fail(
                err, CDDP_E_ABORTED,
                "this process was stopped for longer than the lease of its job, and cddprun has not shown for "
                "%d s that the job still runs here",
                CDI_FLIGHT_CONFIRM_MS / 1000);
        (void)nanosleep(&nap, NULL);
        st = cdi_flight_check(f, err);
        now_ms = cdi_now_ms();
    }
    return st;
}

cddp_status cdi_flight_confirm(const struct cdi_flight *f, struct cdi_error *err)
{
    int64_t until_ms = atomic_load_explicit(&f->page->alone_until_ms, memory_order_acquire), now_ms;

    if (until_ms == CDI_NEVER_MS)
        return CDDP_OK;
    now_ms = cdi_now_ms();
    return now_ms < until_ms ? CDDP_OK : confirm_later(f, now_ms, err);
}

int cdi_flight_ended(const struct cdi_flight *f, uint32_t i)
{
    return i < ENDED_MAX && i < atomic_load(&f->page->n_ended) ? atomic_load(&f->page->ended[i]) : -1;
}

bool cdi_flight_has_ended(const struct cdi_flight *f, int rank)
{
    int ended;

    for (uint32_t i = 0; (ended = cdi_flight_ended(f, i)) >= 0; i++)
        if (ended == rank)
            return true;
    return false;
}

bool cdi_flight_stop_wanted(const struct cdi_flight *f)
{
    return (atomic_load_explicit(&f->page->said, memory_order_acquire) & SAID_STOP) != 0;
}

_Atomic uint32_t *cdi_flight_wake_word(struct cdi_flight *f)
{
    return &f->page->wake;
}

struct cdi_flight_crash *cdi_flight_crash(struct cdi_flight *f)
{
    return &f->page->crash;
}

struct cdi_flight_stop *cdi_flight_stop(struct cdi_flight *f)
{
    return &f->page->stop;
}

const _Atomic uint32_t *cdi_flight_said(const struct cdi_flight *f)
{
    return &f->page->said;
}

bool cdi_flight_said_end(const _Atomic uint32_t *said)
{
    return (atomic_load_explicit(said, memory_order_acquire) & (SAID_DEATH | SAID_ROUND_OVER)) != 0;
}
