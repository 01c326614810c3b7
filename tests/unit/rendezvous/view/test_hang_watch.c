/* SPDX-License-Identifier: Apache-2.0 */
/* A job of two nodes over a real session and view; the agents are scripted. */
#include "hygiene.h"
#include "rendezvous/view/hang_watch.h"
#include "two_nodes.h"
#include "watch/views.h"

#include <string.h>

CDI_SUITE(hang_watch);

#define TIMEOUT_MS 60000

static struct session *s;
static struct view *v;
static struct hang_watch *w;

static struct agent {
    struct two_nodes_agent is;
    uint32_t asks;     /* the number of ASK frames, */
    json_int_t id;     /* and of the last one the id, */
    size_t n_stacks;   /* and for how many ranks it asks for stacks */
    char notice[4096]; /* the last one */
    int notices;
    struct cdi_failure failure; /* of ROUND_OVER */
    bool restart;
} agents[2];

static int64_t now; /* ms */

static void on_frame(void *arg, uint32_t peer, uint16_t type, const void *payload, size_t len)
{
    const struct view_node *node = view_on_bulk(v, peer, type, payload, len, now);

    (void)arg;
    if (node != NULL)
        hang_watch_on_report(w, node->report.node_rank, node->report.asked, now);
}

static void take_frame(struct agent *a, const struct cdi_frame *f)
{
    json_t *json = cdi_bulk_is(f->type) ? json_loadb((const char *)f->payload, f->len, 0, NULL) : NULL;
    struct cdi_msg m;

    if (f->type == CDI_BULK_ASK) {
        a->asks++;
        a->id = json_integer_value(json_object_get(json, "id"));
        a->n_stacks = json_array_size(json_object_get(json, "stacks_of"));
    } else if (f->type == CDI_BULK_NOTICE) {
        a->notices++;
        (void)snprintf(a->notice, sizeof a->notice, "%s", json_string_value(json_object_get(json, "text")));
    } else if (f->type == CDI_MSG_ROUND_OVER) {
        cr_assert_eq(cdi_msg_decode(f->type, f->payload, f->len, &m, NULL), CDDP_OK);
        a->failure = m.u.round_over.failure;
        a->restart = m.u.round_over.restart;
    }
    json_decref(json);
}

static void hear(void)
{
    for (size_t i = 0; i < 2; i++) {
        struct cdi_frame f;

        while (cdi_frame_next(&agents[i].is.got, &f, NULL) == CDDP_OK) {
            take_frame(&agents[i], &f);
            cdi_buf_consume(&agents[i].is.got, f.size);
        }
    }
}

static void tell(struct agent *a, const struct cdi_msg *m)
{
    two_nodes_tell(s, &a->is, m, now);
}

static void begin(enum cdi_on_hang on_hang, enum cdi_on_hang second)
{
    struct cdi_msg_join hangs = {.hang_warning_ms = 30000, .hang_timeout_ms = TIMEOUT_MS};

    now = 0;
    memset(agents, 0, sizeof agents);
    s = two_nodes_session(on_frame, NULL);
    cr_assert_eq(view_create(&v, s), CDDP_OK);
    cr_assert_eq(hang_watch_create(&w, s, v, &watch_views.hang), CDDP_OK);
    for (size_t i = 0; i < 2; i++) {
        hangs.on_hang = i == 0 ? on_hang : second;
        two_nodes_join(s, &agents[i].is, (int32_t)i, 2, &hangs);
    }
    cr_assert_eq(round_state(session_round(s)), ROUND_RUNNING);
    hear();
}

static void end(void)
{
    hang_watch_destroy(w);
    view_destroy(v);
    session_destroy(s);
    for (size_t i = 0; i < 2; i++)
        two_nodes_release(&agents[i].is);
}

static const char *stack; /* of rank 3, in the reports */

/* Agent i reports: its ranks wait for wait_ms, but rank 3, which is after a collective. */
static void report(size_t i, json_int_t asked, int64_t wait_ms)
{
    struct cdi_rank_report ranks[2];
    struct cdi_node_report r = {.round = round_number(session_round(s)),
                                .asked = (uint32_t)asked,
                                .node_rank = (int32_t)i,
                                .n_ranks = 2,
                                .ranks = ranks};
    json_t *json;
    char *text;

    (void)snprintf(r.host, sizeof r.host, "node%zu", i);
    for (int k = 0; k < 2; k++)
        ranks[k] = (struct cdi_rank_report){.rank = (int32_t)(2 * i) + k,
                                            .place = i == 1 && k == 1 ? CDI_PLACE_AFTER : CDI_PLACE_IN,
                                            .op = CDI_FLIGHT_BARRIER,
                                            .seq = i == 1 && k == 1 ? 8 : 9,
                                            .bucket = -1,
                                            .late_rank = -1,
                                            .for_ms = wait_ms,
                                            .stack = i == 1 && k == 1 ? stack : NULL};
    json = cdi_node_report_encode(&r);
    text = json_dumps(json, JSON_COMPACT);
    two_nodes_send(s, &agents[i].is, CDI_BULK_REPORT, text, strlen(text), now);
    free(text);
    json_decref(json);
    hear();
}

static void both_answer(int64_t wait_ms)
{
    json_int_t id = agents[0].id;

    report(0, id, wait_ms);
    report(1, id, wait_ms);
}

static void pass(int64_t ms)
{
    now += ms;
    hang_watch_tick(w, now, 5000);
    hear();
}

/* Until the message is printed. */
static void stand_still(int64_t wait_ms)
{
    report(0, 0, wait_ms);
    both_answer(wait_ms);
    both_answer(wait_ms);
}

Test(hang_watch, asks_then_prints_once_on_node_0)
{
    begin(CDI_ON_HANG_STOP, CDI_ON_HANG_STOP);
    stack = "planted()\n";
    report(0, 0, 30000);
    cr_assert(agents[0].asks == 1 && agents[1].asks == 1 && agents[1].n_stacks == 0);
    both_answer(30010);
    cr_assert(agents[0].asks == 2 && agents[1].n_stacks == 1 && agents[0].notices == 0);
    both_answer(30020);
    cr_assert(agents[0].notices == 1 && agents[1].notices == 0);
    cr_assert_not_null(strstr(agents[0].notice, "rank 3 (pid 0 on node1) is behind: after barrier #8"));
    cr_assert_not_null(strstr(agents[0].notice, "planted()"));
    for (int i = 0; i < 4; i++) { /* the same standstill is not repeated */
        pass(HANG_AGAIN_MS);
        both_answer(30020 + (i + 1) * HANG_AGAIN_MS);
    }
    cr_assert_eq(agents[0].notices, 1);
    end();
}

Test(hang_watch, node_that_does_not_answer_holds_nothing_up)
{
    begin(CDI_ON_HANG_STOP, CDI_ON_HANG_STOP);
    report(0, 0, 30000);
    report(0, agents[0].id, 30000);
    cr_assert_eq(agents[0].asks, 1);
    pass(HANG_ANSWER_MS);
    cr_assert_eq(agents[0].asks, 2);
    pass(HANG_STACKS_MS);
    cr_assert_not_null(strstr(agents[0].notice, "ranks 2, 3 cannot be seen: their node does not answer"));
    end();
}

Test(hang_watch, prints_late_stacks_separately)
{
    json_int_t id;

    begin(CDI_ON_HANG_STOP, CDI_ON_HANG_STOP);
    stack = NULL;
    report(0, 0, 30000);
    both_answer(30000);
    id = agents[0].id;
    report(0, id, 30000);
    pass(HANG_STACKS_MS);
    cr_assert_eq(agents[0].notices, 1);
    stack = "planted()\n";
    report(1, id, 31000);
    cr_assert_eq(agents[0].notices, 2);
    cr_assert_str_eq(agents[0].notice, "more about the standstill:\n    rank 3's stack:\n        planted()");
    end();
}

Test(hang_watch, reports_the_end)
{
    begin(CDI_ON_HANG_STOP, CDI_ON_HANG_STOP);
    stand_still(30000);
    now += 11000;
    report(0, 0, 0);
    pass(1000);
    both_answer(0);
    cr_assert_str_eq(agents[0].notice, "progress again after 42 s");
    stand_still(30000); /* and a new standstill is reported as such */
    cr_assert_eq(agents[0].notices, 2);
    pass(HANG_QUIET_MS); /* shortly after a look without a result it waits */
    both_answer(30000);
    both_answer(30000);
    cr_assert_eq(agents[0].notices, 3);
    end();
}

Test(hang_watch, stops_the_job_after_the_timeout)
{
    begin(CDI_ON_HANG_STOP, CDI_ON_HANG_STOP);
    stand_still(30000);
    pass(30000);
    both_answer(TIMEOUT_MS);
    cr_assert_eq(agents[1].n_stacks, 1);
    both_answer(TIMEOUT_MS);
    cr_assert_not_null(strstr(agents[0].notice, "60 s (--hang_timeout) have passed: the job is stopped"));
    cr_assert_eq(round_state(session_round(s)), ROUND_RUNNING, "not from within the session's own call");
    pass(250);
    cr_assert_eq(round_state(session_round(s)), ROUND_STOPPING);
    for (size_t i = 0; i < 2; i++) {
        cr_assert(agents[i].failure.kind == CDI_END_HANG && !agents[i].restart);
        cr_assert(agents[i].failure.rank == 3 && agents[i].failure.local_rank == 1 && agents[i].failure.node_rank == 1);
        cr_assert_eq(agents[i].failure.time_ms, 5000);
        cr_assert_not_null(strstr(agents[i].failure.text, "no progress for 60 s: rank 3 (pid 0 on node1) is behind"));
    }
    end();
}

Test(hang_watch, restarts_after_the_timeout)
{
    begin(CDI_ON_HANG_RESTART, CDI_ON_HANG_RESTART);
    stand_still(TIMEOUT_MS);
    pass(250);
    cr_assert_eq(round_state(session_round(s)), ROUND_STOPPING);
    cr_assert(agents[0].restart && round_uses_restart(session_round(s)));
    end();
}

Test(hang_watch, only_reports_if_asked_to_or_an_agent_is_old)
{
    for (int old = 0; old < 2; old++) {
        begin(old ? CDI_ON_HANG_STOP : CDI_ON_HANG_REPORT, old ? CDI_ON_HANG_NONE : CDI_ON_HANG_REPORT);
        stand_still(TIMEOUT_MS);
        cr_assert_not_null(strstr(agents[0].notice, "the job continues (--on_hang=report)"));
        for (int i = 0; i < 3; i++) {
            pass(HANG_AGAIN_MS);
            both_answer(TIMEOUT_MS + (i + 1) * HANG_AGAIN_MS);
        }
        cr_assert_eq(agents[0].notices, 1);
        cr_assert_eq(round_state(session_round(s)), ROUND_RUNNING);
        end();
    }
}

Test(hang_watch, forgets_a_round_that_has_ended)
{
    struct cdi_msg m = {.type = CDI_MSG_FAILED};

    begin(CDI_ON_HANG_STOP, CDI_ON_HANG_STOP);
    stand_still(30000);
    m.u.failed.failure = (struct cdi_failure){.kind = CDI_END_EXIT, .code = 3, .rank = 0};
    tell(&agents[0], &m);
    for (int i = 0; i < 100; i++)
        pass(1000);
    cr_assert_eq(agents[0].notices, 1);
    cr_assert_eq(agents[0].asks, 2);
    end();
}
