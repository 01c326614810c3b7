/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks come together where the program says more than the environment: when it gives up, and where they meet. */
#include "by_hand.h"
#undef CHECK
#include "hygiene.h"
#include "within.h"
#include "world.h"

#include "common/clock.h"
#include "worker/store_client.h"

#include <pthread.h>
#include <string.h>

CDI_SUITE(join, .timeout = 90);

/* -------------------------------------------------------------------------------------------------- giving up ---- */

struct patience {
    int left; /* asks, before it gives up */
    pthread_t thread;
    bool elsewhere; /* asked in another thread than that */
    int64_t begun_ms;
    bool bored;
};

static int lose_patience(void *arg)
{
    struct patience *p = arg;

    p->elsewhere = p->elsewhere || !pthread_equal(p->thread, pthread_self());
    return p->left-- > 0 ? 0 : 7;
}

static struct patience asked(int times)
{
    return (struct patience){.left = times, .thread = pthread_self(), .begun_ms = cdi_now_ms()};
}

/* Calls cddp_init, which gives up; 0: as it should. */
static int gives_up(int times)
{
    struct patience p = asked(times);
    const cddp_init_options opt = {
        .size = sizeof opt, .join_timeout_ms = 80000, .interrupted = lose_patience, .arg = &p};
    cddp_error_info info = {.size = sizeof info};
    cddp_comm *comm = NULL;

    CHECK(cddp_init(&comm, &opt) == CDDP_E_ABORTED && comm == NULL);
    CHECK(strstr(cddp_last_error(), "gave it up (its `interrupted` returned 7)") != NULL);
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

Test(join, a_program_gives_up_to_wait_for_ranks_that_do_not_come)
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

Test(join, a_program_gives_up_where_it_hosts_the_store_itself)
{
    cr_assert_eq(run_ranks(by_hand_port(), 1, 2, hosts_for_nobody), 0);
}

static int finds_no_store(int rank)
{
    (void)rank;
    return gives_up(12); /* long enough for the pauses between two attempts to be longer than between two asks */
}

Test(join, a_program_gives_up_to_look_for_a_store_that_is_not_there)
{
    cr_assert_eq(run_ranks(by_hand_port(), 1, 2, finds_no_store), 0);
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

Test(join, the_others_hear_at_once_that_a_rank_has_given_up)
{
    struct rdzv_child server;

    rdzv_child_start(&server);
    cr_assert_eq(run_ranks(server.port, 3, 4, one_gives_up), 0);
    rdzv_child_stop(&server);
    cr_assert_eq(run_ranks(by_hand_port(), 3, 4, one_gives_up_by_hand), 0);
}

/* A rank that has said that it is there, and does nothing more. */
static cddp_status pretend_rank_1(int port)
{
    const char *who = "elsewhere:1:0.1";
    cddp_store *s;
    cddp_status st = cdi_store_open(&s, "127.0.0.1", port, 10000, NULL);

    if (st != CDDP_OK)
        return st;
    st = cdi_store_set(s, "cddp/0/rank/1", who, strlen(who), NULL);
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

Test(join, a_program_gives_up_while_the_backend_connects)
{
    for (n_nodes = 1; n_nodes <= 2; n_nodes++) {
        struct rdzv_child server;

        rdzv_child_start(&server);
        cr_assert_eq(pretend_rank_1(server.port), CDDP_OK);
        cr_assert_eq(run_ranks(server.port, 1, 2, connects_in_vain), 0, "with %d nodes", n_nodes);
        rdzv_child_stop(&server);
    }
}

/* Nothing is asked any more after cddp_init, and in a world that comes together at once hardly anything. */
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

Test(join, nothing_is_asked_once_all_have_joined)
{
    cr_assert_eq(run_world(3, goes_well), 0);
}
