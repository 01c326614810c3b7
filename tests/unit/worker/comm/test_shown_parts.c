/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent sees of parts: their names and ranks, their last collective, and nothing after their end. */
#include "hygiene.h"
#include "protocol/flight.h"
#include "world.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

CDI_SUITE(shown_part);

#define N 4 /* ranks */

static struct cdi_flight *agent; /* of this rank's process */
static int agent_fd;
static struct cdi_flight_part parts[CDI_FLIGHT_PARTS];

/* Joins the world with a flight page that this process reads as its agent would. */
static cddp_status join(cddp_comm **comm)
{
    char env[128];
    cddp_status st = cdi_flight_create(&agent, 0, &agent_fd, NULL);

    if (st != CDDP_OK)
        return st;
    cdi_flight_env(agent, agent_fd, agent_fd, env, sizeof env);
    if (setenv(CDI_FLIGHT_ENV, env, 1) != 0)
        return CDDP_E_SYSTEM;
    return cddp_init(comm, NULL);
}

/* Ends the world and the page. */
static int leave(cddp_comm *comm)
{
    CHECK(cddp_finalize(comm) == CDDP_OK);
    cdi_flight_release(agent);
    (void)close(agent_fd);
    return 0;
}

/* Returns what is shown under this name; NULL: nothing. */
static const struct cdi_flight_part *shown(const char *who)
{
    size_t n = cdi_flight_parts(agent, parts);

    for (size_t i = 0; i < n; i++)
        if (strcmp(parts[i].who, who) == 0)
            return &parts[i];
    return NULL;
}

static int name_parts(int rank)
{
    const cddp_split_options tp = {.size = sizeof tp, .name = "tp"};
    const int group[] = {3, 0, 1};
    cddp_comm *comm, *pair, *all, *of_pair, *some = NULL;
    const char *who = rank < 2 ? "'tp' (ranks 1, 0)" : "'tp' (ranks 3, 2)";
    char alone[32];

    CHECK(join(&comm) == CDDP_OK);
    CHECK(cdi_flight_parts(agent, parts) == 0);
    CHECK(cddp_comm_split(&pair, comm, rank / 2, -rank, &tp) == CDDP_OK);
    CHECK(cddp_comm_split(&all, comm, 7, 0, NULL) == CDDP_OK);
    CHECK(cddp_comm_split(&of_pair, pair, rank, 0, NULL) == CDDP_OK);
    if (rank != 2)
        CHECK(cddp_comm_create_group(&some, comm, group, 3, 0, &tp) == CDDP_OK);
    (void)snprintf(alone, sizeof alone, "(ranks %d)", rank);
    CHECK(shown(who) != NULL && shown("(ranks 0-3)") != NULL && shown(alone) != NULL);
    CHECK((shown("'tp' (ranks 3, 0, 1)") != NULL) == (rank != 2));
    CHECK(cdi_flight_parts(agent, parts) == (rank != 2 ? 4 : 3));

    CHECK(cddp_barrier(all) == CDDP_OK && cddp_barrier(all) == CDDP_OK);
    CHECK(shown("(ranks 0-3)")->last.seq == 2 && shown("(ranks 0-3)")->last.op == CDI_FLIGHT_BARRIER);
    CHECK(shown("(ranks 0-3)")->unfinished.seq == 0);
    CHECK(shown(who)->last.op == CDI_FLIGHT_ALL_GATHER); /* the split of the pair */

    CHECK(cddp_finalize(all) == CDDP_OK);
    CHECK(shown("(ranks 0-3)") == NULL && shown(who) != NULL);
    CHECK(cddp_finalize(some) == CDDP_OK && cddp_finalize(of_pair) == CDDP_OK && cddp_finalize(pair) == CDDP_OK);
    CHECK(cdi_flight_parts(agent, parts) == 0);
    return leave(comm);
}

Test(shown_part, has_its_name_and_its_ranks_of_the_job)
{
    cr_assert_eq(run_world(N, name_parts), 0);
}

/* A part outlives the whole, whose page it uses to the end. */
static int end_whole_first(int rank)
{
    cddp_comm *comm, *pair;

    CHECK(join(&comm) == CDDP_OK);
    CHECK(cddp_comm_split(&pair, comm, rank / 2, 0, NULL) == CDDP_OK);
    CHECK(cddp_barrier(pair) == CDDP_OK && cdi_flight_parts(agent, parts) == 1);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    CHECK(cdi_flight_parts(agent, parts) == 0);
    return leave(pair);
}

Test(shown_part, may_end_after_the_whole)
{
    cr_assert_eq(run_world(N, end_whole_first), 0);
}

/* Rank 0 aborts its pair, in which rank 1 waits. */
static int abort_pair(int rank)
{
    cddp_comm *comm, *pair;
    cddp_status st;

    CHECK(join(&comm) == CDDP_OK);
    CHECK(cddp_comm_split(&pair, comm, rank / 2, 0, NULL) == CDDP_OK);
    if (rank == 0)
        cddp_abort(pair, "a test");
    st = cddp_barrier(pair);
    CHECK(st == (rank < 2 ? CDDP_E_ABORTED : CDDP_OK));
    CHECK(cdi_flight_parts(agent, parts) == (rank < 2 ? 0 : 1));
    CHECK(cddp_barrier(comm) == CDDP_OK);
    CHECK(cddp_finalize(pair) == st);
    return leave(comm);
}

Test(shown_part, waits_for_nobody_after_its_failure)
{
    cr_assert_eq(run_world(N, abort_pair), 0);
}

/* The ranks differ in their collective, which fails; then the program joins once more. */
static int leave_work_behind(int rank)
{
    float w = 0;
    const cddp_param p = {.size = sizeof p, .name = "w", .data = &w, .count = 1, .dtype = CDDP_FLOAT32};
    struct cdi_flight_view v;
    cddp_comm *comm;
    cddp_ddp *ddp;

    CHECK(join(&comm) == CDDP_OK);
    CHECK(cddp_ddp_create(&ddp, comm, &p, 1, NULL) == CDDP_OK);
    CHECK(rank == 0 || cddp_ddp_grad_ready(ddp, 0) == CDDP_OK);
    CHECK(cddp_barrier(comm) != CDDP_OK);
    cddp_ddp_destroy(ddp);
    CHECK(cddp_finalize(comm) != CDDP_OK);
    cdi_flight_read(agent, &v);
    CHECK(v.over && v.oldest_unfinished.seq != 0);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK && cddp_barrier(comm) == CDDP_OK);
    cdi_flight_read(agent, &v);
    CHECK(!v.over && v.oldest_unfinished.seq == 0 && v.last.op == CDI_FLIGHT_BARRIER);
    return leave(comm);
}

Test(shown_part, nothing_of_the_last_communicator_is_pending_in_the_next)
{
    cr_assert_eq(run_world(2, leave_work_behind), 0);
}

/* A name of the greatest length leaves no room for all ranks. */
static int name_many(int rank)
{
    const cddp_split_options opt = {.size = sizeof opt, .name = "a-name-of-forty-seven-bytes-which-is-the-most--"};
    const char *who = "'a-name-of-forty-seven-bytes-which-is-the-most--' (ranks 7, 6, 5, 4, 3, 2 and 2 more)";
    cddp_comm *comm, *all;

    CHECK(join(&comm) == CDDP_OK);
    CHECK(cddp_comm_split(&all, comm, 0, -rank, &opt) == CDDP_OK);
    CHECK(shown(who) != NULL);
    CHECK(cddp_finalize(all) == CDDP_OK);
    return leave(comm);
}

Test(shown_part, long_list_of_ranks_ends_with_their_number)
{
    cr_assert_eq(run_world(8, name_many), 0);
}
