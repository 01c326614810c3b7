/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "world.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>

CDI_SUITE(first);

#define RANKS 4

/* Shared by all ranks: how many ran first on each node, and how many have begun after them. */
static struct board {
    _Atomic int done[2], after[2];
} * board;

static int world(int (*body)(int rank))
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(board != MAP_FAILED);
    return run_world(RANKS, body);
}

/* Ranks 0 and 1 on one node, 2 and 3 on another. */
static void on_two_nodes(int rank)
{
    set_env("LOCAL_RANK", rank % 2);
    set_env("LOCAL_WORLD_SIZE", 2);
    set_env("GROUP_RANK", rank / 2);
    set_env("GROUP_WORLD_SIZE", 2);
}

/* A program that downloads a file once, for two files. */
static int download(cddp_scope of, int expect, int node)
{
    cddp_comm *comm = NULL;
    int first = -1;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (int file = 0; file < 2; file++) {
        CHECK(cddp_leader_first_begin(comm, of, &first) == CDDP_OK && first == expect);
        if (first) {
            CHECK(board->after[node] == file * (of == CDDP_SCOPE_JOB ? 3 : 1));
            board->done[node]++;
        } else {
            CHECK(board->done[node] == file + 1);
            board->after[node]++;
        }
        CHECK(cddp_leader_first_end(comm, first, NULL) == CDDP_OK);
        CHECK(cddp_barrier(comm) == CDDP_OK);
    }
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

static int once_per_job(int rank)
{
    return download(CDDP_SCOPE_JOB, rank == 0, 0);
}

static int once_per_node(int rank)
{
    on_two_nodes(rank);
    return download(CDDP_SCOPE_NODE, rank % 2 == 0, rank / 2);
}

Test(first, rank_0_runs_first)
{
    cr_assert_eq(world(once_per_job), 0);
}

Test(first, one_rank_of_each_node_runs_first)
{
    cr_assert_eq(world(once_per_node), 0);
}

/* Ranks 3 and 1 alone: in their part of the world rank 1 is the lowest. */
static int in_a_part(int rank)
{
    cddp_comm *comm = NULL, *part = NULL;
    int first = -1;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_comm_split(&part, comm, rank % 2, 0, NULL) == CDDP_OK);
    CHECK(cddp_leader_first_begin(part, CDDP_SCOPE_NODE, &first) == CDDP_OK && first == (rank < 2));
    CHECK(cddp_leader_first_end(part, first, NULL) == CDDP_OK);
    CHECK(cddp_finalize(part) == CDDP_OK && cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(first, parts_have_their_own_leaders)
{
    cr_assert_eq(world(in_a_part), 0);
}

/* One leader fails: all ranks get its error, also the other leader, and continue. */
static int one_fails(int rank)
{
    cddp_comm *comm = NULL;
    int first = 0;
    cddp_status st;

    on_two_nodes(rank);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    st = cddp_leader_first_begin(comm, CDDP_SCOPE_NODE, &first);
    CHECK(st == (rank % 2 == 0 ? CDDP_OK : CDDP_E_REMOTE));
    if (rank % 2 == 0)
        CHECK(cddp_leader_first_end(comm, first, rank == 2 ? "the disk is full" : NULL) == CDDP_E_REMOTE);
    CHECK(strcmp(cddp_last_error(), "rank 2, which ran first, failed: the disk is full") == 0);
    CHECK(cddp_barrier(comm) == CDDP_OK && cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(first, failure_of_the_leader_reaches_all)
{
    cr_assert_eq(world(one_fails), 0);
}

/* Also rank 0, which would begin without a message from another rank. */
static int broken_before(int rank)
{
    cddp_comm *comm = NULL;
    int first = -1;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    if (rank == 0)
        cddp_abort(comm, "enough");
    CHECK(cddp_leader_first_begin(comm, CDDP_SCOPE_JOB, &first) == CDDP_E_ABORTED && first == -1);
    CHECK(cddp_finalize(comm) == CDDP_E_ABORTED);
    return 0;
}

Test(first, fails_in_a_broken_world)
{
    cr_assert_eq(world(broken_before), 0);
}

/* The leader ends in between, by a crash or a plain exit. */
static int leaves(bool crash)
{
    cddp_comm *comm = NULL;
    int first = 0;
    cddp_status st;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    st = cddp_leader_first_begin(comm, CDDP_SCOPE_JOB, &first);
    if (first && crash)
        _exit(0);
    if (first) {
        CHECK(st == CDDP_OK && cddp_finalize(comm) == CDDP_OK);
        return 0;
    }
    CHECK(st == CDDP_E_PEER && strstr(cddp_last_error(), "rank 0") != NULL);
    CHECK(cddp_finalize(comm) == CDDP_E_PEER);
    return 0;
}

static int crashes(int rank)
{
    (void)rank;
    return leaves(true);
}

static int goes(int rank)
{
    (void)rank;
    return leaves(false);
}

Test(first, death_of_the_leader_reaches_the_others)
{
    cr_assert_eq(world(crashes), 0);
}

Test(first, exit_of_the_leader_reaches_the_others)
{
    cr_assert_eq(world(goes), 0);
}

Test(first, single_rank_is_always_first)
{
    cddp_comm *comm = NULL;
    int first = 0;

    clean_env();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_OK);
    cr_assert_eq(cddp_leader_first_begin(comm, CDDP_SCOPE_NODE, &first), CDDP_OK);
    cr_assert_eq(first, 1);
    cr_assert_eq(cddp_leader_first_end(comm, first, ""), CDDP_E_REMOTE);
    cr_assert(strstr(cddp_last_error(), "rank 0, which ran first, failed: ") != NULL);
    cr_assert_eq(cddp_leader_first_begin(comm, (cddp_scope)7, &first), CDDP_E_INVALID);
    cr_assert_eq(cddp_leader_first_begin(comm, CDDP_SCOPE_JOB, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_leader_first_begin(NULL, CDDP_SCOPE_JOB, &first), CDDP_E_INVALID);
    cr_assert_eq(cddp_leader_first_end(NULL, 1, NULL), CDDP_E_INVALID);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}
