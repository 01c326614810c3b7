/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/supervise.h"

#include "common/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static void act(struct supervise_actions *out, enum supervise_do what, int signal)
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
        .say_wait_at_ms = CDI_NEVER_MS,
        .say_why_at_ms = CDI_NEVER_MS,
        .last_signal_ms = INT64_MIN / 2,
        .stay_until_ms = CDI_NEVER_MS,
    };
}

void supervise_set_host(struct supervise *s)
{
    s->hosts = true;
}

void supervise_set_rejoins(struct supervise *s)
{
    s->rejoins = true;
}

void supervise_leave_alone(struct supervise *s)
{
    s->leaves_alone = true;
}

void supervise_forget_round(struct supervise *s)
{
    s->said_failed = s->said_done = s->said_stopped = false;
    if (s->state == SUPERVISE_WAITING && !s->ending)
        s->state = SUPERVISE_JOINING;
}

/* A word about this round, which is remembered in case it does not arrive. */
static void report(struct supervise *s, struct supervise_actions *out, enum supervise_do what)
{
    s->said_failed |= what == SUPERVISE_DO_SEND_FAILED;
    s->said_done |= what == SUPERVISE_DO_SEND_DONE;
    s->said_stopped |= what == SUPERVISE_DO_SEND_STOPPED;
    act(out, what, 0);
}

static bool workers_live(const struct supervise *s)
{
    return s->state == SUPERVISE_RUNNING || s->state == SUPERVISE_STOPPING;
}

static void finish(struct supervise *s, struct supervise_actions *out)
{
    if (s->state == SUPERVISE_OVER)
        return;
    s->state = SUPERVISE_OVER;
    s->kill_at_ms = CDI_NEVER_MS;
    s->say_wait_at_ms = CDI_NEVER_MS;
    s->say_why_at_ms = CDI_NEVER_MS;
    act(out, SUPERVISE_DO_FINISH, 0);
}

static void sweep(struct supervise *s, struct supervise_actions *out)
{
    s->state = SUPERVISE_SWEEPING;
    s->kill_at_ms = CDI_NEVER_MS;
    s->say_wait_at_ms = CDI_NEVER_MS;
    act(out, SUPERVISE_DO_SWEEP, 0);
}

/*
 * Ask the workers to end; a later, earlier deadline wins. Once for each signal: an order may come by the rendezvous, by
 * a signal to this cddprun, or both, and a worker that saves must not take the second for the user's impatience.
 */
static void stop_workers(struct supervise *s, int signal, int64_t now_ms, struct supervise_actions *out)
{
    int64_t kill_at = now_ms + s->grace_ms;

    if (s->state != SUPERVISE_STOPPING) {
        s->asked_ms = now_ms;
        if (s->grace_ms > SUPERVISE_PATIENCE_MS + SUPERVISE_SOON_MS)
            s->say_wait_at_ms = now_ms + SUPERVISE_PATIENCE_MS;
    }
    s->state = SUPERVISE_STOPPING;
    if (s->asked != signal)
        act(out, SUPERVISE_DO_KILL, signal);
    s->asked = signal;
    if (!s->killed && kill_at < s->kill_at_ms)
        s->kill_at_ms = kill_at;
}

/*
 * A batch system signals workers and cddprun alike, on all nodes. A worker that died of that may be seen before the
 * signal is, and has not failed: the job was ended by the signal.
 */
static bool is_of_order(const struct cdi_failure *f, int signal)
{
    return signal != 0 &&
           ((f->kind == CDI_END_SIGNAL && f->code == signal) || (f->kind == CDI_END_EXIT && f->code == 128 + signal));
}

/* Did a worker die of a signal that may be on its way to this cddprun too? */
static bool order_may_come(const struct supervise *s, int64_t now_ms)
{
    return s->signal == 0 && is_of_order(&s->first, SIGTERM) && now_ms < s->first_ms + SUPERVISE_ORDER_COMES_MS;
}

/*
 * Without workers: the end, but for a host, whose rendezvous has yet to tell the other nodes and to see them stop, and
 * for a moment where the report would blame a worker for a signal to all.
 */
static void finish_or_stay(struct supervise *s, int64_t now_ms, struct supervise_actions *out)
{
    if (order_may_come(s, now_ms)) {
        s->state = SUPERVISE_WAITING;
        s->stay_until_ms = s->first_ms + SUPERVISE_ORDER_COMES_MS;
        return;
    }
    if (!s->hosts || s->signal == 0 || s->closed || s->link_lost) {
        finish(s, out);
        return;
    }
    s->state = SUPERVISE_WAITING;
    s->stay_until_ms = now_ms + s->grace_ms + SUPERVISE_STAY_MORE_MS;
}

static void no_more_rounds(struct supervise *s)
{
    s->ending = true;
    s->say_why_at_ms = CDI_NEVER_MS; /* the report tells it */
}

/* This agent ends: at once if it has no workers, else when the last of them is swept away. */
static void end_agent(struct supervise *s, int signal, int64_t now_ms, struct supervise_actions *out)
{
    no_more_rounds(s);
    if (workers_live(s))
        stop_workers(s, signal, now_ms, out);
    else if (s->state != SUPERVISE_SWEEPING)
        finish_or_stay(s, now_ms, out);
}

static void kill_workers(struct supervise *s, int64_t now_ms, struct supervise_actions *out)
{
    s->killed = true;
    s->say_wait_at_ms = CDI_NEVER_MS;
    s->kill_at_ms = now_ms + SUPERVISE_UNKILLABLE_MS;
    act(out, SUPERVISE_DO_KILL, SIGKILL);
}

/* What ended the round, as it is known now. */
static void set_first(struct supervise *s, const struct cdi_failure *f, int64_t now_ms)
{
    if (is_of_order(f, s->signal))
        return;
    if (s->first.kind == CDI_END_NONE)
        s->first_ms = now_ms;
    s->first = *f;
}

/* ------------------------------------------------------------------------------------------- why again a round ---- */

static void say_why(struct supervise *s, struct supervise_actions *out)
{
    s->say_why_at_ms = CDI_NEVER_MS;
    s->said_why++;
    act(out, SUPERVISE_DO_SAY_WHY, 0);
}

static bool same_cause(const struct cdi_msg_round_over *a, const struct cdi_msg_round_over *b)
{
    return a->restart == b->restart && a->counts == b->counts && a->failure.kind == b->failure.kind &&
           a->failure.rank == b->failure.rank && a->failure.node_rank == b->failure.node_rank &&
           a->failure.time_ms == b->failure.time_ms;
}

/* The first word about the end of a round may be of an echo, and that of its cause be on its way. */
static void note_why(struct supervise *s, const struct cdi_msg_round_over *over, int64_t now_ms,
                     struct supervise_actions *out)
{
    bool first = !s->round_over, crossing = over->counts && over->failure.kind != CDI_END_NODE && s->assign.n_nodes > 1;

    if (!first && same_cause(&s->over, over))
        return;
    s->over = *over;
    if (first) {
        s->restart = s->assign.restart_count + 1;
        s->said_why = 0;
    }
    if (!over->restart || s->ending)
        s->say_why_at_ms = CDI_NEVER_MS;
    else if (first && crossing)
        s->say_why_at_ms = now_ms + SUPERVISE_CROSSING_MS;
    else if (!crossing || s->say_why_at_ms == CDI_NEVER_MS)
        say_why(s, out);
}

/* ---------------------------------------------------------------------------------------------------- events ---- */

static void on_assign(struct supervise *s, const struct cdi_msg_assign *a, int64_t now_ms,
                      struct supervise_actions *out)
{
    if (s->ending)
        return;
    if (s->state != SUPERVISE_JOINING && s->state != SUPERVISE_WAITING) {
        (void)snprintf(s->text, sizeof s->text, "the rendezvous began round %u while round %u was not over", a->round,
                       s->assign.round);
        end_agent(s, SIGTERM, now_ms, out);
        return;
    }
    if (s->say_why_at_ms != CDI_NEVER_MS)
        say_why(s, out);
    s->state = SUPERVISE_RUNNING;
    s->assign = *a;
    s->n_alive = s->n_local;
    s->asked = 0;
    s->killed = false;
    s->kill_at_ms = CDI_NEVER_MS;
    s->round_over = false;
    s->cause_lives = s->said_failed = s->said_done = s->said_stopped = false;
    s->n_ended_well = 0;
    s->n_ended_after = 0;
    s->local_first = (struct cdi_failure){.kind = CDI_END_NONE};
    s->first = s->local_first;
    act(out, SUPERVISE_DO_SPAWN, 0);
}

static void tell(const struct supervise *s, struct supervise_actions *out)
{
    act(out, s->first.kind != CDI_END_NONE ? SUPERVISE_DO_TELL_DEATH : SUPERVISE_DO_TELL_OVER, 0);
}

static void on_round_over(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                          struct supervise_actions *out)
{
    bool known,
        unseen = (s->state == SUPERVISE_WAITING && ev->u.over.round > s->assign.round) || s->state == SUPERVISE_JOINING;

    if (unseen) { /* its ASSIGN was lost with a connection, and now it is over */
        s->state = SUPERVISE_WAITING;
        s->assign.round = ev->u.over.round;
        s->local_first = (struct cdi_failure){.kind = CDI_END_NONE};
        s->round_over = s->said_failed = s->said_done = s->said_stopped = false;
    }
    if (ev->u.over.round != s->assign.round)
        return;
    note_why(s, &ev->u.over, now_ms, out);
    known = s->first.kind != CDI_END_NONE;
    if (ev->u.over.failure.kind != CDI_END_NONE)
        set_first(s, &ev->u.over.failure, now_ms);
    if (s->round_over)
        return;
    s->round_over = true;
    if (s->state == SUPERVISE_RUNNING) {
        /* Without a failure all ranks live, and may agree by collectives to save, until their grace is over. */
        if (!known && s->first.kind != CDI_END_NONE)
            act(out, SUPERVISE_DO_TELL_DEATH, 0);
        if (!s->leaves_alone || s->first.kind == CDI_END_NONE)
            stop_workers(s, SIGTERM, now_ms, out);
    } else if (s->state == SUPERVISE_WAITING && !s->said_stopped) {
        /* Ours had ended well, which was said; now they count as stopped. */
        report(s, out, SUPERVISE_DO_SEND_STOPPED);
    }
}

static void on_closed(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                      struct supervise_actions *out)
{
    if (s->closed)
        return;
    s->closed = true;
    s->close_status = ev->u.closed.status;
    if (ev->u.closed.text != NULL && s->text[0] == '\0')
        (void)snprintf(s->text, sizeof s->text, "%s", ev->u.closed.text);
    /* A round that did not come about has no failure of its own: the text tells what became of the one before. */
    if (s->close_status == CDI_CLOSE_TIMEOUT ||
        (ev->u.closed.failure.kind != CDI_END_NONE && s->close_status != CDI_CLOSE_DONE))
        set_first(s, &ev->u.closed.failure, now_ms);
    if (s->state == SUPERVISE_RUNNING)
        tell(s, out);
    if (s->close_status == CDI_CLOSE_REFUSED && workers_live(s) && !s->killed) {
        /* We came back too late: this node counts as lost, and another world may be about to run. */
        no_more_rounds(s);
        s->state = SUPERVISE_STOPPING;
        kill_workers(s, now_ms, out);
        return;
    }
    end_agent(s, SIGTERM, now_ms, out);
}

/*
 * A host that dies takes the rendezvous and ranks with it, and the other nodes' workers fail because of those. A worker
 * that somebody has killed, or that could not be started, is no echo, but neither does it say what became of the job.
 */
static void note_unheard(struct supervise *s)
{
    s->unheard = s->first.kind != CDI_END_NONE && !s->round_over && s->assign.n_nodes > 1;
}

static void on_link_lost(struct supervise *s, const char *text, int64_t now_ms, struct supervise_actions *out)
{
    if (s->closed || s->state == SUPERVISE_OVER)
        return;
    s->link_lost = true;
    note_unheard(s);
    if (s->text[0] == '\0')
        (void)snprintf(s->text, sizeof s->text, "%s", text);
    if (s->state == SUPERVISE_RUNNING)
        act(out, SUPERVISE_DO_TELL_OVER, 0);
    end_agent(s, SIGTERM, now_ms, out);
}

/*
 * Why the round has failed here: peers see that these workers die, and must not be blamed for it. It is said while the
 * connection may still carry it, and again by a node that comes back.
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
    report(s, out, SUPERVISE_DO_SEND_FAILED);
}

/* No grace: by the time the rendezvous counts this node as lost, nothing of it may run. */
static void kill_fenced(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                        struct supervise_actions *out)
{
    note_fence(s, ev, out);
    s->state = SUPERVISE_STOPPING;
    kill_workers(s, now_ms, out);
}

static void fence_and_return(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                             struct supervise_actions *out)
{
    s->returning = true;
    if (workers_live(s)) {
        kill_fenced(s, ev, now_ms, out);
    } else if (s->state != SUPERVISE_SWEEPING) {
        s->returning = false;
        act(out, SUPERVISE_DO_REJOIN, 0);
    }
}

static void on_fenced(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                      struct supervise_actions *out)
{
    if (s->closed || s->state == SUPERVISE_OVER)
        return;
    if (supervise_returns(s)) {
        fence_and_return(s, ev, now_ms, out);
        return;
    }
    s->link_lost = true;
    note_unheard(s);
    no_more_rounds(s);
    if (s->text[0] == '\0')
        supervise_fence_text(s, ev->u.text, s->text, sizeof s->text);
    if (workers_live(s))
        kill_fenced(s, ev, now_ms, out);
    else if (s->state != SUPERVISE_SWEEPING)
        finish(s, out);
}

/* What was said about this round, once more: it does no harm if it had arrived. */
static void on_resumed(const struct supervise *s, struct supervise_actions *out)
{
    if (s->said_failed)
        act(out, SUPERVISE_DO_SEND_FAILED, 0);
    if (s->said_done)
        act(out, SUPERVISE_DO_SEND_DONE, 0);
    if (s->said_stopped)
        act(out, SUPERVISE_DO_SEND_STOPPED, 0);
    if (s->signal != 0 && !s->closed)
        act(out, SUPERVISE_DO_SEND_LEAVE, 0);
}

static void on_first_failure(struct supervise *s, const struct cdi_failure *end, int64_t now_ms,
                             struct supervise_actions *out)
{
    s->local_first = *end;
    set_first(s, end, now_ms);
    act(out, SUPERVISE_DO_TELL_DEATH, 0);
    report(s, out, SUPERVISE_DO_SEND_FAILED);
    if (s->n_alive > 0 && !s->leaves_alone)
        stop_workers(s, SIGTERM, now_ms, out);
}

static void on_cause(struct supervise *s, const struct cdi_failure *end, int64_t now_ms, struct supervise_actions *out)
{
    bool left = end->kind == CDI_END_EXIT && end->code == 0;
    bool none_lives = (s->state == SUPERVISE_SWEEPING || s->state == SUPERVISE_WAITING) && !s->round_over && !s->ending;

    if ((s->state != SUPERVISE_RUNNING && !none_lives) || s->first.kind != CDI_END_NONE ||
        (left ? s->n_ended_well : s->n_alive) == 0)
        return;
    if (left)
        s->n_ended_well--;
    else
        s->cause_lives = true;
    if (!none_lives) {
        on_first_failure(s, end, now_ms, out);
        return;
    }
    /* All had ended well here; another node's rank misses this one. */
    s->local_first = *end;
    set_first(s, end, now_ms);
    report(s, out, SUPERVISE_DO_SEND_FAILED);
}

static void on_worker_exit(struct supervise *s, const struct cdi_failure *end, int64_t now_ms,
                           struct supervise_actions *out)
{
    if (!workers_live(s) || s->n_alive == 0)
        return;
    s->n_alive--;
    if (s->cause_lives && end->rank == s->local_first.rank) {
        s->cause_lives = false;
    } else if (end->kind == CDI_END_EXIT && end->code == 0) {
        s->n_ended_well++;
    } else if (s->state == SUPERVISE_RUNNING && s->first.kind == CDI_END_NONE) {
        on_first_failure(s, end, now_ms, out);
    } else {
        s->n_ended_after++;
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
        finish_or_stay(s, now_ms, out);
    if (s->state == SUPERVISE_OVER)
        return;
    if (s->ending || s->local_first.kind != CDI_END_NONE || s->round_over)
        report(s, out, SUPERVISE_DO_SEND_STOPPED);
    else
        report(s, out, SUPERVISE_DO_SEND_DONE);
    if (s->returning)
        act(out, SUPERVISE_DO_REJOIN, 0);
    s->returning = false;
}

static void on_signal(struct supervise *s, int signal, int64_t now_ms, struct supervise_actions *out)
{
    bool same = signal == s->last_signal && now_ms - s->last_signal_ms < SUPERVISE_SAME_SIGNAL_MS;

    if (same || s->state == SUPERVISE_OVER)
        return;
    s->last_signal = signal;
    s->last_signal_ms = now_ms;
    if (s->signal != 0) {
        if (workers_live(s) && !s->killed && (signal == SIGINT || signal == SIGTERM))
            kill_workers(s, now_ms, out);
        if (s->state == SUPERVISE_WAITING)
            finish(s, out); /* the user has no patience with the other nodes */
        return;
    }
    s->signal = signal;
    if (is_of_order(&s->first, signal) && now_ms - s->first_ms <= SUPERVISE_ORDER_MS)
        s->first = (struct cdi_failure){.kind = CDI_END_NONE};
    if (!s->closed)
        act(out, SUPERVISE_DO_SEND_LEAVE, 0);
    end_agent(s, signal, now_ms, out);
}

static void say_wait(struct supervise *s, int64_t now_ms, struct supervise_actions *out)
{
    if (now_ms < s->say_wait_at_ms)
        return;
    s->say_wait_at_ms = CDI_NEVER_MS;
    if (s->kill_at_ms - now_ms > SUPERVISE_SOON_MS)
        act(out, SUPERVISE_DO_SAY_WAIT, 0);
}

static void on_tick(struct supervise *s, int64_t now_ms, struct supervise_actions *out)
{
    if (now_ms >= s->say_why_at_ms)
        say_why(s, out);
    if (s->state == SUPERVISE_WAITING && now_ms >= s->stay_until_ms)
        finish(s, out);
    if (s->state == SUPERVISE_STOPPING && now_ms < s->kill_at_ms)
        say_wait(s, now_ms, out);
    if (s->state != SUPERVISE_STOPPING || now_ms < s->kill_at_ms)
        return;
    if (!s->killed && now_ms - s->kill_at_ms > SUPERVISE_STOPPED_MS) {
        s->kill_at_ms = now_ms + s->grace_ms;
        s->asked_ms = now_ms;
        if (s->say_wait_at_ms != CDI_NEVER_MS)
            s->say_wait_at_ms = now_ms + SUPERVISE_PATIENCE_MS;
        return;
    }
    if (!s->killed) {
        kill_workers(s, now_ms, out);
        return;
    }
    s->given_up = true;
    (void)snprintf(
        s->text, sizeof s->text,
        "%u of this node's workers did not end within %d s of SIGKILL: the kernel holds them, most often in a "
        "file system or driver that does not answer, or a debugger that traces them has not let go",
        s->n_alive, SUPERVISE_UNKILLABLE_MS / 1000);
    finish(s, out);
}

void supervise_handle(struct supervise *s, const struct supervise_event *ev, int64_t now_ms,
                      struct supervise_actions *out)
{
    out->n = 0;
    switch (ev->kind) {
    case SUPERVISE_ASSIGN:
        on_assign(s, &ev->u.assign, now_ms, out);
        return;
    case SUPERVISE_ROUND_OVER:
        on_round_over(s, ev, now_ms, out);
        return;
    case SUPERVISE_CLOSED:
        on_closed(s, ev, now_ms, out);
        return;
    case SUPERVISE_LINK_LOST:
        on_link_lost(s, ev->u.text, now_ms, out);
        return;
    case SUPERVISE_FENCED:
        on_fenced(s, ev, now_ms, out);
        return;
    case SUPERVISE_RESUMED:
        on_resumed(s, out);
        return;
    case SUPERVISE_EXIT:
        on_worker_exit(s, &ev->u.end, now_ms, out);
        return;
    case SUPERVISE_CAUSE:
        on_cause(s, &ev->u.end, now_ms, out);
        return;
    case SUPERVISE_SWEPT:
        on_swept(s, now_ms, out);
        return;
    case SUPERVISE_SIGNAL:
        on_signal(s, ev->u.signal, now_ms, out);
        return;
    case SUPERVISE_TICK:
        on_tick(s, now_ms, out);
        return;
    }
}

/* --------------------------------------------------------------------------------------------------- results ---- */

int64_t supervise_deadline_ms(const struct supervise *s)
{
    int64_t at = s->state == SUPERVISE_WAITING    ? s->stay_until_ms
                 : s->state == SUPERVISE_STOPPING ? s->kill_at_ms
                                                  : CDI_NEVER_MS;

    if (s->state == SUPERVISE_STOPPING && s->say_wait_at_ms < at)
        at = s->say_wait_at_ms;
    return s->say_why_at_ms < at ? s->say_why_at_ms : at;
}

bool supervise_returns(const struct supervise *s)
{
    return (s->rejoins || s->state == SUPERVISE_JOINING) && !s->ending;
}

void supervise_fence_text(const struct supervise *s, const char *why, char *text, size_t cap)
{
    (void)snprintf(text, cap, "%s%s", why,
                   workers_live(s) ? "; this node's workers are killed, since it may count them as lost" : "");
}

int supervise_failure_status(const struct cdi_failure *f)
{
    switch (f->kind) {
    case CDI_END_NONE:
    case CDI_END_NODE:
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

/* Is `first` what a worker does whose peer has died, and does nobody know of another cause? */
static bool is_echo(const struct supervise *s)
{
    return s->unheard &&
           (s->first.kind == CDI_END_EXIT || (s->first.kind == CDI_END_SIGNAL && !cdi_signal_is_cause(s->first.code)));
}

int supervise_exit_status(const struct supervise *s)
{
    if (is_echo(s))
        return 1;
    if (s->first.kind != CDI_END_NONE)
        return supervise_failure_status(&s->first);
    if (s->signal != 0)
        return 128 + s->signal;
    return s->closed && s->close_status == CDI_CLOSE_DONE && !s->given_up ? 0 : 1;
}
