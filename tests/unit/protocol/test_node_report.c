/* SPDX-License-Identifier: Apache-2.0 */
/* A report of a node: from the struct to JSON and back, and JSON that is not a report. */
#include "protocol/node_report.h"

#include "hygiene.h"

#include <string.h>

CDI_SUITE(node_report);

static json_t *parse(const char *text)
{
    json_t *root = json_loads(text, 0, NULL);

    cr_assert_not_null(root, "%s", text);
    return root;
}

Test(node_report, survives_encoding)
{
    struct cdi_rank_report ranks[2] = {{.rank = 6,
                                        .pid = 77,
                                        .place = CDI_PLACE_IN,
                                        .op = CDI_FLIGHT_ALL_REDUCE,
                                        .dtype = 3,
                                        .seq = UINT32_MAX + UINT64_C(9),
                                        .count = 1000,
                                        .step = 39,
                                        .bucket = 0,
                                        .for_ms = 31000,
                                        .part = "'tp' (ranks 6, 7)",
                                        .names = "layer1.weight",
                                        .doing = "running, 99 % of a core",
                                        .late_rank = 0,
                                        .late_count = 4,
                                        .peer = 0,
                                        .gpu_permille = 0,
                                        .gpu_used_bytes = UINT64_C(70) << 30,
                                        .gpu_total_bytes = UINT64_C(80) << 30,
                                        .step_age_ms = 31002,
                                        .late = 1,
                                        .stack = "main\n"},
                                       {.rank = 7, .place = CDI_PLACE_OUTSIDE, CDI_RANK_UNKNOWN}};
    const struct cdi_node_report r = {
        .round = 2, .asked = 5, .node_rank = 1, .host = "node1", .n_ranks = 2, .ranks = ranks};
    json_t *json = cdi_node_report_encode(&r);
    struct cdi_node_report back;

    cr_assert_not_null(json);
    cr_assert_eq(cdi_node_report_decode(json, &back, NULL), CDDP_OK);
    json_decref(json);
    cr_assert(back.round == 2 && back.asked == 5 && back.node_rank == 1 && back.n_ranks == 2);
    cr_assert_str_eq(back.host, "node1");
    cr_assert(back.ranks[0].rank == 6 && back.ranks[0].pid == 77 && back.ranks[0].place == CDI_PLACE_IN);
    cr_assert(back.ranks[0].seq == UINT32_MAX + UINT64_C(9) && back.ranks[0].bucket == 0);
    cr_assert(back.ranks[0].late_rank == 0 && back.ranks[0].late_count == 4 && back.ranks[0].for_ms == 31000);
    cr_assert_eq(back.ranks[0].op, CDI_FLIGHT_ALL_REDUCE);
    cr_assert_str_eq(back.ranks[0].part, "'tp' (ranks 6, 7)");
    cr_assert_str_eq(back.ranks[1].part, "");
    cr_assert_str_eq(back.ranks[0].names, "layer1.weight");
    cr_assert_str_eq(back.ranks[0].doing, "running, 99 % of a core");
    cr_assert_str_eq(back.ranks[0].stack, "main\n");
    cr_assert(back.ranks[0].peer == 0 && back.ranks[0].gpu_permille == 0 && back.ranks[0].late == 1);
    cr_assert(back.ranks[0].gpu_used_bytes >> 30 == 70 && back.ranks[0].gpu_total_bytes >> 30 == 80);
    cr_assert_eq(back.ranks[0].step_age_ms, 31002);
    cr_assert(back.ranks[1].rank == 7 && back.ranks[1].bucket == -1 && back.ranks[1].late_rank == -1);
    cr_assert(back.ranks[1].place == CDI_PLACE_OUTSIDE && back.ranks[1].stack == NULL);
    cr_assert(back.ranks[1].peer == -1 && back.ranks[1].gpu_permille == -1 && back.ranks[1].late == 0);
    cdi_node_report_release(&back);
}

/* An agent of version 0.1 sends neither the GPU, nor the age of the last step, nor a message's other rank. */
Test(node_report, members_of_newer_agents_may_be_missing)
{
    json_t *root = parse("{\"ranks\":[{\"rank\":1,\"place\":\"in\",\"op\":\"recv\",\"op_number\":11,\"seq\":5}]}");
    struct cdi_node_report r;

    cr_assert_eq(cdi_node_report_decode(root, &r, NULL), CDDP_OK);
    json_decref(root);
    cr_assert(r.ranks[0].gpu_permille == -1 && r.ranks[0].gpu_used_bytes == 0 && r.ranks[0].gpu_total_bytes == 0);
    cr_assert(r.ranks[0].peer == -1 && r.ranks[0].step_age_ms == 0 && r.ranks[0].late == 0);
    cdi_node_report_release(&r);
}

Test(node_report, rejects_other_json)
{
    static const char *const bad[] = {
        "{}",
        "[]",
        "{\"ranks\":7}",
        "{\"ranks\":[],\"round\":-1}",
        "{\"ranks\":[],\"node_rank\":-2}",
        "{\"ranks\":[],\"asked\":\"1\"}",
        "{\"ranks\":[7]}",
        "{\"ranks\":[{}]}",
        "{\"ranks\":[{\"rank\":1}]}",
        "{\"ranks\":[{\"rank\":-1,\"place\":\"in\"}]}",
        "{\"ranks\":[{\"rank\":1,\"place\":\"elsewhere\"}]}",
        "{\"ranks\":[{\"rank\":1,\"place\":\"in\",\"seq\":-5}]}",
        "{\"ranks\":[{\"rank\":1,\"place\":\"in\",\"rank\":4294967296}]}",
        "{\"ranks\":[{\"rank\":1,\"place\":\"in\",\"names\":[]}]}",
        "{\"ranks\":[{\"rank\":1,\"place\":\"in\",\"gpu_permille\":-2}]}",
        "{\"ranks\":[{\"rank\":1,\"place\":\"in\",\"gpu_total_bytes\":\"80 GiB\"}]}",
        "{\"ranks\":[{\"rank\":1,\"place\":\"in\",\"step_age_ms\":-1}]}",
    };
    struct cdi_node_report r;
    struct cdi_error err;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        json_t *root = parse(bad[i]);

        cr_assert_eq(cdi_node_report_decode(root, &r, &err), CDDP_E_PROTOCOL, "%s was accepted", bad[i]);
        json_decref(root);
    }
}

Test(node_report, limits_ranks_and_cuts_long_text)
{
    json_t *ranks = json_array(), *root = json_pack("{s:o}", "ranks", ranks);
    struct cdi_node_report r;
    char names[1000] = "";

    memset(names, 'n', sizeof names - 1);
    cr_assert_eq(json_array_append_new(ranks, json_pack("{s:i, s:s, s:s}", "rank", 0, "place", "in", "names", names)),
                 0);
    cr_assert_eq(cdi_node_report_decode(root, &r, NULL), CDDP_OK);
    cr_assert_eq(strlen(r.ranks[0].names), CDI_FLIGHT_NAMES - 1);
    cdi_node_report_release(&r);
    for (int i = 1; i <= CDI_REPORT_RANKS_MAX; i++)
        cr_assert_eq(json_array_append_new(ranks, json_pack("{s:i, s:s}", "rank", i, "place", "in")), 0);
    cr_assert_eq(cdi_node_report_decode(root, &r, NULL), CDDP_E_LIMIT);
    json_decref(root);
}

Test(node_report, cuts_a_long_part)
{
    struct cdi_node_report r;
    char text[400], part[200];
    json_t *json;

    memset(part, 'x', sizeof part);
    part[sizeof part - 1] = '\0';
    (void)snprintf(text, sizeof text, "{\"ranks\":[{\"rank\":1,\"place\":\"in\",\"part\":\"%s\"}]}", part);
    json = json_loads(text, 0, NULL);
    cr_assert_eq(cdi_node_report_decode(json, &r, NULL), CDDP_OK);
    cr_assert_eq(strlen(r.ranks[0].part), CDI_FLIGHT_WHO - 1);
    cdi_node_report_release(&r);
    json_decref(json);
    json = json_loads("{\"ranks\":[{\"rank\":1,\"place\":\"in\",\"part\":2}]}", 0, NULL);
    cr_assert_eq(cdi_node_report_decode(json, &r, NULL), CDDP_E_PROTOCOL);
    json_decref(json);
}
