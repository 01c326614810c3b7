/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include "hygiene.h"
#include "protocol/flight.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

CDI_SUITE(flight);

static struct cdi_flight *agent_page(int *fd, char env[128])
{
    struct cdi_flight *f;

    cr_assert_eq(cdi_flight_create(&f, 3, fd, NULL), CDDP_OK);
    cdi_flight_env(f, *fd, *fd, env, 128);
    return f;
}

Test(flight, agent_reads_records_of_worker)
{
    char env[128];
    int fd;
    struct cdi_flight *agent = agent_page(&fd, env), *worker;
    struct cdi_flight_view v;

    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    cr_assert(cdi_flight_has_agent(worker));
    for (int i = 0; i < 1000; i++) {
        uint64_t seq = cdi_flight_enqueue(worker, CDI_FLIGHT_ALL_REDUCE, 8, 100 + (uint64_t)i, i % 4);

        cdi_flight_start(worker, seq);
        if (i < 997)
            cdi_flight_done(worker, seq);
    }
    cdi_flight_step(worker, 12);
    cdi_flight_read(agent, &v);
    cr_assert_eq(v.claimed_pid, getpid());
    cr_assert_eq(v.step, 12);
    cr_assert_eq(v.last.seq, 1000);
    cr_assert_eq(v.last.count, 1099);
    cr_assert_eq(v.oldest_unfinished.seq, 998, "997 were done");
    cr_assert_eq(v.oldest_unfinished.bucket, 997 % 4);
    cr_assert_gt(v.last.enqueued_ns, 0);
    cr_assert_geq(v.last.started_ns, v.last.enqueued_ns, "one clock, which never goes back");
    cr_assert_eq(v.last.done_ns, 0);
    cdi_flight_done(worker, 1000);
    cdi_flight_read(agent, &v);
    cr_assert_geq(v.last.done_ns, v.last.started_ns);
    cr_assert_str_eq(cdi_flight_op_name(v.last.op), "all_reduce");
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    close(fd);
}

Test(flight, running_collective_keeps_name_with_many_pending_ones)
{
    const uint64_t begun = 40 * CDI_FLIGHT_RING + 7;
    char env[128];
    int fd;
    struct cdi_flight *agent = agent_page(&fd, env), *worker;
    struct cdi_flight_view v;

    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    for (uint64_t i = 1; i <= begun; i++)
        cr_assert_eq(cdi_flight_enqueue(worker, i % 3 == 0 ? CDI_FLIGHT_BARRIER : CDI_FLIGHT_BROADCAST, 8, i, -1), i);
    for (uint64_t i = 1; i <= begun; i++) {
        cdi_flight_start(worker, i);
        cdi_flight_read(agent, &v);
        cr_assert_eq(v.oldest_unfinished.seq, i);
        cr_assert_eq(v.oldest_unfinished.count, i);
        cr_assert_eq(v.oldest_unfinished.op, i % 3 == 0 ? CDI_FLIGHT_BARRIER : CDI_FLIGHT_BROADCAST);
        cr_assert_gt(v.oldest_unfinished.started_ns, 0);
        cr_assert_eq(v.last.seq, begun);
        cdi_flight_done(worker, i);
    }
    cdi_flight_read(agent, &v);
    cr_assert_eq(v.oldest_unfinished.seq, 0, "all are done");
    cr_assert_gt(v.last.done_ns, 0);
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    close(fd);
}

/* It runs while others are begun: the ring forgets it then. */
Test(flight, running_collective_stays_on_page)
{
    char env[128];
    int fd;
    struct cdi_flight *agent = agent_page(&fd, env), *worker;
    struct cdi_flight_view v;

    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    cdi_flight_start(worker, cdi_flight_enqueue(worker, CDI_FLIGHT_RECV, 8, 5, -1));
    for (int i = 0; i < 600; i++)
        (void)cdi_flight_enqueue(worker, CDI_FLIGHT_BARRIER, 0, 0, -1);
    cdi_flight_read(agent, &v);
    cr_assert_eq(v.oldest_unfinished.seq, 1);
    cr_assert_str_eq(cdi_flight_op_name(v.oldest_unfinished.op), "recv");
    cdi_flight_done(worker, 1);
    cdi_flight_start(worker, 2);
    cdi_flight_read(agent, &v);
    cr_assert_eq(v.oldest_unfinished.seq, 2);
    cr_assert_eq(v.last.seq, 601);
    cr_assert_eq(v.last.done_ns, 0, "the first one's end is not that of what took its place");
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    close(fd);
}

Test(flight, worker_gets_only_the_first_death)
{
    char env[128];
    int fd;
    struct cdi_flight *agent = agent_page(&fd, env), *worker;
    struct cdi_error err;
    uint32_t before;

    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    cr_assert_eq(cdi_flight_check(worker, &err), CDDP_OK);
    before = atomic_load(cdi_flight_wake_word(worker));
    cdi_flight_tell_death(agent, 3, "rank 3 died");
    cdi_flight_tell_death(agent, 1, "rank 1 died");
    cr_assert_neq(atomic_load(cdi_flight_wake_word(worker)), before);
    cr_assert_eq(cdi_flight_check(worker, &err), CDDP_E_PEER);
    cr_assert_str_eq(err.msg, "rank 3 died");
    cdi_flight_tell_round_over(agent);
    cr_assert_eq(cdi_flight_check(worker, &err), CDDP_E_PEER, "the cause stays");
    cdi_flight_tell_stop_wanted(agent);
    cr_assert(cdi_flight_stop_wanted(worker));
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    close(fd);
}

static void *move_on(void *agent)
{
    const struct timespec pause = {.tv_nsec = 30000000};

    (void)nanosleep(&pause, NULL); /* the worker waits meanwhile */
    cdi_flight_tell_alone_until(agent, cdi_now_ms() + 600000);
    return NULL;
}

Test(flight, result_waits_for_the_agent_after_the_lease)
{
    char env[128];
    int fd;
    struct cdi_flight *agent = agent_page(&fd, env), *worker;
    struct cdi_error err;
    int64_t began = cdi_now_ms();
    pthread_t thread;

    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    cr_assert_eq(cdi_flight_confirm(worker, &err), CDDP_OK, "no lease");
    cdi_flight_tell_alone_until(agent, began + 600000);
    cr_assert_eq(cdi_flight_confirm(worker, &err), CDDP_OK);
    cdi_flight_tell_alone_until(agent, began - 1);
    cr_assert_eq(pthread_create(&thread, NULL, move_on, agent), 0);
    cr_assert_eq(cdi_flight_confirm(worker, &err), CDDP_OK);
    cr_assert_geq(cdi_now_ms(), began + 30);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cdi_flight_tell_alone_until(agent, began - 1);
    cdi_flight_tell_round_over(agent);
    cr_assert_eq(cdi_flight_confirm(worker, &err), CDDP_E_ABORTED);
    cr_assert_str_eq(err.msg, "the launcher has ended this round of the job");
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    close(fd);
}

Test(flight, ended_rank_ends_no_wait_but_is_reported_as_missing)
{
    char env[128];
    int fd;
    struct cdi_flight *agent = agent_page(&fd, env), *worker;
    struct cdi_flight_view v;
    uint32_t woken;

    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    woken = atomic_load(cdi_flight_wake_word(worker));
    cdi_flight_tell_ended(agent, 0);
    cr_assert_neq(atomic_load(cdi_flight_wake_word(worker)), woken, "waits look around again");
    cr_assert_eq(cdi_flight_check(worker, NULL), CDDP_OK);
    cr_assert(cdi_flight_has_ended(worker, 0));
    cr_assert_not(cdi_flight_has_ended(worker, 1));
    for (int rank = 1; rank < 100; rank++)
        cdi_flight_tell_ended(agent, rank);
    cr_assert(cdi_flight_has_ended(worker, 63));
    cr_assert(cdi_flight_ended(worker, 0) == 0 && cdi_flight_ended(worker, 64) == -1);
    cr_assert_not(cdi_flight_has_ended(worker, 64), "there is room for 64");
    cdi_flight_read(agent, &v);
    cr_assert_eq(v.missed_rank, -1);
    cdi_flight_miss(worker, 0);
    cdi_flight_miss(worker, 5);
    cdi_flight_read(agent, &v);
    cr_assert_eq(v.missed_rank, 0, "the first one stays");
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    (void)close(fd);
}

Test(flight, a_page_is_claimed_once)
{
    char env[128];
    int fd, status;
    struct cdi_flight *agent = agent_page(&fd, env), *worker;
    pid_t child;

    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    child = fork();
    if (child == 0) {
        struct cdi_flight *other;

        _exit(cdi_flight_attach(&other, env, NULL) == CDDP_OK && !cdi_flight_has_agent(other) ? 0 : 1);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "a second process got a private page");
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    close(fd);
}

Test(flight, uses_path_if_descriptor_is_closed)
{
    char env[128], other[160];
    int fd;
    struct cdi_flight *agent = agent_page(&fd, env), *worker;

    (void)snprintf(other, sizeof other, "fd:999%s", strchr(env, ','));
    cr_assert_eq(cdi_flight_attach(&worker, other, NULL), CDDP_OK);
    cr_assert(cdi_flight_has_agent(worker));
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    close(fd);
}

Test(flight, last_error_of_a_worker_is_there_after_its_end)
{
    char env[128], text[CDI_ERROR_TEXT];
    int fd;
    struct cdi_flight *agent = agent_page(&fd, env), *worker;
    struct cdi_flight_note *note;
    struct cdi_flight_error e;
    struct cdi_error err;
    int64_t began_ns = cdi_now_ns();

    cdi_flight_error(agent, &e);
    cr_assert(e.status == CDDP_OK && e.blamed == -1 && e.at_ns == 0);
    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    note = cdi_flight_error_note(worker);
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    (void)cdi_fail_by(&err, 3, CDDP_E_PEER, "%s", text);
    cdi_flight_note_error(note, &err);
    cdi_flight_keep(worker);
    cdi_flight_release(worker);
    cdi_flight_error(agent, &e);
    cr_assert(e.status == CDDP_E_PEER && e.blamed == 3 && e.at_ns >= began_ns && e.at_ns <= cdi_now_ns());
    cr_assert_eq(strlen(e.text), CDI_FLIGHT_TEXT - 1, "cut");
    (void)cdi_fail(&err, CDDP_E_STATE, "late");
    cdi_flight_note_error(note, &err); /* its own page stays */
    cdi_flight_error(agent, &e);
    cr_assert(e.status == CDDP_E_STATE && e.blamed == -1);
    cr_assert_str_eq(e.text, "late");
    cdi_flight_release(agent);
    (void)close(fd);
}

Test(flight, wrong_nonce_or_missing_page_gives_private_page)
{
    char env[128];
    int fd;
    struct cdi_flight *agent = agent_page(&fd, env), *worker;

    env[strlen(env) - 1] = env[strlen(env) - 1] == '0' ? '1' : '0';
    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    cr_assert_not(cdi_flight_has_agent(worker));
    cdi_flight_release(worker);
    cr_assert_eq(cdi_flight_attach(&worker, "fd:0,/nonexistent,1", NULL), CDDP_OK);
    cr_assert_not(cdi_flight_has_agent(worker));
    cdi_flight_release(worker);
    cr_assert_eq(cdi_flight_attach(&worker, NULL, NULL), CDDP_OK);
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    close(fd);
}

Test(flight, rejects_malformed_value_and_shows_it)
{
    struct cdi_flight *worker;
    struct cdi_error err;
    const char *const bad[] = {"3", "fd:3", "fd:x,/a,1", "fd:3,/a,", "fd:3,/a,zz", "fd:-1,/a,1", "fd:3,/a,1 "};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(cdi_flight_attach(&worker, bad[i], &err), CDDP_E_INVALID, "'%s' was accepted", bad[i]);
}

Test(flight, records_progress_of_replays)
{
    const struct cdi_flight_replay r = {.begun = 7, .ended = 6, .number = 3, .op = CDI_FLIGHT_ALL_REDUCE, .bucket = 2};
    struct cdi_flight_view v;
    struct cdi_flight *f;
    struct cdi_error err;

    cr_assert_eq(cdi_flight_attach(&f, NULL, &err), CDDP_OK);
    cdi_flight_read(f, &v);
    cr_assert_eq(v.replay.begun, 0);
    cdi_flight_replays(f, &r);
    cdi_flight_read(f, &v);
    cr_assert(v.replay.begun == 7 && v.replay.ended == 6 && v.replay.number == 3 && v.replay.bucket == 2);
    cr_assert_eq(v.replay.op, CDI_FLIGHT_ALL_REDUCE);
    cr_assert_gt(v.replay.since_ns, 0);
    cr_assert_eq(v.last.seq, 0);
    cdi_flight_release(f);
}

Test(flight, next_communicator_has_nothing_pending)
{
    const struct cdi_flight_replay r = {.begun = 7, .ended = 6};
    struct cdi_flight_view v;
    struct cdi_flight *f;
    uint64_t seq;

    cr_assert_eq(cdi_flight_attach(&f, NULL, NULL), CDDP_OK);
    seq = cdi_flight_enqueue(f, CDI_FLIGHT_ALL_REDUCE, 8, 100, 0);
    cdi_flight_start(f, seq);
    for (int i = 0; i < CDI_FLIGHT_RING; i++) /* the ring has only queued ones then */
        (void)cdi_flight_enqueue(f, CDI_FLIGHT_ALL_REDUCE, 8, 100, 0);
    cdi_flight_replays(f, &r);
    cdi_flight_tell_over(f);
    cdi_flight_read(f, &v);
    cr_assert(v.over && v.oldest_unfinished.seq == seq, "a report of the failure still names it");
    cdi_flight_renew(f);
    cdi_flight_read(f, &v);
    cr_assert(!v.over && v.oldest_unfinished.seq == 0 && v.replay.ended == 7);
    seq = cdi_flight_enqueue(f, CDI_FLIGHT_BARRIER, 0, 0, -1);
    cdi_flight_read(f, &v);
    cr_assert(v.oldest_unfinished.seq == seq && v.last.done_ns == 0);
    cdi_flight_release(f);
}

Test(flight, lists_newest_collectives_and_steps)
{
    struct cdi_flight_entry e[CDI_FLIGHT_RING];
    struct cdi_flight_step s[CDI_FLIGHT_STEPS];
    char names[CDI_FLIGHT_NAMES];
    struct cdi_flight *f;
    struct cdi_error err;

    cr_assert_eq(cdi_flight_attach(&f, NULL, &err), CDDP_OK);
    cr_assert_eq(cdi_flight_records(f, 0, e, CDI_FLIGHT_RING), 0);
    cr_assert_eq(cdi_flight_steps(f, 0, s, CDI_FLIGHT_STEPS), 0);
    for (uint64_t i = 0; i < CDI_FLIGHT_RING + 10; i++) {
        struct cdi_flight_entry ready = {
            .op = CDI_FLIGHT_ALL_REDUCE, .dtype = 1, .count = 100 + i, .bucket = 2, .ready_ns = 5 + (int64_t)i};
        uint64_t seq = cdi_flight_add(f, &ready, true);

        cdi_flight_arrived(f, seq, 3, 7 + (int64_t)i);
        cdi_flight_done(f, seq);
    }
    cr_assert_eq(cdi_flight_records(f, 0, e, CDI_FLIGHT_RING), CDI_FLIGHT_RING);
    cr_assert(e[0].seq == 11 && e[0].count == 110 && e[0].ready_ns == 15 && e[0].arrived_ns == 17);
    cr_assert(e[0].late_rank == 3 && e[CDI_FLIGHT_RING - 1].seq == CDI_FLIGHT_RING + 10);
    cr_assert(cdi_flight_records(f, CDI_FLIGHT_RING + 8, e, CDI_FLIGHT_RING) == 2 && e[0].seq == CDI_FLIGHT_RING + 9);
    cr_assert(cdi_flight_records(f, 0, e, 1) == 1 && e[0].seq == 11);
    cr_assert_eq(cdi_flight_records(f, UINT64_MAX, e, CDI_FLIGHT_RING), 0);
    for (uint64_t i = 0; i < CDI_FLIGHT_STEPS + 3; i++)
        cdi_flight_step_done(f, &(struct cdi_flight_step){
                                    .step = i, .comm_ns = 10 + (int64_t)i, .transfer_ns = (int64_t)i, .late_rank = -1});
    cr_assert(cdi_flight_steps(f, 0, s, CDI_FLIGHT_STEPS) == CDI_FLIGHT_STEPS && s[0].step == 3 && s[0].comm_ns == 13 &&
              s[0].transfer_ns == 3);
    cr_assert(cdi_flight_steps(f, CDI_FLIGHT_STEPS + 2, s, CDI_FLIGHT_STEPS) == 1 && s[0].late_rank == -1);
    cdi_flight_set_names(f, 1, "layer1.weight");
    cdi_flight_set_names(f, CDI_FLIGHT_BUCKETS, "none");
    cdi_flight_names(f, 1, names);
    cr_assert_str_eq(names, "layer1.weight");
    cdi_flight_names(f, CDI_FLIGHT_BUCKETS, names);
    cr_assert_str_eq(names, "");
    cdi_flight_release(f);
}

Test(flight, records_the_times_of_a_collective)
{
    struct cdi_flight_entry e = {.op = CDI_FLIGHT_ALL_REDUCE, .count = 7, .bucket = 2, .ready_ns = 5, .enqueued_ns = 9};
    struct cdi_flight_entry seen[4];
    int64_t before, after;
    struct cdi_flight *f;

    cr_assert_eq(cdi_flight_attach(&f, NULL, NULL), CDDP_OK);
    cr_assert(cdi_flight_is_timed(f));
    cr_assert(cdi_flight_add(f, &e, false) == 1 && e.seq == 1 && e.enqueued_ns == 9 && e.started_ns == 0);
    before = cdi_now_ns();
    e.started_ns = cdi_flight_begin(f, 1);
    cr_assert(e.started_ns > before - 1000000 && e.started_ns < cdi_now_ns() + 1000000, "it is the clock of all");
    cr_assert_eq(cdi_flight_records(f, 0, seen, 4), 1);
    cr_assert(seen[0].started_ns == e.started_ns && seen[0].late_rank == -1 && seen[0].done_ns == 0, "it is running");
    e.done_ns = cdi_flight_end(f, 1, 3, 11);
    cr_assert_eq(cdi_flight_records(f, 0, seen, 4), 1);
    cr_assert(seen[0].ready_ns == 5 && seen[0].enqueued_ns == 9 && seen[0].started_ns == e.started_ns);
    cr_assert(seen[0].arrived_ns == 11 && seen[0].late_rank == 3 && seen[0].done_ns == e.done_ns);

    /* One that starts at once, and is so short that its end is the arrival of the last rank. */
    e = (struct cdi_flight_entry){.op = CDI_FLIGHT_BARRIER, .bucket = -1};
    cr_assert(cdi_flight_add(f, &e, true) == 2 && e.started_ns == e.enqueued_ns && e.enqueued_ns != 0);
    after = cdi_flight_end(f, 2, 1, 0);
    cr_assert_eq(cdi_flight_records(f, 1, seen, 4), 1);
    cr_assert(seen[0].arrived_ns == after && seen[0].late_rank == 1 && seen[0].started_ns == seen[0].enqueued_ns);

    /* Nobody knows who was last. */
    (void)cdi_flight_enqueue(f, CDI_FLIGHT_BARRIER, 0, 0, -1);
    cdi_flight_start(f, 3);
    cdi_flight_done(f, 3);
    cr_assert_eq(cdi_flight_records(f, 2, seen, 4), 1);
    cr_assert(seen[0].arrived_ns == 0 && seen[0].late_rank == -1 && seen[0].started_ns != 0 && seen[0].done_ns != 0);
    cdi_flight_release(f);
}

Test(flight, a_lost_record_gets_no_times)
{
    struct cdi_flight_entry seen[CDI_FLIGHT_RING];
    struct cdi_flight *f;

    cr_assert_eq(cdi_flight_attach(&f, NULL, NULL), CDDP_OK);
    for (uint64_t i = 0; i < CDI_FLIGHT_RING + 1; i++)
        (void)cdi_flight_enqueue(f, CDI_FLIGHT_BARRIER, 0, 0, -1);
    (void)cdi_flight_begin(f, 1);
    (void)cdi_flight_end(f, 1, 4, 5); /* its place in the ring is that of the last one, which has not started */
    cr_assert_eq(cdi_flight_records(f, CDI_FLIGHT_RING, seen, CDI_FLIGHT_RING), 1);
    cr_assert(seen[0].seq == CDI_FLIGHT_RING + 1 && seen[0].started_ns == 0 && seen[0].late_rank == -1 &&
              seen[0].arrived_ns == 0 && seen[0].done_ns == 0);
    cdi_flight_release(f);
}

Test(flight, times_of_a_device_replace_those_of_the_host)
{
    struct cdi_flight_entry seen[3];
    struct cdi_flight_view view;
    struct cdi_flight *f;

    cr_assert_eq(cdi_flight_attach(&f, NULL, NULL), CDDP_OK);
    for (int i = 0; i < 3; i++)
        (void)cdi_flight_enqueue(f, CDI_FLIGHT_ALL_REDUCE, 0, 8, i);
    for (uint64_t seq = 1; seq < 3; seq++) {
        cdi_flight_start(f, seq);
        cdi_flight_done(f, seq);
        cdi_flight_times(f, seq, 10, 20, 30); /* of the second one, the page also shows that it ran last */
    }
    cdi_flight_times(f, 3, 10, 20, 30); /* it is not done */
    cdi_flight_times(f, 2 + CDI_FLIGHT_RING, 11, 21, 31);
    cr_assert_eq(cdi_flight_records(f, 0, seen, 3), 3);
    for (int i = 0; i < 2; i++)
        cr_assert(seen[i].ready_ns == 10 && seen[i].started_ns == 20 && seen[i].done_ns == 30, "record %d", i);
    cr_assert(seen[2].ready_ns == 0 && seen[2].started_ns == 0 && seen[2].done_ns == 0);
    cdi_flight_read(f, &view);
    cr_assert(view.oldest_unfinished.seq == 3 && view.last.seq == 3);
    cdi_flight_release(f);
}

Test(flight, times_of_a_step_do_not_change_the_number_of_steps)
{
    const struct cdi_flight_step late = {.step = 4, .begun_ns = 7, .end_ns = 9, .comm_ns = 1, .late_rank = -1};
    struct cdi_flight_step seen[2];
    struct cdi_flight_view view;
    struct cdi_flight *f;

    cr_assert_eq(cdi_flight_attach(&f, NULL, NULL), CDDP_OK);
    cdi_flight_step(f, 6);
    cdi_flight_step_times(f, &late);
    cdi_flight_read(f, &view);
    cr_assert_eq(view.step, 6);
    cr_assert(cdi_flight_steps(f, 0, seen, 2) == 1 && seen[0].step == 4 && seen[0].end_ns == 9);
    cdi_flight_release(f);
}

Test(flight, timing_can_be_switched_off)
{
    struct cdi_flight_entry seen[2];
    struct cdi_flight_view v;
    struct cdi_error err;
    struct cdi_flight *f;

    cr_assert_eq(setenv("CDDP_TIMING", "off", 1), 0);
    cr_assert_eq(cdi_flight_attach(&f, NULL, NULL), CDDP_OK);
    cr_assert_not(cdi_flight_is_timed(f));
    (void)cdi_flight_enqueue(f, CDI_FLIGHT_BARRIER, 0, 0, -1);
    cr_assert(cdi_flight_records(f, 0, seen, 2) == 1 && seen[0].enqueued_ns <= cdi_now_coarse_ns());
    cdi_flight_release(f);

    cr_assert_eq(setenv("CDDP_TIMING", "none", 1), 0);
    cr_assert_eq(cdi_flight_attach(&f, NULL, NULL), CDDP_OK);
    cr_assert_eq(cdi_flight_enqueue(f, CDI_FLIGHT_BARRIER, 0, 0, -1), 1);
    cr_assert(cdi_flight_begin(f, 1) == 0 && cdi_flight_end(f, 1, 0, 0) == 0);
    cdi_flight_read(f, &v);
    cr_assert(v.last.seq == 0 && v.oldest_unfinished.seq == 0 && cdi_flight_records(f, 0, seen, 2) == 0);
    cdi_flight_release(f);

    cr_assert_eq(setenv("CDDP_TIMING", "sometimes", 1), 0);
    cr_assert_eq(cdi_flight_attach(&f, NULL, &err), CDDP_E_INVALID);
    cr_assert_str_eq(err.msg, "CDDP_TIMING='sometimes' is none of on, all, off, none");
    cr_assert_eq(unsetenv("CDDP_TIMING"), 0);
}

static struct cdi_flight *private_page(void)
{
    struct cdi_flight *f;

    cr_assert_eq(cdi_flight_attach(&f, NULL, NULL), CDDP_OK);
    return f;
}

Test(flight, shows_what_a_part_does)
{
    char env[128];
    int fd;
    struct cdi_flight *agent = agent_page(&fd, env), *worker, *part = private_page();
    struct cdi_flight_part parts[CDI_FLIGHT_PARTS];
    struct cdi_flight_view v;

    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    cr_assert_eq(cdi_flight_parts(agent, parts), 0);
    cdi_flight_mirror(part, worker, "'tp' (ranks 0, 2)");
    cr_assert_eq(cdi_flight_parts(agent, parts), 1);
    cr_assert(parts[0].unfinished.seq == 0 && parts[0].last.seq == 0);
    cr_assert_str_eq(parts[0].who, "'tp' (ranks 0, 2)");
    cr_assert_eq(cdi_flight_enqueue(part, CDI_FLIGHT_SEND, 8, 100, -1), 1);
    cr_assert_eq(cdi_flight_parts(agent, parts), 1);
    cr_assert(parts[0].unfinished.seq == 1 && parts[0].unfinished.started_ns == 0 && parts[0].unfinished.count == 100);
    cdi_flight_start(part, 1);
    cdi_flight_arrived(part, 1, 2, 0);
    cr_assert_eq(cdi_flight_enqueue(part, CDI_FLIGHT_BARRIER, 0, 0, -1), 2);
    cr_assert_eq(cdi_flight_parts(agent, parts), 1);
    cr_assert(parts[0].unfinished.seq == 1 && parts[0].unfinished.started_ns > 0 && parts[0].last.seq == 0);
    cr_assert(parts[0].unfinished.op == CDI_FLIGHT_SEND && parts[0].unfinished.late_rank == 2);
    cdi_flight_done(part, 1);
    cr_assert_eq(cdi_flight_parts(agent, parts), 1);
    cr_assert(parts[0].last.seq == 1 && parts[0].last.done_ns > 0);
    cr_assert(parts[0].unfinished.seq == 2 && parts[0].unfinished.op == CDI_FLIGHT_BARRIER);
    cdi_flight_start(part, 2);
    cdi_flight_done(part, 2);
    cdi_flight_times(part, 2, 0, 1000, 2000);
    cr_assert_eq(cdi_flight_parts(agent, parts), 1);
    cr_assert(parts[0].unfinished.seq == 0 && parts[0].last.seq == 2 && parts[0].last.done_ns == 2000);
    cdi_flight_read(agent, &v);
    cr_assert_eq(v.last.seq, 0, "the whole has done nothing");
    cdi_flight_release(part);
    cr_assert_eq(cdi_flight_parts(agent, parts), 0);
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    close(fd);
}

Test(flight, a_part_begins_with_an_operation_that_starts_at_once)
{
    char env[128];
    int fd;
    struct cdi_flight *agent = agent_page(&fd, env), *worker, *part = private_page();
    struct cdi_flight_entry e = {.op = CDI_FLIGHT_ALL_REDUCE, .dtype = 8, .count = 7, .bucket = -1};
    struct cdi_flight_part parts[CDI_FLIGHT_PARTS];

    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    cdi_flight_mirror(part, worker, "(ranks 0-2)");
    cr_assert_eq(cdi_flight_add(part, &e, true), 1);
    cr_assert_eq(cdi_flight_parts(agent, parts), 1);
    cr_assert(parts[0].unfinished.seq == 1 && parts[0].unfinished.started_ns > 0 && parts[0].unfinished.count == 7);
    cdi_flight_hide(part); /* it has failed: its operation never ends */
    cr_assert_eq(cdi_flight_parts(agent, parts), 0);
    cdi_flight_start(part, cdi_flight_enqueue(part, CDI_FLIGHT_BARRIER, 0, 0, -1));
    cr_assert_eq(cdi_flight_parts(agent, parts), 0);
    cdi_flight_release(part);
    part = private_page();
    cdi_flight_mirror(part, worker, "(ranks 1, 2)"); /* in the same slot */
    cr_assert_eq(cdi_flight_parts(agent, parts), 1);
    cr_assert_str_eq(parts[0].who, "(ranks 1, 2)");
    cr_assert(parts[0].unfinished.seq == 0 && parts[0].last.seq == 0);
    cdi_flight_release(part);
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    close(fd);
}

Test(flight, a_ninth_part_is_not_shown)
{
    char env[128], who[200];
    int fd;
    struct cdi_flight *agent = agent_page(&fd, env), *worker, *more = private_page(), *all[CDI_FLIGHT_PARTS];
    struct cdi_flight_part parts[CDI_FLIGHT_PARTS];

    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    memset(who, 'x', sizeof who);
    who[sizeof who - 1] = '\0';
    for (int i = 0; i < CDI_FLIGHT_PARTS; i++) {
        all[i] = private_page();
        cdi_flight_mirror(all[i], worker, who);
    }
    cr_assert_eq(cdi_flight_parts(agent, parts), CDI_FLIGHT_PARTS);
    cr_assert_eq(strlen(parts[7].who), CDI_FLIGHT_WHO - 1);
    cdi_flight_mirror(more, worker, "(ranks 0)");
    cdi_flight_start(more, cdi_flight_enqueue(more, CDI_FLIGHT_BARRIER, 0, 0, -1));
    cr_assert_eq(cdi_flight_parts(agent, parts), CDI_FLIGHT_PARTS);
    for (int i = 0; i < CDI_FLIGHT_PARTS; i++)
        cr_assert_eq(parts[i].unfinished.seq, 0);
    cdi_flight_release(all[3]);
    cdi_flight_mirror(more, worker, "(ranks 0)"); /* there is room now */
    cr_assert_eq(cdi_flight_parts(agent, parts), CDI_FLIGHT_PARTS);
    cr_assert_str_eq(parts[3].who, "(ranks 0)");
    for (int i = 0; i < CDI_FLIGHT_PARTS; i++)
        cdi_flight_release(i != 3 ? all[i] : more);
    cr_assert_eq(cdi_flight_parts(agent, parts), 0);
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    close(fd);
}

Test(flight, without_an_agent_no_part_is_shown)
{
    struct cdi_flight *whole = private_page(), *part = private_page();
    struct cdi_flight_part parts[CDI_FLIGHT_PARTS];

    cdi_flight_mirror(part, whole, "(ranks 0)");
    cdi_flight_mirror(NULL, whole, "(ranks 0)");
    cdi_flight_mirror(part, NULL, "(ranks 0)");
    cdi_flight_hide(NULL);
    cr_assert_eq(cdi_flight_parts(whole, parts), 0);
    cdi_flight_release(whole); /* nothing of it is used any more */
    cdi_flight_start(part, cdi_flight_enqueue(part, CDI_FLIGHT_BARRIER, 0, 0, -1));
    cdi_flight_release(part);
}

struct busy_part {
    struct cdi_flight *page;
    _Atomic bool stop;
};

/* Operation seq has seq elements. */
static void *run_part(void *arg)
{
    struct busy_part *busy = arg;

    for (uint64_t i = 1; !atomic_load(&busy->stop); i++) {
        uint64_t seq = cdi_flight_enqueue(busy->page, i % 2 == 0 ? CDI_FLIGHT_BARRIER : CDI_FLIGHT_BROADCAST, 8, i, -1);

        cdi_flight_start(busy->page, seq);
        cdi_flight_done(busy->page, seq);
    }
    return NULL;
}

static void check_entry(const struct cdi_flight_entry *e)
{
    if (e->seq == 0)
        return;
    cr_assert_eq(e->count, e->seq);
    cr_assert_eq(e->op, e->seq % 2 == 0 ? CDI_FLIGHT_BARRIER : CDI_FLIGHT_BROADCAST);
}

Test(flight, reader_of_a_busy_part_sees_whole_records)
{
    char env[128];
    int fd;
    struct cdi_flight *agent = agent_page(&fd, env), *worker;
    struct busy_part busy = {.page = private_page()};
    struct cdi_flight_part parts[CDI_FLIGHT_PARTS];
    uint64_t last = 0, seen = 0;
    pthread_t thread;

    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    cdi_flight_mirror(busy.page, worker, "(ranks 0, 1)");
    cr_assert_eq(pthread_create(&thread, NULL, run_part, &busy), 0);
    for (int64_t until_ms = cdi_now_ms() + 20000; seen < 10000 && cdi_now_ms() < until_ms;) {
        if (cdi_flight_parts(agent, parts) == 0)
            continue;
        check_entry(&parts[0].unfinished);
        check_entry(&parts[0].last);
        cr_assert(parts[0].unfinished.seq == 0 || parts[0].unfinished.seq > parts[0].last.seq);
        cr_assert(parts[0].last.seq >= last || parts[0].last.seq == 0, "it does not go back");
        last = parts[0].last.seq > last ? parts[0].last.seq : last;
        seen++;
    }
    atomic_store(&busy.stop, true);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    cr_assert_geq(seen, 10000);
    cdi_flight_release(busy.page);
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    close(fd);
}

/* ------------------------------------------------------------------------------- what a worker may have written ----
 */

/* Maps the whole page, as a stray write of the worker sees it. */
static uint64_t *raw_page(int fd, size_t *n_words)
{
    struct stat sb;
    void *p;

    cr_assert_eq(fstat(fd, &sb), 0);
    p = mmap(NULL, (size_t)sb.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert(p != MAP_FAILED);
    *n_words = (size_t)sb.st_size / sizeof(uint64_t);
    return p;
}

static bool is_time(int64_t ns)
{
    return ns >= 0 && ns <= CDI_FLIGHT_TIME_MAX;
}

static bool is_span(int64_t ns)
{
    return ns >= 0 && ns <= CDI_FLIGHT_SPAN_MAX;
}

static bool is_entry(const struct cdi_flight_entry *e)
{
    return e->seq <= CDI_FLIGHT_COUNT_MAX && e->count <= CDI_FLIGHT_COUNT_MAX && e->bucket >= -1 &&
           e->late_rank >= -1 && is_time(e->enqueued_ns) && is_time(e->started_ns) && is_time(e->done_ns) &&
           is_time(e->ready_ns) && is_time(e->arrived_ns);
}

static bool is_step(const struct cdi_flight_step *s)
{
    return is_time(s->begun_ns) && is_time(s->end_ns) && s->end_ns - s->begun_ns <= CDI_FLIGHT_SPAN_MAX &&
           s->late_rank >= -1 && is_span(s->comm_ns) && is_span(s->exposed_ns) && is_span(s->late_ns);
}

static bool is_view(const struct cdi_flight_view *v)
{
    return is_entry(&v->last) && is_entry(&v->oldest_unfinished) && v->step <= CDI_FLIGHT_COUNT_MAX &&
           v->claimed_pid >= 0 && v->missed_rank >= -1 && v->replay.begun <= CDI_FLIGHT_COUNT_MAX &&
           v->replay.ended <= CDI_FLIGHT_COUNT_MAX && v->replay.number <= CDI_FLIGHT_COUNT_MAX &&
           v->replay.bucket >= -1 && is_time(v->replay.since_ns);
}

/* Reads all that the agent reads. A number that bounds a loop shows by the time limit of the test. */
static bool page_is_bounded(const struct cdi_flight *agent)
{
    static struct cdi_flight_entry records[CDI_FLIGHT_RING];
    struct cdi_flight_step steps[CDI_FLIGHT_STEPS];
    struct cdi_flight_part parts[CDI_FLIGHT_PARTS];
    struct cdi_flight_mark marks[CDI_FLIGHT_MARKS];
    struct cdi_flight_view view;
    char names[CDI_FLIGHT_NAMES];
    bool ok;
    size_t n;

    cdi_flight_read(agent, &view);
    ok = is_view(&view);
    n = cdi_flight_records(agent, 0, records, CDI_FLIGHT_RING);
    for (size_t i = 0; i < n; i++)
        ok = ok && is_entry(&records[i]);
    n = cdi_flight_steps(agent, 0, steps, CDI_FLIGHT_STEPS);
    for (size_t i = 0; i < n; i++)
        ok = ok && is_step(&steps[i]);
    n = cdi_flight_marks(agent, 0, marks, CDI_FLIGHT_MARKS);
    for (size_t i = 0; i < n; i++)
        ok = ok && marks[i].number <= CDI_FLIGHT_COUNT_MAX && marks[i].step <= CDI_FLIGHT_COUNT_MAX &&
             is_time(marks[i].begun_ns) && is_time(marks[i].end_ns);
    n = cdi_flight_parts(agent, parts);
    for (size_t i = 0; i < n; i++)
        ok = ok && is_entry(&parts[i].unfinished) && is_entry(&parts[i].last) &&
             memchr(parts[i].who, '\0', sizeof parts[i].who) != NULL;
    cdi_flight_names(agent, 0, names);
    return ok && memchr(names, '\0', sizeof names) != NULL;
}

/* A worker that has used every part of its page. */
static struct cdi_flight *used_page(struct cdi_flight *worker)
{
    struct cdi_flight *part = private_page();

    for (uint64_t i = 0; i < CDI_FLIGHT_RING + 9; i++) {
        uint64_t seq = cdi_flight_enqueue(worker, CDI_FLIGHT_ALL_REDUCE, 8, 100, 0);

        cdi_flight_start(worker, seq);
        if (i % 7 != 0)
            cdi_flight_done(worker, seq);
        cdi_flight_step_done(worker, &(struct cdi_flight_step){.step = i, .begun_ns = 10, .end_ns = 20});
        cdi_flight_mark(worker, CDI_MARK_SAVE, i, 1, 2);
    }
    cdi_flight_set_names(worker, 0, "weight");
    cdi_flight_mirror(part, worker, "'tp' (ranks 0, 2)");
    cdi_flight_start(part, cdi_flight_enqueue(part, CDI_FLIGHT_BARRIER, 0, 0, -1));
    return part;
}

Test(flight, a_page_full_of_one_byte_is_read_within_bounds, .timeout = 60)
{
    const int bytes[] = {0xff, 0x7f, 0x80, 0x01, 0x40};
    char env[128];
    int fd;

    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        struct cdi_flight *agent = agent_page(&fd, env);
        size_t n;
        uint64_t *raw = raw_page(fd, &n);

        memset(raw, bytes[i], n * sizeof *raw);
        cr_assert(page_is_bounded(agent), "all 0x%02x", (unsigned)bytes[i]);
        cdi_flight_tell_ended(agent, 1);
        cdi_flight_tell_death(agent, 1, "rank 1 died");
        (void)munmap(raw, n * sizeof *raw);
        cdi_flight_release(agent);
        (void)close(fd);
    }
}

Test(flight, each_word_of_a_page_is_read_within_bounds, .timeout = 60)
{
    const uint64_t values[] = {UINT64_MAX, UINT64_C(1) << 63, INT64_MAX, UINT64_C(0x80000000ffffffff)};
    struct cdi_flight *worker, *agent, *part;
    char env[128];
    uint64_t *raw;
    size_t n;
    int fd;

    agent = agent_page(&fd, env);
    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    part = used_page(worker);
    raw = raw_page(fd, &n);
    for (size_t i = 8192 / sizeof *raw; i < n; i++)
        for (size_t k = 0; k < sizeof values / sizeof values[0]; k++) {
            uint64_t before = raw[i];

            raw[i] = values[k];
            if (!page_is_bounded(agent))
                cr_assert_fail("%#llx at byte %zu", (unsigned long long)values[k], i * sizeof *raw);
            raw[i] = before;
        }
    (void)munmap(raw, n * sizeof *raw);
    cdi_flight_release(part);
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    (void)close(fd);
}

Test(flight, a_worker_cannot_make_its_page_shorter)
{
    char env[128], path[64];
    int fd, again;
    struct cdi_flight *agent = agent_page(&fd, env);

    cr_assert_eq(ftruncate(fd, 0), -1);
    cr_assert_eq(errno, EPERM);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    again = open(path, O_RDWR | O_TRUNC | O_CLOEXEC);
    if (again >= 0)
        (void)close(again);
    cr_assert(page_is_bounded(agent));
    cr_assert_neq(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK, 0);
    cdi_flight_release(agent);
    (void)close(fd);
}
