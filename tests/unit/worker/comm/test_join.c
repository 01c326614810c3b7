/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks join if the program sets more than the environment: when it gives up, and the store's address. */
#include "by_hand.h"
#undef CHECK
#include "float_words.h"
#include "hygiene.h"
#include "within.h"
#include "world.h"

#include "common/clock.h"
#include "worker/store/conn.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

CDI_SUITE(join);

/* -------------------------------------------------------------------------------------------------- giving up ---- */

struct patience {
    int left; /* calls before it gives up */
    pthread_t thread;
    bool elsewhere; /* called in another thread than that */
    int64_t begun_ms;
    bool bored;
    uint64_t state; /* the floating-point state */
};

static int lose_patience(void *arg)
{
    struct patience *p = arg;

    p->elsewhere = p->elsewhere || !pthread_equal(p->thread, pthread_self());
    p->state = float_get();
    return p->left-- > 0 ? 0 : 7;
}

static struct patience asked(int times)
{
    return (struct patience){.left = times, .thread = pthread_self(), .begun_ms = cdi_now_ms()};
}

/* Calls cddp_init, which gives up; returns 0 if it does so as expected. */
static int gives_up(int times)
{
    struct patience p = asked(times);
    const cddp_init_options opt = {
        .size = sizeof opt, .join_timeout_ms = 80000, .interrupted = lose_patience, .arg = &p};
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm = NULL;

    float_set(float_words[FLOAT_UP]);
    CHECK(cddp_init(&comm, &opt) == CDDP_E_ABORTED && comm == NULL);
    CHECK(float_get() == float_words[FLOAT_UP] && p.state == float_words[FLOAT_UP]);
    float_set(float_words[FLOAT_DEFAULT]);
    CHECK(strstr(cddp_last_error(), "(its `interrupted` returned 7)") != NULL);
    cddp_last_error_info(&info);
    CHECK(info.rank == atoi(getenv("RANK")));
    /* About ten times a second: not all at once, and not as seldom as twice. */
    CHECK(!p.elsewhere && p.left == -1);
    CHECK(cdi_now_ms() - p.begun_ms >= (times - 1) * 80 &&
          cdi_now_ms() - p.begun_ms < cdi_within_ms(500 * times + 3000));
    return 0;
}

static int nobody_comes(int rank)
{
    (void)rank;
    return gives_up(6);
}

Test(join, program_interrupts_the_wait_for_missing_ranks)
{
    struct rdzv_child server;

    rdzv_child_start(&server);
    cr_assert_eq(run_ranks(server.port, 1, 2, nobody_comes), 0);
    rdzv_child_stop(&server);
}

static int hosts_for_nobody(int rank)
{
    (void)rank;
    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    return gives_up(4);
}

Test(join, program_interrupts_while_it_hosts_the_store)
{
    cr_assert_eq(run_ranks(free_port(), 1, 2, hosts_for_nobody), 0);
}

static int finds_no_store(int rank)
{
    (void)rank;
    return gives_up(12); /* so long that the pauses between two attempts exceed those between two calls */
}

Test(join, program_interrupts_the_search_for_a_store)
{
    cr_assert_eq(run_ranks(free_port(), 1, 2, finds_no_store), 0);
}

static int one_gives_up(int rank)
{
    const cddp_init_options opt = {.size = sizeof opt, .join_timeout_ms = 80000};
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm = NULL;

    if (rank == 1)
        return gives_up(5);
    CHECK(cddp_init(&comm, &opt) == CDDP_E_ABORTED);
    CHECK(strcmp(cddp_last_error(), "rank 1 gave up joining: its program interrupted cddp_init") == 0);
    cddp_last_error_info(&info);
    CHECK(info.rank == 1);
    return 0;
}

static int one_gives_up_by_hand(int rank)
{
    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    return one_gives_up(rank);
}

Test(join, others_learn_at_once_that_a_rank_gave_up)
{
    struct rdzv_child server;

    rdzv_child_start(&server);
    cr_assert_eq(run_ranks(server.port, 3, 4, one_gives_up), 0);
    rdzv_child_stop(&server);
    cr_assert_eq(run_ranks(free_port(), 3, 4, one_gives_up_by_hand), 0);
}

/* A rank that counts as joined, and does nothing more. */
static cddp_status pretend_rank_1(int port)
{
    const char *holder = "elsewhere:1:0.1";
    cddp_store *s;
    cddp_status st = cdi_store_open(&s, "127.0.0.1", port, 10000, NULL);

    if (st != CDDP_OK)
        return st;
    st = cdi_store_set(s, "cddp/0/rank/1", holder, strlen(holder), NULL);
    if (st == CDDP_OK)
        st = cdi_store_add(s, "cddp/0/joined", 1 | INT64_C(2) << 21, NULL, NULL);
    cddp_store_close(s);
    return st;
}

static int n_nodes;

static int connects_in_vain(int rank)
{
    set_env("LOCAL_RANK", 0);
    set_env("LOCAL_WORLD_SIZE", 3 - n_nodes);
    set_env("GROUP_RANK", rank);
    set_env("GROUP_WORLD_SIZE", n_nodes);
    return gives_up(5);
}

Test(join, program_interrupts_while_the_backend_connects)
{
    for (n_nodes = 1; n_nodes <= 2; n_nodes++) {
        struct rdzv_child server;

        rdzv_child_start(&server);
        cr_assert_eq(pretend_rank_1(server.port), CDDP_OK);
        cr_assert_eq(run_ranks(server.port, 1, 2, connects_in_vain), 0, "with %d nodes", n_nodes);
        rdzv_child_stop(&server);
    }
}

/* There are no calls after cddp_init, and hardly any in a world that joins at once. */
static int goes_well(int rank)
{
    struct patience p = asked(1000000);
    const cddp_init_options opt = {.size = sizeof opt, .interrupted = lose_patience, .arg = &p};
    const struct timespec moment = {.tv_nsec = 300000000};
    cddp_comm *comm;
    int left;

    CHECK(cddp_init(&comm, &opt) == CDDP_OK && !p.elsewhere);
    left = p.left;
    if (rank == 0)
        (void)nanosleep(&moment, NULL);
    CHECK(cddp_barrier(comm) == CDDP_OK && cddp_finalize(comm) == CDDP_OK && p.left == left);
    return 0;
}

Test(join, calls_interrupted_only_until_all_have_joined)
{
    cr_assert_eq(run_world(3, goes_well), 0);
}

/* ------------------------------------------------------------------------------------ set by the program itself ----
 */

/* Shared by the ranks of a test. */
static struct board {
    _Atomic int is_there, step[8];
    cddp_unique_id id;
} * board;

static void new_board(void)
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(board, MAP_FAILED);
}

static void await_flag(_Atomic int *flag, int value)
{
    const struct timespec moment = {.tv_nsec = 1000000};

    while (atomic_load(flag) < value)
        (void)nanosleep(&moment, NULL);
}

/* Gets the maker's id on all ranks. */
static int get_id(bool makes)
{
    if (makes) {
        CHECK(cddp_unique_id_create(&board->id) == CDDP_OK);
        atomic_store(&board->is_there, 1);
    }
    await_flag(&board->is_there, 1);
    return 0;
}

/* Returns the sum of 10^(rank) over all ranks. */
static int64_t digits_of(cddp_comm *comm)
{
    int64_t x = 1;

    for (int r = 0; r < cddp_rank(comm); r++)
        x *= 10;
    return cddp_all_reduce(comm, &x, &x, 1, CDDP_INT64, CDDP_SUM) == CDDP_OK ? x : -1;
}

static int n_of_job, maker;

static int joins_by_id(int rank)
{
    cddp_init_options opt = {.size = sizeof opt, .world_size = n_of_job, .rank = rank, .id = &board->id};
    const char *value = "here";
    char text[8];
    cddp_comm *comm, *part;
    cddp_status again;

    (void)setenv("RANK", "no number", 1); /* it is not read */
    (void)setenv("MASTER_ADDR", "no.such.host.invalid", 1);
    (void)setenv("CDDP_AUTH_TOKEN_FILE", "/no/such/file", 1);
    (void)setenv("TORCHELASTIC_RUN_ID", "another", 1);
    CHECK(get_id(rank == maker) == 0);
    CHECK(cddp_init(&comm, &opt) == CDDP_OK && cddp_rank(comm) == rank && cddp_world_size(comm) == n_of_job);
    CHECK(cddp_local_rank(comm) == rank && cddp_local_world_size(comm) == n_of_job && cddp_node_rank(comm) == 0);
    CHECK(cddp_comm_split(&part, comm, rank % 2, -rank, NULL) == CDDP_OK && cddp_barrier(part) == CDDP_OK);
    if (rank == 0)
        CHECK(cddp_store_set(cddp_comm_store(comm), "key", value, 4) == CDDP_OK);
    CHECK(cddp_store_get(cddp_comm_store(comm), "key", text, sizeof text, NULL, 0) == CDDP_OK);
    CHECK(digits_of(comm) == (n_of_job == 1 ? 1 : n_of_job == 2 ? 11 : 11111));
    CHECK(cddp_finalize(part) == CDDP_OK && cddp_finalize(comm) == CDDP_OK);
    opt.join_timeout_ms = 600;
    again = cddp_init(&comm, &opt); /* a second time: the store has ended, or is about to */
    CHECK(again == CDDP_E_PEER ||
          ((again == CDDP_E_IO || again == CDDP_E_EXISTS) && strstr(cddp_last_error(), "one cddp_init") != NULL));
    return 0;
}

Test(join, ranks_join_by_an_id_that_any_of_them_made)
{
    for (n_of_job = 1; n_of_job <= 5; n_of_job += n_of_job == 2 ? 3 : 1)
        for (maker = 0; maker < n_of_job; maker += 2) {
            new_board();
            cr_assert_eq(run_ranks(1, n_of_job, 99, joins_by_id), 0, "%d ranks, by rank %d", n_of_job, maker);
            (void)munmap(board, sizeof *board);
        }
}

static int meets_no_maker(int rank)
{
    const cddp_init_options opt = {
        .size = sizeof opt, .world_size = 3, .rank = rank, .id = &board->id, .join_timeout_ms = 60000};
    cddp_comm *comm;

    CHECK(get_id(rank == 2) == 0);
    if (rank == 2) { /* the others are waiting for it by then */
        await_flag(&board->step[0], 2);
        (void)usleep(200000);
        return 0;
    }
    (void)atomic_fetch_add(&board->step[0], 1);
    CHECK(cddp_init(&comm, &opt) == CDDP_E_PEER);
    CHECK(strstr(cddp_last_error(), "the process that made the cddp_unique_id") != NULL);
    return 0;
}

Test(join, reports_the_death_of_the_ids_maker)
{
    new_board();
    cr_assert_eq(run_ranks(1, 3, 99, meets_no_maker), 0);
    (void)munmap(board, sizeof *board);
}

/* With bytes such as an earlier run may leave in a file. */
static int has_old_bytes(int rank)
{
    const cddp_init_options opt = {
        .size = sizeof opt, .world_size = 2, .rank = 1, .id = &board->id, .join_timeout_ms = 20000};
    cddp_comm *comm;
    pid_t maker = fork();

    if (maker == 0)
        _exit(cddp_unique_id_create(&board->id) != CDDP_OK);
    CHECK(rank == 0 && maker > 0 && waitpid(maker, NULL, 0) == maker);
    cdi_store_unknown_ms = 50;
    CHECK(cddp_init(&comm, &opt) == CDDP_E_IO);
    CHECK(strstr(cddp_last_error(), "Connection refused (tried for 0.05 s); the process that made it must run") !=
          NULL);
    return 0;
}

Test(join, gives_up_early_on_an_id_of_a_dead_process)
{
    new_board();
    cr_assert_eq(run_ranks(1, 1, 99, has_old_bytes), 0);
    (void)munmap(board, sizeof *board);
}

static int has_wrong_auth_token(int rank)
{
    cddp_unique_id id;
    const cddp_init_options opt = {
        .size = sizeof opt, .world_size = 2, .rank = rank, .id = &id, .join_timeout_ms = 1500};
    cddp_comm *comm;

    CHECK(get_id(rank == 0) == 0);
    id = board->id;
    id.bytes[8 + rank] ^= 1; /* of the auth token */
    CHECK(cddp_init(&comm, &opt) == CDDP_E_IO);
    CHECK(strstr(cddp_last_error(), "cannot reach the store of this cddp_unique_id") != NULL);
    id.bytes[4] = 9;
    CHECK(cddp_init(&comm, &opt) == CDDP_E_INVALID && strstr(cddp_last_error(), "another version") != NULL);
    memset(&id, 0, sizeof id);
    CHECK(cddp_init(&comm, &opt) == CDDP_E_INVALID && strstr(cddp_last_error(), "cddp_init_options.id") != NULL);
    (void)atomic_fetch_add(&board->step[0], 1);
    await_flag(&board->step[0], 2); /* the store is there until then */
    return 0;
}

Test(join, rejects_ranks_without_the_auth_token)
{
    new_board();
    cr_assert_eq(run_ranks(1, 2, 99, has_wrong_auth_token), 0);
    (void)munmap(board, sizeof *board);
}

/* Three jobs at a time in each of four processes, with different ranks in each, at one store. */
static int is_in_three_jobs(int rank)
{
    cddp_init_options opt = {.size = sizeof opt, .host = "127.0.0.1", .port = atoi(getenv("MASTER_PORT"))};
    cddp_comm *world, *turned, *pair, *again;

    CHECK(cddp_init(&world, NULL) == CDDP_OK);
    opt.world_size = 4;
    opt.rank = 3 - rank;
    opt.name = "turned";
    CHECK(cddp_init(&turned, &opt) == CDDP_OK && cddp_rank(turned) == 3 - rank);
    opt.world_size = 2;
    opt.rank = rank / 2;
    opt.name = rank % 2 == 0 ? "even" : "odd";
    CHECK(cddp_init(&pair, &opt) == CDDP_OK && cddp_world_size(pair) == 2);
    CHECK(cddp_init(&again, &opt) == CDDP_E_EXISTS && strstr(cddp_last_error(), "cddp_init_options.name") != NULL);
    CHECK(cddp_init(&again, NULL) == CDDP_E_EXISTS);
    for (int i = 0; i < 20; i++)
        CHECK(digits_of(world) == 1111 && digits_of(pair) == 11 && digits_of(turned) == 1111);
    if (rank == 0)
        cddp_abort(pair, "the pair alone");
    CHECK(cddp_barrier(pair) == (rank % 2 == 0 ? CDDP_E_ABORTED : CDDP_OK));
    (void)cddp_finalize(pair);
    /* The same once more, one after the other. */
    for (int i = 0; i < 3; i++) {
        CHECK(cddp_init(&pair, &opt) == CDDP_OK && digits_of(pair) == 11 && cddp_finalize(pair) == CDDP_OK);
    }
    CHECK(digits_of(turned) == 1111 && cddp_finalize(world) == CDDP_OK && digits_of(turned) == 1111);
    CHECK(cddp_init(&world, NULL) == CDDP_OK && digits_of(world) == 1111);
    CHECK(cddp_finalize(turned) == CDDP_OK && digits_of(world) == 1111 && cddp_finalize(world) == CDDP_OK);
    return 0;
}

Test(join, jobs_at_one_store_differ_by_name)
{
    cr_assert_eq(run_world(4, is_in_three_jobs), 0);
}

/* Rank 0 hosts the stores of successive jobs at one port, beside a job of the environment at another one. */
static int hosts_itself(int rank)
{
    const cddp_init_options opt = {.size = sizeof opt,
                                   .flags = CDDP_INIT_HOST_STORE,
                                   .world_size = 3,
                                   .rank = (rank + 1) % 3,
                                   .host = "localhost",
                                   .port = board->step[0]};
    cddp_comm *world, *comm;

    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    CHECK(cddp_init(&world, NULL) == CDDP_OK);
    for (int i = 0; i < 4; i++)
        CHECK(cddp_init(&comm, &opt) == CDDP_OK && digits_of(comm) == 111 && cddp_finalize(comm) == CDDP_OK);
    CHECK(digits_of(world) == 111 && cddp_finalize(world) == CDDP_OK);
    CHECK(cddp_init(&world, NULL) == CDDP_OK);
    CHECK(digits_of(world) == 111 && cddp_finalize(world) == CDDP_OK);
    return 0;
}

Test(join, rank_0_hosts_the_stores_of_successive_jobs)
{
    new_board();
    board->step[0] = free_port();
    cr_assert_eq(run_ranks(free_port(), 3, 3, hosts_itself), 0);
    (void)munmap(board, sizeof *board);
}

static char secrets[2][32];

/* Rank 0 hosts the store at the program's address, with the job's auth token: ranks with another one cannot join. */
static int proves_its_secret(int rank)
{
    cddp_init_options opt = {.size = sizeof opt,
                             .flags = CDDP_INIT_HOST_STORE,
                             .world_size = 3,
                             .rank = rank,
                             .host = "127.0.0.1",
                             .port = atoi(getenv("MASTER_PORT"))};
    cddp_comm *comm;
    cddp_status st;

    (void)setenv("CDDP_AUTH_TOKEN_FILE", secrets[0], 1);
    CHECK(cddp_init(&comm, &opt) == CDDP_OK && digits_of(comm) == 111 && cddp_finalize(comm) == CDDP_OK);
    opt.join_timeout_ms = 1500;
    if (rank == 2)
        (void)setenv("CDDP_AUTH_TOKEN_FILE", secrets[1], 1);
    st = cddp_init(&comm, &opt);
    CHECK(st == (rank == 2 ? CDDP_E_DENIED : CDDP_E_TIMEOUT));
    CHECK(strstr(cddp_last_error(), rank == 2 ? "use the same token on all nodes" : "did not join within 1.5 s: 2") !=
          NULL);
    return 0;
}

Test(join, rank_0s_store_demands_the_auth_token)
{
    for (int i = 0; i < 2; i++) {
        int fd;

        (void)snprintf(secrets[i], sizeof secrets[i], "/tmp/cddp_secret_XXXXXX");
        fd = mkstemp(secrets[i]);
        cr_assert(fd >= 0 && write(fd, i == 0 ? "one-one-one-one-" : "two-two-two-two-", 16) == 16);
        (void)close(fd);
    }
    cr_assert_eq(run_ranks(free_port(), 3, 3, proves_its_secret), 0);
    for (int i = 0; i < 2; i++)
        (void)unlink(secrets[i]);
}

Test(join, rejects_wrong_options_by_name)
{
    static const cddp_unique_id no_id;
    static const struct {
        cddp_init_options opt;
        const char *word;
        cddp_status status;
    } cases[] = {
        {{.world_size = -1}, "world_size is -1", CDDP_E_INVALID},
        {{.world_size = 2000000}, "world_size is 2000000", CDDP_E_INVALID},
        {{.world_size = 2, .rank = 2}, "rank is 2, but must be from 0 to world_size - 1 = 1", CDDP_E_INVALID},
        {{.world_size = 2, .rank = -1}, "rank is -1", CDDP_E_INVALID},
        {{.world_size = 2}, "host and port of the store, or id", CDDP_E_INVALID},
        {{.world_size = 2, .host = "localhost"}, "port is 0", CDDP_E_INVALID},
        {{.world_size = 2, .host = "localhost:80"},
         "give cddp_init_options.host=localhost and port=80",
         CDDP_E_INVALID},
        {{.world_size = 2, .host = "localhost", .port = 65536}, "port is 65536", CDDP_E_INVALID},
        {{.world_size = 2, .port = 29500}, "host and port", CDDP_E_INVALID},
        {{.world_size = 2, .host = "localhost", .port = 29500, .id = &no_id}, "id has the address", CDDP_E_INVALID},
        {{.world_size = 2, .id = &no_id, .flags = CDDP_INIT_HOST_STORE},
         "leave out host, port and CDDP_INIT_HOST_STORE",
         CDDP_E_INVALID},
        {{.rank = 1}, "need world_size", CDDP_E_INVALID},
        {{.host = "localhost", .port = 29500}, "need world_size", CDDP_E_INVALID},
        {{.id = &no_id}, "need world_size", CDDP_E_INVALID},
        {{.flags = 2}, "cddp_init_options.flags has unknown bits (0x2)", CDDP_E_UNSUPPORTED},
        {{.world_size = 2, .rank = 1, .host = "localhost", .port = 1, .join_timeout_ms = 300},
         "cannot reach the store at localhost:1 (cddp_init_options: host, port)",
         CDDP_E_IO},
        {{.world_size = 2, .rank = 1, .host = "localhost", .port = 1, .join_timeout_ms = 300, .flags = 1},
         "rank 0 hosts the store (CDDP_INIT_HOST_STORE)",
         CDDP_E_IO},
    };

    clean_env();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_init_options opt = cases[i].opt;
        cddp_comm *comm = NULL;

        opt.size = sizeof opt;
        cr_assert_eq(cddp_init(&comm, &opt), cases[i].status, "case %zu: %s", i, cddp_last_error());
        cr_assert(strstr(cddp_last_error(), cases[i].word) != NULL, "case %zu: %s", i, cddp_last_error());
        cr_assert_null(comm);
    }
    cr_assert_eq(cddp_unique_id_create(NULL), CDDP_E_INVALID);
}

Test(join, world_of_one_needs_no_store)
{
    const cddp_init_options opt = {.size = sizeof opt, .world_size = 1};
    cddp_comm *comm;

    rank_env(1, 2, 1); /* with other values */
    cr_assert_eq(cddp_init(&comm, &opt), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(cddp_world_size(comm), 1);
    cr_assert_null(cddp_comm_store(comm));
    cr_assert_eq(digits_of(comm), 1);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}
