/* SPDX-License-Identifier: Apache-2.0 */
/* The answers are those of etcd 3.4.23. */
#include "hygiene.h"
#include "launcher/etcd/etcd_json.h"

CDI_SUITE(etcd_json);

static struct elect_answer a;
static char text[400];

static void got(enum elect_ask ask, int status, const char *json)
{
    etcd_read_answer(ask, status, json, strlen(json), &a, text);
}

static void check_base64(const char *plain, const char *coded)
{
    struct cdi_buf b;
    uint8_t back[64];

    cdi_buf_init(&b, 0);
    cr_assert(etcd_base64(&b, plain, strlen(plain)));
    cr_assert_eq(b.len, strlen(coded));
    cr_assert_eq(memcmp(cdi_buf_data(&b), coded, b.len), 0);
    cr_assert_eq(etcd_unbase64(back, sizeof back, coded), (long)strlen(plain));
    cr_assert_eq(memcmp(back, plain, strlen(plain)), 0);
    cdi_buf_release(&b);
}

Test(etcd_json, base64_is_that_of_rfc_4648)
{
    static const char *const bad[] = {"Zg", "Zg=", "Z===", "====", "Zg==Zg==", "Zm9*", "Z g="};
    uint8_t back[4];

    check_base64("", "");
    check_base64("f", "Zg==");
    check_base64("fe", "ZmU=");
    check_base64("foobar", "Zm9vYmFy");
    check_base64("\xff\xfe\xfb", "//77");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(etcd_unbase64(back, sizeof back, bad[i]), -1, "%s", bad[i]);
    cr_assert_eq(etcd_unbase64(back, sizeof back, "Zm9vYmFy"), -1); /* too long */
}

static void asks(enum elect_ask ask, const char *path, const char *body)
{
    struct elect e = {.lease = 7, .lease_ms = 2500, .epoch = 40, .known_epoch = 39, .tomb_lease = 9, .done = true};
    struct etcd_facts f = {.addr = "10.0.0.1", .port = 5, .tomb_ms = 600000};
    struct cdi_buf b;

    cr_assert_eq(etcd_set_keys(&f, "/p", "j", NULL), CDDP_OK);
    cdi_buf_init(&b, 0);
    cr_assert_str_eq(etcd_request(ask, &e, &f, &b), path);
    cr_assert(b.len == strlen(body) && memcmp(cdi_buf_data(&b), body, b.len) == 0, "%.*s", (int)b.len,
              (const char *)cdi_buf_data(&b));
    cdi_buf_release(&b);
}

Test(etcd_json, requests)
{
    asks(ELECT_ASK_GRANT, "/v3/lease/grant", "{\"TTL\":\"3\"}");
    asks(ELECT_ASK_TOMB, "/v3/lease/grant", "{\"TTL\":\"600\"}");
    asks(ELECT_ASK_KEEP, "/v3/lease/keepalive", "{\"ID\":\"7\"}");
    asks(ELECT_ASK_REVOKE, "/v3/lease/revoke", "{\"ID\":\"7\"}");
    asks(ELECT_ASK_LOOK, "/v3/kv/txn",
         "{\"success\":[{\"request_range\":{\"key\":\"L3Avai9ob3N0\"}},{\"request_range\":{\"key\":\"L3Avai9vdmVy\"}}]"
         "}");
    asks(
        ELECT_ASK_CAMPAIGN, "/v3/kv/txn",
        "{\"compare\":[{\"key\":\"L3Avai9ob3N0\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":\"0\"},"
        "{\"key\":\"L3Avai9vdmVy\",\"target\":\"MOD\",\"result\":\"LESS\",\"mod_revision\":\"40\"}],\"success\":[{"
        "\"request_put\":{\"key\":\"L3Avai9ob3N0\",\"value\":"
        "\"eyJjZGRwcnVuIjoxLCJhZGRyIjoiMTAuMC4wLjEiLCJwb3J0Ijo1fQ==\",\"lease\":\"7\"}}],\"failure\":[{\"request_"
        "range\":{"
        "\"key\":\"L3Avai9ob3N0\"}},{\"request_range\":{\"key\":\"L3Avai9vdmVy\"}}]}");
    asks(ELECT_ASK_CLOSE, "/v3/kv/txn",
         "{\"compare\":[{\"key\":\"L3Avai9ob3N0\",\"target\":\"CREATE\",\"result\":\"EQUAL\",\"create_revision\":"
         "\"40\"}],"
         "\"success\":[{\"request_put\":{\"key\":\"L3Avai9vdmVy\",\"value\":\"ZG9uZQ==\",\"lease\":\"9\"}},{\"request_"
         "delete_"
         "range\":{\"key\":\"L3Avai9ob3N0\"}}]}");
}

#define RANGES(host, over) "{\"responses\":[{\"response_range\":{" host "}},{\"response_range\":{" over "}}]}"
#define HOST(value)                                                                                              \
    "\"kvs\":[{\"key\":\"L2s=\",\"create_revision\":\"12\",\"mod_revision\":\"12\",\"version\":\"1\",\"value\":" \
    "\"" value "\",\"lease\":\"2324035572564904454\"}],\"count\":\"1\""

Test(etcd_json, answers)
{
    got(ELECT_ASK_LOOK, 200, RANGES("", ""));
    cr_assert(!a.failed && !a.host.is && a.over == 0);
    got(ELECT_ASK_LOOK, 200, RANGES(HOST("eyJjZGRwcnVuIjoxLCJhZGRyIjoiMTAuMC4wLjEiLCJwb3J0Ijo1fQ=="), ""));
    cr_assert(!a.failed && a.host.is && !a.host.foreign && a.host.epoch == 12 && a.host.lease == 2324035572564904454);
    cr_assert(strcmp(a.host.addr, "10.0.0.1") == 0 && a.host.port == 5);
    got(ELECT_ASK_LOOK, 200,
        RANGES(HOST("eyJjZGRwcnVuIjoxLCJhZGRyIjoiaFx1MDAxYlsySlx1MDA5Ylx1MjAyZVxuIiwicG9ydCI6NX0="), ""));
    cr_assert_str_eq(a.host.addr, "h\\x1b[2J\\x9b\\u202e\\x0a", "others read it on their terminals");
    got(ELECT_ASK_LOOK, 200, RANGES("", "\"kvs\":[{\"mod_revision\":\"50\",\"value\":\"ZG9uZQ==\"}]"));
    cr_assert(!a.failed && a.over == 50 && a.over_done);
    got(ELECT_ASK_CAMPAIGN, 200, "{\"header\":{\"revision\":\"2\"},\"succeeded\":true}");
    cr_assert(!a.failed && a.won && a.epoch == 2);
    got(ELECT_ASK_CAMPAIGN, 200, RANGES(HOST("Zm9v"), ""));
    cr_assert(!a.failed && !a.won && a.host.is && a.host.foreign);
    got(ELECT_ASK_GRANT, 200, "{\"ID\":\"2324035572564904454\",\"TTL\":\"2\"}");
    cr_assert(!a.failed && a.lease == 2324035572564904454 && a.ttl_ms == 2000);
    got(ELECT_ASK_KEEP, 200, "{\"result\":{\"ID\":\"7\",\"TTL\":\"2\"}}\n");
    cr_assert(!a.failed && a.ttl_ms == 2000);
    got(ELECT_ASK_KEEP, 200, "{\"result\":{\"ID\":\"7\"}}\n"); /* the lease has ended */
    cr_assert(!a.failed && a.ttl_ms == 0);
    got(ELECT_ASK_REVOKE, 404, "{\"error\":\"etcdserver: requested lease not found\",\"code\":5}");
    cr_assert(a.failed && a.lease_gone && !a.fatal);
    got(ELECT_ASK_LOOK, 400, "{\"error\":\"etcdserver: user name is empty\",\"code\":3}");
    cr_assert(a.failed && a.fatal && strstr(a.text, "password_file") != NULL);
    cr_assert(etcd_wants_token(401, "{\"error\":\"etcdserver: invalid auth token\"}", 45) &&
              !etcd_wants_token(400, "{\"error\":\"etcdserver: permission denied\"}", 42));
}

Test(etcd_json, anything_else_is_an_error)
{
    static const char *const bad[] = {"",
                                      "[]",
                                      "{}",
                                      "{\"responses\":[]}",
                                      "{\"responses\":[{\"response_range\":[]},{\"response_range\":{}}]}",
                                      RANGES("\"kvs\":7", ""),
                                      RANGES("\"kvs\":[7]", ""),
                                      RANGES("\"kvs\":[{}]", ""),
                                      RANGES("", "\"kvs\":[{}]"),
                                      RANGES("\"kvs\":[{\"create_revision\":\"-1\"}]", ""),
                                      RANGES("\"kvs\":[{\"create_revision\":\"1x\"}]", ""),
                                      "{\"ID\":\"0\",\"TTL\":\"2\"}",
                                      "{\"ID\":\"7\"}",
                                      "{\"ID\":\"7\",\"TTL\":\"99999999999\"}",
                                      "{\"succeeded\":true}",
                                      "{\"error\":{\"message\":\"\\u0007no leader\"}}"};
    static const enum elect_ask asks[] = {ELECT_ASK_LOOK, ELECT_ASK_GRANT, ELECT_ASK_CAMPAIGN, ELECT_ASK_KEEP};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        for (size_t k = 0; k < sizeof asks / sizeof asks[0]; k++) {
            got(asks[k], 200, bad[i]);
            cr_assert(a.failed && a.text != NULL && a.text[0] != '\0', "%s", bad[i]);
        }
    cr_assert(strcmp(a.text, "\\x07no leader") == 0, "%s", a.text);
}

Test(etcd_json, token_is_one_word_for_a_header)
{
    char token[ETCD_TOKEN_MAX] = "";

    cr_assert(etcd_read_token(200, "{\"token\":\"TEf.15\"}", 18, token, &a, text) && strcmp(token, "TEf.15") == 0);
    cr_assert(!etcd_read_token(200, "{\"token\":\"a\\r\\nb: c\"}", 21, token, &a, text) && a.failed);
    cr_assert(!etcd_read_token(400, "{\"error\":\"authentication failed\"}", 33, token, &a, text) && a.fatal);
}
