/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "hygiene.h"
#include "launcher/contact.h"

CDI_SUITE(contact);

#define LEASE 15000

static struct contact c;
static int64_t next;

static void joined(int64_t sent, int64_t answered)
{
    contact_init(&c, false);
    contact_joining(&c, sent);
    contact_welcome(&c, LEASE, answered);
}

Test(contact, nothing_is_due_before_the_first_welcome)
{
    contact_init(&c, false);
    contact_joining(&c, 5);
    cr_assert_eq(contact_look(&c, 1000000, &next), CONTACT_NOTHING);
    cr_assert_eq(next, CDI_NEVER_MS);
}

Test(contact, heartbeats_go_out_every_fifteenth_of_the_lease_while_they_are_answered)
{
    uint32_t seq;

    joined(0, 10);
    cr_assert_eq(contact_look(&c, 10, &next), CONTACT_NOTHING);
    cr_assert_eq(next, 1010);
    for (int64_t now = 1010; now < 100000; now += 1000) {
        cr_assert_eq(contact_look(&c, now, &next), CONTACT_BEAT);
        seq = contact_beat(&c, now);
        cr_assert_eq(contact_look(&c, now, &next), CONTACT_NOTHING);
        cr_assert_eq(next, now + 1000);
        contact_answer(&c, seq);
        cr_assert_eq(c.alive_ms, now);
    }
}

Test(contact, somebody_else_acts_after_the_fence_and_before_the_lease_is_over)
{
    uint32_t seq;

    contact_init(&c, false);
    contact_joining(&c, 0);
    cr_assert_eq(contact_act_by_ms(&c), CDI_NEVER_MS);
    contact_welcome(&c, LEASE, 10);
    cr_assert_eq(contact_act_by_ms(&c), LEASE * 5 / 6);
    seq = contact_beat(&c, 1010);
    cr_assert_eq(contact_act_by_ms(&c), LEASE * 5 / 6);
    contact_answer(&c, seq);
    cr_assert_eq(contact_act_by_ms(&c), 1010 + LEASE * 5 / 6);
    cr_assert_eq(contact_look(&c, 1010 + LEASE * 2 / 3, &next), CONTACT_FENCE);
    cr_assert_eq(contact_act_by_ms(&c), CDI_NEVER_MS);
    contact_init(&c, true);
    contact_joining(&c, 0);
    contact_welcome(&c, LEASE, 10);
    cr_assert_eq(contact_act_by_ms(&c), CDI_NEVER_MS);
}

/* As a caller does: what is due at each next_ms, until there is nothing more. */
static int64_t time_of(enum contact_do what)
{
    int64_t now = 0;
    enum contact_do due;

    for (int i = 0; i < 1000; i++) {
        due = contact_look(&c, now, &next);
        if (due == what)
            return now;
        if (due == CONTACT_BEAT)
            (void)contact_beat(&c, now);
        if (due == CONTACT_NOTHING)
            now = next;
        if (now == CDI_NEVER_MS)
            break;
    }
    return -1;
}

Test(contact, silence_is_met_by_a_new_connection_and_at_two_thirds_of_the_lease_by_the_end)
{
    joined(0, 10);
    cr_assert_eq(time_of(CONTACT_RECONNECT), LEASE / 5);
    cr_assert_eq(time_of(CONTACT_FENCE), LEASE * 2 / 3);
    cr_assert_eq(contact_look(&c, 20000, &next), CONTACT_NOTHING, "once");
    cr_assert_eq(next, CDI_NEVER_MS);
}

Test(contact, it_counts_from_the_sending_of_what_was_answered)
{
    uint32_t seq;

    joined(0, 4000);
    cr_assert_eq(c.alive_ms, 0, "the rendezvous may have heard JOIN at once");
    seq = contact_beat(&c, 5000);
    (void)contact_beat(&c, 6000);
    contact_answer(&c, seq);
    cr_assert_eq(c.alive_ms, 5000);
    contact_answer(&c, seq - 1);
    cr_assert_eq(c.alive_ms, 5000, "never back");
    cr_assert_eq(contact_look(&c, 5000 + LEASE * 2 / 3, &next), CONTACT_FENCE, "also for who was stopped meanwhile");
}

Test(contact, coming_back_in_time_starts_the_count_again)
{
    uint32_t old;

    joined(0, 10);
    old = contact_beat(&c, 1000);
    cr_assert_eq(time_of(CONTACT_RECONNECT), LEASE / 5);
    contact_joining(&c, 8000);
    cr_assert_eq(contact_look(&c, 8001, &next), CONTACT_NOTHING);
    cr_assert_eq(next, LEASE * 2 / 3);
    contact_welcome(&c, LEASE, 8100);
    contact_answer(&c, old);
    cr_assert_eq(c.alive_ms, 8000);
    cr_assert_eq(contact_look(&c, 9100, &next), CONTACT_BEAT);
    contact_answer(&c, contact_beat(&c, 9100));
    cr_assert_eq(c.alive_ms, 9100);
}

Test(contact, a_rendezvous_in_this_process_stops_and_goes_on_with_it)
{
    contact_init(&c, true);
    contact_joining(&c, 0);
    contact_welcome(&c, LEASE, 1);
    cr_assert_eq(contact_look(&c, 1000000, &next), CONTACT_BEAT);
    (void)contact_beat(&c, 1000000);
    cr_assert_eq(contact_look(&c, 1000000, &next), CONTACT_NOTHING);
    cr_assert_eq(next, 1001000);
}
