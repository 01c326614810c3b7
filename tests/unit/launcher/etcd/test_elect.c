/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "hygiene.h"
#include "launcher/etcd/elect.h"

CDI_SUITE(elect);

#define TTL 15000

static struct elect e;
static struct elect_actions todo;

static void give(struct elect_event ev, int64_t now)
{
    elect_handle(&e, &ev, now, &todo);
}

static void answer(struct elect_answer a, int64_t now)
{
    give((struct elect_event){.kind = ELECT_EV_ANSWER, .answer = &a}, now);
}

static void start(void)
{
    elect_init(&e, TTL, 600000, "e1:2379", "/cddp/job/host");
    give((struct elect_event){.kind = ELECT_EV_START}, 0);
}

static struct elect_answer held_by(int64_t epoch)
{
    return (struct elect_answer){.host = {.is = true, .epoch = epoch, .lease = 77, .addr = "10.0.0.1", .port = 5}};
}

/* Its lease was asked for at 100, and the key created at 300; the lease renewed by a request at 300. */
static void host(void)
{
    start();
    answer((struct elect_answer){0}, 100);
    answer((struct elect_answer){.lease = 7, .ttl_ms = TTL}, 200);
    answer((struct elect_answer){.won = true, .epoch = 40}, 300);
}

/* Checks the actions, of which the last ELECT_DO_ASK has this request. */
#define DOES(n_, ask_, ...)                                                \
    do {                                                                   \
        const enum elect_action_kind expected_[] = {__VA_ARGS__};          \
        enum elect_ask asked_ = ELECT_ASK_NONE;                            \
        cr_assert_eq(todo.n, (unsigned)(n_));                              \
        for (unsigned i_ = 0; i_ < todo.n; i_++) {                         \
            cr_assert_eq(todo.v[i_].what, expected_[i_], "action %u", i_); \
            if (todo.v[i_].what == ELECT_DO_ASK)                           \
                asked_ = todo.v[i_].ask;                                   \
        }                                                                  \
        cr_assert_eq(asked_, (ask_));                                      \
    } while (0)

Test(elect, first_node_takes_a_lease_listens_and_creates_the_key)
{
    start();
    DOES(1, ELECT_ASK_LOOK, ELECT_DO_ASK);
    answer((struct elect_answer){0}, 100);
    DOES(1, ELECT_ASK_GRANT, ELECT_DO_ASK);
    answer((struct elect_answer){.lease = 7, .ttl_ms = TTL}, 200);
    DOES(2, ELECT_ASK_CAMPAIGN, ELECT_DO_LISTEN, ELECT_DO_ASK);
    cr_assert_eq(elect_answers_until_ms(&e), 0);
    answer((struct elect_answer){.won = true, .epoch = 40}, 300);
    DOES(2, ELECT_ASK_KEEP, ELECT_DO_HOST, ELECT_DO_ASK);
    cr_assert_eq(elect_answers_until_ms(&e), 100 + TTL / 5); /* the lease counts from its request */
}

Test(elect, other_nodes_join_and_ask_again_only_without_the_host)
{
    start();
    answer(held_by(40), 100);
    DOES(1, ELECT_ASK_NONE, ELECT_DO_JOIN);
    give((struct elect_event){.kind = ELECT_EV_LINK, .linked = true}, 150);
    cr_assert_eq(elect_next_ms(&e), CDI_NEVER_MS);
    give((struct elect_event){.kind = ELECT_EV_LINK}, 5000);
    cr_assert_eq(elect_next_ms(&e), 5000);
    give((struct elect_event){.kind = ELECT_EV_TICK}, 5000);
    DOES(1, ELECT_ASK_LOOK, ELECT_DO_ASK);
    answer(held_by(40), 5010); /* the same: its lease has not ended */
    DOES(0, ELECT_ASK_NONE, ELECT_DO_ASK);
    cr_assert_eq(elect_next_ms(&e), 5010 + ELECT_POLL_MS);
    give((struct elect_event){.kind = ELECT_EV_TICK}, 5260);
    answer(held_by(41), 5270);
    DOES(1, ELECT_ASK_NONE, ELECT_DO_JOIN);
}

Test(elect, node_whose_key_came_second_follows)
{
    struct elect_answer other = held_by(41);

    start();
    answer((struct elect_answer){0}, 100);
    answer((struct elect_answer){.lease = 7, .ttl_ms = TTL}, 200);
    answer(other, 300);
    DOES(2, ELECT_ASK_NONE, ELECT_DO_UNLISTEN, ELECT_DO_JOIN);
}

Test(elect, key_whose_answer_was_lost_is_recognized_by_its_lease)
{
    struct elect_answer own = held_by(41);

    own.host.lease = 7;
    start();
    answer((struct elect_answer){0}, 100);
    answer((struct elect_answer){.lease = 7, .ttl_ms = TTL}, 200);
    answer((struct elect_answer){.failed = true, .text = "no answer"}, 2200);
    DOES(0, ELECT_ASK_NONE, ELECT_DO_ASK); /* the server stays: others may find its key */
    give((struct elect_event){.kind = ELECT_EV_TICK}, elect_next_ms(&e));
    answer(own, 2400);
    DOES(2, ELECT_ASK_KEEP, ELECT_DO_HOST, ELECT_DO_ASK);
    cr_assert_eq(elect_answers_until_ms(&e), 100 + TTL / 5);
}

Test(elect, lease_counts_from_the_request_and_only_with_the_key)
{
    struct elect_answer own = held_by(40);

    own.host.lease = 7;
    host();
    answer((struct elect_answer){.ttl_ms = TTL}, 900);
    DOES(1, ELECT_ASK_LOOK, ELECT_DO_ASK);
    cr_assert_eq(elect_answers_until_ms(&e), 100 + TTL / 5);
    cr_assert_eq(elect_alone_until_ms(&e), 100 + TTL * 19 / 20);
    answer(own, 1000);
    cr_assert_eq(elect_answers_until_ms(&e), 300 + TTL / 5);
    cr_assert_eq(elect_alone_until_ms(&e), 300 + TTL * 19 / 20);
    cr_assert_eq(elect_next_ms(&e), 300 + TTL / 15);
}

Test(elect, host_without_lease_or_key_closes_its_server)
{
    host();
    answer((struct elect_answer){.ttl_ms = 0}, 900);
    DOES(1, ELECT_ASK_NONE, ELECT_DO_UNHOST);
    cr_assert_not_null(strstr(todo.text, "its lease in etcd has ended"));
    cr_assert_eq(elect_answers_until_ms(&e), 0);
    host();
    answer((struct elect_answer){.ttl_ms = TTL}, 900);
    answer((struct elect_answer){0}, 1000);
    DOES(1, ELECT_ASK_NONE, ELECT_DO_UNHOST);
    cr_assert_not_null(strstr(todo.text, "its key in etcd was deleted"));
    host();
    answer((struct elect_answer){.ttl_ms = TTL}, 900);
    answer(held_by(41), 1000);
    cr_assert_not_null(strstr(todo.text, "its key in etcd was replaced"));
    host();
    answer((struct elect_answer){.failed = true, .text = "no answer"}, 900);
    give((struct elect_event){.kind = ELECT_EV_TICK}, 100 + TTL);
    DOES(1, ELECT_ASK_NONE, ELECT_DO_UNHOST);
}

/* Such as by a cleaner of keys. A host whose key was seen has the shortest wait again. */
Test(elect, elections_lost_at_once_are_repeated_with_growing_waits)
{
    struct elect_answer own = held_by(40);
    int64_t now, waits[] = {50, 100, 200, 400, 800, ELECT_RETRY_MAX_MS, ELECT_RETRY_MAX_MS};

    own.host.lease = 7;
    host();
    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        now = e.granted_ms + 200;
        answer((struct elect_answer){.ttl_ms = TTL}, now);
        answer((struct elect_answer){.ttl_ms = TTL}, now); /* the key is missing */
        cr_assert_eq(todo.v[0].what, ELECT_DO_UNHOST);
        cr_assert_eq(elect_next_ms(&e), now + waits[i], "after %zu losses: %lld ms", i + 1,
                     (long long)(elect_next_ms(&e) - now));
        now += waits[i];
        give((struct elect_event){.kind = ELECT_EV_TICK}, now);
        answer((struct elect_answer){0}, now);
        answer((struct elect_answer){.lease = 7, .ttl_ms = TTL}, now);
        answer((struct elect_answer){.won = true, .epoch = 40}, now);
    }
    answer((struct elect_answer){.ttl_ms = TTL}, now);
    answer(own, now);
    give((struct elect_event){.kind = ELECT_EV_TICK}, elect_next_ms(&e));
    answer((struct elect_answer){.ttl_ms = 0}, now + TTL / 15);
    cr_assert_eq(elect_next_ms(&e), now + TTL / 15 + 50);
}

Test(elect, one_message_reports_that_the_host_waits_for_etcd)
{
    struct elect_answer own = held_by(40), none = {.failed = true, .text = "no answer"};
    unsigned said = 0;

    own.host.lease = 7;
    host();
    for (int64_t now = 2000; now < 9000; now += 1000) {
        answer(none, now);
        said += todo.n;
        give((struct elect_event){.kind = ELECT_EV_TICK}, elect_next_ms(&e));
    }
    cr_assert_eq(said, 1);
    answer((struct elect_answer){.ttl_ms = TTL}, 9100);
    answer(own, 9200);
    DOES(1, ELECT_ASK_NONE, ELECT_DO_WAITING);
    cr_assert_not_null(strstr(todo.text, "answers again"));
}

Test(elect, foreign_value_and_fatal_errors_end_it)
{
    struct elect_answer foreign = {.host = {.is = true, .foreign = true, .epoch = 3}};

    start();
    answer(foreign, 100);
    DOES(1, ELECT_ASK_NONE, ELECT_DO_FAIL);
    cr_assert_not_null(strstr(todo.text, "'/cddp/job/host' in etcd at e1:2379"));
    start();
    answer((struct elect_answer){.failed = true, .fatal = true, .text = "permission denied"}, 100);
    DOES(1, ELECT_ASK_NONE, ELECT_DO_FAIL);
    start();
    answer((struct elect_answer){.failed = true, .text = "connection refused"}, 100);
    give((struct elect_event){.kind = ELECT_EV_TICK}, 600000);
    DOES(1, ELECT_ASK_NONE, ELECT_DO_FAIL);
    cr_assert_not_null(strstr(todo.text, "connection refused"));
}

Test(elect, node_of_an_ended_job_does_not_begin_it_again)
{
    start();
    answer(held_by(40), 100);
    give((struct elect_event){.kind = ELECT_EV_ROUND}, 200);
    give((struct elect_event){.kind = ELECT_EV_TICK}, 350);
    answer((struct elect_answer){.over = 50, .over_done = true}, 360);
    DOES(0, ELECT_ASK_NONE, ELECT_DO_ASK);
    give((struct elect_event){.kind = ELECT_EV_TICK}, 360 + ELECT_OVER_WAIT_MS);
    DOES(1, ELECT_ASK_NONE, ELECT_DO_OVER);
    cr_assert(e.done);
    start(); /* a new job of the same name */
    answer((struct elect_answer){.over = 50}, 360);
    DOES(1, ELECT_ASK_GRANT, ELECT_DO_ASK);
}

Test(elect, host_gives_its_key_up_only_if_nothing_runs)
{
    host();
    answer((struct elect_answer){.failed = true}, 400);
    give((struct elect_event){.kind = ELECT_EV_END}, 500);
    DOES(1, ELECT_ASK_NONE, ELECT_DO_ENDED);
    host();
    answer((struct elect_answer){.failed = true}, 400);
    give((struct elect_event){.kind = ELECT_EV_END, .give_up = true}, 500);
    DOES(1, ELECT_ASK_REVOKE, ELECT_DO_ASK);
    answer((struct elect_answer){0}, 600);
    DOES(1, ELECT_ASK_NONE, ELECT_DO_ENDED);
    host();
    give((struct elect_event){.kind = ELECT_EV_END, .over = true, .done = true}, 500);
    DOES(0, ELECT_ASK_NONE, ELECT_DO_ASK); /* a request is under way */
    answer((struct elect_answer){.ttl_ms = TTL}, 600);
    DOES(1, ELECT_ASK_TOMB, ELECT_DO_ASK);
    answer((struct elect_answer){.failed = true}, 700);
    give((struct elect_event){.kind = ELECT_EV_TICK}, elect_next_ms(&e));
    DOES(1, ELECT_ASK_TOMB, ELECT_DO_ASK);
    answer((struct elect_answer){.lease = 9, .ttl_ms = 600000}, 900);
    DOES(1, ELECT_ASK_CLOSE, ELECT_DO_ASK);
    answer((struct elect_answer){0}, 1000);
    DOES(1, ELECT_ASK_REVOKE, ELECT_DO_ASK);
    give((struct elect_event){.kind = ELECT_EV_TICK}, 500 + ELECT_END_MS);
    DOES(1, ELECT_ASK_NONE, ELECT_DO_ENDED);
}

/* The sum of the times in elect.h: the last worker of a host is dead before another host may be elected. */
Test(elect, times_leave_no_room_for_two_worlds)
{
    for (int64_t ttl = 1000; ttl < 4000000; ttl = ttl * 3 / 2)
        cr_assert_lt(ttl / 5 + ELECT_AGENT_LEASE_MS(ttl) * 5 / 6, ttl);
}
