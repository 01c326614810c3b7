/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/node/wait.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/rank_list.h"
#include "worker/backend/describe.h"
#include "worker/backend/spin.h"
#include "worker/backend/who.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 2000
#define SPINS_AT_ONCE 40
#define ASIDE_MS 20           /* at least, between two moves to another processor */
#define SPINS_A_LOOK 100      /* pauses between checks of the peer's processor */
#define SLICE_MS 50           /* between two looks of a sleeper for ranks that died */
#define SLICE_WITHOUT_WAITV 1 /* ms: it sleeps on one word only, so it must poll the others */
#define STOPPED_MS 1000       /* a sleep that took so much longer means that the process was stopped */
#define CHAIN_SHOWN 4         /* ranks in a chain of waits */
#define DIED " died, or exited without cddp_finalize"
#define AGENT_WORD_MS 100 /* after a death, for the agent's message about the death */

void cdi_wait_init(struct cdi_wait *w, struct cdi_shm *shm, struct cdi_flight *flight, int64_t timeout_ms)
{
    int cpus = cdi_shm_usable_cpus(shm);

    memset(w, 0, sizeof *w);
    w->shm = shm;
    w->flight = flight;
    w->timeout_ms = timeout_ms;
    w->yields = cdi_shm_can_yield(shm);
    w->spins_inline = shm->size <= cpus ? SPINS : 0;
    w->spins_thread = 2 * shm->size <= cpus ? SPINS : 0;
}

cddp_status cdi_wait_check(const struct cdi_wait *w, struct cdi_error *err)
{
    cddp_status st = cdi_flight_check(w->flight, err); /* first: its message has the cause */

    return st != CDDP_OK ? st : cdi_shm_aborted(w->shm, err);
}

/* Does this thread occupy the processor that local rank `rank` needs? */
static bool in_its_way(const struct cdi_wait *w, int rank)
{
    return rank != w->shm->rank &&
           atomic_load_explicit(&w->shm->ranks[rank].cpu, memory_order_relaxed) == cdi_shm_tell_cpu(w->shm);
}

static bool has_rank(const struct cdi_wait *w, int cpu)
{
    for (int r = 0; r < w->shm->size; r++)
        if (atomic_load_explicit(&w->shm->ranks[r].cpu, memory_order_relaxed) == (uint32_t)cpu)
            return true;
    return false;
}

/*
 * The scheduler has put this rank and `rank` onto one processor although there are enough: the higher rank moves to a
 * processor without a rank. The affinity of the thread is then restored. This is rare, since it costs about 20 us and
 * the scheduler may have its reasons.
 */
static void step_aside(struct cdi_wait *w, int rank)
{
    int64_t now = cdi_now_ms();
    cpu_set_t may, one, now_may;

    if (rank >= w->shm->rank || now < w->aside_ms || !in_its_way(w, rank) ||
        sched_getaffinity(0, sizeof may, &may) != 0)
        return;
    w->aside_ms = now + ASIDE_MS;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &may) || has_rank(w, cpu))
            continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one) == 0 && sched_getaffinity(0, sizeof now_may, &now_may) == 0 &&
            CPU_EQUAL(&now_may, &one)) /* otherwise the program has changed it meanwhile */
            (void)sched_setaffinity(0, sizeof may, &may);
        (void)cdi_shm_tell_cpu(w->shm);
        return;
    }
}

static bool spin(const struct cdi_wait *w, int rank, struct cdi_counter *c, uint32_t step, int spins)
{
    for (int i = 0; i < spins; i++) {
        if (cdi_counter_reached(c, step))
            return true;
        if (i % SPINS_A_LOOK == SPINS_A_LOOK - 1 && in_its_way(w, rank))
            return false;
        cdi_pause();
    }
    return cdi_counter_reached(c, step);
}

static bool yield(struct cdi_counter *c, uint32_t step)
{
    int64_t until = cdi_now_ns() + CDI_SPIN_YIELD_US * 1000;

    do {
        (void)sched_yield();
        if (cdi_counter_reached(c, step))
            return true;
    } while (cdi_now_ns() < until);
    return false;
}

/* The error of a death. A rank that ended since another one had died is not the cause. */
static cddp_status fail_dead(const struct cdi_wait *w, int rank, const char *how, struct cdi_error *err)
{
    int local = rank - w->shm->first, lost = 0;
    const struct cdi_who who = cdi_who_note(w->ranks, rank, how);

    if (local >= 0 && local < w->shm->size)
        lost = atomic_load(&w->shm->ranks[local].lost);
    if (lost > 0)
        return cdi_fail_by(err, lost - 1, CDDP_E_PEER, "%s" DIED ", after it had lost rank %d of the job, which died",
                           who.text, lost - 1);
    return cdi_fail_by(err, cdi_wait_rank_of_job(w, rank), CDDP_E_PEER, "%s" DIED, who.text);
}

cddp_status cdi_wait_report_death(const struct cdi_wait *w, int rank, const char *how, struct cdi_error *err)
{
    int of_job = cdi_wait_rank_of_job(w, rank);
    int64_t until = cdi_now_ms() + AGENT_WORD_MS;

    while (cdi_flight_has_agent(w->flight) && cdi_now_ms() < until) {
        const struct timespec ms = {.tv_nsec = 1000000};

        if (cdi_wait_check(w, err) != CDDP_OK)
            return err->status;
        if (cdi_flight_has_ended(w->flight, of_job)) {
            const struct cdi_who who = cdi_who_note(w->ranks, rank, how);

            cdi_flight_miss(w->flight, of_job);
            return cdi_fail_by(err, of_job, CDDP_E_PEER, "%s " CDI_FLIGHT_DESERTED, who.text);
        }
        (void)nanosleep(&ms, NULL);
    }
    cdi_flight_miss(w->flight, of_job); /* the agent of this node knows nothing of other nodes */
    return fail_dead(w, rank, how, err);
}

static void put_pid(const struct cdi_wait *w, int rank, char *buf, size_t cap)
{
    (void)snprintf(buf, cap, "pid %d", (int)atomic_load(&w->shm->ranks[rank].pid));
}

static cddp_status report_local_death(const struct cdi_wait *w, int rank, struct cdi_error *err)
{
    char pid[32];

    put_pid(w, rank, pid, sizeof pid);
    return cdi_wait_report_death(w, w->shm->first + rank, pid, err);
}

static cddp_status report_death_at_once(const struct cdi_wait *w, int rank, struct cdi_error *err)
{
    char pid[32];

    put_pid(w, rank, pid, sizeof pid);
    return fail_dead(w, w->shm->first + rank, pid, err);
}

cddp_status cdi_wait_report_end(const struct cdi_wait *w, int rank, struct cdi_error *err)
{
    cddp_status st = cdi_wait_check(w, err);

    if (st != CDDP_OK)
        return st;
    if (!cdi_shm_left(w->shm, rank))
        return report_local_death(w, rank, err);
    rank += w->shm->first;
    return cdi_fail_by(err, cdi_wait_rank_of_job(w, rank), CDDP_E_PEER, "%s " CDI_HAS_LEFT,
                       cdi_who(w->ranks, rank).text);
}

cddp_status cdi_wait_peek(const struct cdi_wait *w, struct cdi_error *err)
{
    cddp_status st = cdi_flight_check(w->flight, err);
    int gone;

    if (st == CDDP_OK)
        st = cdi_shm_peek(w->shm, err);
    if (st != CDDP_OK)
        return st;
    gone = cdi_shm_find_dead(w->shm);
    return gone < 0 ? CDDP_OK : report_death_at_once(w, gone, err);
}

cddp_status cdi_wait_check_ranks(const struct cdi_wait *w, const int *of_job, int n, struct cdi_error *err)
{
    struct cdi_error why;
    bool tells = cdi_shm_peek(w->shm, &why) == CDDP_E_PEER; /* also of ranks of other nodes */

    for (int i = 0; i < n && tells; i++)
        if (why.blamed == of_job[i] + 1)
            return cdi_fail_since(err, &why, "%s", why.msg);
    for (int i = 0; i < n; i++)
        for (int r = 0; r < w->shm->size; r++)
            if (cdi_wait_rank_of_job(w, w->shm->first + r) == of_job[i] && cdi_shm_has_died(w->shm, r))
                return report_death_at_once(w, r, err);
    return CDDP_OK;
}

int cdi_wait_find_dead(struct cdi_wait *w, struct cdi_error *err)
{
    int gone = cdi_shm_find_dead(w->shm);

    if (gone >= 0)
        (void)report_local_death(w, gone, err);
    return gone;
}

/* A wait in progress. */
struct waiting {
    int rank;
    struct cdi_counter *c;
    bool one; /* the only rank to wait for */
    uint32_t step;
    int64_t deadline_ms, look_at_ms, looked_ms;
    uint32_t moved; /* the last sum of `moved` of all ranks */
};

uint32_t cdi_wait_moved(const struct cdi_wait *w)
{
    uint32_t sum = 0;

    for (int r = 0; r < w->shm->size; r++)
        sum += atomic_load_explicit(&w->shm->ranks[r].moved, memory_order_relaxed);
    return sum;
}

void cdi_wait_note_peer(const struct cdi_wait *w, int rank)
{
    atomic_store_explicit(&w->shm->ranks[w->shm->rank].waits_for, (uint32_t)(rank + 1), memory_order_relaxed);
}

int64_t cdi_wait_stopped_ms(int64_t *looked_ms, int64_t now, int64_t slice_ms)
{
    int64_t lost = now - *looked_ms - slice_ms;

    *looked_ms = now;
    return lost > STOPPED_MS ? lost : 0;
}

static void wait_set_deadline(const struct cdi_wait *w, struct waiting *g)
{
    g->looked_ms = cdi_now_ms();
    g->moved = cdi_wait_moved(w);
    g->deadline_ms = cdi_deadline_ms(g->looked_ms, w->timeout_ms + w->slack_ms);
}

/* Returns the state of a process in /proc/PID/stat, such as 'T'; '?': it cannot be read. */
static char state_of(int pid)
{
    char path[32], text[512] = "";
    const char *name_end;
    CDI_AUTOCLOSE int fd = -1;
    ssize_t n;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    name_end = strrchr(text, ')'); /* the name may contain any character */
    return name_end != NULL && name_end[1] == ' ' ? name_end[2] : '?';
}

/* Writes the process of a rank and its state: " (pid 77, which is stopped)". */
static void say_where(const struct cdi_wait *w, int rank, char *buf, size_t cap)
{
    int pid = (int)atomic_load(&w->shm->ranks[rank].pid);
    char state = state_of(pid);

    (void)snprintf(buf, cap, " (pid %d%s)", pid,
                   state == 'T'   ? ", which is stopped by a signal"
                   : state == 't' ? ", which a debugger has stopped"
                                  : "");
}

/*
 * Returns the local rank that local rank `rank` waits for; -1: none; size of the node or more: *world is on another
 * node.
 */
static int next_in_chain(const struct cdi_shm *s, int rank, int *world)
{
    *world = (int)atomic_load_explicit(&s->ranks[rank].waits_for, memory_order_relaxed) - 1;
    if (*world < 0)
        return -1;
    return *world >= s->first && *world < s->first + s->size ? *world - s->first : s->size;
}

/*
 * Local rank `rank` is missing, perhaps because it waits for another rank itself. Follows that chain to its end: ": it
 * waits for rank 2, which waits for rank 3 (pid 77, which is stopped)". The first rank that times out reports for all.
 * Returns the rank at the end, or `rank` where ranks wait in a circle.
 */
static int wait_explain(const struct cdi_wait *w, int rank, char *buf, size_t cap)
{
    const struct cdi_shm *s = w->shm;
    size_t used = 0;
    int seen[CHAIN_SHOWN + 1] = {rank}, n = 1, world;
    const int begin = rank;

    buf[0] = '\0';
    for (int next; n <= CHAIN_SHOWN && (next = next_in_chain(s, rank, &world)) >= 0; rank = next) {
        used += (size_t)snprintf(buf + used, cap - used, "%s %s", n == 1 ? ": it waits for" : ", which waits for",
                                 cdi_who(w->ranks, world).text);
        if (next == s->size) {
            (void)snprintf(buf + used, cap - used, " on another node");
            return world;
        }
        for (int i = 0; i < n; i++)
            if (seen[i] == next)
                return s->first + begin;
        if (next == s->rank)
            return s->first + begin;
        seen[n++] = next;
    }
    say_where(w, rank, buf + used, cap - used);
    return s->first + rank;
}

/* Returns the first of several missing ranks that waits for another rank itself. */
static void say_who_waits(const struct cdi_wait *w, const struct waiting *g, char *buf, size_t cap)
{
    buf[0] = '\0';
    for (int r = 0; r < w->shm->size; r++) {
        int world;

        if (cdi_counter_reached(cdi_shm_post(w->shm, r, g->step), g->step) || next_in_chain(w->shm, r, &world) < 0)
            continue;
        (void)snprintf(buf, cap, "; %.60s waits for %.60s", cdi_who(w->ranks, w->shm->first + r).text,
                       cdi_who(w->ranks, world).text);
        return;
    }
}

/* Reports a timeout, unless data have moved since it began, or a rank has arrived meanwhile. */
static cddp_status wait_timed_out(const struct cdi_wait *w, struct waiting *g, struct cdi_error *err)
{
    struct cdi_rank_list missing = {0};
    char why[320];
    int last = 0, first = -1;

    if (w->slack_ms > 0 && cdi_wait_moved(w) != g->moved) {
        wait_set_deadline(w, g);
        return CDDP_OK;
    }
    if (cdi_counter_reached(g->c, g->step)) /* while this rank checked other events */
        return CDDP_OK;
    for (int r = 0; r < w->shm->size; r++)
        if (g->one ? r == g->rank : !cdi_counter_reached(cdi_shm_post(w->shm, r, g->step), g->step)) {
            cdi_rank_list_add(&missing, w->shm->first + r);
            last = r;
            first = first < 0 ? r : first;
        }
    if (missing.n == 0)
        return CDDP_OK;
    first += w->shm->first;
    if (missing.n == 1)
        first = wait_explain(w, last, why, sizeof why);
    else
        say_who_waits(w, g, why, sizeof why);
    return cdi_fail_by(err, cdi_wait_rank_of_job(w, first), CDDP_E_TIMEOUT, "%s did not arrive within %.4g s%s",
                       cdi_who_list(w->ranks, &missing).text, (double)w->timeout_ms / 1000, why);
}

/* Sleeps until the counter, the agent's word or the abort word changes, until until_ms at the latest. */
static void wait_sleep(struct cdi_wait *w, struct cdi_counter *c, uint32_t seen, uint32_t agent_seen, int64_t until_ms)
{
    _Atomic uint32_t *agent = cdi_flight_wake_word(w->flight);
    struct futex_waitv v[3] = {
        {.uaddr = (uintptr_t)&c->value, .val = seen, .flags = FUTEX_32},
        {.uaddr = (uintptr_t)agent, .val = agent_seen, .flags = FUTEX_32},
        {.uaddr = (uintptr_t)cdi_shm_abort_word(w->shm), .val = 0, .flags = FUTEX_32},
    };
    const struct timespec at = {.tv_sec = until_ms / 1000, .tv_nsec = until_ms % 1000 * 1000000};
    const struct timespec slice = {.tv_nsec = SLICE_WITHOUT_WAITV * 1000000};

#ifdef SYS_futex_waitv
    if (!w->no_waitv) {
        long rc = syscall(SYS_futex_waitv, v, 3, 0, &at, CLOCK_MONOTONIC);

        if (rc >= 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT)
            return;
        w->no_waitv = true; /* an old kernel, or a system call filter */
    }
#else
    (void)v;
    (void)at;
#endif
    (void)syscall(SYS_futex, &c->value, FUTEX_WAIT, seen, &slice, NULL, 0);
}

/* Checks all events that can end the wait, except the counter. */
static cddp_status look_around(struct cdi_wait *w, struct waiting *g, struct cdi_error *err)
{
    cddp_status st = cdi_wait_check(w, err);
    int64_t now = cdi_now_ms();
    int gone = -1;

    g->deadline_ms = cdi_deadline_ms(g->deadline_ms, cdi_wait_stopped_ms(&g->looked_ms, now, SLICE_MS));
    if (st != CDDP_OK)
        return st;
    if (cdi_shm_left(w->shm, g->rank) && !cdi_counter_reached(g->c, g->step))
        return cdi_wait_report_end(w, g->rank, err);
    if (now >= g->look_at_ms) {
        gone = cdi_shm_find_dead(w->shm);
        g->look_at_ms = now + SLICE_MS;
    }
    if (gone >= 0 && !cdi_counter_reached(g->c, g->step))
        return report_local_death(w, gone, err);
    return now >= g->deadline_ms ? wait_timed_out(w, g, err) : CDDP_OK;
}

static cddp_status sleep_for(struct cdi_wait *w, struct waiting *g, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    g->look_at_ms = cdi_now_ms() + SLICE_MS;
    cdi_wait_note_peer(w, w->shm->first + g->rank);
    (void)atomic_fetch_add_explicit(&g->c->sleepers, 1, memory_order_seq_cst);
    for (;;) {
        uint32_t agent_seen = atomic_load(cdi_flight_wake_word(w->flight));
        uint32_t seen = atomic_load_explicit(&g->c->value, memory_order_seq_cst);

        if ((int32_t)(seen - g->step) >= 0)
            break;
        st = look_around(w, g, err);
        if (st != CDDP_OK)
            break;
        wait_sleep(w, g->c, seen, agent_seen, g->look_at_ms < g->deadline_ms ? g->look_at_ms : g->deadline_ms);
    }
    (void)atomic_fetch_sub_explicit(&g->c->sleepers, 1, memory_order_relaxed);
    cdi_wait_note_peer(w, -1);
    return st;
}

static cddp_status wait_one(struct cdi_wait *w, struct waiting *g, bool on_thread,
                            void (*what)(const void *arg, char *buf, size_t cap), const void *arg,
                            struct cdi_error *err)
{
    int spins = on_thread ? w->spins_thread : w->spins_inline;
    struct cdi_error why;
    char name[320];
    cddp_status st;

    if (spin(w, g->rank, g->c, g->step, spins))
        return CDDP_OK;
    if (spins > 0)
        step_aside(w, g->rank);
    if (w->yields && yield(g->c, g->step))
        return CDDP_OK;
    if (g->deadline_ms == 0)
        wait_set_deadline(w, g);
    st = sleep_for(w, g, &why);
    if (st == CDDP_OK)
        return CDDP_OK;
    if (cdi_shm_aborted(w->shm, err) == st)
        return st; /* the message of a peer is complete */
    what(arg, name, sizeof name);
    return cdi_fail_since(err, &why, "%s: %.800s", name, why.msg);
}

/* Do all arrive within a moment? */
static bool all_at_once(struct cdi_wait *w, uint32_t step, int spins)
{
    int r = 0;

    w->late = w->shm->rank;
    for (int i = 0;; i++) {
        while (r < w->shm->size && cdi_counter_reached(cdi_shm_post(w->shm, r, step), step))
            r++;
        if (r == w->shm->size || i >= spins || i >= SPINS_AT_ONCE)
            return r == w->shm->size;
        w->late = r; /* those before it have arrived, and those after it are looked at when it has */
        cdi_pause();
    }
}

cddp_status cdi_wait_all(struct cdi_wait *w, struct cdi_counter *mine, uint32_t step, bool on_thread,
                         void (*what)(const void *arg, char *buf, size_t cap), const void *arg, struct cdi_error *err)
{
    struct waiting g = {.step = step};
    bool all = all_at_once(w, step, on_thread ? w->spins_thread : w->spins_inline);
    cddp_status st = CDDP_OK;

    cdi_counter_wake(mine);
    if (all)
        return CDDP_OK;
    for (g.rank = 0; g.rank < w->shm->size && st == CDDP_OK; g.rank++) {
        g.c = cdi_shm_post(w->shm, g.rank, step);
        if (cdi_counter_reached(g.c, step))
            continue;
        w->late = g.rank;
        st = wait_one(w, &g, on_thread, what, arg, err);
    }
    return st;
}

cddp_status cdi_wait_counter(struct cdi_wait *w, int rank, struct cdi_counter *c, uint32_t step, bool on_thread,
                             void (*what)(const void *arg, char *buf, size_t cap), const void *arg,
                             struct cdi_error *err)
{
    struct waiting g = {.rank = rank, .c = c, .one = true, .step = step};

    return wait_one(w, &g, on_thread, what, arg, err);
}
