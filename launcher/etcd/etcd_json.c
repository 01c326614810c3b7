/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/etcd/etcd_json.h"

#include "protocol/json_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX 400
#define VALUE_MAX 1024

/* --------------------------------------------------------------------------------------------------- base64 ---- */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

bool etcd_base64(struct cdi_buf *out, const void *bytes, size_t n)
{
    const uint8_t *b = bytes;

    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)b[i] << 16 | (i + 1 < n ? (uint32_t)b[i + 1] << 8 : 0) | (i + 2 < n ? b[i + 2] : 0);
        char four[4] = {digits[v >> 18], digits[v >> 12 & 63], i + 1 < n ? digits[v >> 6 & 63] : '=',
                        i + 2 < n ? digits[v & 63] : '='};

        if (cdi_buf_append(out, four, sizeof four) != CDDP_OK)
            return false;
    }
    return true;
}

long etcd_unbase64(uint8_t *out, size_t cap, const char *text)
{
    size_t len = strlen(text), n = 0;

    if (len % 4 != 0)
        return -1;
    for (size_t i = 0; i < len; i += 4) {
        unsigned pads = i + 4 < len ? 0 : (unsigned)(text[i + 3] == '=') + (text[i + 3] == '=' && text[i + 2] == '=');
        uint32_t v = 0;

        for (unsigned k = 0; k < 4; k++) {
            const char *at = k < 4 - pads ? strchr(digits, text[i + k]) : digits;

            if (at == NULL)
                return -1;
            v = v << 6 | (uint32_t)(at - digits);
        }
        for (unsigned k = 0; k < 3 - pads; k++) {
            if (n == cap)
                return -1;
            out[n++] = (uint8_t)(v >> (16 - 8 * k));
        }
    }
    return (long)n;
}

/* ------------------------------------------------------------------------------------------------- requests ---- */

cddp_status etcd_set_keys(struct etcd_facts *f, const char *prefix, const char *run_id, struct cdi_error *err)
{
    int n = snprintf(f->key_host, sizeof f->key_host, "%s/%s/host", prefix, run_id);

    if (n < 0 || (size_t)n >= sizeof f->key_host)
        return cdi_fail(err, CDDP_E_INVALID, "--rdzv_conf=prefix= and --rdzv_id are too long for a key in etcd");
    (void)snprintf(f->key_over, sizeof f->key_over, "%s/%s/over", prefix, run_id);
    return CDDP_OK;
}

static json_t *coded(const char *bytes, size_t n)
{
    struct cdi_buf b;
    json_t *out = NULL;

    cdi_buf_init(&b, 0);
    if (etcd_base64(&b, bytes, n))
        out = json_stringn((const char *)cdi_buf_data(&b), b.len);
    cdi_buf_release(&b);
    return out;
}

static json_t *coded_text(const char *text)
{
    return coded(text, strlen(text));
}

static json_t *number_text(int64_t n)
{
    return json_sprintf("%" PRId64, n);
}

static json_t *range_of(const char *key)
{
    return json_pack("{s:{s:o}}", "request_range", "key", coded_text(key));
}

static json_t *both_ranges(const struct etcd_facts *f)
{
    return json_pack("[o, o]", range_of(f->key_host), range_of(f->key_over));
}

static json_t *campaign(const struct elect *e, const struct etcd_facts *f)
{
    int64_t after = e->known_epoch > 0 ? e->known_epoch + 1 : INT64_MAX;
    char value[ELECT_ADDR_MAX + 64];

    (void)snprintf(value, sizeof value, "{\"cddprun\":1,\"addr\":\"%s\",\"port\":%u}", f->addr, f->port);
    return json_pack("{s:[{s:o, s:s, s:s, s:s}, {s:o, s:s, s:s, s:o}], s:[{s:{s:o, s:o, s:o}}], s:o}", "compare", "key",
                     coded_text(f->key_host), "target", "CREATE", "result", "EQUAL", "create_revision", "0", "key",
                     coded_text(f->key_over), "target", "MOD", "result", "LESS", "mod_revision", number_text(after),
                     "success", "request_put", "key", coded_text(f->key_host), "value", coded_text(value), "lease",
                     number_text(e->lease), "failure", both_ranges(f));
}

static json_t *closing(const struct elect *e, const struct etcd_facts *f)
{
    return json_pack("{s:[{s:o, s:s, s:s, s:o}], s:[{s:{s:o, s:o, s:o}}, {s:{s:o}}]}", "compare", "key",
                     coded_text(f->key_host), "target", "CREATE", "result", "EQUAL", "create_revision",
                     number_text(e->epoch), "success", "request_put", "key", coded_text(f->key_over), "value",
                     coded_text(e->done ? "done" : "failed"), "lease", number_text(e->tomb_lease),
                     "request_delete_range", "key", coded_text(f->key_host));
}

/* etcd counts in whole seconds. */
static json_t *grant(int64_t ms)
{
    return json_pack("{s:o}", "TTL", number_text((ms + 999) / 1000));
}

static int append_text(const char *bytes, size_t len, void *buf)
{
    return cdi_buf_append(buf, bytes, len) == CDDP_OK ? 0 : -1;
}

static bool put_json(struct cdi_buf *body, json_t *json)
{
    bool done = json != NULL && json_dump_callback(json, append_text, body, JSON_COMPACT) == 0;

    json_decref(json);
    return done;
}

const char *etcd_request(enum elect_ask ask, const struct elect *e, const struct etcd_facts *f, struct cdi_buf *body)
{
    const char *path = NULL;
    json_t *json = NULL;

    switch (ask) {
    case ELECT_ASK_NONE:
        return NULL;
    case ELECT_ASK_LOOK:
        path = "/v3/kv/txn";
        json = json_pack("{s:o}", "success", both_ranges(f));
        break;
    case ELECT_ASK_GRANT:
    case ELECT_ASK_TOMB:
        path = "/v3/lease/grant";
        json = grant(ask == ELECT_ASK_GRANT ? e->lease_ms : f->tomb_ms);
        break;
    case ELECT_ASK_CAMPAIGN:
        path = "/v3/kv/txn";
        json = campaign(e, f);
        break;
    case ELECT_ASK_KEEP:
        path = "/v3/lease/keepalive";
        json = json_pack("{s:o}", "ID", number_text(e->lease));
        break;
    case ELECT_ASK_CLOSE:
        path = "/v3/kv/txn";
        json = closing(e, f);
        break;
    case ELECT_ASK_REVOKE:
        path = "/v3/lease/revoke";
        json = json_pack("{s:o}", "ID", number_text(e->lease));
        break;
    }
    return put_json(body, json) ? path : NULL;
}

bool etcd_login_request(const char *user, const char *password, struct cdi_buf *body)
{
    return put_json(body, json_pack("{s:s, s:s}", "name", user, "password", password));
}

/* -------------------------------------------------------------------------------------------------- answers ---- */

static void say(struct elect_answer *a, char *text, const char *what)
{
    json_cut(text, TEXT_MAX, what);
    a->failed = true;
    a->text = text;
}

/* A 64-bit number: a string in the gateway's JSON, which leaves zeros out. Returns false if it is something else. */
static bool number_of(const json_t *object, const char *name, int64_t *out)
{
    json_t *value = json_object_get(object, name);
    const char *text = json_line(value);
    char *end;

    *out = 0;
    if (value == NULL)
        return true;
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return *out >= 0;
    }
    if (text == NULL || *text < '0' || *text > '9' || strlen(text) > 19)
        return false;
    *out = strtoll(text, &end, 10);
    return *end == '\0' && *out >= 0;
}

static const char *error_text(const json_t *root)
{
    json_t *error = json_object_get(root, "error");

    if (json_is_object(error)) /* in a stream */
        return json_line(json_object_get(error, "message"));
    return json_line(error);
}

static json_t *load(const char *bytes, size_t n)
{
    json_t *root = n <= ETCD_ANSWER_MAX ? json_loadb(bytes, n, JSON_DISABLE_EOF_CHECK, NULL) : NULL;

    if (root != NULL && !json_is_object(root)) {
        json_decref(root);
        return NULL;
    }
    return root;
}

/* etcd's own errors, by their text: the gateway's codes are too coarse (api/v3rpc/rpctypes/error.go of etcd 3.4). */
static void read_error(int http_status, const json_t *root, struct elect_answer *a, char *text)
{
    static const char *const fatal[] = {"authentication failed", "authentication is not enabled", "permission denied",
                                        "user name is empty"};
    const char *why = error_text(root);
    char other[TEXT_MAX];

    if (why == NULL) {
        (void)snprintf(other, sizeof other, "its answer is not etcd's (HTTP status %d); is it etcd 3.4 or later?",
                       http_status);
        say(a, text, other);
        a->fatal = http_status == 404;
        return;
    }
    say(a, text, why);
    a->lease_gone = strstr(why, "lease not found") != NULL;
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++)
        a->fatal |= strstr(why, fatal[i]) != NULL;
    if (strstr(why, "user name is empty") != NULL)
        say(a, text, "it wants a user and a password (--rdzv_conf=user=NAME,password_file=PATH)");
}

/* The value of the host's key. Anything else than cddprun's is foreign. */
static void read_value(const char *text, struct elect_host *host)
{
    uint8_t value[VALUE_MAX];
    long n = text == NULL ? -1 : etcd_unbase64(value, sizeof value, text);
    json_t *root = n < 0 ? NULL : json_loadb((const char *)value, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
    const char *addr = json_line(json_object_get(root, "addr"));
    json_int_t port = json_integer_value(json_object_get(root, "port"));

    host->foreign = json_integer_value(json_object_get(root, "cddprun")) != 1 || addr == NULL || addr[0] == '\0' ||
                    strlen(addr) >= sizeof host->addr || port < 1 || port > 65535;
    if (!host->foreign) {
        (void)snprintf(host->addr, sizeof host->addr, "%s", addr);
        host->port = (uint16_t)port;
    }
    json_decref(root);
}

/* One of the two ranges. Returns false if it is not a range. */
static bool read_range(const json_t *responses, size_t i, const json_t **kv)
{
    const json_t *range = json_object_get(json_array_get(responses, i), "response_range"), *kvs;

    *kv = NULL;
    if (!json_is_object(range))
        return false;
    kvs = json_object_get(range, "kvs");
    if (kvs == NULL)
        return true;
    *kv = json_array_get(kvs, 0);
    return json_is_array(kvs) && (json_array_size(kvs) == 0 || json_is_object(*kv));
}

static bool read_keys(const json_t *root, struct elect_answer *a)
{
    const json_t *responses = json_object_get(root, "responses"), *host, *over;
    const char *value;

    if (!read_range(responses, 0, &host) || !read_range(responses, 1, &over))
        return false;
    if (over != NULL && (!number_of(over, "mod_revision", &a->over) || a->over == 0))
        return false;
    value = json_line(json_object_get(over, "value"));
    a->over_done = value != NULL && strcmp(value, "ZG9uZQ==") == 0; /* "done" */
    if (host == NULL)
        return true;
    a->host.is = true;
    if (!number_of(host, "create_revision", &a->host.epoch) || a->host.epoch == 0 ||
        !number_of(host, "lease", &a->host.lease))
        return false;
    read_value(json_line(json_object_get(host, "value")), &a->host);
    return true;
}

/* A lease of at least a second: less could not be kept. */
static bool read_grant(const json_t *root, struct elect_answer *a)
{
    int64_t ttl_s;

    if (!number_of(root, "ID", &a->lease) || a->lease == 0 || !number_of(root, "TTL", &ttl_s) || ttl_s < 1 ||
        ttl_s > INT32_MAX)
        return false;
    a->ttl_ms = 1000 * ttl_s;
    return true;
}

static bool read_keep(const json_t *root, struct elect_answer *a)
{
    const json_t *result = json_object_get(root, "result");
    int64_t ttl_s;

    if (!json_is_object(result) || !number_of(result, "TTL", &ttl_s) || ttl_s > INT32_MAX)
        return false;
    a->ttl_ms = 1000 * ttl_s;
    return true;
}

static bool read_campaign(const json_t *root, struct elect_answer *a)
{
    a->won = json_is_true(json_object_get(root, "succeeded"));
    if (!a->won)
        return read_keys(root, a);
    return number_of(json_object_get(root, "header"), "revision", &a->epoch) && a->epoch > 0;
}

void etcd_read_answer(enum elect_ask ask, int http_status, const char *bytes, size_t n, struct elect_answer *a,
                      char *text)
{
    json_t *root = load(bytes, n);
    bool good = root != NULL;

    *a = (struct elect_answer){.failed = false};
    if (http_status != 200 || error_text(root) != NULL || root == NULL) {
        read_error(http_status, root, a, text);
        json_decref(root);
        return;
    }
    if (ask == ELECT_ASK_LOOK)
        good = read_keys(root, a);
    else if (ask == ELECT_ASK_GRANT || ask == ELECT_ASK_TOMB)
        good = read_grant(root, a);
    else if (ask == ELECT_ASK_CAMPAIGN)
        good = read_campaign(root, a);
    else if (ask == ELECT_ASK_KEEP)
        good = read_keep(root, a);
    json_decref(root);
    if (good)
        return;
    *a = (struct elect_answer){.failed = false};
    say(a, text, "its answer is not what etcd sends; is it etcd 3.4 or later?");
}

bool etcd_wants_token(int http_status, const char *bytes, size_t n)
{
    json_t *root = http_status == 200 ? NULL : load(bytes, n);
    const char *why = error_text(root);
    bool wants =
        why != NULL && (strstr(why, "user name is empty") != NULL || strstr(why, "invalid auth token") != NULL ||
                        strstr(why, "revision of auth store is old") != NULL);

    json_decref(root);
    return wants;
}

bool etcd_read_token(int http_status, const char *bytes, size_t n, char *token, struct elect_answer *a, char *text)
{
    json_t *root = load(bytes, n);
    const char *found = json_line(json_object_get(root, "token"));
    bool good = http_status == 200 && found != NULL && strlen(found) < ETCD_TOKEN_MAX &&
                found[strcspn(found, " \r\n\t")] == '\0';

    *a = (struct elect_answer){.failed = false};
    if (good)
        (void)snprintf(token, ETCD_TOKEN_MAX, "%s", found);
    else
        read_error(http_status, root, a, text);
    json_decref(root);
    return good;
}
