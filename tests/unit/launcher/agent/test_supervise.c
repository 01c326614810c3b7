/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "common/time_limits.h"
#include "hygiene.h"
#include "launcher/agent/supervise.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

CDI_SUITE(supervise);

#define SUPERVISE_GRACE_MS 30000

static struct supervise s;
static struct supervise_actions did;

static void send_event(struct supervise_event ev, int64_t now)
{
    supervise_handle(&s, &ev, now, &did);
}

static void assign(uint32_t round, uint32_t restarts, int64_t now)
{
    struct supervise_event ev = {.kind = SUPERVISE_ASSIGN};

    ev.u.assign = (struct cdi_msg_assign){.round = round, .world_size = s.n_local, .restart_count = restarts};
    send_event(ev, now);
}

static void ended(int local_rank, enum cdi_end_kind kind, int code, int64_t now)
{
    struct supervise_event ev = {.kind = SUPERVISE_EXIT};

    ev.u.end = (struct cdi_failure){.kind = kind, .code = code, .rank = local_rank, .local_rank = local_rank};
    send_event(ev, now);
}

static void plain(enum supervise_event_kind kind, int64_t now)
{
    send_event((struct supervise_event){.kind = kind}, now);
}

static void signalled(int signal, int64_t now)
{
    send_event((struct supervise_event){.kind = SUPERVISE_SIGNAL, .u.signal = signal}, now);
}

static void closed(enum cdi_close_status status, int64_t now)
{
    struct supervise_event ev = {.kind = SUPERVISE_CLOSED};

    ev.u.closed.status = status;
    ev.u.closed.text = "why";
    send_event(ev, now);
}

static void round_over(uint32_t round, int rank, int64_t now)
{
    struct supervise_event ev = {.kind = SUPERVISE_ROUND_OVER};

    ev.u.over.round = round;
    ev.u.over.failure = (struct cdi_failure){.kind = CDI_END_EXIT, .code = 9, .rank = rank, .node_rank = 1};
    send_event(ev, now);
}

/* DID(SUPERVISE_DO_SPAWN): exactly these actions, in this order. */
static void check_did(size_t n, const enum supervise_action_kind *what, const char *file, int line)
{
    cr_assert_eq(did.n, n, "%s:%d: %u actions, not %zu", file, line, did.n, n);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(did.v[i].what, what[i], "%s:%d: action %zu is %d", file, line, i, did.v[i].what);
}
#define DID(...)                                                                                        \
    check_did(sizeof((enum supervise_action_kind[]){__VA_ARGS__}) / sizeof(enum supervise_action_kind), \
              (enum supervise_action_kind[]){__VA_ARGS__}, __FILE__, __LINE__)
#define DID_NOTHING() cr_assert_eq(did.n, 0, "%u actions", did.n)

Test(supervise, successful_job)
{
    supervise_init(&s, 2, SUPERVISE_GRACE_MS);
    assign(0, 0, 10);
    DID(SUPERVISE_DO_SPAWN);
    ended(1, CDI_END_EXIT, 0, 20);
    DID_NOTHING();
    ended(0, CDI_END_EXIT, 0, 30);
    DID(SUPERVISE_DO_SWEEP);
    plain(SUPERVISE_SWEPT, 31);
    DID(SUPERVISE_DO_SEND_DONE);
    closed(CDI_CLOSE_DONE, 32);
    DID(SUPERVISE_DO_FINISH);
    cr_assert_eq(supervise_exit_status(&s), 0);
}

Test(supervise, logs_running_workers_once_unless_SIGKILL_is_due_soon)
{
    static const int64_t soon[] = {0, 1, SUPERVISE_PATIENCE_MS, SUPERVISE_PATIENCE_MS + SUPERVISE_SOON_MS};

    supervise_init(&s, 2, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    ended(1, CDI_END_EXIT, 7, 1000);
    cr_assert_eq(supervise_deadline_ms(&s), 1000 + SUPERVISE_PATIENCE_MS);
    signalled(SIGTERM, 2000);
    plain(SUPERVISE_TICK, 1000 + SUPERVISE_PATIENCE_MS);
    DID(SUPERVISE_DO_LOG_WAIT);
    cr_assert_eq(s.stop_ms, 1000);
    cr_assert_eq(supervise_deadline_ms(&s), 1000 + SUPERVISE_GRACE_MS);
    plain(SUPERVISE_TICK, 1000 + SUPERVISE_GRACE_MS);
    DID(SUPERVISE_DO_KILL);
    for (size_t i = 0; i < sizeof soon / sizeof soon[0]; i++) {
        supervise_init(&s, 1, soon[i]);
        assign(0, 0, 0);
        signalled(SIGTERM, 1000);
        cr_assert_eq(supervise_deadline_ms(&s), 1000 + soon[i]);
    }
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    signalled(SIGTERM, 1000);
    ended(0, CDI_END_SIGNAL, SIGTERM, 1100);
    cr_assert_eq(supervise_deadline_ms(&s), CDI_NEVER_MS, "nobody is waited for");
}

Test(supervise, suspension_restarts_grace)
{
    supervise_init(&s, 2, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    send_event((struct supervise_event){.kind = SUPERVISE_SIGNAL, .u.signal = SIGTERM}, 1000);
    cr_assert_eq(s.kill_at_ms, 1000 + SUPERVISE_GRACE_MS);
    plain(SUPERVISE_TICK, 3600000);
    DID_NOTHING();
    cr_assert_eq(s.kill_at_ms, 3600000 + SUPERVISE_GRACE_MS);
    plain(SUPERVISE_TICK, 3600000 + SUPERVISE_GRACE_MS);
    DID(SUPERVISE_DO_KILL);
    cr_assert_eq(did.v[0].signal, SIGKILL);
}

Test(supervise, notes_failures_and_overdue_workers_of_a_stop)
{
    supervise_init(&s, 4, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    signalled(SIGTERM, 1000);
    ended(0, CDI_END_SIGNAL, SIGTERM, 1100);
    ended(1, CDI_END_EXIT, 128 + SIGTERM, 1100);
    cr_assert_eq(s.stop_failure.kind, CDI_END_NONE, "they obeyed");
    ended(2, CDI_END_EXIT, 9, 1200);
    cr_assert(s.stop_failure.kind == CDI_END_EXIT && s.stop_failure.rank == 2 && s.first.kind == CDI_END_NONE);
    plain(SUPERVISE_TICK, 1000 + SUPERVISE_GRACE_MS);
    DID(SUPERVISE_DO_KILL);
    cr_assert_eq(s.n_overdue, 1);
    ended(3, CDI_END_SIGNAL, SIGKILL, 1001 + SUPERVISE_GRACE_MS);
    cr_assert(s.stop_failure.rank == 2 && supervise_exit_status(&s) == 128 + SIGTERM);
}

Test(supervise, first_failure_stops_others_and_sets_status)
{
    supervise_init(&s, 3, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    ended(1, CDI_END_EXIT, 7, 100);
    DID(SUPERVISE_DO_PUBLISH_FAILURE, SUPERVISE_DO_SEND_FAILED, SUPERVISE_DO_KILL);
    cr_assert_eq(did.v[2].signal, SIGTERM);
    cr_assert_eq(s.kill_at_ms, 100 + SUPERVISE_GRACE_MS);
    ended(0, CDI_END_SIGNAL, SIGTERM, 110);
    DID_NOTHING();
    round_over(0, 1, 111);
    DID_NOTHING();
    ended(2, CDI_END_EXIT, 3, 120);
    DID(SUPERVISE_DO_SWEEP);
    cr_assert_eq(supervise_deadline_ms(&s), CDI_NEVER_MS);
    plain(SUPERVISE_SWEPT, 121);
    DID(SUPERVISE_DO_SEND_STOPPED);
    closed(CDI_CLOSE_FAILED, 122);
    DID(SUPERVISE_DO_FINISH);
    cr_assert_eq(s.local_first.rank, 1);
    cr_assert_eq(s.n_ended_after, 2);
}

/* Rank 1 has raised an exception and is still ending when rank 0, which failed because of it, is gone. */
Test(supervise, first_recorded_exception_is_cause)
{
    struct supervise_event ev = {.kind = SUPERVISE_CAUSE};

    supervise_init(&s, 3, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    ev.u.end = (struct cdi_failure){.kind = CDI_END_EXIT, .code = 1, .rank = 1, .local_rank = 1};
    send_event(ev, 20);
    DID(SUPERVISE_DO_PUBLISH_FAILURE, SUPERVISE_DO_SEND_FAILED, SUPERVISE_DO_KILL);
    ended(0, CDI_END_SIGNAL, SIGABRT, 20);
    ended(1, CDI_END_SIGNAL, SIGTERM, 30);
    cr_assert_eq(s.n_ended_after, 1, "the cause did not end after itself");
    ended(2, CDI_END_SIGNAL, SIGTERM, 30);
    DID(SUPERVISE_DO_SWEEP);
    cr_assert_eq(s.first.rank, 1);
    cr_assert_eq(s.n_ended_after, 2);
    cr_assert_eq(supervise_exit_status(&s), 1);
}

/* Rank 1 exited with 0, which is fine, until rank 0 fails since it misses it. */
Test(supervise, early_exit_with_status_0_is_cause)
{
    struct supervise_event ev = {.kind = SUPERVISE_CAUSE};

    supervise_init(&s, 3, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    ended(1, CDI_END_EXIT, 0, 10);
    cr_assert_eq(did.n, 0);
    ev.u.end = (struct cdi_failure){.kind = CDI_END_EXIT, .rank = 1, .local_rank = 1};
    send_event(ev, 20);
    cr_assert_eq(s.first.rank, 1);
    cr_assert_eq(did.n, 3);
    cr_assert_eq(did.v[0].what, SUPERVISE_DO_PUBLISH_FAILURE);
    cr_assert_eq(did.v[1].what, SUPERVISE_DO_SEND_FAILED);
    cr_assert_eq(did.v[2].what, SUPERVISE_DO_KILL);
    ended(0, CDI_END_EXIT, 3, 20);
    ended(2, CDI_END_SIGNAL, SIGTERM, 30);
    cr_assert_eq(s.first.rank, 1);
    cr_assert_eq(s.n_succeeded, 0);
    cr_assert_eq(s.n_ended_after, 2);
    cr_assert_eq(supervise_exit_status(&s), 1);
}

/* The same, but all of this node had ended well, and a rank of another node misses it. */
Test(supervise, finished_node_can_report_cause)
{
    struct supervise_event ev = {.kind = SUPERVISE_CAUSE};

    ev.u.end = (struct cdi_failure){.kind = CDI_END_EXIT, .rank = 0};
    for (int done = 0; done < 2; done++) {
        supervise_init(&s, 1, SUPERVISE_GRACE_MS);
        assign(0, 0, 0);
        ended(0, CDI_END_EXIT, 0, 10);
        DID(SUPERVISE_DO_SWEEP);
        if (done) {
            plain(SUPERVISE_SWEPT, 11);
            DID(SUPERVISE_DO_SEND_DONE);
        }
        send_event(ev, 20);
        DID(SUPERVISE_DO_SEND_FAILED);
        cr_assert_eq(s.n_succeeded, 0);
        round_over(0, 1, 20);
        if (done) {
            DID(SUPERVISE_DO_SEND_STOPPED);
        } else {
            DID_NOTHING();
            plain(SUPERVISE_SWEPT, 21);
            DID(SUPERVISE_DO_SEND_STOPPED);
        }
        send_event(ev, 22);
        DID_NOTHING();
        closed(CDI_CLOSE_FAILED, 23);
        DID(SUPERVISE_DO_FINISH);
    }
}

Test(supervise, on_failure_wait_publishes_local_failure)
{
    supervise_init(&s, 3, SUPERVISE_GRACE_MS);
    supervise_keep_others(&s);
    assign(0, 0, 0);
    ended(1, CDI_END_EXIT, 7, 100);
    DID(SUPERVISE_DO_PUBLISH_FAILURE, SUPERVISE_DO_SEND_FAILED);
    cr_assert_eq(supervise_deadline_ms(&s), CDI_NEVER_MS);
    round_over(0, 1, 101);
    DID_NOTHING();
    ended(0, CDI_END_EXIT, 3, 110);
    DID_NOTHING();
    ended(2, CDI_END_EXIT, 0, 120);
    DID(SUPERVISE_DO_SWEEP);
    plain(SUPERVISE_SWEPT, 121);
    DID(SUPERVISE_DO_SEND_STOPPED);
    closed(CDI_CLOSE_FAILED, 122);
    DID(SUPERVISE_DO_FINISH);
    cr_assert_eq(s.n_ended_after, 1);
    cr_assert_eq(s.n_succeeded, 1);
}

Test(supervise, on_failure_wait_publishes_remote_failure)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    supervise_keep_others(&s);
    assign(0, 0, 0);
    round_over(0, 5, 2);
    DID(SUPERVISE_DO_PUBLISH_FAILURE);
    ended(0, CDI_END_EXIT, 4, 4);
    DID(SUPERVISE_DO_SWEEP);
    plain(SUPERVISE_SWEPT, 5);
    DID(SUPERVISE_DO_SEND_STOPPED);
    closed(CDI_CLOSE_FAILED, 6);
    cr_assert_eq(supervise_exit_status(&s), 9);

    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    supervise_keep_others(&s);
    assign(0, 0, 0);
    signalled(SIGTERM, 1);
    DID(SUPERVISE_DO_SEND_LEAVE, SUPERVISE_DO_ASK);
}

Test(supervise, exit_status_is_that_of_first_failure)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    ended(0, CDI_END_SIGNAL, SIGKILL, 1);
    plain(SUPERVISE_SWEPT, 2);
    closed(CDI_CLOSE_FAILED, 3);
    cr_assert_eq(supervise_exit_status(&s), 137);
    cr_assert_eq(supervise_failure_status(&(struct cdi_failure){.kind = CDI_END_EXIT, .code = 42}), 42);
    cr_assert_eq(supervise_failure_status(&(struct cdi_failure){.kind = CDI_END_SPAWN, .code = ENOENT}), 127);
    cr_assert_eq(supervise_failure_status(&(struct cdi_failure){.kind = CDI_END_SPAWN, .code = EACCES}), 126);
    cr_assert_eq(supervise_failure_status(&(struct cdi_failure){.kind = CDI_END_NODE}), 1);
    cr_assert_eq(supervise_failure_status(&(struct cdi_failure){.kind = CDI_END_HANG}), 1);
}

Test(supervise, kills_after_grace)
{
    supervise_init(&s, 2, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    ended(0, CDI_END_EXIT, 1, 1000);
    plain(SUPERVISE_TICK, 1000 + SUPERVISE_GRACE_MS - 1);
    DID_NOTHING();
    plain(SUPERVISE_TICK, 1000 + SUPERVISE_GRACE_MS);
    DID(SUPERVISE_DO_KILL);
    cr_assert_eq(did.v[0].signal, SIGKILL);
    plain(SUPERVISE_TICK, 1000 + SUPERVISE_GRACE_MS + 1000 * CDI_LIMIT_KILLED_S);
    DID(SUPERVISE_DO_FINISH);
    cr_assert(s.given_up);
    cr_assert_eq(supervise_exit_status(&s), 1);
}

Test(supervise, restart_starts_all_and_resets_failure)
{
    supervise_init(&s, 2, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    ended(1, CDI_END_EXIT, 5, 1);
    ended(0, CDI_END_SIGNAL, SIGTERM, 2);
    plain(SUPERVISE_SWEPT, 3);
    DID(SUPERVISE_DO_SEND_STOPPED);
    assign(1, 1, 4);
    DID(SUPERVISE_DO_SPAWN);
    cr_assert_eq(s.assign.restart_count, 1);
    cr_assert_eq(s.n_alive, 2);
    ended(0, CDI_END_EXIT, 0, 5);
    ended(1, CDI_END_EXIT, 0, 6);
    plain(SUPERVISE_SWEPT, 7);
    DID(SUPERVISE_DO_SEND_DONE);
    closed(CDI_CLOSE_DONE, 8);
    cr_assert_eq(supervise_exit_status(&s), 0);
}

Test(supervise, remote_failure_stops_this_node)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(2, 0, 0);
    round_over(1, 5, 1);
    DID_NOTHING(); /* a round that is long over */
    round_over(2, 5, 2);
    DID(SUPERVISE_DO_PUBLISH_FAILURE, SUPERVISE_DO_KILL);
    round_over(2, 5, 3);
    DID_NOTHING();
    ended(0, CDI_END_SIGNAL, SIGTERM, 4);
    plain(SUPERVISE_SWEPT, 5);
    DID(SUPERVISE_DO_SEND_STOPPED);
    closed(CDI_CLOSE_FAILED, 6);
    cr_assert_eq(supervise_exit_status(&s), 9);
}

Test(supervise, successful_workers_take_part_in_restart)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    ended(0, CDI_END_EXIT, 0, 1);
    plain(SUPERVISE_SWEPT, 2);
    DID(SUPERVISE_DO_SEND_DONE);
    round_over(0, 5, 3);
    DID(SUPERVISE_DO_SEND_STOPPED);
    assign(1, 1, 4);
    DID(SUPERVISE_DO_SPAWN);
}

Test(supervise, signal_reaches_workers_and_ends_job)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    signalled(SIGINT, 1000);
    DID(SUPERVISE_DO_SEND_LEAVE, SUPERVISE_DO_ASK);
    cr_assert_eq(did.v[1].signal, SIGINT);
    signalled(SIGINT, 1000 + SUPERVISE_SAME_SIGNAL_MS - 1);
    DID_NOTHING();
    ended(0, CDI_END_SIGNAL, SIGINT, 1600);
    DID(SUPERVISE_DO_SWEEP);
    plain(SUPERVISE_SWEPT, 1601);
    DID(SUPERVISE_DO_FINISH);
    cr_assert_eq(supervise_exit_status(&s), 130);
}

Test(supervise, second_interrupt_kills)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    signalled(SIGTERM, 1000);
    signalled(SIGHUP, 1100);
    DID_NOTHING();
    signalled(SIGTERM, 2000);
    DID(SUPERVISE_DO_KILL);
    cr_assert_eq(did.v[0].signal, SIGKILL);
    signalled(SIGTERM, 3000);
    DID_NOTHING();
    ended(0, CDI_END_SIGNAL, SIGKILL, 3001);
    plain(SUPERVISE_SWEPT, 3002);
    cr_assert_eq(supervise_exit_status(&s), 143);
}

Test(supervise, signalled_host_waits_for_other_nodes)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    supervise_set_host(&s, true);
    assign(0, 0, 0);
    signalled(SIGTERM, 1000);
    DID(SUPERVISE_DO_SEND_LEAVE, SUPERVISE_DO_ASK);
    ended(0, CDI_END_SIGNAL, SIGTERM, 1100);
    plain(SUPERVISE_SWEPT, 1101);
    DID(SUPERVISE_DO_SEND_STOPPED);
    cr_assert_eq(supervise_deadline_ms(&s), 1101 + SUPERVISE_GRACE_MS + 1000 * CDI_LIMIT_OTHER_NODES_S);
    assign(1, 1, 1200);
    DID_NOTHING();
    closed(CDI_CLOSE_LEFT, 1300);
    DID(SUPERVISE_DO_FINISH);
    cr_assert_eq(supervise_exit_status(&s), 143);
}

Test(supervise, signalled_host_wait_is_bounded)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    supervise_set_host(&s, true);
    signalled(SIGTERM, 1000);
    DID(SUPERVISE_DO_SEND_LEAVE);
    plain(SUPERVISE_TICK, 1000 + SUPERVISE_GRACE_MS + 1000 * CDI_LIMIT_OTHER_NODES_S - 1);
    DID_NOTHING();
    plain(SUPERVISE_TICK, 1000 + SUPERVISE_GRACE_MS + 1000 * CDI_LIMIT_OTHER_NODES_S);
    DID(SUPERVISE_DO_FINISH);

    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    supervise_set_host(&s, true);
    signalled(SIGINT, 1000);
    signalled(SIGINT, 3000);
    DID(SUPERVISE_DO_FINISH);

    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    supervise_set_host(&s, true);
    signalled(SIGINT, 1000);
    send_event((struct supervise_event){.kind = SUPERVISE_LINK_LOST, .u.text = "gone"}, 1001);
    DID(SUPERVISE_DO_FINISH);
}

Test(supervise, signal_without_workers_ends_immediately)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    signalled(SIGTERM, 0);
    DID(SUPERVISE_DO_SEND_LEAVE, SUPERVISE_DO_FINISH);
    cr_assert_eq(supervise_exit_status(&s), 143);
    assign(0, 0, 1);
    DID_NOTHING();
}

Test(supervise, signal_after_failure_prevents_restart_and_keeps_cause)
{
    supervise_init(&s, 2, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    ended(0, CDI_END_EXIT, 3, 1);
    signalled(SIGINT, 2);
    DID(SUPERVISE_DO_SEND_LEAVE, SUPERVISE_DO_KILL);
    ended(1, CDI_END_SIGNAL, SIGINT, 3);
    plain(SUPERVISE_SWEPT, 4);
    DID(SUPERVISE_DO_FINISH);
    cr_assert_eq(supervise_exit_status(&s), 3);
}

/* A round has failed, and another one is to follow. */
static void fail_and_wait(void)
{
    struct supervise_event over = {.kind = SUPERVISE_ROUND_OVER};

    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    ended(0, CDI_END_EXIT, 3, 1);
    over.u.over.restart = over.u.over.counts = true;
    over.u.over.failure = (struct cdi_failure){.kind = CDI_END_EXIT, .code = 3};
    send_event(over, 2);
    plain(SUPERVISE_SWEPT, 3);
    DID(SUPERVISE_DO_SEND_STOPPED);
}

Test(supervise, signal_between_two_rounds_is_the_reason)
{
    fail_and_wait();
    signalled(SIGINT, 4);
    cr_assert_eq(supervise_exit_status(&s), 130);
}

Test(supervise, job_that_succeeds_without_this_node_has_not_failed)
{
    fail_and_wait();
    closed(CDI_CLOSE_DONE, 4);
    cr_assert_eq(supervise_exit_status(&s), 0);
    cr_assert_eq(s.first.kind, CDI_END_NONE);
}

Test(supervise, lost_rendezvous_ends_workers)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    send_event((struct supervise_event){.kind = SUPERVISE_LINK_LOST, .u.text = "gone"}, 1);
    DID(SUPERVISE_DO_PUBLISH_END, SUPERVISE_DO_KILL);
    ended(0, CDI_END_SIGNAL, SIGTERM, 2);
    plain(SUPERVISE_SWEPT, 3);
    DID(SUPERVISE_DO_FINISH);
    cr_assert_eq(supervise_exit_status(&s), 1);
    cr_assert_str_eq(s.text, "gone");
}

static void lose_link_after(enum cdi_end_kind kind, int code, bool heard)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    s.assign.n_nodes = 2;
    ended(0, kind, code, 1);
    if (heard)
        round_over(0, 1, 2);
    plain(SUPERVISE_SWEPT, 3);
    send_event((struct supervise_event){.kind = SUPERVISE_LINK_LOST, .u.text = "gone"}, 4);
    DID(SUPERVISE_DO_FINISH);
    cr_assert_str_eq(s.text, "gone");
    cr_assert_eq(s.unreported, !heard);
}

Test(supervise, unreported_failure_may_follow_from_lost_rendezvous)
{
    lose_link_after(CDI_END_EXIT, 24, false);
    cr_assert_eq(supervise_exit_status(&s), 1);
    lose_link_after(CDI_END_SIGNAL, SIGPIPE, false);
    cr_assert_eq(supervise_exit_status(&s), 1);
    lose_link_after(CDI_END_SIGNAL, SIGSEGV, false);
    cr_assert_eq(supervise_exit_status(&s), 128 + SIGSEGV, "nobody's death does that to another");
    lose_link_after(CDI_END_EXIT, 24, true);
    cr_assert_eq(supervise_exit_status(&s), 9, "of another rank, as the rendezvous has said");
}

Test(supervise, fenced_node_kills_without_grace)
{
    supervise_init(&s, 2, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    send_event((struct supervise_event){.kind = SUPERVISE_FENCED, .wall_ms = 77, .u.text = "silent"}, 1);
    DID(SUPERVISE_DO_SEND_FAILED, SUPERVISE_DO_KILL);
    cr_assert_eq(did.v[1].signal, SIGKILL);
    cr_assert(s.local_first.kind == CDI_END_NODE && s.local_first.time_ms == 77);
    cr_assert_str_eq(s.local_first.text, "silent");
    ended(0, CDI_END_SIGNAL, SIGKILL, 2);
    ended(1, CDI_END_SIGNAL, SIGKILL, 3);
    DID(SUPERVISE_DO_SWEEP);
    plain(SUPERVISE_SWEPT, 4);
    DID(SUPERVISE_DO_FINISH);
    cr_assert_eq(supervise_exit_status(&s), 1);
    cr_assert_str_eq(s.text, "silent; killing this node's workers, since the rendezvous may count them as lost");
}

Test(supervise, fenced_node_without_round_rejoins)
{
    char text[200];

    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    supervise_fence_text(&s, "silent", text, sizeof text);
    cr_assert_str_eq(text, "silent");
    cr_assert(supervise_returns(&s));
    send_event((struct supervise_event){.kind = SUPERVISE_FENCED, .u.text = text}, 0);
    DID(SUPERVISE_DO_REJOIN);
    assign(0, 0, 1);
    DID(SUPERVISE_DO_SPAWN);
    cr_assert_not(supervise_returns(&s));

    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    signalled(SIGTERM, 0);
    cr_assert_not(supervise_returns(&s), "the user has ended it");
}

Test(supervise, fenced_node_rejoins_and_reports_failed_round)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    supervise_set_rejoins(&s);
    send_event((struct supervise_event){.kind = SUPERVISE_FENCED, .u.text = "silent"}, 0);
    DID(SUPERVISE_DO_REJOIN);
    assign(0, 0, 0);
    send_event((struct supervise_event){.kind = SUPERVISE_FENCED, .u.text = "silent"}, 1);
    DID(SUPERVISE_DO_SEND_FAILED, SUPERVISE_DO_KILL);
    cr_assert_eq(did.v[1].signal, SIGKILL);
    ended(0, CDI_END_SIGNAL, SIGKILL, 2);
    DID(SUPERVISE_DO_SWEEP);
    plain(SUPERVISE_SWEPT, 3);
    DID(SUPERVISE_DO_SEND_STOPPED, SUPERVISE_DO_REJOIN);
    plain(SUPERVISE_RESUMED, 4);
    DID(SUPERVISE_DO_SEND_FAILED, SUPERVISE_DO_SEND_STOPPED);
    cr_assert_eq(s.local_first.kind, CDI_END_NODE);
    cr_assert_str_eq(s.local_first.text, "silent");
    round_over(0, 0, 5);
    cr_assert_eq(did.n, 0, "that was sent already");
    assign(1, 0, 6);
    DID(SUPERVISE_DO_SPAWN);

    send_event((struct supervise_event){.kind = SUPERVISE_FENCED, .u.text = "silent"}, 7);
    ended(0, CDI_END_SIGNAL, SIGKILL, 8);
    plain(SUPERVISE_SWEPT, 9);
    DID(SUPERVISE_DO_SEND_STOPPED, SUPERVISE_DO_REJOIN);
    send_event((struct supervise_event){.kind = SUPERVISE_LINK_LOST, .u.text = "cannot reach it"}, 10);
    DID(SUPERVISE_DO_FINISH);
    cr_assert_eq(supervise_exit_status(&s), 1);
    cr_assert_str_eq(s.text, "cannot reach it");
}

Test(supervise, refused_rejoin_kills_workers)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    closed(CDI_CLOSE_REFUSED, 1);
    DID(SUPERVISE_DO_PUBLISH_END, SUPERVISE_DO_KILL);
    cr_assert_eq(did.v[1].signal, SIGKILL);
    ended(0, CDI_END_SIGNAL, SIGKILL, 2);
    plain(SUPERVISE_SWEPT, 3);
    DID(SUPERVISE_DO_FINISH);
    cr_assert_eq(supervise_exit_status(&s), 1);
}

Test(supervise, resume_repeats_messages)
{
    supervise_init(&s, 2, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    plain(SUPERVISE_RESUMED, 1);
    DID_NOTHING();
    ended(1, CDI_END_EXIT, 5, 2);
    plain(SUPERVISE_RESUMED, 3);
    DID(SUPERVISE_DO_SEND_FAILED);
    ended(0, CDI_END_SIGNAL, SIGTERM, 4);
    plain(SUPERVISE_SWEPT, 5);
    plain(SUPERVISE_RESUMED, 6);
    DID(SUPERVISE_DO_SEND_FAILED, SUPERVISE_DO_SEND_STOPPED);
    assign(1, 1, 7);
    plain(SUPERVISE_RESUMED, 8);
    DID_NOTHING();
    ended(0, CDI_END_EXIT, 0, 9);
    ended(1, CDI_END_EXIT, 0, 9);
    plain(SUPERVISE_SWEPT, 10);
    plain(SUPERVISE_RESUMED, 11);
    DID(SUPERVISE_DO_SEND_DONE);
}

Test(supervise, answers_end_of_unseen_round)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    ended(0, CDI_END_EXIT, 5, 1);
    plain(SUPERVISE_SWEPT, 2);
    round_over(1, 3, 3);
    DID(SUPERVISE_DO_SEND_STOPPED);
    cr_assert_eq(s.assign.round, 1);
    assign(2, 2, 4);
    DID(SUPERVISE_DO_SPAWN);
}

Test(supervise, refusal_before_round_ends_with_its_text)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    closed(CDI_CLOSE_REFUSED, 1);
    DID(SUPERVISE_DO_FINISH);
    cr_assert_eq(supervise_exit_status(&s), 1);
    cr_assert_str_eq(s.text, "why");
}

/* ROUND_OVER of round 0, as received when a node leaves and the job ends with it. */
static void over_by_a_leave(int64_t now)
{
    struct supervise_event ev = {.kind = SUPERVISE_ROUND_OVER};

    ev.u.over.failure.kind = CDI_END_NONE;
    send_event(ev, now);
}

Test(supervise, workers_may_save_during_grace_without_failure)
{
    for (int alone = 0; alone < 2; alone++) {
        supervise_init(&s, 2, SUPERVISE_GRACE_MS);
        if (alone)
            supervise_keep_others(&s);
        assign(0, 0, 0);
        over_by_a_leave(100);
        DID(SUPERVISE_DO_ASK);
        cr_assert_eq(did.v[0].signal, SIGTERM);
        cr_assert_eq(s.kill_at_ms, 100 + SUPERVISE_GRACE_MS);
        ended(0, CDI_END_SIGNAL, SIGTERM, 200);
        DID_NOTHING();
        cr_assert_eq(s.first.kind, CDI_END_NONE, "one that SIGTERM ended has not failed");
        ended(1, CDI_END_EXIT, 0, 5000);
        DID(SUPERVISE_DO_SWEEP);
        plain(SUPERVISE_SWEPT, 5001);
        DID(SUPERVISE_DO_SEND_STOPPED);
        closed(CDI_CLOSE_LEFT, 5002);
        DID(SUPERVISE_DO_FINISH);
        cr_assert_eq(supervise_exit_status(&s), 1);
    }
}

Test(supervise, notes_failures_and_overdue_workers_after_the_order_of_another_node)
{
    supervise_init(&s, 3, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    over_by_a_leave(100);
    ended(0, CDI_END_SIGNAL, SIGTERM, 200);
    cr_assert_eq(s.stop_failure.kind, CDI_END_NONE, "it obeyed");
    ended(1, CDI_END_EXIT, 9, 300);
    cr_assert(s.stop_failure.kind == CDI_END_EXIT && s.stop_failure.rank == 1 && s.first.kind == CDI_END_NONE);
    plain(SUPERVISE_TICK, 100 + SUPERVISE_GRACE_MS);
    DID(SUPERVISE_DO_KILL);
    cr_assert(s.n_overdue == 1 && s.n_hurried == 0);

    supervise_init(&s, 2, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    round_over(0, 1, 100);
    ended(0, CDI_END_EXIT, 9, 300);
    cr_assert_eq(s.stop_failure.kind, CDI_END_NONE, "a consequence of the failure that ended the round");
}

Test(supervise, repeated_order_signals_workers_once)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    over_by_a_leave(100);
    signalled(SIGTERM, 900);
    DID(SUPERVISE_DO_SEND_LEAVE);
    cr_assert_eq(s.kill_at_ms, 100 + SUPERVISE_GRACE_MS);
    signalled(SIGTERM, 2000);
    DID(SUPERVISE_DO_KILL);
    cr_assert_eq(did.v[0].signal, SIGKILL, "the user's second signal ends the grace");
    cr_assert(s.n_hurried == 1 && s.n_overdue == 0);

    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    signalled(SIGTERM, 100);
    DID(SUPERVISE_DO_SEND_LEAVE, SUPERVISE_DO_ASK);
    over_by_a_leave(200);
    DID_NOTHING();
    send_event((struct supervise_event){.kind = SUPERVISE_LINK_LOST, .u.text = "gone"}, 300);
    DID_NOTHING();

    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    over_by_a_leave(100);
    ended(0, CDI_END_EXIT, 0, 200);
    plain(SUPERVISE_SWEPT, 201);
    assign(1, 0, 300);
    DID(SUPERVISE_DO_SPAWN);
    signalled(SIGTERM, 400);
    DID(SUPERVISE_DO_SEND_LEAVE, SUPERVISE_DO_ASK);
}

Test(supervise, worker_signalled_with_job_has_not_failed)
{
    const struct {
        enum cdi_end_kind kind;
        int code;
        int64_t later;
        bool failed;
    } cases[] = {{CDI_END_SIGNAL, SIGTERM, SUPERVISE_ORDER_MS, false},
                 {CDI_END_EXIT, 128 + SIGTERM, 1, false},
                 {CDI_END_SIGNAL, SIGTERM, SUPERVISE_ORDER_MS + 1, true},
                 {CDI_END_SIGNAL, SIGINT, 1, true},
                 {CDI_END_EXIT, 1, 1, true}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct supervise_event over = {.kind = SUPERVISE_ROUND_OVER};

        supervise_init(&s, 2, SUPERVISE_GRACE_MS);
        assign(0, 0, 0);
        ended(1, cases[i].kind, cases[i].code, 100);
        DID(SUPERVISE_DO_PUBLISH_FAILURE, SUPERVISE_DO_SEND_FAILED, SUPERVISE_DO_KILL);
        signalled(SIGTERM, 100 + cases[i].later);
        DID(SUPERVISE_DO_SEND_LEAVE);
        over.u.over.failure = s.local_first; /* the rendezvous tells it to all */
        send_event(over, 3000);
        ended(0, CDI_END_SIGNAL, SIGTERM, 3001);
        plain(SUPERVISE_SWEPT, 3002);
        cr_assert_eq(s.first.kind != CDI_END_NONE, cases[i].failed, "case %zu", i);
        cr_assert_eq(supervise_exit_status(&s), cases[i].failed ? supervise_failure_status(&s.local_first) : 143);
    }
}

Test(supervise, report_waits_for_signal_of_dead_worker)
{
    for (int comes = 0; comes < 2; comes++) {
        supervise_init(&s, 1, SUPERVISE_GRACE_MS);
        assign(0, 0, 0);
        ended(0, CDI_END_SIGNAL, SIGTERM, 100);
        plain(SUPERVISE_SWEPT, 101);
        DID(SUPERVISE_DO_SEND_STOPPED);
        closed(CDI_CLOSE_FAILED, 102);
        DID_NOTHING();
        cr_assert_eq(supervise_deadline_ms(&s), 100 + SUPERVISE_ORDER_WAIT_MS);
        if (comes)
            signalled(SIGTERM, 150);
        else
            plain(SUPERVISE_TICK, 100 + SUPERVISE_ORDER_WAIT_MS);
        DID(SUPERVISE_DO_FINISH);
        cr_assert_eq(s.first.kind, comes ? CDI_END_NONE : CDI_END_SIGNAL);
        cr_assert_eq(supervise_exit_status(&s), 143);
    }
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    ended(0, CDI_END_SIGNAL, SIGKILL, 100);
    plain(SUPERVISE_SWEPT, 101);
    closed(CDI_CLOSE_FAILED, 102);
    DID(SUPERVISE_DO_FINISH);
}

Test(supervise, remote_worker_signalled_with_job_has_not_failed)
{
    struct supervise_event over = {.kind = SUPERVISE_ROUND_OVER};

    over.u.over.failure = (struct cdi_failure){.kind = CDI_END_SIGNAL, .code = SIGTERM, .rank = 5, .node_rank = 2};
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    send_event(over, 100);
    DID(SUPERVISE_DO_PUBLISH_FAILURE, SUPERVISE_DO_KILL);
    signalled(SIGTERM, 200);
    cr_assert_eq(s.first.kind, CDI_END_NONE);
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    signalled(SIGTERM, 100);
    send_event(over, 200);
    DID_NOTHING();
    cr_assert_eq(s.first.kind, CDI_END_NONE);
}

/* ROUND_OVER of round 0 as a restart of two nodes; cause: the rank that failed, at this time. */
static void over_because(int rank, enum cdi_end_kind kind, bool counts, int64_t now)
{
    struct supervise_event ev = {.kind = SUPERVISE_ROUND_OVER};

    ev.u.over = (struct cdi_msg_round_over){.restart = true, .counts = counts, .text = "why"};
    ev.u.over.failure = (struct cdi_failure){.kind = kind, .code = 1, .rank = rank, .node_rank = rank};
    send_event(ev, now);
}

static void two_nodes(int64_t now)
{
    struct supervise_event ev = {.kind = SUPERVISE_ASSIGN};

    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    ev.u.assign = (struct cdi_msg_assign){.world_size = 2, .n_nodes = 2, .restart_count = 4};
    send_event(ev, now);
}

Test(supervise, restart_cause_waits_for_earlier_failure)
{
    two_nodes(0);
    over_because(0, CDI_END_EXIT, true, 100);
    DID(SUPERVISE_DO_PUBLISH_FAILURE, SUPERVISE_DO_KILL);
    cr_assert_eq(supervise_deadline_ms(&s), 100 + SUPERVISE_CAUSE_WAIT_MS);
    plain(SUPERVISE_TICK, 100 + SUPERVISE_CAUSE_WAIT_MS - 1);
    DID_NOTHING();
    over_because(1, CDI_END_EXIT, true, 350);
    DID_NOTHING();
    cr_assert_eq(s.first.rank, 1);
    plain(SUPERVISE_TICK, 100 + SUPERVISE_CAUSE_WAIT_MS);
    DID(SUPERVISE_DO_LOG_CAUSE);
    cr_assert_eq(s.over.failure.rank, 1);
    cr_assert_eq(s.restart, 5);
    cr_assert_eq(s.n_causes_logged, 1);
    cr_assert_eq(s.kill_at_ms, 100 + SUPERVISE_GRACE_MS);
    over_because(1, CDI_END_EXIT, true, 500);
    DID_NOTHING();
    over_because(0, CDI_END_SIGNAL, true, 600);
    DID(SUPERVISE_DO_LOG_CAUSE);
    cr_assert_eq(s.n_causes_logged, 2, "later than could be waited for, and said after all");
}

Test(supervise, restart_cause_is_logged_before_start)
{
    two_nodes(0);
    over_because(0, CDI_END_EXIT, true, 10);
    ended(0, CDI_END_SIGNAL, SIGTERM, 20);
    plain(SUPERVISE_SWEPT, 21);
    DID(SUPERVISE_DO_SEND_STOPPED);
    assign(1, 5, 30);
    DID(SUPERVISE_DO_LOG_CAUSE, SUPERVISE_DO_SPAWN);
    cr_assert_eq(s.over.failure.rank, 0);
    cr_assert_eq(s.restart, 5);
    cr_assert_eq(supervise_deadline_ms(&s), CDI_NEVER_MS);
}

Test(supervise, final_restart_cause_is_logged_immediately)
{
    two_nodes(0);
    over_because(-1, CDI_END_NODE, true, 10);
    DID(SUPERVISE_DO_LOG_CAUSE, SUPERVISE_DO_PUBLISH_FAILURE, SUPERVISE_DO_KILL);
    two_nodes(0);
    over_because(-1, CDI_END_NONE, false, 10);
    DID(SUPERVISE_DO_LOG_CAUSE, SUPERVISE_DO_ASK);
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    assign(0, 0, 0);
    over_because(0, CDI_END_EXIT, true, 10);
    DID(SUPERVISE_DO_LOG_CAUSE, SUPERVISE_DO_PUBLISH_FAILURE, SUPERVISE_DO_KILL);
}

Test(supervise, consequence_of_loss_is_not_logged)
{
    two_nodes(0);
    over_because(0, CDI_END_EXIT, true, 10);
    over_because(-1, CDI_END_NODE, false, 20);
    DID(SUPERVISE_DO_LOG_CAUSE);
    cr_assert_not(s.over.counts);
    cr_assert_eq(s.n_causes_logged, 1);
    cr_assert_eq(s.kill_at_ms, 10 + SUPERVISE_GRACE_MS);
}

Test(supervise, ending_job_logs_no_restart)
{
    two_nodes(0);
    over_because(0, CDI_END_EXIT, true, 10);
    signalled(SIGTERM, 20);
    plain(SUPERVISE_TICK, 10 + SUPERVISE_CAUSE_WAIT_MS);
    DID_NOTHING();
    over_because(1, CDI_END_EXIT, true, 1000);
    DID_NOTHING();
    two_nodes(0);
    over_because(0, CDI_END_EXIT, true, 10);
    closed(CDI_CLOSE_LEFT, 20);
    plain(SUPERVISE_TICK, 10 + SUPERVISE_CAUSE_WAIT_MS);
    DID_NOTHING();
}

/* Any events in any order: never more actions than fit, FINISH once, no spawn while workers live. */
Test(supervise, any_event_order_finishes_once)
{
    uint64_t x = 88172645463325252u;

    for (int game = 0; game < 20000; game++) {
        int64_t now = 0;
        unsigned n_finish = 0, live = 0;

        supervise_init(&s, 2, SUPERVISE_GRACE_MS);
        if (game % 2 == 1)
            supervise_set_host(&s, true);
        if (game % 3 == 1)
            supervise_keep_others(&s);
        for (int step = 0; step < 60; step++) {
            struct supervise_event ev = {.kind = SUPERVISE_TICK};

            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            ev.kind = (enum supervise_event_kind)(x % 11);
            now += (int64_t)(x >> 8 & 8191);
            if (ev.kind == SUPERVISE_ASSIGN)
                ev.u.assign = (struct cdi_msg_assign){.round = s.assign.round + 1};
            else if (ev.kind == SUPERVISE_ROUND_OVER)
                ev.u.over = (struct cdi_msg_round_over){.round = s.assign.round,
                                                        .restart = x >> 30 & 1,
                                                        .counts = x >> 31 & 1,
                                                        .failure.rank = x >> 32 & 1};
            else if (ev.kind == SUPERVISE_CLOSED)
                ev.u.closed.text = NULL;
            else if (ev.kind == SUPERVISE_LINK_LOST || ev.kind == SUPERVISE_FENCED)
                ev.u.text = "lost";
            else if (ev.kind == SUPERVISE_SIGNAL)
                ev.u.signal = x >> 30 & 1 ? SIGINT : SIGTERM;
            else if (ev.kind == SUPERVISE_CAUSE)
                ev.u.end = (struct cdi_failure){.kind = CDI_END_EXIT, .code = (int32_t)(x >> 41 & 1)};
            else if (ev.kind == SUPERVISE_EXIT)
                ev.u.end = (struct cdi_failure){.kind = CDI_END_EXIT, .code = (int32_t)(x >> 40 & 1)};
            if ((ev.kind == SUPERVISE_EXIT || ev.kind == SUPERVISE_CAUSE) && live == 0)
                continue;
            if (ev.kind == SUPERVISE_SWEPT && s.state != SUPERVISE_SWEEPING)
                continue;
            live -= ev.kind == SUPERVISE_EXIT;
            supervise_handle(&s, &ev, now, &did);
            cr_assert_lt(did.n, SUPERVISE_MAX_ACTIONS);
            for (unsigned i = 0; i < did.n; i++) {
                n_finish += did.v[i].what == SUPERVISE_DO_FINISH;
                if (did.v[i].what == SUPERVISE_DO_SPAWN) {
                    cr_assert_eq(live, 0, "spawned while workers live");
                    live = 2;
                }
                if (did.v[i].what == SUPERVISE_DO_SWEEP)
                    cr_assert_eq(live, 0, "swept while workers live");
            }
        }
        cr_assert_leq(n_finish, 1);
        cr_assert_eq(n_finish == 1, s.state == SUPERVISE_OVER);
    }
}

/* A restarted rendezvous counts rounds from 0, and does not know the messages about earlier ones. */
Test(supervise, new_session_drops_messages_of_old_rounds)
{
    supervise_init(&s, 1, SUPERVISE_GRACE_MS);
    supervise_set_rejoins(&s);
    assign(5, 0, 0);
    send_event((struct supervise_event){.kind = SUPERVISE_FENCED, .u.text = "cut off"}, 10);
    DID(SUPERVISE_DO_SEND_FAILED, SUPERVISE_DO_KILL);
    ended(0, CDI_END_SIGNAL, SIGKILL, 11);
    DID(SUPERVISE_DO_SWEEP);
    plain(SUPERVISE_SWEPT, 12);
    DID(SUPERVISE_DO_SEND_STOPPED, SUPERVISE_DO_REJOIN);
    plain(SUPERVISE_RESUMED, 13);
    DID(SUPERVISE_DO_SEND_FAILED, SUPERVISE_DO_SEND_STOPPED);
    supervise_reset_round(&s);
    plain(SUPERVISE_RESUMED, 14); /* by its nonce, before any ASSIGN */
    DID_NOTHING();
    round_over(0, 1, 15); /* whose ASSIGN was lost */
    DID(SUPERVISE_DO_SEND_STOPPED);
    cr_assert_eq(s.assign.round, 0);
    assign(1, 1, 16);
    DID(SUPERVISE_DO_SPAWN);
    supervise_reset_round(&s);
    cr_assert_eq(s.state, SUPERVISE_RUNNING, "only who waits is new");
}

/* -------------------------------------------------------------------------------------------- orderly stops ---- */

#define BIT(signal) (UINT64_C(1) << ((signal)-1))

/* A worker that exits after all ranks have agreed to stop. */
static void agreed(int local_rank, int code, int64_t now)
{
    struct supervise_event ev = {.kind = SUPERVISE_EXIT, .agreed = true};

    ev.u.end = (struct cdi_failure){.kind = CDI_END_EXIT, .code = code, .rank = local_rank, .local_rank = local_rank};
    send_event(ev, now);
}

static void start_two(uint64_t stop_signals)
{
    supervise_init(&s, 2, SUPERVISE_GRACE_MS);
    supervise_set_stop(&s, stop_signals, 85);
    assign(0, 0, 0);
}

Test(supervise, stop_is_on_purpose_if_all_workers_had_agreed)
{
    static const struct {
        int signal; /* 0: another node got it; -1: a rank requested it, and no signal came */
        enum cdi_close_status status;
    } how[] = {{SIGTERM, CDI_CLOSE_LEFT}, {SIGUSR1, CDI_CLOSE_LEFT}, {0, CDI_CLOSE_LEFT}, {-1, CDI_CLOSE_DONE}};

    for (size_t i = 0; i < sizeof how / sizeof how[0]; i++) {
        start_two(BIT(SIGUSR1));
        if (how[i].signal > 0)
            signalled(how[i].signal, 100);
        else if (how[i].signal == 0)
            over_by_a_leave(100);
        agreed(0, 0, 200);
        agreed(1, 85, 300); /* a worker may have cddprun's status */
        DID(SUPERVISE_DO_SWEEP);
        cr_assert_eq(s.first.kind, CDI_END_NONE);
        plain(SUPERVISE_SWEPT, 301);
        closed(how[i].status, 302);
        cr_assert(supervise_has_stopped(&s));
        cr_assert_eq(supervise_exit_status(&s), 85, "%zu: %d", i, supervise_exit_status(&s));
    }
}

Test(supervise, stop_is_not_on_purpose_if_one_worker_had_not_agreed)
{
    static const struct {
        bool agreed;
        enum cdi_end_kind kind;
        int code, status;
    } other[] = {{false, CDI_END_EXIT, 0, 143}, /* it may have left without a save */
                 {false, CDI_END_EXIT, 85, 143},
                 {true, CDI_END_EXIT, 1, 143},
                 {false, CDI_END_SIGNAL, SIGTERM, 143}};

    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        start_two(0);
        signalled(SIGTERM, 100);
        agreed(0, 0, 200);
        if (other[i].agreed)
            agreed(1, other[i].code, 300);
        else
            ended(1, other[i].kind, other[i].code, 300);
        plain(SUPERVISE_SWEPT, 301);
        cr_assert(!supervise_has_stopped(&s));
        cr_assert_eq(supervise_exit_status(&s), other[i].status, "%zu: %d", i, supervise_exit_status(&s));
    }
}

Test(supervise, failure_of_a_rank_that_had_agreed_is_one)
{
    start_two(0);
    agreed(0, 0, 200); /* a rank has requested the stop */
    agreed(1, 3, 300);
    DID(SUPERVISE_DO_PUBLISH_FAILURE, SUPERVISE_DO_SEND_FAILED, SUPERVISE_DO_SWEEP);
    plain(SUPERVISE_SWEPT, 301);
    closed(CDI_CLOSE_FAILED, 302);
    cr_assert_eq(supervise_exit_status(&s), 3);
}

Test(supervise, only_ranks_that_never_ask_get_the_signal_of_a_request)
{
    start_two(BIT(SIGUSR1));
    signalled(SIGUSR1, 100);
    DID(SUPERVISE_DO_SEND_LEAVE, SUPERVISE_DO_ASK);
    cr_assert_eq(did.v[1].signal, SIGTERM, "SIGUSR1 would end a program without a handler");
    cr_assert_eq(s.kill_at_ms, 100 + SUPERVISE_GRACE_MS);
}

Test(supervise, repeated_requests_never_kill)
{
    start_two(BIT(SIGUSR1) | BIT(SIGTERM));
    for (int64_t now = 100; now < 20000; now += 1000) {
        signalled(now % 2000 == 100 ? SIGUSR1 : SIGTERM, now);
        cr_assert_eq(did.n, now == 100 ? 2 : 0);
    }
    signalled(SIGINT, 21000);
    DID_NOTHING(); /* the first that is more than a request: the workers know already */
    cr_assert_eq(s.kill_at_ms, 100 + SUPERVISE_GRACE_MS);
    signalled(SIGINT, 22000);
    DID(SUPERVISE_DO_KILL);
    cr_assert_eq(did.v[0].signal, SIGKILL);
}

Test(supervise, killed_workers_have_not_stopped_on_purpose)
{
    start_two(0);
    signalled(SIGTERM, 100);
    agreed(0, 0, 200);
    plain(SUPERVISE_TICK, 100 + SUPERVISE_GRACE_MS);
    DID(SUPERVISE_DO_KILL);
    agreed(1, 0, 100 + SUPERVISE_GRACE_MS + 1); /* it was quicker */
    plain(SUPERVISE_SWEPT, 100 + SUPERVISE_GRACE_MS + 2);
    cr_assert_eq(supervise_exit_status(&s), 143);
}

Test(supervise, after_a_failure_workers_that_ask_get_the_signal_too)
{
    start_two(0);
    round_over(0, 5, 100);
    DID(SUPERVISE_DO_PUBLISH_FAILURE, SUPERVISE_DO_KILL);
    cr_assert_eq(did.v[1].signal, SIGTERM);
}

Test(supervise, next_round_of_an_elastic_job_has_not_stopped_yet)
{
    start_two(0);
    over_by_a_leave(100);
    agreed(0, 0, 200);
    agreed(1, 0, 201);
    plain(SUPERVISE_SWEPT, 202);
    DID(SUPERVISE_DO_SEND_STOPPED);
    assign(1, 0, 300);
    cr_assert(!supervise_has_stopped(&s));
    ended(0, CDI_END_EXIT, 0, 400);
    ended(1, CDI_END_EXIT, 0, 401);
    plain(SUPERVISE_SWEPT, 402);
    closed(CDI_CLOSE_DONE, 403);
    cr_assert_eq(supervise_exit_status(&s), 0);
}
