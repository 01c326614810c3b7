/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/verdict.h"

#include "hygiene.h"
#include "watch/hang.h"

#include <string.h>

CDI_SUITE(verdict);

#define RANKS 4

static struct cdi_rank_report reports[RANKS];
static struct cdi_placed placed[RANKS];
static struct page_node node = {.node_rank = 0, .host = "a", .answered = true, .ranks = reports, .n_ranks = RANKS};
static struct page_job job = {.stuck_ms = 30000};
static struct verdict v;

static void judge_as(const char *state)
{
    job.state = state;
    job.why = "rank 3 was killed";
    job.world_size = RANKS;
    job.node = &node;
    job.n_nodes = 1;
    job.placed = placed;
    job.n_placed = RANKS;
    for (int i = 0; i < RANKS; i++)
        placed[i] = (struct cdi_placed){&reports[i], "a", 0};
    cdi_places_sum(placed, RANKS, &job.sum);
    job.n_groups = cdi_places_group(placed, RANKS, job.groups, PAGE_GROUPS);
    cr_assert_eq(hang_judge(&(struct view_node){.report = {.n_ranks = RANKS, .ranks = reports}}, 1, RANKS, 0,
                            PAGE_LATE_MS, &job.hang),
                 CDDP_OK);
    verdict_of(&job, &v);
    hang_release(&job.hang);
}

static void all_in(enum cdi_place place, int64_t for_ms)
{
    for (int i = 0; i < RANKS; i++)
        reports[i] = (struct cdi_rank_report){
            .rank = i, .place = place, .op = 1, .seq = 9, .step = 5, .for_ms = for_ms, .bucket = -1};
}

Test(verdict, running_job_is_good)
{
    all_in(CDI_PLACE_IN, 20);
    judge_as("running");
    cr_assert(v.level == VERDICT_GOOD && strcmp(v.word, "Running") == 0);
    cr_assert_str_eq(v.text, "4 ranks, 5 steps done.");
}

Test(verdict, long_computation_is_good)
{
    all_in(CDI_PLACE_AFTER, 3600000);
    judge_as("running");
    cr_assert_eq(v.level, VERDICT_GOOD, "%s", v.text);
}

Test(verdict, wait_of_all_blames_nobody)
{
    all_in(CDI_PLACE_IN, 31000);
    judge_as("running");
    cr_assert_eq(v.level, VERDICT_BAD);
    cr_assert_str_eq(v.text, "4 ranks in all_reduce #9 for 31 s, and no rank is late.");
}

Test(verdict, late_ranks_are_named)
{
    all_in(CDI_PLACE_IN, 12000);
    reports[1].place = reports[2].place = CDI_PLACE_START;
    reports[1].op = reports[2].op = 0;
    reports[1].seq = reports[2].seq = 0;
    judge_as("running");
    cr_assert(v.level == VERDICT_WARN && strcmp(v.word, "Waiting") == 0);
    cr_assert_str_eq(v.text, "Ranks 1, 2 are late: 2 ranks have been in all_reduce #9 for 12 s.");
}

/* The agents' --hang_warning decides. */
Test(verdict, wait_is_an_error_from_the_agents_time_on)
{
    static const struct {
        int64_t stuck_ms, wait_ms;
        enum verdict_level level;
    } cases[] = {{600000, 31000, VERDICT_GOOD}, {600000, 200000, VERDICT_WARN}, {600000, 600000, VERDICT_BAD},
                 {3000, 900, VERDICT_GOOD},     {3000, 1000, VERDICT_WARN},     {3000, 3000, VERDICT_BAD},
                 {30000, 29999, VERDICT_WARN}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        job.stuck_ms = cases[i].stuck_ms;
        all_in(CDI_PLACE_IN, cases[i].wait_ms);
        judge_as("running");
        cr_assert_eq(v.level, cases[i].level, "case %zu: %s", i, v.text);
    }
    job.stuck_ms = 30000;
}

Test(verdict, stopped_rank_in_the_collective_is_named)
{
    all_in(CDI_PLACE_IN, 31000);
    reports[2].halted = 1;
    (void)snprintf(reports[2].doing, sizeof reports[2].doing, "stopped by a signal");
    judge_as("running");
    cr_assert_str_eq(v.text, "Rank 2 is late, stopped by a signal: 3 ranks have been in all_reduce #9 for 31 s.");
}

Test(verdict, ranks_that_wait_for_each_other_are_named)
{
    all_in(CDI_PLACE_IN, 31000);
    reports[0].op = reports[2].op = CDI_FLIGHT_RECV;
    reports[0].peer = 2;
    reports[2].peer = 0;
    judge_as("running");
    cr_assert_eq(v.level, VERDICT_BAD);
    cr_assert_str_eq(v.text,
                     "2 ranks wait for each other in messages: rank 0 for rank 2, rank 2 for rank 0, for 31 s.");
}

Test(verdict, silent_node_is_a_warning)
{
    all_in(CDI_PLACE_IN, 20);
    node.answered = false;
    node.ms_ago = 60000;
    judge_as("running");
    cr_assert_eq(v.level, VERDICT_WARN);
    cr_assert_str_eq(v.text, "1 node does not answer, so the ranks there may be elsewhere by now.");
}

Test(verdict, ranks_without_libcddp_are_good)
{
    all_in(CDI_PLACE_OUTSIDE, 0);
    judge_as("running");
    cr_assert_eq(v.level, VERDICT_GOOD);
    cr_assert_str_eq(v.text, "4 ranks, which do not use libcddp: their steps are not known.");
}

Test(verdict, end_is_good_or_bad)
{
    all_in(CDI_PLACE_EXITED, 0);
    job.done = true;
    judge_as("closed");
    cr_assert(v.level == VERDICT_GOOD && strcmp(v.word, "Done") == 0);
    job.done = false;
    judge_as("closed");
    cr_assert(v.level == VERDICT_BAD && strcmp(v.word, "Failed") == 0 && strstr(v.text, "rank 3") != NULL);
    judge_as("stopping");
    cr_assert(v.level == VERDICT_WARN && strcmp(v.word, "Stopping") == 0);
    job.waiting = 1;
    job.needed = 2;
    judge_as("joining");
    cr_assert_eq(v.level, VERDICT_WARN);
    cr_assert_str_eq(v.text, "1 of 2 nodes is here.");
}
