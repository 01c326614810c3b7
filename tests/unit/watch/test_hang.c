/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "watch/hang.h"

#include <cddp/types.h>
#include <string.h>

CDI_SUITE(hang);

#define RANKS 8
#define WARN_MS 30000

/* Two nodes of four ranks, all in all_reduce #812 of bucket 3 for 31 s. */
static struct cdi_rank_report ranks[RANKS];
static struct view_node nodes[2];

static struct hang judge(int64_t now_ms)
{
    struct hang h;

    cr_assert_eq(hang_judge(nodes, 2, RANKS, now_ms, WARN_MS, &h), CDDP_OK);
    return h;
}

static void all_wait(void)
{
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (struct cdi_rank_report){.rank = i,
                                            .pid = 100 + i,
                                            .place = CDI_PLACE_IN,
                                            .op = CDI_FLIGHT_ALL_REDUCE,
                                            .dtype = CDDP_FLOAT32,
                                            .seq = 812,
                                            .count = 1 << 20,
                                            .bucket = 3,
                                            .peer = -1,
                                            .step = 39,
                                            .for_ms = 31000};
        (void)snprintf(ranks[i].names, sizeof ranks[i].names, "layer1.weight, layer1.bias and 3 more");
    }
    for (int i = 0; i < 2; i++)
        nodes[i] = (struct view_node){.report = {.node_rank = i, .n_ranks = 4, .ranks = &ranks[4 * i]}};
    (void)snprintf(nodes[0].report.host, sizeof nodes[0].report.host, "node0");
    (void)snprintf(nodes[1].report.host, sizeof nodes[1].report.host, "node1");
}

static void is_after(int rank, uint64_t seq, int64_t for_ms)
{
    ranks[rank].place = CDI_PLACE_AFTER;
    ranks[rank].seq = seq;
    ranks[rank].for_ms = for_ms;
}

/* Returns the message; valid until the next call. */
static const char *text_of(struct hang *h)
{
    static char text[HANG_TEXT];
    struct cdi_buf buf;

    cdi_buf_init(&buf, sizeof text);
    cr_assert_eq(hang_text(h, &buf), CDDP_OK);
    (void)snprintf(text, sizeof text, "%.*s", (int)buf.len, (const char *)cdi_buf_data(&buf));
    cdi_buf_release(&buf);
    hang_release(h);
    return text;
}

static void expect_late(const char *expected)
{
    struct hang h = judge(0);
    char late[64] = "";

    for (size_t i = 0; i < h.n; i++)
        if (h.ranks[i].late)
            (void)snprintf(late + strlen(late), sizeof late - strlen(late), " %d", h.ranks[i].report->rank);
    cr_assert_str_eq(late, expected);
    hang_release(&h);
}

Test(hang, short_waits_are_none)
{
    struct hang h;

    all_wait();
    for (int i = 0; i < RANKS; i++)
        ranks[i].for_ms = WARN_MS - HANG_SLACK_MS - 1;
    h = judge(0);
    cr_assert_eq(h.kind, HANG_NONE);
    hang_release(&h);
    h = judge(1); /* a report gets older */
    cr_assert_eq(h.kind, HANG_ALL);
    hang_release(&h);
}

Test(hang, rank_outside_collectives_is_behind)
{
    struct hang h;

    all_wait();
    is_after(5, 811, 32000);
    (void)snprintf(ranks[5].doing, sizeof ranks[5].doing, "sleeping in read of a pipe");
    ranks[5].stack = "thread 77:\n  #0 read()\n  #1 main()\n";
    h = judge(0);
    cr_assert_eq(h.kind, HANG_BEHIND);
    cr_assert_str_eq(text_of(&h), "no progress for 31 s: rank 5 (pid 105 on node1) is behind: after all_reduce #811 "
                                  "(bucket 3, step 39), 32 s ago, sleeping in read of a pipe\n"
                                  "    ranks 0-4, 6, 7 wait in all_reduce #812 of 4.0 MiB float32 (bucket 3: "
                                  "layer1.weight, layer1.bias and 3 more, step 39), for 31 s\n"
                                  "    rank 5's stack:\n"
                                  "        thread 77:\n"
                                  "          #0 read()\n"
                                  "          #1 main()");
}

Test(hang, ranks_of_another_communicator_go_on)
{
    all_wait();
    is_after(3, 811, 31500);
    is_after(6, 2000, 40); /* ends a collective every now and then */
    expect_late(" 3");
}

Test(hang, rank_before_its_first_collective_is_behind)
{
    all_wait();
    ranks[2] = (struct cdi_rank_report){.rank = 2, .place = CDI_PLACE_START, .bucket = -1};
    expect_late(" 2");
}

Test(hang, halted_rank_in_the_same_collective_is_late)
{
    struct hang h;

    all_wait();
    ranks[6].halted = 1;
    (void)snprintf(ranks[6].doing, sizeof ranks[6].doing, "stopped by SIGSTOP");
    h = judge(0);
    cr_assert_eq(h.kind, HANG_HALTED);
    cr_assert_not_null(strstr(text_of(&h), "rank 6 (pid 106 on node1) cannot go on: in all_reduce #812 (bucket 3, step "
                                           "39), for 31 s, stopped by SIGSTOP\n"));
    is_after(1, 811, 31500);
    expect_late(" 1 6");
}

Test(hang, exited_rank_is_late_if_no_other_is)
{
    all_wait();
    ranks[7].place = CDI_PLACE_EXITED;
    expect_late(" 7");
    is_after(1, 811, 31500);
    expect_late(" 1");
}

Test(hang, rank_that_does_not_use_the_library_is_the_last_suspect)
{
    all_wait();
    ranks[7] = (struct cdi_rank_report){.rank = 7, .place = CDI_PLACE_OUTSIDE, .bucket = -1};
    expect_late(" 7");
    ranks[6].place = CDI_PLACE_EXITED;
    expect_late(" 6");
}

Test(hang, minority_in_another_collective_is_late)
{
    struct hang h;

    all_wait();
    ranks[4].op = CDI_FLIGHT_BROADCAST;
    ranks[4].count = 16;
    h = judge(0);
    cr_assert_eq(h.kind, HANG_ELSEWHERE);
    cr_assert_not_null(
        strstr(text_of(&h), "rank 4 (pid 104 on node1) is elsewhere: in broadcast #812 of 64 B float32 "));
    all_wait();
    ranks[4].count = 16; /* the same with another size */
    expect_late(" 4");
    all_wait();
    ranks[4].place = CDI_PLACE_BEFORE; /* queued, but not running */
    expect_late(" 4");
}

Test(hang, without_a_majority_none_is_blamed)
{
    struct hang h;

    all_wait();
    for (int i = 0; i < 4; i++)
        ranks[i].op = CDI_FLIGHT_BROADCAST;
    h = judge(0);
    cr_assert_eq(h.kind, HANG_SPLIT);
    cr_assert_eq(hang_first(&h), NULL);
    cr_assert(strncmp(text_of(&h), "no progress for 31 s: the ranks wait in different collectives",
                      strlen("no progress for 31 s: the ranks wait in different collectives")) == 0);
}

Test(hang, lower_half_of_two_is_late)
{
    struct hang h;

    all_wait();
    nodes[0].report.n_ranks = 1;
    nodes[1].report = (struct cdi_node_report){.node_rank = 1, .n_ranks = 1, .ranks = &ranks[1]};
    ranks[1].seq = 811;
    cr_assert_eq(hang_judge(nodes, 2, 2, 0, WARN_MS, &h), CDDP_OK);
    cr_assert_eq(h.kind, HANG_ELSEWHERE);
    cr_assert_eq(hang_first(&h)->report->rank, 1);
    hang_release(&h);
}

Test(hang, silent_node_is_named)
{
    struct hang h;

    all_wait();
    cr_assert_eq(hang_judge(nodes, 1, RANKS, 0, WARN_MS, &h), CDDP_OK);
    cr_assert_eq(h.kind, HANG_SILENT);
    cr_assert_eq(h.n_silent, 4);
    cr_assert_not_null(strstr(
        text_of(&h), "no progress for 31 s: ranks 4-7 cannot be seen: their node does not answer\n    ranks 0-3 wait"));
    is_after(1, 811, 31500);
    cr_assert_eq(hang_judge(nodes, 1, RANKS, 0, WARN_MS, &h), CDDP_OK);
    cr_assert_eq(h.kind, HANG_BEHIND);
    cr_assert_not_null(strstr(text_of(&h), "\n    ranks 4-7: no answer from their node"));
}

Test(hang, ranks_of_reports_are_checked)
{
    struct hang h;

    all_wait();
    ranks[7].rank = RANKS; /* beyond the world */
    cr_assert_eq(hang_judge(nodes, 2, RANKS, 0, WARN_MS, &h), CDDP_OK);
    cr_assert_eq(h.n, RANKS - 1);
    cr_assert_eq(h.n_silent, 1);
    hang_release(&h);
}

Test(hang, mark_changes_with_late_ranks)
{
    struct hang a, b;

    all_wait();
    is_after(5, 811, 32000);
    a = judge(0);
    ranks[0].for_ms += 5000;
    b = judge(5000);
    cr_assert_eq(a.mark, b.mark);
    hang_release(&b);
    ranks[5].seq = 900;
    b = judge(0);
    cr_assert_neq(a.mark, b.mark);
    hang_release(&b);
    hang_release(&a);
}

/* ------------------------------------------------------------------------------------------------- large jobs ---- */

#define MANY 1000

static struct cdi_rank_report many[MANY];

static int rows(const char *text)
{
    int n = 1;

    for (; *text != '\0'; text++)
        n += *text == '\n';
    return n;
}

static const char *text_of_many(void)
{
    struct view_node all = {.report = {.n_ranks = MANY, .ranks = many}};
    struct hang h;

    cr_assert_eq(hang_judge(&all, 1, MANY, 0, WARN_MS, &h), CDDP_OK);
    return text_of(&h);
}

static void many_wait(void)
{
    for (int i = 0; i < MANY; i++) {
        all_wait();
        many[i] = ranks[0];
        many[i].rank = i;
    }
}

Test(hang, thousand_ranks_fit_on_a_screen)
{
    many_wait();
    many[7].place = CDI_PLACE_AFTER;
    many[7].stack = "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n";
    cr_assert_not_null(strstr(text_of_many(), "\n    ranks 0-6, 8-999 wait in all_reduce #812"));
    cr_assert_eq(rows(text_of_many()), HANG_ROWS);
}

Test(hang, every_rank_elsewhere_fits_too)
{
    many_wait();
    for (int i = 0; i < MANY; i++) {
        many[i].seq = (uint64_t)i;
        if (i % 2 == 0)
            continue;
        many[i].place = CDI_PLACE_AFTER;
        many[i].stack = "1\n2\n3\n4\n5\n6\n7\n8\n";
        (void)snprintf(many[i].doing, sizeof many[i].doing, "running, %d %% of a core", i % 100);
    }
    cr_assert_leq(rows(text_of_many()), HANG_ROWS);
    cr_assert_not_null(strstr(text_of_many(), "500 ranks are behind"));
}

/* Puts a rank into a recv from another one. */
static void receives(int rank, int32_t from)
{
    ranks[rank].op = CDI_FLIGHT_RECV;
    ranks[rank].count = 4;
    ranks[rank].bucket = -1;
    ranks[rank].peer = from;
}

Test(hang, ranks_that_wait_for_each_other_are_named)
{
    struct hang h;

    all_wait();
    receives(1, 6);
    receives(6, 1);
    (void)snprintf(ranks[6].doing, sizeof ranks[6].doing, "sleeping");
    h = judge(0);
    cr_assert(h.kind == HANG_CYCLE && h.n_late == 2);
    cr_assert_str_eq(text_of(&h),
                     "no progress for 31 s: 2 ranks wait for each other in messages: rank 1 for rank 6, rank 6 for "
                     "rank 1\n"
                     "    rank 1 (pid 101 on node0): in recv #812 of 16 B float32 from rank 6 (step 39), for 31 s\n"
                     "    rank 6 (pid 106 on node1): in recv #812 of 16 B float32 from rank 1 (step 39), for 31 s, "
                     "sleeping\n"
                     "    ranks 0, 2-5, 7 wait in all_reduce #812 of 4.0 MiB float32 (bucket 3: layer1.weight, "
                     "layer1.bias and 3 more, step 39), for 31 s");
}

Test(hang, circle_of_all_ranks_is_followed)
{
    struct hang h;

    all_wait();
    for (int i = 0; i < RANKS; i++)
        receives(i, (i + 3) % RANKS);
    ranks[3].op = CDI_FLIGHT_SEND;
    h = judge(0);
    cr_assert(h.kind == HANG_CYCLE && h.n_late == RANKS);
    cr_assert_eq(strncmp(text_of(&h),
                         "no progress for 31 s: 8 ranks wait for each other in messages: rank 0 for rank 3, rank 3 for "
                         "rank 6, rank 6 for rank 1, rank 1 for rank 4, rank 4 for rank 7, rank 7 for rank 2, rank 2 "
                         "for rank 5, rank 5 for rank 0\n",
                         200),
                 0);
}

/* Those that wait for a rank of the circle are not part of it. */
Test(hang, two_circles_and_a_rank_that_waits_for_one)
{
    all_wait();
    receives(0, 1);
    receives(1, 0);
    receives(2, 1);
    receives(4, 5);
    receives(5, 4);
    expect_late(" 0 1 4 5");
}

Test(hang, chain_of_messages_leads_to_the_rank_at_its_end)
{
    all_wait();
    receives(0, 1);
    receives(1, 2);
    is_after(2, 811, 32000);
    expect_late(" 2");
}

/* A rank that cannot run, or that is in its message for a moment only, is not a link. */
Test(hang, circle_needs_ranks_that_wait)
{
    struct hang h;

    all_wait();
    receives(0, 1);
    receives(1, 0);
    ranks[1].halted = 1;
    expect_late(" 1");
    ranks[1].halted = 0;
    ranks[1].for_ms = 20;
    h = judge(0);
    cr_assert_neq(h.kind, HANG_CYCLE);
    hang_release(&h);
    ranks[1].for_ms = 31000;
    ranks[1].peer = 77; /* a report may say anything */
    h = judge(0);
    cr_assert_neq(h.kind, HANG_CYCLE);
    hang_release(&h);
    ranks[0].peer = 0;
    expect_late(" 0");
}

/* Libraries that do not say whom a message is from. */
Test(hang, messages_from_unknown_ranks_are_not_one_collective)
{
    struct hang h;

    all_wait();
    for (int i = 0; i < RANKS; i++)
        receives(i, -1);
    h = judge(0);
    cr_assert_eq(h.kind, HANG_ALL);
    cr_assert_str_eq(text_of(&h), "no progress for 31 s: all 8 ranks wait in messages\n"
                                  "    ranks 0-7 wait in recv #812 of 16 B float32 (step 39), for 31 s");
}

Test(hang, a_late_rank_is_found_by_its_number)
{
    struct hang h;

    all_wait();
    is_after(5, 811, 32000);
    h = judge(0);
    cr_assert(hang_is_late(&h, 5) && !hang_is_late(&h, 4) && !hang_is_late(&h, 99) && !hang_is_late(&h, -1));
    cr_assert_eq(hang_find(&h, 7)->report, &ranks[7]);
    hang_release(&h);
    cr_assert_not(hang_is_late(&(struct hang){.n = 0}, 0));
}

/* The rank waits for so long in all_reduce #seq of a part. */
static void is_in_part(int rank, const char *part, uint64_t seq, int64_t for_ms)
{
    ranks[rank].seq = seq;
    ranks[rank].count = 1024;
    ranks[rank].bucket = -1;
    ranks[rank].step = 0;
    ranks[rank].for_ms = for_ms;
    (void)snprintf(ranks[rank].part, sizeof ranks[rank].part, "%s", part);
}

Test(hang, rank_that_a_part_waits_for_is_named_with_the_part)
{
    struct hang h;

    all_wait();
    is_in_part(4, "'tp' (ranks 4, 5)", 12, 33000);
    is_in_part(5, "'tp' (ranks 4, 5)", 11, 32000);
    ranks[5].place = CDI_PLACE_AFTER;
    h = judge(0);
    cr_assert_eq(h.kind, HANG_BEHIND);
    cr_assert_str_eq(text_of(&h), "no progress for 33 s: rank 5 (pid 105 on node1) is behind: after all_reduce #11 of "
                                  "part 'tp' (ranks 4, 5), 32 s ago\n"
                                  "    ranks 0-3, 6, 7 wait in all_reduce #812 of 4.0 MiB float32 (bucket 3: "
                                  "layer1.weight, layer1.bias and 3 more, step 39), for 31 s\n"
                                  "    rank 4 waits in all_reduce #12 of part 'tp' (ranks 4, 5), 4.0 KiB float32, "
                                  "for 33 s");
}

Test(hang, only_ranks_of_the_part_are_late_for_it)
{
    all_wait();
    is_in_part(4, "'tp' (ranks 2, 4-5)", 12, 33000);
    is_after(5, 811, 32000);
    is_after(6, 811, 32000); /* it computes, and nobody waits for it */
    expect_late(" 5");
    (void)snprintf(ranks[4].part, sizeof ranks[4].part, "'(ranks 6)' (ranks 2, 4-5)"); /* a name */
    expect_late(" 5");
    (void)snprintf(ranks[4].part, sizeof ranks[4].part, "(ranks 2, 4, 5 and 61 more)"); /* rank 6 may be one */
    expect_late(" 5 6");
    (void)snprintf(ranks[4].part, sizeof ranks[4].part, "(ranks 2, 4, 99999999999999999999)");
    expect_late(" 5 6");
    (void)snprintf(ranks[4].part, sizeof ranks[4].part, "(ranks ");
    expect_late(" 5 6");
    (void)snprintf(ranks[4].part, sizeof ranks[4].part, "(ranks 4-");
    expect_late(" 5 6");
    (void)snprintf(ranks[4].part, sizeof ranks[4].part, "(ranks 3, 4)"); /* rank 3 waits for the others */
    expect_late(" 5 6");
    (void)snprintf(ranks[4].part, sizeof ranks[4].part, "(ranks 4-6)");
    ranks[5].for_ms = ranks[6].for_ms = 20; /* both go on */
    expect_late(" 5 6");
    (void)snprintf(ranks[4].part, sizeof ranks[4].part, "(ranks 4, 6)");
    expect_late(" 6");
}

Test(hang, numbers_of_different_parts_are_not_compared)
{
    struct hang h;

    all_wait();
    for (int i = 0; i < RANKS; i++)
        is_in_part(i, i < 4 ? "'tp' (ranks 0-3)" : "'tp' (ranks 4-7)", i < 4 ? 12 : 11, 31000);
    h = judge(0);
    cr_assert_eq(h.kind, HANG_SPLIT);
    cr_assert_eq(hang_first(&h), NULL);
    hang_release(&h);
    for (int i = 0; i < RANKS; i++)
        is_in_part(i, "'tp' (ranks 0-7)", i < 4 ? 12 : 11, 31000);
    expect_late(" 4 5 6 7");
    for (int i = 0; i < RANKS; i++)
        is_in_part(i, "'tp' (ranks 0-7)", 11, 31000);
    h = judge(0);
    cr_assert_eq(h.kind, HANG_ALL);
    hang_release(&h);
    ranks[2].part[0] = '\0'; /* the same numbers on the whole */
    expect_late(" 2");
}

Test(hang, rank_that_goes_on_in_a_part_is_behind)
{
    struct hang h;

    all_wait();
    for (int i = 1; i < RANKS; i++) /* at each look in one of their collectives */
        is_in_part(i, i < 4 ? "'tp' (ranks 1-3)" : "'tp' (ranks 4-7)", 70000, 1);
    h = judge(0);
    cr_assert_eq(h.kind, HANG_BEHIND);
    hang_release(&h);
    expect_late(" 1 2 3 4 5 6 7");
}

Test(hang, mark_changes_with_the_part)
{
    struct hang a, b;

    all_wait();
    is_in_part(4, "'tp' (ranks 4, 5)", 12, 33000);
    is_in_part(5, "'tp' (ranks 4, 5)", 11, 32000);
    ranks[5].place = CDI_PLACE_AFTER;
    a = judge(0);
    ranks[5].part[0] = '\0';
    b = judge(0);
    cr_assert_neq(a.mark, b.mark);
    hang_release(&a);
    hang_release(&b);
}
