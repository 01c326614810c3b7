/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "store/serve.h"

#include <string.h>

CDI_SUITE(serve);

struct client {
    struct cdi_serve serve; /* first */
    struct cdi_buf in, out;
    int woken;
};

static void on_woken(struct cdi_serve *s)
{
    ((struct client *)s)->woken++;
}

static void begin(struct client *c, struct cdi_kv *kv)
{
    *c = (struct client){0};
    cdi_buf_init(&c->in, 0);
    cdi_buf_init(&c->out, 0);
    cdi_serve_init(&c->serve, kv, &c->out, on_woken);
    (void)cdi_buf_append(&c->in, CDI_C10D_HELLO, CDI_C10D_HELLO_LEN);
}

static void end(struct client *c)
{
    cdi_serve_release(&c->serve);
    cdi_buf_release(&c->in);
    cdi_buf_release(&c->out);
}

static void op(struct client *c, enum cdi_c10d_op what)
{
    (void)cdi_c10d_put_op(&c->in, what);
}

static void str(struct client *c, const char *s)
{
    (void)cdi_c10d_put_string(&c->in, s, strlen(s));
}

static void i64(struct client *c, int64_t v)
{
    (void)cdi_c10d_put_i64(&c->in, v);
}

static cddp_status feed(struct client *c)
{
    struct cdi_error err = {0};
    cddp_status st = cdi_serve_feed(&c->serve, &c->in, SIZE_MAX, &err);

    cr_assert(st >= 0 || err.msg[0] != '\0', "an error has a message");
    return st;
}

/* Check the next bytes of the output: n little-endian bytes, or a string. */
static int64_t number(struct client *c, size_t n)
{
    uint8_t le[8] = {0};

    cr_assert_geq(c->out.len, n);
    memcpy(le, cdi_buf_data(&c->out), n);
    cdi_buf_consume(&c->out, n);
    return (int64_t)cdi_c10d_get_u64(le);
}

static bool string(struct client *c, const char *want)
{
    size_t len = (size_t)number(c, 8);
    bool same = len == strlen(want) && c->out.len >= len && memcmp(cdi_buf_data(&c->out), want, len) == 0;

    cdi_buf_consume(&c->out, len);
    return same;
}

Test(serve, replies_in_order_to_every_operation)
{
    struct cdi_kv *kv;
    struct client c;

    cr_assert_eq(cdi_kv_create(&kv, NULL), CDDP_OK);
    begin(&c, kv);
    op(&c, CDI_C10D_PING), (void)cdi_buf_put_u32(&c.in, 0xcafe);
    op(&c, CDI_C10D_SET), str(&c, "k"), str(&c, "v");
    op(&c, CDI_C10D_GET), str(&c, "k");
    op(&c, CDI_C10D_GET), str(&c, "none");
    op(&c, CDI_C10D_ADD), str(&c, "n"), i64(&c, -7);
    op(&c, CDI_C10D_APPEND), str(&c, "k"), str(&c, "w");
    op(&c, CDI_C10D_COMPARE_SET), str(&c, "k"), str(&c, "vw"), str(&c, "x");
    op(&c, CDI_C10D_CHECK), i64(&c, 2), str(&c, "k"), str(&c, "n");
    op(&c, CDI_C10D_CHECK), i64(&c, 2), str(&c, "k"), str(&c, "none");
    op(&c, CDI_C10D_WAIT), i64(&c, 1), str(&c, "k");
    op(&c, CDI_C10D_MULTI_SET), i64(&c, 2), str(&c, "m1"), str(&c, "1"), str(&c, "m2"), str(&c, "2");
    op(&c, CDI_C10D_MULTI_GET), i64(&c, 3), str(&c, "m2"), str(&c, "none"), str(&c, "m1");
    op(&c, CDI_C10D_GETNUMKEYS);
    op(&c, CDI_C10D_DELETE_KEY), str(&c, "m1");
    op(&c, CDI_C10D_DELETE_KEY), str(&c, "m1");
    op(&c, CDI_C10D_CANCEL_WAIT);
    op(&c, CDI_C10D_QUEUE_POP), str(&c, "q");
    op(&c, CDI_C10D_QUEUE_PUSH), str(&c, "q"), str(&c, "item");
    op(&c, CDI_C10D_QUEUE_LEN), str(&c, "q");
    op(&c, CDI_C10D_QUEUE_POP), str(&c, "q");
    op(&c, CDI_C10D_BARRIER), str(&c, "b"), i64(&c, 1);
    op(&c, CDI_C10D_LIST_KEYS);
    cr_assert_eq(feed(&c), CDDP_OK);
    cr_assert_eq(c.in.len, 0);

    cr_assert_eq(number(&c, 4), 0xcafe);
    cr_assert(string(&c, "v"));
    cr_assert(string(&c, ""));
    cr_assert_eq(number(&c, 8), -7);
    cr_assert(string(&c, "x"));
    cr_assert_eq(number(&c, 1), CDI_C10D_READY);
    cr_assert_eq(number(&c, 1), CDI_C10D_NOT_READY);
    cr_assert_eq(number(&c, 1), CDI_C10D_STOP_WAITING);
    cr_assert(string(&c, "2"));
    cr_assert(string(&c, ""));
    cr_assert(string(&c, "1"));
    cr_assert_eq(number(&c, 8), 4);
    cr_assert_eq(number(&c, 8), 1);
    cr_assert_eq(number(&c, 8), 0);
    cr_assert_eq(number(&c, 1), CDI_C10D_WAIT_CANCELED);
    cr_assert_eq(number(&c, 8), 0);
    cr_assert_eq(number(&c, 8), 1);
    cr_assert_eq(number(&c, 8), 1);
    cr_assert(string(&c, "item"));
    cr_assert_eq(number(&c, 1), CDI_C10D_STOP_WAITING);
    cr_assert_eq(number(&c, 8), 4);
    cr_assert_eq(c.out.len, 4 * 8 + 5, "k n m2 b");
    end(&c);
    cdi_kv_destroy(kv);
}

/* Writes request number i with this key. Returns false after the last one. */
static bool request_with_key(struct client *c, int i, const char *key)
{
    static const struct {
        enum cdi_c10d_op op;
        int strings; /* after the key */
        bool number;
    } one[] = {{CDI_C10D_SET, 1, false},        {CDI_C10D_COMPARE_SET, 2, false}, {CDI_C10D_GET, 0, false},
               {CDI_C10D_ADD, 0, true},         {CDI_C10D_DELETE_KEY, 0, false},  {CDI_C10D_APPEND, 1, false},
               {CDI_C10D_QUEUE_PUSH, 1, false}, {CDI_C10D_QUEUE_POP, 0, false},   {CDI_C10D_QUEUE_LEN, 0, false},
               {CDI_C10D_BARRIER, 0, true}};
    static const enum cdi_c10d_op lists[] = {CDI_C10D_CHECK, CDI_C10D_WAIT, CDI_C10D_MULTI_GET, CDI_C10D_MULTI_SET};
    const int n = sizeof one / sizeof one[0], n_lists = sizeof lists / sizeof lists[0];

    if (i < n) {
        op(c, one[i].op), str(c, key);
        for (int k = 0; k < one[i].strings; k++)
            str(c, "x");
        if (one[i].number)
            i64(c, 1);
    } else if (i < n + n_lists) {
        op(c, lists[i - n]), i64(c, 2), str(c, "own");
        if (lists[i - n] == CDI_C10D_MULTI_SET)
            str(c, "cddp/ is a value");
        str(c, key);
        if (lists[i - n] == CDI_C10D_MULTI_SET)
            str(c, "x");
    }
    return i < n + n_lists;
}

Test(serve, guarded_connection_has_no_access_to_keys_of_libcddp)
{
    struct cdi_kv *kv;
    struct client owner, c;

    cr_assert_eq(cdi_kv_create(&kv, NULL), CDDP_OK);
    begin(&owner, kv);
    op(&owner, CDI_C10D_SET), str(&owner, "cddp/0/nodes"), str(&owner, "token");
    op(&owner, CDI_C10D_SET), str(&owner, "own"), str(&owner, "1");
    cr_assert_eq(feed(&owner), CDDP_OK);
    for (int i = 0;; i++) {
        struct cdi_error err = {0};

        begin(&c, kv);
        c.serve.guarded = true;
        if (!request_with_key(&c, i, "cddp/0/nodes")) {
            end(&c);
            break;
        }
        cr_assert_eq(cdi_serve_feed(&c.serve, &c.in, SIZE_MAX, &err), CDDP_E_DENIED, "request %d", i);
        cr_assert_not_null(strstr(err.msg, "without a proof of the job's auth token"), "%s", err.msg);
        cr_assert_eq(c.out.len, 0);
        end(&c);
        begin(&c, kv);
        c.serve.guarded = true;
        (void)request_with_key(&c, i, "cddp");
        cr_assert_eq(feed(&c), CDDP_OK, "request %d with a key of the program", i);
        end(&c);
        op(&owner, CDI_C10D_DELETE_KEY), str(&owner, "cddp");
        cr_assert_eq(feed(&owner), CDDP_OK);
        (void)number(&owner, 8);
    }
    begin(&c, kv);
    c.serve.guarded = true;
    op(&c, CDI_C10D_LIST_KEYS);
    cr_assert_eq(feed(&c), CDDP_OK);
    cr_assert_eq(number(&c, 8), 1);
    cr_assert(string(&c, "own") && c.out.len == 0);
    op(&owner, CDI_C10D_GET), str(&owner, "cddp/0/nodes");
    cr_assert_eq(feed(&owner), CDDP_OK);
    cr_assert(string(&owner, "token"), "nothing has changed it");
    end(&c);
    end(&owner);
    cdi_kv_destroy(kv);
}

Test(serve, one_connection_ends_the_wait_of_another)
{
    struct cdi_kv *kv;
    struct client a, b;

    cr_assert_eq(cdi_kv_create(&kv, NULL), CDDP_OK);
    begin(&a, kv);
    begin(&b, kv);
    op(&a, CDI_C10D_WAIT), i64(&a, 1), str(&a, "k");
    op(&a, CDI_C10D_PING), (void)cdi_buf_put_u32(&a.in, 5);
    cr_assert_eq(feed(&a), CDDP_OK);
    cr_assert_eq(number(&a, 4), 5, "the PING was answered before the wait ended");
    cr_assert_eq(a.out.len, 0);
    op(&b, CDI_C10D_SET), str(&b, "k"), str(&b, "v");
    cr_assert_eq(feed(&b), CDDP_OK);
    cr_assert_eq(a.woken, 1);
    cr_assert_eq(number(&a, 1), CDI_C10D_STOP_WAITING);
    op(&a, CDI_C10D_WAIT), i64(&a, 1), str(&a, "other");
    op(&a, CDI_C10D_CANCEL_WAIT);
    cr_assert_eq(feed(&a), CDDP_OK);
    cr_assert_eq(number(&a, 1), CDI_C10D_WAIT_CANCELED);
    op(&b, CDI_C10D_SET), str(&b, "other"), str(&b, "v");
    cr_assert_eq(feed(&b), CDDP_OK);
    cr_assert_eq(a.out.len, 0);
    end(&a);
    end(&b);
    cdi_kv_destroy(kv);
}

Test(serve, rejects_client_without_validate)
{
    static const struct {
        const char *bytes;
        size_t len;
    } cases[] = {{"\x0d\x01\x02\x03\x04", 5}, {"\x0d", 1}, {"\x00\xce\xf7\x85\x3d", 5}, {"\xff", 1}, {"GET /", 5}};
    struct cdi_kv *kv;
    struct client c;

    cr_assert_eq(cdi_kv_create(&kv, NULL), CDDP_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(&c, kv);
        cdi_buf_consume(&c.in, c.in.len);
        (void)cdi_buf_append(&c.in, cases[i].bytes, cases[i].len);
        cr_assert_eq(feed(&c), CDDP_E_PROTOCOL, "case %zu", i);
        cr_assert_eq(c.out.len, 0);
        end(&c);
    }
    begin(&c, kv);
    (void)cdi_buf_append(&c.in, CDI_C10D_HELLO, CDI_C10D_HELLO_LEN); /* a second time */
    cr_assert_eq(feed(&c), CDDP_E_PROTOCOL);
    end(&c);
    cdi_kv_destroy(kv);
}

Test(serve, pauses_replies_at_the_limit)
{
    struct cdi_kv *kv;
    struct client c;
    struct cdi_error err;
    int total = 0;

    cr_assert_eq(cdi_kv_create(&kv, NULL), CDDP_OK);
    begin(&c, kv);
    for (int i = 0; i < 100; i++)
        op(&c, CDI_C10D_PING), (void)cdi_buf_put_u32(&c.in, 1);
    while (cdi_serve_feed(&c.serve, &c.in, 40, &err) == CDDP_IN_PROGRESS) {
        cr_assert_eq(c.out.len, 40);
        total += 10;
        cdi_buf_consume(&c.out, 40);
    }
    cr_assert_eq(total + (int)c.out.len / 4, 100);
    end(&c);
    cdi_kv_destroy(kv);
}

Test(serve, reply_beyond_the_limit_ends_the_connection)
{
    struct cdi_kv *kv;
    struct client c;
    struct cdi_error err;

    cr_assert_eq(cdi_kv_create(&kv, NULL), CDDP_OK);
    begin(&c, kv);
    c.out.limit = 64;
    op(&c, CDI_C10D_SET), str(&c, "k"), str(&c, "a value of thirty bytes, or so");
    op(&c, CDI_C10D_MULTI_GET), i64(&c, 3), str(&c, "k"), str(&c, "k"), str(&c, "k");
    cr_assert_eq(cdi_serve_feed(&c.serve, &c.in, SIZE_MAX, &err), CDDP_E_LIMIT);
    cr_assert_not_null(strstr(err.msg, "MULTI_GET"));
    cr_assert_leq(c.out.len, 64);
    end(&c);
    cdi_kv_destroy(kv);
}

Test(serve, wake_up_beyond_the_limit_breaks_the_connection)
{
    struct cdi_kv *kv;
    struct client a, b;
    struct cdi_error err;

    cr_assert_eq(cdi_kv_create(&kv, NULL), CDDP_OK);
    begin(&a, kv);
    begin(&b, kv);
    a.out.limit = 4;
    op(&a, CDI_C10D_PING), (void)cdi_buf_put_u32(&a.in, 1);
    op(&a, CDI_C10D_WAIT), i64(&a, 1), str(&a, "k");
    cr_assert_eq(feed(&a), CDDP_OK);
    op(&b, CDI_C10D_SET), str(&b, "k"), str(&b, "v");
    cr_assert_eq(feed(&b), CDDP_OK);
    cr_assert(a.serve.broken && a.woken == 1);
    cr_assert_eq(cdi_serve_feed(&a.serve, &a.in, SIZE_MAX, &err), CDDP_E_LIMIT);
    end(&a);
    end(&b);
    cdi_kv_destroy(kv);
}
