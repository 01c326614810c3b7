/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guarantees, implemented independently: compares the decisions of the round with those that the events and the
 * real state of the nodes allow.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

#define NO_PEER UINT32_MAX
#define SLACK_MS 2000

static struct sim_slot *slot_at(struct sim *w, uint32_t peer)
{
    return peer < w->n_slots && w->slots[peer].used ? &w->slots[peer] : NULL;
}

static bool in_round(const struct sim *w, const struct round_event *ev)
{
    return ev->round == round_number(w->r);
}

static void set_away(struct sim *w, struct sim_slot *s, bool away)
{
    w->n_away += away - s->counted_away;
    s->counted_away = away;
}

/* Removes a node in any state. */
static void forget(struct sim *w, struct sim_slot *s)
{
    if (!s->joined)
        return;
    w->n_present--;
    w->n_waiting -= !s->member;
    w->n_done -= s->member && s->done;
    w->n_leaving -= s->leaving;
    set_away(w, s, false);
    s->joined = s->member = s->leaving = s->done = false;
}

/* Is a restart left after a failure? */
static bool may_restart(const struct sim *w)
{
    return !w->gives_up && w->restarts < w->opt.max_restarts;
}

/* The failure was a consequence of a node's loss: all nodes receive this, and in an elastic job it does not count. */
static void blame_node(struct sim *w)
{
    if (w->elastic)
        w->cause = CAUSE_CHANGED;
    w->by_node = true;
    w->recast = true;
}

/* fence_ms: time from which it may have killed its workers; 0: never, as far as known. */
static void lost(struct sim *w, struct sim_slot *s, int64_t fence_ms)
{
    bool cut_off_before = fence_ms > 0 && (w->failed_at <= 0 || fence_ms < w->failed_at + CDI_CAUSE_SUDDEN_MS);

    if (s->member && w->state == ROUND_RUNNING && !s->done) {
        w->cause = w->elastic ? CAUSE_CHANGED : CAUSE_FAILED;
        w->by_node = true;
    } else if (s->member && w->state == ROUND_STOPPING && w->cause == CAUSE_FAILED && !w->by_node &&
               (w->elastic || cut_off_before) && !s->leaving && !w->ending && !w->gives_up) {
        blame_node(w);
    }
    w->any_left |= s->leaving;
    forget(w, s);
}

static void set_leaving(struct sim *w, struct sim_slot *s)
{
    w->n_leaving += !s->leaving;
    s->leaving = true;
}

static void leaves(struct sim *w, struct sim_slot *s, bool final)
{
    bool restarts = w->cause == CAUSE_CHANGED || (w->cause == CAUSE_FAILED && may_restart(w));

    w->ending |= final;
    if (w->elastic && !final) {
        if (s->member && w->state == ROUND_RUNNING && !s->done) {
            w->cause = w->n_present - w->n_leaving > w->opt.min_nodes ? CAUSE_CHANGED : CAUSE_LEFT;
            set_leaving(w, s);
        } else if (s->member && w->state == ROUND_STOPPING) {
            set_leaving(w, s);
        } else if (s->ran) {
            w->any_left = true;
        }
    } else if (s->ran || (final && w->last_number >= 0)) {
        if (w->state == ROUND_RUNNING || (w->state == ROUND_STOPPING && restarts) || w->state == ROUND_JOINING)
            w->cause = CAUSE_LEFT;
    }
}

/*
 * The first failure ends the round. One of another node that was earlier, or cut off at about the same time, is the
 * cause.
 */
static void failed(struct sim *w, const struct sim_slot *s, const struct cdi_failure *f)
{
    bool node = f->kind == CDI_END_NODE;

    if (!s->member)
        return;
    if (w->state == ROUND_RUNNING) {
        w->cause = node && w->elastic ? CAUSE_CHANGED : CAUSE_FAILED;
        w->by_node = node;
    } else if (w->state == ROUND_STOPPING && w->cause == CAUSE_FAILED && !w->by_node && !w->gives_up &&
               s->last_rank != w->failed_by && f->time_ms > 0 &&
               (w->failed_at <= 0 || w->failed_at > f->time_ms - (node ? CDI_CAUSE_SUDDEN_MS : 0))) {
        w->recast = true;
        if (node)
            blame_node(w);
    } else {
        return;
    }
    w->failed_at = f->time_ms;
    w->failed_by = s->last_rank;
}

/* The workers of the running round stand still. */
static void hung(struct sim *w, const struct round_event *ev)
{
    if (w->state != ROUND_RUNNING || ev->round != round_number(w->r))
        return;
    w->cause = CAUSE_FAILED;
    w->by_node = false;
    w->gives_up = ev->final;
    w->failed_at = ev->failure->time_ms;
    w->failed_by = (uint32_t)ev->failure->node_rank;
}

void oracle_before(struct sim *w, const struct round_event *ev)
{
    struct sim_slot *s = slot_at(w, ev->peer);

    w->state = round_state(w->r);
    w->recast = false;
    if (ev->kind == ROUND_EV_HANG)
        hung(w, ev);
    if (s == NULL || !s->joined)
        return;
    if (w->state == ROUND_CLOSED) {
        if (ev->kind == ROUND_EV_LOST)
            forget(w, s);
        return;
    }
    switch (ev->kind) {
    case ROUND_EV_FAILED:
        if (in_round(w, ev))
            failed(w, s, ev->failure);
        return;
    case ROUND_EV_DONE:
        if (s->member && w->state == ROUND_RUNNING && in_round(w, ev) && !s->done) {
            s->done = true;
            w->n_done++;
        }
        return;
    case ROUND_EV_STOPPED:
        if (s->member && s->notified && in_round(w, ev)) {
            w->n_done -= s->done;
            s->member = s->notified = s->done = false;
            w->n_waiting++;
            w->any_left |= s->leaving;
        }
        return;
    case ROUND_EV_LEAVE:
        leaves(w, s, ev->final);
        return;
    case ROUND_EV_LOST:
        lost(w, s, ev->fence_ms);
        return;
    case ROUND_EV_AWAY:
    case ROUND_EV_BACK:
        set_away(w, s, ev->kind == ROUND_EV_AWAY);
        return;
    case ROUND_EV_JOIN:
    case ROUND_EV_TICK:
    case ROUND_EV_HANG:
        return;
    }
}

void oracle_running(struct sim *w, uint32_t machine, bool runs)
{
    const struct sim_machine *m = &w->machines[machine];

    SIM_CHECK(w, !runs || m->round == w->last_number, "node %u runs round %lld, but the last one is %lld", machine,
              (long long)m->round, (long long)w->last_number);
    w->n_running = runs ? w->n_running + 1 : w->n_running - 1;
}

/* ------------------------------------------------------------------------------------------- a round's start ---- */

static bool survives(const struct sim *w, const struct sim_slot *s)
{
    return s->last_round >= 0 && s->last_round == w->last_number;
}

static bool wishes(const struct sim_slot *s, uint32_t n)
{
    return s->wanted >= 0 && (uint32_t)s->wanted < n;
}

static void place_members(struct sim *w, const struct round_action *a, size_t n)
{
    struct cdi_msg_assign as;

    if (n > w->place_cap) {
        w->place_cap = n;
        w->place = realloc(w->place, n * sizeof *w->place);
        if (w->place == NULL)
            abort();
    }
    memset(w->place, 0xff, n * sizeof *w->place);
    for (size_t i = 0; i < n; i++) {
        const struct sim_slot *s = slot_at(w, a[i].peer);

        SIM_CHECK(w, s != NULL && s->joined, "peer %u is assigned a rank, but is not present", a[i].peer);
        SIM_CHECK(w, !s->member && !s->leaving, "peer %u is assigned a rank while it is in a round", a[i].peer);
        SIM_CHECK(w, round_assignment(w->r, a[i].peer, &as), "peer %u has no assignment", a[i].peer);
        SIM_CHECK(w, as.node_rank >= 0 && (size_t)as.node_rank < n, "node rank %d of %zu nodes", as.node_rank, n);
        SIM_CHECK(w, w->place[as.node_rank] == NO_PEER, "node rank %d is assigned twice", as.node_rank);
        w->place[as.node_rank] = a[i].peer;
    }
}

/* Restarts before this server was started count once. */
static void take_restarts(struct sim *w, size_t n)
{
    for (size_t rank = 0; rank < n; rank++) {
        struct sim_slot *s = &w->slots[w->place[rank]];

        if (s->restarts > w->restarts)
            w->restarts = s->restarts;
        s->restarts = 0;
    }
}

/* All nodes got the same world size, and contiguous ranks without duplicates. */
static void check_world(struct sim *w, size_t n)
{
    uint32_t base = 0, total = 0;
    struct cdi_msg_assign as;

    for (size_t rank = 0; rank < n; rank++)
        total += w->slots[w->place[rank]].n_procs;
    for (size_t rank = 0; rank < n; rank++) {
        (void)round_assignment(w->r, w->place[rank], &as);
        SIM_CHECK(w, as.rank_base == base, "node %zu begins with rank %u, not %u", rank, as.rank_base, base);
        SIM_CHECK(w, as.n_nodes == n && as.world_size == total, "node %zu got a different world: %u nodes, %u ranks",
                  rank, as.n_nodes, as.world_size);
        SIM_CHECK(w, as.round == round_number(w->r), "node %zu got a different round: %u", rank, as.round);
        SIM_CHECK(w, as.restart_count == w->restarts, "node %zu got restart count %u instead of %u", rank,
                  as.restart_count, w->restarts);
        base += w->slots[w->place[rank]].n_procs;
    }
}

/* A node of the previous round keeps a valid rank that no other node requested, and is not left out. */
static void check_survivors(struct sim *w, size_t n)
{
    bool left_out = false, newcomer = false;

    for (uint32_t p = 0; p < w->n_slots; p++) {
        const struct sim_slot *s = &w->slots[p];
        struct cdi_msg_assign as;
        bool chosen;

        if (!s->used || !s->joined)
            continue;
        chosen = round_assignment(w->r, p, &as) && w->place[as.node_rank] == p;
        newcomer |= chosen && !survives(w, s);
        left_out |= !chosen && survives(w, s) && !s->away;
        if (!chosen || !survives(w, s) || s->last_rank >= n || as.node_rank == (int32_t)s->last_rank)
            continue;
        if (wishes(s, (uint32_t)n) && s->wanted != (int32_t)s->last_rank)
            continue;
        SIM_CHECK(w, w->slots[w->place[s->last_rank]].wanted == (int32_t)s->last_rank,
                  "peer %u had node rank %u, which is valid, but got %d", p, s->last_rank, as.node_rank);
    }
    SIM_CHECK(w, !left_out || !newcomer, "a node of the previous round is left out for a new one");
}

static void check_time(struct sim *w, size_t n)
{
    int64_t waited = w->enough_ms < 0 ? 0 : w->now - w->enough_ms, patience = w->opt.regroup_ms;
    bool deadline = w->now >= w->since_ms + w->pause_ms + w->opt.join_timeout_ms;

    SIM_CHECK(w, w->n_away == 0 || deadline || w->n_waiting - w->n_away >= w->opt.max_nodes,
              "round %u begins without waiting for %u nodes whose connection broke", round_number(w->r), w->n_away);
    if (w->last_number < 0)
        patience = w->opt.last_call_ms;
    else if (n >= w->last_n)
        patience = 0;
    SIM_CHECK(w, n == w->opt.max_nodes || deadline || waited >= patience,
              "round %u begins with %zu nodes after %lld ms instead of %lld ms", round_number(w->r), n,
              (long long)waited, (long long)patience);
}

/*
 * What the pause after the last round has to be, once for each round: after three that failed within 5 s of their start
 * it is 1 s, then twice as long each time, 30 s at most.
 */
static void expect_pause(struct sim *w)
{
    static const int64_t pauses[] = {1000, 2000, 4000, 8000, 16000, 30000};
    int64_t failed_ms = w->state == ROUND_STOPPING ? w->since_ms : w->now; /* the last node may be lost at once */

    if (w->paused_for == w->last_number)
        return;
    w->paused_for = w->last_number;
    w->n_quick = w->cause == CAUSE_FAILED && failed_ms - w->began_ms < 5000 ? w->n_quick + 1 : 0;
    w->pause_ms = w->n_quick <= 3 ? 0 : pauses[w->n_quick - 4 < 5 ? w->n_quick - 4 : 5];
}

static void check_start(struct sim *w, const struct round_action *a, size_t n)
{
    uint32_t number = round_number(w->r);

    SIM_CHECK(w, n >= w->opt.min_nodes && n <= w->opt.max_nodes, "round %u begins with %zu nodes of %u to %u", number,
              n, w->opt.min_nodes, w->opt.max_nodes);
    SIM_CHECK(w, w->n_running == 0, "round %u begins while the workers of %u nodes still run", number, w->n_running);
    SIM_CHECK(w, !w->keys, "round %u begins while the keys of the previous one exist", number);
    SIM_CHECK(w, (int64_t)number == w->last_number + 1, "round %u follows round %lld", number,
              (long long)w->last_number);
    SIM_CHECK(w, w->cause != CAUSE_LEFT && !(w->cause == CAUSE_FAILED && !may_restart(w)),
              "round %u begins although none may follow", number);
    w->restarts += w->cause == CAUSE_FAILED;
    place_members(w, a, n);
    take_restarts(w, n);
    check_world(w, n);
    check_survivors(w, n);
    check_time(w, n);
    for (size_t rank = 0; rank < n; rank++) {
        struct sim_slot *s = &w->slots[w->place[rank]];

        s->member = s->ran = true;
        s->notified = s->done = false;
        s->last_round = number;
        s->last_rank = (uint32_t)rank;
    }
    w->n_waiting -= (uint32_t)n;
    w->last_n = (uint32_t)n;
    expect_pause(w);
    w->last_number = number;
    SIM_CHECK(w, w->now - w->since_ms >= w->pause_ms,
              "round %u begins after %lld ms, and %u in a row had failed at once", number,
              (long long)(w->now - w->since_ms), w->n_quick);
    w->began_ms = w->now;
    w->keys = true;
    w->cause = CAUSE_NONE;
    w->by_node = false;
    w->any_left = false;
    w->n_done = 0;
    w->n_rounds++;
}

/* --------------------------------------------------------------------------------------------------- actions ---- */

static void check_over(struct sim *w, struct sim_slot *s, bool again)
{
    if (w->recast) {
        SIM_CHECK(w, s->member ? s->notified : s->last_round == w->last_number,
                  "a node gets a second ROUND_OVER without the first");
        return;
    }
    SIM_CHECK(w, s->member && w->keys, "a node gets ROUND_OVER of a round that it is not in");
    SIM_CHECK(w, again == s->notified, "a node gets ROUND_OVER twice, or never");
    SIM_CHECK(w, w->cause != CAUSE_NONE, "round %u is over without a reason", round_number(w->r));
    SIM_CHECK(w, again || round_uses_restart(w->r) == (w->cause == CAUSE_FAILED && may_restart(w)),
              "ROUND_OVER announces a wrong restart");
    s->notified = true;
}

static void check_closed(struct sim *w, struct sim_slot *s, bool again)
{
    bool left = false;

    SIM_CHECK(w, s->joined && again == s->closed, "a node gets CLOSED twice, or has not joined");
    s->closed = true;
    switch (round_close_status(w->r)) {
    case CDI_CLOSE_DONE:
        SIM_CHECK(w, w->cause == CAUSE_NONE && w->last_number >= 0, "the job is done, but its round is not");
        left = s->member && !s->done;
        break;
    case CDI_CLOSE_FAILED:
        left = w->cause != CAUSE_FAILED || may_restart(w);
        break;
    case CDI_CLOSE_TIMEOUT:
        left = w->state != ROUND_JOINING || w->now < w->since_ms + w->pause_ms + w->opt.join_timeout_ms;
        break;
    case CDI_CLOSE_LEFT:
        left = w->cause != CAUSE_LEFT && !w->any_left;
        break;
    case CDI_CLOSE_REFUSED:
        left = true;
        break;
    }
    SIM_CHECK(w, again || !left, "the job ends with the wrong status %d", (int)round_close_status(w->r));
    SIM_CHECK(w, round_why(w->r)[0] != '\0', "the job ends without a reason");
}

static void check_action(struct sim *w, const struct round_event *ev, const struct round_action *a)
{
    struct sim_slot *s = a->kind == ROUND_DO_END_KEYS ? NULL : slot_at(w, a->peer);
    bool back = ev->kind == ROUND_EV_BACK;

    if (a->kind == ROUND_DO_END_KEYS) {
        w->keys = false;
        return;
    }
    SIM_CHECK(w, s != NULL, "action %d for an absent peer", (int)a->kind);
    switch (a->kind) {
    case ROUND_DO_WELCOME:
        SIM_CHECK(w, !s->joined, "a node gets WELCOME twice");
        s->joined = true;
        if (w->n_waiting == 0)
            w->notified_ms = w->now;
        w->n_present++;
        w->n_waiting++;
        if (w->state == ROUND_RUNNING && w->last_n < w->opt.max_nodes && w->n_done == 0)
            w->cause = CAUSE_CHANGED;
        return;
    case ROUND_DO_REFUSE:
        SIM_CHECK(w, !s->joined && round_text(w->r)[0] != '\0', "a joined node is rejected, or without a reason");
        return;
    case ROUND_DO_DROP:
        lost(w, s, 0);
        return;
    case ROUND_DO_BYE:
        forget(w, s);
        return;
    case ROUND_DO_RESUME:
        SIM_CHECK(w, s->joined && back, "a node resumes that was not away");
        return;
    case ROUND_DO_WAITING:
        SIM_CHECK(w, s->joined && !s->member, "a node gets WAITING while it is in a round");
        w->notified_ms = w->now;
        return;
    case ROUND_DO_ASSIGN: /* sent again: its ASSIGN was lost */
        SIM_CHECK(w, back && s->member && s->last_round == (int64_t)round_number(w->r), "an unexpected assignment");
        return;
    case ROUND_DO_ROUND_OVER:
        check_over(w, s, back);
        return;
    case ROUND_DO_CLOSED:
        check_closed(w, s, back && ev->peer == a->peer && w->state == ROUND_CLOSED);
        return;
    case ROUND_DO_END_KEYS:
        return;
    }
}

static void look_after(struct sim *w)
{
    enum round_state state = round_state(w->r);

    if (state != w->state || (state == ROUND_JOINING && w->enough_ms >= 0 && w->n_waiting < w->opt.min_nodes))
        w->enough_ms = -1;
    if (state != w->state && state == ROUND_JOINING)
        expect_pause(w);
    if (state != w->state) {
        w->since_ms = w->notified_ms = w->now;
        w->state = state;
    }
    if (state == ROUND_JOINING && w->enough_ms < 0 && w->n_waiting >= w->opt.min_nodes)
        w->enough_ms = w->now;
    if (state != ROUND_JOINING || w->n_away > 0 || w->n_waiting < w->opt.min_nodes)
        w->ready_ms = -1;
    else if (w->ready_ms < 0)
        w->ready_ms = w->now;
    SIM_CHECK(w, round_present(w->r) == w->n_present, "%zu nodes count as present instead of %u", round_present(w->r),
              w->n_present);
    SIM_CHECK(w, state != ROUND_RUNNING || w->cause == CAUSE_NONE, "round %u continues although it must stop",
              round_number(w->r));
    SIM_CHECK(w, state != ROUND_RUNNING || w->last_n >= w->opt.max_nodes || w->n_waiting == 0 || w->n_done > 0,
              "a node waits although there is room for it");
}

/* A node that has returned gets the message again, as it may have missed it. */
static bool is_repeated(struct sim *w, const struct round_event *ev, const struct round_action *a)
{
    const struct sim_slot *s = slot_at(w, a->peer);

    return ev->kind == ROUND_EV_BACK && ev->peer == a->peer && s != NULL && s->member;
}

void oracle_after(struct sim *w, const struct round_event *ev, const struct round_action *a, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t k = i;

        while (k < n && a[k].kind == ROUND_DO_ASSIGN && !is_repeated(w, ev, &a[k]))
            k++;
        if (k > i)
            check_start(w, a + i, k - i);
        else
            check_action(w, ev, &a[k++]);
        i = k;
    }
    look_after(w);
    if (w->state != ROUND_CLOSED || ev->kind == ROUND_EV_TICK)
        return;
    for (size_t i = 0; i < n; i++)
        if (a[i].kind == ROUND_DO_CLOSED) {
            for (uint32_t p = 0; p < w->n_slots; p++)
                SIM_CHECK(w, !w->slots[p].used || !w->slots[p].joined || w->slots[p].closed,
                          "peer %u did not get CLOSED", p);
            return;
        }
}

/* No node waits for ever. */
void oracle_tick(struct sim *w)
{
    int64_t since = w->now - w->since_ms, patience = w->last_number < 0 ? w->opt.last_call_ms : w->opt.regroup_ms;

    switch (w->state) {
    case ROUND_JOINING:
        SIM_CHECK(w, since <= w->pause_ms + w->opt.join_timeout_ms + SLACK_MS,
                  "the round has waited for nodes for %lld ms", (long long)since);
        SIM_CHECK(w, w->ready_ms < 0 || w->now - w->ready_ms <= patience || since <= w->pause_ms + patience,
                  "enough nodes have been present for %lld ms, but no round begins", (long long)(w->now - w->ready_ms));
        SIM_CHECK(w, w->n_waiting == 0 || w->now - w->notified_ms <= 10000 + SLACK_MS,
                  "waiting nodes got no message for %lld ms", (long long)(w->now - w->notified_ms));
        return;
    case ROUND_STOPPING:
        SIM_CHECK(w, since <= 3 * SIM_LEASE_MS + SIM_STOP_MS + 30000 + SLACK_MS,
                  "a round has been stopping for %lld ms", (long long)since);
        return;
    case ROUND_RUNNING:
    case ROUND_CLOSED:
        return;
    }
}
