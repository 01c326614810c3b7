/* SPDX-License-Identifier: Apache-2.0 */
/* Each text that another process or host sends, through its decoder: none has a character that a terminal obeys. */
#include "common/visible.h"
#include "hygiene.h"
#include "protocol/flight.h"
#include "protocol/frame.h"
#include "protocol/hello.h"
#include "protocol/message.h"
#include "protocol/node_report.h"
#include "protocol/records.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

CDI_SUITE(outside_text);

/* ESC, BEL, CR, DEL, U+009B, U+202E, and a line that looks like cddprun's. */
#define HOSTILE "a\x1b[2J\a\r\x7f\xc2\x9b\xe2\x80\xae\ncddprun: forged"
#define ONE_LINE "a\\x1b[2J\\x07\\x0d\\x7f\\x9b\\u202e\\x0acddprun: forged"
#define LINES "a\\x1b[2J\\x07\\x0d\\x7f\\x9b\\u202e\ncddprun: forged"

#define SET(member) (void)snprintf(member, sizeof(member), "%s", HOSTILE)

static void decode(const struct cdi_msg *in, struct cdi_msg *out)
{
    struct cdi_buf wire;
    struct cdi_frame f;

    cdi_buf_init(&wire, 0);
    cr_assert_eq(cdi_msg_encode(in, &wire, NULL), CDDP_OK);
    cr_assert_eq(cdi_frame_next(&wire, &f, NULL), CDDP_OK);
    cr_assert_eq(cdi_msg_decode(f.type, f.payload, f.len, out, NULL), CDDP_OK);
    cdi_buf_release(&wire);
}

#define CHECK(type_, member, wanted, ...)                           \
    do {                                                            \
        struct cdi_msg in = {.type = (type_), __VA_ARGS__}, out;    \
                                                                    \
        SET(in.u.member);                                           \
        decode(&in, &out);                                          \
        cr_assert_str_eq(out.u.member, wanted, #type_ " " #member); \
    } while (0)

Test(outside_text, control_messages)
{
#define JOIN .u.join = {.n_procs = 1, .min_nodes = 1, .max_nodes = 1}
    CHECK(CDI_MSG_JOIN, join.host, ONE_LINE, JOIN);
    CHECK(CDI_MSG_JOIN, join.run_id, ONE_LINE, JOIN);
    CHECK(CDI_MSG_JOIN, join.topology, ONE_LINE, JOIN);
    CHECK(CDI_MSG_LEAVE, leave.reason, ONE_LINE);
    CHECK(CDI_MSG_FAILED, failed.failure.host, ONE_LINE);
    CHECK(CDI_MSG_FAILED, failed.failure.text, LINES);
    CHECK(CDI_MSG_WAITING, waiting.text, ONE_LINE);
    CHECK(CDI_MSG_ASSIGN, assign.master_addr, ONE_LINE, .u.assign = {.n_nodes = 1, .world_size = 1});
    CHECK(CDI_MSG_ROUND_OVER, round_over.text, ONE_LINE);
    CHECK(CDI_MSG_ROUND_OVER, round_over.failure.host, ONE_LINE);
    CHECK(CDI_MSG_ROUND_OVER, round_over.failure.text, LINES);
    CHECK(CDI_MSG_CLOSED, closed.text, ONE_LINE);
    CHECK(CDI_MSG_CLOSED, closed.failure.host, ONE_LINE);
    CHECK(CDI_MSG_CLOSED, closed.failure.text, LINES);
}

Test(outside_text, a_text_that_grows_is_cut_between_characters)
{
    struct cdi_msg in = {.type = CDI_MSG_LEAVE}, out;

    memset(in.u.leave.reason, '\x1b', sizeof in.u.leave.reason - 1);
    decode(&in, &out);
    cr_assert_eq(strlen(out.u.leave.reason), sizeof out.u.leave.reason - 1);
    cr_assert(cdi_is_visible_line(out.u.leave.reason, strlen(out.u.leave.reason)));
}

Test(outside_text, reports_of_nodes)
{
    struct cdi_rank_report rank = {.rank = 0, CDI_RANK_UNKNOWN, .stack = HOSTILE};
    struct cdi_node_report in = {.n_ranks = 1, .ranks = &rank}, out;
    json_t *root;

    SET(in.host);
    SET(rank.part);
    SET(rank.names);
    SET(rank.doing);
    root = cdi_node_report_encode(&in);
    cr_assert_eq(cdi_node_report_decode(root, &out, NULL), CDDP_OK);
    cr_assert_str_eq(out.host, ONE_LINE);
    cr_assert_str_eq(out.ranks[0].part, ONE_LINE);
    cr_assert_str_eq(out.ranks[0].names, ONE_LINE);
    cr_assert_str_eq(out.ranks[0].doing, ONE_LINE);
    cr_assert_str_eq(out.ranks[0].stack, LINES);
    cdi_node_report_release(&out);
    json_decref(root);
}

Test(outside_text, records_of_a_trace)
{
    struct cdi_records in, out;
    size_t len;
    char *text;

    cr_assert_eq(cdi_records_init(&in, NULL), CDDP_OK);
    in.node_rank = 0;
    in.n_names = in.n_events = 1;
    SET(in.host);
    SET(in.names[0]);
    SET(in.events[0].text);
    in.events[0].rank = -1;
    (void)snprintf(in.events[0].kind, sizeof in.events[0].kind, "\x1b]");
    text = cdi_records_encode(&in, &len);
    cr_assert_eq(cdi_records_decode(text, len, &out, NULL), CDDP_OK);
    cr_assert_str_eq(out.host, ONE_LINE);
    cr_assert_str_eq(out.names[0], ONE_LINE);
    cr_assert_str_eq(out.events[0].text, ONE_LINE);
    cr_assert_str_eq(out.events[0].kind, "\\x1b]");
    free(text);
    cdi_records_release(&in);
    cdi_records_release(&out);
}

Test(outside_text, refusal_of_a_handshake)
{
    struct cdi_hello_client client;
    struct cdi_hello_server server;
    struct cdi_buf up, down;
    struct cdi_error err;

    cdi_buf_init(&up, 0);
    cdi_buf_init(&down, 0);
    cr_assert_eq(cdi_hello_client_start(&client, CDI_HELLO_STORE, "job", 0, NULL, &up, NULL), CDDP_OK);
    cdi_hello_server_init(&server);
    cr_assert_eq(cdi_hello_server_refuse(&server, HOSTILE, &down, NULL), CDDP_OK);
    cr_assert_lt(cdi_hello_client_feed(&client, &down, &up, &err), 0);
    cr_assert_str_eq(err.msg, ONE_LINE);
    cdi_buf_release(&up);
    cdi_buf_release(&down);
}

Test(outside_text, flight_page)
{
    struct cdi_flight *agent, *worker, *part;
    struct cdi_flight_part parts[CDI_FLIGHT_PARTS];
    char env[128], names[CDI_FLIGHT_NAMES];
    int fd;

    cr_assert_eq(cdi_flight_create(&agent, 0, &fd, NULL), CDDP_OK);
    cdi_flight_env(agent, fd, fd, env, sizeof env);
    cr_assert_eq(cdi_flight_attach(&worker, env, NULL), CDDP_OK);
    cr_assert_eq(cdi_flight_attach(&part, NULL, NULL), CDDP_OK);
    cdi_flight_set_names(worker, 3, HOSTILE);
    cdi_flight_mirror(part, worker, HOSTILE);
    cdi_flight_names(agent, 3, names);
    cr_assert_str_eq(names, ONE_LINE);
    cr_assert_eq(cdi_flight_parts(agent, parts), 1);
    cr_assert_str_eq(parts[0].who, ONE_LINE);
    cdi_flight_release(part);
    cdi_flight_release(worker);
    cdi_flight_release(agent);
    (void)close(fd);
}

Test(outside_text, error_of_another_rank)
{
    struct cdi_error err;

    cr_assert_eq(cdi_fail_told(&err, 3, CDDP_E_PEER, HOSTILE), CDDP_E_PEER);
    cr_assert_eq(err.blamed, 3);
    cr_assert_str_eq(err.msg, ONE_LINE);
    (void)cdi_fail_told(&err, INT32_MIN, CDDP_E_PEER, "x");
    cr_assert_eq(err.blamed, 0, "not known");
}
