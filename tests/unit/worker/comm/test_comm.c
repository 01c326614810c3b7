/* SPDX-License-Identifier: Apache-2.0 */
/* From the environment to collectives: libcddp as a program sees it, with the project's own server as the store. */
#include "hygiene.h"
#include "world.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

CDI_SUITE(comm);

Test(comm, is_a_world_of_one_without_variables)
{
    cddp_comm *comm = NULL;
    float x[2] = {1, 2}, y[2] = {0};
    cddp_device_info where = {.size = sizeof where};
    char *memory = NULL;
    int32_t n = 5;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(cddp_rank(comm), 0);
    cr_assert_eq(cddp_world_size(comm), 1);
    cr_assert_eq(cddp_local_world_size(comm), 1);
    cr_assert_str_eq(cddp_backend_name(comm), "cpu");
    cr_assert_eq(cddp_get_device_info(comm, &where), CDDP_OK);
    cr_assert_eq(where.device, -1);
    cr_assert_eq(where.numa_node, -1);
    cr_assert_str_eq(where.name, "cpu");
    cr_assert_eq(cddp_alloc(comm, 12, 0, (void **)&memory), CDDP_OK);
    cr_assert_eq((uintptr_t)memory % 64, 0);
    cr_assert_eq(cddp_copy(comm, memory, "twelve bytes", 12), CDDP_OK);
    cr_assert_eq(memcmp(memory, "twelve bytes", 12), 0);
    cddp_free(comm, memory);
    cddp_free(comm, NULL);
    cr_assert_null(cddp_comm_store(comm));
    cr_assert_eq(cddp_stop_requested(comm), 0);
    cr_assert_eq(cddp_all_reduce(comm, x, y, 2, CDDP_FLOAT32, CDDP_AVG), CDDP_OK);
    cr_assert(y[0] == 1 && y[1] == 2);
    cr_assert_eq(cddp_all_gather(comm, x, y, 2, CDDP_FLOAT32), CDDP_OK);
    cr_assert_eq(cddp_broadcast(comm, &n, 1, CDDP_INT32, 0), CDDP_OK);
    cr_assert_eq(cddp_barrier(comm), CDDP_OK);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
    cr_assert_eq(cddp_finalize(NULL), CDDP_OK);
}

Test(comm, rejects_bad_arguments_without_damage)
{
    cddp_comm *comm = NULL;
    float x[8] = {1};
    int32_t n[2] = {0};
    cddp_init_options opt = {.size = 1};
    struct {
        cddp_init_options opt;
        uint64_t newer;
    } later = {.opt = {.size = sizeof later}, .newer = 1};

    char offset[64];

    (void)snprintf(offset, sizeof offset, "cddp_init_options is not zero at offset %zu,", sizeof opt);
    clean_env();
    cr_assert_eq(cddp_init(NULL, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_init(&comm, &opt), CDDP_E_INVALID);
    opt = (cddp_init_options){.size = sizeof opt, .backend = "abacus"};
    cr_assert_eq(cddp_init(&comm, &opt), CDDP_E_INVALID);
    cr_assert(strstr(cddp_last_error(), "'abacus'") != NULL);
    opt = (cddp_init_options){.size = sizeof opt, .timeout_ms = -1};
    cr_assert_eq(cddp_init(&comm, &opt), CDDP_E_INVALID);
    cr_assert_eq(cddp_init(&comm, &later.opt), CDDP_E_UNSUPPORTED);
    cr_assert(strstr(cddp_last_error(), offset) != NULL);
    cr_assert_null(comm, "written on success only");
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(cddp_all_reduce(NULL, x, x, 1, CDDP_FLOAT32, CDDP_SUM), CDDP_E_INVALID);
    cr_assert_eq(cddp_all_reduce(comm, x, x, 1, CDDP_DTYPE_NONE, CDDP_SUM), CDDP_E_INVALID);
    cr_assert_eq(cddp_all_reduce(comm, x, x, 1, CDDP_FLOAT32, (cddp_redop)9), CDDP_E_INVALID);
    cr_assert_eq(cddp_all_reduce(comm, NULL, x, 1, CDDP_FLOAT32, CDDP_SUM), CDDP_E_INVALID);
    cr_assert_eq(cddp_all_reduce(comm, x, x + 1, 2, CDDP_FLOAT32, CDDP_SUM), CDDP_E_INVALID, "overlap");
    cr_assert_eq(cddp_all_reduce(comm, x, x, SIZE_MAX / 4, CDDP_FLOAT32, CDDP_SUM), CDDP_E_INVALID);
    cr_assert_eq(cddp_all_reduce(comm, n, n, 2, CDDP_INT32, CDDP_AVG), CDDP_E_INVALID);
    cr_assert_eq(cddp_broadcast(comm, x, 1, CDDP_FLOAT32, 1), CDDP_E_INVALID);
    cr_assert_eq(cddp_all_gather(comm, x + 1, x, 4, CDDP_FLOAT32), CDDP_E_INVALID, "overlap");
    cr_assert_eq(cddp_barrier(NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_all_reduce(comm, NULL, NULL, 0, CDDP_FLOAT32, CDDP_SUM), CDDP_OK);
    cddp_abort(comm, "enough");
    cr_assert_eq(cddp_barrier(comm), CDDP_E_ABORTED);
    cr_assert_str_eq(cddp_last_error(), "rank 0 aborted the job: enough");
    cddp_abort(NULL, NULL);
    cr_assert_eq(cddp_finalize(comm), CDDP_E_ABORTED, "the sticky error");
}

Test(comm, getters_accept_null)
{
    cr_assert_eq(cddp_rank(NULL), -1);
    cr_assert_eq(cddp_world_size(NULL), 0);
    cr_assert_eq(cddp_local_rank(NULL), -1);
    cr_assert_eq(cddp_local_world_size(NULL), 0);
    cr_assert_eq(cddp_node_rank(NULL), -1);
    cr_assert_str_eq(cddp_backend_name(NULL), "");
    cr_assert_eq(cddp_restart_count(NULL), 0);
    cr_assert_eq(cddp_stop_requested(NULL), 0);
    cr_assert_null(cddp_comm_store(NULL));
}

/* Two jobs whose long names differ at their ends must not become one. */
Test(comm, rejects_a_name_that_does_not_fit)
{
    char name[49] = "012345678901234567890123456789012345678901234567";
    const cddp_init_options opt = {.size = sizeof opt, .backend = "cpu", .name = name};
    cddp_comm *comm = NULL;

    clean_env();
    cr_assert(cddp_init(&comm, &opt) == CDDP_E_INVALID && comm == NULL);
    cr_assert_str_eq(cddp_last_error(), "cddp_init_options.name '012345678901234567890123456789012345678901234567...' "
                                        "is longer than 47 bytes");
    name[47] = '\0';
    cr_assert_eq(cddp_init(&comm, &opt), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}

Test(comm, names_missing_or_wrong_variables)
{
    static const struct {
        const char *name, *value, *word;
        cddp_status status;
    } cases[] = {
        {"RANK", NULL, "RANK is not set", CDDP_E_INVALID},
        {"RANK", "one", "RANK='one'", CDDP_E_INVALID},
        {"RANK", "-1", "RANK='-1'", CDDP_E_INVALID},
        {"RANK", "2", "RANK=2 is not below WORLD_SIZE=2", CDDP_E_INVALID},
        {"WORLD_SIZE", NULL, "WORLD_SIZE is not set", CDDP_E_INVALID},
        {"WORLD_SIZE", "0", "WORLD_SIZE='0'", CDDP_E_INVALID},
        {"MASTER_ADDR", NULL, "MASTER_ADDR is not set", CDDP_E_INVALID},
        {"MASTER_ADDR", "[::1]:80",
         "MASTER_ADDR '[::1]:80' is an address with a port; give MASTER_ADDR=::1 and "
         "MASTER_PORT=80",
         CDDP_E_INVALID},
        {"MASTER_PORT", NULL, "MASTER_PORT is not set", CDDP_E_INVALID},
        {"MASTER_PORT", "http", "MASTER_PORT='http'", CDDP_E_INVALID},
        {"LOCAL_RANK", "x", "LOCAL_RANK='x'", CDDP_E_INVALID},
        {"CDDP_BACKEND", "abacus", "this libcddp has no backend 'abacus' (CDDP_BACKEND)", CDDP_E_INVALID},
        {"CDDP_BACKEND", "nccl", "CDDP_BACKEND is \"nccl\": ", CDDP_E_NOT_FOUND},
        {"CDDP_TIMEOUT", "soon", "CDDP_TIMEOUT='soon'", CDDP_E_INVALID},
        {"CDDP_FLIGHT", "here", "CDDP_FLIGHT='here'", CDDP_E_INVALID},
        {"TORCHELASTIC_RESTART_COUNT", "-3", "TORCHELASTIC_RESTART_COUNT='-3'", CDDP_E_INVALID},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        cddp_comm *comm = NULL;

        rank_env(0, 2, 1);
        if (cases[i].value == NULL)
            (void)unsetenv(cases[i].name);
        else
            (void)setenv(cases[i].name, cases[i].value, 1);
        cr_assert_eq(cddp_init(&comm, NULL), cases[i].status, "%s=%s: %s", cases[i].name, cases[i].value,
                     cddp_last_error());
        cr_assert(strstr(cddp_last_error(), cases[i].word) != NULL, "%s", cddp_last_error());
    }
}

static int use_everything(int rank)
{
    cddp_comm *comm = NULL;
    double x[3] = {rank, 1, -rank}, all[12];
    int64_t n;

    set_env("TORCHELASTIC_RESTART_COUNT", 2);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_restart_count(comm) == 2);
    CHECK(cddp_rank(comm) == rank && cddp_world_size(comm) == 4 && cddp_local_rank(comm) == rank);
    CHECK(cddp_all_reduce(comm, x, x, 3, CDDP_FLOAT64, CDDP_SUM) == CDDP_OK);
    CHECK(x[0] == 6 && x[1] == 4 && x[2] == -6);
    x[0] = rank;
    CHECK(cddp_all_gather(comm, x, all, 3, CDDP_FLOAT64) == CDDP_OK);
    for (int r = 0; r < 4; r++)
        CHECK(all[3 * r] == r && all[3 * r + 1] == 4);
    CHECK(cddp_broadcast(comm, x, 1, CDDP_FLOAT64, 3) == CDDP_OK);
    CHECK(x[0] == 3);
    CHECK(cddp_store_add(cddp_comm_store(comm), "n", 1, &n) == CDDP_OK && n >= 1 && n <= 4);
    CHECK(cddp_barrier(comm) == CDDP_OK);
    CHECK(cddp_store_add(cddp_comm_store(comm), "n", 0, &n) == CDDP_OK && n == 4);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(comm, four_processes_join_and_reduce)
{
    cr_assert_eq(run_world(4, use_everything), 0);
}

Test(comm, each_status_has_a_name_and_a_text)
{
    cr_assert_str_eq(cddp_status_name(CDDP_E_TIMEOUT), "CDDP_E_TIMEOUT");
    cr_assert_str_eq(cddp_strerror(CDDP_E_TIMEOUT), "timed out");
    cr_assert_str_eq(cddp_strerror(CDDP_OK), "success");
    cr_assert_not_null(cddp_strerror((cddp_status)-1000));
}

static int wait_for_more(int rank)
{
    cddp_comm *comm = NULL;
    const cddp_init_options opt = {.size = sizeof opt, .join_timeout_ms = 3000};

    (void)rank;
    CHECK(cddp_init(&comm, &opt) == CDDP_E_TIMEOUT);
    CHECK(strcmp(cddp_last_error(), "3 of 5 ranks did not join within 3 s: 2, 3, 4") == 0);
    return 0;
}

Test(comm, names_ranks_that_do_not_join)
{
    struct rdzv_child server;

    rdzv_child_start(&server);
    cr_assert_eq(run_ranks(server.port, 2, 5, wait_for_more), 0);
    rdzv_child_stop(&server);
}

static int same_rank(int rank)
{
    cddp_comm *comm = NULL;
    const cddp_init_options opt = {.size = sizeof opt, .join_timeout_ms = 3000};
    cddp_status st;
    char own[32], taken[32];

    set_env("RANK", 1); /* both of them */
    (void)rank;
    st = cddp_init(&comm, &opt);
    if (st == CDDP_E_TIMEOUT)
        return 10; /* the first of them, which waits for a rank 0 */
    CHECK(st == CDDP_E_EXISTS);
    (void)snprintf(own, sizeof own, "now process %d on ", (int)getpid());
    (void)snprintf(taken, sizeof taken, "two processes have RANK=%d", 1);
    CHECK(strstr(cddp_last_error(), own) != NULL && strstr(cddp_last_error(), taken) != NULL);
    CHECK(strstr(cddp_last_error(), " joined first") != NULL);
    return 0;
}

Test(comm, names_both_processes_with_one_rank)
{
    struct rdzv_child server;

    rdzv_child_start(&server);
    cr_assert_eq(run_ranks(server.port, 2, 2, same_rank), 1, "one of the two gets the error");
    rdzv_child_stop(&server);
}

static int other_size(int rank)
{
    cddp_comm *comm = NULL;

    set_env("WORLD_SIZE", rank == 2 ? 4 : 3);
    CHECK(cddp_init(&comm, NULL) == CDDP_E_MISMATCH && comm == NULL);
    CHECK(strstr(cddp_last_error(), "WORLD_SIZE mismatch: ") != NULL);
    return 0;
}

Test(comm, detects_different_world_sizes_at_once)
{
    cr_assert_eq(run_world(3, other_size), 0);
}

/* While the first communicator exists. */
static int join_twice(int rank)
{
    cddp_comm *comm = NULL, *again = NULL;

    (void)rank;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_init(&again, NULL) == CDDP_E_EXISTS && again == NULL);
    CHECK(strstr(cddp_last_error(), "this process has already joined the job, as rank ") == cddp_last_error());
    CHECK(cddp_barrier(comm) == CDDP_OK && cddp_finalize(comm) == CDDP_OK);
    CHECK(cddp_init(&again, NULL) == CDDP_OK && cddp_barrier(again) == CDDP_OK && cddp_finalize(again) == CDDP_OK);
    return 0;
}

Test(comm, rejects_second_join_of_a_process)
{
    cr_assert_eq(run_world(2, join_twice), 0);
}

static int say_stop(int rank)
{
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    if (rank == 2)
        cddp_abort(comm, "the loss is NaN");
    CHECK(cddp_barrier(comm) == CDDP_E_ABORTED);
    CHECK(strcmp(cddp_last_error(), "rank 2 aborted the job: the loss is NaN") == 0);
    CHECK(cddp_finalize(comm) == CDDP_E_ABORTED);
    return 0;
}

Test(comm, abort_reaches_all_ranks)
{
    cr_assert_eq(run_world(3, say_stop), 0);
}

/* A thread that is slow before each lock, where the scheduler may suspend any thread. */
static _Thread_local bool slow;
static _Atomic int at_a_lock /* 1: it waits there, 2: it continued */, has_finalized;

int pthread_mutex_lock(pthread_mutex_t *lock)
{
    static _Atomic(int (*)(pthread_mutex_t *)) real;

    if (atomic_load(&real) == NULL)
        atomic_store(&real, (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock"));
    if (slow)
        atomic_store(&at_a_lock, 1);
    for (int ms = 0; slow && ms < 300 && !atomic_load(&has_finalized); ms++)
        (void)usleep(1000);
    if (slow)
        atomic_store(&at_a_lock, 2);
    return atomic_load(&real)(lock);
}

static void *abort_slowly(void *comm)
{
    slow = true;
    cddp_abort(comm, "the watchdog barked");
    return NULL;
}

Test(comm, finalize_waits_for_an_abort_on_another_thread)
{
    cddp_comm *comm = NULL;
    pthread_t watchdog;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(pthread_create(&watchdog, NULL, abort_slowly, comm), 0);
    while (!atomic_load(&at_a_lock))
        (void)usleep(1000);
    (void)cddp_finalize(comm);
    atomic_store(&has_finalized, 1);
    cr_assert_eq(atomic_load(&at_a_lock), 2, "the abort still used what was freed");
    cr_assert_eq(pthread_join(watchdog, NULL), 0);
}

static int poor(int rank)
{
    const struct rlimit files = {.rlim_cur = 16, .rlim_max = 16};

    for (int fd = 3; fd < 256; fd++) /* the test runner's descriptors do not count */
        (void)close(fd);
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    return use_everything(rank);
}

Test(comm, four_ranks_need_at_most_sixteen_descriptors)
{
    cr_assert_eq(run_world(4, poor), 0);
}

/* ------------------------------------------------------------------------------------ without an agent ---- */

static int by_hand(int rank)
{
    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    CHECK(use_everything(rank) == 0);
    return 0;
}

Test(comm, rank_0_hosts_the_store_without_a_launcher)
{
    cr_assert_eq(run_ranks(free_port(), 4, 4, by_hand), 0);
}

static int under_mpirun(int rank)
{
    cddp_comm *comm = NULL;

    clean_env();
    set_env("OMPI_COMM_WORLD_RANK", rank);
    set_env("OMPI_COMM_WORLD_SIZE", 2);
    set_env("OMPI_COMM_WORLD_LOCAL_RANK", rank);
    set_env("OMPI_COMM_WORLD_LOCAL_SIZE", 2);
    (void)setenv("MASTER_ADDR", "localhost", 1);
    (void)setenv("MASTER_PORT", getenv("PORT"), 1);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_rank(comm) == rank && cddp_local_rank(comm) == rank && cddp_local_world_size(comm) == 2);
    CHECK(cddp_node_rank(comm) == 0);
    CHECK(cddp_barrier(comm) == CDDP_OK);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(comm, joins_by_open_mpis_variables)
{
    set_env("PORT", free_port());
    cr_assert_eq(run_ranks(1, 2, 2, under_mpirun), 0);
}

static void nap(int ms)
{
    const struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};

    (void)nanosleep(&ts, NULL);
}

static int slow_to_leave(int rank)
{
    cddp_comm *comm = NULL;
    const char *const key = "left";

    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    if (rank == 1) {
        nap(300); /* the others are in cddp_finalize by now */
        CHECK(cddp_store_set(cddp_comm_store(comm), key, "1", 1) == CDDP_OK);
    }
    if (rank == 2)
        CHECK(cddp_store_wait(cddp_comm_store(comm), &key, 1, 10000) == CDDP_OK);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(comm, rank_0_keeps_the_store_until_all_have_left)
{
    cr_assert_eq(run_ranks(free_port(), 3, 3, slow_to_leave), 0);
}

/* All ranks finalize and join again, each a little earlier or later than the others. */
static int join_again(int rank)
{
    for (int join = 0; join < 4; join++) {
        cddp_comm *comm = NULL, *part = NULL;
        int32_t sum[2] = {rank, join};
        size_t len = 0;
        char was[8] = "";

        CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_world_size(comm) == 4);
        CHECK(cddp_all_reduce(comm, sum, sum, 2, CDDP_INT32, CDDP_SUM) == CDDP_OK && sum[0] == 6 && sum[1] == 4 * join);
        CHECK(cddp_comm_split(&part, comm, rank % 2, 0, NULL) == CDDP_OK && cddp_barrier(part) == CDDP_OK);
        CHECK(cddp_finalize(part) == CDDP_OK);
        if (rank == join) /* a key of the program */
            CHECK(cddp_store_set(cddp_comm_store(comm), "key", "value", 5) == CDDP_OK);
        CHECK(cddp_store_get(cddp_comm_store(comm), "key", was, sizeof was, &len, 0) == CDDP_OK && len == 5);
        CHECK(cddp_barrier(comm) == CDDP_OK);
        nap((rank + join) % 4 * 30);
        CHECK(cddp_finalize(comm) == CDDP_OK);
        nap((rank * 3 + join) % 4 * 30);
    }
    return 0;
}

static int join_again_across(int rank)
{
    set_env("LOCAL_RANK", rank % 2);
    set_env("LOCAL_WORLD_SIZE", 2);
    set_env("GROUP_RANK", rank / 2);
    set_env("GROUP_WORLD_SIZE", 2);
    return join_again(rank);
}

static int join_again_by_hand(int rank)
{
    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    return join_again(rank);
}

Test(comm, all_ranks_can_join_again_after_finalize)
{
    cr_assert_eq(run_world(4, join_again), 0);
    cr_assert_eq(run_world(4, join_again_across), 0);
}

Test(comm, all_ranks_can_join_again_if_rank_0_hosts)
{
    cr_assert_eq(run_ranks(free_port(), 4, 4, join_again_by_hand), 0);
}

static int host_dies(int rank)
{
    const char *const key = "never";
    cddp_comm *comm = NULL;

    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    if (rank == 0) {
        nap(100); /* they wait by now; if not, they find it gone, and must report the same */
        _exit(0);
    }
    CHECK(cddp_store_wait(cddp_comm_store(comm), &key, 1, 20000) == CDDP_E_PEER);
    CHECK(strstr(cddp_last_error(), "rank 0, which hosts the store at 127.0.0.1:") != NULL);
    CHECK(cddp_barrier(comm) == CDDP_E_PEER);
    CHECK(strstr(cddp_last_error(), "rank 0") != NULL);
    CHECK(cddp_finalize(comm) == CDDP_E_PEER);
    return 0;
}

Test(comm, death_of_the_host_ends_a_wait_in_the_store)
{
    cr_assert_eq(run_ranks(free_port(), 3, 3, host_dies), 0);
}

static int dies_in_barrier(int rank)
{
    cddp_comm *comm = NULL;

    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    if (rank == 0) {
        nap(100);
        _exit(0);
    }
    CHECK(cddp_barrier(comm) == CDDP_E_PEER);
    CHECK(strstr(cddp_last_error(), "rank 0") != NULL);
    (void)cddp_finalize(comm);
    return 0;
}

Test(comm, death_of_the_host_ends_a_collective)
{
    cr_assert_eq(run_ranks(free_port(), 3, 3, dies_in_barrier), 0);
}

static int missing_host(int rank)
{
    cddp_comm *comm = NULL;
    const cddp_init_options opt = {.size = sizeof opt, .join_timeout_ms = 2000};

    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    set_env("RANK", rank + 1);
    CHECK(cddp_init(&comm, &opt) == CDDP_E_IO);
    CHECK(strstr(cddp_last_error(), "rank 0 hosts the store") != NULL);
    return 0;
}

Test(comm, names_a_missing_rank_0)
{
    cr_assert_eq(run_ranks(free_port(), 1, 2, missing_host), 0);
}

static int foreign_address(int rank)
{
    cddp_comm *comm = NULL;
    const cddp_init_options opt = {.size = sizeof opt, .join_timeout_ms = 2000};

    (void)rank;
    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    (void)setenv("MASTER_ADDR", "192.0.2.1", 1); /* reserved for documentation: no host has it */
    CHECK(cddp_init(&comm, &opt) == CDDP_E_TIMEOUT);
    CHECK(strstr(cddp_last_error(), "1 of 2 ranks did not join within 2 s: 1; MASTER_ADDR='192.0.2.1' is no") != NULL);
    return 0;
}

Test(comm, names_an_address_of_another_host)
{
    cr_assert_eq(run_ranks(free_port(), 1, 2, foreign_address), 0);
}

static int one_is_missing(int rank)
{
    cddp_comm *comm = NULL;
    const cddp_init_options opt = {.size = sizeof opt, .join_timeout_ms = rank == 0 ? 2000 : 3000};

    (void)unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    CHECK(cddp_init(&comm, &opt) == CDDP_E_TIMEOUT);
    CHECK(strstr(cddp_last_error(), "1 of 3 ranks did not join within") != NULL);
    CHECK(strstr(cddp_last_error(), "s: 2") != NULL);
    return 0;
}

Test(comm, host_stays_until_all_know_the_missing_rank)
{
    cr_assert_eq(run_ranks(free_port(), 2, 3, one_is_missing), 0);
}
