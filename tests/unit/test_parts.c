/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a communicator, on one node and on several: what they are called, how long they wait, and which ranks. */
#include "hygiene.h"
#include "world.h"

#include <string.h>

CDI_SUITE(parts, .timeout = 90);

/* The next rank's node; 0: all ranks are on one. Emulated: nodes share no memory. */
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

/* On n ranks of one node, then on nodes of so many ranks each; the number of ranks that failed. */
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

/* Is the sum over the ranks of `part` of 10^(rank in the world) what these digits say? */
static int has_members(cddp_comm *part, int64_t digits)
{
    int64_t x = 1, sum = 0;

    for (int r = 0; r < cddp_world_rank(part, cddp_rank(part)); r++)
        x *= 10;
    CHECK(cddp_all_reduce(part, &x, &sum, 1, CDDP_INT64, CDDP_SUM) == CDDP_OK && sum == digits);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ the ranks ---- */

static int knows_its_ranks(int rank)
{
    cddp_comm *comm, *part, *again;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (int r = 0; r < 4; r++)
        CHECK(cddp_world_rank(comm, r) == r);
    CHECK(cddp_world_rank(comm, 4) == -1 && cddp_world_rank(comm, -1) == -1 && cddp_world_rank(NULL, 0) == -1);
    CHECK(cddp_comm_split(&part, comm, rank == 2 ? 1 : 0, -rank, NULL) == CDDP_OK);
    if (rank != 2) { /* 3, 1, 0 */
        CHECK(cddp_world_rank(part, 0) == 3 && cddp_world_rank(part, 1) == 1 && cddp_world_rank(part, 2) == 0);
        CHECK(cddp_world_rank(part, 3) == -1 && has_members(part, 1011) == 0);
        CHECK(cddp_comm_split(&again, part, cddp_rank(part) == 0, 0, NULL) == CDDP_OK);
        CHECK(cddp_world_rank(again, 0) == (rank == 3 ? 3 : 1) && cddp_world_rank(again, 1) == (rank == 3 ? -1 : 0));
        CHECK(has_members(again, rank == 3 ? 1000 : 11) == 0 && cddp_finalize(again) == CDDP_OK);
    } else {
        CHECK(cddp_world_rank(part, 0) == 2 && cddp_world_size(part) == 1);
    }
    CHECK(cddp_finalize(part) == CDDP_OK && cddp_world_rank(comm, 3) == 3);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(parts, a_rank_of_a_part_is_known_as_a_rank_of_the_world)
{
    cr_assert_eq(everywhere(4, knows_its_ranks), 0);
}

/* --------------------------------------------------------------------------------------------------- options ---- */

static int is_named(int rank)
{
    const cddp_init_options world = {.size = sizeof world, .name = "trainer"};
    const cddp_split_options dp = {.size = sizeof dp, .name = "dp", .timeout_ms = 300},
                             long_one = {.size = sizeof dp,
                                         .name = "0123456789012345678901234567890123456789012345678901234567890"};
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm, *part, *other;
    float x = 1;

    CHECK(cddp_init(&comm, &world) == CDDP_OK && cddp_comm_split(&part, comm, 0, -rank, &dp) == CDDP_OK);
    CHECK(cddp_comm_split(&other, comm, 0, 0, &long_one) == CDDP_OK);
    if (rank == 0) { /* the others wait as long as the part says, not as long as the whole would */
        CHECK(cddp_all_reduce(part, &x, &x, 1, CDDP_FLOAT32, CDDP_SUM) == CDDP_E_TIMEOUT);
        CHECK(strncmp(cddp_last_error(), "communicator 'dp': ", 19) == 0);
        CHECK(strstr(cddp_last_error() + 19, "communicator") == NULL);
    }
    CHECK(cddp_barrier(comm) == CDDP_OK && cddp_comm_error(comm, NULL) == CDDP_OK);
    if (rank != 0) /* has heard of it, once */
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

Test(parts, a_name_is_in_the_error_messages_and_a_timeout_is_the_part_s_own)
{
    cr_assert_eq(everywhere(3, is_named), 0);
}

static int wants_the_cpu(int rank)
{
    const cddp_split_options cpu = {.size = sizeof cpu, .backend = "cpu"};
    cddp_comm *comm, *part;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(&part, comm, rank % 2, 0, rank == 0 ? NULL : &cpu) == CDDP_OK);
    CHECK(strcmp(cddp_backend_name(part), "cpu") == 0 && has_members(part, rank % 2 == 0 ? 101 : 10) == 0);
    CHECK(cddp_finalize(part) == CDDP_OK && cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(parts, a_part_of_the_cpu_s_on_the_cpu_is_a_part_as_any_other)
{
    cr_assert_eq(everywhere(3, wants_the_cpu), 0);
}

Test(parts, options_that_are_wrong_are_named_and_nothing_is_done)
{
    cddp_split_options opt = {.size = sizeof opt, .backend = "abacus"};
    cddp_comm *comm, *part = NULL;

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
    cr_assert_null(part, "written on success only");
    opt = (cddp_split_options){.size = sizeof opt, .backend = "cpu", .name = "alone", .timeout_ms = 5};
    cr_assert_eq(cddp_comm_split(&part, comm, 0, 0, &opt), CDDP_OK, "%s", cddp_last_error());
    cr_assert_eq(has_members(part, 1), 0);
    cr_assert_eq(cddp_world_rank(part, 0), 0);
    cddp_abort(part, NULL);
    cr_assert_eq(cddp_barrier(part), CDDP_E_ABORTED);
    cr_assert_str_eq(cddp_last_error(), "communicator 'alone': rank 0 aborted the job");
    cr_assert_eq(cddp_finalize(part), CDDP_E_ABORTED);
    cr_assert_eq(cddp_barrier(comm), CDDP_OK);
    cr_assert_eq(cddp_finalize(comm), CDDP_OK);
}
