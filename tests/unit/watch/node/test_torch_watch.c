/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "watch/node/torch_watch.h"

#include <string.h>

CDI_SUITE(torch_watch);

#define WARNING 30000
#define N 16

static struct torch_pulse pulses[N];

/* Looks once a second for so many seconds; worker i uses percent[i] % of a core. */
static int64_t go(int64_t now_ms, int seconds, size_t n, const int *percent)
{
    static uint64_t cpu_ms[N];

    for (int s = 0; s < seconds; s++) {
        now_ms += 1000;
        for (size_t i = 0; i < n; i++) {
            cpu_ms[i] += (uint64_t)percent[i] * 10;
            torch_pulse_note(&pulses[i], cpu_ms[i], false, now_ms);
        }
    }
    return now_ms;
}

static enum torch_standstill decide(size_t n, int64_t now_ms)
{
    return torch_decide(pulses, n, WARNING, now_ms);
}

Test(torch_watch, all_idle_is_a_standstill_after_the_warning_time)
{
    static const int busy[] = {100, 50, 100, 2}, idle[] = {0, 0, 0, 0};
    int64_t now = go(1, 40, 4, busy);

    cr_assert_eq(decide(4, now), TORCH_RUNS);
    now = go(now, 29, 4, idle);
    cr_assert_eq(decide(4, now), TORCH_RUNS);
    now = go(now, 6, 4, idle);
    cr_assert_eq(decide(4, now), TORCH_IDLE);
    now = go(now, 1, 4, busy);
    cr_assert_eq(decide(4, now), TORCH_RUNS);
}

Test(torch_watch, a_few_that_burn_while_others_idle_are_one)
{
    static const int one[N] = {0, 0, 100}, two[N] = {100, 0, 100}, some[N] = {0, 7, 0, 99};
    int64_t now = go(1, 40, 4, one);

    cr_assert_eq(decide(4, now), TORCH_BURNS);
    cr_assert_eq(decide(2, now), TORCH_IDLE);
    now = go(now, 40, 4, two);
    cr_assert_eq(decide(4, now), TORCH_RUNS, "two of four are not a few");
    now = go(now, 40, N, some);
    cr_assert_eq(decide(N, now), TORCH_BURNS, "two of 16 are");
    now = go(now, 40, 1, two);
    cr_assert_eq(decide(1, now), TORCH_RUNS, "a single worker that burns works");
    cr_assert_eq(decide(0, now), TORCH_RUNS);
}

Test(torch_watch, waits_until_it_is_clear_who_burns)
{
    static const int busy[] = {100, 100, 100, 100}, last[] = {0, 0, 0, 100}, idle[] = {0, 0, 0, 0};
    int64_t now = go(1, 5, 4, busy);

    now = go(now, 15, 4, last);
    now = go(now, 20, 4, idle);
    cr_assert_eq(decide(4, now), TORCH_RUNS, "the last one is on the way to stand still, too");
    now = go(now, 12, 4, idle);
    cr_assert_eq(decide(4, now), TORCH_IDLE);
}

Test(torch_watch, little_work_and_starved_workers)
{
    struct torch_pulse p = {0};

    for (int64_t now = 1; now < 60000; now += 1000)
        torch_pulse_note(&p, (uint64_t)now / 200, false, now); /* 0.5 % */
    cr_assert_geq(torch_pulse_quiet_ms(&p, 60000), 58000);
    torch_pulse_note(&p, 300, true, 60000); /* it wants a processor, and gets none */
    cr_assert_eq(torch_pulse_quiet_ms(&p, 60000), 0);
    torch_pulse_note(&p, 5, false, 70000); /* another process has this number now */
    cr_assert_eq(torch_pulse_quiet_ms(&p, 70000), 0);
}

Test(torch_watch, is_over_when_half_of_the_quiet_ones_have_worked)
{
    static const int idle[] = {0, 0, 100, 0}, one[] = {10, 0, 100, 0}, two[] = {10, 10, 100, 0};
    int64_t now = go(1, 40, 4, idle);

    torch_note_told(pulses, 4, WARNING, now);
    cr_assert_not(torch_has_moved(pulses, 4));
    now = go(now, 100, 4, one);
    cr_assert_not(torch_has_moved(pulses, 4));
    (void)go(now, 3, 4, two);
    cr_assert(torch_has_moved(pulses, 4));
}

Test(torch_watch, after_a_standstill_all_begin_anew)
{
    static const int idle[] = {0, 0, 0, 0}, two[] = {1000, 1000, 0, 0};
    int64_t now = go(1, 40, 4, idle);

    torch_note_told(pulses, 4, WARNING, now);
    now = go(now, 3, 4, two);
    cr_assert_geq(torch_pulse_quiet_ms(&pulses[3], now), WARNING);
    torch_note_again(pulses, 4, now);
    cr_assert_eq(torch_pulse_quiet_ms(&pulses[3], now), 0, "it may have worked, too little to be seen yet");
    cr_assert_eq(torch_decide(pulses, 4, WARNING, now), TORCH_RUNS);
    now = go(now, 40, 4, idle);
    cr_assert_eq(torch_decide(pulses, 4, WARNING, now), TORCH_IDLE);
}

Test(torch_watch, work_that_was_asked_for_does_not_count)
{
    static const int idle[] = {0, 0, 0};
    int64_t now = go(1, 40, 3, idle);

    torch_note_told(pulses, 3, WARNING, now);
    for (int i = 0; i < 3; i++)
        torch_pulse_skip(&pulses[i], 5000, now + 1000);
    for (int i = 0; i < 3; i++)
        torch_pulse_note(&pulses[i], 5001, false, now + 2000);
    cr_assert_not(torch_has_moved(pulses, 3));
    cr_assert_geq(torch_pulse_quiet_ms(&pulses[0], now + 2000), 39000);
    for (int i = 0; i < 3; i++)
        torch_pulse_note(&pulses[i], 5500, false, now + 3000);
    cr_assert(torch_has_moved(pulses, 3));
}

/* ------------------------------------------------------------------------------------------------------- text ---- */

Test(torch_watch, the_end_of_a_standstill)
{
    char text[TORCH_NOTE];

    torch_again_text(4, 42999, text);
    cr_assert_str_eq(text, "the workers of this node use their processors again, after 42 s");
    torch_again_text(1, 9999, text);
    cr_assert_str_eq(text, "the worker of this node uses its processor again, after 9.9 s");
    torch_again_text(2, 449, text);
    cr_assert_str_eq(text, "the workers of this node use their processors again, after 0.4 s");
}

static struct torch_rank at(int32_t rank, const char *function, const char *file, int32_t line)
{
    struct torch_rank r = {.rank = rank, .pid = 70 + rank, .state = 'S', .quiet = true, .n_frames = 2};

    (void)snprintf(r.frames[0].function, sizeof r.frames[0].function, "%s", function);
    (void)snprintf(r.frames[0].file, sizeof r.frames[0].file, "%s", file);
    r.frames[0].line = line;
    (void)snprintf(r.frames[1].function, sizeof r.frames[1].function, "main");
    (void)snprintf(r.frames[1].file, sizeof r.frames[1].file, "train.py");
    r.frames[1].line = 40;
    return r;
}

static struct torch_rank waits(int32_t rank)
{
    return at(rank, "all_reduce", "torch/distributed/distributed_c10d.py", 2810);
}

static const char *text_of(struct torch_rank *v, size_t n, enum torch_standstill kind)
{
    static char text[8192];
    struct cdi_buf out;

    cdi_buf_init(&out, sizeof text - 1);
    cr_assert_eq(torch_watch_text(v, n, kind, 30999, "box", &out), CDDP_OK);
    (void)snprintf(text, sizeof text, "%.*s", (int)out.len, (const char *)cdi_buf_data(&out));
    cdi_buf_release(&out);
    return text;
}

Test(torch_watch, names_the_rank_that_is_elsewhere)
{
    struct torch_rank v[] = {waits(0), waits(1), at(2, "planted", "train.py", 12), waits(3)};

    cr_assert_str_eq(text_of(v, 4, TORCH_IDLE),
                     "no worker of this node has used its processor for 30 s, and none has ended:\n"
                     "    rank 2 (pid 72 on box, asleep): in planted (train.py:12), called from main (train.py:40)\n"
                     "    ranks 0, 1, 3: in all_reduce (torch/distributed/distributed_c10d.py:2810), called from main "
                     "(train.py:40)");
}

Test(torch_watch, those_that_wait_in_pytorch_are_not_suspects_even_if_fewer)
{
    struct torch_rank v[] = {at(0, "load", "data.py", 3), at(1, "load", "data.py", 3), waits(2)};
    const char *text;

    v[0].quiet = false;
    text = text_of(v, 3, TORCH_BURNS);
    cr_assert_str_eq(text,
                     "2 of the 3 workers of this node have not used their processors for 30 s, and none has ended:\n"
                     "    ranks 0, 1: in load (data.py:3), called from main (train.py:40)\n"
                     "    rank 2 (pid 72 on box, asleep): in all_reduce "
                     "(torch/distributed/distributed_c10d.py:2810), called from main (train.py:40)");
}

Test(torch_watch, without_a_majority_all_places_are_shown)
{
    struct torch_rank v[] = {at(0, "b", "x.py", 2), at(1, "a", "x.py", 1)};

    v[0].state = 'T';
    cr_assert_str_eq(text_of(v, 2, TORCH_IDLE),
                     "no worker of this node has used its processor for 30 s, and none has ended:\n"
                     "    rank 1 (pid 71 on box, asleep): in a (x.py:1), called from main (train.py:40)\n"
                     "    rank 0 (pid 70 on box, stopped by a signal): in b (x.py:2), called from main (train.py:40)");
}

Test(torch_watch, dumps_of_the_flight_recorder_are_named)
{
    struct torch_rank v[] = {at(2, "f", "x.py", 2), at(0, "f", "x.py", 2), at(1, "f", "x.py", 2)};

    for (int i = 0; i < 3; i++)
        (void)snprintf(v[i].dump, sizeof v[i].dump, i == 2 ? "/b/" : "/tmp/trace_");
    cr_assert_str_eq(text_of(v, 3, TORCH_IDLE),
                     "no worker of this node has used its processor for 30 s, and none has ended:\n"
                     "    ranks 0, 1, 2: in f (x.py:2), called from main (train.py:40)\n"
                     "    dumps of PyTorch's flight recorder: /tmp/trace_RANK, RANK is 0, 2\n"
                     "    dumps of PyTorch's flight recorder: /b/RANK, RANK is 1");
}

Test(torch_watch, ranks_that_wait_for_a_key_wait_for_the_others)
{
    struct torch_rank v[] = {at(0, "f", "x.py", 2), at(1, "f", "x.py", 2), at(2, "f", "x.py", 2)};

    for (int i = 0; i < 2; i++) {
        (void)snprintf(v[i].key, sizeof v[i].key, "/X");
        v[i].key_ms = 31999 + i;
    }
    cr_assert_str_eq(text_of(v, 3, TORCH_IDLE),
                     "no worker of this node has used its processor for 30 s, and none has ended:\n"
                     "    rank 2 (pid 72 on box, asleep): in f (x.py:2), called from main (train.py:40)\n"
                     "    ranks 0, 1: in f (x.py:2), called from main (train.py:40); waiting for the store's key '/X' "
                     "for 31 s");
}

Test(torch_watch, says_why_there_is_no_stack_and_bounds_the_text)
{
    static struct torch_rank v[100];
    const char *text;

    for (int32_t i = 0; i < 100; i++)
        v[i] = at(i, "f", "x.py", i);
    v[50] = (struct torch_rank){.rank = 50, .pid = 7, .state = 'D', .quiet = true, .why = "it cannot be read"};
    text = text_of(v, 100, TORCH_IDLE);
    cr_assert_not_null(strstr(text, "\n    rank 7 (pid 77 on box, asleep): in f (x.py:7)"), "%s", text);
    cr_assert_not_null(strstr(text, "\n    and 92 more ranks elsewhere"), "%s", text);
    text = text_of(&v[50], 1, TORCH_IDLE);
    cr_assert_not_null(strstr(text, "\n    rank 50 (pid 7 on box, in the kernel (state D)): it cannot be read"), "%s",
                       text);
}
