/* SPDX-License-Identifier: Apache-2.0 */
/* Errors as values: the rank that caused them, the system's code, and the errors that a communicator finds without a
 * wait. */
#include "hygiene.h"
#include "world.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

CDI_SUITE(error_info);

#define RANKS 4
#define AT_ONCE_MS 50 /* with room for a busy node; a wait would take its timeout */

static int64_t now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void nap(long ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    (void)nanosleep(&t, NULL);
}

/* Checks that the last error has this status and names this rank. */
static bool blames(cddp_status status, int rank)
{
    cddp_error_info info = {.size = sizeof info};

    cddp_last_error_info(&info);
    if (info.status == status && info.rank == rank && strcmp(info.message, cddp_last_error()) == 0)
        return true;
    fprintf(stderr, "status %d of rank %d, and not %d of %d: %s\n", (int)info.status, (int)info.rank, (int)status, rank,
            info.message);
    return false;
}

/* Polls until the communicator reports an error; each call returns at once. */
static cddp_status ask(cddp_comm *comm, cddp_error_info *info)
{
    int64_t until_ms = now_ms() + 20000, longest_ms = 0;
    cddp_status st = CDDP_OK;

    while (st == CDDP_OK && now_ms() < until_ms) {
        int64_t begin_ms = now_ms();

        *info = (cddp_error_info){.size = sizeof *info};
        st = cddp_comm_error(comm, info);
        longest_ms = now_ms() - begin_ms > longest_ms ? now_ms() - begin_ms : longest_ms;
        nap(1);
    }
    if (longest_ms > 20 * AT_ONCE_MS)
        fprintf(stderr, "a question took %d ms\n", (int)longest_ms);
    return longest_ms > 20 * AT_ONCE_MS ? CDDP_OK : st;
}

Test(error_info, misuse_blames_no_rank_and_an_abort_its_caller)
{
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm = NULL;

    clean_env();
    cddp_last_error_info(NULL);
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(cddp_comm_error(comm, &info), CDDP_OK);
    cr_assert(info.status == CDDP_OK && info.rank == -1 && info.message[0] == '\0' && info.size == sizeof info);
    cr_assert_eq(cddp_barrier(NULL), CDDP_E_INVALID);
    cr_assert(blames(CDDP_E_INVALID, -1));
    cr_assert_eq(cddp_comm_error(comm, NULL), CDDP_OK, "misuse breaks nothing");
    cr_assert_eq(cddp_comm_error(NULL, &info), CDDP_E_INVALID);
    cddp_abort(comm, "enough");
    cr_assert_eq(cddp_comm_error(comm, &info), CDDP_E_ABORTED);
    cr_assert(info.status == CDDP_E_ABORTED && info.rank == 0);
    cr_assert_str_eq(info.message, "rank 0 aborted the job: enough");
    cr_assert(blames(CDDP_E_ABORTED, 0));
    cr_assert_eq(cddp_finalize(comm), CDDP_E_ABORTED);
}

Test(error_info, writes_no_more_than_the_callers_size)
{
    union {
        cddp_error_info info;
        unsigned char bytes[2 * sizeof(cddp_error_info)];
    } u;
    const size_t sizes[] = {0,
                            sizeof(size_t),
                            offsetof(cddp_error_info, os_error),
                            offsetof(cddp_error_info, message) + 8,
                            sizeof(cddp_error_info),
                            2 * sizeof(cddp_error_info)};

    cr_assert_eq(cddp_barrier(NULL), CDDP_E_INVALID);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t end = sizes[i] < sizeof u.info ? sizes[i] : sizeof u.info;

        memset(&u, 0x5a, sizeof u);
        u.info.size = sizes[i];
        cddp_last_error_info(&u.info);
        cr_assert_eq(u.info.size, sizes[i]);
        if (end > offsetof(cddp_error_info, status))
            cr_assert(u.info.status == CDDP_E_INVALID && u.info.rank == -1);
        for (size_t k = end < sizeof(size_t) ? sizeof(size_t) : end; k < sizeof u; k++)
            cr_assert_eq(u.bytes[k], 0x5a, "size %zu, byte %zu", sizes[i], k);
    }
}

/* -------------------------------------------------------------------------------------------- the rank that is blamed
 * ----
 */

static int cannot_save(int rank)
{
    const cddp_checkpoint_item item = {.size = sizeof item, .name = "x", .data = &rank, .bytes = sizeof rank};
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, "/proc/no/such/place", 1, &item, 1, NULL) == CDDP_E_SYSTEM);
    CHECK(blames(CDDP_E_SYSTEM, 0));
    cddp_last_error_info(&info);
    CHECK(info.os_error == ENOENT && info.device_error == 0);
    CHECK(cddp_comm_error(comm, NULL) == CDDP_OK && cddp_barrier(comm) == CDDP_OK);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(error_info, all_ranks_get_the_errno_of_a_failed_save)
{
    cr_assert_eq(run_world(2, cannot_save), 0);
}

static int calls_another(int rank)
{
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm = NULL;
    float x[2] = {0};

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_all_reduce(comm, x, x, rank == 3 ? 2 : 1, CDDP_FLOAT32, CDDP_SUM) == CDDP_E_MISMATCH);
    CHECK(blames(CDDP_E_MISMATCH, 3));
    CHECK(cddp_comm_error(comm, &info) == CDDP_E_MISMATCH && info.rank == 3);
    CHECK(cddp_finalize(comm) == CDDP_E_MISMATCH);
    return 0;
}

static void on_two_nodes(int rank)
{
    set_env("LOCAL_RANK", rank % 2);
    set_env("LOCAL_WORLD_SIZE", 2);
    set_env("GROUP_RANK", rank / 2);
    set_env("GROUP_WORLD_SIZE", 2);
}

static int calls_another_across(int rank)
{
    on_two_nodes(rank);
    return calls_another(rank);
}

Test(error_info, names_the_higher_of_two_ranks_that_differ)
{
    cr_assert_eq(run_world(RANKS, calls_another), 0);
    cr_assert_eq(run_world(RANKS, calls_another_across), 0);
}

/* Rank 2 calls it long after the others have given up, and gets an error that names itself as late. */
static int comes_late(int rank)
{
    const cddp_init_options opt = {.size = sizeof opt, .timeout_ms = 700};
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, &opt) == CDDP_OK);
    if (rank == 2)
        nap(3000);
    CHECK(cddp_barrier(comm) == CDDP_E_TIMEOUT && blames(CDDP_E_TIMEOUT, 2));
    CHECK(cddp_finalize(comm) == CDDP_E_TIMEOUT);
    return 0;
}

static int comes_late_across(int rank)
{
    on_two_nodes(rank);
    return comes_late(rank);
}

Test(error_info, timeout_names_the_late_rank)
{
    cr_assert_eq(run_world(RANKS, comes_late), 0);
    cr_assert_eq(run_world(RANKS, comes_late_across), 0);
}

/* Ranks 3 and 1 are 0 and 1 of their part. */
static int late_in_a_part(int rank)
{
    const cddp_init_options opt = {.size = sizeof opt, .timeout_ms = 700};
    cddp_comm *comm = NULL, *part = NULL;

    CHECK(cddp_init(&comm, &opt) == CDDP_OK && cddp_comm_split(&part, comm, rank % 2, -rank, NULL) == CDDP_OK);
    if (rank == 3)
        nap(3000);
    if (rank % 2 == 1) {
        CHECK(cddp_barrier(part) == CDDP_E_TIMEOUT && blames(CDDP_E_TIMEOUT, 3));
        CHECK(cddp_rank(part) == (rank == 1) && cddp_finalize(part) == CDDP_E_TIMEOUT);
    } else {
        CHECK(cddp_barrier(part) == CDDP_OK && cddp_finalize(part) == CDDP_OK);
    }
    CHECK(cddp_comm_error(comm, NULL) == CDDP_OK);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(error_info, errors_of_a_part_name_ranks_of_the_world)
{
    cr_assert_eq(run_world(RANKS, late_in_a_part), 0);
}

static int one_fails_alone(int rank)
{
    cddp_comm *comm = NULL;
    int first = 0;
    cddp_status st;

    on_two_nodes(rank);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    st = cddp_leader_first_begin(comm, CDDP_SCOPE_NODE, &first);
    if (st == CDDP_OK)
        st = cddp_leader_first_end(comm, first, rank == 2 ? "the disk is full" : NULL);
    CHECK(st == CDDP_E_REMOTE && blames(CDDP_E_REMOTE, 2));
    CHECK(cddp_comm_error(comm, NULL) == CDDP_OK && cddp_barrier(comm) == CDDP_OK);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(error_info, remote_failure_names_its_rank_and_the_job_continues)
{
    cr_assert_eq(run_world(RANKS, one_fails_alone), 0);
}

/* ------------------------------------------------------------------------------------ errors that are found without a
 * wait
 * ---- */

/* The others call no function that waits. */
static int one_aborts(int rank)
{
    cddp_error_info info;
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    if (rank == 2)
        cddp_abort(comm, "enough");
    CHECK(ask(comm, &info) == CDDP_E_ABORTED);
    CHECK(info.rank == 2 && strcmp(info.message, "rank 2 aborted the job: enough") == 0);
    CHECK(cddp_barrier(comm) == CDDP_E_ABORTED && blames(CDDP_E_ABORTED, 2));
    (void)cddp_finalize(comm);
    return 0;
}

static int one_aborts_across(int rank)
{
    on_two_nodes(rank);
    return one_aborts(rank);
}

Test(error_info, peers_abort_is_found_without_a_wait)
{
    cr_assert_eq(run_world(RANKS, one_aborts), 0);
    cr_assert_eq(run_world(RANKS, one_aborts_across), 0);
}

static int one_dies(int rank)
{
    cddp_error_info info;
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_barrier(comm) == CDDP_OK);
    if (rank == 1)
        _exit(0);
    CHECK(ask(comm, &info) == CDDP_E_PEER);
    CHECK(info.rank == 1 && strstr(info.message, "rank 1 (pid ") != NULL);
    CHECK(cddp_barrier(comm) == CDDP_E_PEER && blames(CDDP_E_PEER, 1));
    (void)cddp_finalize(comm);
    return 0;
}

Test(error_info, neighbours_death_is_found_without_a_wait)
{
    cr_assert_eq(run_world(RANKS, one_dies), 0);
}
