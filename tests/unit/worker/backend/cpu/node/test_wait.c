/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a wait at its deadline, and the ranks that the error names. The test provides the clock. */
#include "common/clock.h"
#include "common/cpus.h"
#include "hygiene.h"
#include "lone_rank.h"
#include "ranks.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

CDI_SUITE(wait, .timeout = 120);

/* Called at each clock read; NULL: not called. */
static void (*_Atomic on_look)(struct timespec *now);
static _Thread_local bool looking;

int clock_gettime(clockid_t id, struct timespec *now)
{
    static _Atomic(int (*)(clockid_t, struct timespec *)) real;
    void (*look)(struct timespec *) = atomic_load(&on_look);
    int rc;

    if (atomic_load(&real) == NULL)
        atomic_store(&real, (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime"));
    rc = atomic_load(&real)(id, now);
    if (id == CLOCK_MONOTONIC && look != NULL && !looking) {
        looking = true;
        look(now);
        looking = false;
    }
    return rc;
}

static int64_t ms_of(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000 + t->tv_nsec / 1000000;
}

static const struct cdi_coll barrier = {.kind = CDI_BARRIER, .bucket = -1, .lazy = true};
static const struct cdi_coll from_1 = {.kind = CDI_RECV, .root = 1, .bucket = -1, .lazy = true};

/* ------------------------------------------------------------------------------- coming at the last moment ---- */

static struct lone_rank lone;
static int64_t deadline_ms;

/* Rank 1 arrives at the barrier after rank 0 has checked for it, and before rank 0 reads the clock. */
static void come_now(struct timespec *now)
{
    struct cdi_counter *theirs = cdi_shm_post(lone.comm.shm, 1, 1), *mine = cdi_shm_post(lone.comm.shm, 0, 1);

    if (ms_of(now) < deadline_ms)
        return;
    theirs->hash = mine->hash;
    lone.comm.shm->ranks[1].desc[1] = lone.comm.shm->ranks[0].desc[1];
    cdi_counter_set(theirs, 1);
}

Test(wait, rank_that_arrives_during_clock_read_is_in_time)
{
    lone_rank_start(&lone, 0, 2, 100);
    deadline_ms = cdi_now_ms() + 100;
    atomic_store(&on_look, come_now);
    cr_assert_eq(lone_rank_do(&lone, &barrier), CDDP_OK, "%s", lone.err.msg);
    atomic_store(&on_look, NULL);
    cr_assert_eq(lone.comm.wait.late, 1, "it was waited for");
    lone_rank_end(&lone);
}

Test(wait, rank_that_comes_last_has_waited_for_none)
{
    lone_rank_start(&lone, 0, 2, 100);
    lone.comm.wait.late = 7;
    cdi_counter_set(cdi_shm_post(lone.comm.shm, 1, 1), 1); /* of another operation */
    cr_assert_eq(lone_rank_do(&lone, &barrier), CDDP_E_MISMATCH);
    cr_assert_eq(lone.comm.wait.late, 0);
    lone_rank_end(&lone);
}

/* A message that arrives so. */
static void send_now(struct timespec *now)
{
    struct cdi_shm_mail *m = &lone.comm.shm->ranks[1].mail;

    if (ms_of(now) < deadline_ms)
        return;
    m->desc = (struct cdi_shm_desc){.kind = CDI_SEND};
    atomic_store(&m->address, (uint64_t)1 << 32);
    cdi_counter_set(&m->sent, 1);
}

Test(wait, message_that_arrives_during_clock_read_is_in_time)
{
    lone_rank_start(&lone, 0, 2, 100);
    deadline_ms = cdi_now_ms() + 100;
    atomic_store(&on_look, send_now);
    cr_assert_eq(lone_rank_do(&lone, &from_1), CDDP_OK, "%s", lone.err.msg);
    atomic_store(&on_look, NULL);
    lone_rank_end(&lone);
}

/* ------------------------------------------------------------------------------------- while nobody could run ---- */

/* Sixty seconds pass while rank 0 sleeps; rank 1 needs a moment then. */
static void lose_a_minute(struct timespec *now)
{
    if (ms_of(now) >= deadline_ms)
        now->tv_sec += 60;
}

static void *come_later(void *arg)
{
    struct cdi_shm_mail *m = &lone.comm.shm->ranks[1].mail;

    (void)arg;
    while (cdi_now_ms() < deadline_ms + 60000)
        (void)usleep(1000);
    (void)usleep(200000); /* rank 0 has checked meanwhile */
    m->desc = (struct cdi_shm_desc){.kind = CDI_SEND};
    atomic_store(&m->address, (uint64_t)1 << 32);
    cdi_counter_post(&m->sent, 1);
    return NULL;
}

Test(wait, stopped_time_does_not_count)
{
    pthread_t thread;

    lone_rank_start(&lone, 0, 2, 50000);
    deadline_ms = cdi_now_ms() + 300;
    atomic_store(&on_look, lose_a_minute);
    cr_assert_eq(pthread_create(&thread, NULL, come_later, NULL), 0);
    cr_assert_eq(lone_rank_do(&lone, &from_1), CDDP_OK, "%s", lone.err.msg);
    atomic_store(&on_look, NULL);
    (void)pthread_join(thread, NULL);
    lone_rank_end(&lone);
}

#define STOP_TIMEOUT_MS 3000
#define STOPPED_MS 5000

/* Both ranks are stopped for longer than the timeout; rank 0, which waits, continues first. */
static int be_stopped(struct rank *r)
{
    pid_t parent = getpid(), stopper;

    r->world.timeout_ms = STOP_TIMEOUT_MS;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_OK);
    stopper = fork();
    if (stopper == 0) {
        (void)usleep(300000);
        (void)kill(parent, SIGSTOP);
        (void)usleep((STOPPED_MS + 500 * (unsigned)r->rank) * 1000u);
        (void)kill(parent, SIGCONT);
        _exit(0);
    }
    if (r->rank == 1)
        RANK_CHECK(waitpid(stopper, NULL, 0) == stopper);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_OK);
    if (r->rank == 0)
        RANK_CHECK(waitpid(stopper, NULL, 0) == stopper);
    return 0;
}

Test(wait, ranks_continue_after_all_were_stopped)
{
    const struct ranks_layout one = {.node_size = {2}}, two = {.node_size = {1, 1}};

    cr_assert_eq(ranks_fork_on(&one, 60, be_stopped, NULL, NULL), 0);
    cr_assert_eq(ranks_fork_on(&two, 60, be_stopped, NULL, NULL), 0);
}

/* ------------------------------------------------------------------------------------------- which rank is to blame
 * ---- */

static void waits_for(int rank, int other)
{
    atomic_store(&lone.comm.shm->ranks[rank].waits_for, (uint32_t)other + 1);
}

static void expect_late(const struct cdi_coll *op, const char *text)
{
    cr_assert_eq(lone_rank_do(&lone, op), CDDP_E_TIMEOUT);
    cr_assert_not_null(strstr(lone.err.msg, text), "%s", lone.err.msg);
}

Test(wait, names_end_of_chain_of_waits)
{
    lone_rank_start(&lone, 0, 4, 50);
    atomic_store(&lone.comm.shm->ranks[3].pid, 1);
    waits_for(1, 2);
    waits_for(2, 3);
    expect_late(&from_1, "rank 1 did not arrive within 0.05 s: it waits for rank 2, which waits for rank 3 (pid 1)");
    lone_rank_end(&lone);
}

Test(wait, shows_ranks_that_wait_for_each_other)
{
    lone_rank_start(&lone, 0, 2, 50);
    waits_for(1, 0);
    expect_late(&from_1, "rank 1 did not arrive within 0.05 s: it waits for rank 0");
    lone_rank_end(&lone);
    lone_rank_start(&lone, 0, 4, 50);
    waits_for(1, 2);
    waits_for(2, 1);
    expect_late(&from_1, "rank 1 did not arrive within 0.05 s: it waits for rank 2, which waits for rank 1");
    lone_rank_end(&lone);
}

Test(wait, names_rank_of_another_node_at_end_of_chain)
{
    lone_rank_start(&lone, 0, 2, 50);
    waits_for(1, 7);
    expect_late(&from_1, "rank 1 did not arrive within 0.05 s: it waits for rank 7 on another node");
    lone_rank_end(&lone);
}

Test(wait, follows_a_waiting_rank_among_missing_ones)
{
    lone_rank_start(&lone, 0, 4, 50);
    waits_for(2, 3);
    expect_late(&barrier, "ranks 1, 2, 3 did not arrive within 0.05 s; rank 2 waits for rank 3");
    lone_rank_end(&lone);
}

/* A SIGCONT before the stop would be lost. */
static bool is_stopped(pid_t pid)
{
    char path[64], text[256] = "";
    const char *end;
    FILE *f;

    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = pid > 0 ? fopen(path, "re") : NULL;
    if (f == NULL)
        return false;
    end = fgets(text, sizeof text, f) != NULL ? strrchr(text, ')') : NULL;
    (void)fclose(f);
    return end != NULL && end[1] == ' ' && end[2] == 'T';
}

/* Rank 0 waits for 1, which waits for 2, which is stopped: rank 0 times out first. */
static int chain_of_waits(struct rank *r)
{
    const struct cdi_coll next = {.kind = CDI_RECV, .root = r->rank + 1, .bucket = -1, .lazy = true};
    char want[64];
    cddp_status st;

    r->world.timeout_ms = r->rank == 0 ? 3000 : 50000;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 2) {
        atomic_store(&r->board->flag[2], getpid());
        (void)raise(SIGSTOP);
        return 0;
    }
    atomic_store(&r->board->flag[r->rank], 1);
    while (r->rank == 0 && (atomic_load(&r->board->flag[1]) == 0 || !is_stopped(atomic_load(&r->board->flag[2]))))
        (void)usleep(1000);
    st = rank_do(r, &next);
    (void)snprintf(want, sizeof want, "rank 2 (pid %d, which is stopped by a signal)", atomic_load(&r->board->flag[2]));
    /* Once: a second one would undo the stop by which a leak checker attaches when rank 2 ends. */
    if (r->rank == 0)
        (void)kill(atomic_load(&r->board->flag[2]), SIGCONT);
    RANK_CHECK(st == CDDP_E_TIMEOUT && strstr(r->err.msg, want) != NULL, "want %s", want);
    return 0;
}

Test(wait, names_rank_that_all_others_wait_for)
{
    cr_assert_eq(ranks_fork(3, 60, chain_of_waits, NULL, NULL), 0);
}

/* -------------------------------------------------------------------------------- where a rank may run is its own */

static bool meddle; /* the program binds its thread to processor `chosen` while the library has bound it elsewhere */
static int chosen;

/* All ranks are on one processor. */
int sched_getcpu(void)
{
    return chosen;
}

int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set)
{
    int (*real)(pid_t, size_t, const cpu_set_t *) =
        (int (*)(pid_t, size_t, const cpu_set_t *))dlsym(RTLD_NEXT, "sched_setaffinity");
    int rc = real(pid, size, set);
    cpu_set_t mine;

    if (!meddle || rc != 0)
        return rc;
    meddle = false;
    CPU_ZERO(&mine);
    CPU_SET(chosen, &mine);
    return real(pid, size, &mine);
}

Test(wait, keeps_affinity_that_program_sets_during_move)
{
    const struct cdi_coll from_0 = {.kind = CDI_RECV, .root = 0, .bucket = -1, .lazy = true};
    cpu_set_t may, now;

    cr_assert_eq(sched_getaffinity(0, sizeof may, &may), 0);
    if (cdi_usable_cpus() < 2 || CPU_COUNT(&may) < 2)
        cr_skip("this test may use one processor only");
    while (!CPU_ISSET(chosen, &may))
        chosen++;
    lone_rank_start(&lone, 1, 2, 50);
    atomic_store(&lone.comm.shm->ranks[0].cpu, (uint32_t)chosen);
    for (int i = 0; i < CDI_SHM_CPU_WORDS; i++)
        atomic_store(&lone.comm.shm->ranks[0].cpus[i], atomic_load(&lone.comm.shm->ranks[1].cpus[i]));
    meddle = true;
    cr_assert_eq(lone_rank_do(&lone, &from_0), CDDP_E_TIMEOUT);
    cr_assert_not(meddle, "it did not step aside");
    cr_assert_eq(sched_getaffinity(0, sizeof now, &now), 0);
    cr_assert(CPU_COUNT(&now) == 1 && CPU_ISSET(chosen, &now));
    lone_rank_end(&lone);
}
