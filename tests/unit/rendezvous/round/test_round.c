/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the round. tests/sim searches for unexpected ones. */
#include "hygiene.h"
#include "rendezvous/round/round.h"

#include <signal.h>
#include <string.h>

CDI_SUITE(round);

/* -------------------------------------------------------------------------------------------------- directed ---- */

static uint32_t job_restarts; /* in each JOIN */

static struct round *job(uint32_t min, uint32_t max, uint32_t restarts)
{
    struct round *r = NULL;
    const struct round_options opt = {.run_id = "job",
                                      .min_nodes = min,
                                      .max_nodes = max,
                                      .max_restarts = restarts,
                                      .join_timeout_ms = 60000,
                                      .last_call_ms = 5000};

    job_restarts = restarts;
    cr_assert_eq(round_create(&r, &opt, 0, NULL), CDDP_OK);
    return r;
}

static struct cdi_msg_join join_of(const char *host, int32_t node_rank, uint32_t n_procs, uint32_t min, uint32_t max)
{
    struct cdi_msg_join j = {.version = CDI_CONTROL_VERSION,
                             .release = "0.1.0",
                             .run_id = "job",
                             .pid = 100 + node_rank,
                             .node_rank = node_rank,
                             .n_procs = n_procs,
                             .min_nodes = min,
                             .max_nodes = max,
                             .max_restarts = job_restarts};

    (void)snprintf(j.host, sizeof j.host, "%s", host);
    return j;
}

static const struct round_action *done;
static size_t n_done;

static void step(struct round *r, struct round_event ev, int64_t now)
{
    done = round_step(r, &ev, now, &n_done);
}

static void join(struct round *r, uint32_t peer, const char *host, int32_t rank, uint32_t procs, uint32_t n)
{
    struct cdi_msg_join j = join_of(host, rank, procs, n, n);

    step(r, (struct round_event){.kind = ROUND_EV_JOIN, .peer = peer, .join = &j}, 0);
}

/* Returns true if action i is of this kind, for this peer. */
static bool did(size_t i, enum round_action_kind kind, uint32_t peer)
{
    return i < n_done && done[i].kind == kind && (kind == ROUND_DO_END_KEYS || done[i].peer == peer);
}

static void fail(struct round *r, uint32_t peer, uint32_t round, const char *text)
{
    struct cdi_failure f = {.kind = CDI_END_EXIT, .code = 3, .rank = -1, .local_rank = 1, .node_rank = -1};

    (void)snprintf(f.text, sizeof f.text, "%s", text);
    step(r, (struct round_event){.kind = ROUND_EV_FAILED, .peer = peer, .round = round, .failure = &f}, 0);
}

static void stopped(struct round *r, uint32_t peer, uint32_t round)
{
    step(r, (struct round_event){.kind = ROUND_EV_STOPPED, .peer = peer, .round = round}, 0);
}

#define NOW_MS 100000

/* It happened at that time, 0: not known, and arrives at NOW_MS. */
static void end_at(struct round *r, uint32_t peer, int64_t at_ms, enum cdi_end_kind kind, int32_t code)
{
    struct cdi_failure f = {.kind = kind,
                            .code = code,
                            .rank = -1,
                            .local_rank = 0,
                            .node_rank = -1,
                            .time_ms = at_ms > 0 ? 7000000 - at_ms : 0, /* by a clock that runs backwards */
                            .age_ms = NOW_MS - at_ms};

    (void)snprintf(f.text, sizeof f.text, "code %d", code);
    step(r, (struct round_event){.kind = ROUND_EV_FAILED, .peer = peer, .round = 0, .failure = &f}, NOW_MS);
}

static void fail_at(struct round *r, uint32_t peer, int64_t time_ms, int32_t code)
{
    end_at(r, peer, time_ms, CDI_END_EXIT, code);
}

Test(round, earlier_of_crossing_failures_is_the_cause)
{
    struct round *r = job(3, 3, 0);

    for (uint32_t i = 0; i < 3; i++)
        join(r, i, "h", (int32_t)i, 1, 3);
    fail_at(r, 0, 2000, 5);
    cr_assert_eq(round_failure(r)->code, 5);
    fail_at(r, 1, 2001, 6);
    cr_assert_eq(round_failure(r)->code, 5, "a later failure is a consequence");
    cr_assert_eq(n_done, 0);
    fail_at(r, 2, 1990, 7);
    cr_assert_eq(round_failure(r)->code, 7);
    cr_assert_eq(n_done, 3, "all nodes get the new cause");
    cr_assert_eq(round_failure(r)->node_rank, 2);
    cr_assert_str_eq(round_why(r), "code 7");
    fail_at(r, 0, 0, 8);
    cr_assert_eq(round_failure(r)->code, 7, "a failure without a time is ignored");
    fail_at(r, 2, 1000, 9);
    cr_assert_eq(round_failure(r)->code, 7, "a node's first report counts");
    for (uint32_t i = 0; i < 3; i++)
        stopped(r, i, 0);
    cr_assert_eq(round_state(r), ROUND_CLOSED);
    cr_assert_eq(round_failure(r)->code, 7);
    round_destroy(r);
}

static void hang(struct round *r, uint32_t round, bool stop)
{
    struct cdi_failure f = {
        .rank = 1, .local_rank = 0, .node_rank = 1, .time_ms = 5000, .text = "no progress\n    stacks"};

    step(r,
         (struct round_event){.kind = ROUND_EV_HANG, .peer = UINT32_MAX, .round = round, .failure = &f, .final = stop},
         0);
}

Test(round, standstill_is_a_failure_that_counts)
{
    struct round *r = job(2, 2, 1);

    join(r, 0, "a", 0, 1, 2);
    hang(r, 0, false);
    cr_assert(n_done == 0 && round_state(r) == ROUND_JOINING, "no round runs");
    join(r, 1, "b", 1, 1, 2);
    hang(r, 1, false);
    cr_assert(n_done == 0 && round_state(r) == ROUND_RUNNING, "another round");
    hang(r, 0, false);
    cr_assert(n_done == 2 && did(0, ROUND_DO_ROUND_OVER, 0) && did(1, ROUND_DO_ROUND_OVER, 1));
    cr_assert(round_failure(r)->kind == CDI_END_HANG && round_failure(r)->rank == 1);
    cr_assert_str_eq(round_why(r), "no progress");
    cr_assert(round_uses_restart(r) && round_over(r)->restart);
    hang(r, 0, true);
    cr_assert(n_done == 0 && round_uses_restart(r), "it is over already");
    stopped(r, 0, 0);
    stopped(r, 1, 0);
    cr_assert(round_state(r) == ROUND_RUNNING && round_restart_count(r) == 1);
    hang(r, 1, false);
    stopped(r, 0, 1);
    stopped(r, 1, 1);
    cr_assert(round_state(r) == ROUND_CLOSED && round_close_status(r) == CDI_CLOSE_FAILED, "no restart is left");
    round_destroy(r);
}

Test(round, standstill_may_end_the_job_with_restarts_left)
{
    struct round *r = job(1, 3, 5);

    for (uint32_t i = 0; i < 3; i++) {
        struct cdi_msg_join j = join_of("h", (int32_t)i, 1, 1, 3);

        step(r, (struct round_event){.kind = ROUND_EV_JOIN, .peer = i, .join = &j}, 0);
    }
    hang(r, 0, true);
    cr_assert(!round_over(r)->restart && !round_uses_restart(r));
    end_at(r, 0, 1000, CDI_END_EXIT, 3);
    end_at(r, 1, 1000, CDI_END_NODE, 0);
    step(r, (struct round_event){.kind = ROUND_EV_LOST, .peer = 2, .text = "gone"}, 0);
    cr_assert_eq(round_failure(r)->kind, CDI_END_HANG, "later failures do not change it, also in an elastic job");
    stopped(r, 0, 0);
    stopped(r, 1, 0);
    cr_assert(round_state(r) == ROUND_CLOSED && round_close_status(r) == CDI_CLOSE_FAILED);
    round_destroy(r);
}

Test(round, final_failure_ends_the_job_with_restarts_left)
{
    struct cdi_failure f = {.kind = CDI_END_EXIT, .code = 77, .final = 1, .age_ms = NOW_MS - 50000};
    struct round *r = job(2, 2, 3);

    join(r, 0, "a", 0, 1, 2);
    join(r, 1, "b", 1, 1, 2);
    step(r, (struct round_event){.kind = ROUND_EV_FAILED, .peer = 0, .failure = &f}, NOW_MS);
    cr_assert_not(round_restarts(r));
    end_at(r, 1, 49500, CDI_END_SIGNAL, SIGKILL);
    cr_assert(round_restarts(r) && round_failure(r)->node_rank == 1, "the cause decides, and is another failure");
    round_destroy(r);
}

Test(round, new_cause_goes_to_nodes_of_the_round_only)
{
    struct round *r = job(2, 2, 1);

    join(r, 0, "a", 0, 1, 2);
    join(r, 1, "b", 1, 1, 2);
    fail_at(r, 0, 2000, 5);
    stopped(r, 0, 0);
    join(r, 2, "c", -1, 1, 2);
    fail_at(r, 1, 1999, 6);
    cr_assert(n_done == 2 && did(0, ROUND_DO_ROUND_OVER, 0) && did(1, ROUND_DO_ROUND_OVER, 1));
    cr_assert(round_uses_restart(r));
    cr_assert_eq(round_failure(r)->code, 6);
    round_destroy(r);
}

Test(round, killed_worker_is_the_cause_of_a_simultaneous_exit)
{
    const struct {
        enum cdi_end_kind kind;
        int32_t code;
        int64_t time_ms;
        bool cause;
    } cases[] = {
        {CDI_END_SIGNAL, SIGKILL, 50999, true},  {CDI_END_SIGNAL, SIGKILL, 49001, true},
        {CDI_END_SIGNAL, SIGKILL, 51000, false}, {CDI_END_SIGNAL, SIGSEGV, 50001, true},
        {CDI_END_SIGNAL, SIGTERM, 50001, false}, {CDI_END_SIGNAL, SIGPIPE, 50001, false},
        {CDI_END_SIGNAL, SIGPIPE, 49999, true},  {CDI_END_SPAWN, 2, 50001, false},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct round *r = job(2, 2, 0);

        join(r, 0, "a", 0, 1, 2);
        join(r, 1, "b", 1, 1, 2);
        fail_at(r, 0, 50000, 1);
        end_at(r, 1, cases[i].time_ms, cases[i].kind, cases[i].code);
        cr_assert_eq(round_failure(r)->node_rank == 1, cases[i].cause, "case %zu", i);
        round_destroy(r);
    }
}

Test(round, missed_rank_is_the_cause_despite_clocks)
{
    const struct {
        uint32_t misses;
        int32_t code;
        bool cause;
    } cases[] = {
        {2, 0, true}, {3, 0, true}, {0, 0, false}, {2, 1, true}}; /* a rank that misses another one follows it */

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cdi_failure f = {.kind = CDI_END_EXIT, .code = 3, .time_ms = 50000, .misses = cases[i].misses};
        struct round *r = job(2, 2, 0);

        join(r, 0, "a", 0, 1, 2);
        join(r, 1, "b", 1, 1, 2);
        step(r, (struct round_event){.kind = ROUND_EV_DONE, .peer = 1}, 0);
        step(r, (struct round_event){.kind = ROUND_EV_FAILED, .peer = 0, .failure = &f}, 0);
        f = (struct cdi_failure){.kind = CDI_END_EXIT, .code = cases[i].code, .rank = 1, .time_ms = 60000};
        step(r, (struct round_event){.kind = ROUND_EV_FAILED, .peer = 1, .failure = &f}, 0);
        cr_assert_eq(round_failure(r)->node_rank == 1, cases[i].cause, "case %zu", i);
        cr_assert_eq(n_done, cases[i].cause ? 2 : 0, "case %zu", i);
        round_destroy(r);
    }
}

Test(round, exit_does_not_replace_a_simultaneous_kill)
{
    struct round *r = job(3, 3, 0);

    for (uint32_t i = 0; i < 3; i++)
        join(r, i, "h", (int32_t)i, 1, 3);
    end_at(r, 0, 50000, CDI_END_SIGNAL, SIGKILL);
    fail_at(r, 1, 49500, 1);
    cr_assert_eq(round_failure(r)->node_rank, 0);
    fail_at(r, 2, 48999, 1);
    cr_assert_eq(round_failure(r)->node_rank, 2, "long before");
    round_destroy(r);
}

Test(round, cut_off_node_is_the_cause_of_later_failures)
{
    struct round *r = job(3, 3, 1);

    for (uint32_t i = 0; i < 3; i++)
        join(r, i, "h", (int32_t)i, 1, 3);
    fail_at(r, 0, 20000, 1);
    end_at(r, 1, 29000, CDI_END_NODE, 0);
    cr_assert_eq(round_failure(r)->kind, CDI_END_EXIT, "the node was cut off and did not get the failure");
    cr_assert_eq(n_done, 0);
    end_at(r, 2, 20900, CDI_END_NODE, 0);
    cr_assert_eq(n_done, 3, "all nodes get the new cause");
    cr_assert_eq(round_failure(r)->kind, CDI_END_NODE);
    cr_assert(round_failure(r)->node_rank == 2 && round_failure(r)->pid == 102);
    cr_assert_str_eq(round_why(r), "node 2 (h, pid 102) killed its workers: code 0");
    cr_assert(round_uses_restart(r), "in a job of fixed size it counts as a failure");
    fail_at(r, 1, 1000, 6);
    end_at(r, 1, 1000, CDI_END_NODE, 0);
    cr_assert_eq(round_failure(r)->node_rank, 2, "it remains the cause");
    round_destroy(r);

    r = job(1, 2, 1);
    for (uint32_t i = 0; i < 2; i++) {
        struct cdi_msg_join j = join_of("h", (int32_t)i, 1, 1, 2);

        step(r, (struct round_event){.kind = ROUND_EV_JOIN, .peer = i, .join = &j}, 0);
    }
    fail_at(r, 0, 20000, 1);
    cr_assert(round_uses_restart(r));
    end_at(r, 1, 20001, CDI_END_NODE, 0);
    cr_assert(!round_uses_restart(r) && round_restarts(r), "in an elastic job it is a membership change");
    round_destroy(r);
}

Test(round, cut_off_node_starts_no_round_in_an_ending_job)
{
    struct round *r = job(2, 3, 0);

    for (uint32_t i = 0; i < 3; i++) {
        struct cdi_msg_join j = join_of("h", (int32_t)i, 1, 2, 3);

        step(r, (struct round_event){.kind = ROUND_EV_JOIN, .peer = i, .join = &j}, 0);
    }
    fail_at(r, 1, 20000, 1);
    step(r, (struct round_event){.kind = ROUND_EV_LEAVE, .peer = 0, .text = "SIGTERM", .final = true}, 0);
    end_at(r, 2, 20500, CDI_END_NODE, 0);
    for (uint32_t i = 0; i < 3; i++)
        step(r, (struct round_event){.kind = ROUND_EV_STOPPED, .peer = i}, 1);
    cr_assert_eq(round_state(r), ROUND_CLOSED, "the host of the server leaves");
    round_destroy(r);
}

Test(round, failure_follows_from_loss_after_long_silence)
{
    for (int silent = 0; silent < 2; silent++) {
        struct round *r = job(2, 2, 0);
        struct cdi_failure f = {
            .kind = CDI_END_EXIT, .code = 1, .rank = -1, .local_rank = 0, .time_ms = 1, .text = "rank 0 exited"};

        join(r, 0, "a", 0, 1, 2);
        join(r, 1, "b", 1, 1, 2);
        step(r, (struct round_event){.kind = ROUND_EV_FAILED, .peer = 0, .failure = &f}, 10000);
        stopped(r, 0, 0);
        step(r,
             (struct round_event){
                 .kind = ROUND_EV_LOST, .peer = 1, .text = "silence", .fence_ms = silent ? 10999 : 11000},
             18000);
        cr_assert_eq(round_state(r), ROUND_CLOSED);
        cr_assert_eq(round_close_status(r), CDI_CLOSE_FAILED);
        if (silent) {
            cr_assert(did(0, ROUND_DO_ROUND_OVER, 0), "a stopped node gets the new cause");
            cr_assert_eq(round_failure(r)->kind, CDI_END_NODE);
            cr_assert_str_eq(round_why(r), "node 1 (b, pid 101) was lost while its workers ran: silence");
        } else {
            cr_assert_eq(round_failure(r)->kind, CDI_END_EXIT, "the failure preceded the silence");
        }
        round_destroy(r);
    }
}

Test(round, ranks_of_unequal_nodes_are_contiguous)
{
    struct round *r = job(3, 3, 0);
    struct cdi_msg_assign a;

    join(r, 5, "c", 2, 2, 3);
    cr_assert(n_done == 1 && did(0, ROUND_DO_WELCOME, 5));
    join(r, 7, "a", 0, 4, 3);
    cr_assert_eq(round_state(r), ROUND_JOINING);
    join(r, 2, "b", -1, 8, 3);
    cr_assert(n_done == 4 && did(0, ROUND_DO_WELCOME, 2) && did(1, ROUND_DO_ASSIGN, 7) && did(2, ROUND_DO_ASSIGN, 2) &&
              did(3, ROUND_DO_ASSIGN, 5));
    cr_assert(round_assignment(r, 7, &a) && a.node_rank == 0 && a.rank_base == 0);
    cr_assert(round_assignment(r, 2, &a) && a.node_rank == 1 && a.rank_base == 4);
    cr_assert(round_assignment(r, 5, &a) && a.node_rank == 2 && a.rank_base == 12);
    cr_assert(a.world_size == 14 && a.n_nodes == 3 && a.round == 0 && a.restart_count == 0);
    round_destroy(r);
}

Test(round, all_done_closes_the_job)
{
    struct round *r = job(2, 2, 0);

    join(r, 0, "a", -1, 1, 2);
    join(r, 1, "b", -1, 1, 2);
    step(r, (struct round_event){.kind = ROUND_EV_DONE, .peer = 0}, 0);
    cr_assert_eq(n_done, 0);
    step(r, (struct round_event){.kind = ROUND_EV_DONE, .peer = 0}, 0);
    cr_assert_eq(n_done, 0, "a repeated message has no effect");
    step(r, (struct round_event){.kind = ROUND_EV_DONE, .peer = 1}, 0);
    cr_assert(n_done == 3 && did(0, ROUND_DO_END_KEYS, 0) && did(1, ROUND_DO_CLOSED, 0) && did(2, ROUND_DO_CLOSED, 1));
    cr_assert_eq(round_close_status(r), CDI_CLOSE_DONE);
    cr_assert_eq(round_failure(r)->kind, CDI_END_NONE);
    join(r, 2, "c", -1, 1, 2);
    cr_assert(n_done == 1 && did(0, ROUND_DO_REFUSE, 2));
    cr_assert_not_null(strstr(round_text(r), "over"));
    round_destroy(r);
}

Test(round, done_node_may_leave)
{
    struct round *r = job(2, 2, 3);

    join(r, 0, "a", -1, 1, 2);
    join(r, 1, "b", -1, 1, 2);
    step(r, (struct round_event){.kind = ROUND_EV_DONE, .peer = 0}, 0);
    step(r, (struct round_event){.kind = ROUND_EV_LOST, .peer = 0, .text = "gone"}, 0);
    cr_assert_eq(n_done, 0);
    step(r, (struct round_event){.kind = ROUND_EV_DONE, .peer = 1}, 0);
    cr_assert_eq(round_state(r), ROUND_CLOSED);
    cr_assert_eq(round_close_status(r), CDI_CLOSE_DONE);
    round_destroy(r);
}

Test(round, failure_restarts_round_and_keeps_ranks)
{
    struct round *r = job(2, 2, 1);
    struct cdi_msg_assign a;

    join(r, 0, "a", -1, 2, 2);
    join(r, 1, "b", -1, 2, 2);
    fail(r, 1, 0, "rank 3 exited with code 3\nits last lines");
    cr_assert(n_done == 2 && did(0, ROUND_DO_ROUND_OVER, 0) && did(1, ROUND_DO_ROUND_OVER, 1));
    cr_assert(round_restarts(r));
    cr_assert_eq(round_failure(r)->rank, 3, "rank base 2 and local rank 1");
    cr_assert_eq(round_failure(r)->node_rank, 1);
    cr_assert_str_eq(round_failure(r)->host, "b");
    fail(r, 0, 0, "rank 1 was killed because of that");
    cr_assert_eq(n_done, 0);
    cr_assert_eq(round_failure(r)->rank, 3, "the first failure counts");
    stopped(r, 1, 0);
    cr_assert_eq(n_done, 0);
    stopped(r, 1, 0);
    cr_assert_eq(n_done, 0);
    stopped(r, 0, 0);
    cr_assert(n_done == 3 && did(0, ROUND_DO_END_KEYS, 0) && did(1, ROUND_DO_ASSIGN, 0) && did(2, ROUND_DO_ASSIGN, 1));
    cr_assert(round_assignment(r, 1, &a) && a.round == 1 && a.restart_count == 1 && a.node_rank == 1);
    cr_assert_eq(round_failure(r)->kind, CDI_END_NONE, "the new round has no failure");
    stopped(r, 0, 0); /* late */
    cr_assert(n_done == 0 && round_state(r) == ROUND_RUNNING);

    fail(r, 0, 1, "rank 1 exited with code 3\nmore");
    cr_assert(!round_restarts(r));
    stopped(r, 0, 1);
    stopped(r, 1, 1);
    cr_assert(n_done == 3 && did(1, ROUND_DO_CLOSED, 0) && did(2, ROUND_DO_CLOSED, 1));
    cr_assert_eq(round_close_status(r), CDI_CLOSE_FAILED);
    cr_assert_str_eq(round_why(r), "rank 1 exited with code 3 (after 1 restart)");
    cr_assert_eq(round_failure(r)->rank, 1);
    round_destroy(r);
}

Test(round, new_node_replaces_lost_node)
{
    struct round *r = job(3, 3, 1);
    struct cdi_msg_assign a;

    for (uint32_t i = 0; i < 3; i++)
        join(r, i, (const char *[]){"a", "b", "c"}[i], -1, 1, 3);
    step(r, (struct round_event){.kind = ROUND_EV_LOST, .peer = 1, .text = "its connection closed", .wall_ms = 99}, 0);
    cr_assert(n_done == 2 && did(0, ROUND_DO_ROUND_OVER, 0) && did(1, ROUND_DO_ROUND_OVER, 2));
    cr_assert_eq(round_failure(r)->kind, CDI_END_NODE);
    cr_assert_eq(round_failure(r)->time_ms, 99);
    cr_assert_not_null(strstr(round_failure(r)->text, "node 1 (b, pid 99) was lost"));
    stopped(r, 0, 0);
    stopped(r, 2, 0);
    cr_assert(n_done == 1 && did(0, ROUND_DO_END_KEYS, 0));
    cr_assert_eq(round_state(r), ROUND_JOINING);
    join(r, 1, "d", -1, 1, 3);
    cr_assert_eq(n_done, 4);
    cr_assert(round_assignment(r, 2, &a) && a.node_rank == 2, "a remaining node keeps its rank");
    cr_assert(round_assignment(r, 1, &a) && a.node_rank == 1);
    round_destroy(r);
}

/* A program that cannot work is not started as fast as the machine can. */
Test(round, pauses_between_restarts_that_fail_at_once)
{
    static const int64_t pauses[] = {0, 0, 0, 1000, 2000, 4000, 8000, 16000, 30000, 30000};
    const struct cdi_failure f = {.kind = CDI_END_EXIT, .code = 3, .rank = 0, .node_rank = -1};
    struct round *r = job(1, 1, 100);
    int64_t now = 0;

    join(r, 0, "a", 0, 1, 1);
    for (size_t i = 0; i < sizeof pauses / sizeof pauses[0]; i++) {
        cr_assert_eq(round_state(r), ROUND_RUNNING, "restart %zu", i);
        step(r, (struct round_event){.kind = ROUND_EV_FAILED, .peer = 0, .round = round_number(r), .failure = &f}, now);
        step(r, (struct round_event){.kind = ROUND_EV_STOPPED, .peer = 0, .round = round_number(r)}, now);
        if (pauses[i] > 0) {
            step(r, (struct round_event){.kind = ROUND_EV_TICK}, now);
            cr_assert(did(0, ROUND_DO_WAITING, 0) && strstr(round_text(r), "in a row") != NULL, "%s", round_text(r));
            step(r, (struct round_event){.kind = ROUND_EV_TICK}, now + pauses[i] - 1);
            cr_assert_eq(round_state(r), ROUND_JOINING, "before %lld ms", (long long)pauses[i]);
        }
        now += pauses[i];
        step(r, (struct round_event){.kind = ROUND_EV_TICK}, now);
    }
    round_destroy(r);
}

Test(round, rejects_mismatching_join)
{
    struct round *r = job(2, 2, 0);
    struct cdi_msg_join j[] = {join_of("x", -1, 1, 2, 2), join_of("x", -1, 1, 2, 2), join_of("x", -1, 1, 1, 2),
                               join_of("x", 2, 1, 2, 2),  join_of("x", 1, 1, 2, 2),  join_of("x", -1, 0, 2, 2),
                               join_of("x", -1, 1, 2, 2)};
    static const char *const says[] = {"version 9",
                                       "serves job 'job', not 'other'",
                                       "--nnodes=1:2, but the job with 2:2",
                                       "node rank 2, but the job has 2 nodes",
                                       "taken: a (pid 101) has it, and x (pid 101)",
                                       "0 workers",
                                       "--max_restarts=7, but the job with 0"};

    j[0].version = 9;
    j[6].max_restarts = 7;
    (void)snprintf(j[1].run_id, sizeof j[1].run_id, "other");
    join(r, 0, "a", 1, 1, 2);
    for (size_t i = 0; i < sizeof j / sizeof j[0]; i++) {
        step(r, (struct round_event){.kind = ROUND_EV_JOIN, .peer = 9, .join = &j[i]}, 0);
        cr_assert(n_done == 1 && did(0, ROUND_DO_REFUSE, 9), "case %zu", i);
        cr_assert_not_null(strstr(round_text(r), says[i]), "case %zu says: %s", i, round_text(r));
    }
    join(r, 1, "b", 0, 1, 2);
    cr_assert_eq(round_state(r), ROUND_RUNNING);
    join(r, 2, "c", -1, 1, 2);
    cr_assert(did(0, ROUND_DO_REFUSE, 2));
    cr_assert_not_null(strstr(round_text(r), "all of its 2 nodes"));
    round_destroy(r);
}

Test(round, names_missing_nodes_at_join_timeout)
{
    struct round *r = job(5, 5, 0);

    for (int32_t i = 0; i < 5; i += 3) {
        struct cdi_msg_join j = join_of(i == 0 ? "a" : "d", i, 1, 5, 5);

        step(r, (struct round_event){.kind = ROUND_EV_JOIN, .peer = (uint32_t)i, .join = &j}, 0);
    }
    step(r, (struct round_event){.kind = ROUND_EV_TICK}, 59999);
    cr_assert(n_done == 2 && did(0, ROUND_DO_WAITING, 0) && did(1, ROUND_DO_WAITING, 3));
    cr_assert_str_eq(round_text(r), "waiting: 2 of 5 nodes have joined (a, d); missing: node rank 1, 2, 4");
    step(r, (struct round_event){.kind = ROUND_EV_TICK}, 60000);
    cr_assert(n_done == 3 && did(1, ROUND_DO_CLOSED, 0) && did(2, ROUND_DO_CLOSED, 3));
    cr_assert_eq(round_close_status(r), CDI_CLOSE_TIMEOUT);
    cr_assert_str_eq(round_why(r),
                     "not enough nodes joined within 60 s: 2 of 5 nodes have joined (a, d); missing: node rank "
                     "1, 2, 4");
    round_destroy(r);
}

Test(round, smaller_job_starts_after_last_call)
{
    struct round *r = job(1, 3, 0);
    struct cdi_msg_join j = join_of("a", -1, 2, 1, 3);
    struct cdi_msg_assign a;

    step(r, (struct round_event){.kind = ROUND_EV_JOIN, .peer = 0, .join = &j}, 1000);
    step(r, (struct round_event){.kind = ROUND_EV_TICK}, 5999);
    cr_assert_eq(round_state(r), ROUND_JOINING);
    step(r, (struct round_event){.kind = ROUND_EV_TICK}, 6000);
    cr_assert(n_done == 1 && did(0, ROUND_DO_ASSIGN, 0));
    cr_assert(round_assignment(r, 0, &a) && a.n_nodes == 1 && a.world_size == 2);
    round_destroy(r);
}

Test(round, leaving_node_ends_fixed_size_job)
{
    struct round *r = job(2, 2, 5);

    join(r, 0, "a", -1, 1, 2);
    step(r, (struct round_event){.kind = ROUND_EV_LEAVE, .peer = 0, .text = "SIGINT"}, 0);
    cr_assert(n_done == 1 && did(0, ROUND_DO_BYE, 0), "before a round no other node depends on it");
    join(r, 0, "a", -1, 1, 2);
    join(r, 1, "b", -1, 1, 2);
    step(r, (struct round_event){.kind = ROUND_EV_LEAVE, .peer = 1, .text = "SIGTERM"}, 0);
    cr_assert(n_done == 2 && did(0, ROUND_DO_ROUND_OVER, 0) && did(1, ROUND_DO_ROUND_OVER, 1));
    cr_assert(!round_restarts(r));
    stopped(r, 0, 0);
    step(r, (struct round_event){.kind = ROUND_EV_LOST, .peer = 1, .text = "its connection closed"}, 0);
    cr_assert(n_done == 2 && did(1, ROUND_DO_CLOSED, 0));
    cr_assert_eq(round_close_status(r), CDI_CLOSE_LEFT);
    cr_assert_str_eq(round_why(r), "node 1 (b) left: SIGTERM");
    cr_assert_eq(round_failure(r)->kind, CDI_END_NONE);
    round_destroy(r);
}

Test(round, leaving_host_of_an_elastic_job_ends_it_and_the_reason_says_so)
{
    struct round *r = job(1, 2, 5);

    for (uint32_t i = 0; i < 2; i++) {
        struct cdi_msg_join j = join_of("h", (int32_t)i, 1, 1, 2);

        step(r, (struct round_event){.kind = ROUND_EV_JOIN, .peer = i, .join = &j}, 0);
    }
    step(r, (struct round_event){.kind = ROUND_EV_LEAVE, .peer = 1, .text = "SIGTERM", .final = true}, 0);
    stopped(r, 0, 0);
    step(r, (struct round_event){.kind = ROUND_EV_LOST, .peer = 1, .text = "its connection closed"}, 0);
    cr_assert_eq(round_close_status(r), CDI_CLOSE_LEFT);
    cr_assert_str_eq(round_why(r),
                     "node 1 (h) left: SIGTERM; it hosted the rendezvous server, so the job cannot go on");
    round_destroy(r);
}

Test(round, protocol_error_counts_as_loss)
{
    struct round *r = job(2, 2, 0);

    fail(r, 4, 0, "never joined");
    cr_assert(n_done == 1 && did(0, ROUND_DO_DROP, 4));
    join(r, 0, "a", -1, 1, 2);
    join(r, 0, "a", -1, 1, 2);
    cr_assert(n_done == 1 && did(0, ROUND_DO_DROP, 0), "it sent JOIN twice");
    join(r, 0, "a", -1, 1, 2);
    join(r, 1, "b", -1, 1, 2);
    cr_assert_eq(round_state(r), ROUND_RUNNING);
    step(r, (struct round_event){.kind = ROUND_EV_DONE, .peer = 0, .round = 7}, 0);
    cr_assert(did(0, ROUND_DO_DROP, 0) && did(1, ROUND_DO_ROUND_OVER, 1));
    cr_assert_not_null(strstr(round_failure(r)->text, "a future round"));
    round_destroy(r);
    r = job(1, 1, 0);
    join(r, 0, "a", -1, 1, 1);
    stopped(r, 0, 0);
    cr_assert(did(0, ROUND_DO_DROP, 0));
    cr_assert_eq(round_state(r), ROUND_CLOSED);
    cr_assert_eq(round_close_status(r), CDI_CLOSE_FAILED);
    round_destroy(r);
}

static void join_after(struct round *r, uint32_t peer, int32_t rank, uint32_t n, uint32_t restarts)
{
    struct cdi_msg_join j = join_of("h", rank, 1, n, n);

    j.restart_count = restarts;
    step(r, (struct round_event){.kind = ROUND_EV_JOIN, .peer = peer, .join = &j}, 0);
}

/* A restarted server gets the job's restart count from its agents. */
Test(round, restart_count_continues_from_agents)
{
    struct round *r = job(3, 3, 3);
    struct cdi_msg_assign assign;

    join_after(r, 0, 0, 3, 1);
    join_after(r, 1, 1, 3, 2);
    join_after(r, 2, 2, 3, 0);
    cr_assert_eq(round_state(r), ROUND_RUNNING);
    for (uint32_t peer = 0; peer < 3; peer++)
        cr_assert(round_assignment(r, peer, &assign) && assign.restart_count == 2);
    fail(r, 0, 0, "rank 0 failed");
    cr_assert(round_uses_restart(r));
    for (uint32_t peer = 0; peer < 3; peer++)
        stopped(r, peer, 0);
    cr_assert(round_assignment(r, 1, &assign) && assign.restart_count == 3, "and is added only once");
    fail(r, 0, 1, "rank 0 failed");
    cr_assert(!round_uses_restart(r), "no restart is left");
    for (uint32_t peer = 0; peer < 3; peer++)
        stopped(r, peer, 1);
    cr_assert_eq(round_close_status(r), CDI_CLOSE_FAILED);
    cr_assert_str_eq(round_why(r), "rank 0 failed (after 3 restarts)");
    round_destroy(r);
    r = job(1, 1, 3);
    join_after(r, 0, 0, 1, 4);
    cr_assert(did(0, ROUND_DO_REFUSE, 0));
    cr_assert_str_eq(round_text(r), "h counts 4 restarts of this job, but --max_restarts allows 3");
    round_destroy(r);
}

Test(round, returning_node_gets_missed_messages)
{
    struct round *r = job(2, 2, 1);
    struct cdi_msg_join back = {.round = 0};

    join(r, 0, "a", 0, 1, 2);
    step(r, (struct round_event){.kind = ROUND_EV_AWAY, .peer = 0, .text = "reset"}, 0);
    join(r, 0, "a", 0, 1, 2);
    cr_assert(n_done == 1 && did(0, ROUND_DO_WELCOME, 0), "before its first round a node must join again");
    join(r, 1, "b", 1, 1, 2);
    step(r, (struct round_event){.kind = ROUND_EV_AWAY, .peer = 1, .text = "reset"}, 0);
    cr_assert_eq(n_done, 0);
    cr_assert_eq(round_state(r), ROUND_RUNNING);
    join(r, 2, "c", 1, 1, 2);
    cr_assert(did(0, ROUND_DO_REFUSE, 2));
    cr_assert(round_refused_for_now(r) && strstr(round_text(r), "may return until its lease ends") != NULL);
    step(r, (struct round_event){.kind = ROUND_EV_BACK, .peer = 1, .join = &back}, 0);
    cr_assert(n_done == 1 && did(0, ROUND_DO_RESUME, 1), "no message was missed");

    step(r, (struct round_event){.kind = ROUND_EV_AWAY, .peer = 1, .text = "reset"}, 0);
    fail(r, 0, 0, "rank 0 failed");
    stopped(r, 0, 0);
    cr_assert_eq(round_state(r), ROUND_STOPPING, "a node that is away may still have workers");
    step(r, (struct round_event){.kind = ROUND_EV_BACK, .peer = 1, .join = &back}, 0);
    cr_assert(n_done == 2 && did(0, ROUND_DO_RESUME, 1) && did(1, ROUND_DO_ROUND_OVER, 1));
    step(r, (struct round_event){.kind = ROUND_EV_AWAY, .peer = 0, .text = "reset"}, 0);
    stopped(r, 1, 0);
    cr_assert(n_done == 1 && did(0, ROUND_DO_END_KEYS, 0), "no round begins without the node that is away");
    step(r, (struct round_event){.kind = ROUND_EV_TICK}, 30000);
    cr_assert(n_done == 2 && did(0, ROUND_DO_WAITING, 0));
    cr_assert_str_eq(round_text(r), "waiting: 2 of 2 nodes have joined (a (connection broken), b)");
    cr_assert_eq(round_state(r), ROUND_JOINING);
    step(r, (struct round_event){.kind = ROUND_EV_BACK, .peer = 0, .join = &back}, 31000);
    cr_assert(did(0, ROUND_DO_RESUME, 0) && did(1, ROUND_DO_ASSIGN, 0) && did(2, ROUND_DO_ASSIGN, 1));
    back.round = 0; /* the assignment was lost */
    step(r, (struct round_event){.kind = ROUND_EV_AWAY, .peer = 0, .text = "reset"}, 31000);
    step(r, (struct round_event){.kind = ROUND_EV_BACK, .peer = 0, .join = &back}, 32000);
    cr_assert(n_done == 2 && did(0, ROUND_DO_RESUME, 0) && did(1, ROUND_DO_ASSIGN, 0));
    back.round = 2;
    step(r, (struct round_event){.kind = ROUND_EV_BACK, .peer = 0, .join = &back}, 32000);
    cr_assert(did(0, ROUND_DO_DROP, 0) && did(1, ROUND_DO_ROUND_OVER, 1));
    stopped(r, 1, 1);
    cr_assert_eq(round_state(r), ROUND_CLOSED);
    step(r, (struct round_event){.kind = ROUND_EV_AWAY, .peer = 1, .text = "reset"}, 33000);
    back.round = 1;
    step(r, (struct round_event){.kind = ROUND_EV_BACK, .peer = 1, .join = &back}, 33000);
    cr_assert(n_done == 2 && did(0, ROUND_DO_RESUME, 1) && did(1, ROUND_DO_CLOSED, 1));
    round_destroy(r);
}

/* --------------------------------------------------------------------------------------------------- elastic ---- */

/* A job of min to max nodes a, b, c, ... (n of them joined, as peers 0, 1, ...), whose first round runs. */
static struct round *restarting(uint32_t restarts, uint32_t min, uint32_t max, uint32_t spares, uint32_t n)
{
    struct round *r = NULL;
    const struct round_options opt = {.run_id = "job",
                                      .min_nodes = min,
                                      .max_nodes = max,
                                      .spares = spares,
                                      .max_restarts = restarts,
                                      .join_timeout_ms = 60000,
                                      .last_call_ms = 5000};

    job_restarts = restarts;
    cr_assert_eq(round_create(&r, &opt, 0, NULL), CDDP_OK);
    for (uint32_t i = 0; i < n; i++) {
        struct cdi_msg_join j = join_of((const char *[]){"a", "b", "c", "d", "e"}[i], -1, 2, min, max);

        j.spares = spares;
        step(r, (struct round_event){.kind = ROUND_EV_JOIN, .peer = i, .join = &j}, 0);
    }
    if (round_state(r) == ROUND_JOINING)
        step(r, (struct round_event){.kind = ROUND_EV_TICK}, 5000);
    cr_assert_eq(round_state(r), ROUND_RUNNING);
    return r;
}

static struct round *elastic(uint32_t min, uint32_t max, uint32_t spares, uint32_t n)
{
    return restarting(0, min, max, spares, n);
}

static void lost(struct round *r, uint32_t peer, int64_t now)
{
    step(r, (struct round_event){.kind = ROUND_EV_LOST, .peer = peer, .text = "its connection closed"}, now);
}

static void newcomer(struct round *r, uint32_t peer, const char *host, uint32_t min, uint32_t max, uint32_t spares)
{
    struct cdi_msg_join j = join_of(host, -1, 2, min, max);

    j.spares = spares;
    step(r, (struct round_event){.kind = ROUND_EV_JOIN, .peer = peer, .join = &j}, 0);
}

static struct cdi_msg_assign assigned(const struct round *r, uint32_t peer)
{
    struct cdi_msg_assign a;

    cr_assert(round_assignment(r, peer, &a), "peer %u is in no round", peer);
    return a;
}

Test(round, elastic_job_continues_without_lost_node)
{
    struct round *r = elastic(2, 3, 0, 3);

    lost(r, 0, 0);
    cr_assert(n_done == 2 && did(0, ROUND_DO_ROUND_OVER, 1) && did(1, ROUND_DO_ROUND_OVER, 2));
    cr_assert(round_restarts(r) && !round_uses_restart(r), "max_restarts is 0, and this is not a restart");
    cr_assert_eq(round_failure(r)->kind, CDI_END_NODE);
    stopped(r, 1, 0);
    stopped(r, 2, 0);
    cr_assert(n_done == 3 && did(0, ROUND_DO_END_KEYS, 0), "the round begins at once");
    cr_assert(assigned(r, 1).node_rank == 1 && assigned(r, 2).node_rank == 0, "b keeps its rank, c has a new one");
    cr_assert(assigned(r, 1).world_size == 4 && assigned(r, 1).round == 1 && assigned(r, 1).restart_count == 0);
    lost(r, 2, 0);
    stopped(r, 1, 1);
    cr_assert_eq(round_state(r), ROUND_JOINING, "one of at least two nodes");
    step(r, (struct round_event){.kind = ROUND_EV_TICK}, 10000);
    cr_assert_str_eq(round_text(r), "waiting: 1 of 2 to 3 nodes have joined (b); lost: c");
    newcomer(r, 5, "d", 2, 3, 0);
    cr_assert(assigned(r, 1).node_rank == 1 && assigned(r, 5).node_rank == 0 && assigned(r, 5).round == 2);
    round_destroy(r);
}

Test(round, failure_follows_from_loss_during_stop)
{
    struct round *r = elastic(2, 3, 0, 3);

    fail(r, 1, 0, "rank 3: the connection to rank 5 broke");
    cr_assert(n_done == 3 && !round_restarts(r), "as far as known so far");
    stopped(r, 1, 0);
    stopped(r, 0, 0);
    cr_assert_eq(round_state(r), ROUND_STOPPING);
    lost(r, 2, 15000);
    cr_assert(did(0, ROUND_DO_ROUND_OVER, 0) && did(1, ROUND_DO_ROUND_OVER, 1), "the cause is known now");
    cr_assert(did(2, ROUND_DO_END_KEYS, 0) && did(3, ROUND_DO_ASSIGN, 0) && did(4, ROUND_DO_ASSIGN, 1));
    cr_assert_eq(round_failure(r)->kind, CDI_END_NONE, "the next round has none");
    cr_assert(round_over(r)->round == 0 && round_over(r)->restart && !round_over(r)->counts);
    cr_assert_eq(round_over(r)->failure.kind, CDI_END_NODE, "that of the previous round");
    cr_assert_eq(assigned(r, 0).restart_count, 0);

    fail(r, 1, 1, "rank 3: a bug");
    stopped(r, 1, 1);
    stopped(r, 0, 1);
    cr_assert_eq(round_state(r), ROUND_CLOSED, "this failure counts, and no restart is left");
    cr_assert_eq(round_close_status(r), CDI_CLOSE_FAILED);
    cr_assert_str_eq(round_why(r), "rank 3: a bug");
    round_destroy(r);
}

Test(round, new_node_joins_or_waits_as_spare)
{
    struct round *r = elastic(1, 2, 1, 1);

    newcomer(r, 1, "b", 1, 2, 1);
    cr_assert(n_done == 2 && did(0, ROUND_DO_WELCOME, 1) && did(1, ROUND_DO_ROUND_OVER, 0));
    cr_assert(round_restarts(r) && !round_uses_restart(r) && round_failure(r)->kind == CDI_END_NONE);
    cr_assert_str_eq(round_why(r), "b (pid 99) joined: the job continues with one more node");
    stopped(r, 0, 0);
    cr_assert(assigned(r, 0).node_rank == 0 && assigned(r, 1).node_rank == 1 && assigned(r, 0).world_size == 4);

    newcomer(r, 2, "c", 1, 2, 1);
    cr_assert(n_done == 2 && did(0, ROUND_DO_WELCOME, 2) && did(1, ROUND_DO_WAITING, 2));
    cr_assert_not_null(strstr(round_text(r), "waits as a spare"));
    newcomer(r, 3, "d", 1, 2, 1);
    cr_assert(n_done == 1 && did(0, ROUND_DO_REFUSE, 3));
    cr_assert_not_null(strstr(round_text(r), "already has all of its 2 nodes and 1 spares"));
    lost(r, 0, 0);
    stopped(r, 1, 1);
    cr_assert(assigned(r, 1).node_rank == 1 && assigned(r, 2).node_rank == 0, "the spare joins, b keeps its rank");

    step(r, (struct round_event){.kind = ROUND_EV_DONE, .peer = 1, .round = 2}, 0);
    newcomer(r, 3, "d", 1, 2, 1);
    cr_assert(did(1, ROUND_DO_WAITING, 3), "the job is about to end and is not interrupted");
    step(r, (struct round_event){.kind = ROUND_EV_DONE, .peer = 2, .round = 2}, 0);
    cr_assert(n_done == 4 && did(3, ROUND_DO_CLOSED, 3) && round_close_status(r) == CDI_CLOSE_DONE);
    round_destroy(r);
}

Test(round, spare_replaces_lost_node)
{
    struct round *r = elastic(2, 2, 1, 3);

    cr_assert(did(n_done - 1, ROUND_DO_WAITING, 2));
    lost(r, 1, 0);
    stopped(r, 0, 0);
    cr_assert(assigned(r, 0).node_rank == 0 && assigned(r, 2).node_rank == 1 && assigned(r, 2).restart_count == 0);
    round_destroy(r);
}

Test(round, nodes_may_leave_elastic_job_down_to_min)
{
    struct round *r = elastic(2, 3, 0, 3);

    step(r, (struct round_event){.kind = ROUND_EV_LEAVE, .peer = 1, .text = "SIGTERM"}, 0);
    cr_assert(n_done == 3 && round_restarts(r) && !round_uses_restart(r));
    cr_assert_str_eq(round_why(r), "node 1 (b) left: SIGTERM");
    stopped(r, 0, 0);
    stopped(r, 1, 0);
    cr_assert(n_done == 1 && did(0, ROUND_DO_BYE, 1));
    stopped(r, 2, 0);
    cr_assert(assigned(r, 0).node_rank == 0 && assigned(r, 2).node_rank == 1);
    step(r, (struct round_event){.kind = ROUND_EV_LEAVE, .peer = 0, .text = "SIGTERM"}, 0);
    cr_assert(!round_restarts(r));
    stopped(r, 2, 1);
    lost(r, 0, 0);
    cr_assert(did(1, ROUND_DO_CLOSED, 2) && round_close_status(r) == CDI_CLOSE_LEFT);
    round_destroy(r);

    r = elastic(1, 3, 0, 3);
    step(r, (struct round_event){.kind = ROUND_EV_LEAVE, .peer = 0, .text = "SIGTERM", .final = true}, 0);
    cr_assert(!round_restarts(r), "the server ends with the node");
    round_destroy(r);
}

Test(round, worker_that_a_batch_system_ends_has_not_failed)
{
    for (int left = 2; left >= 1; left--) {
        struct round *r = elastic(2, 3, 0, (uint32_t)left + 1);

        end_at(r, 1, 5000, CDI_END_SIGNAL, SIGTERM);
        cr_assert(!round_restarts(r), "it was reported before its node got the signal");
        step(r, (struct round_event){.kind = ROUND_EV_LEAVE, .peer = 1, .text = "SIGTERM"}, NOW_MS);
        cr_assert_eq(round_restarts(r), left == 2);
        cr_assert(!round_uses_restart(r));
        cr_assert_str_eq(round_why(r), "node 1 (b) left: SIGTERM");
        for (uint32_t i = 0; i <= (uint32_t)left; i++)
            stopped(r, i, 0);
        cr_assert_eq(round_state(r), left == 2 ? ROUND_RUNNING : ROUND_CLOSED);
        cr_assert(left == 2 || round_close_status(r) == CDI_CLOSE_LEFT);
        round_destroy(r);
    }
}

Test(round, job_does_not_wait_for_a_node_that_leaves_after_a_failure)
{
    struct round *r = restarting(1, 2, 3, 0, 2);

    fail(r, 1, 0, "it failed");
    step(r, (struct round_event){.kind = ROUND_EV_LEAVE, .peer = 1, .text = "SIGTERM"}, 0);
    stopped(r, 1, 0);
    stopped(r, 0, 0);
    cr_assert(round_state(r) == ROUND_CLOSED && round_close_status(r) == CDI_CLOSE_LEFT, "too few remain");
    round_destroy(r);
}

Test(round, job_ends_when_all_leave)
{
    struct round *r = elastic(2, 3, 0, 3);

    for (uint32_t i = 0; i < 3; i++)
        step(r, (struct round_event){.kind = ROUND_EV_LEAVE, .peer = i, .text = "SIGINT"}, 0);
    for (uint32_t i = 0; i < 3; i++)
        lost(r, i, 0);
    cr_assert(round_state(r) == ROUND_CLOSED && round_close_status(r) == CDI_CLOSE_LEFT);
    round_destroy(r);
}

Test(round, join_timeout_after_loss_reports_both)
{
    struct round *r = elastic(2, 2, 1, 2);

    lost(r, 1, 0);
    stopped(r, 0, 0);
    step(r, (struct round_event){.kind = ROUND_EV_TICK}, 60000);
    cr_assert_eq(round_close_status(r), CDI_CLOSE_TIMEOUT);
    cr_assert_str_eq(round_why(r), "node 1 (b, pid 99) was lost while its workers ran: its connection closed; not "
                                   "enough nodes joined within 60 s after that: 1 of 2 nodes have joined (a); lost: b");
    cr_assert_eq(round_failure(r)->kind, CDI_END_NONE, "the message is sufficient");
    round_destroy(r);
}

Test(round, ranks_follow_topology_then_host_names)
{
    static const struct {
        const char *host, *topology;
        int32_t rank;
    } nodes[] = {{"node10", "switch2", 2}, {"node2", "switch2", 1}, {"node1", "switch10", 4},
                 {"node11", "switch2", 3}, {"node7", "switch1", 0}, {"node3", "switch10", 5}};
    struct round *r = job(6, 6, 0);

    for (uint32_t i = 0; i < 6; i++) {
        struct cdi_msg_join j = join_of(nodes[i].host, -1, 1, 6, 6);

        (void)snprintf(j.topology, sizeof j.topology, "%s", nodes[i].topology);
        step(r, (struct round_event){.kind = ROUND_EV_JOIN, .peer = i, .join = &j}, 0);
    }
    for (uint32_t i = 0; i < 6; i++)
        cr_assert_eq(assigned(r, i).node_rank, nodes[i].rank, "%s", nodes[i].host);
    round_destroy(r);
}

Test(round, returning_node_removes_no_other)
{
    struct round *r = elastic(1, 2, 0, 2);
    struct cdi_msg_join back = {.round = 0};

    step(r, (struct round_event){.kind = ROUND_EV_AWAY, .peer = 1, .text = "reset"}, 0);
    newcomer(r, 2, "b", 1, 2, 0);
    cr_assert(did(0, ROUND_DO_WELCOME, 2) && did(1, ROUND_DO_WAITING, 2), "a new agent on the same node");
    step(r, (struct round_event){.kind = ROUND_EV_BACK, .peer = 1, .join = &back}, 0);
    cr_assert(n_done == 1 && did(0, ROUND_DO_RESUME, 1));
    lost(r, 1, 0);
    stopped(r, 0, 0);
    cr_assert(assigned(r, 2).node_rank == 1);
    round_destroy(r);
}

Test(round, rejects_invalid_sizes)
{
    static const struct round_options bad[] = {{.min_nodes = 0, .max_nodes = 1},
                                               {.min_nodes = 2, .max_nodes = 1},
                                               {.min_nodes = 1, .max_nodes = ROUND_NODES_MAX + 1},
                                               {.min_nodes = 1, .max_nodes = 1, .spares = ROUND_NODES_MAX + 1}};
    struct round *r = NULL;
    struct cdi_error err;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(round_create(&r, &bad[i], 0, &err), CDDP_E_INVALID, "case %zu", i);
        cr_assert_not_null(strstr(err.msg, "invalid job size"));
    }
}
