/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "hygiene.h"
#include "launcher/agent/lease.h"

CDI_SUITE(lease);

#define LEASE 15000

static struct lease c;
static int64_t next;

static void joined(int64_t sent, int64_t answered)
{
    lease_init(&c, false, false);
    lease_joining(&c, sent);
    lease_welcome(&c, LEASE, answered);
}

Test(lease, nothing_due_before_first_welcome)
{
    lease_init(&c, false, false);
    lease_joining(&c, 5);
    cr_assert_eq(lease_look(&c, 1000000, &next), LEASE_NOTHING);
    cr_assert_eq(next, CDI_NEVER_MS);
}

Test(lease, beats_every_fifteenth_while_answered)
{
    uint32_t seq;

    joined(0, 10);
    cr_assert_eq(lease_look(&c, 10, &next), LEASE_NOTHING);
    cr_assert_eq(next, 1010);
    for (int64_t now = 1010; now < 100000; now += 1000) {
        cr_assert_eq(lease_look(&c, now, &next), LEASE_BEAT);
        seq = lease_beat(&c, now);
        cr_assert_eq(lease_look(&c, now, &next), LEASE_NOTHING);
        cr_assert_eq(next, now + 1000);
        lease_answer(&c, seq);
        cr_assert_eq(c.alive_ms, now);
    }
}

/* Acts as a caller: handles the actions due at each next_ms, until none is left. */
static int64_t time_of(enum lease_action what)
{
    int64_t now = 0;
    enum lease_action due;

    for (int i = 0; i < 1000; i++) {
        due = lease_look(&c, now, &next);
        if (due == what)
            return now;
        if (due == LEASE_BEAT)
            (void)lease_beat(&c, now);
        if (due == LEASE_NOTHING)
            now = next;
        if (now == CDI_NEVER_MS)
            break;
    }
    return -1;
}

Test(lease, guard_acts_between_fence_and_lease_end)
{
    uint32_t seq;

    lease_init(&c, false, false);
    lease_joining(&c, 0);
    cr_assert_eq(lease_act_by_ms(&c), CDI_NEVER_MS);
    lease_welcome(&c, LEASE, 10);
    cr_assert_eq(lease_act_by_ms(&c), LEASE * 5 / 6);
    seq = lease_beat(&c, 1010);
    cr_assert_eq(lease_act_by_ms(&c), LEASE * 5 / 6);
    lease_answer(&c, seq);
    cr_assert_eq(lease_act_by_ms(&c), 1010 + LEASE * 5 / 6);
    cr_assert_eq(time_of(LEASE_FENCE), 1010 + LEASE * 2 / 3);
    cr_assert_eq(lease_act_by_ms(&c), CDI_NEVER_MS);
    lease_init(&c, true, true);
    lease_joining(&c, 0);
    lease_welcome(&c, LEASE, 10);
    cr_assert_eq(lease_act_by_ms(&c), CDI_NEVER_MS);
    lease_init(&c, true, false); /* others wait for it */
    lease_joining(&c, 0);
    lease_welcome(&c, LEASE, 10);
    cr_assert_eq(lease_act_by_ms(&c), LEASE * 5 / 6);
    lease_answer(&c, lease_beat(&c, 5000));
    cr_assert_eq(lease_act_by_ms(&c), 5000 + LEASE * 5 / 6);
    /* Stopped with the rest of the node for a long time, and continued: it has acted. */
    (void)lease_look(&c, 10 * LEASE, &next);
    cr_assert_eq(lease_act_by_ms(&c), 10 * LEASE + LEASE * 5 / 6);
}

Test(lease, silence_reconnects_then_fences_at_two_thirds)
{
    joined(0, 10);
    cr_assert_eq(time_of(LEASE_RECONNECT), LEASE / 5);
    cr_assert_eq(time_of(LEASE_FENCE), LEASE * 2 / 3);
    cr_assert_eq(lease_look(&c, 20000, &next), LEASE_NOTHING, "once");
    cr_assert_eq(next, CDI_NEVER_MS);
}

Test(lease, agent_without_workers_waits_for_two_leases)
{
    joined(0, 10);
    c.idle = true;
    cr_assert_eq(lease_act_by_ms(&c), CDI_NEVER_MS, "the guard has no workers to end");
    cr_assert_eq(time_of(LEASE_RECONNECT), LEASE / 5);
    joined(0, 10);
    c.idle = true;
    cr_assert_eq(time_of(LEASE_FENCE), 2 * LEASE);
}

Test(lease, counts_from_send_time_of_answered_message)
{
    uint32_t seq;

    joined(0, 4000);
    cr_assert_eq(c.alive_ms, 0, "the rendezvous may have heard JOIN at once");
    seq = lease_beat(&c, 5000);
    (void)lease_beat(&c, 6000);
    lease_answer(&c, seq);
    cr_assert_eq(c.alive_ms, 5000);
    lease_answer(&c, seq - 1);
    cr_assert_eq(c.alive_ms, 5000, "never back");
    cr_assert_eq(time_of(LEASE_FENCE), 5000 + LEASE * 2 / 3);
}

/* The process does not run from `from`, when nothing was due before 1 s later, to `to`. */
static enum lease_action stopped(int64_t from, int64_t to)
{
    cr_assert_eq(lease_look(&c, from, &next), LEASE_NOTHING);
    cr_assert_gt(next, from);
    return lease_look(&c, to, &next);
}

Test(lease, stopped_time_counts_only_if_rendezvous_counts_it)
{
    uint32_t old, seq;

    joined(0, 10);
    cr_assert_eq(lease_look(&c, 1010, &next), LEASE_BEAT);
    old = lease_beat(&c, 1010);
    cr_assert_eq(stopped(1011, 22010), LEASE_HOLD);
    cr_assert(c.held);
    cr_assert_eq(c.still_ms, 20000, "the next look was to be at 2010");
    cr_assert_eq(lease_act_by_ms(&c), 20000 + LEASE * 5 / 6);
    cr_assert_eq(lease_look(&c, 22010, &next), LEASE_BEAT);
    seq = lease_beat(&c, 22010);
    lease_answer(&c, old);
    cr_assert(c.held, "an answer from before the stop says nothing");
    lease_answer(&c, seq);
    cr_assert_not(c.held);
    cr_assert_eq(c.alive_ms, 22010);
    cr_assert_eq(lease_look(&c, 22011, &next), LEASE_NOTHING);
    cr_assert_eq(next, 23010);
}

Test(lease, stopped_without_answer_fences_after_usual_time)
{
    joined(0, 10);
    cr_assert_eq(stopped(10, 30010), LEASE_HOLD); /* 29 s: a look was due at 1010 */
    cr_assert_eq(time_of(LEASE_RECONNECT), 29000 + LEASE / 5);
    cr_assert(c.held);
    cr_assert_eq(time_of(LEASE_FENCE), 29000 + LEASE * 2 / 3);
    cr_assert(c.fenced);
    cr_assert_eq(lease_look(&c, 100000, &next), LEASE_NOTHING);
}

/* Something else may have made the workers go on. */
Test(lease, repeats_hold_without_connection)
{
    joined(0, 10);
    cr_assert_eq(stopped(10, 30010), LEASE_HOLD);
    lease_broken(&c);
    cr_assert_eq(lease_look(&c, 30010, &next), LEASE_HOLD);
    cr_assert_eq(lease_look(&c, 30010, &next), LEASE_NOTHING);
    cr_assert_eq(next, 30010 + LEASE / 15);
    cr_assert_eq(lease_look(&c, next, &next), LEASE_HOLD);
    lease_joining(&c, 31020);
    lease_welcome(&c, LEASE, 31030);
    cr_assert_eq(lease_look(&c, 31030, &next), LEASE_NOTHING);
}

Test(lease, reconnect_ends_hold)
{
    joined(0, 10);
    cr_assert_eq(stopped(10, 30010), LEASE_HOLD);
    lease_broken(&c);
    lease_joining(&c, 30020);
    lease_welcome(&c, LEASE, 30030);
    cr_assert_not(c.held);
    cr_assert_eq(c.alive_ms, 30020);
}

Test(lease, short_stop_does_not_hold)
{
    joined(0, 10);
    cr_assert_eq(stopped(10, LEASE / 5 - 1), LEASE_BEAT);
    cr_assert_not(c.held);
}

/* A new connection would take longer than is left until the fence. */
Test(lease, stop_ending_before_fence_keeps_connection)
{
    joined(0, 10);
    cr_assert_eq(stopped(10, LEASE * 2 / 3 - 1), LEASE_HOLD);
    cr_assert_eq(lease_look(&c, LEASE * 2 / 3 - 1, &next), LEASE_BEAT);
    lease_answer(&c, lease_beat(&c, LEASE * 2 / 3 - 1));
    cr_assert_not(c.held);
    cr_assert_eq(c.alive_ms, LEASE * 2 / 3 - 1);
}

/* Answers are missing for 9 s in which it ran: of these the stop does not take anything back. */
Test(lease, silence_before_stop_counts)
{
    joined(0, 10);
    cr_assert_eq(time_of(LEASE_RECONNECT), LEASE / 5); /* it runs until then */
    c.look_ms = 9000;                                  /* as if a connection had been tried until then */
    cr_assert_eq(lease_look(&c, 40000, &next), LEASE_HOLD);
    cr_assert_eq(lease_look(&c, 40000, &next), LEASE_HOLD, "without a connection it is repeated");
    cr_assert_eq(lease_look(&c, 40000, &next), LEASE_NOTHING);
    cr_assert_eq(next, 41000);
    cr_assert_eq(lease_look(&c, 41000, &next), LEASE_FENCE);
}

Test(lease, reconnect_in_time_restarts_count)
{
    uint32_t old;

    joined(0, 10);
    old = lease_beat(&c, 1000);
    cr_assert_eq(time_of(LEASE_RECONNECT), LEASE / 5);
    lease_joining(&c, 8000);
    cr_assert_eq(lease_look(&c, 8001, &next), LEASE_NOTHING);
    cr_assert_eq(next, LEASE * 2 / 3);
    lease_welcome(&c, LEASE, 8100);
    lease_answer(&c, old);
    cr_assert_eq(c.alive_ms, 8000);
    cr_assert_eq(lease_look(&c, 9100, &next), LEASE_BEAT);
    lease_answer(&c, lease_beat(&c, 9100));
    cr_assert_eq(c.alive_ms, 9100);
}

/* A firewall or an administrator may end that connection, too. */
Test(lease, broken_connection_to_own_rendezvous_ends_as_any_other)
{
    lease_init(&c, true, false);
    lease_joining(&c, 0);
    lease_welcome(&c, LEASE, 1);
    cr_assert_eq(lease_look(&c, 1000, &next), LEASE_NOTHING);
    lease_broken(&c);
    cr_assert_eq(lease_look(&c, 1000, &next), LEASE_NOTHING);
    cr_assert_eq(next, 1000 + LEASE * 2 / 3);
    cr_assert_eq(lease_look(&c, next, &next), LEASE_FENCE);
}

Test(lease, own_rendezvous_stops_with_process)
{
    lease_init(&c, true, true);
    lease_joining(&c, 0);
    lease_welcome(&c, LEASE, 1);
    cr_assert_eq(lease_look(&c, 1000000, &next), LEASE_BEAT);
    (void)lease_beat(&c, 1000000);
    cr_assert_eq(lease_look(&c, 1000000, &next), LEASE_NOTHING);
    cr_assert_eq(next, 1001000);
    cr_assert_eq(lease_look(&c, 2000000, &next), LEASE_BEAT);
    cr_assert_not(lease_was_stopped(&c, 3000000));
}
