/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "protocol/frame.h"
#include "protocol/message.h"

#include <signal.h>
#include <string.h>

CDI_SUITE(message);

static const enum cdi_msg_type all_types[] = {CDI_MSG_JOIN,   CDI_MSG_FAILED,     CDI_MSG_DONE,    CDI_MSG_STOPPED,
                                              CDI_MSG_LEAVE,  CDI_MSG_HEARTBEAT,  CDI_MSG_WELCOME, CDI_MSG_WAITING,
                                              CDI_MSG_ASSIGN, CDI_MSG_ROUND_OVER, CDI_MSG_CLOSED};

static cddp_status decode(uint16_t type, const char *json, struct cdi_msg *msg, struct cdi_error *err)
{
    return cdi_msg_decode(type, json, strlen(json), msg, err);
}

static void there_and_back(const struct cdi_msg *in, struct cdi_msg *out)
{
    struct cdi_buf wire;
    struct cdi_frame f;
    struct cdi_error err = {0};

    cdi_buf_init(&wire, 0);
    cr_assert_eq(cdi_msg_encode(in, &wire, &err), CDDP_OK, "%s", err.msg);
    cr_assert_eq(cdi_frame_next(&wire, &f, &err), CDDP_OK);
    cr_assert_eq(f.size, wire.len);
    cr_assert_eq(cdi_msg_decode(f.type, f.payload, f.len, out, &err), CDDP_OK, "%s", err.msg);
    cdi_buf_release(&wire);
}

Test(message, round_trip_keeps_every_member_of_join)
{
    struct cdi_msg in = {.type = CDI_MSG_JOIN,
                         .u.join = {1,
                                    "0.1.0",
                                    "job \"7\"",
                                    "node1",
                                    4711,
                                    -1,
                                    8,
                                    2,
                                    4,
                                    1,
                                    3,
                                    "rack7.switch2",
                                    600000,
                                    0,
                                    -1,
                                    CDI_JOIN_TIME_MAX_MS,
                                    "5f1e",
                                    7,
                                    "c0ffee",
                                    5,
                                    30000,
                                    600000,
                                    CDI_ON_HANG_RESTART}},
                   out;

    there_and_back(&in, &out);
    cr_assert_eq(memcmp(&in, &out, sizeof in), 0);
}

Test(message, round_trip_keeps_failure_with_lines)
{
    struct cdi_msg in = {.type = CDI_MSG_CLOSED,
                         .u.closed = {CDI_CLOSE_FAILED,
                                      "rank 3 failed",
                                      {CDI_END_SIGNAL, 9, 3, 1, 1, 77, 1700000000123, 1, "höst", "line 1\nline\t2\n",
                                       6},
                                      true}},
                   out;

    there_and_back(&in, &out);
    cr_assert_eq(memcmp(&in, &out, sizeof in), 0);
    in = (struct cdi_msg){.type = CDI_MSG_ROUND_OVER,
                          .u.round_over = {.round = UINT32_MAX, .restart = true, .text = "node 1 was lost"}};
    there_and_back(&in, &out);
    cr_assert(out.u.round_over.round == UINT32_MAX && out.u.round_over.restart && !out.u.round_over.counts);
    cr_assert_str_eq(out.u.round_over.text, "node 1 was lost");
    in.u.round_over.counts = true;
    there_and_back(&in, &out);
    cr_assert(out.u.round_over.counts);
    in = (struct cdi_msg){.type = CDI_MSG_ASSIGN, .u.assign = {1, 1, 2, 8, 16, 1, "10.0.0.1", 29500}};
    there_and_back(&in, &out);
    cr_assert_eq(memcmp(&in, &out, sizeof in), 0);
}

Test(message, replaces_invalid_utf8)
{
    static const struct {
        const char *in, *out;
    } cases[] = {{"a\xff"
                  "b",
                  "a?b"},
                 {"\xc3\xa4\xc3", "\xc3\xa4?"},
                 {"\xed\xa0\x80", "???"},
                 {"\xc0\xaf", "??"},
                 {"\xf4\x90\x80\x80", "????"},
                 {"\xe2\x82\xac", "\xe2\x82\xac"},
                 {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
                 {"\xe0\x80\x80", "???"}};
    struct cdi_msg in = {.type = CDI_MSG_LEAVE}, out;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        strcpy(in.u.leave.reason, cases[i].in);
        there_and_back(&in, &out);
        cr_assert_str_eq(out.u.leave.reason, cases[i].out);
    }
}

Test(message, cuts_full_array_to_receiver_limit)
{
    struct cdi_msg in = {.type = CDI_MSG_FAILED}, out;

    memset(in.u.failed.failure.text, 'x', sizeof in.u.failed.failure.text);
    in.u.failed.failure.rank = -1;
    there_and_back(&in, &out);
    cr_assert_eq(strlen(out.u.failed.failure.text), sizeof out.u.failed.failure.text - 1);
}

Test(message, errors_name_type_and_member)
{
    static const struct {
        uint16_t type;
        const char *json, *says;
    } cases[] = {
        {CDI_MSG_DONE, "{}", "DONE: 'round' is missing"},
        {CDI_MSG_DONE, "{\"round\":\"1\"}", "DONE: 'round' is not an integer"},
        {CDI_MSG_DONE, "{\"round\":1.5}", "DONE: 'round' is not an integer"},
        {CDI_MSG_DONE, "{\"round\":-1}", "DONE: 'round' is -1, not in 0 to 4294967295"},
        {CDI_MSG_DONE, "{\"round\":4294967296}", "DONE: 'round' is 4294967296"},
        {CDI_MSG_DONE, "[1]", "DONE: not a JSON object"},
        {CDI_MSG_DONE, "{\"round\":1}x", "DONE: not JSON"},
        {CDI_MSG_DONE, "", "DONE: not JSON"},
        {CDI_MSG_DONE, "{\"round\":1,\"round\":2}", "DONE: not JSON: duplicate"},
        {CDI_MSG_LEAVE, "{\"reason\":7}", "LEAVE: 'reason' is not a string"},
        {CDI_MSG_LEAVE, "{\"reason\":\"a\\u0000b\"}", "LEAVE: not JSON"},
        {CDI_MSG_FAILED, "{\"round\":1,\"failure\":3}", "FAILED: 'failure' is not an object"},
        {CDI_MSG_FAILED, "{\"round\":1,\"failure\":{\"kind\":9}}", "FAILED: 'kind' is 9"},
        {99, "{}", "unknown type 99"},
    };
    struct cdi_msg msg;
    struct cdi_error err;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        err.msg[0] = '\0';
        cr_assert_eq(decode(cases[i].type, cases[i].json, &msg, &err), CDDP_E_PROTOCOL, "case %zu", i);
        cr_assert_not_null(strstr(err.msg, cases[i].says), "case %zu says: %s", i, err.msg);
    }
}

Test(message, rejects_long_text)
{
    char json[400], reason[257];
    struct cdi_msg msg;
    struct cdi_error err;

    memset(reason, 'x', sizeof reason);
    reason[256] = '\0';
    (void)snprintf(json, sizeof json, "{\"reason\":\"%s\",\"final\":false}", reason);
    cr_assert_eq(decode(CDI_MSG_LEAVE, json, &msg, &err), CDDP_E_PROTOCOL);
    reason[255] = '\0';
    (void)snprintf(json, sizeof json, "{\"reason\":\"%s\",\"final\":false}", reason);
    cr_assert_eq(decode(CDI_MSG_LEAVE, json, &msg, &err), CDDP_OK);
}

Test(message, ignores_unknown_members)
{
    struct cdi_msg msg;
    struct cdi_error err;

    cr_assert_eq(decode(CDI_MSG_STOPPED, "{\"round\":5,\"mood\":[{}]}", &msg, &err), CDDP_OK);
    cr_assert_eq(msg.type, CDI_MSG_STOPPED);
    cr_assert_eq(msg.u.stopped.round, 5);
}

Test(message, accepts_missing_new_members)
{
    static const char join[] =
        "{\"version\":1,\"release\":\"0\",\"run_id\":\"j\",\"host\":\"h\",\"pid\":1,\"node_rank\":-1,"
        "\"n_procs\":1,\"min_nodes\":1,\"max_nodes\":1,\"spares\":0,\"max_restarts\":0,"
        "\"topology\":\"\",\"join_timeout_ms\":-1,\"last_call_ms\":-1,\"close_timeout_ms\":-1,"
        "\"lease_ms\":-1,\"session\":\"\",\"round\":-1}";
    struct cdi_msg msg;
    struct cdi_error err = {0};

    cr_assert_eq(decode(CDI_MSG_JOIN, join, &msg, &err), CDDP_OK, "%s", err.msg);
    cr_assert(msg.u.join.nonce[0] == '\0' && msg.u.join.restart_count == 0);
    cr_assert(msg.u.join.on_hang == CDI_ON_HANG_NONE && msg.u.join.hang_warning_ms == 0);
    cr_assert_eq(decode(CDI_MSG_WELCOME,
                        "{\"version\":1,\"release\":\"0\",\"session\":\"5f\",\"lease_ms\":9,\"resumed\":true}", &msg,
                        &err),
                 CDDP_OK, "%s", err.msg);
    cr_assert(msg.u.welcome.resumed && !msg.u.welcome.hosted);
    cr_assert_eq(decode(CDI_MSG_FAILED,
                        "{\"round\":0,\"failure\":{\"kind\":1,\"code\":3,\"rank\":0,\"local_rank\":0,\"node_rank\":0,"
                        "\"pid\":7,\"time_ms\":1,\"core_dumped\":0,\"host\":\"h\",\"text\":\"t\"}}",
                        &msg, &err),
                 CDDP_OK, "%s", err.msg);
    cr_assert_eq(msg.u.failed.failure.misses, 0);
    cr_assert_eq(decode(CDI_MSG_ASSIGN,
                        "{\"round\":0,\"node_rank\":0,\"n_nodes\":1,\"rank_base\":0,\"world_size\":1,"
                        "\"master_addr\":\"\",\"master_port\":0}",
                        &msg, &err),
                 CDDP_E_PROTOCOL, "an original member must not be missing");
    cr_assert_not_null(strstr(err.msg, "ASSIGN: 'restart_count' is missing"), "%s", err.msg);
}

Test(message, failed_decode_writes_nothing)
{
    struct cdi_msg msg, before;
    struct cdi_error err;

    memset(&msg, 0x5a, sizeof msg);
    before = msg;
    cr_assert_eq(decode(CDI_MSG_HEARTBEAT, "{\"seq\":true}", &msg, &err), CDDP_E_PROTOCOL);
    cr_assert_eq(memcmp(&msg, &before, sizeof msg), 0);
}

Test(message, every_type_has_a_name_and_round_trips)
{
    struct cdi_buf wire;
    struct cdi_error err;

    cdi_buf_init(&wire, 0);
    for (size_t i = 0; i < sizeof all_types / sizeof all_types[0]; i++) {
        struct cdi_msg msg = {.type = all_types[i]};

        cr_assert_str_neq(cdi_msg_name(all_types[i]), "?");
        cr_assert_eq(cdi_msg_encode(&msg, &wire, &err), CDDP_OK);
    }
    cr_assert_str_eq(cdi_msg_name((enum cdi_msg_type)55), "?");
    cr_assert_eq(cdi_msg_encode(&(struct cdi_msg){.type = (enum cdi_msg_type)55}, &wire, &err), CDDP_E_INVALID);
    cdi_buf_release(&wire);
}

Test(message, kill_is_a_cause_but_termination_is_not)
{
    cr_assert(cdi_signal_is_cause(SIGKILL) && cdi_signal_is_cause(SIGSEGV) && cdi_signal_is_cause(SIGINT));
    cr_assert(!cdi_signal_is_cause(SIGTERM) && !cdi_signal_is_cause(SIGPIPE) && !cdi_signal_is_cause(0));
}
