/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/agent/progress.h"

#include <string.h>

CDI_SUITE(progress);

#define S 1000000000 /* ns */
#define NOW (1000 * (int64_t)S)

/* A rank that has done seq - 1 collectives and is in the next, or with done_s has done that, too; times in s ago. */
static struct progress_rank rank_at(int32_t rank, uint64_t seq, enum cdi_flight_op op, bool done, int64_t s_ago)
{
    struct cdi_flight_entry e = {.seq = seq, .op = op, .bucket = -1, .enqueued_ns = NOW - s_ago * S};

    e.started_ns = e.enqueued_ns;
    if (done)
        e.done_ns = e.enqueued_ns;
    return (struct progress_rank){
        .rank = rank,
        .view = {.last = e, .oldest_unfinished = done ? (struct cdi_flight_entry){0} : e, .claimed_pid = 7}};
}

static struct progress_rank in_bucket(struct progress_rank r, int bucket, uint64_t step)
{
    r.view.last.bucket = r.view.oldest_unfinished.bucket = bucket;
    r.view.step = step;
    return r;
}

static const char *text_of(struct progress_rank *v, size_t n)
{
    static char text[PROGRESS_TEXT];

    progress_text(v, n, NOW, text, sizeof text);
    return text;
}

Test(progress, separates_missing_from_waiting_ranks)
{
    struct progress_rank v[] = {
        in_bucket(rank_at(0, 812, CDI_FLIGHT_ALL_REDUCE, false, 600), 3, 39),
        in_bucket(rank_at(1, 812, CDI_FLIGHT_ALL_REDUCE, false, 601), 3, 39),
        in_bucket(rank_at(2, 811, CDI_FLIGHT_BROADCAST, true, 612), -1, 39),
        in_bucket(rank_at(3, 812, CDI_FLIGHT_ALL_REDUCE, false, 600), 3, 39),
    };

    cr_assert_str_eq(text_of(v, 4),
                     "rank 2 after broadcast #811 (step 39), 612 s ago; ranks 0, 1, 3 in all_reduce #812 "
                     "(bucket 3, step 39), for 600 s");
}

Test(progress, queued_collective_is_not_entered)
{
    struct progress_rank v[] = {
        in_bucket(rank_at(0, 16, CDI_FLIGHT_ALL_REDUCE, false, 8), 2, 3),
        in_bucket(rank_at(1, 16, CDI_FLIGHT_ALL_REDUCE, false, 8), 2, 3),
        in_bucket(rank_at(2, 16, CDI_FLIGHT_ALL_REDUCE, true, 8), 2, 3),
        in_bucket(rank_at(3, 16, CDI_FLIGHT_ALL_REDUCE, false, 0), 2, 3),
    };

    v[1].view.oldest_unfinished.started_ns = v[3].view.oldest_unfinished.started_ns = 0;
    cr_assert_str_eq(text_of(&v[3], 1), "rank 3 before all_reduce #16 (bucket 2, step 3), queued");
    cr_assert_str_eq(text_of(v, 3), "rank 1 before all_reduce #16 (bucket 2, step 3), queued for 8 s; rank 0 in "
                                    "all_reduce #16 (bucket 2, step 3), for 8 s; rank 2 after all_reduce #16 (bucket "
                                    "2, step 3), 8 s ago");
}

Test(progress, separates_graph_replays_from_calls)
{
    struct progress_rank v[] = {
        rank_at(0, 25, CDI_FLIGHT_BARRIER, true, 9),
        rank_at(1, 25, CDI_FLIGHT_BARRIER, true, 9),
        rank_at(2, 25, CDI_FLIGHT_BARRIER, true, 9),
        rank_at(3, 25, CDI_FLIGHT_BARRIER, true, 2),
    };

    v[0].view.replay = (struct cdi_flight_replay){.begun = 21,
                                                  .ended = 20,
                                                  .number = 5,
                                                  .op = CDI_FLIGHT_ALL_REDUCE,
                                                  .bucket = 3,
                                                  .since_ns = NOW - 8 * (int64_t)S};
    v[1].view.replay = v[0].view.replay;
    v[2].view.replay = v[0].view.replay;
    v[2].view.replay.ended = 21;
    v[3].view.replay = (struct cdi_flight_replay){.begun = 20,
                                                  .ended = 20,
                                                  .number = 4,
                                                  .op = CDI_FLIGHT_ALL_REDUCE,
                                                  .bucket = -1,
                                                  .since_ns = NOW - 4 * (int64_t)S};
    cr_assert_str_eq(text_of(v, 4), "rank 3 after barrier #25, 2 s ago; ranks 0, 1 in captured all_reduce (bucket 3), "
                                    "replay 5, for 8 s; rank 2 after captured all_reduce (bucket 3), replay 5, 8 s "
                                    "ago");
}

Test(progress, groups_equal_ranks_and_omits_short_times)
{
    struct progress_rank v[] = {rank_at(1, 5, CDI_FLIGHT_BARRIER, false, 0),
                                rank_at(0, 5, CDI_FLIGHT_BARRIER, false, 0)};

    cr_assert_str_eq(text_of(v, 2), "ranks 0, 1 in barrier #5");
}

Test(progress, first_step_has_number_if_bucket_known)
{
    struct progress_rank v[] = {in_bucket(rank_at(0, 4, CDI_FLIGHT_ALL_REDUCE, false, 0), 0, 0)};

    cr_assert_str_eq(text_of(v, 1), "rank 0 in all_reduce #4 (bucket 0, step 0)");
}

Test(progress, rank_before_first_collective_sorts_first)
{
    struct progress_rank v[] = {rank_at(0, 1, CDI_FLIGHT_BARRIER, false, 3), {.rank = 1, .view = {.claimed_pid = 8}}};

    cr_assert_str_eq(text_of(v, 2), "rank 1 before the first collective; rank 0 in barrier #1, for 3 s");
}

Test(progress, skips_ranks_without_libcddp)
{
    struct progress_rank v[] = {{.rank = 0}, rank_at(1, 2, CDI_FLIGHT_RECV, true, 0), {.rank = 2}};

    cr_assert_str_eq(text_of(v, 3), "rank 1 after recv #2");
    cr_assert_str_eq(text_of(v, 0), "");
    v[0] = v[2] = (struct progress_rank){0};
    cr_assert_str_eq(text_of(v, 1), "");
}

Test(progress, cuts_many_groups_and_ranks)
{
    struct progress_rank v[100];

    for (int i = 0; i < 100; i++)
        v[i] = rank_at(i, i < 10 ? (uint64_t)i + 1 : 50, CDI_FLIGHT_SEND, false, 0);
    cr_assert_str_eq(text_of(v, 100), "rank 0 in send #1; rank 1 in send #2; rank 2 in send #3; rank 3 in send #4; 96 "
                                      "more elsewhere");
    cr_assert_str_eq(text_of(&v[10], 90),
                     "ranks 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25 and 74 more in send #50");
}

Test(progress, fits_any_page_contents)
{
    struct progress_rank v[8];
    char small[40];

    memset(v, 0xff, sizeof v);
    for (int i = 0; i < 8; i++) {
        v[i].rank = 2147483640 + i;
        v[i].view.oldest_unfinished.op = (uint32_t)i + 1000;
        v[i].view.oldest_unfinished.bucket = 2147483647;
        v[i].view.oldest_unfinished.started_ns = 1;
    }
    cr_assert_lt(strlen(text_of(v, 8)), PROGRESS_TEXT);
    progress_text(v, 8, NOW, small, sizeof small);
    cr_assert_eq(strlen(small), sizeof small - 1);
}
