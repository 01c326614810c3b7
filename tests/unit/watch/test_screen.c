/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "watch/screen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

CDI_SUITE(screen);

static struct screen shown;

static const struct screen_line *line(unsigned i)
{
    cr_assert(i < shown.n, "line %u of %u", i, shown.n);
    return &shown.lines[i];
}

/* Composes, and checks what holds for every screen. */
static void compose(json_t *reply, unsigned width, unsigned height, unsigned scroll)
{
    struct screen_input in = {
        .endpoint = "node1:29400", .reply = reply, .trouble = "", .width = width, .height = height, .scroll = scroll};

    cr_assert_eq(screen_compose(&in, &shown), CDDP_OK);
    cr_assert_leq(shown.n, height);
    for (unsigned i = 0; i < shown.n; i++) {
        cr_assert_leq(strlen(shown.lines[i].text), width, "%ux%u: '%s'", width, height, shown.lines[i].text);
        for (const char *p = shown.lines[i].text; *p != '\0'; p++)
            cr_assert(*p >= ' ' && *p < 0x7f);
    }
}

static json_t *rank_json(int rank, uint64_t step, const char *place, int seq)
{
    return json_pack("{s:i, s:i, s:I, s:s, s:s, s:i, s:i, s:i, s:I, s:i, s:I, s:I, s:I, s:I, s:I, s:i, s:i}", "rank",
                     rank, "pid", 100 + rank, "step", (json_int_t)step, "place", place, "op", "all_reduce", "op_number",
                     1, "seq", seq, "bucket", 3, "for_ms", (json_int_t)4200, "cpu_permille", 990, "resident_bytes",
                     (json_int_t)1288490188, "step_us", (json_int_t)80000, "comm_us", (json_int_t)10000, "exposed_us",
                     (json_int_t)2000, "late_us", (json_int_t)1600, "late_rank", 2, "late_count", 40);
}

/* A job with so many nodes of so many ranks, of which rank 2 is late. */
static json_t *job_json(const char *name, int n_nodes, int each)
{
    json_t *nodes = json_array();

    for (int i = 0; i < n_nodes; i++) {
        json_t *ranks = json_array();
        char host[32];

        (void)snprintf(host, sizeof host, "host%d", i);
        for (int k = i * each; k < (i + 1) * each; k++)
            json_array_append_new(ranks, rank_json(k, k == 2 ? 388 : 390, k == 2 ? "after" : "in", k == 2 ? 811 : 812));
        json_array_append_new(nodes, json_pack("{s:i, s:i, s:i, s:s, s:o}", "round", 2, "asked", 1, "node_rank", i,
                                               "host", host, "ranks", ranks));
    }
    return json_pack("{s:s, s:s, s:i, s:i, s:i, s:o}", "name", name, "state", "running", "round", 2, "restarts", 1,
                     "world_size", n_nodes * each, "nodes", nodes);
}

static json_t *reply_of(json_t *first, json_t *second)
{
    return json_pack("{s:s, s:[o, o*]}", "version", "1", "jobs", first, second);
}

Test(screen, shows_the_late_rank_first)
{
    json_t *reply = reply_of(job_json("train", 2, 4), NULL);

    compose(reply, 80, 24, 0);
    cr_assert_eq(shown.n, 24);
    cr_assert_not_null(strstr(line(0)->text, "node1:29400"));
    cr_assert_str_eq(line(1)->text, "train: running, round 2, 1 restart, 8 ranks, 2 nodes, step 388, 12.5 steps/s");
    cr_assert_str_eq(line(2)->text, "1 late rank, 80 % of communication hidden, slowest rank 2");
    cr_assert_eq(line(3)->look, SCREEN_HEAD);
    cr_assert_eq(line(4)->look, SCREEN_LATE);
    cr_assert_str_eq(line(4)->text, "     2      388      2    12.5   2 %  1.2 GiB  0.99  after all_reduce #811, 4 s ");
    cr_assert_eq(line(5)->look, SCREEN_PLAIN);
    cr_assert_not_null(strstr(line(5)->text, "     0      390      -"));
    cr_assert_not_null(strstr(line(23)->text, "rows 1 to 8 of 8"));
    json_decref(reply);
}

Test(screen, has_all_columns_on_a_wide_terminal)
{
    json_t *reply = reply_of(job_json("train", 2, 4), NULL);

    compose(reply, 200, 60, 0);
    cr_assert_eq(shown.n, 60);
    cr_assert_not_null(strstr(line(3)->text, "HIDDEN"));
    cr_assert_null(strstr(line(3)->text, "GPU"), "no rank has a figure for it");
    cr_assert_not_null(strstr(line(4)->text, "0 host0"));
    cr_assert_not_null(strstr(line(4)->text, "after all_reduce #811, 4 s ago"));
    json_decref(reply);
}

/* Sets a member of a rank of the first node. */
static void set_member(json_t *reply, size_t rank, const char *name, json_t *value)
{
    json_t *node = json_array_get(json_object_get(json_array_get(json_object_get(reply, "jobs"), 0), "nodes"), 0);

    cr_assert_eq(json_object_set_new(json_array_get(json_object_get(node, "ranks"), rank), name, value), 0);
}

/* All have as many steps. The server says who is waited for. */
Test(screen, late_ranks_of_a_hang_are_counted_and_come_first)
{
    json_t *reply = reply_of(job_json("train", 1, 4), NULL);

    set_member(reply, 2, "step", json_integer(390));
    compose(reply, 100, 24, 0);
    cr_assert_not_null(strstr(line(2)->text, "0 late ranks"), "an older server: %s", line(2)->text);
    set_member(reply, 3, "late", json_integer(1));
    compose(reply, 100, 24, 0);
    cr_assert_not_null(strstr(line(2)->text, "1 late rank, "), "%s", line(2)->text);
    cr_assert_eq(line(4)->look, SCREEN_LATE);
    cr_assert_eq(strncmp(line(4)->text, "     3 ", 7), 0, "%s", line(4)->text);
    cr_assert_not_null(strstr(line(4)->text, " yes "), "%s", line(4)->text);
    cr_assert_eq(line(5)->look, SCREEN_PLAIN);
    json_decref(reply);
}

Test(screen, figures_of_steps_end_while_nothing_moves)
{
    json_t *reply = reply_of(job_json("train", 1, 4), NULL);

    for (size_t i = 0; i < 4; i++)
        set_member(reply, i, "step_age_ms", json_integer(50000));
    compose(reply, 120, 24, 0);
    cr_assert_not_null(strstr(line(1)->text, "step 388, 0.0 steps/s"), "%s", line(1)->text);
    cr_assert_null(strstr(line(2)->text, "hidden"), "%s", line(2)->text);
    cr_assert_null(strchr(line(4)->text, '%'), "%s", line(4)->text);
    json_decref(reply);
}

Test(screen, gpu_has_a_column_if_a_rank_has_one)
{
    json_t *reply = reply_of(job_json("train", 1, 3), NULL);

    set_member(reply, 0, "gpu_permille", json_integer(874));
    set_member(reply, 1, "gpu_permille", json_integer(4000000));
    compose(reply, 100, 24, 0);
    cr_assert_not_null(strstr(line(3)->text, " GPU  WHERE"), "%s", line(3)->text);
    cr_assert_not_null(strstr(line(4)->text, " 0.99     -  after"), "%s", line(4)->text);
    cr_assert_not_null(strstr(line(5)->text, "  87 %  in"), "%s", line(5)->text);
    cr_assert_not_null(strstr(line(6)->text, " 100 %  in"), "%s", line(6)->text);
    json_decref(reply);
}

Test(screen, part_is_shown)
{
    json_t *reply = reply_of(job_json("train", 1, 2), NULL);

    set_member(reply, 1, "part", json_string("'tp' (ranks 0, 1)"));
    compose(reply, 140, 24, 0);
    cr_assert_not_null(strstr(line(5)->text, "in all_reduce #812 of part 'tp' (ranks 0, 1), for 4 s"), "%s",
                       line(5)->text);
    cr_assert_null(strstr(line(4)->text, "of part"), "%s", line(4)->text);
    json_decref(reply);
}

Test(screen, message_names_the_other_rank)
{
    json_t *reply = reply_of(job_json("train", 1, 2), NULL);

    set_member(reply, 1, "op_number", json_integer(CDI_FLIGHT_RECV));
    set_member(reply, 1, "peer", json_integer(0));
    compose(reply, 120, 24, 0);
    cr_assert_not_null(strstr(line(5)->text, "in recv #812 from rank 0, for 4 s"), "%s", line(5)->text);
    json_decref(reply);
}

Test(screen, keeps_the_ranks_on_a_tiny_terminal)
{
    json_t *reply = reply_of(job_json("train", 2, 4), NULL);

    compose(reply, 20, 5, 0);
    cr_assert_eq(shown.n, 5);
    cr_assert_not_null(strstr(line(3)->text, "2      388"));
    for (unsigned width = 1; width < 130; width++)
        for (unsigned height = 1; height < 12; height++)
            compose(reply, width, height, 1);
    json_decref(reply);
}

Test(screen, scrolls_a_thousand_ranks_to_the_end_and_no_further)
{
    json_t *reply = reply_of(job_json("train", 125, 8), NULL);

    compose(reply, 80, 24, 0);
    cr_assert_eq(shown.page, 19);
    cr_assert_eq(shown.max_scroll, 981);
    cr_assert_not_null(strstr(line(23)->text, "rows 1 to 19 of 1000"));
    compose(reply, 80, 24, 5000);
    cr_assert_eq(shown.scroll, 981);
    cr_assert_not_null(strstr(line(22)->text, "   999"));
    cr_assert_not_null(strstr(line(23)->text, "rows 982 to 1000 of 1000"));
    json_decref(reply);
}

Test(screen, separates_jobs)
{
    json_t *reply = reply_of(job_json("first", 1, 2), job_json("second", 1, 3));

    compose(reply, 80, 24, 0);
    cr_assert_eq(line(2)->look, SCREEN_TITLE);
    cr_assert_eq(strncmp(line(2)->text, "first: running", 14), 0);
    cr_assert_eq(line(3)->look, SCREEN_HEAD);
    cr_assert_eq(strncmp(line(6)->text, "second: running", 15), 0);
    cr_assert_not_null(strstr(line(23)->text, "rows 1 to 9 of 9"));
    json_decref(reply);
}

Test(screen, takes_rates_from_two_replies_without_records_of_steps)
{
    json_t *before = reply_of(job_json("train", 1, 2), NULL), *after = json_deep_copy(before), *rank;
    struct screen_input in = {.endpoint = "e", .trouble = "", .width = 80, .height = 24, .between_ms = 2000};

    for (int i = 0; i < 2; i++) {
        rank = json_array_get(
            json_object_get(
                json_array_get(json_object_get(json_array_get(json_object_get(after, "jobs"), 0), "nodes"), 0),
                "ranks"),
            (size_t)i);
        json_object_del(rank, "step_us");
        json_object_set_new(rank, "step", json_integer(400));
    }
    in.reply = after;
    in.previous = before;
    cr_assert_eq(screen_compose(&in, &shown), CDDP_OK);
    cr_assert_not_null(strstr(line(1)->text, "5.0 steps/s"), "%s", line(1)->text);
    json_decref(before);
    json_decref(after);
}

Test(screen, says_when_nobody_answers)
{
    struct screen_input in = {
        .endpoint = "node1", .trouble = "connection lost, trying again", .width = 80, .height = 24};

    cr_assert_eq(screen_compose(&in, &shown), CDDP_OK);
    cr_assert_not_null(strstr(line(0)->text, "connection lost, trying again"));
    cr_assert_str_eq(line(1)->text, "waiting for the first answer");
    in.width = 30;
    cr_assert_eq(screen_compose(&in, &shown), CDDP_OK);
    cr_assert_str_eq(line(0)->text, "connection lost, trying again");
}

Test(screen, shows_nothing_but_text_of_a_hostile_reply)
{
    static const char *const replies[] = {
        "{}",
        "[]",
        "{\"jobs\": 5}",
        "{\"jobs\": [5, null, \"x\"]}",
        "{\"jobs\": [{}]}",
        "{\"jobs\": [{\"name\": \"\\u001b[31m\\n\\u00e4\", \"state\": 3, \"nodes\": [{\"ranks\": [{}]}, 7]}]}",
        "{\"jobs\": [{\"name\": \"x\", \"nodes\": [{\"host\": \"\\u001b]0;\", \"node_rank\": 0, \"ranks\": "
        "[{\"rank\": 0, \"place\": \"in\", \"op_number\": 99, \"step\": 9223372036854775807, \"late_us\": 1, "
        "\"doing\": \"\\u001b[2J\"}, {\"rank\": 2147483647, \"place\": \"exited\"}]}]}]}",
    };

    for (size_t i = 0; i < sizeof replies / sizeof replies[0]; i++) {
        json_t *reply = json_loads(replies[i], 0, NULL);

        cr_assert_not_null(reply);
        compose(reply, 80, 24, 0);
        compose(reply, 200, 60, 3);
        json_decref(reply);
    }
}
