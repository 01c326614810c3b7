/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a communicator, on one node and on several: their names, timeouts and ranks. */
#include "common/clock.h"
#include "hygiene.h"
#include "protocol/c10d.h"
#include "within.h"
#include "world.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

CDI_SUITE(parts);

/* The next rank's node; 0: all ranks are on one node. Emulated: nodes share no memory. */
static int ranks_per_node, n_ranks;

static void place(int rank)
{
    int per = ranks_per_node;

    set_env("LOCAL_RANK", rank % per);
    set_env("LOCAL_WORLD_SIZE", rank / per * per + per <= n_ranks ? per : n_ranks % per);
    set_env("GROUP_RANK", rank / per);
    set_env("GROUP_WORLD_SIZE", (n_ranks + per - 1) / per);
}

static int (*placed_body)(int rank);

static int on_its_node(int rank)
{
    if (ranks_per_node > 0)
        place(rank);
    return placed_body(rank);
}

/* Runs on n ranks of one node, then on nodes with this number of ranks each. Returns the number of failed ranks. */
static int everywhere(int n, int (*body)(int rank))
{
    int bad = 0;

    n_ranks = n;
    placed_body = body;
    for (ranks_per_node = 0; ranks_per_node < n && bad == 0; ranks_per_node++)
        bad += run_world(n, on_its_node);
    if (bad > 0)
        fprintf(stderr, "with %d ranks on a node\n", ranks_per_node - 1);
    return bad;
}

/* Checks that the sum over the ranks of `part` of 10^(rank in the world) has these digits. */
static int has_members(cddp_comm *part, int64_t digits)
{
    int64_t x = 1, sum = 0;

    for (int r = 0; r < cddp_world_rank(part, cddp_rank(part)); r++)
        x *= 10;
    CHECK(cddp_all_reduce(part, &x, &sum, 1, CDDP_INT64, CDDP_SUM) == CDDP_OK && sum == digits);
    return 0;
}

/* --------------------------------------------------------------------------------------------------- options ---- */

static int is_named(int rank)
{
    const cddp_init_options world = {.size = sizeof world, .name = "trainer"};
    const cddp_split_options dp = {.size = sizeof dp, .name = "dp", .timeout_ms = 300},
                             long_one = {.size = sizeof dp, .name = "01234567890123456789012345678901234567890123456"};
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm, *part, *other;
    float x = 1;

    CHECK(cddp_init(&comm, &world) == CDDP_OK && cddp_comm_split(&part, comm, 0, -rank, &dp) == CDDP_OK);
    CHECK(cddp_comm_split(&other, comm, 0, 0, &long_one) == CDDP_OK);
    if (rank == 0) { /* the others wait as long as the part's timeout, not the world's */
        CHECK(cddp_all_reduce(part, &x, &x, 1, CDDP_FLOAT32, CDDP_SUM) == CDDP_E_TIMEOUT);
        CHECK(strncmp(cddp_last_error(), "communicator 'dp': ", 19) == 0);
        CHECK(strstr(cddp_last_error() + 19, "communicator") == NULL);
    }
    CHECK(cddp_barrier(comm) == CDDP_OK && cddp_comm_error(comm, NULL) == CDDP_OK);
    if (rank != 0) /* the error is reported once */
        CHECK(cddp_all_reduce(part, &x, &x, 1, CDDP_FLOAT32, CDDP_SUM) == CDDP_E_TIMEOUT &&
              strncmp(cddp_last_error(), "communicator 'dp': ", 19) == 0);
    CHECK(strstr(cddp_last_error() + 19, "communicator") == NULL);
    if (rank == 0)
        cddp_abort(other, "enough");
    CHECK(cddp_barrier(other) == CDDP_E_ABORTED);
    CHECK(strncmp(cddp_last_error(), "communicator '01234567890123456789012345678901234567890123456': ", 64) == 0);
    CHECK(cddp_finalize(other) == CDDP_E_ABORTED && cddp_finalize(part) == CDDP_E_TIMEOUT);
    CHECK(cddp_barrier(comm) == CDDP_OK);
    if (rank == 1)
        cddp_abort(comm, "all of it");
    CHECK(cddp_barrier(comm) == CDDP_E_ABORTED && cddp_comm_error(comm, &info) == CDDP_E_ABORTED && info.rank == 1);
    CHECK(strcmp(info.message, "communicator 'trainer': rank 1 aborted the job: all of it") == 0);
    CHECK(cddp_finalize(comm) == CDDP_E_ABORTED);
    return 0;
}

Test(parts, name_and_timeout_belong_to_part)
{
    cr_assert_eq(everywhere(3, is_named), 0);
}

Test(parts, rejects_invalid_options)
{
    cddp_split_options opt = {.size = sizeof opt, .backend = "abacus"};
    cddp_comm *comm, *part = NULL;
    const int self = 0;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(cddp_comm_split(&part, comm, 0, 0, &opt), CDDP_E_INVALID);
    cr_assert(strstr(cddp_last_error(), "'abacus'") != NULL, "%s", cddp_last_error());
    opt = (cddp_split_options){.size = sizeof opt, .backend = "nccl"};
    cr_assert_eq(cddp_comm_split(&part, comm, 0, 0, &opt), CDDP_E_INVALID);
    opt = (cddp_split_options){.size = sizeof opt, .timeout_ms = -1};
    cr_assert_eq(cddp_comm_split(&part, comm, 0, 0, &opt), CDDP_E_INVALID);
    opt = (cddp_split_options){.size = sizeof opt, .flags = 1};
    cr_assert_eq(cddp_comm_split(&part, comm, 0, 0, &opt), CDDP_E_UNSUPPORTED);
    opt = (cddp_split_options){.size = 1};
    cr_assert_eq(cddp_comm_split(&part, comm, 0, 0, &opt), CDDP_E_INVALID);
    opt = (cddp_split_options){.size = sizeof opt, .name = "012345678901234567890123456789012345678901234567"};
    cr_assert_eq(cddp_comm_split(&part, comm, 0, 0, &opt), CDDP_E_INVALID);
    cr_assert_eq(cddp_comm_create_group(&part, comm, &self, 1, 0, &opt), CDDP_E_INVALID);
    cr_assert(strstr(cddp_last_error(), "longer than 47 bytes") != NULL, "%s", cddp_last_error());
    cr_assert_null(part, "written on success only");
    opt = (cddp_split_options){.size = sizeof opt, .backend = "cpu", .name = "alone", .timeout_ms = 5};
    cr_assert_eq(cddp_comm_split(&part, comm, 0, 0, &opt), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(has_members(part, 1), 0);
    cr_assert_eq(cddp_world_rank(part, 0), 0);
    cr_assert(cddp_world_rank(part, 1) == -1 && cddp_world_rank(part, -1) == -1 && cddp_world_rank(NULL, 0) == -1);
    cddp_abort(part, NULL);
    cr_assert_eq(cddp_barrier(part), CDDP_E_ABORTED);
    cr_assert_str_eq(cddp_last_error(), "communicator 'alone': rank 0 aborted the job");
    cr_assert_eq(cddp_finalize(part), CDDP_E_ABORTED);
    cr_assert_eq(cddp_barrier(comm), CDDP_OK);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}

/*
 * -------------------------------------------------------------------------------------- created by members alone ----
 */

/* Creates the group of these ranks of comm, and checks everything that a part must do. Returns 0 if it can. */
static int works(cddp_comm *comm, const int *ranks, size_t n, int tag)
{
    cddp_comm *group, *half;
    int64_t digits = 0;

    CHECK(cddp_comm_create_group(&group, comm, ranks, n, tag, NULL) == CDDP_OK);
    CHECK(cddp_world_size(group) == (int)n && ranks[cddp_rank(group)] == cddp_rank(comm));
    for (size_t i = 0; i < n; i++) {
        int64_t x = 1;

        CHECK(cddp_world_rank(group, (int)i) == cddp_world_rank(comm, ranks[i]));
        for (int r = 0; r < cddp_world_rank(comm, ranks[i]); r++)
            x *= 10;
        digits += x;
    }
    CHECK(has_members(group, digits) == 0);
    CHECK(cddp_comm_split(&half, group, cddp_rank(group) % 2, 0, NULL) == CDDP_OK);
    CHECK(cddp_barrier(half) == CDDP_OK && cddp_finalize(half) == CDDP_OK);
    CHECK(cddp_finalize(group) == CDDP_OK);
    return 0;
}

static bool is_of_a_meeting(const char *name)
{
    const char *last = strstr(name, "/0/"); /* the job's first round */

    return last != NULL && (last[3] == 'g' || last[3] == 'w') && strspn(last + 4, "0123456789abcdef") == 16;
}

/* Counts the keys of groups in the store; -1: the store does not answer. */
static int keys_of_meetings(void)
{
    uint8_t ask[6] = {CDI_C10D_VALIDATE, 0xce, 0xf7, 0x85, 0x3c, CDI_C10D_LIST_KEYS};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), found = 0;
    uint64_t n = 0, len = 0;
    char name[512];

    to.sin_port = htons((uint16_t)strtol(getenv("MASTER_PORT"), NULL, 10));
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0 || send(fd, ask, sizeof ask, 0) != sizeof ask ||
        recv(fd, &n, sizeof n, MSG_WAITALL) != sizeof n)
        found = -1;
    for (; n > 0 && found >= 0; n--) {
        if (recv(fd, &len, sizeof len, MSG_WAITALL) != sizeof len || len >= sizeof name ||
            recv(fd, name, len, MSG_WAITALL) != (ssize_t)len)
            return -1;
        name[len] = '\0';
        found += is_of_a_meeting(name);
    }
    (void)close(fd);
    return found;
}

/* The keys of a group are deleted when all members have noticed its end; they stay if a member missed it. */
static int leaves_nothing(int rank)
{
    static const int all[] = {0, 1, 2}, two[] = {2, 0};
    cddp_comm *comm, *group;
    int64_t until_ms;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (int i = 0; i < 20; i++) {
        CHECK(works(comm, all, 3, i % 4) == 0);
        if (rank != 1)
            CHECK(works(comm, two, 2, i % 4) == 0);
    }
    CHECK(cddp_barrier(comm) == CDDP_OK);
    until_ms = cdi_now_ms() + cdi_within_ms(10000);
    while (keys_of_meetings() != 0) {
        CHECK(cdi_now_ms() < until_ms);
        (void)usleep(1000);
    }
    CHECK(cddp_barrier(comm) == CDDP_OK);
    if (rank != 1)
        CHECK(cddp_comm_create_group(&group, comm, rank == 0 ? all : two, rank == 0 ? 3 : 2, 1, NULL) ==
              CDDP_E_MISMATCH);
    CHECK(cddp_barrier(comm) == CDDP_OK && keys_of_meetings() == 6); /* of two: one here, n and end */
    CHECK(cddp_barrier(comm) == CDDP_OK);
    CHECK(works(comm, all, 3, 1) == 0); /* rank 1, too, finds that the previous one has ended */
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(parts, leaves_no_keys)
{
    cr_assert_eq(everywhere(3, leaves_nothing), 0);
}

static unsigned seed;

static unsigned dice(unsigned *state)
{
    *state = *state * 1103515245u + 12345u;
    return *state >> 16 & 0x7fff;
}

/* All ranks know the same sequence of groups, and each joins those that it is in. */
static int makes_any_groups(int rank)
{
    unsigned state = seed;
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (int i = 0; i < 25; i++) {
        int ranks[5], tag = (int)(dice(&state) % 2);
        bool is_in = false;
        size_t n = 0;

        for (int r = 0; r < n_ranks; r++)
            if (dice(&state) % 2 == 0)
                ranks[n++] = r;
        for (size_t k = n; k > 1; k--) { /* in any order */
            size_t other = dice(&state) % k;
            int swap = ranks[k - 1];

            ranks[k - 1] = ranks[other];
            ranks[other] = swap;
        }
        for (size_t k = 0; k < n; k++)
            is_in = is_in || ranks[k] == rank;
        if (is_in && works(comm, ranks, n, tag) != 0) {
            fprintf(stderr, "seed %u, group %d\n", seed, i);
            return 1;
        }
    }
    CHECK(cddp_barrier(comm) == CDDP_OK && cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(parts, creates_any_sequence_of_groups)
{
    for (seed = 1; seed <= 3; seed++)
        for (int n = 2; n <= 5; n++)
            cr_assert_eq(everywhere(n, makes_any_groups), 0, "seed %u, %d ranks", seed, n);
}

static cddp_comm *shared;

static void *makes_a_pair(void *arg)
{
    static const int pairs[3][2] = {{0, 1}, {1, 2}, {2, 0}};
    int which = (int)(intptr_t)arg, bad = 0;

    for (int i = 0; i < 10 && bad == 0; i++)
        bad = works(shared, pairs[which], 2, which);
    return (void *)(intptr_t)bad;
}

/* Each of three ranks is in two groups at a time, and begins with another one. */
static int makes_groups_at_once(int rank)
{
    pthread_t thread;
    void *bad;

    CHECK(cddp_init(&shared, NULL) == CDDP_OK);
    CHECK(pthread_create(&thread, NULL, makes_a_pair, (void *)(intptr_t)rank) == 0);
    CHECK(makes_a_pair((void *)(intptr_t)((rank + 2) % 3)) == NULL);
    CHECK(pthread_join(thread, &bad) == 0 && bad == NULL);
    CHECK(cddp_barrier(shared) == CDDP_OK && cddp_finalize(shared) == CDDP_OK);
    return 0;
}

Test(parts, creates_overlapping_groups_concurrently)
{
    cr_assert_eq(everywhere(3, makes_groups_at_once), 0);
}

static int gives_another_list(int rank)
{
    static const int all[] = {0, 1, 2}, two[] = {0, 1}, turned[] = {2, 1, 0};
    const cddp_init_options opt = {.size = sizeof opt, .join_timeout_ms = 25000};
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm, *group = NULL;

    CHECK(cddp_init(&comm, &opt) == CDDP_OK);
    CHECK(cddp_comm_create_group(&group, comm, rank == 1 ? two : all, rank == 1 ? 2 : 3, 3, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "cddp_comm_create_group (tag 3): rank ") != NULL);
    CHECK(strstr(cddp_last_error(), "the ranks 0 1") != NULL || strstr(cddp_last_error(), "gives 0 1 (") != NULL);
    cddp_last_error_info(&info);
    CHECK(info.rank >= 0 && group == NULL && cddp_barrier(comm) == CDDP_OK);
    CHECK(cddp_comm_create_group(&group, comm, rank == 1 ? turned : all, 3, 3, NULL) == CDDP_E_MISMATCH);
    CHECK(cddp_barrier(comm) == CDDP_OK && works(comm, turned, 3, 3) == 0);
    CHECK(cddp_barrier(comm) == CDDP_OK && cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(parts, reports_different_lists)
{
    cr_assert_eq(everywhere(3, gives_another_list), 0);
}

static int comes_late(int rank)
{
    static const int all[] = {3, 0, 2}, pair[] = {0, 3};
    const cddp_init_options opt = {.size = sizeof opt, .join_timeout_ms = 1500};
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm, *group = NULL;

    CHECK(cddp_init(&comm, &opt) == CDDP_OK);
    if (rank == 2)
        CHECK(cddp_barrier(comm) == CDDP_OK);
    if (rank != 1) {
        CHECK(cddp_comm_create_group(&group, comm, all, 3, 4, NULL) == CDDP_E_TIMEOUT && group == NULL);
        CHECK(strcmp(cddp_last_error(),
                     rank != 2 ? "cddp_comm_create_group (tag 4): rank 2 did not call it within 1.5 s"
                               : "cddp_comm_create_group (tag 4): ranks 3, 0 did not call it within 1.5 s") == 0);
        cddp_last_error_info(&info);
        CHECK(info.rank == (rank != 2 ? 2 : 3));
    }
    if (rank != 2)
        CHECK(cddp_barrier(comm) == CDDP_OK);
    CHECK(cddp_barrier(comm) == CDDP_OK && cddp_comm_error(comm, NULL) == CDDP_OK);
    if (rank == 0 || rank == 3)
        CHECK(works(comm, pair, 2, 4) == 0);
    if (rank != 1)
        CHECK(works(comm, all, 3, 4) == 0);
    CHECK(cddp_barrier(comm) == CDDP_OK && cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(parts, names_missing_member)
{
    cr_assert_eq(everywhere(4, comes_late), 0);
}

/* Rank 2 exits without notice, before the others wait for it, or while they do. */
static int dies(int rank)
{
    static const int all[] = {1, 2, 0}, pair[] = {1, 0};
    const cddp_split_options named = {.size = sizeof named, .name = "part"};
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm, *part, *group = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(&part, comm, 0, 0, &named) == CDDP_OK && cddp_barrier(comm) == CDDP_OK);
    if (rank == 2) {
        (void)usleep(300000);
        _exit(0);
    }
    for (int again = 0; again < 2; again++) {
        CHECK(cddp_comm_create_group(&group, again ? part : comm, all, 3, 5, NULL) == CDDP_E_PEER && group == NULL);
        CHECK(strstr(cddp_last_error(), "rank 2 (pid ") != NULL && strstr(cddp_last_error(), "died") != NULL);
        cddp_last_error_info(&info);
        CHECK(info.rank == 2);
    }
    CHECK(works(comm, pair, 2, 6) == 0); /* it is not a member */
    (void)cddp_finalize(part);
    (void)cddp_finalize(comm);
    return 0;
}

Test(parts, does_not_wait_for_dead_member)
{
    cr_assert_eq(everywhere(3, dies), 0);
}

/*
 * On one node. Rank 0 dies; rank 1 hears it in one part, and ends; rank 2 waits for rank 1 in another part, and for
 * both in comm.
 */
static int ends_after_a_death(int rank)
{
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm, *low, *high;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(&low, comm, rank < 2 ? 0 : -1, 0, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(&high, comm, rank > 0 ? 0 : -1, 0, NULL) == CDDP_OK);
    if (rank == 0)
        _exit(0);
    if (rank == 1) {
        CHECK(cddp_barrier(low) == CDDP_E_PEER);
        _exit(0);
    }
    for (int n = 0; n < 2; n++) {
        CHECK(cddp_barrier(n == 0 ? high : comm) == CDDP_E_PEER);
        CHECK(strstr(cddp_last_error(), n == 0 ? "rank 0 (rank 1 of the job, pid " : "rank ") != NULL);
        CHECK(n == 1 || strstr(cddp_last_error(), "after it had lost rank 0 of the job, which died") != NULL);
        cddp_last_error_info(&info);
        CHECK(info.rank == 0);
    }
    (void)cddp_finalize(high);
    (void)cddp_finalize(comm);
    return 0;
}

Test(parts, names_the_rank_that_died_first)
{
    cr_assert_eq(run_world(3, ends_after_a_death), 0);
}

/* A model with replicas: rank 1 dies, rank 0 hears it in its group, and ends. The other group names rank 1. */
static int replica_ends_after_a_death(int rank)
{
    const cddp_param param = {.size = sizeof param, .name = "p", .count = 400, .dtype = CDDP_FLOAT32};
    const cddp_fsdp_unit unit = {.size = sizeof unit, .name = "u", .params = &param, .n_params = 1};
    cddp_fsdp_options opt = {.size = sizeof opt};
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm, *group;
    cddp_fsdp *f;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(&group, comm, rank / 2, 0, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(&opt.replicas, comm, rank % 2, 0, NULL) == CDDP_OK);
    CHECK(cddp_fsdp_create(&f, group, &unit, 1, &opt) == CDDP_OK && cddp_barrier(comm) == CDDP_OK);
    if (rank == 1)
        _exit(0);
    if (rank == 0) {
        CHECK(cddp_fsdp_gather(f, 0) != CDDP_OK || cddp_fsdp_wait_unit(f, 0) == CDDP_E_PEER);
        _exit(0);
    }
    memset(cddp_fsdp_grad(f, 0, 0), 0, 1600);
    CHECK(cddp_fsdp_grads_ready(f, 0) != CDDP_OK || cddp_fsdp_end_step(f) != CDDP_OK);
    CHECK(strstr(cddp_last_error(), "died") != NULL);
    CHECK(strstr(cddp_last_error(), "rank 1 (pid") != NULL || strstr(cddp_last_error(), "rank 1 of the job") != NULL);
    cddp_last_error_info(&info);
    CHECK(info.rank == 1); /* though another rank of the group may have told it */
    cddp_fsdp_destroy(f);
    (void)cddp_finalize(opt.replicas);
    (void)cddp_finalize(group);
    (void)cddp_finalize(comm);
    return 0;
}

Test(parts, names_the_rank_that_died_in_another_replica)
{
    cr_assert_eq(everywhere(4, replica_ends_after_a_death), 0);
}

/* Replicas that differ: after two steps ranks 2 and 3 change their shares. */
static int replicas_differ(int rank)
{
    static float x[400];
    const cddp_param param = {.size = sizeof param, .name = "p", .data = x, .count = 400, .dtype = CDDP_FLOAT32};
    const cddp_fsdp_unit unit = {.size = sizeof unit, .name = "u", .params = &param, .n_params = 1};
    cddp_fsdp_options opt = {.size = sizeof opt};
    cddp_error_info info = {.size = sizeof info};
    cddp_fsdp_shard_info own = {.size = sizeof own};
    cddp_optim_options how;
    cddp_comm *comm, *group;
    cddp_optim *optim;
    cddp_fsdp *f;
    float *grad;
    char who[128];

    (void)setenv("CDDP_CHECK_REPLICAS", "1", 1);
    (void)snprintf(who, sizeof who, ": rank 1 (rank %d of the job) has other values than %s;", rank % 2 == 0 ? 2 : 3,
                   rank % 2 == 0 ? "rank 0" : "rank 0 (rank 1 of the job)");
    cddp_optim_defaults(&how, sizeof how, CDDP_OPTIM_SGD);
    how.lr = 1;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(&group, comm, rank / 2, 0, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(&opt.replicas, comm, rank % 2, 0, NULL) == CDDP_OK);
    CHECK(cddp_fsdp_create(&f, group, &unit, 1, &opt) == CDDP_OK);
    CHECK(cddp_optim_create_sharded(&optim, f, &how) == CDDP_OK);
    CHECK(cddp_fsdp_shard(f, 0, 0, &own) == CDDP_OK && own.count > 0);
    for (int step = 0; step < 3; step++) {
        if (rank >= 2 && step == 2)
            *(float *)own.param += 1;
        CHECK(cddp_fsdp_gather(f, 0) == CDDP_OK && cddp_fsdp_wait_unit(f, 0) == CDDP_OK);
        CHECK((grad = cddp_fsdp_grad(f, 0, 0)) != NULL);
        for (int i = 0; i < 400; i++)
            grad[i] = 1;
        CHECK(cddp_fsdp_release(f, 0) == CDDP_OK && cddp_fsdp_grads_ready(f, 0) == CDDP_OK);
        CHECK(cddp_optim_step(optim, NULL) == (step < 2 ? CDDP_OK : CDDP_E_MISMATCH));
    }
    CHECK(strstr(cddp_last_error(), who) != NULL);
    cddp_last_error_info(&info);
    CHECK(info.rank == (rank % 2 == 0 ? 2 : 3));
    cddp_fsdp_destroy(f);
    cddp_optim_destroy(optim);
    (void)cddp_finalize(opt.replicas);
    (void)cddp_finalize(group);
    (void)cddp_finalize(comm);
    return 0;
}

Test(parts, names_replicas_by_their_ranks_of_the_job)
{
    cr_assert_eq(everywhere(4, replicas_differ), 0);
}

/* Ranks 2 and 3 do not come to an operation of a part, in which rank 1 waits. */
static int waits_in_part(int rank)
{
    cddp_split_options opt = {.size = sizeof opt, .timeout_ms = 300};
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm, *part;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(&part, comm, rank > 0 ? 0 : -1, 0, &opt) == CDDP_OK);
    if (rank == 1) {
        CHECK(cddp_barrier(part) == CDDP_E_TIMEOUT);
        CHECK(strstr(cddp_last_error(), "(ranks 2, 3 of the job) did not arrive") != NULL ||
              strstr(cddp_last_error(), "rank 1 (rank 2 of the job) did not arrive") != NULL ||
              strstr(cddp_last_error(), "rank 2 (rank 3 of the job) did not arrive") != NULL);
        cddp_last_error_info(&info);
        CHECK(info.rank == 2 || info.rank == 3);
    }
    CHECK(cddp_barrier(comm) == CDDP_OK);
    (void)(rank > 0 ? cddp_finalize(part) : CDDP_OK);
    (void)cddp_finalize(comm);
    return 0;
}

Test(parts, names_missing_ranks_of_a_part_by_their_ranks_of_the_job)
{
    cr_assert_eq(everywhere(4, waits_in_part), 0);
}

static int aborts(int rank)
{
    static const int all[] = {0, 1, 2};
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm, *group = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_barrier(comm) == CDDP_OK);
    if (rank == 2) {
        (void)usleep(300000);
        cddp_abort(comm, "enough");
    } else {
        CHECK(cddp_comm_create_group(&group, comm, all, 3, 5, NULL) == CDDP_E_ABORTED && group == NULL);
        CHECK(strstr(cddp_last_error(), "rank 2 aborted the job: enough") != NULL);
        cddp_last_error_info(&info);
        CHECK(info.rank == 2);
    }
    CHECK(cddp_comm_error(comm, NULL) == CDDP_E_ABORTED);
    (void)cddp_finalize(comm);
    return 0;
}

Test(parts, abort_ends_wait_for_members)
{
    cr_assert_eq(everywhere(3, aborts), 0);
}

Test(parts, rejects_invalid_list)
{
    static const int here[] = {0}, out_of_range[] = {0, 1}, twice[] = {0, 0};
    cddp_comm *comm, *group = NULL;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(cddp_comm_create_group(NULL, comm, here, 1, 0, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_comm_create_group(&group, NULL, here, 1, 0, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_comm_create_group(&group, comm, NULL, 1, 0, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_comm_create_group(&group, comm, here, 0, 0, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_comm_create_group(&group, comm, twice, 2, 0, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_comm_create_group(&group, comm, out_of_range, 2, 0, NULL), CDDP_E_INVALID);
    cr_assert_null(group);
    cr_assert_eq(cddp_comm_create_group(&group, comm, here, 1, 0, NULL), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(has_members(group, 1), 0);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
    cr_assert_eq(cddp_barrier(group), CDDP_E_STATE);
    cr_assert_eq(cddp_finalize(group), CDDP_OK);
}
