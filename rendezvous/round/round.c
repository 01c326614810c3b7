/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/cause.h"
#include "rendezvous/round/state.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define WAITING_EVERY_MS 10000
#define QUICK_MS 5000       /* a round that fails sooner may fail again at once */
#define QUICK_FREE 3        /* of those in a row, restarted without a pause */
#define PAUSE_FIRST_MS 1000 /* then twice as long each time */
#define PAUSE_MAX_MS 30000

static void round_act(struct round *r, enum round_action_kind kind, uint32_t peer)
{
    if (r->n_actions < members_actions(r))
        r->actions[r->n_actions++] = (struct round_action){kind, peer};
}

cddp_status round_create(struct round **out, const struct round_options *opt, int64_t now_ms, struct cdi_error *err)
{
    struct round *r;

    if (opt->min_nodes < 1 || opt->min_nodes > opt->max_nodes || opt->max_nodes > ROUND_NODES_MAX ||
        opt->spares > ROUND_NODES_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "invalid job size of %u to %u nodes and %u spares; the limit is %u nodes",
                        opt->min_nodes, opt->max_nodes, opt->spares, ROUND_NODES_MAX);
    r = calloc(1, sizeof *r);
    if (r == NULL || (r->run_id = strdup(opt->run_id == NULL ? "" : opt->run_id)) == NULL || !members_make_room(r, 0)) {
        round_destroy(r);
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a job");
    }
    r->opt = *opt;
    r->opt.run_id = r->run_id;
    r->deadline_ms = now_ms + opt->join_timeout_ms;
    r->enough_ms = INT64_MAX;
    r->next_waiting_ms = now_ms + WAITING_EVERY_MS;
    *out = r;
    return CDDP_OK;
}

void round_destroy(struct round *r)
{
    if (r == NULL)
        return;
    for (size_t i = 0; i < r->cap; i++) {
        free(r->nodes[i].host);
        free(r->nodes[i].topology);
    }
    free(r->nodes);
    free(r->by_rank);
    free(r->slots);
    free(r->actions);
    free(r->run_id);
    free(r);
}

/* --------------------------------------------------------------------------------------------------- closing ---- */

static void round_close_job(struct round *r, enum cdi_close_status status)
{
    r->state = ROUND_CLOSED;
    r->close_status = status;
    round_act(r, ROUND_DO_END_KEYS, NO_PEER);
    for (size_t i = 0; i < r->cap; i++)
        if (r->nodes[i].state != NODE_ABSENT)
            round_act(r, ROUND_DO_CLOSED, (uint32_t)i);
}

/* -------------------------------------------------------------------------------------------------- starting ---- */

static void round_notify_spare(struct round *r, uint32_t peer)
{
    round_printf(r->text, "the job runs with %u node%s; %.200s waits as a spare, and joins when the membership changes",
                 r->n_nodes, r->n_nodes == 1 ? "" : "s", r->nodes[peer].host);
    round_act(r, ROUND_DO_WAITING, peer);
}

static void round_start(struct round *r, int64_t now_ms)
{
    uint32_t n = ranks_choose(r), base = 0;
    const uint32_t *place = ranks_assign(r, n);

    for (uint32_t rank = 0; rank < n; rank++) {
        struct node *node = &r->nodes[place[rank]];

        node->node_rank = (int32_t)rank;
        node->last_round = r->number;
        node->rank_base = base;
        base += node->n_procs;
        if (node->restarts > r->restart_count)
            r->restart_count = node->restarts;
        node->restarts = 0;
        round_act(r, ROUND_DO_ASSIGN, place[rank]);
    }
    r->n_nodes = n;
    r->world_size = base;
    r->state = ROUND_RUNNING;
    r->started_ms = now_ms;
    r->n_left = 0;
    r->lost[0] = '\0';
    memset(&r->failure, 0, sizeof r->failure);
    for (size_t i = 0; r->count[NODE_WAITING] > 0 && i < r->cap; i++)
        if (r->nodes[i].state == NODE_WAITING)
            round_notify_spare(r, (uint32_t)i);
}

static void round_join_timed_out(struct round *r)
{
    char what[384];

    if (r->number > 0)
        (void)snprintf(what, sizeof what, "%.250s; not enough nodes joined within %lld s after that", r->why,
                       (long long)(r->opt.join_timeout_ms / 1000));
    else
        (void)snprintf(what, sizeof what, "not enough nodes joined within %lld s",
                       (long long)(r->opt.join_timeout_ms / 1000));
    if (r->number > 0 && r->verdict == OVER_CHANGED) /* the message contains it, and it was not a failure of the job */
        memset(&r->failure, 0, sizeof r->failure);
    members_say_missing(r, what, r->why);
    round_close_job(r, CDI_CLOSE_TIMEOUT);
}

/* Returns the time for further nodes to join after min_nodes are present. */
static int64_t round_last_call_ms(const struct round *r)
{
    if (r->number == 0)
        return r->opt.last_call_ms;
    return r->count[NODE_WAITING] < r->n_nodes ? r->opt.regroup_ms : 0;
}

/* JOINING: starts the round if it can begin, and closes the job at the join timeout. */
static void round_try_start(struct round *r, int64_t now_ms)
{
    size_t have = r->count[NODE_WAITING], here = have - r->away[NODE_WAITING];

    if (now_ms < r->begin_ms)
        return;
    if (have < r->opt.min_nodes)
        r->enough_ms = INT64_MAX;
    else if (r->enough_ms == INT64_MAX)
        r->enough_ms = now_ms;
    /* A round with a node that is away would mostly fail, as its lease is short. */
    if (r->away[NODE_WAITING] > 0 && have >= r->opt.min_nodes && here < r->opt.max_nodes && now_ms < r->deadline_ms)
        return;
    if (have >= r->opt.max_nodes ||
        (have >= r->opt.min_nodes && (now_ms >= r->deadline_ms || now_ms - r->enough_ms >= round_last_call_ms(r))))
        round_start(r, now_ms);
    else if (now_ms >= r->deadline_ms)
        round_join_timed_out(r);
}

/* -------------------------------------------------------------------------------------------------- stopping ---- */

bool round_uses_restart(const struct round *r)
{
    return r->verdict == OVER_FAILED && !r->gives_up && r->failure.final == 0 && r->restart_count < r->opt.max_restarts;
}

bool round_restarts(const struct round *r)
{
    return r->verdict == OVER_CHANGED || round_uses_restart(r);
}

/* A program that fails at once would use up its restarts within a second, and load the cluster with its start. */
static int64_t round_pause_ms(struct round *r)
{
    int64_t pause_ms = PAUSE_FIRST_MS;

    r->n_quick = r->verdict == OVER_FAILED && r->stopped_ms - r->started_ms < QUICK_MS ? r->n_quick + 1 : 0;
    if (r->n_quick <= QUICK_FREE)
        return 0;
    for (unsigned i = QUICK_FREE + 1; i < r->n_quick && pause_ms < PAUSE_MAX_MS; i++)
        pause_ms *= 2;
    return pause_ms < PAUSE_MAX_MS ? pause_ms : PAUSE_MAX_MS;
}

static void round_begin_joining(struct round *r, int64_t now_ms)
{
    int64_t pause_ms = round_pause_ms(r);

    round_act(r, ROUND_DO_END_KEYS, NO_PEER);
    r->state = ROUND_JOINING;
    r->number++;
    r->begin_ms = now_ms + pause_ms;
    r->deadline_ms = r->begin_ms + r->opt.join_timeout_ms;
    r->enough_ms = INT64_MAX;
    r->next_waiting_ms = pause_ms > 0 ? now_ms : now_ms + WAITING_EVERY_MS;
    round_try_start(r, now_ms);
}

/* Returns true if nodes have left and too few remain; the job then does not wait for others. */
static bool round_too_few_remain(const struct round *r)
{
    return r->n_left > 0 && round_present(r) < r->opt.min_nodes;
}

/* STOPPING: begins the next round, or closes the job, when every node of the round has stopped. */
static void round_check_stopped(struct round *r, int64_t now_ms)
{
    if (r->count[NODE_STOPPING] > 0)
        return;
    if (r->verdict == OVER_LEFT || (round_restarts(r) && round_too_few_remain(r))) {
        round_close_job(r, CDI_CLOSE_LEFT);
    } else if (!round_restarts(r)) {
        round_close_job(r, CDI_CLOSE_FAILED);
    } else {
        r->restart_count += round_uses_restart(r);
        round_begin_joining(r, now_ms);
    }
}

/* Sets the contents of ROUND_OVER now: when it is sent, the next round may have begun. */
static void round_update_over(struct round *r)
{
    r->over = (struct cdi_msg_round_over){
        .round = r->number, .restart = round_restarts(r), .counts = round_uses_restart(r), .failure = r->failure};
    round_printf(r->over.text, "%s", r->why);
}

static void round_stop(struct round *r, enum verdict verdict, int64_t now_ms)
{
    r->verdict = verdict;
    r->stopped_ms = now_ms;
    r->state = ROUND_STOPPING;
    round_update_over(r);
    for (size_t i = 0; i < r->cap; i++) {
        if (r->nodes[i].state != NODE_RUNNING && r->nodes[i].state != NODE_DONE)
            continue;
        members_move(r, &r->nodes[i], NODE_STOPPING);
        round_act(r, ROUND_DO_ROUND_OVER, (uint32_t)i);
    }
    round_check_stopped(r, now_ms);
}

/* Sends ROUND_OVER again, with the new cause, to every node that is or was in the round. */
static void round_resend_over(struct round *r)
{
    round_update_over(r);
    for (size_t i = 0; i < r->cap; i++) {
        const struct node *n = &r->nodes[i];

        if (n->state == NODE_STOPPING || (n->state == NODE_WAITING && n->last_round == r->number))
            round_act(r, ROUND_DO_ROUND_OVER, (uint32_t)i);
    }
}

/* Returns the length of the first line of a text, limited for use in a message. */
static int first_line(const char *text)
{
    size_t n = strcspn(text, "\n");

    return n < 470 ? (int)n : 470;
}

/* Sets r->why from r->failure. */
static void round_describe_failure(struct round *r, bool lost)
{
    if (!lost && r->restart_count > 0)
        round_printf(r->why, "%.*s (after %u restart%s)", first_line(r->failure.text), r->failure.text,
                     r->restart_count, r->restart_count == 1 ? "" : "s");
    else
        round_printf(r->why, "%.*s", first_line(r->failure.text), r->failure.text);
}

/* Stops the round because of its first failure, r->failure. */
static void round_fail(struct round *r, int64_t at_ms, int64_t now_ms)
{
    bool lost = r->failure.kind == CDI_END_NODE && is_elastic(r);

    r->failed_ms = at_ms;
    round_describe_failure(r, lost);
    round_stop(r, lost ? OVER_CHANGED : OVER_FAILED, now_ms);
}

static struct cdi_failure loss_of(const struct node *n, const struct round_event *ev, const char *how)
{
    struct cdi_failure f = {.kind = CDI_END_NODE,
                            .rank = -1,
                            .local_rank = -1,
                            .node_rank = n->node_rank,
                            .pid = n->pid,
                            .time_ms = ev->wall_ms};

    (void)snprintf(f.host, sizeof f.host, "%s", n->host);
    (void)snprintf(f.text, sizeof f.text, "node %d (%s, pid %lld) was lost while its workers ran: %s", n->node_rank,
                   n->host, (long long)n->pid, how);
    return f;
}

/* Replaces the cause: a node was lost, or was cut off and has killed its workers; the failure was a consequence. */
static void round_blame_node(struct round *r)
{
    if (is_elastic(r) && !r->ending)
        r->verdict = OVER_CHANGED;
    round_describe_failure(r, true);
    round_resend_over(r);
}

/* The failure that ended the round, by the clock of this server. */
static struct cdi_cause present_cause(const struct round *r)
{
    return cdi_cause_of(&r->failure, r->failed_ms);
}

/*
 * Returns true if the failure that ended the round was a consequence of this loss. In an elastic job any loss counts as
 * the cause. Otherwise the node has been silent for so long that it may have killed its workers before, or a rank names
 * one of them as its reason.
 */
static bool was_consequence(const struct round *r, const struct node *n, const struct round_event *ev, int64_t now_ms)
{
    const struct cdi_cause now = present_cause(r);
    const struct cdi_cause lost = {
        .kind = CDI_END_NODE, .rank = -1, .blamed = -1, .at_ms = ev->fence_ms > 0 ? ev->fence_ms : now_ms};
    const bool named = cdi_cause_class_of(&now) == CDI_CAUSE_FOLLOWS && now.blamed >= 0 &&
                       (uint32_t)now.blamed - n->rank_base < n->n_procs;

    if (r->verdict != OVER_FAILED || r->failure.kind == CDI_END_NODE || r->ending || r->gives_up)
        return false;
    return is_elastic(r) || ((ev->fence_ms > 0 || named) && cdi_cause_precedes(&lost, &now));
}

static void round_on_lost(struct round *r, struct node *n, const struct round_event *ev, const char *how,
                          int64_t now_ms)
{
    enum node_state was = n->state;
    bool left = n->leaving, explains;
    struct cdi_failure f;

    if (was == NODE_ABSENT)
        return;
    f = loss_of(n, ev, how);
    explains = was_consequence(r, n, ev, now_ms);
    if (left)
        r->n_left++;
    else
        members_note_lost(r, n->host);
    members_remove(r, n);
    if (r->state == ROUND_RUNNING && was == NODE_RUNNING) {
        r->failure = f;
        round_fail(r, now_ms, now_ms);
    } else if (r->state == ROUND_STOPPING && was == NODE_STOPPING) {
        if (!left && explains) {
            r->failure = f;
            round_blame_node(r);
        }
        round_check_stopped(r, now_ms);
    } else if (r->state == ROUND_JOINING) {
        round_try_start(r, now_ms);
    }
}

/* ---------------------------------------------------------------------------------------------------- events ---- */

/* Compares the clock of a node with that of this server. */
static void note_clock(struct node *n, const struct cdi_msg_join *j, int64_t now_ms)
{
    n->has_clock = j->sent_ms > 0;
    n->ahead_ms = j->sent_ms - now_ms;
}

/* A node has joined while a round runs. */
static void round_on_newcomer(struct round *r, uint32_t peer, int64_t now_ms)
{
    const struct node *n = &r->nodes[peer];

    if (r->n_nodes >= r->opt.max_nodes || r->count[NODE_DONE] > 0) { /* full, or about to end */
        round_notify_spare(r, peer);
        return;
    }
    round_printf(r->why, "%.200s (pid %lld) joined: the job continues with one more node", n->host, (long long)n->pid);
    round_stop(r, OVER_CHANGED, now_ms);
}

static void round_on_join(struct round *r, uint32_t peer, const struct cdi_msg_join *j, bool stale, int64_t now_ms)
{
    r->for_now = false;
    if (!members_may_join(r, j, stale)) {
        round_act(r, ROUND_DO_REFUSE, peer);
        return;
    }
    if (!members_add(r, peer, j)) {
        round_printf(r->text, "the rendezvous server is out of memory for another node");
        round_act(r, ROUND_DO_REFUSE, peer);
        return;
    }
    note_clock(&r->nodes[peer], j, now_ms);
    round_act(r, ROUND_DO_WELCOME, peer);
    if (r->state == ROUND_JOINING)
        round_try_start(r, now_ms);
    else if (r->state == ROUND_RUNNING)
        round_on_newcomer(r, peer, now_ms);
}

/*
 * When it happened, by the clock of this server. The message may have been on its way for long, and the clocks of nodes
 * differ; but a message arrives no earlier than it was sent, and the JOIN has arrived soon.
 */
static int64_t time_of_failure(const struct node *n, const struct cdi_failure *f, int64_t now_ms)
{
    const int64_t by_arrival = now_ms - f->age_ms, by_clock = f->time_ms - n->ahead_ms;

    return n->has_clock && by_clock < by_arrival ? by_clock : by_arrival;
}

/*
 * Returns true if f is the cause of the failure that ended the round. Another node reported f before it received
 * ROUND_OVER, or knows that one of its ranks is the reason, so the order of arrival is chance.
 */
static bool was_cause(const struct round *r, const struct node *n, const struct cdi_failure *f, int64_t at_ms)
{
    const struct cdi_cause late = cdi_cause_of(f, at_ms), now = present_cause(r);

    if (r->state != ROUND_STOPPING || r->verdict != OVER_FAILED || n->node_rank == r->failure.node_rank ||
        r->failure.kind == CDI_END_NODE || r->gives_up)
        return false;
    return cdi_cause_precedes(&late, &now);
}

static void round_set_failure(struct round *r, const struct node *n, const struct cdi_failure *f)
{
    r->failure = *f;
    r->failure.host[sizeof r->failure.host - 1] = '\0';
    r->failure.text[sizeof r->failure.text - 1] = '\0';
    r->failure.node_rank = n->node_rank;
    if (r->failure.kind == CDI_END_NONE)
        r->failure.kind = CDI_END_NODE;
    if (r->failure.rank < 0 && f->local_rank >= 0 && (uint32_t)f->local_rank < n->n_procs)
        r->failure.rank = (int32_t)(n->rank_base + (uint32_t)f->local_rank);
    if (r->failure.host[0] == '\0')
        (void)snprintf(r->failure.host, sizeof r->failure.host, "%s", n->host);
    if (f->kind == CDI_END_NODE)
        r->failure.pid = n->pid;
    if (f->text[0] == '\0')
        (void)snprintf(r->failure.text, sizeof r->failure.text, "a worker failed on node %d (%s)", n->node_rank,
                       n->host);
    else if (f->kind == CDI_END_NODE)
        (void)snprintf(r->failure.text, sizeof r->failure.text, "node %d (%s, pid %lld) killed its workers: %.800s",
                       n->node_rank, n->host, (long long)n->pid, f->text);
}

static void round_on_failed(struct round *r, const struct node *n, const struct cdi_failure *f, int64_t now_ms)
{
    const int64_t at_ms = time_of_failure(n, f, now_ms);

    if (r->state == ROUND_RUNNING) {
        round_set_failure(r, n, f);
        round_fail(r, at_ms, now_ms);
    } else if (was_cause(r, n, f, at_ms)) {
        round_set_failure(r, n, f);
        r->failed_ms = at_ms;
        if (f->kind == CDI_END_NODE) {
            round_blame_node(r);
            return;
        }
        round_describe_failure(r, false);
        round_resend_over(r);
    }
}

/* The workers of all nodes have stood still for too long. A node's own end was reported if there was one. */
static void round_on_hang(struct round *r, const struct round_event *ev, int64_t now_ms)
{
    if (r->state != ROUND_RUNNING || ev->round != r->number)
        return;
    r->failure = *ev->failure;
    r->failure.kind = CDI_END_HANG;
    if (r->failure.text[0] == '\0')
        (void)snprintf(r->failure.text, sizeof r->failure.text, "the workers stood still");
    r->gives_up = ev->final;
    round_fail(r, now_ms, now_ms);
}

static void round_release(struct round *r, uint32_t peer, struct node *n)
{
    members_remove(r, n);
    round_act(r, ROUND_DO_BYE, peer);
}

/*
 * A batch system signals workers and agents alike. Did it end the worker whose failure has ended the round, so that its
 * node leaves now and has not failed?
 */
static bool died_of_order(const struct round *r, const struct node *n)
{
    struct cdi_cause c = present_cause(r);

    if (r->verdict != OVER_FAILED || r->gives_up || r->failure.node_rank != n->node_rank)
        return false;
    c.ordered = SIGTERM;
    return cdi_cause_class_of(&c) == CDI_CAUSE_ORDERED;
}

/* An elastic job continues without the node if enough others remain. */
static void round_on_leave_elastic(struct round *r, uint32_t peer, struct node *n, const char *why, int64_t now_ms)
{
    bool enough = round_present(r) - r->n_leaving > r->opt.min_nodes;

    if (r->state == ROUND_RUNNING || r->state == ROUND_JOINING)
        round_printf(r->why, "node %d (%.100s) left: %.200s", n->node_rank, n->host, why);
    switch (n->state) {
    case NODE_RUNNING:
        members_set_leaving(r, n);
        round_stop(r, enough ? OVER_CHANGED : OVER_LEFT, now_ms);
        return;
    case NODE_STOPPING:
        members_set_leaving(r, n);
        if (died_of_order(r, n)) {
            r->verdict = enough ? OVER_CHANGED : OVER_LEFT;
            round_printf(r->why, "node %d (%.100s) left: %.200s", n->node_rank, n->host, why);
            round_resend_over(r);
        }
        return;
    case NODE_WAITING:
    case NODE_DONE:
        r->n_left++;
        round_release(r, peer, n);
        if (r->state == ROUND_JOINING && round_too_few_remain(r))
            round_close_job(r, CDI_CLOSE_LEFT);
        else if (r->state == ROUND_JOINING)
            round_try_start(r, now_ms);
        return;
    case NODE_ABSENT:
    case NODE_N_STATES:
        return;
    }
}

/* An elastic job goes on without any other node. */
static const char *host_note(const struct round *r, const struct round_event *ev)
{
    return is_elastic(r) && ev->final ? "; it hosted the rendezvous server, so the job cannot go on" : "";
}

static void round_on_leave(struct round *r, uint32_t peer, struct node *n, const struct round_event *ev, int64_t now_ms)
{
    if (r->state == ROUND_CLOSED)
        return;
    r->ending |= ev->final;
    if (n->node_rank < 0 && !(ev->final && r->n_nodes > 0)) { /* it was in no round, so no other node depends on it */
        round_release(r, peer, n);
        if (r->state == ROUND_JOINING)
            round_try_start(r, now_ms);
        return;
    }
    if (is_elastic(r) && !ev->final) {
        round_on_leave_elastic(r, peer, n, ev->text, now_ms);
        return;
    }
    if (r->state == ROUND_STOPPING && !round_restarts(r))
        return; /* the job ends anyway, and the reason is known */
    if (n->node_rank < 0)
        round_printf(r->why, "%.100s left: %.200s%s", n->host, ev->text, host_note(r, ev));
    else
        round_printf(r->why, "node %d (%.100s) left: %.200s%s", n->node_rank, n->host, ev->text, host_note(r, ev));
    if (r->state == ROUND_RUNNING)
        round_stop(r, OVER_LEFT, now_ms);
    else if (r->state == ROUND_STOPPING)
        r->verdict = OVER_LEFT;
    else
        round_close_job(r, CDI_CLOSE_LEFT);
}

/* Drops a peer after a protocol error, and counts it as lost. */
static void round_drop(struct round *r, struct node *n, const struct round_event *ev, const char *what, int64_t now_ms)
{
    round_printf(r->text, "%s", what);
    round_act(r, ROUND_DO_DROP, ev->peer);
    if (n != NULL)
        round_on_lost(r, n, ev, what, now_ms);
}

/* FAILED, DONE and STOPPED name a round. */
static void round_on_report(struct round *r, struct node *n, const struct round_event *ev, int64_t now_ms)
{
    bool in_round = n->state == NODE_RUNNING || n->state == NODE_DONE || n->state == NODE_STOPPING;

    if (ev->round < r->number || r->state == ROUND_CLOSED)
        return; /* late */
    if (ev->round > r->number) {
        round_drop(r, n, ev, "it reports on a future round", now_ms);
        return;
    }
    if (!in_round && r->state != ROUND_STOPPING) {
        round_drop(r, n, ev, "it reports on a round that has not begun", now_ms);
        return;
    }
    if (ev->kind == ROUND_EV_FAILED && in_round) {
        round_on_failed(r, n, ev->failure, now_ms);
    } else if (ev->kind == ROUND_EV_DONE && n->state == NODE_RUNNING) {
        members_move(r, n, NODE_DONE);
        if (r->count[NODE_RUNNING] == 0) {
            round_printf(r->why, "all workers finished");
            round_close_job(r, CDI_CLOSE_DONE);
        }
    } else if (ev->kind == ROUND_EV_STOPPED) {
        if (n->state == NODE_STOPPING) {
            if (n->leaving) {
                r->n_left++;
                round_release(r, ev->peer, n);
            } else {
                members_move(r, n, NODE_WAITING);
            }
            round_check_stopped(r, now_ms);
        } else if (r->state == ROUND_RUNNING) {
            round_drop(r, n, ev, "it sent STOPPED while its round runs", now_ms);
        }
    }
}

/* An agent has reconnected. Its last assignment was for round ev->join->round (-1: none). */
static void round_on_back(struct round *r, struct node *n, const struct round_event *ev, int64_t now_ms)
{
    int64_t last_round = ev->join->round;

    members_set_away(r, n, false);
    if (last_round > r->number) {
        round_drop(r, n, ev, "it returns from a future round", now_ms);
        return;
    }
    note_clock(n, ev->join, now_ms);
    round_act(r, ROUND_DO_RESUME, ev->peer);
    if (r->state == ROUND_STOPPING)
        round_update_over(r); /* may have changed since it was sent: a node may have left */
    if (r->state == ROUND_CLOSED)
        round_act(r, ROUND_DO_CLOSED, ev->peer);
    else if (n->state == NODE_STOPPING)
        round_act(r, ROUND_DO_ROUND_OVER, ev->peer);
    else if (n->state == NODE_RUNNING && last_round < r->number)
        round_act(r, ROUND_DO_ASSIGN, ev->peer);
    else if (r->state == ROUND_JOINING)
        round_try_start(r, now_ms);
}

static void round_on_tick(struct round *r, int64_t now_ms)
{
    if (r->state != ROUND_JOINING)
        return;
    round_try_start(r, now_ms);
    if (r->state != ROUND_JOINING || now_ms < r->next_waiting_ms)
        return;
    r->next_waiting_ms = now_ms + WAITING_EVERY_MS;
    if (now_ms < r->begin_ms)
        round_printf(r->text,
                     "%u times in a row the workers failed within %d s of their start; the next start is in %.3g s",
                     r->n_quick, QUICK_MS / 1000, (double)(r->begin_ms - now_ms) / 1000);
    else
        members_say_missing(r, "waiting", r->text);
    for (size_t i = 0; i < r->cap; i++)
        if (r->nodes[i].state == NODE_WAITING)
            round_act(r, ROUND_DO_WAITING, (uint32_t)i);
}

const struct round_action *round_step(struct round *r, const struct round_event *ev, int64_t now_ms, size_t *n)
{
    struct node *node = ev->peer < r->cap ? &r->nodes[ev->peer] : NULL;
    bool there = node != NULL && node->state != NODE_ABSENT;

    assert(r->cap == 0 || (r->nodes != NULL && r->slots != NULL));
    r->n_actions = 0;
    switch (ev->kind) {
    case ROUND_EV_JOIN:
        if (there)
            round_drop(r, node, ev, "it sent JOIN twice", now_ms);
        else
            round_on_join(r, ev->peer, ev->join, ev->stale, now_ms);
        break;
    case ROUND_EV_FAILED:
    case ROUND_EV_DONE:
    case ROUND_EV_STOPPED:
        if (there)
            round_on_report(r, node, ev, now_ms);
        else
            round_drop(r, NULL, ev, "it reports before JOIN", now_ms);
        break;
    case ROUND_EV_LEAVE:
        if (there)
            round_on_leave(r, ev->peer, node, ev, now_ms);
        else
            round_act(r, ROUND_DO_BYE, ev->peer);
        break;
    case ROUND_EV_LOST:
        if (there)
            round_on_lost(r, node, ev, ev->text, now_ms);
        break;
    case ROUND_EV_AWAY:
        if (there && node->node_rank < 0)
            round_on_lost(r, node, ev, ev->text, now_ms);
        else if (there)
            members_set_away(r, node, true);
        break;
    case ROUND_EV_BACK:
        if (there)
            round_on_back(r, node, ev, now_ms);
        break;
    case ROUND_EV_TICK:
        round_on_tick(r, now_ms);
        break;
    case ROUND_EV_HANG:
        round_on_hang(r, ev, now_ms);
        break;
    }
    *n = r->n_actions;
    return r->actions;
}

/* --------------------------------------------------------------------------------------------------- reading ---- */

enum round_state round_state(const struct round *r)
{
    return r->state;
}

uint32_t round_number(const struct round *r)
{
    return r->number;
}

uint32_t round_nodes(const struct round *r)
{
    return r->n_nodes;
}

uint32_t round_world_size(const struct round *r)
{
    return r->world_size;
}

uint32_t round_restart_count(const struct round *r)
{
    return r->restart_count;
}

const char *round_text(const struct round *r)
{
    return r->text;
}

const char *round_why(const struct round *r)
{
    return r->why;
}

const struct cdi_failure *round_failure(const struct round *r)
{
    return &r->failure;
}

const struct cdi_msg_round_over *round_over(const struct round *r)
{
    return &r->over;
}

enum cdi_close_status round_close_status(const struct round *r)
{
    return r->close_status;
}

void round_waiting(const struct round *r, uint32_t *have, uint32_t *need)
{
    *have = (uint32_t)r->count[NODE_WAITING];
    *need = r->opt.max_nodes;
}

void round_limits(const struct round *r, uint32_t *min_nodes, uint32_t *max_nodes)
{
    *min_nodes = r->opt.min_nodes;
    *max_nodes = r->opt.max_nodes;
}

const char *round_host(const struct round *r, uint32_t peer)
{
    return peer < r->cap && r->nodes[peer].state != NODE_ABSENT ? r->nodes[peer].host : NULL;
}

bool round_refused_for_now(const struct round *r)
{
    return r->for_now;
}

bool round_may_return(const struct round *r, uint32_t peer)
{
    return peer < r->cap && r->nodes[peer].state != NODE_ABSENT && r->nodes[peer].node_rank >= 0;
}

int32_t round_node_rank(const struct round *r, uint32_t peer)
{
    return peer < r->cap && r->nodes[peer].state != NODE_ABSENT ? r->nodes[peer].node_rank : -1;
}

bool round_assignment(const struct round *r, uint32_t peer, struct cdi_msg_assign *out)
{
    const struct node *n = peer < r->cap ? &r->nodes[peer] : NULL;

    if (n == NULL || (n->state != NODE_RUNNING && n->state != NODE_DONE && n->state != NODE_STOPPING))
        return false;
    *out = (struct cdi_msg_assign){.round = r->number,
                                   .node_rank = n->node_rank,
                                   .n_nodes = r->n_nodes,
                                   .rank_base = n->rank_base,
                                   .world_size = r->world_size,
                                   .restart_count = r->restart_count};
    return true;
}
