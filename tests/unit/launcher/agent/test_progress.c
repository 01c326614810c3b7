/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "launcher/agent/progress.h"

#include <string.h>

CDI_SUITE(progress);

static struct cdi_rank_report rank_at(int32_t rank, enum cdi_place place, uint64_t seq, enum cdi_flight_op op,
                                      int64_t for_s)
{
    return (struct cdi_rank_report){CDI_RANK_UNKNOWN, .rank = rank, .place = place,
                                    .seq = seq,       .op = op,     .for_ms = 1000 * for_s};
}

static struct cdi_rank_report in_bucket(struct cdi_rank_report r, int bucket, uint64_t step)
{
    r.bucket = bucket;
    r.step = step;
    return r;
}

static const char *text_of(const struct cdi_rank_report *v, size_t n)
{
    static char text[PROGRESS_TEXT];

    progress_text(v, n, text, sizeof text);
    return text;
}

Test(progress, separates_missing_from_waiting_ranks)
{
    const struct cdi_rank_report v[] = {
        in_bucket(rank_at(0, CDI_PLACE_IN, 812, CDI_FLIGHT_ALL_REDUCE, 600), 3, 39),
        in_bucket(rank_at(1, CDI_PLACE_IN, 812, CDI_FLIGHT_ALL_REDUCE, 601), 3, 39),
        in_bucket(rank_at(2, CDI_PLACE_AFTER, 811, CDI_FLIGHT_BROADCAST, 612), -1, 39),
        in_bucket(rank_at(3, CDI_PLACE_IN, 812, CDI_FLIGHT_ALL_REDUCE, 600), 3, 39),
    };

    cr_assert_str_eq(text_of(v, 4),
                     "rank 2 after broadcast #811 (step 39), 612 s ago; ranks 0, 1, 3 in all_reduce #812 "
                     "(bucket 3, step 39), for 600 s");
}

Test(progress, queued_collective_is_not_entered)
{
    const struct cdi_rank_report v[] = {
        in_bucket(rank_at(0, CDI_PLACE_IN, 16, CDI_FLIGHT_ALL_REDUCE, 8), 2, 3),
        in_bucket(rank_at(1, CDI_PLACE_BEFORE, 16, CDI_FLIGHT_ALL_REDUCE, 8), 2, 3),
        in_bucket(rank_at(2, CDI_PLACE_AFTER, 16, CDI_FLIGHT_ALL_REDUCE, 8), 2, 3),
        in_bucket(rank_at(3, CDI_PLACE_BEFORE, 16, CDI_FLIGHT_ALL_REDUCE, 0), 2, 3),
    };

    cr_assert_str_eq(text_of(&v[3], 1), "rank 3 before all_reduce #16 (bucket 2, step 3), queued");
    cr_assert_str_eq(text_of(v, 3), "rank 1 before all_reduce #16 (bucket 2, step 3), queued for 8 s; rank 0 in "
                                    "all_reduce #16 (bucket 2, step 3), for 8 s; rank 2 after all_reduce #16 (bucket "
                                    "2, step 3), 8 s ago");
}

Test(progress, separates_graph_replays_from_calls)
{
    struct cdi_rank_report v[] = {
        rank_at(0, CDI_PLACE_IN_REPLAY, 25, CDI_FLIGHT_ALL_REDUCE, 8),
        rank_at(1, CDI_PLACE_IN_REPLAY, 25, CDI_FLIGHT_ALL_REDUCE, 8),
        rank_at(2, CDI_PLACE_AFTER_REPLAY, 25, CDI_FLIGHT_ALL_REDUCE, 8),
        rank_at(3, CDI_PLACE_AFTER, 25, CDI_FLIGHT_BARRIER, 2),
    };

    for (int i = 0; i < 3; i++) {
        v[i].replay = 5;
        v[i].bucket = 3;
        v[i].step = 7;
    }
    cr_assert_str_eq(text_of(v, 4), "rank 3 after barrier #25, 2 s ago; ranks 0, 1 in captured all_reduce (bucket 3, "
                                    "step 7), replay 5, for 8 s; rank 2 after captured all_reduce (bucket 3, step 7), "
                                    "replay 5, 8 s ago");
}

Test(progress, groups_equal_ranks_and_omits_short_times)
{
    const struct cdi_rank_report v[] = {rank_at(1, CDI_PLACE_IN, 5, CDI_FLIGHT_BARRIER, 0),
                                        rank_at(0, CDI_PLACE_IN, 5, CDI_FLIGHT_BARRIER, 0)};

    cr_assert_str_eq(text_of(v, 2), "ranks 0, 1 in barrier #5");
}

Test(progress, rank_before_first_collective_sorts_first)
{
    const struct cdi_rank_report v[] = {rank_at(0, CDI_PLACE_IN, 1, CDI_FLIGHT_BARRIER, 3),
                                        rank_at(1, CDI_PLACE_START, 0, CDI_FLIGHT_NONE, 0)};

    cr_assert_str_eq(text_of(v, 2), "rank 1 before the first collective; rank 0 in barrier #1, for 3 s");
}

Test(progress, skips_ranks_without_libcddp)
{
    const struct cdi_rank_report v[] = {{.rank = 0}, rank_at(1, CDI_PLACE_AFTER, 2, CDI_FLIGHT_RECV, 0), {.rank = 2}};

    cr_assert_str_eq(text_of(v, 3), "rank 1 after recv #2");
    cr_assert_str_empty(text_of(v, 0));
    cr_assert_str_empty(text_of(v, 1));
}

Test(progress, cuts_many_groups_and_ranks)
{
    struct cdi_rank_report v[100];
    char small[40];

    for (int i = 0; i < 100; i++)
        v[i] = rank_at(i, CDI_PLACE_IN, i < 10 ? (uint64_t)i + 1 : 50, CDI_FLIGHT_SEND, 0);
    cr_assert_str_eq(text_of(v, 100), "rank 0 in send #1; rank 1 in send #2; rank 2 in send #3; rank 3 in send #4; 96 "
                                      "more elsewhere");
    cr_assert_str_eq(text_of(&v[10], 90),
                     "ranks 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25 and 74 more in send #50");
    progress_text(v, 100, small, sizeof small);
    cr_assert_eq(strlen(small), sizeof small - 1);
}
