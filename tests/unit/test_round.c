/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directed tests, and a simulation: thousands of jobs of random size whose agents join, fail, leave, get lost, and send
 * late and doubled messages, with the invariants checked after every event. A failing seed is printed; give it as
 * ROUND_SEED to run that job alone.
 */
#include "hygiene.h"
#include "rendezvous/round.h"

#include <string.h>

CDI_SUITE(round);

/* -------------------------------------------------------------------------------------------------- directed ---- */

static uint32_t job_restarts; /* of the job that joins are for */

static struct round *job(uint32_t min, uint32_t max, uint32_t restarts)
{
    struct round *r = NULL;
    const struct round_options opt = {"job", min, max, restarts, 60000, 5000};

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

/* Is action i of this kind, for this peer? */
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

Test(round, nodes_of_different_size_get_ranks_that_add_up)
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

Test(round, all_done_ends_the_job_well)
{
    struct round *r = job(2, 2, 0);

    join(r, 0, "a", -1, 1, 2);
    join(r, 1, "b", -1, 1, 2);
    step(r, (struct round_event){.kind = ROUND_EV_DONE, .peer = 0}, 0);
    cr_assert_eq(n_done, 0);
    step(r, (struct round_event){.kind = ROUND_EV_DONE, .peer = 0}, 0);
    cr_assert_eq(n_done, 0, "once more changes nothing");
    step(r, (struct round_event){.kind = ROUND_EV_DONE, .peer = 1}, 0);
    cr_assert(n_done == 3 && did(0, ROUND_DO_END_KEYS, 0) && did(1, ROUND_DO_CLOSED, 0) && did(2, ROUND_DO_CLOSED, 1));
    cr_assert_eq(round_close_status(r), CDI_CLOSE_DONE);
    cr_assert_eq(round_failure(r)->kind, CDI_END_NONE);
    join(r, 2, "c", -1, 1, 2);
    cr_assert(n_done == 1 && did(0, ROUND_DO_REFUSE, 2));
    cr_assert_not_null(strstr(round_text(r), "over"));
    round_destroy(r);
}

Test(round, a_done_node_that_goes_is_not_missed)
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

Test(round, a_failure_restarts_the_round_when_all_have_stopped_and_ranks_stay)
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
    cr_assert_eq(round_failure(r)->kind, CDI_END_NONE, "the new round has a clean slate");
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

Test(round, a_lost_node_is_a_failure_and_its_place_is_taken_by_a_newcomer)
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
    cr_assert(round_assignment(r, 2, &a) && a.node_rank == 2, "who stayed keeps its rank");
    cr_assert(round_assignment(r, 1, &a) && a.node_rank == 1);
    round_destroy(r);
}

Test(round, who_does_not_fit_is_refused_with_a_sentence)
{
    struct round *r = job(2, 2, 0);
    struct cdi_msg_join j[] = {join_of("x", -1, 1, 2, 2), join_of("x", -1, 1, 2, 2), join_of("x", -1, 1, 1, 2),
                               join_of("x", 2, 1, 2, 2),  join_of("x", 1, 1, 2, 2),  join_of("x", -1, 0, 2, 2),
                               join_of("x", -1, 1, 2, 2)};
    static const char *const says[] = {"version 9",
                                       "serves job 'job', not 'other'",
                                       "--nnodes=1:2, the job with 2:2",
                                       "node rank 2, but the job has 2 nodes",
                                       "taken: a (pid 101) has it, x (pid 101)",
                                       "0 workers",
                                       "--max_restarts=7, the job with 0"};

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

Test(round, nodes_that_do_not_come_in_time_are_named)
{
    struct round *r = job(5, 5, 0);

    for (int32_t i = 0; i < 5; i += 3) {
        struct cdi_msg_join j = join_of(i == 0 ? "a" : "d", i, 1, 5, 5);

        step(r, (struct round_event){.kind = ROUND_EV_JOIN, .peer = (uint32_t)i, .join = &j}, 0);
    }
    step(r, (struct round_event){.kind = ROUND_EV_TICK}, 59999);
    cr_assert(n_done == 2 && did(0, ROUND_DO_WAITING, 0) && did(1, ROUND_DO_WAITING, 3));
    cr_assert_str_eq(round_text(r), "waiting: 2 of 5 nodes are here (a, d); missing: node rank 1-2, 4");
    step(r, (struct round_event){.kind = ROUND_EV_TICK}, 60000);
    cr_assert(n_done == 3 && did(1, ROUND_DO_CLOSED, 0) && did(2, ROUND_DO_CLOSED, 3));
    cr_assert_eq(round_close_status(r), CDI_CLOSE_TIMEOUT);
    cr_assert_str_eq(round_why(r),
                     "not enough nodes came within 60 s: 2 of 5 nodes are here (a, d); missing: node rank "
                     "1-2, 4");
    round_destroy(r);
}

Test(round, a_job_that_may_be_smaller_starts_after_its_last_call)
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

Test(round, a_node_that_leaves_ends_the_job_for_all)
{
    struct round *r = job(2, 2, 5);

    join(r, 0, "a", -1, 1, 2);
    step(r, (struct round_event){.kind = ROUND_EV_LEAVE, .peer = 0, .text = "SIGINT"}, 0);
    cr_assert(n_done == 1 && did(0, ROUND_DO_BYE, 0), "before a round nobody misses it");
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

Test(round, who_breaks_the_protocol_is_dropped_and_counts_as_lost)
{
    struct round *r = job(2, 2, 0);

    fail(r, 4, 0, "never joined");
    cr_assert(n_done == 1 && did(0, ROUND_DO_DROP, 4));
    join(r, 0, "a", -1, 1, 2);
    join(r, 0, "a", -1, 1, 2);
    cr_assert(n_done == 1 && did(0, ROUND_DO_DROP, 0), "it joins twice");
    join(r, 0, "a", -1, 1, 2);
    join(r, 1, "b", -1, 1, 2);
    cr_assert_eq(round_state(r), ROUND_RUNNING);
    step(r, (struct round_event){.kind = ROUND_EV_DONE, .peer = 0, .round = 7}, 0);
    cr_assert(did(0, ROUND_DO_DROP, 0) && did(1, ROUND_DO_ROUND_OVER, 1));
    cr_assert_not_null(strstr(round_failure(r)->text, "a round that is not there yet"));
    round_destroy(r);
    r = job(1, 1, 0);
    join(r, 0, "a", -1, 1, 1);
    stopped(r, 0, 0);
    cr_assert(did(0, ROUND_DO_DROP, 0));
    cr_assert_eq(round_state(r), ROUND_CLOSED);
    cr_assert_eq(round_close_status(r), CDI_CLOSE_FAILED);
    round_destroy(r);
}

Test(round, a_node_that_is_away_counts_as_there_and_hears_what_it_missed)
{
    struct round *r = job(2, 2, 1);
    struct cdi_msg_join back = {.round = 0};

    join(r, 0, "a", 0, 1, 2);
    step(r, (struct round_event){.kind = ROUND_EV_AWAY, .peer = 0, .text = "reset"}, 0);
    join(r, 0, "a", 0, 1, 2);
    cr_assert(n_done == 1 && did(0, ROUND_DO_WELCOME, 0), "before its first round it is not kept: it joins anew");
    join(r, 1, "b", 1, 1, 2);
    step(r, (struct round_event){.kind = ROUND_EV_AWAY, .peer = 1, .text = "reset"}, 0);
    cr_assert_eq(n_done, 0);
    cr_assert_eq(round_state(r), ROUND_RUNNING);
    join(r, 2, "c", 1, 1, 2);
    cr_assert(did(0, ROUND_DO_REFUSE, 2));
    cr_assert_not_null(strstr(round_text(r), "it may come back until its lease ends"));
    step(r, (struct round_event){.kind = ROUND_EV_BACK, .peer = 1, .join = &back}, 0);
    cr_assert(n_done == 1 && did(0, ROUND_DO_RESUME, 1), "it has missed nothing");

    step(r, (struct round_event){.kind = ROUND_EV_AWAY, .peer = 1, .text = "reset"}, 0);
    fail(r, 0, 0, "rank 0 failed");
    stopped(r, 0, 0);
    cr_assert_eq(round_state(r), ROUND_STOPPING, "who is away may still have workers");
    step(r, (struct round_event){.kind = ROUND_EV_BACK, .peer = 1, .join = &back}, 0);
    cr_assert(n_done == 2 && did(0, ROUND_DO_RESUME, 1) && did(1, ROUND_DO_ROUND_OVER, 1));
    step(r, (struct round_event){.kind = ROUND_EV_AWAY, .peer = 0, .text = "reset"}, 0);
    stopped(r, 1, 0);
    cr_assert(n_done == 1 && did(0, ROUND_DO_END_KEYS, 0), "no round begins without the node that is away");
    step(r, (struct round_event){.kind = ROUND_EV_TICK}, 30000);
    cr_assert(n_done == 2 && did(0, ROUND_DO_WAITING, 0));
    cr_assert_str_eq(round_text(r), "waiting: 2 of 2 nodes are here (a (connection broken), b)");
    cr_assert_eq(round_state(r), ROUND_JOINING);
    step(r, (struct round_event){.kind = ROUND_EV_BACK, .peer = 0, .join = &back}, 31000);
    cr_assert(did(0, ROUND_DO_RESUME, 0) && did(1, ROUND_DO_ASSIGN, 0) && did(2, ROUND_DO_ASSIGN, 1));
    back.round = 0; /* the assignment was lost on its way */
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

/* ------------------------------------------------------------------------------------------------ simulation ---- */

#define PEERS 12

/* What an agent has been told. */
struct agent {
    bool joined, assigned, over, closed;
    bool done;         /* it said so, in the round that runs */
    bool away;         /* and does not hear what it is told */
    int64_t knows;     /* round of the last assignment that it heard; -1: none */
    int32_t node_rank; /* that it asked for */
    uint32_t n_procs, round;
};

struct world {
    uint64_t seed, state;
    struct round *r;
    struct agent agents[PEERS];
    uint32_t min, max, restarts;
    int64_t now;
    int32_t round;  /* of the last ASSIGN; -1: none yet */
    bool keys_live; /* its key space has not ended */
    bool closed;
    int64_t deadline; /* of joining */
    int first_code;   /* of the running round's first failure; 0: none, -1: a node */
};

static uint32_t rnd(struct world *w, uint32_t below)
{
    w->state = w->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((w->state >> 33) % below);
}

#define CHECK(w, cond) cr_assert((cond), "seed %llu: %s", (unsigned long long)(w)->seed, #cond)

/* All ASSIGNs of one event: 0..n-1, each once, one world, sums of the sizes. */
static void check_assignments(struct world *w, const struct round_action *a, size_t n)
{
    uint32_t base = 0, total = 0;
    struct cdi_msg_assign as;

    CHECK(w, n >= w->min && n <= w->max);
    CHECK(w, !w->keys_live);
    for (int i = 0; i < PEERS; i++)
        CHECK(w, !w->agents[i].assigned); /* nobody runs in an older round */
    for (size_t i = 0; i < n; i++)
        total += w->agents[a[i].peer].n_procs;
    for (size_t i = 0; i < n; i++) {
        struct agent *g = &w->agents[a[i].peer];

        CHECK(w, g->joined && !g->assigned);
        CHECK(w, !g->away || w->now >= w->deadline);
        CHECK(w, round_assignment(w->r, a[i].peer, &as));
        CHECK(w, as.node_rank == (int32_t)i && as.n_nodes == n && as.world_size == total && as.rank_base == base);
        CHECK(w, as.restart_count <= w->restarts && (int32_t)as.round > w->round);
        CHECK(w, g->node_rank < 0 || (uint32_t)g->node_rank >= n || g->node_rank == as.node_rank);
        g->assigned = true;
        g->over = g->done = false;
        g->round = as.round;
        if (!g->away)
            g->knows = as.round;
        base += g->n_procs;
    }
    w->round = (int32_t)round_number(w->r);
    w->keys_live = true;
    w->first_code = 0;
}

static void check_failure(struct world *w)
{
    const struct cdi_failure *f = round_failure(w->r);

    CHECK(w, (w->first_code == 0) == (f->kind == CDI_END_NONE));
    CHECK(w, w->first_code <= 0 || f->code == w->first_code);
    CHECK(w, w->first_code >= 0 || f->kind == CDI_END_NODE);
}

static void check_action(struct world *w, const struct round_action *a)
{
    struct agent *g = &w->agents[a->kind == ROUND_DO_END_KEYS ? 0 : a->peer];

    switch (a->kind) {
    case ROUND_DO_WELCOME:
        CHECK(w, !g->joined && !w->closed);
        g->joined = true;
        g->away = false;
        g->knows = -1;
        break;
    case ROUND_DO_REFUSE:
        CHECK(w, !g->joined && round_text(w->r)[0] != '\0');
        break;
    case ROUND_DO_DROP:
        CHECK(w, round_text(w->r)[0] != '\0');
        if (g->assigned && !g->over && !g->done && !w->closed)
            w->first_code = -1;
        *g = (struct agent){0};
        break;
    case ROUND_DO_RESUME:
        CHECK(w, g->joined && !g->away);
        break;
    case ROUND_DO_BYE:
        CHECK(w, !g->assigned);
        g->joined = false;
        break;
    case ROUND_DO_WAITING:
        CHECK(w, g->joined && !g->assigned);
        break;
    case ROUND_DO_ROUND_OVER:
        CHECK(w, g->assigned && !g->over && !w->closed);
        CHECK(w, w->keys_live);
        g->over = true;
        check_failure(w);
        break;
    case ROUND_DO_CLOSED:
        CHECK(w, g->joined && !g->closed);
        CHECK(w, round_state(w->r) == ROUND_CLOSED && round_why(w->r)[0] != '\0');
        CHECK(w, !g->assigned || round_close_status(w->r) == CDI_CLOSE_DONE);
        if (round_close_status(w->r) == CDI_CLOSE_FAILED || round_close_status(w->r) == CDI_CLOSE_DONE)
            check_failure(w);
        g->closed = true;
        w->closed = true;
        break;
    case ROUND_DO_END_KEYS:
        w->keys_live = false;
        w->deadline = w->now + 60000;
        break;
    case ROUND_DO_ASSIGN:
        break;
    }
}

static void sim_step(struct world *w, const struct round_event *ev)
{
    size_t n;
    const struct round_action *a = round_step(w->r, ev, w->now, &n);
    bool was_closed = w->closed;

    for (size_t i = 0; i < n; i++) {
        size_t k = i;

        while (k < n && a[k].kind == ROUND_DO_ASSIGN)
            k++;
        if (k > i) {
            CHECK(w, !was_closed);
            check_assignments(w, a + i, k - i);
            i = k - 1;
        } else {
            check_action(w, &a[i]);
        }
    }
    if (round_state(w->r) == ROUND_CLOSED) {
        w->closed = true;
        for (int i = 0; i < PEERS; i++)
            CHECK(w, !w->agents[i].joined || w->agents[i].closed);
    }
}

static void sim_join(struct world *w, uint32_t p)
{
    struct cdi_msg_join j = join_of("host", rnd(w, 2) ? -1 : (int32_t)rnd(w, w->max), 1 + rnd(w, 8), w->min, w->max);

    if (rnd(w, 20) == 0)
        j.version = 0;
    if (rnd(w, 20) == 0)
        j.max_nodes++;
    if (!w->agents[p].joined) {
        w->agents[p].node_rank = j.node_rank;
        w->agents[p].n_procs = j.n_procs;
    }
    sim_step(w, &(struct round_event){.kind = ROUND_EV_JOIN, .peer = p, .join = &j});
}

static void sim_fail(struct world *w, uint32_t p, uint32_t round)
{
    struct cdi_failure f = {.kind = CDI_END_EXIT, .code = 1 + (int32_t)rnd(w, 255), .rank = -1, .local_rank = 0};
    const struct agent *g = &w->agents[p];

    if (round_state(w->r) == ROUND_RUNNING && g->assigned && round == round_number(w->r))
        w->first_code = f.code;
    sim_step(w, &(struct round_event){.kind = ROUND_EV_FAILED, .peer = p, .round = round, .failure = &f});
}

static void sim_lost(struct world *w, uint32_t p)
{
    if (round_state(w->r) == ROUND_RUNNING && w->agents[p].assigned && !w->agents[p].done)
        w->first_code = -1;
    w->agents[p] = (struct agent){0};
    sim_step(w, &(struct round_event){.kind = ROUND_EV_LOST, .peer = p, .text = "it fell over"});
}

static void sim_away(struct world *w, uint32_t p)
{
    struct agent *g = &w->agents[p];

    if (!round_keeps(w->r, p)) {
        sim_lost(w, p);
        return;
    }
    CHECK(w, g->joined);
    g->away = true;
    sim_step(w, &(struct round_event){.kind = ROUND_EV_AWAY, .peer = p, .text = "reset"});
}

/* It is told exactly what it has missed. */
static void sim_back(struct world *w, uint32_t p)
{
    struct agent *g = &w->agents[p];
    struct cdi_msg_join j = {.round = g->knows};
    struct round_event ev = {.kind = ROUND_EV_BACK, .peer = p, .join = &j};
    const struct round_action *a;
    enum round_state before = round_state(w->r);
    bool missed = before == ROUND_CLOSED || g->over || (g->assigned && g->knows < g->round);
    size_t n;

    if (rnd(w, 30) == 0) { /* from a round that is still to come */
        g->away = false;
        j.round = (int64_t)round_number(w->r) + 1;
        sim_step(w, &ev);
        return;
    }
    g->away = false;
    if (!missed) {
        sim_step(w, &ev);
        return;
    }
    a = round_step(w->r, &ev, w->now, &n);
    CHECK(w, n == 2 && a[0].kind == ROUND_DO_RESUME && a[0].peer == p && a[1].peer == p);
    CHECK(w, a[1].kind == (before == ROUND_CLOSED ? ROUND_DO_CLOSED : g->over ? ROUND_DO_ROUND_OVER : ROUND_DO_ASSIGN));
    if (a[1].kind == ROUND_DO_ASSIGN)
        g->knows = g->round;
}

static void simulate(uint64_t seed)
{
    struct world w = {.seed = seed, .state = seed * 2654435761u + 1, .round = -1, .deadline = 60000};
    struct round_options opt = {.run_id = "job", .join_timeout_ms = 60000, .last_call_ms = 5000};

    w.max = 1 + rnd(&w, 6);
    w.min = 1 + rnd(&w, w.max);
    w.restarts = job_restarts = rnd(&w, 4);
    opt.min_nodes = w.min, opt.max_nodes = w.max, opt.max_restarts = w.restarts;
    cr_assert_eq(round_create(&w.r, &opt, 0, NULL), CDDP_OK);
    for (int i = 0; i < 150; i++) {
        uint32_t p = rnd(&w, PEERS), what = rnd(&w, 100);
        struct agent *g = &w.agents[p];
        uint32_t round = g->assigned ? g->round : round_number(w.r);
        int32_t before = w.round;

        if (rnd(&w, 12) == 0 && round > 0)
            round--; /* late */
        w.now += rnd(&w, 300);
        if (g->away) {
            if (what < 70)
                sim_back(&w, p);
            else if (what < 80)
                sim_lost(&w, p);
        } else if (g->joined && rnd(&w, 10) == 0) {
            sim_away(&w, p);
        } else if (what < 30) {
            sim_join(&w, p);
        } else if (what < 38) {
            if (g->assigned || rnd(&w, 8) == 0)
                sim_fail(&w, p, rnd(&w, 40) == 0 ? round + 1 : round);
        } else if (what < 55) {
            if (g->assigned && (!g->over || rnd(&w, 4) == 0)) {
                if (round == round_number(w.r) && round_state(w.r) == ROUND_RUNNING)
                    g->done = true;
                sim_step(&w, &(struct round_event){.kind = ROUND_EV_DONE, .peer = p, .round = round});
            }
        } else if (what < 85) {
            if (g->over) {
                if (round == g->round)
                    g->assigned = g->over = false;
                sim_step(&w, &(struct round_event){.kind = ROUND_EV_STOPPED, .peer = p, .round = round});
                if (rnd(&w, 4) == 0 && w.round == before) /* doubled */
                    sim_step(&w, &(struct round_event){.kind = ROUND_EV_STOPPED, .peer = p, .round = round});
            }
        } else if (what < 91) {
            sim_lost(&w, p);
        } else if (what < 93) {
            sim_step(&w, &(struct round_event){.kind = ROUND_EV_LEAVE, .peer = p, .text = "a signal"});
        } else {
            w.now += rnd(&w, what == 99 ? 70000 : 3000);
            sim_step(&w, &(struct round_event){.kind = ROUND_EV_TICK, .peer = UINT32_MAX});
        }
    }
    /* From now on all behave well: the job must come to its end. */
    for (int i = 0; i < 500 && !w.closed; i++) {
        w.now += 1000;
        sim_step(&w, &(struct round_event){.kind = ROUND_EV_TICK, .peer = UINT32_MAX});
        for (uint32_t p = 0; p < PEERS; p++) {
            struct agent *g = &w.agents[p];
            uint32_t round = g->round;

            if (g->away) {
                if (p % 2 == 0)
                    sim_back(&w, p);
                else
                    sim_lost(&w, p);
            } else if (g->over) {
                g->assigned = g->over = false;
                sim_step(&w, &(struct round_event){.kind = ROUND_EV_STOPPED, .peer = p, .round = round});
            } else if (g->assigned) {
                sim_step(&w, &(struct round_event){.kind = ROUND_EV_DONE, .peer = p, .round = round});
            }
        }
    }
    CHECK(&w, w.closed);
    round_destroy(w.r);
}

Test(round, thousands_of_random_jobs_keep_every_promise)
{
    const char *one = getenv("ROUND_SEED");

    if (one != NULL) {
        simulate(strtoull(one, NULL, 10));
        return;
    }
    for (uint64_t seed = 1; seed <= 20000; seed++)
        simulate(seed);
}
