/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend between real processes. */
#include "common/clock.h"
#include "hygiene.h"
#include "ranks.h"
#include "worker/backend/cpu/float16.h"
#include "worker/backend/cpu/reduce.h"
#include "worker/dtype.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>

CDI_SUITE(cpu, .timeout = 100);

#define CHILD_S 60

static const size_t counts[] = {0, 1, 3, 1000, 2049, 65537, 1000000};

/* Element i of rank r's input: anything, but the same whoever computes it. */
static void fill(void *p, size_t count, cddp_dtype dtype, int rank, unsigned salt)
{
    size_t size = cddp_dtype_size(dtype);
    uint64_t x = (uint64_t)rank * 7919 + salt + 1;

    for (size_t i = 0; i < count; i++) {
        double v;

        x = x * 6364136223846793005u + 1442695040888963407u;
        v = (double)(int64_t)(x >> 40) / 16777216 - 0.5;
        if (dtype == CDDP_FLOAT32)
            ((float *)p)[i] = (float)v;
        else if (dtype == CDDP_FLOAT64)
            ((double *)p)[i] = v;
        else if (dtype == CDDP_FLOAT16)
            ((uint16_t *)p)[i] = cdi_f16_of_float((float)v);
        else if (dtype == CDDP_BFLOAT16)
            ((uint16_t *)p)[i] = cdi_bf16_of_float((float)v);
        else
            memcpy((uint8_t *)p + i * size, &x, size);
    }
}

/* What every rank must hold after an all-reduce: computed here from all inputs. */
static void expect(void *want, int size, size_t count, cddp_dtype dtype, cddp_op op, unsigned salt)
{
    const void *in[RANKS_MAX] = {NULL};
    void *own[RANKS_MAX];

    for (int i = 0; i < size; i++) {
        own[i] = malloc(count * cddp_dtype_size(dtype) + 1);
        fill(own[i], count, dtype, i, salt);
        in[i] = own[i];
    }
    cdi_reduce(&want, 1, in, size, count, dtype, op);
    for (int i = 0; i < size; i++)
        free(own[i]);
}

static int reduce_once(struct rank *r, size_t count, cddp_dtype dtype, cddp_op op, bool in_place, unsigned salt)
{
    size_t bytes = count * cddp_dtype_size(dtype);
    uint8_t *in = malloc(bytes + 1), *out = in_place ? in : malloc(bytes + 1), *want = malloc(bytes + 1);
    struct cdi_op work = {.kind = CDI_ALL_REDUCE,
                          .in = in,
                          .out = out,
                          .count = count,
                          .dtype = dtype,
                          .op = op,
                          .bucket = -1,
                          .lazy = true};
    int same;

    fill(in, count, dtype, r->rank, salt);
    expect(want, r->size, count, dtype, op, salt);
    out[bytes] = 0x5a;
    RANK_CHECK(rank_do(r, &work) == CDDP_OK);
    same = memcmp(out, want, bytes) == 0 && out[bytes] == 0x5a;
    if (!in_place)
        free(out);
    free(in);
    free(want);
    RANK_CHECK(same, "%s of %zu %s, %d ranks", cdi_op_name(op), count, cdi_dtype_name(dtype), r->size);
    return 0;
}

static int reduce_all(struct rank *r)
{
    unsigned salt = 0;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
        for (int dtype = CDDP_INT8; dtype <= CDDP_BFLOAT16; dtype++)
            for (int op = CDDP_SUM; op <= CDDP_MEAN; op++) {
                if (op == CDDP_MEAN && !cdi_dtype_is_float((cddp_dtype)dtype))
                    continue;
                if (counts[c] > 10000 && (op == CDDP_PROD || op == CDDP_MIN || dtype == CDDP_UINT32))
                    continue; /* the small ones have shown them */
                salt++;
                if (reduce_once(r, counts[c], (cddp_dtype)dtype, (cddp_op)op, salt % 2, salt) != 0)
                    return 1;
            }
    return 0;
}

Test(cpu, all_reduce_gives_the_sum_in_rank_order_on_1_to_4_ranks)
{
    for (int n = 1; n <= 4; n++)
        cr_assert_eq(ranks_fork(n, CHILD_S, reduce_all, NULL, NULL), 0, "%d ranks", n);
}

static int move_all(struct rank *r)
{
    unsigned salt = 0;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
        for (int pass = 0; pass < 4; pass++) {
            cddp_dtype dtype = pass % 2 ? CDDP_FLOAT32 : CDDP_INT8;
            size_t bytes = counts[c] * cddp_dtype_size(dtype);
            uint8_t *all = malloc(bytes * (size_t)r->size + 1), *one = malloc(bytes + 1), *want = malloc(bytes + 1);
            uint8_t *mine = all + (size_t)r->rank * bytes;
            int root = (int)c % r->size;
            struct cdi_op gather = {.kind = CDI_ALL_GATHER,
                                    .out = all,
                                    .count = counts[c],
                                    .dtype = dtype,
                                    .bucket = -1,
                                    .lazy = true,
                                    .in = pass < 2 ? one : mine};
            struct cdi_op cast = {.kind = CDI_BROADCAST,
                                  .out = one,
                                  .in = one,
                                  .count = counts[c],
                                  .dtype = dtype,
                                  .bucket = -1,
                                  .lazy = true,
                                  .root = root};
            struct cdi_op barrier = {.kind = CDI_BARRIER, .bucket = -1, .lazy = true};

            salt++;
            fill(pass < 2 ? one : mine, counts[c], dtype, r->rank, salt);
            RANK_CHECK(rank_do(r, &gather) == CDDP_OK);
            for (int i = 0; i < r->size; i++) {
                fill(want, counts[c], dtype, i, salt);
                RANK_CHECK(memcmp(all + (size_t)i * bytes, want, bytes) == 0, "part %d of %zu bytes", i, bytes);
            }
            RANK_CHECK(rank_do(r, &barrier) == CDDP_OK);
            fill(one, counts[c], dtype, r->rank, salt + 1000);
            fill(want, counts[c], dtype, root, salt + 1000);
            RANK_CHECK(rank_do(r, &cast) == CDDP_OK);
            RANK_CHECK(memcmp(one, want, bytes) == 0, "broadcast of %zu bytes from %d", bytes, root);
            free(all);
            free(one);
            free(want);
        }
    return 0;
}

Test(cpu, broadcast_all_gather_and_barrier_work_on_1_to_4_ranks)
{
    for (int n = 1; n <= 4; n++)
        cr_assert_eq(ranks_fork(n, CHILD_S, move_all, NULL, NULL), 0, "%d ranks", n);
}

/* Buckets of a region, enqueued while a blocking call comes in between, joined in another order. */
static int region_all(struct rank *r)
{
    enum { N = 5 };
    static const size_t at[N] = {0, 64, 4096, 70000 / 4 * 4, 1000000}, len[N] = {16, 1000, 15000, 200000, 900001};
    const struct cdi_backend_ops *ops = &cdi_cpu_backend;
    struct cdi_region *region, *second;
    size_t bytes = 8u << 20;
    float *want = malloc(len[N - 1] * sizeof *want);

    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(ops->region_create(r->b, bytes, &region, &r->err) == CDDP_OK);
    RANK_CHECK(ops->region_create(r->b, 100, &second, &r->err) == CDDP_OK);
    RANK_CHECK((uintptr_t)region->base % 4096 == 0 && region->bytes >= bytes);
    for (size_t i = 0; i < bytes; i++)
        RANK_CHECK(((uint8_t *)region->base)[i] == 0);
    for (int round = 0; round < 3; round++) {
        struct cdi_region *where = round < 2 ? region : second;
        uint64_t ticket[N];
        int n = round < 2 ? N : 1;

        for (int k = 0; k < n; k++) {
            float *p = (float *)((uint8_t *)where->base + at[k]);
            struct cdi_op op = {.kind = CDI_ALL_REDUCE,
                                .in = p,
                                .out = p,
                                .count = len[k],
                                .dtype = CDDP_FLOAT32,
                                .op = CDDP_MEAN,
                                .region = where,
                                .bucket = k,
                                .lazy = round == 1};

            fill(p, len[k], CDDP_FLOAT32, r->rank, (unsigned)(k + 10 * round));
            RANK_CHECK(ops->enqueue(r->b, &op, &ticket[k], &r->err) == CDDP_OK);
            if (k == 2) { /* a metric in the middle of the backward pass */
                float one = 1;
                struct cdi_op metric = {.kind = CDI_ALL_REDUCE,
                                        .in = &one,
                                        .out = &one,
                                        .count = 1,
                                        .dtype = CDDP_FLOAT32,
                                        .op = CDDP_SUM,
                                        .bucket = -1,
                                        .lazy = true};

                RANK_CHECK(rank_do(r, &metric) == CDDP_OK);
                RANK_CHECK(one == (float)r->size);
            }
        }
        RANK_CHECK(ops->join(r->b, ticket[n - 1], &r->err) == CDDP_OK);
        RANK_CHECK(ops->join(r->b, ticket[0], &r->err) == CDDP_OK, "a ticket may be joined late, and twice");
        for (int k = 0; k < n; k++) {
            expect(want, r->size, len[k], CDDP_FLOAT32, CDDP_MEAN, (unsigned)(k + 10 * round));
            RANK_CHECK(memcmp((uint8_t *)where->base + at[k], want, len[k] * 4) == 0, "bucket %d round %d", k, round);
        }
    }
    ops->region_destroy(r->b, second);
    ops->region_destroy(r->b, region);
    ops->region_destroy(r->b, NULL);
    free(want);
    return 0;
}

Test(cpu, buckets_of_a_shared_region_are_reduced_in_place)
{
    for (int n = 1; n <= 4; n++)
        cr_assert_eq(ranks_fork(n, CHILD_S, region_all, NULL, NULL), 0, "%d ranks", n);
}

/* ------------------------------------------------------------------------------------------------- what goes wrong -
 */

static const struct cdi_op barrier = {.kind = CDI_BARRIER, .bucket = -1, .lazy = true};

static int differ(struct rank *r)
{
    float x[4] = {0};
    struct cdi_op op = {.kind = CDI_ALL_REDUCE,
                        .in = x,
                        .out = x,
                        .count = r->rank == 1 ? 4 : 3,
                        .dtype = CDDP_FLOAT32,
                        .op = CDDP_SUM,
                        .bucket = -1,
                        .lazy = true};

    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_OK);
    RANK_CHECK(rank_do(r, r->rank == 2 ? &barrier : &op) == CDDP_E_MISMATCH);
    RANK_CHECK(strstr(r->err.msg, "rank 0 called all_reduce(sum) of 3 float32, rank 1 called all_reduce(sum) of 4 "
                                  "float32") != NULL);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_E_MISMATCH, "the error stays");
    RANK_CHECK(cdi_cpu_backend.health(r->b, &r->err) == CDDP_E_MISMATCH);
    return 0;
}

Test(cpu, ranks_that_call_different_collectives_are_told_both)
{
    cr_assert_eq(ranks_fork(3, 20, differ, NULL, NULL), 0);
}

static int die(struct rank *r)
{
    int64_t t0;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_OK);
    if (r->rank == 2)
        (void)raise(SIGKILL);
    t0 = cdi_now_ms();
    RANK_CHECK(rank_do(r, &barrier) == CDDP_E_PEER);
    RANK_CHECK(strstr(r->err.msg, "rank 2 (pid ") != NULL);
    RANK_CHECK(cdi_now_ms() - t0 < 3000);
    return 0;
}

Test(cpu, a_death_without_a_launcher_is_noticed_and_named)
{
    int status[4];

    cr_assert_eq(ranks_fork(4, 20, die, NULL, status), 1);
    cr_assert(WIFSIGNALED(status[2]) && WTERMSIG(status[2]) == SIGKILL);
}

static int first_dies(struct rank *r)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 0)
        (void)raise(SIGKILL);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_E_PEER);
    RANK_CHECK(strstr(r->err.msg, "rank 0 (pid ") != NULL);
    return 0;
}

Test(cpu, the_death_of_rank_0_is_noticed_too)
{
    cr_assert_eq(ranks_fork(3, 20, first_dies, NULL, NULL), 1);
}

static int stay_away(struct rank *r)
{
    r->world.timeout_ms = r->rank == 1 ? 60000 : 300;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1) { /* comes only when the others have given up */
        while (atomic_load(&r->board->flag[0]) < 2)
            (void)usleep(1000);
        RANK_CHECK(rank_do(r, &barrier) == CDDP_E_TIMEOUT);
        RANK_CHECK(strstr(r->err.msg, "gave up: barrier: rank 1 did not come within 0.3 s") != NULL);
        return 0;
    }
    RANK_CHECK(rank_do(r, &barrier) == CDDP_E_TIMEOUT);
    RANK_CHECK(strstr(r->err.msg, "barrier: rank 1 did not come within 0.3 s") != NULL);
    atomic_fetch_add(&r->board->flag[0], 1);
    return 0;
}

Test(cpu, a_rank_that_never_comes_is_named_at_the_deadline)
{
    cr_assert_eq(ranks_fork(3, 20, stay_away, NULL, NULL), 0);
}

static int leave(struct rank *r)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(rank_do(r, &barrier) == CDDP_OK);
    if (r->rank == 1)
        return 0;
    RANK_CHECK(rank_do(r, &barrier) == CDDP_E_PEER);
    RANK_CHECK(strstr(r->err.msg, "rank 1 has left the job") != NULL);
    return 0;
}

Test(cpu, a_rank_that_has_left_is_named_as_such)
{
    cr_assert_eq(ranks_fork(2, 20, leave, NULL, NULL), 0);
    cr_assert_eq(ranks_fork(4, 20, leave, NULL, NULL), 0);
}

static int stop_all(struct rank *r)
{
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == 1)
        cdi_cpu_backend.abort(r->b, CDDP_E_ABORTED, "rank 1 aborted the job: loss is NaN");
    RANK_CHECK(rank_do(r, &barrier) == CDDP_E_ABORTED);
    RANK_CHECK(strstr(r->err.msg, "loss is NaN") != NULL);
    return 0;
}

Test(cpu, an_abort_reaches_every_rank_with_its_reason)
{
    cr_assert_eq(ranks_fork(3, 20, stop_all, NULL, NULL), 0);
}

static int told_by_the_agent(struct rank *r)
{
    struct cdi_flight *agent = NULL;
    char env[128];
    int fd = -1;
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
            (void)usleep(100000); /* until the rank sleeps; it must be told also where it is slower than this */
            cdi_flight_tell_death(agent, 7, "rank 7 was killed by signal 9 (SIGKILL)");
            _exit(0);
        }
        t0 = cdi_now_ms();
        RANK_CHECK(rank_do(r, &barrier) == CDDP_E_PEER);
        RANK_CHECK(strstr(r->err.msg, "rank 7 was killed by signal 9") != NULL);
        RANK_CHECK(cdi_now_ms() - t0 < 3000);
        atomic_store(&r->board->flag[0], 1);
        (void)waitpid(teller, NULL, 0);
    }
    cdi_flight_release(agent);
    (void)close(fd);
    return 0;
}

Test(cpu, what_the_agent_says_ends_a_wait)
{
    cr_assert_eq(ranks_fork(2, 20, told_by_the_agent, NULL, NULL), 0);
}

static int never_starts(struct rank *r)
{
    r->world.join_timeout_ms = 300;
    if (r->rank == 1)
        return 0;
    RANK_CHECK(rank_open(r) == CDDP_E_TIMEOUT);
    if (r->rank == 0)
        RANK_CHECK(strstr(r->err.msg, "1 of 3 ranks did not come to share memory within 0.3 s: 1") != NULL);
    return 0;
}

Test(cpu, a_rank_that_does_not_come_to_share_memory_is_named)
{
    cr_assert_eq(ranks_fork(3, 20, never_starts, NULL, NULL), 0);
}

/* Rank 1 of 3 is given too little; everybody must hear of it in the same words, and nobody may hang. */
static int poor(struct rank *r)
{
    const struct rlimit files = {.rlim_cur = 16, .rlim_max = 16};

    RANK_CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    RANK_CHECK(rank_open(r) == CDDP_OK);
    return reduce_once(r, 100000, CDDP_FLOAT32, CDDP_SUM, false, 1);
}

Test(cpu, sixteen_descriptors_are_enough_for_a_few_ranks)
{
    cr_assert_eq(ranks_fork(3, 20, poor, NULL, NULL), 0);
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
    RANK_CHECK(strstr(r->err.msg, "Too many open files") != NULL || strstr(r->err.msg, "too many open files") != NULL);
    _exit(0); /* the filled gaps are not leaks */
}

Test(cpu, a_rank_without_descriptors_is_named_on_every_rank)
{
    cr_assert_eq(ranks_fork(3, 20, no_files, NULL, NULL), 0);
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
    return reduce_once(r, 1000, CDDP_FLOAT32, CDDP_SUM, false, 1); /* nothing is broken by that */
}

#ifndef CDI_TEST_ASAN
Test(cpu, a_region_that_one_rank_cannot_hold_is_refused_on_all)
{
    cr_assert_eq(ranks_fork(3, 20, small_memory, NULL, NULL), 0);
}
#else
static int (*const unused)(struct rank *) __attribute__((unused)) = small_memory;
#endif

static int abandon(struct rank *r)
{
    struct cdi_op op = barrier;
    uint64_t ticket;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    op.lazy = r->rank % 2;
    if (r->rank != 2)
        RANK_CHECK(cdi_cpu_backend.enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
    return 0; /* destroyed with work in flight: must not hang */
}

Test(cpu, work_that_was_not_joined_is_abandoned)
{
    cr_assert_eq(ranks_fork(3, 20, abandon, NULL, NULL), 0);
}
