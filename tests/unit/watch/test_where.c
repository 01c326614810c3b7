/* SPDX-License-Identifier: Apache-2.0 */
/* The text of --where: a thousand planted ranks on one screen, and replies that are not replies. */
#include "watch/where.h"

#include "hygiene.h"

#include <string.h>

CDI_SUITE(where);

static char text[1 << 18];

static cddp_status show(json_t *reply, size_t rows, size_t columns)
{
    struct cdi_error err = {0};
    struct cdi_buf out;
    cddp_status st;

    cdi_buf_init(&out, sizeof text - 1);
    st = where_text(reply, rows, columns, &out, &err);
    memcpy(text, out.len > 0 ? (const char *)cdi_buf_data(&out) : "", out.len);
    text[out.len] = '\0';
    cdi_buf_release(&out);
    return st;
}

static size_t lines(void)
{
    size_t n = 0;

    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++)
        n++;
    return n;
}

static json_t *job_named(const char *name)
{
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:[]}", "name", name, "state", "running", "why", "", "round",
                     2, "restarts", 1, "world_size", 1000, "nodes_present", 125, "nodes");
}

/* 1,000 ranks on 125 nodes; rank 7 is after collective 41, the others are in 42. */
static json_t *thousand(void)
{
    json_t *job = job_named("big");

    for (int n = 0; n < 125; n++) {
        json_t *ranks = json_array();
        char host[32];

        for (int i = 8 * n; i < 8 * n + 8; i++)
            (void)json_array_append_new(
                ranks, json_pack("{s:i, s:s, s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s}", "rank",
                                 i, "place", i == 7 ? "after" : "in", "op_number", 1, "op", "all_reduce", "seq",
                                 i == 7 ? 41 : 42, "step", 20, "for_ms", 42000 + i, "n_steps", 10, "step_us", 12300,
                                 "comm_us", 4000, "exposed_us", 1000, "late_us", 1230, "late_rank", i == 7 ? 0 : 7,
                                 "late_count", 9, "doing", i == 7 ? "stopped by a signal" : "running, 99 % of a core"));
        (void)snprintf(host, sizeof host, "node%d", n);
        (void)json_array_append_new(json_object_get(job, "nodes"),
                                    json_pack("{s:i, s:s, s:b, s:i, s:o}", "node_rank", n, "host", host, "answered",
                                              n != 9, "answered_ms_ago", n == 9 ? 4200 : 3, "ranks", ranks));
    }
    return json_pack("{s:s, s:[o]}", "version", "1", "jobs", job);
}

Test(where, a_thousand_ranks_fit_on_one_screen)
{
    json_t *reply = thousand();

    cr_assert_eq(show(reply, 18, 0), CDDP_OK);
    cr_assert_str_eq(text, "job 'big': running, round 2, 1 restart, 125 nodes, 1000 ranks\n"
                           "RANKS       WHERE                 FOR   HOST       STEP  DOING\n"
                           "7           after all_reduce #41  42 s  node0      20    stopped by a signal\n"
                           "0-6, 8-999  in all_reduce #42     42 s  125 nodes  20    running\n"
                           "1000 ranks, 20 steps done; a step takes 12.3 ms (81.3 per second), communication 33 % "
                           "(exposed 8 %), waiting 10 %, mostly for rank 7\n"
                           "node 9 (node9) did not answer; its ranks are shown as 4.2 s ago\n");
    json_decref(reply);
}

Test(where, rate_and_shares_end_while_nothing_moves)
{
    json_t *reply = thousand(), *nodes = json_object_get(json_array_get(json_object_get(reply, "jobs"), 0), "nodes");

    for (size_t n = 0; n < 125; n++)
        for (size_t i = 0; i < 8; i++) {
            json_t *rank = json_array_get(json_object_get(json_array_get(nodes, n), "ranks"), i);

            (void)json_object_set_new(rank, "step_age_ms", json_integer(42100));
            (void)json_object_set_new(rank, "gpu_permille", json_integer(1000));
        }
    cr_assert_eq(show(reply, 18, 0), CDDP_OK);
    cr_assert_not_null(strstr(text, "\n1000 ranks, 20 steps done; no step has ended for 42 s; GPU load 100 %\n"), "%s",
                       text);
    json_decref(reply);
}

Test(where, ranks_everywhere_still_fit)
{
    json_t *reply = thousand(), *nodes = json_object_get(json_array_get(json_object_get(reply, "jobs"), 0), "nodes");

    for (size_t n = 0; n < 125; n++)
        for (size_t i = 0; i < 8; i++) {
            json_t *rank = json_array_get(json_object_get(json_array_get(nodes, n), "ranks"), i);

            (void)json_object_set_new(rank, "seq", json_integer((json_int_t)(1000 + 8 * n + i)));
            (void)json_object_set_new(rank, "step", json_integer((json_int_t)(8 * n + i)));
        }
    cr_assert_eq(show(reply, 18, 80), CDDP_OK);
    cr_assert_leq(lines(), 22, "%s", text);
    for (const char *at = text, *end; (end = strchr(at, '\n')) != NULL; at = end + 1)
        cr_assert_leq(end - at, 80, "%s", at);
    cr_assert_not_null(strstr(text, "in several places"), "%s", text);
    json_decref(reply);
}

Test(where, several_jobs_are_separate)
{
    json_t *reply = json_pack("{s:[o, o]}", "jobs", job_named("one"), job_named(""));

    cr_assert_eq(show(reply, 18, 0), CDDP_OK);
    cr_assert_str_eq(text, "job 'one': running, round 2, 1 restart, 125 nodes, 1000 ranks\n\n"
                           "job: running, round 2, 1 restart, 125 nodes, 1000 ranks\n");
    json_decref(reply);
    reply = json_pack("{s:[]}", "jobs");
    cr_assert_eq(show(reply, 18, 0), CDDP_OK);
    cr_assert_str_eq(text, "no jobs\n");
    json_decref(reply);
}

Test(where, control_characters_do_not_reach_the_terminal)
{
    json_t *reply = thousand(), *jobs = json_object_get(reply, "jobs");

    (void)json_object_set_new(json_array_get(jobs, 0), "name", json_string("a\033[2Jb\nc"));
    (void)json_object_set_new(json_array_get(json_object_get(json_array_get(jobs, 0), "nodes"), 0), "host",
                              json_string("no\ade"));
    cr_assert_eq(show(reply, 18, 0), CDDP_OK);
    cr_assert_not_null(strstr(text, "job 'a\\x1b[2Jb\\x0ac'"), "%s", text);
    cr_assert(strchr(text, '\033') == NULL && strchr(text, '\a') == NULL);
    json_decref(reply);
}

Test(where, wrong_replies_are_rejected)
{
    static const char *const wrong[] = {"{}", "{\"jobs\": 1}", "{\"jobs\": [{\"nodes\": [1]}]}",
                                        "{\"jobs\": [{\"nodes\": [{\"ranks\": [{\"rank\": -7}]}]}]}"};

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        json_t *reply = json_loads(wrong[i], 0, NULL);

        cr_assert_eq(show(reply, 18, 0), CDDP_E_PROTOCOL, "%s", wrong[i]);
        json_decref(reply);
    }
}
