/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which failure the headline names. First the rule alone; then jobs of a few nodes in which one rank fails by a planted
 * fault. The others notice that in a random order, and the expected headline comes from the fault, not from the rule.
 */
#include "hygiene.h"
#include "protocol/cause.h"
#include "rendezvous/round/round.h"

#include <signal.h>
#include <string.h>

CDI_SUITE(cause);

/* ----------------------------------------------------------------------------------------------------- rule ---- */

#define CAUSE(...) \
    ((struct cdi_cause){.kind = CDI_END_EXIT, .code = 1, .rank = 0, .blamed = -1, .at_ms = 5000, __VA_ARGS__})

Test(cause, class_comes_from_the_worker_s_own_error)
{
    const struct {
        struct cdi_cause c;
        enum cdi_cause_class expected;
    } cases[] = {
        {CAUSE(.kind = CDI_END_NONE), CDI_CAUSE_NONE},
        {CAUSE(.rank = 0), CDI_CAUSE_OWN},
        {CAUSE(.error = CDDP_E_STATE), CDI_CAUSE_OWN},
        {CAUSE(.error = CDDP_E_PEER), CDI_CAUSE_FOLLOWS},
        {CAUSE(.error = CDDP_E_ABORTED), CDI_CAUSE_FOLLOWS},
        {CAUSE(.error = CDDP_E_REMOTE), CDI_CAUSE_FOLLOWS},
        {CAUSE(.error = CDDP_E_CLOSED), CDI_CAUSE_FOLLOWS},
        {CAUSE(.error = CDDP_E_MISMATCH, .blamed = 1), CDI_CAUSE_FOLLOWS},
        {CAUSE(.error = CDDP_E_MISMATCH, .blamed = 0), CDI_CAUSE_OWN},
        {CAUSE(.error = CDDP_E_ABORTED, .blamed = 0), CDI_CAUSE_OWN},
        {CAUSE(.kind = CDI_END_SIGNAL, .code = SIGABRT, .error = CDDP_E_PEER), CDI_CAUSE_FOLLOWS},
        {CAUSE(.kind = CDI_END_SIGNAL, .code = SIGKILL, .error = CDDP_E_PEER), CDI_CAUSE_OWN},
        {CAUSE(.kind = CDI_END_SIGNAL, .code = SIGKILL, .error = CDDP_E_MISMATCH, .blamed = 1), CDI_CAUSE_OWN},
        {CAUSE(.kind = CDI_END_SIGNAL, .code = SIGTERM, .ordered = SIGTERM), CDI_CAUSE_ORDERED},
        {CAUSE(.code = 128 + SIGTERM, .ordered = SIGTERM), CDI_CAUSE_ORDERED},
        {CAUSE(.kind = CDI_END_SIGNAL, .code = SIGTERM), CDI_CAUSE_OWN},
        {CAUSE(.kind = CDI_END_SPAWN, .error = CDDP_E_PEER), CDI_CAUSE_OWN},
        {CAUSE(.kind = CDI_END_NODE, .rank = -1), CDI_CAUSE_OWN},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cr_assert_eq(cdi_cause_class_of(&cases[i].c), cases[i].expected, "case %zu", i);
}

static bool first(struct cdi_cause a, struct cdi_cause b)
{
    cr_assert(!(cdi_cause_precedes(&a, &b) && cdi_cause_precedes(&b, &a)));
    cr_assert(!cdi_cause_precedes(&a, &a));
    return cdi_cause_precedes(&a, &b);
}

Test(cause, unknown_time_is_never_earlier)
{
    cr_assert(!first(CAUSE(.at_ms = 0), CAUSE(.rank = 1)));
    cr_assert(!first(CAUSE(.kind = CDI_END_SPAWN, .at_ms = -7), CAUSE(.rank = 1, .at_ms = INT64_MAX / 2)));
    cr_assert(first(CAUSE(.rank = 1), CAUSE(.at_ms = 0)));
    cr_assert(first(CAUSE(.at_ms = 0), CAUSE(.rank = 1, .at_ms = 0)), "both unknown: the lower rank");
    cr_assert(first(CAUSE(.at_ms = 0), CAUSE(.rank = 1, .error = CDDP_E_PEER, .at_ms = 1)), "its class is lower");
}

Test(cause, later_failure_of_a_rank_s_own_precedes_all_that_follow)
{
    cr_assert(first(CAUSE(.at_ms = 900000), CAUSE(.rank = 1, .blamed = 0)));
    cr_assert(first(CAUSE(.rank = 1, .blamed = 0), CAUSE(.at_ms = 1, .ordered = SIGTERM, .code = 143)));
}

Test(cause, sudden_end_may_be_noticed_late)
{
    cr_assert(first(CAUSE(.kind = CDI_END_SIGNAL, .code = SIGKILL, .at_ms = 5999), CAUSE(.rank = 1)));
    cr_assert(!first(CAUSE(.rank = 1, .kind = CDI_END_SIGNAL, .code = SIGKILL, .at_ms = 6000), CAUSE(.rank = 0)));
    cr_assert(!first(CAUSE(.kind = CDI_END_SIGNAL, .code = SIGTERM, .at_ms = 5001), CAUSE(.rank = 1)));
    cr_assert(first(CAUSE(.kind = CDI_END_NODE, .rank = -1, .at_ms = 5999), CAUSE(.rank = 1)));
    cr_assert(!first(CAUSE(.kind = CDI_END_SIGNAL, .code = SIGABRT, .recorded = true, .at_ms = 5001), CAUSE(.rank = 1)),
              "its time is that of the exception");
}

/* ------------------------------------------------------------------------------------------------ simulator ---- */

#define ORDERS 10000
#define NODES_MAX 4
#define PER_NODE_MAX 4
#define RANKS_MAX (NODES_MAX * PER_NODE_MAX)
#define FAULT_MS 100000 /* of the server's clock */
#define LATENCY_MS 40   /* of a message, at most; but some are */
#define DELAY_MS 5000   /* delayed by so much, by a network that loses packets */
#define EPOCH_MS INT64_C(1800000000000)
#define AGENT_WAIT_MS 2000 /* FOLLOWS_WAIT_MS of first_failure.c */

enum fault { OWN_ERROR, PLAIN_EXIT, KILLED, MISMATCH, NOT_STARTED, LEFT, NODE_CUT_OFF, NODE_SILENT, N_FAULTS };

/* The end of a rank, as its agent notices it. */
struct end {
    struct cdi_failure f;
    int64_t noticed_ms; /* INT64_MAX: never */
};

struct sim {
    enum fault fault;
    int n_nodes, per_node, rank; /* the rank that fails */
    int64_t skew_ms[NODES_MAX];  /* of the nodes' clocks */
    struct end ends[RANKS_MAX];
    unsigned seed;
};

static int64_t dice(struct sim *s, int64_t from, int64_t to)
{
    return from + (int64_t)rand_r(&s->seed) % (to - from + 1);
}

static int node_of(const struct sim *s, int rank)
{
    return rank / s->per_node;
}

static bool has_lost_node(const struct sim *s)
{
    return s->fault == NODE_CUT_OFF || s->fault == NODE_SILENT;
}

/* The fault: the end of the rank itself. */
static void plant(struct sim *s)
{
    struct end *e = &s->ends[s->rank];

    e->noticed_ms = FAULT_MS + dice(s, 0, 5);
    if (s->fault == OWN_ERROR || s->fault == MISMATCH) { /* it cleans up before it ends */
        e->f.error = s->fault == MISMATCH ? CDDP_E_MISMATCH : CDDP_E_STATE;
        e->f.blames = s->fault == MISMATCH ? (uint32_t)s->rank + 1 : 0;
        e->noticed_ms += dice(s, 0, 2 * AGENT_WAIT_MS);
    } else if (s->fault == KILLED) { /* of a process with much memory, or on a busy node */
        e->f.kind = CDI_END_SIGNAL;
        e->f.code = dice(s, 0, 1) == 0 ? SIGKILL : SIGSEGV;
        e->noticed_ms += dice(s, 0, 900);
    } else if (s->fault == NOT_STARTED) {
        e->f.kind = CDI_END_SPAWN;
        e->f.code = 7;
    } else if (s->fault == LEFT) { /* and its agent learns later that it was needed */
        e->f.code = 0;
        e->noticed_ms += dice(s, 0, AGENT_WAIT_MS - 100);
    } else if (has_lost_node(s)) {
        e->noticed_ms = INT64_MAX;
    }
}

/* Another rank fails because of it, and mostly knows why; or lives on until it is stopped. */
static void follow(struct sim *s, int rank)
{
    static const int32_t statuses[] = {CDDP_E_PEER, CDDP_E_ABORTED, CDDP_E_REMOTE};
    struct end *e = &s->ends[rank];
    const bool knows = s->fault == OWN_ERROR || s->fault == MISMATCH || s->fault == LEFT || dice(s, 0, 3) > 0;

    e->noticed_ms = FAULT_MS + dice(s, 0, 1500);
    if (dice(s, 0, 4) == 0 || (has_lost_node(s) && node_of(s, rank) == node_of(s, s->rank))) {
        e->noticed_ms = INT64_MAX;
        return;
    }
    if (dice(s, 0, 5) == 0 && knows) { /* C++ */
        e->f.kind = CDI_END_SIGNAL;
        e->f.code = SIGABRT;
    }
    if (knows) {
        e->f.error = s->fault == MISMATCH ? CDDP_E_MISMATCH : statuses[dice(s, 0, 2)];
        e->f.blames = s->fault == MISMATCH || dice(s, 0, 2) > 0 ? (uint32_t)s->rank + 1 : 0;
        e->f.misses = s->fault == LEFT ? (uint32_t)s->rank + 1 : 0;
        if (dice(s, 0, 9) == 0)
            e->f.time_ms = -1; /* not known */
        return;
    }
    /* No error of libcddp's: only the time tells, as far as it can. */
    if (s->fault != KILLED && !has_lost_node(s))
        e->noticed_ms += s->ends[s->rank].noticed_ms - FAULT_MS + LATENCY_MS + 1;
    else if (s->fault == KILLED)
        e->noticed_ms += LATENCY_MS + 1;
}

static void make_job(struct sim *s, unsigned seed)
{
    *s = (struct sim){.seed = seed};
    s->fault = (enum fault)dice(s, 0, N_FAULTS - 1);
    s->n_nodes = (int)dice(s, has_lost_node(s) ? 2 : 1, NODES_MAX);
    s->per_node = (int)dice(s, s->n_nodes == 1 ? 2 : 1, PER_NODE_MAX);
    s->rank = (int)dice(s, 0, s->n_nodes * s->per_node - 1);
    for (int i = 0; i < s->n_nodes; i++)
        s->skew_ms[i] = dice(s, -3600000, 3600000);
    for (int i = 0; i < s->n_nodes * s->per_node; i++)
        s->ends[i].f = (struct cdi_failure){
            .kind = CDI_END_EXIT, .code = 1, .rank = i, .local_rank = i % s->per_node, .node_rank = node_of(s, i)};
    plant(s);
    for (int i = 0; i < s->n_nodes * s->per_node; i++)
        if (i != s->rank)
            follow(s, i);
}

/* The report of a node, as its agent makes it: the cause among the ends known by `until`, when it waits no longer. */
struct report {
    struct end first;
    int64_t sent_ms;
};

static struct report report_of(const struct sim *s, int node)
{
    const struct cdi_cause none = {.kind = CDI_END_NONE};
    struct report r = {.sent_ms = INT64_MAX};
    struct cdi_cause best = none;
    int64_t since_ms = INT64_MAX;
    bool changed = true;

    for (int i = node * s->per_node; i < (node + 1) * s->per_node; i++)
        if (s->ends[i].noticed_ms < since_ms)
            since_ms = s->ends[i].noticed_ms;
    for (int64_t until = since_ms; since_ms != INT64_MAX && changed;) {
        changed = false;
        for (int i = node * s->per_node; i < (node + 1) * s->per_node; i++) {
            struct cdi_cause c = cdi_cause_of(&s->ends[i].f, s->ends[i].noticed_ms);

            if (s->ends[i].noticed_ms > until)
                continue;
            c.at_ms = s->ends[i].f.time_ms < 0 ? 0 : s->ends[i].noticed_ms;
            if (cdi_cause_precedes(&c, &best)) {
                best = c;
                r.first = s->ends[i];
                r.sent_ms = until > r.first.noticed_ms ? until : r.first.noticed_ms;
                changed = true;
            }
        }
        if (cdi_cause_class_of(&best) == CDI_CAUSE_FOLLOWS && until < since_ms + AGENT_WAIT_MS) {
            until++;
            changed = true;
        } else {
            r.sent_ms = until;
            changed = false;
        }
    }
    if (r.sent_ms == INT64_MAX || node != node_of(s, s->rank))
        return r;
    if (s->fault == KILLED || s->fault == OWN_ERROR || s->fault == MISMATCH) { /* known before the process has ended */
        r.first = s->ends[s->rank];
        if (r.first.noticed_ms > r.sent_ms)
            r.first.noticed_ms = r.sent_ms;
    }
    return r;
}

static struct round *begin(const struct sim *s)
{
    const struct round_options opt = {.run_id = "job",
                                      .min_nodes = (uint32_t)s->n_nodes,
                                      .max_nodes = (uint32_t)s->n_nodes,
                                      .join_timeout_ms = 60000};
    struct round *r = NULL;
    size_t n;

    cr_assert_eq(round_create(&r, &opt, 0, NULL), CDDP_OK);
    for (int i = 0; i < s->n_nodes; i++) {
        struct cdi_msg_join j = {.version = CDI_CONTROL_VERSION,
                                 .run_id = "job",
                                 .node_rank = i,
                                 .n_procs = (uint32_t)s->per_node,
                                 .sent_ms = EPOCH_MS + s->skew_ms[i],
                                 .min_nodes = (uint32_t)s->n_nodes,
                                 .max_nodes = (uint32_t)s->n_nodes};

        (void)round_step(r, &(struct round_event){.kind = ROUND_EV_JOIN, .peer = (uint32_t)i, .join = &j},
                         LATENCY_MS / 2, &n);
    }
    cr_assert_eq(round_state(r), ROUND_RUNNING);
    return r;
}

static void deliver(const struct sim *s, struct round *r, int node, const struct report *report, int64_t now_ms)
{
    struct cdi_failure f = report->first.f;
    size_t n;

    if (f.time_ms == 0) { /* by the node's own clock */
        f.time_ms = EPOCH_MS + s->skew_ms[node] + report->first.noticed_ms;
        f.age_ms = report->sent_ms - report->first.noticed_ms;
    } else {
        f.time_ms = 0;
    }
    (void)snprintf(f.text, sizeof f.text, "rank %d failed", f.rank);
    (void)round_step(r, &(struct round_event){.kind = ROUND_EV_FAILED, .peer = (uint32_t)node, .failure = &f}, now_ms,
                     &n);
}

/* Plays a job. Returns the rank that the headline names, or -1 and *node. *by_arrival is that of the first report. */
static int play(struct sim *s, int *node, int *by_arrival)
{
    struct round *r = begin(s);
    struct report reports[NODES_MAX];
    int64_t arrive_ms[NODES_MAX];
    const int lost = has_lost_node(s) ? node_of(s, s->rank) : -1;
    const struct cdi_failure *f;
    size_t n;
    int rank;

    for (int i = 0; i < s->n_nodes; i++) {
        reports[i] = report_of(s, i);
        arrive_ms[i] = reports[i].sent_ms == INT64_MAX ? INT64_MAX : reports[i].sent_ms + dice(s, 0, LATENCY_MS);
        if (arrive_ms[i] != INT64_MAX && dice(s, 0, 3) == 0)
            arrive_ms[i] += dice(s, 0, DELAY_MS);
    }
    if (lost >= 0) /* the lease ends, or the agent says at last that it was cut off */
        arrive_ms[lost] = FAULT_MS + dice(s, 0, 6000);
    *by_arrival = -1;
    for (int done = 0; done < s->n_nodes; done++) {
        int next = 0;

        for (int i = 1; i < s->n_nodes; i++)
            next = arrive_ms[i] < arrive_ms[next] ? i : next;
        if (arrive_ms[next] == INT64_MAX)
            break;
        if (next == lost && s->fault == NODE_SILENT) {
            (void)round_step(r,
                             &(struct round_event){.kind = ROUND_EV_LOST,
                                                   .peer = (uint32_t)next,
                                                   .text = "silence",
                                                   .wall_ms = 1,
                                                   .fence_ms = FAULT_MS},
                             arrive_ms[next], &n);
        } else {
            struct report cut = {.first = {.f = {.kind = CDI_END_NODE, .rank = -1, .local_rank = -1, .text = "cut off"},
                                           .noticed_ms = FAULT_MS},
                                 .sent_ms = arrive_ms[next]};

            deliver(s, r, next, next == lost ? &cut : &reports[next], arrive_ms[next]);
        }
        if (done == 0)
            *by_arrival = round_failure(r)->rank;
        arrive_ms[next] = INT64_MAX;
    }
    f = round_failure(r);
    *node = f->node_rank;
    rank = f->kind == CDI_END_NODE ? -1 : f->rank;
    round_destroy(r);
    return rank;
}

Test(cause, headline_names_the_planted_fault_in_any_order)
{
    int by_arrival = 0, wrong_by_arrival = 0;

    for (unsigned i = 0; i < ORDERS; i++) {
        struct sim s;
        int node, rank;

        make_job(&s, i + 1);
        rank = play(&s, &node, &by_arrival);
        cr_assert(has_lost_node(&s) ? rank == -1 && node == node_of(&s, s.rank) : rank == s.rank,
                  "job %u, fault %d: the headline names rank %d of node %d, but rank %d of node %d has failed", i,
                  (int)s.fault, rank, node, s.rank, node_of(&s, s.rank));
        wrong_by_arrival += !has_lost_node(&s) && by_arrival != s.rank;
    }
    cr_assert(wrong_by_arrival > ORDERS / 20, "the first report would do in nearly all of them: %d", wrong_by_arrival);
}
