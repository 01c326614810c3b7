/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "watch/hang.h"
#include "watch/job_json.h"
#include "watch/pages.h"

#include <jansson.h>
#include <string.h>

CDI_SUITE(status);

static struct page_agent agents[] = {
    {"10.0.0.1:40000", 0, 0, 8, "node<1>"}, {"10.0.0.2:40001", 1, 8, 4, "node2"}, {"[::1]:3", -1, 0, 0, NULL}};
static struct page_wait clients[] = {
    {.address = "10.0.0.2:40777", .key = "/default_pg/0//X", .missing = 2, .for_ms = 31500}};
static struct page_job jobs[] = {{.run_id = "night <b>\"run\"</b> \\1\nx",
                                  .state = "running",
                                  .why = "",
                                  .port = 29500,
                                  .round = 3,
                                  .restarts = 2,
                                  .world_size = 12,
                                  .nodes = 3,
                                  .waiting = 1,
                                  .needed = 2,
                                  .min_nodes = 2,
                                  .max_nodes = 4,
                                  .agents = agents,
                                  .n_agents = 3,
                                  .clients = clients,
                                  .n_clients = 1,
                                  .store_connections = 12,
                                  .keys = 100,
                                  .bytes = 20000,
                                  .bytes_limit = 1 << 30,
                                  .waits = 5,
                                  .waits_limit = 1 << 20,
                                  .operations = {[CDI_C10D_SET] = 7, [CDI_C10D_GET] = 9},
                                  .operations_per_s = 3.5},
                                 {.run_id = "bad \xff", .state = "closed", .why = "every worker ended with 0"}};
static const struct page_data all = {.version = "1.2.3",
                                     .started_s = 1.7e9,
                                     .uptime_s = 12.25,
                                     .connections = 20,
                                     .connections_limit = 1000,
                                     .accepted = 40,
                                     .dropped = 3,
                                     .resident_bytes = 1 << 20,
                                     .jobs = jobs,
                                     .n_jobs = 2};

static char text[262144];

static void write_it(cddp_status (*write)(const struct page_data *s, struct cdi_buf *out), const struct page_data *s)
{
    struct cdi_buf out;

    cdi_buf_init(&out, sizeof text - 1);
    cr_assert_eq(write(s, &out), CDDP_OK);
    memcpy(text, cdi_buf_data(&out), out.len);
    text[out.len] = '\0';
    cdi_buf_release(&out);
}

static bool has(const char *part)
{
    return strstr(text, part) != NULL;
}

Test(pages, json_has_every_value)
{
    json_t *root, *job, *agent;
    json_int_t round, ranks, keys, gets, open, limit, port, first, min, max;
    const char *run_id;

    write_it(page_json, &all);
    root = json_loads(text, 0, NULL);
    cr_assert_not_null(root);
    job = json_array_get(json_object_get(root, "jobs"), 0);
    cr_assert_eq(json_unpack(root, "{s:{s:I, s:I}}", "connections", "open", &open, "limit", &limit), 0);
    cr_assert_eq(json_unpack(job, "{s:s, s:I, s:I, s:I, s:{s:I, s:{s:I}}}", "run_id", &run_id, "round", &round, "ranks",
                             &ranks, "port", &port, "store", "keys", &keys, "operations", "GET", &gets),
                 0);
    cr_assert(open == 20 && limit == 1000 && round == 3 && ranks == 12 && port == 29500 && keys == 100 && gets == 9);
    cr_assert_str_eq(run_id, jobs[0].run_id);
    agent = json_array_get(json_object_get(job, "agents"), 1);
    cr_assert_eq(json_unpack(agent, "{s:I}", "first_rank", &first), 0);
    cr_assert_eq(first, 8);
    cr_assert_str_eq(json_string_value(json_object_get(agent, "host")), "node2");
    cr_assert_eq(json_unpack(job, "{s:{s:I, s:I}}", "nodes", "min", &min, "max", &max), 0);
    cr_assert(min == 2 && max == 4);
    agent = json_array_get(json_object_get(job, "agents"), 2);
    cr_assert_null(json_object_get(agent, "node_rank"), "an agent outside the round has no rank");
    agent = json_array_get(json_object_get(job, "waits"), 0);
    cr_assert_str_eq(json_string_value(json_object_get(agent, "address")), "10.0.0.2:40777");
    cr_assert_str_eq(json_string_value(json_object_get(agent, "key")), "/default_pg/0//X");
    cr_assert_eq(json_integer_value(json_object_get(agent, "missing")), 2);
    cr_assert_float_eq(json_real_value(json_object_get(agent, "for_s")), 31.5, 1e-6);
    job = json_array_get(json_object_get(root, "jobs"), 1);
    cr_assert_eq(json_array_size(json_object_get(job, "waits")), 0);
    cr_assert_str_eq(json_string_value(json_object_get(job, "run_id")), "bad ?");
    json_decref(root);
}

/* Each sample follows the TYPE of its metric, and each metric is listed once. */
Test(pages, metrics_have_help_and_type)
{
    char family[128] = "", *rest;
    size_t n = 0;

    write_it(page_metrics, &all);
    cr_assert(has("cddp_rendezvous_build_info{version=\"1.2.3\"} 1\n"));
    cr_assert(has("cddp_rendezvous_connections_dropped_total 3\n"));
    cr_assert(has("cddp_rendezvous_connections_limit 1000\n"));
    cr_assert(has("cddp_job_round{run_id=\"night <b>\\\"run\\\"</b> \\\\1\\nx\"} 3\n"), "%s", text);
    cr_assert(has("\",state=\"running\"} 1\n") && has("\",state=\"joining\"} 0\n"));
    cr_assert(has("\",operation=\"GET\"} 9\n"));
    cr_assert(has("\ncddp_job_nodes_min{") && has("\ncddp_job_nodes_max{run_id=\"bad "));
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char name[128];

        if (sscanf(line, "# TYPE %127s", name) == 1) {
            (void)snprintf(family, sizeof family, "%s", name);
            n++;
        } else if (line[0] != '#') {
            cr_assert_eq(strncmp(line, family, strlen(family)), 0, "%s is below the TYPE of %s", line, family);
            cr_assert(line[strlen(family)] == ' ' || line[strlen(family)] == '{', "%s", line);
        }
    }
    cr_assert_geq(n, 20);
}

Test(pages, html_escapes_names)
{
    write_it(page_html, &all);
    cr_assert(has("<span class=\"job\">night &lt;b&gt;&quot;run&quot;&lt;/b&gt; \\1 x</span>"), "%s", text);
    cr_assert(!has("night <b>") && !has("node<1>"));
    cr_assert(
        has("<tr><td data-of=\"Node\">0<td data-of=\"Host\">node&lt;1&gt;<td data-of=\"Address\">10.0.0.1:40000<td "
            "data-of=\"Ranks\">0 to 7\n"));
    cr_assert(has("<td data-of=\"Host\">node2<td data-of=\"Address\">10.0.0.2:40001<td data-of=\"Ranks\">8 to 11\n"));
    cr_assert(has("<td data-of=\"Address\">[::1]:3<td data-of=\"Ranks\">not in the round\n"));
    cr_assert(has("<dt>Ranks</dt><dd>12</dd>") && has("<dt>Nodes</dt><dd>3 <small>1 waiting</small>"));
    cr_assert(has("<dt>Restarts</dt><dd>2 <small>round 3</small>"));
    cr_assert(has("100 keys, 20 KiB of 1.0 GiB, 5 waits"));
    cr_assert(has("up for 12 s, 20 of at most 1000 connections (40 accepted, 3 dropped), 1.0 MiB of memory, 2 jobs."));
    cr_assert(has("every worker ended with 0"));
    cr_assert(!has("0 B of 0 B"), "a closed job has no store");
}

Test(pages, html_uses_units_and_plurals)
{
    static struct page_agent alone = {"10.0.0.1:1", 0, 0, 1, "a"};
    struct page_job job = {.run_id = "j", .state = "running", .why = "", .world_size = 1, .nodes = 1, .restarts = 1};
    struct page_data one = {.version = "1", .jobs = &job, .n_jobs = 1, .resident_bytes = 1};
    static const struct {
        double s;
        const char *text;
    } times[] = {{0, "up for 0 s,"},
                 {59.9, "up for 59 s,"},
                 {61, "up for 1 min 1 s,"},
                 {7500, "up for 2 h 5 min,"},
                 {100000, "up for 1 d 3 h,"}};

    job.min_nodes = job.max_nodes = job.keys = job.waits = job.store_connections = 1;
    job.bytes = 1536 * 1024;
    job.bytes_limit = 1 << 30;
    job.operations[CDI_C10D_SET] = 1;
    job.agents = &alone;
    job.n_agents = 1;
    write_it(page_html, &one);
    cr_assert(has("<dt>Nodes</dt><dd>1</dd>") && has("<summary>1 node</summary>"), "%s", text);
    cr_assert(has("Store: 1 key, 1.5 MiB of 1.0 GiB, 1 wait, 1 connection, 1 request, 0 per second."), "%s", text);
    cr_assert(has("1 B of memory, 1 job."), "%s", text);
    cr_assert(has("<td data-of=\"Ranks\">0\n"), "%s", text);
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        one.uptime_s = times[i].s;
        write_it(page_html, &one);
        cr_assert(has(times[i].text), "%s: %s", times[i].text, text);
    }
}

/* Eight ranks on two nodes, the last of which is late; 30 samples. */
static struct cdi_rank_report reports[8];
static struct page_node nodes[2] = {{.node_rank = 0, .host = "alpha", .answered = true, .ranks = reports, .n_ranks = 4},
                                    {.node_rank = 1, .host = "be<ta", .ms_ago = 2, .answered = true, .n_ranks = 4}};
static struct cdi_placed placed[8];
static struct history history;

static void plant(struct page_job *j, int64_t for_ms)
{
    nodes[1].ranks = reports + 4;
    for (int i = 0; i < 8; i++) {
        reports[i] = (struct cdi_rank_report){.rank = i,
                                              .pid = 100 + i,
                                              .place = i == 7 ? CDI_PLACE_AFTER : CDI_PLACE_IN,
                                              .op = CDI_FLIGHT_ALL_REDUCE,
                                              .seq = i == 7 ? 41 : 42,
                                              .step = 20,
                                              CDI_RANK_UNKNOWN,
                                              .for_ms = for_ms,
                                              .n_steps = 10,
                                              .step_us = 10000,
                                              .comm_us = 4000,
                                              .exposed_us = 1000,
                                              .late_us = i == 7 ? 0 : 500,
                                              .late_rank = i == 7 ? 0 : 7,
                                              .late_count = i == 7 ? 1 : 9};
        placed[i] = (struct cdi_placed){&reports[i], nodes[i / 4].host, i / 4};
    }
    (void)snprintf(reports[7].doing, sizeof reports[7].doing, "stopped by a signal");
    *j = (struct page_job){.run_id = "seen",
                           .state = "running",
                           .why = "",
                           .world_size = 8,
                           .nodes = 2,
                           .node = nodes,
                           .n_nodes = 2,
                           .placed = placed,
                           .n_placed = 8,
                           .history = &history,
                           .now_ms = 31000,
                           .stuck_ms = 30000};
    cdi_places_sum(placed, 8, &j->sum);
    j->n_groups = cdi_places_group(placed, 8, j->groups, PAGE_GROUPS);
    history = (struct history){.taken = 0};
    for (int i = 1; i <= 30; i++) {
        j->sum.min_step = (uint64_t)i * 100;
        history_add(&history, 0, &j->sum, i * 1000);
    }
    j->sum.min_step = 20;
}

static size_t count_of(const char *part)
{
    size_t n = 0;

    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part))
        n++;
    return n;
}

Test(pages, html_draws_charts_and_places)
{
    struct page_job job;
    struct page_data one = {.version = "1", .jobs = &job, .n_jobs = 1};

    plant(&job, 400);
    write_it(page_html, &one);
    cr_assert(has("<div class=\"state good\"") && has(">Running</span>") && has("<title>Running: seen</title>"));
    cr_assert_eq(count_of("<figure>"), 3);
    cr_assert_eq(count_of("<rect class=\"bar"), 8, "one bar for each rank");
    cr_assert_eq(count_of("bar slow"), 1);
    cr_assert(has("rank 7: 0 us</title>") && has("rank 6: 500 us</title>") && has("mostly for"), "%s", text);
    cr_assert(has("aria-label=\"Steps per second: now 100, at most 100\""), "%s", text);
    cr_assert(has("now 3.0 ms hidden by the computation and 1.0 ms exposed"), "%s", text);
    cr_assert(has(
        "<b>7</b><td data-of=\"Where\">after all_reduce #41<td data-of=\"For\">400 ms<td data-of=\"Host\">be&lt;ta"));
    cr_assert(has("<b>0-6</b>") && has("2 nodes<td data-of=\"Step\">20"));
    cr_assert(has("10.0 ms <small>100 per second") && has("40 % <small>75 % hidden"), "%s", text);
    cr_assert(!has("nan") && !has("inf,"), "a coordinate is not a number");
}

Test(pages, html_tells_a_stuck_job_in_words)
{
    struct page_job job;
    struct page_data one = {.version = "1", .jobs = &job, .n_jobs = 1};

    plant(&job, 12000);
    write_it(page_html, &one);
    cr_assert(has("<div class=\"state warn\"") && has(">Waiting</span>"), "%s", text);
    plant(&job, 95000);
    write_it(page_html, &one);
    cr_assert(has("<div class=\"state bad\"") && has(">Stuck</span>"), "%s", text);
    cr_assert(has("Rank 7 is late, stopped by a signal: 7 ranks have been in all_reduce #42 for 1 min 35 s."), "%s",
              text);
}

Test(pages, json_says_where_ranks_are)
{
    struct page_job job;
    struct page_data one = {.version = "1", .jobs = &job, .n_jobs = 1};
    const char *word, *first, *host;
    json_int_t n, rank, samples;
    json_t *root;

    plant(&job, 95000);
    write_it(page_json, &one);
    root = json_loads(text, 0, NULL);
    cr_assert_eq(json_unpack(root, "{s:[{s:{s:s}, s:[{s:s, s:I}], s:{s:I}, s:{s:[s], s:[{s:s}]}}]}", "jobs", "verdict",
                             "word", &word, "places", "ranks", &first, "n", &n, "timing", "slowest_rank", &rank,
                             "where", "columns", &host, "nodes", "host", &host),
                 0, "%s", text);
    samples = (json_int_t)json_array_size(json_object_get(json_array_get(json_object_get(root, "jobs"), 0), "history"));
    cr_assert_str_eq(word, "Stuck");
    cr_assert_str_eq(first, "7");
    cr_assert_str_eq(host, "alpha");
    cr_assert(n == 1 && rank == 7 && samples == 30, "%d", (int)samples);
    json_decref(root);
}

Test(pages, metrics_count_ranks_by_place)
{
    struct page_job job;
    struct page_data one = {.version = "1", .jobs = &job, .n_jobs = 1};

    plant(&job, 400);
    write_it(page_metrics, &one);
    cr_assert(has("cddp_job_ranks_at{run_id=\"seen\",place=\"in\"} 7\n"), "%s", text);
    cr_assert(has("cddp_job_ranks_at{run_id=\"seen\",place=\"after\"} 1\n"));
    cr_assert(has("cddp_job_slowest_rank{run_id=\"seen\"} 7\n") &&
              has("cddp_job_steps_per_second{run_id=\"seen\"} 100\n"));
}

Test(pages, gpu_is_shown_where_it_is_known)
{
    struct page_job job;
    struct page_data one = {.version = "1", .jobs = &job, .n_jobs = 1};

    plant(&job, 400);
    write_it(page_metrics, &one);
    cr_assert(!has("cddp_job_gpu_load_ratio{") && !has("cddp_job_gpu_least_load_ratio{") &&
                  !has("cddp_job_gpu_memory_used_ratio{"),
              "an unknown value has no sample: -1 would fire alerts and spoil averages");
    cr_assert(has("# TYPE cddp_job_gpu_load_ratio gauge\n") && has("# TYPE cddp_job_steps_total counter\n"));
    write_it(page_html, &one);
    cr_assert_not(has("GPU"));
    for (int i = 0; i < 8; i++) {
        reports[i].gpu_permille = i == 7 ? 120 : 920;
        reports[i].gpu_used_bytes = UINT64_C(20) << 30;
        reports[i].gpu_total_bytes = UINT64_C(80) << 30;
    }
    cdi_places_sum(placed, 8, &job.sum);
    write_it(page_metrics, &one);
    cr_assert(has("cddp_job_gpu_load_ratio{run_id=\"seen\"} 0.82\n"), "%s", text);
    cr_assert(has("cddp_job_gpu_least_load_ratio{run_id=\"seen\"} 0.12\n"));
    cr_assert(has("cddp_job_gpu_memory_used_ratio{run_id=\"seen\"} 0.25\n"));
    write_it(page_html, &one);
    cr_assert(has("<dt>GPUs</dt><dd>82 % <small>at least 12 %, memory 25 % used</small>"), "%s", text);
}

Test(pages, rate_of_a_job_that_stands_still_falls)
{
    struct page_job job;
    struct page_data one = {.version = "1", .jobs = &job, .n_jobs = 1};

    plant(&job, 40000);
    for (int i = 0; i < 8; i++)
        reports[i].step_age_ms = 40000;
    cdi_places_sum(placed, 8, &job.sum);
    write_it(page_metrics, &one);
    cr_assert(has("cddp_job_steps_per_second{run_id=\"seen\"} 0.025\n"), "%s", text);
    cr_assert(has("cddp_job_last_step_age_seconds{run_id=\"seen\"} 40\n"));
    cr_assert(has("cddp_job_step_communication_exposed_seconds{run_id=\"seen\"} 0\n"));
    write_it(page_html, &one);
    cr_assert(has("<dt>Last step</dt><dd>40 s ago") && !has("per second</small>"), "%s", text);
    cr_assert(!has("nan") && !has("inf,"));
}

/* REPLY and /status say of each rank whether the others wait for it. */
Test(pages, late_ranks_are_marked)
{
    struct view_node seen[2] = {{.report = {.node_rank = 0, .n_ranks = 4, .ranks = reports}},
                                {.report = {.node_rank = 1, .n_ranks = 4, .ranks = reports + 4}}};
    struct page_job job;
    struct page_data one = {.version = "1", .jobs = &job, .n_jobs = 1};
    json_t *node, *root, *row;

    plant(&job, 5000);
    cr_assert_eq(hang_judge(seen, 2, 8, 0, PAGE_LATE_MS, &job.hang), CDDP_OK);
    node = page_node_json(&job, &nodes[1]);
    cr_assert_null(json_object_get(json_array_get(json_object_get(node, "ranks"), 2), "late"));
    cr_assert_eq(json_integer_value(json_object_get(json_array_get(json_object_get(node, "ranks"), 3), "late")), 1);
    json_decref(node);
    write_it(page_json, &one);
    root = json_loads(text, 0, NULL);
    cr_assert_eq(json_unpack(root, "{s:[{s:{s:[o, {s:[o, o, o, o]}]}}]}", "jobs", "where", "nodes", &node, "rows",
                             &node, &node, &row, &node),
                 0);
    cr_assert(json_is_false(json_array_get(row, 17)) && json_is_true(json_array_get(node, 17)), "%s", text);
    json_decref(root);
    hang_release(&job.hang);
}

Test(pages, reports_full_buffer)
{
    static cddp_status (*const writers[])(const struct page_data *, struct cdi_buf *) = {page_json, page_metrics,
                                                                                         page_html};
    struct cdi_buf out;

    for (size_t i = 0; i < sizeof writers / sizeof writers[0]; i++) {
        for (size_t limit = 1; limit < 1000; limit += 7) {
            cdi_buf_init(&out, limit);
            cr_assert_eq(writers[i](&all, &out), CDDP_E_LIMIT);
            cdi_buf_release(&out);
        }
    }
}
