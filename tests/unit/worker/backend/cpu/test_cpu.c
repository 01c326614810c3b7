/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend between real processes. Tests for all backends are in tests/conformance. */
#include "common/clock.h"
#include "common/cpus.h"
#include "hygiene.h"
#include "ranks.h"
#include "within.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

CDI_SUITE(cpu);

/* A sum of n elements, of which every rank gives its number plus 1. */
static int sum_of(struct rank *r, size_t n)
{
    float *x = malloc(n * sizeof *x);
    struct cdi_coll work = {.kind = CDI_ALL_REDUCE,
                            .in = x,
                            .out = x,
                            .count = n,
                            .dtype = CDDP_FLOAT32,
                            .op = CDDP_SUM,
                            .bucket = -1,
                            .lazy = true};

    for (size_t i = 0; i < n; i++)
        x[i] = (float)(r->rank + 1);
    RANK_CHECK(rank_do(r, &work) == CDDP_OK);
    for (size_t i = 0; i < n; i++)
        RANK_CHECK(x[i] == (float)(r->size * (r->size + 1) / 2), "element %zu", i);
    free(x);
    return 0;
}

/* ------------------------------------------------------------------------------------------- what goes wrong ---- */

static const struct cdi_coll barrier = {.kind = CDI_BARRIER, .bucket = -1, .lazy = true};

static int stay_away(struct rank *r)
{
    r->world.timeout_ms = r->rank == 1 ? 60000 : 2000;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1) { /* arrives only after the others have timed out */
        while (atomic_load(&r->board->flag[0]) < 2)
            (void)usleep(1000);
        RANK_CHECK(rank_do(r, &barrier) == CDDP_E_TIMEOUT);
        RANK_CHECK(strstr(r->err.msg, "gave up: barrier: rank 1 did not arrive within 2 s") != NULL);
        return 0;
    }
    RANK_CHECK(rank_do(r, &barrier) == CDDP_E_TIMEOUT);
    RANK_CHECK(strstr(r->err.msg, "barrier: rank 1 did not arrive within 2 s") != NULL);
    atomic_fetch_add(&r->board->flag[0], 1);
    return 0;
}

Test(cpu, names_missing_rank_at_deadline)
{
    cr_assert_eq(ranks_fork(3, 60, stay_away, NULL, NULL), 0);
}

/* Otherwise a sleeping rank has to check from time to time. */
static bool can_wait_for_several_words(void)
{
#ifdef SYS_futex_waitv
    uint32_t word = 0;
    struct futex_waitv other = {.uaddr = (uintptr_t)&word, .val = 1, .flags = FUTEX_32};

    return syscall(SYS_futex_waitv, &other, 1, 0, NULL, 0) < 0 && errno == EAGAIN;
#else
    return false;
#endif
}

static int told_by_the_agent(struct rank *r)
{
    struct cdi_flight *agent = NULL;
    char env[128];
    int fd = -1;
    struct rusage before, after;
    int64_t t0;

    cdi_flight_release(r->world.flight);
    RANK_CHECK(cdi_flight_create(&agent, 0, &fd, &r->err) == CDDP_OK);
    cdi_flight_env(agent, fd, fd, env, sizeof env);
    RANK_CHECK(cdi_flight_attach(&r->world.flight, env, &r->err) == CDDP_OK);
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1) {
        while (atomic_load(&r->board->flag[0]) == 0)
            (void)usleep(1000);
    } else {
        pid_t teller = fork();

        if (teller == 0) {
            (void)usleep(500000); /* until the rank sleeps; a rank that is slower must notice it, too */
            cdi_flight_tell_death(agent, 7, "rank 7 was killed by signal 9 (SIGKILL)");
            _exit(0);
        }
        t0 = cdi_now_ms();
        RANK_CHECK(getrusage(RUSAGE_THREAD, &before) == 0);
        RANK_CHECK(rank_do(r, &barrier) == CDDP_E_PEER);
        RANK_CHECK(getrusage(RUSAGE_THREAD, &after) == 0);
        RANK_CHECK(strstr(r->err.msg, "rank 7 was killed by signal 9") != NULL);
        RANK_CHECK(cdi_now_ms() - t0 < cdi_within_ms(3000));
        if (can_wait_for_several_words())
            RANK_CHECK(after.ru_nvcsw - before.ru_nvcsw < 25, "it woke up %ld times in vain",
                       after.ru_nvcsw - before.ru_nvcsw);
        atomic_store(&r->board->flag[0], 1);
        (void)waitpid(teller, NULL, 0);
    }
    cdi_flight_release(agent);
    (void)close(fd);
    return 0;
}

Test(cpu, agent_report_ends_wait)
{
    cr_assert_eq(ranks_fork(2, 60, told_by_the_agent, NULL, NULL), 0);
}

Test(cpu, agent_report_ends_socket_wait)
{
    static const struct ranks_layout two_nodes = {.name = "1+1", .node_size = {1, 1}};

    cr_assert_eq(ranks_fork_on(&two_nodes, 60, told_by_the_agent, NULL, NULL), 0);
}

/*
 * Both ranks begin on one processor, although they may use two. The scheduler may separate them, too; only this library
 * could leave a rank bound.
 */
static int together(struct rank *r)
{
    struct cdi_coll op = barrier;
    int64_t until = cdi_now_ms() + 5000;
    cpu_set_t may, now, one;
    int first = 0, here = 0;
    double apart = 0, same;
    struct cdi_coll sum = {.kind = CDI_ALL_REDUCE,
                           .in = &same,
                           .out = &same,
                           .count = 1,
                           .dtype = CDDP_FLOAT64,
                           .bucket = -1,
                           .lazy = true};

    RANK_CHECK(sched_getaffinity(0, sizeof may, &may) == 0);
    while (!CPU_ISSET(first, &may))
        first++;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    RANK_CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    RANK_CHECK(sched_setaffinity(0, sizeof may, &may) == 0);
    do {
        RANK_CHECK(rank_do(r, &op) == CDDP_OK);
        here = sched_getcpu();
        same = r->rank == 0 ? -here : here; /* their sum is 0 if both are on one processor */
        RANK_CHECK(rank_do(r, &sum) == CDDP_OK);
        apart = same;
        same = cdi_now_ms() < until;
        RANK_CHECK(rank_do(r, &sum) == CDDP_OK); /* all stop together */
    } while (apart == 0 && same == r->size);
    RANK_CHECK(apart != 0, "both ranks stayed on processor %d", here);
    RANK_CHECK(sched_getaffinity(0, sizeof now, &now) == 0);
    RANK_CHECK(CPU_EQUAL(&now, &may), "the affinity has changed");
    rank_close(r);
    return 0;
}

Test(cpu, ranks_on_one_processor_separate_if_two_are_free)
{
    if (cdi_usable_cpus() < 2)
        cr_skip("this test may use one processor only");
    cr_assert_eq(ranks_fork(2, 60, together, NULL, NULL), 0);
}

static int never_starts(struct rank *r)
{
    r->world.init_timeout_ms = 2000;
    if (r->rank == 1)
        return 0;
    RANK_CHECK(rank_open(r) == CDDP_E_TIMEOUT);
    if (r->rank == 0)
        RANK_CHECK(strstr(r->err.msg, "1 of 3 ranks did not take part in the shared-memory setup within 2 s: 1") !=
                   NULL);
    return 0;
}

Test(cpu, names_rank_missing_in_shared_memory_setup)
{
    cr_assert_eq(ranks_fork(3, 60, never_starts, NULL, NULL), 0);
}

/* Rank 1 of 3 has too little memory or too few descriptors; all ranks get the same message, and none hangs. */
static int poor(struct rank *r)
{
    const struct rlimit files = {.rlim_cur = 16, .rlim_max = 16};

    RANK_CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    RANK_CHECK(rank_open(r) == CDDP_OK);
    return sum_of(r, 100000);
}

Test(cpu, sixteen_descriptors_suffice_for_few_ranks)
{
    cr_assert_eq(ranks_fork(3, 60, poor, NULL, NULL), 0);
}

static int no_files(struct rank *r)
{
    int max = 0;
    struct rlimit files;

    if (r->rank == 1) {
        for (int fd = 0; fd < 1000; fd++)
            if (fcntl(fd, F_GETFD) >= 0)
                max = fd + 1;
        files = (struct rlimit){.rlim_cur = (rlim_t)max, .rlim_max = (rlim_t)max};
        for (int fd = dup(0); fd >= 0 && fd < max; fd = dup(0)) /* fill the gaps */
            if (fd == max - 1)
                break;
        RANK_CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    }
    RANK_CHECK(rank_open(r) != CDDP_OK);
    RANK_CHECK(strstr(r->err.msg, "rank 1: cannot") != NULL);
    RANK_CHECK(strstr(r->err.msg, "; raise the limit of open files (ulimit -n)") != NULL);
    _exit(0); /* the filled gaps are not leaks */
}

Test(cpu, names_rank_without_descriptors_on_all_ranks)
{
    cr_assert_eq(ranks_fork(3, 60, no_files, NULL, NULL), 0);
}

/* Rank 1 dies after it has received rank 0's part of a region. Rank 0 notices when it sends more. */
static void *map_or_die(void *arg, int fd, size_t bytes)
{
    const struct rank *r = arg;
    static int n;
    void *p;

    n++; /* of the control segment, of rank 0's part, of rank 1's */
    if (r->rank == 1 && n == 2)
        _exit(0);
    if (r->rank == 0 && n == 3)
        (void)usleep(300000);
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p != MAP_FAILED ? p : NULL;
}

static void unmap(void *arg, void *p, size_t bytes)
{
    (void)arg;
    (void)munmap(p, bytes);
}

static int loses_one(struct rank *r)
{
    struct cdi_region *region;

    r->mapper = (struct cdi_mapper){.map = map_or_die, .unmap = unmap, .arg = r};
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(cdi_cpu_backend.region_create(r->b, 4096, &region, &r->err) == CDDP_E_PEER);
    RANK_CHECK(r->err.blamed == 2 && strstr(r->err.msg, "rank 1 (pid ") != NULL);
    rank_close(r);
    return 0;
}

Test(cpu, names_rank_that_dies_during_region_create)
{
    cr_assert_eq(ranks_fork(3, 60, loses_one, NULL, NULL), 0);
}

/* Others of a part look for the death, or find it while they wait. */
static int loses_one_of_part(struct rank *r)
{
    static const int ranks[] = {7, 8, 9};
    const struct cdi_coll op = {.kind = CDI_BARRIER};

    r->world.ranks = ranks;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1)
        _exit(0);
    while (r->rank == 2 && cdi_cpu_backend.peek(r->b, &r->err) == CDDP_OK)
        (void)usleep(1000);
    RANK_CHECK(r->rank == 2 || rank_do(r, &op) == CDDP_E_PEER);
    RANK_CHECK(r->err.blamed == 9 && strstr(r->err.msg, "rank 1 (rank 8 of the job, pid ") != NULL);
    rank_close(r);
    return 0;
}

Test(cpu, names_rank_of_job_that_died_in_a_part)
{
    cr_assert_eq(ranks_fork(3, 60, loses_one_of_part, NULL, NULL), 0);
}

/* Rank 2 of 3 is missing in a part, and the first rank learns from the parent communicator that it died. */
static cddp_status rank_2_died(void *arg, const int *of_job, int n, struct cdi_error *err)
{
    (void)arg;
    return n == 3 && of_job[2] == 9 ? cdi_fail_by(err, 9, CDDP_E_PEER, "rank 2 is dead") : CDDP_E_INVALID;
}

static int makes_a_part(struct rank *r)
{
    static const int ranks[] = {7, 8, 9};

    r->world.ranks = ranks;
    r->world.init_timeout_ms = 100000;
    r->world.watch = (struct cdi_watch){.fn = rank_2_died};
    if (r->rank == 2)
        return 0;
    if (r->rank == 1) /* the first rank may not have failed yet; otherwise this one checks by itself */
        (void)usleep(10000);
    RANK_CHECK(rank_open(r) == CDDP_E_PEER);
    RANK_CHECK(r->err.blamed == 10 && strcmp(r->err.msg, "rank 2 is dead") == 0);
    return 0;
}

Test(cpu, does_not_wait_for_dead_member)
{
    cr_assert_eq(ranks_fork(3, 60, makes_a_part, NULL, NULL), 0);
}

/* Rank 0 waits for all that it needs, such as before a copy; the other one takes part in the spare operation later. */
static int waits_without_spare(struct rank *r)
{
    int32_t value = 5 + r->rank;
    const struct cdi_coll op = {.kind = CDI_BROADCAST,
                                .in = &value,
                                .out = &value,
                                .count = 1,
                                .dtype = CDDP_INT32,
                                .bucket = -1,
                                .spare = true,
                                .lazy = true};
    uint64_t ticket;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1)
        while (atomic_load(&r->board->flag[0]) == 0)
            (void)usleep(1000);
    RANK_CHECK(cdi_cpu_backend.enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
    RANK_CHECK(r->rank == 1 || cdi_cpu_backend.stream_wait(r->b, 0, NULL, &r->err) == CDDP_OK);
    atomic_store(&r->board->flag[0], 1);
    RANK_CHECK(cdi_cpu_backend.join(r->b, ticket, &r->err) == CDDP_OK && value == 5);
    rank_close(r);
    return 0;
}

Test(cpu, spare_operation_keeps_nobody_waiting)
{
    cr_assert_eq(ranks_fork(2, 60, waits_without_spare, NULL, NULL), 0);
}

static const int part_of_job[] = {7, 8, 9};

/* Makes a part; fn tells of rank 2's death. */
static cddp_status open_watched(struct rank *r, cddp_status (*fn)(void *, const int *, int, struct cdi_error *))
{
    r->world.ranks = part_of_job;
    r->world.init_timeout_ms = 100000;
    r->world.watch = (struct cdi_watch){.fn = fn, .arg = r};
    return rank_open(r);
}

static void await_flag(struct rank *r, int flag)
{
    while (atomic_load(&r->board->flag[flag]) == 0)
        (void)usleep(1000);
}

/* The first rank hears of the death and leaves; rank 1 finds its address afterwards. */
static int comes_after_first_left(struct rank *r)
{
    if (r->rank == 2)
        return 0;
    if (r->rank == 1)
        await_flag(r, 0);
    RANK_CHECK(open_watched(r, rank_2_died) == CDDP_E_PEER);
    atomic_store(&r->board->flag[0], 1);
    RANK_CHECK(r->err.blamed == 10 && strcmp(r->err.msg, "rank 2 is dead") == 0);
    return 0;
}

Test(cpu, first_rank_of_part_that_left_tells_why)
{
    cr_assert_eq(ranks_fork(3, 60, comes_after_first_left, NULL, NULL), 0);
}

/* The first rank dies while it waits for the others, without a word. */
static cddp_status first_rank_dies(void *arg, const int *of_job, int n, struct cdi_error *err)
{
    struct rank *r = arg;

    (void)of_job;
    (void)n;
    if (r->rank == 0) {
        atomic_store(&r->board->flag[0], 1);
        _exit(0);
    }
    if (atomic_fetch_add(&r->board->flag[1], 1) < 3)
        return CDDP_OK; /* its death takes a moment to be heard */
    return cdi_fail_by(err, 7, CDDP_E_PEER, "rank 0 is dead");
}

static int comes_after_first_died(struct rank *r)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    if (r->rank == 1) {
        await_flag(r, 0);
        (void)nanosleep(&moment, NULL);
    }
    RANK_CHECK(open_watched(r, first_rank_dies) == CDDP_E_PEER);
    RANK_CHECK(r->err.blamed == 8 && strcmp(r->err.msg, "rank 0 is dead") == 0);
    return 0;
}

Test(cpu, first_rank_of_part_that_died_is_named)
{
    cr_assert_eq(ranks_fork(2, 60, comes_after_first_died, NULL, NULL), 0);
}

/* Rank 1 has heard that rank 2 is dead and leaves; a moment later the first rank hears it, too. */
static cddp_status hears_after_rank_1(void *arg, const int *of_job, int n, struct cdi_error *err)
{
    struct rank *r = arg;

    if (atomic_load(&r->board->flag[0]) == 0 || atomic_fetch_add(&r->board->flag[1], 1) < 3)
        return CDDP_OK;
    return rank_2_died(NULL, of_job, n, err);
}

static void *map_or_leave(void *arg, int fd, size_t bytes)
{
    struct rank *r = arg;
    void *p;

    if (r->rank == 1) {
        atomic_store(&r->board->flag[0], 1);
        _exit(0);
    }
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p != MAP_FAILED ? p : NULL;
}

static int loses_rank_that_heard(struct rank *r)
{
    r->mapper = (struct cdi_mapper){.map = map_or_leave, .unmap = unmap, .arg = r};
    RANK_CHECK(open_watched(r, hears_after_rank_1) == CDDP_E_PEER);
    RANK_CHECK(r->err.blamed == 10 && strcmp(r->err.msg, "rank 2 is dead") == 0);
    return 0;
}

Test(cpu, member_that_left_for_a_death_is_not_blamed)
{
    cr_assert_eq(ranks_fork(3, 60, loses_rank_that_heard, NULL, NULL), 0);
}

static int small_memory(struct rank *r)
{
    const struct rlimit memory = {.rlim_cur = 64u << 20, .rlim_max = 64u << 20};
    struct cdi_region *region;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 2)
        RANK_CHECK(setrlimit(RLIMIT_AS, &memory) == 0);
    RANK_CHECK(cdi_cpu_backend.region_create(r->b, 40u << 20, &region, &r->err) == CDDP_E_NOMEM);
    RANK_CHECK(strstr(r->err.msg, "rank 2: cannot map") != NULL);
    return sum_of(r, 1000); /* the parent stays usable */
}

#ifndef CDI_TEST_ASAN
Test(cpu, region_too_large_for_one_rank_fails_on_all)
{
    cr_assert_eq(ranks_fork(3, 60, small_memory, NULL, NULL), 0);
}
#else
static int (*const unused)(struct rank *) __attribute__((unused)) = small_memory;
#endif
