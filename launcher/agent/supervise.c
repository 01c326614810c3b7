/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/supervise.h"

#include "common/clock.h"
#include "common/time_limits.h"
#include "protocol/cause.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static void supervise_act(struct supervise_actions *out, enum supervise_action_kind what, int signal)
{
    if (out->n < SUPERVISE_MAX_ACTIONS)
        out->v[out->n++] = (struct supervise_action){.what = what, .signal = signal};
}

void supervise_init(struct supervise *s, uint32_t n_local, int64_t grace_ms)
{
    *s = (struct supervise){
        .state = SUPERVISE_JOINING,
        .n_local = n_local,
        .grace_ms = grace_ms,
        .kill_at_ms = CDI_NEVER_MS,
        .log_wait_at_ms = CDI_NEVER_MS,
        .log_cause_at_ms = CDI_NEVER_MS,
        .last_signal_ms = INT64_MIN / 2,
        .wait_until_ms = CDI_NEVER_MS,
    };
}

void supervise_set_host(struct supervise *s, bool hosts)
{
    s->hosts = hosts;
}

void supervise_set_rejoins(struct supervise *s)
{
    s->rejoins = true;
}

void supervise_set_stop(struct supervise *s, uint64_t signals, int exit_code)
{
    s->stop_signals = signals;
    s->stop_exit_code = exit_code;
}

void supervise_keep_others(struct supervise *s)
{
    s->keeps_others = true;
}

void supervise_reset_round(struct supervise *s)
{
    s->sent_failed = s->sent_done = s->sent_stopped = false;
    if (s->state == SUPERVISE_WAITING && !s->ending)
        s->state = SUPERVISE_JOINING;
}

/* Sends a message about this round, and remembers it in case it does not arrive. */
static void supervise_send(struct supervise *s, struct supervise_actions *out, enum supervise_action_kind what)
{
    s->sent_failed |= what == SUPERVISE_DO_SEND_FAILED;
    s->sent_done |= what == SUPERVISE_DO_SEND_DONE;
    s->sent_stopped |= what == SUPERVISE_DO_SEND_STOPPED;
    supervise_act(out, what, 0);
}

static bool workers_live(const struct supervise *s)
{
    return s->state == SUPERVISE_RUNNING || s->state == SUPERVISE_STOPPING;
}

static void supervise_finish(struct supervise *s, struct supervise_actions *out)
{
    if (s->state == SUPERVISE_OVER)
        return;
    s->state = SUPERVISE_OVER;
    s->kill_at_ms = CDI_NEVER_MS;
    s->log_wait_at_ms = CDI_NEVER_MS;
    s->log_cause_at_ms = CDI_NEVER_MS;
    supervise_act(out, SUPERVISE_DO_FINISH, 0);
}

static void sweep(struct supervise *s, struct supervise_actions *out)
{
    s->state = SUPERVISE_SWEEPING;
    s->kill_at_ms = CDI_NEVER_MS;
    s->log_wait_at_ms = CDI_NEVER_MS;
    supervise_act(out, SUPERVISE_DO_SWEEP, 0);
}

/* Does this signal only request a stop? */
static bool is_request(const struct supervise *s, int signal)
{
    return signal > 0 && signal <= 64 && (s->stop_signals >> (signal - 1) & 1) != 0;
}

/*
 * Signals the workers to end; the earliest deadline applies. As long as no failure is known, their collectives work,
 * and those that ask (cddp_should_stop) get no signal: they agree to stop. Each signal is sent once: the order may
 * arrive by the rendezvous, by a signal to this cddprun, or both, and a worker that is saving must not take the second
 * one for a user's second Ctrl-C.
 */
static void supervise_stop_workers(struct supervise *s, int signal, int64_t now_ms, struct supervise_actions *out)
{
    int64_t kill_at = now_ms + s->grace_ms;

    if (s->state != SUPERVISE_STOPPING) {
        s->stop_ms = now_ms;
        if (s->grace_ms > SUPERVISE_PATIENCE_MS + SUPERVISE_SOON_MS)
            s->log_wait_at_ms = now_ms + SUPERVISE_PATIENCE_MS;
    }
    s->state = SUPERVISE_STOPPING;
    if (s->stop_signal != signal)
        supervise_act(out, s->first.kind == CDI_END_NONE && !s->link_lost ? SUPERVISE_DO_ASK : SUPERVISE_DO_KILL,
                      signal);
    s->stop_signal = signal;
    if (!s->killed && kill_at < s->kill_at_ms)
        s->kill_at_ms = kill_at;
}

/*
 * A batch system signals workers and cddprun alike, on all nodes. A worker that died of it may be reaped before the
 * signal is received. It has not failed: the signal has ended the job.
 */
static bool is_of_order(const struct cdi_failure *f, int signal)
{
    struct cdi_cause c = cdi_cause_of(f, 0);

    c.ordered = signal;
    return cdi_cause_class_of(&c) == CDI_CAUSE_ORDERED;
}

/* Did a worker die of a signal that may be about to reach this cddprun, too? */
static bool order_may_follow(const struct supervise *s, int64_t now_ms)
{
    return s->signal == 0 && is_of_order(&s->first, SIGTERM) && now_ms < s->first_ms + SUPERVISE_ORDER_WAIT_MS;
}

/*
 * Finishes an agent without workers, with two exceptions. A host waits until the other nodes have been informed and
 * have stopped. And a worker's death by SIGTERM waits a little for a signal to cddprun, so that the report does not
 * blame the worker.
 */
static void finish_or_wait(struct supervise *s, int64_t now_ms, struct supervise_actions *out)
{
    if (order_may_follow(s, now_ms)) {
        s->state = SUPERVISE_WAITING;
        s->wait_until_ms = s->first_ms + SUPERVISE_ORDER_WAIT_MS;
        return;
    }
    if (!s->hosts || s->signal == 0 || s->closed || s->link_lost) {
        supervise_finish(s, out);
        return;
    }
    s->state = SUPERVISE_WAITING;
    s->wait_until_ms = now_ms + s->grace_ms + 1000 * CDI_LIMIT_OTHER_NODES_S;
}

static void no_more_rounds(struct supervise *s)
{
    s->ending = true;
    s->log_cause_at_ms = CDI_NEVER_MS; /* the report has it */
}

/* Ends this agent: immediately without workers, otherwise after the sweep. */
static void supervise_end_agent(struct supervise *s, int signal, int64_t now_ms, struct supervise_actions *out)
{
    no_more_rounds(s);
    if (workers_live(s))
        supervise_stop_workers(s, signal, now_ms, out);
    else if (s->state != SUPERVISE_SWEEPING)
        finish_or_wait(s, now_ms, out);
}

static void supervise_kill_workers(struct supervise *s, int64_t now_ms, struct supervise_actions *out)
{
    s->killed = true;
    s->log_wait_at_ms = CDI_NEVER_MS;
    s->kill_at_ms = now_ms + 1000 * CDI_LIMIT_KILLED_S;
    supervise_act(out, SUPERVISE_DO_KILL, SIGKILL);
}

/* Sets the failure that ended the round, as known now. */
static void set_first(struct supervise *s, const struct cdi_failure *f, int64_t now_ms)
{
    if (is_of_order(f, s->signal))
        return;
    if (s->first.kind == CDI_END_NONE)
        s->first_ms = now_ms;
    s->first = *f;
}

/* ------------------------------------------------------------------------------------------- cause of a new round ----
 */

static void supervise_log_cause(struct supervise *s, struct supervise_actions *out)
{
    s->log_cause_at_ms = CDI_NEVER_MS;
    s->n_causes_logged++;
    supervise_act(out, SUPERVISE_DO_LOG_CAUSE, 0);
}

static bool same_cause(const struct cdi_msg_round_over *a, const struct cdi_msg_round_over *b)
{
    return a->restart == b->restart && a->counts == b->counts && a->failure.kind == b->failure.kind &&
           a->failure.rank == b->failure.rank && a->failure.node_rank == b->failure.node_rank &&
           a->failure.time_ms == b->failure.time_ms;
}

/* The first message about the end of a round may be about a consequence; its cause may follow. */
static void note_cause(struct supervise *s, const struct cdi_msg_round_over *over, int64_t now_ms,
                       struct supervise_actions *out)
{
    bool first = !s->round_over,
         may_change = over->counts && over->failure.kind != CDI_END_NODE && s->assign.n_nodes > 1;

    if (!first && same_cause(&s->over, over))
        return;
    s->over = *over;
    if (first) {
        s->restart = s->assign.restart_count + 1;
        s->n_causes_logged = 0;
    }
    if (!over->restart || s->ending)
        s->log_cause_at_ms = CDI_NEVER_MS;
    else if (first && may_change)
        s->log_cause_at_ms = now_ms + SUPERVISE_CAUSE_WAIT_MS;
    else if (!may_change || s->log_cause_at_ms == CDI_NEVER_MS)
        supervise_log_cause(s, out);
}

/* ---------------------------------------------------------------------------------------------------- events ---- */

static void supervise_on_assign(struct supervise *s, const struct cdi_msg_assign *a, int64_t now_ms,
                                struct supervise_actions *out)
{
    if (s->ending)
        return;
    if (s->state != SUPERVISE_JOINING && s->state != SUPERVISE_WAITING) {
        (void)snprintf(s->text, sizeof s->text, "the rendezvous began round %u before the end of round %u", a->round,
                       s->assign.round);
        supervise_end_agent(s, SIGTERM, now_ms, out);
        return;
    }
    if (s->log_cause_at_ms != CDI_NEVER_MS)
        supervise_log_cause(s, out);
    s->state = SUPERVISE_RUNNING;
    s->assign = *a;
    s->n_alive = s->n_local;
    s->stop_signal = 0;
    s->killed = false;
    s->kill_at_ms = CDI_NEVER_MS;
    s->round_over = false;
    s->cause_still_runs = s->sent_failed = s->sent_done = s->sent_stopped = false;
    s->n_succeeded = s->n_agreed = 0;
    s->n_ended_after = s->n_overdue = s->n_hurried = 0;
    s->local_first = s->stop_failure = (struct cdi_failure){.kind = CDI_END_NONE};
    s->first = s->local_first;
    supervise_act(out, SUPERVISE_DO_SPAWN, 0);
}

static void tell(const struct supervise *s, struct supervise_actions *out)
{
    supervise_act(out, s->first.kind != CDI_END_NONE ? SUPERVISE_DO_PUBLISH_FAILURE : SUPERVISE_DO_PUBLISH_END, 0);
}

static void supervise_on_round_over(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                                    struct supervise_actions *out)
{
    bool known,
        unseen = (s->state == SUPERVISE_WAITING && ev->u.over.round > s->assign.round) || s->state == SUPERVISE_JOINING;

    if (unseen) { /* its ASSIGN was lost with a connection, and now it is over */
        s->state = SUPERVISE_WAITING;
        s->assign.round = ev->u.over.round;
        s->local_first = (struct cdi_failure){.kind = CDI_END_NONE};
        s->round_over = s->sent_failed = s->sent_done = s->sent_stopped = false;
    }
    if (ev->u.over.round != s->assign.round)
        return;
    note_cause(s, &ev->u.over, now_ms, out);
    known = s->first.kind != CDI_END_NONE;
    if (ev->u.over.failure.kind != CDI_END_NONE)
        set_first(s, &ev->u.over.failure, now_ms);
    if (s->round_over)
        return;
    s->round_over = true;
    if (s->state == SUPERVISE_RUNNING) {
        /* Without a failure all ranks live, and may save together by collectives until their grace period ends. */
        if (!known && s->first.kind != CDI_END_NONE)
            supervise_act(out, SUPERVISE_DO_PUBLISH_FAILURE, 0);
        /* A rank that hangs does not end by itself, and those that wait for it do not, either. */
        if (!s->keeps_others || s->first.kind == CDI_END_NONE || ev->u.over.failure.kind == CDI_END_HANG)
            supervise_stop_workers(s, SIGTERM, now_ms, out);
    } else if (s->state == SUPERVISE_WAITING && !s->sent_stopped) {
        /* The workers here had succeeded, which was reported; now they count as stopped. */
        supervise_send(s, out, SUPERVISE_DO_SEND_STOPPED);
    }
}

static void supervise_on_closed(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                                struct supervise_actions *out)
{
    if (s->closed)
        return;
    s->closed = true;
    s->close_status = ev->u.closed.status;
    if (ev->u.closed.text != NULL && s->text[0] == '\0')
        (void)snprintf(s->text, sizeof s->text, "%s", ev->u.closed.text);
    /* A round that did not start has no failure: the text describes the round before. */
    if (s->close_status == CDI_CLOSE_TIMEOUT ||
        (ev->u.closed.failure.kind != CDI_END_NONE && s->close_status != CDI_CLOSE_DONE))
        set_first(s, &ev->u.closed.failure, now_ms);
    if (s->close_status == CDI_CLOSE_DONE) /* an earlier round's, if this node was not in the last one */
        s->first = s->local_first = (struct cdi_failure){.kind = CDI_END_NONE};
    if (s->state == SUPERVISE_RUNNING)
        tell(s, out);
    if (s->close_status == CDI_CLOSE_REFUSED && workers_live(s) && !s->killed) {
        /* This node joined again too late: it counts as lost, and another round may be about to run. */
        no_more_rounds(s);
        s->state = SUPERVISE_STOPPING;
        supervise_kill_workers(s, now_ms, out);
        return;
    }
    supervise_end_agent(s, SIGTERM, now_ms, out);
}

/*
 * If a host dies, the rendezvous and its ranks are lost, and the workers of the other nodes fail as a consequence. A
 * killed worker, or one that could not be started, is not a consequence, but does not explain the end of the job
 * either.
 */
static void note_unreported(struct supervise *s)
{
    s->unreported = s->first.kind != CDI_END_NONE && !s->round_over && s->assign.n_nodes > 1;
}

static void on_link_lost(struct supervise *s, const char *text, int64_t now_ms, struct supervise_actions *out)
{
    if (s->closed || s->state == SUPERVISE_OVER)
        return;
    s->link_lost = true;
    note_unreported(s);
    if (s->text[0] == '\0')
        (void)snprintf(s->text, sizeof s->text, "%s", text);
    if (s->state == SUPERVISE_RUNNING)
        supervise_act(out, SUPERVISE_DO_PUBLISH_END, 0);
    supervise_end_agent(s, SIGTERM, now_ms, out);
}

/*
 * Reports why the round has failed here: peers notice that these workers die, and must not be blamed for it. The
 * message is sent while the connection may still work, and again after joining again.
 */
static void note_fence(struct supervise *s, const struct supervise_event *ev, struct supervise_actions *out)
{
    if (s->local_first.kind == CDI_END_NONE) {
        s->local_first = (struct cdi_failure){.kind = CDI_END_NODE,
                                              .rank = -1,
                                              .local_rank = -1,
                                              .node_rank = s->assign.node_rank,
                                              .time_ms = ev->wall_ms};
        (void)snprintf(s->local_first.text, sizeof s->local_first.text, "%s", ev->u.text);
    }
    supervise_send(s, out, SUPERVISE_DO_SEND_FAILED);
}

/* No grace period: when the rendezvous counts this node as lost, no worker here may run. */
static void kill_fenced(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                        struct supervise_actions *out)
{
    note_fence(s, ev, out);
    s->state = SUPERVISE_STOPPING;
    supervise_kill_workers(s, now_ms, out);
}

static void fence_and_return(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                             struct supervise_actions *out)
{
    s->returning = true;
    if (workers_live(s)) {
        kill_fenced(s, ev, now_ms, out);
    } else if (s->state != SUPERVISE_SWEEPING) {
        s->returning = false;
        supervise_act(out, SUPERVISE_DO_REJOIN, 0);
    }
}

static void supervise_on_fenced(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                                struct supervise_actions *out)
{
    if (s->closed || s->state == SUPERVISE_OVER)
        return;
    if (supervise_returns(s)) {
        fence_and_return(s, ev, now_ms, out);
        return;
    }
    s->link_lost = true;
    note_unreported(s);
    no_more_rounds(s);
    if (s->text[0] == '\0')
        supervise_fence_text(s, ev->u.text, s->text, sizeof s->text);
    if (workers_live(s))
        kill_fenced(s, ev, now_ms, out);
    else if (s->state != SUPERVISE_SWEEPING)
        supervise_finish(s, out);
}

/* Repeats the messages about this round, which may have been lost; duplicates are harmless. */
static void on_resumed(const struct supervise *s, struct supervise_actions *out)
{
    if (s->sent_failed)
        supervise_act(out, SUPERVISE_DO_SEND_FAILED, 0);
    if (s->sent_done)
        supervise_act(out, SUPERVISE_DO_SEND_DONE, 0);
    if (s->sent_stopped)
        supervise_act(out, SUPERVISE_DO_SEND_STOPPED, 0);
    if (s->signal != 0 && !s->closed)
        supervise_act(out, SUPERVISE_DO_SEND_LEAVE, 0);
}

static void on_first_failure(struct supervise *s, const struct cdi_failure *end, int64_t now_ms,
                             struct supervise_actions *out)
{
    s->local_first = *end;
    set_first(s, end, now_ms);
    supervise_act(out, SUPERVISE_DO_PUBLISH_FAILURE, 0);
    supervise_send(s, out, SUPERVISE_DO_SEND_FAILED);
    if (s->n_alive > 0 && !s->keeps_others)
        supervise_stop_workers(s, SIGTERM, now_ms, out);
}

static void on_cause(struct supervise *s, const struct cdi_failure *end, int64_t now_ms, struct supervise_actions *out)
{
    bool left = end->kind == CDI_END_EXIT && end->code == 0;
    bool none_lives = (s->state == SUPERVISE_SWEEPING || s->state == SUPERVISE_WAITING) && !s->round_over && !s->ending;

    if ((s->state != SUPERVISE_RUNNING && !none_lives) || s->first.kind != CDI_END_NONE ||
        (left ? s->n_succeeded : s->n_alive) == 0)
        return;
    if (left)
        s->n_succeeded--;
    else
        s->cause_still_runs = true;
    if (!none_lives) {
        on_first_failure(s, end, now_ms, out);
        return;
    }
    /* All workers here had succeeded; another node's rank misses this one. */
    s->local_first = *end;
    set_first(s, end, now_ms);
    supervise_send(s, out, SUPERVISE_DO_SEND_FAILED);
}

/* A worker may report an orderly stop by the status that cddprun will have. */
static bool is_success(const struct supervise *s, const struct cdi_failure *end, bool agreed)
{
    return end->kind == CDI_END_EXIT && (end->code == 0 || (agreed && end->code == s->stop_exit_code));
}

/*
 * After a signal to this cddprun, or to that of another node, a failure decides nothing. But a user who waits for a
 * checkpoint must learn of it.
 */
static void note_stop_failure(struct supervise *s, const struct cdi_failure *end)
{
    bool ordered = s->signal != 0 || (s->round_over && s->over.failure.kind == CDI_END_NONE);

    if (ordered && !s->killed && s->first.kind == CDI_END_NONE && s->stop_failure.kind == CDI_END_NONE &&
        !is_of_order(end, s->signal) && !is_of_order(end, s->stop_signal))
        s->stop_failure = *end;
}

static void on_worker_exit(struct supervise *s, const struct cdi_failure *end, bool agreed, int64_t now_ms,
                           struct supervise_actions *out)
{
    if (!workers_live(s) || s->n_alive == 0)
        return;
    s->n_alive--;
    if (s->cause_still_runs && end->rank == s->local_first.rank) {
        s->cause_still_runs = false;
    } else if (is_success(s, end, agreed)) {
        s->n_succeeded++;
        s->n_agreed += agreed;
    } else if (s->state == SUPERVISE_RUNNING && s->first.kind == CDI_END_NONE) {
        on_first_failure(s, end, now_ms, out);
    } else {
        s->n_ended_after++;
        note_stop_failure(s, end);
    }
    if (s->n_alive == 0)
        sweep(s, out);
}

static void on_swept(struct supervise *s, int64_t now_ms, struct supervise_actions *out)
{
    if (s->state != SUPERVISE_SWEEPING)
        return;
    s->state = SUPERVISE_WAITING;
    if (s->ending)
        finish_or_wait(s, now_ms, out);
    if (s->state == SUPERVISE_OVER)
        return;
    if (s->ending || s->local_first.kind != CDI_END_NONE || s->round_over)
        supervise_send(s, out, SUPERVISE_DO_SEND_STOPPED);
    else
        supervise_send(s, out, SUPERVISE_DO_SEND_DONE);
    if (s->returning)
        supervise_act(out, SUPERVISE_DO_REJOIN, 0);
    s->returning = false;
}

/* Has the last round's failure been answered by a new round, which has not begun? */
static bool is_between_rounds(const struct supervise *s)
{
    return s->state == SUPERVISE_WAITING && s->sent_stopped && s->round_over && s->over.restart;
}

static void supervise_on_signal(struct supervise *s, int signal, int64_t now_ms, struct supervise_actions *out)
{
    bool same = signal == s->last_signal && now_ms - s->last_signal_ms < SUPERVISE_SAME_SIGNAL_MS;

    if (same || s->state == SUPERVISE_OVER)
        return;
    s->last_signal = signal;
    s->last_signal_ms = now_ms;
    if (s->signal != 0 && is_request(s, signal))
        return;
    if (s->signal != 0 && is_request(s, s->signal)) {
        s->signal = signal; /* the first one that is more than a request; the workers know already */
        return;
    }
    if (s->signal != 0) {
        if (workers_live(s) && !s->killed && (signal == SIGINT || signal == SIGTERM)) {
            s->n_hurried = s->n_alive;
            supervise_kill_workers(s, now_ms, out);
        }
        if (s->state == SUPERVISE_WAITING)
            supervise_finish(s, out); /* a second signal: do not wait for the other nodes */
        return;
    }
    s->signal = s->first_signal = signal;
    if ((is_of_order(&s->first, signal) && now_ms - s->first_ms <= SUPERVISE_ORDER_MS) || is_between_rounds(s))
        s->first = (struct cdi_failure){.kind = CDI_END_NONE};
    if (!s->closed)
        supervise_act(out, SUPERVISE_DO_SEND_LEAVE, 0);
    supervise_end_agent(s, is_request(s, signal) ? SIGTERM : signal, now_ms, out);
}

static void supervise_check_wait(struct supervise *s, int64_t now_ms, struct supervise_actions *out)
{
    if (now_ms < s->log_wait_at_ms)
        return;
    s->log_wait_at_ms = CDI_NEVER_MS;
    if (s->kill_at_ms - now_ms > SUPERVISE_SOON_MS)
        supervise_act(out, SUPERVISE_DO_LOG_WAIT, 0);
}

static void supervise_on_tick(struct supervise *s, int64_t now_ms, struct supervise_actions *out)
{
    if (now_ms >= s->log_cause_at_ms)
        supervise_log_cause(s, out);
    if (s->state == SUPERVISE_WAITING && now_ms >= s->wait_until_ms)
        supervise_finish(s, out);
    if (s->state == SUPERVISE_STOPPING && now_ms < s->kill_at_ms)
        supervise_check_wait(s, now_ms, out);
    if (s->state != SUPERVISE_STOPPING || now_ms < s->kill_at_ms)
        return;
    if (!s->killed && now_ms - s->kill_at_ms > SUPERVISE_STOPPED_MS) {
        s->kill_at_ms = now_ms + s->grace_ms;
        s->stop_ms = now_ms;
        if (s->log_wait_at_ms != CDI_NEVER_MS)
            s->log_wait_at_ms = now_ms + SUPERVISE_PATIENCE_MS;
        return;
    }
    if (!s->killed) {
        s->n_overdue = s->n_alive;
        supervise_kill_workers(s, now_ms, out);
        return;
    }
    s->given_up = true;
    (void)snprintf(s->text, sizeof s->text,
                   "%u of this node's workers did not end within %d s of SIGKILL: the kernel holds them, usually in a "
                   "file system or driver that does not respond, their cgroup is frozen, or a debugger traces them",
                   s->n_alive, CDI_LIMIT_KILLED_S);
    supervise_finish(s, out);
}

void supervise_handle(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                      struct supervise_actions *out)
{
    out->n = 0;
    switch (ev->kind) {
    case SUPERVISE_ASSIGN:
        supervise_on_assign(s, &ev->u.assign, now_ms, out);
        return;
    case SUPERVISE_ROUND_OVER:
        supervise_on_round_over(s, ev, now_ms, out);
        return;
    case SUPERVISE_CLOSED:
        supervise_on_closed(s, ev, now_ms, out);
        return;
    case SUPERVISE_LINK_LOST:
        on_link_lost(s, ev->u.text, now_ms, out);
        return;
    case SUPERVISE_FENCED:
        supervise_on_fenced(s, ev, now_ms, out);
        return;
    case SUPERVISE_RESUMED:
        on_resumed(s, out);
        return;
    case SUPERVISE_EXIT:
        on_worker_exit(s, &ev->u.end, ev->agreed, now_ms, out);
        return;
    case SUPERVISE_CAUSE:
        on_cause(s, &ev->u.end, now_ms, out);
        return;
    case SUPERVISE_SWEPT:
        on_swept(s, now_ms, out);
        return;
    case SUPERVISE_SIGNAL:
        supervise_on_signal(s, ev->u.signal, now_ms, out);
        return;
    case SUPERVISE_TICK:
        supervise_on_tick(s, now_ms, out);
        return;
    }
}

/* --------------------------------------------------------------------------------------------------- results ---- */

int64_t supervise_deadline_ms(const struct supervise *s)
{
    int64_t at = s->state == SUPERVISE_WAITING    ? s->wait_until_ms
                 : s->state == SUPERVISE_STOPPING ? s->kill_at_ms
                                                  : CDI_NEVER_MS;

    if (s->state == SUPERVISE_STOPPING && s->log_wait_at_ms < at)
        at = s->log_wait_at_ms;
    return s->log_cause_at_ms < at ? s->log_cause_at_ms : at;
}

bool supervise_returns(const struct supervise *s)
{
    return (s->rejoins || s->state == SUPERVISE_JOINING) && !s->ending;
}

void supervise_fence_text(const struct supervise *s, const char *why, char *text, size_t cap)
{
    (void)snprintf(text, cap, "%s%s", why,
                   workers_live(s) ? "; killing this node's workers, since the rendezvous may count them as lost" : "");
}

int supervise_failure_status(const struct cdi_failure *f)
{
    switch (f->kind) {
    case CDI_END_NONE:
    case CDI_END_NODE:
    case CDI_END_HANG:
        return 1;
    case CDI_END_EXIT:
        return f->code > 0 && f->code < 256 ? f->code : 1;
    case CDI_END_SIGNAL:
        return f->code > 0 && f->code < 128 ? 128 + f->code : 1;
    case CDI_END_SPAWN:
        return f->code == ENOENT ? 127 : 126;
    }
    return 1;
}

/* Is `first` typical of a worker whose peer has died, with no other cause known? */
static bool is_consequence(const struct supervise *s)
{
    return s->unreported && cdi_cause_may_follow(s->first.kind, s->first.code);
}

bool supervise_has_stopped(const struct supervise *s)
{
    return s->n_local > 0 && s->n_agreed == s->n_local && s->first.kind == CDI_END_NONE && !s->killed && !s->given_up;
}

int supervise_exit_status(const struct supervise *s)
{
    if (is_consequence(s))
        return 1;
    if (s->first.kind != CDI_END_NONE)
        return supervise_failure_status(&s->first);
    if (supervise_has_stopped(s))
        return s->stop_exit_code;
    if (s->signal != 0)
        return 128 + s->signal;
    return s->closed && s->close_status == CDI_CLOSE_DONE && !s->given_up ? 0 : 1;
}
