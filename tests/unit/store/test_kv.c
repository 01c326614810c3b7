/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "store/kv.h"

#include <string.h>

CDI_SUITE(kv);

#define S(text) ((struct cdi_c10d_bytes){(const uint8_t *)(text), sizeof(text) - 1})

struct waiter {
    struct cdi_kv_client client; /* first */
    int woken;
};

static void on_wake(struct cdi_kv_client *client)
{
    ((struct waiter *)client)->woken++;
}

static struct cdi_kv *new_kv(size_t limit)
{
    struct cdi_kv *kv = NULL;

    cr_assert_eq(cdi_kv_create(&kv, &(struct cdi_kv_limits){.bytes = limit}), CDDP_OK);
    return kv;
}

static bool holds(struct cdi_kv *kv, struct cdi_c10d_bytes key, const char *text)
{
    struct cdi_c10d_bytes value;

    cdi_kv_get(kv, key, &value);
    return value.len == strlen(text) && memcmp(value.data, text, value.len) == 0;
}

/* Waits for up to three keys. */
static bool wait_for(struct cdi_kv *kv, struct waiter *w, const char *a, const char *b, const char *c)
{
    const char *keys[] = {a, b, c};
    struct cdi_c10d_request q = {.op = CDI_C10D_WAIT};
    struct cdi_buf list;
    struct cdi_error err;
    bool now;

    cdi_buf_init(&list, 0);
    for (int i = 0; i < 3; i++)
        if (keys[i] != NULL)
            (void)cdi_c10d_put_string(&list, keys[i], strlen(keys[i]));
    q.items = (struct cdi_c10d_bytes){cdi_buf_data(&list), list.len};
    cr_assert_eq(cdi_kv_wait(kv, &w->client, &q, &now, &err), CDDP_OK);
    cdi_buf_release(&list);
    return now;
}

Test(kv, sets_appends_adds_and_deletes_values)
{
    struct cdi_kv *kv = new_kv(0);
    size_t before = cdi_kv_bytes(kv), at = 0;
    struct cdi_c10d_bytes key;

    cr_assert(holds(kv, S("a"), ""));
    cr_assert(!cdi_kv_has(kv, S("a")));
    cr_assert_eq(cdi_kv_set(kv, S("a"), S(""), NULL), CDDP_OK);
    cr_assert(cdi_kv_has(kv, S("a")), "an empty value is one");
    cr_assert_eq(cdi_kv_set(kv, S("a"), S("one"), NULL), CDDP_OK);
    cr_assert_eq(cdi_kv_set(kv, S("a"), S("two"), NULL), CDDP_OK);
    cr_assert_eq(cdi_kv_append(kv, S("a"), S("+three"), NULL), CDDP_OK);
    cr_assert_eq(cdi_kv_append(kv, S("a"), S("+4"), NULL), CDDP_OK);
    cr_assert(holds(kv, S("a"), "two+three+4"));
    cr_assert_eq(cdi_kv_append(kv, S(""), S("x"), NULL), CDDP_OK);
    cr_assert(holds(kv, S(""), "x"));
    cr_assert_eq(cdi_kv_count(kv), 2);
    cr_assert(cdi_kv_next(kv, &at, &key) && cdi_kv_next(kv, &at, &key) && !cdi_kv_next(kv, &at, &key));
    cr_assert(cdi_kv_delete(kv, S("a")));
    cr_assert(!cdi_kv_delete(kv, S("a")));
    cr_assert(cdi_kv_delete(kv, S("")));
    cr_assert_eq(cdi_kv_bytes(kv), before);
    cdi_kv_destroy(kv);
}

Test(kv, add_follows_the_rules_of_strtoll)
{
    static const struct {
        const char *text;
        int64_t delta, sum;
        bool ok;
    } cases[] = {{"12", 1, 13, true},
                 {" \t\n\v\f\r 12xyz", 1, 13, true},
                 {"-2", 1, -1, true},
                 {"+5", -6, -1, true},
                 {"0000000000000000000000000000000000000000000000000000000000000000000000000007", 1, 8, true},
                 {"0x10", 1, 1, true},
                 {"9223372036854775807", 1, INT64_MIN, true},
                 {"-9223372036854775808", -1, INT64_MAX, true},
                 {"9223372036854775808", 1, 0, false},
                 {"-9223372036854775809", 1, 0, false},
                 {"", 1, 0, false},
                 {"x1", 1, 0, false},
                 {"-", 1, 0, false},
                 {"- 1", 1, 0, false},
                 {"   ", 1, 0, false}};
    struct cdi_kv *kv = new_kv(0);
    char text[32];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cdi_c10d_bytes value = {(const uint8_t *)cases[i].text, strlen(cases[i].text)};
        struct cdi_error err = {0};
        int64_t sum = 77;

        (void)cdi_kv_set(kv, S("n"), value, NULL);
        cr_assert_eq(cdi_kv_add(kv, S("n"), cases[i].delta, &sum, &err), cases[i].ok ? CDDP_OK : CDDP_E_INVALID, "'%s'",
                     cases[i].text);
        cr_assert_eq(sum, cases[i].ok ? cases[i].sum : 77, "'%s' gave %lld", cases[i].text, (long long)sum);
        (void)snprintf(text, sizeof text, "%lld", (long long)sum);
        cr_assert(holds(kv, S("n"), cases[i].ok ? text : cases[i].text));
        cr_assert(cases[i].ok || strstr(err.msg, "'n'") != NULL);
    }
    cdi_kv_destroy(kv);
}

Test(kv, compare_set_matches_pytorch)
{
    struct cdi_kv *kv = new_kv(0);
    struct cdi_c10d_bytes now;

    cr_assert_eq(cdi_kv_compare_set(kv, S("k"), S("old"), S("new"), &now, NULL), CDDP_OK);
    cr_assert(now.len == 3 && memcmp(now.data, "old", 3) == 0, "no such key: the expected value comes back");
    cr_assert(!cdi_kv_has(kv, S("k")));
    cr_assert_eq(cdi_kv_compare_set(kv, S("k"), S(""), S("v1"), &now, NULL), CDDP_OK);
    cr_assert(now.len == 2 && memcmp(now.data, "v1", 2) == 0);
    cr_assert_eq(cdi_kv_compare_set(kv, S("k"), S("xx"), S("v2"), &now, NULL), CDDP_OK);
    cr_assert(now.len == 2 && memcmp(now.data, "v1", 2) == 0);
    cr_assert_eq(cdi_kv_compare_set(kv, S("k"), S("v1"), S("v3"), &now, NULL), CDDP_OK);
    cr_assert(now.len == 2 && memcmp(now.data, "v3", 2) == 0);
    cr_assert(holds(kv, S("k"), "v3"));
    cdi_kv_destroy(kv);
}

Test(kv, wait_ends_with_its_last_key)
{
    struct cdi_kv *kv = new_kv(0);
    struct waiter w = {0};
    struct cdi_c10d_bytes out;
    int64_t sum;

    cdi_kv_client_init(&w.client, on_wake);
    cr_assert(wait_for(kv, &w, NULL, NULL, NULL), "nothing to wait for");
    cr_assert(!wait_for(kv, &w, "a", "b", "c"));
    (void)cdi_kv_set(kv, S("b"), S("1"), NULL);
    (void)cdi_kv_delete(kv, S("b")); /* it existed once, which counts */
    (void)cdi_kv_append(kv, S("c"), S("1"), NULL);
    cr_assert_eq(w.woken, 0);
    (void)cdi_kv_add(kv, S("a"), 1, &sum, NULL);
    cr_assert_eq(w.woken, 1);
    cr_assert(!wait_for(kv, &w, "d", "d", "a"), "the same key twice, and one that is there");
    (void)cdi_kv_compare_set(kv, S("d"), S(""), S("1"), &out, NULL);
    cr_assert_eq(w.woken, 2);
    cr_assert(wait_for(kv, &w, "a", "c", "d"));
    (void)cdi_kv_set(kv, S("d"), S("2"), NULL);
    cr_assert_eq(w.woken, 2);
    cdi_kv_destroy(kv);
}

Test(kv, tells_for_which_key_a_client_waits)
{
    struct cdi_kv *kv = new_kv(0);
    struct waiter w = {0};
    struct cdi_c10d_bytes key;
    size_t missing;

    cdi_kv_client_init(&w.client, on_wake);
    cr_assert_not(cdi_kv_waits_for(&w.client, &key, &missing));
    (void)wait_for(kv, &w, "a", "b", "c");
    cr_assert(cdi_kv_waits_for(&w.client, &key, &missing) && missing == 3 && key.len == 1 && *key.data == 'a');
    (void)cdi_kv_set(kv, S("a"), S("1"), NULL);
    cr_assert(cdi_kv_waits_for(&w.client, &key, &missing) && missing == 2 && *key.data == 'b');
    cdi_kv_cancel(kv, &w.client);
    cr_assert_not(cdi_kv_waits_for(&w.client, &key, &missing));
    cdi_kv_destroy(kv);
}

Test(kv, cancelled_wait_frees_everything)
{
    struct cdi_kv *kv = new_kv(0);
    struct waiter w = {0}, other = {0};
    size_t before = cdi_kv_bytes(kv);

    cdi_kv_client_init(&w.client, on_wake);
    cdi_kv_client_init(&other.client, on_wake);
    (void)wait_for(kv, &w, "a", "b", "a");
    (void)wait_for(kv, &w, "c", NULL, NULL);
    (void)wait_for(kv, &other, "a", NULL, NULL);
    cr_assert_gt(cdi_kv_bytes(kv), before);
    cdi_kv_cancel(kv, &w.client);
    cdi_kv_cancel(kv, &w.client);
    cr_assert_eq(cdi_kv_count(kv), 0);
    (void)cdi_kv_set(kv, S("a"), S("1"), NULL);
    cr_assert_eq(w.woken, 0);
    cr_assert_eq(other.woken, 1);
    (void)cdi_kv_delete(kv, S("a"));
    cr_assert_eq(cdi_kv_bytes(kv), before);
    (void)wait_for(kv, &w, "x", "y", "z"); /* pending when the store is destroyed */
    cdi_kv_destroy(kv);
}

Test(kv, push_wakes_one_waiter_and_queues_are_fifo)
{
    struct cdi_kv *kv = new_kv(0);
    struct waiter w[2] = {0};
    size_t before = cdi_kv_bytes(kv);
    struct cdi_c10d_bytes front;

    for (int i = 0; i < 2; i++) {
        cdi_kv_client_init(&w[i].client, on_wake);
        cr_assert(!wait_for(kv, &w[i], "q", NULL, NULL));
    }
    (void)cdi_kv_push(kv, S("q"), S("one"), NULL);
    cr_assert_eq(w[0].woken + w[1].woken, 1);
    (void)cdi_kv_push(kv, S("q"), S("two"), NULL);
    cr_assert_eq(w[0].woken + w[1].woken, 2);
    cr_assert(wait_for(kv, &w[0], "q", NULL, NULL));
    cr_assert_eq(cdi_kv_queue_len(kv, S("q")), 2);
    cr_assert(cdi_kv_has(kv, S("q")));
    cr_assert_eq(cdi_kv_count(kv), 0);
    front = cdi_kv_front(kv, S("q"));
    cr_assert(front.len == 3 && memcmp(front.data, "one", 3) == 0);
    cdi_kv_pop(kv, S("q"));
    cdi_kv_pop(kv, S("q"));
    cr_assert_eq(cdi_kv_queue_len(kv, S("q")), 0);
    cr_assert(!cdi_kv_has(kv, S("q")));
    cr_assert_eq(cdi_kv_bytes(kv), before);
    (void)cdi_kv_push(kv, S("q"), S("left"), NULL);
    cdi_kv_destroy(kv);
}

Test(kv, push_wakes_the_first_client_that_can_take_it)
{
    struct cdi_kv *kv = new_kv(0);
    struct waiter both = {0}, one = {0};

    cdi_kv_client_init(&both.client, on_wake);
    cdi_kv_client_init(&one.client, on_wake);
    cr_assert(!wait_for(kv, &both, "q", "x", NULL));
    cr_assert(!wait_for(kv, &one, "q", NULL, NULL));
    (void)cdi_kv_push(kv, S("q"), S("one"), NULL);
    cr_assert_eq(one.woken, 1, "the client before it waits for x, too");
    cr_assert_eq(both.woken, 0);
    (void)cdi_kv_set(kv, S("x"), S("1"), NULL);
    cr_assert_eq(both.woken, 1);
    cdi_kv_destroy(kv);
}

Test(kv, barrier_opens_with_the_last_client_and_stays_open)
{
    struct cdi_kv *kv = new_kv(0);
    struct waiter w[3] = {0};
    bool now;

    for (int i = 0; i < 3; i++)
        cdi_kv_client_init(&w[i].client, on_wake);
    cr_assert_eq(cdi_kv_barrier(kv, &w[0].client, S("b"), 3, &now, NULL), CDDP_OK);
    cr_assert(!now);
    cr_assert_eq(cdi_kv_barrier(kv, &w[1].client, S("b"), 3, &now, NULL), CDDP_OK);
    cr_assert(!now && w[0].woken == 0);
    cr_assert_eq(cdi_kv_barrier(kv, &w[2].client, S("b"), 3, &now, NULL), CDDP_OK);
    cr_assert(now);
    cr_assert(w[0].woken == 1 && w[1].woken == 1 && w[2].woken == 0);
    cr_assert(holds(kv, S("b"), "3"));
    cr_assert_eq(cdi_kv_barrier(kv, &w[0].client, S("b"), 3, &now, NULL), CDDP_OK);
    cr_assert(now);
    cr_assert_eq(cdi_kv_barrier(kv, &w[0].client, S("c"), 2, &now, NULL), CDDP_OK);
    cdi_kv_cancel(kv, &w[0].client);
    cr_assert(holds(kv, S("c"), "1"), "a client that has left is still counted");
    (void)cdi_kv_set(kv, S("d"), S("text"), NULL);
    cr_assert_eq(cdi_kv_barrier(kv, &w[0].client, S("d"), 2, &now, NULL), CDDP_E_INVALID);
    cdi_kv_destroy(kv);
}

Test(kv, barrier_count_wakes_no_waiter_but_a_set_does)
{
    struct cdi_kv *kv = new_kv(0);
    struct waiter w = {0}, parked = {0};
    bool now;

    cdi_kv_client_init(&w.client, on_wake);
    cdi_kv_client_init(&parked.client, on_wake);
    (void)wait_for(kv, &w, "b", NULL, NULL);
    (void)cdi_kv_barrier(kv, &parked.client, S("b"), 5, &now, NULL);
    cr_assert(!now && w.woken == 0);
    (void)cdi_kv_set(kv, S("b"), S("1"), NULL);
    cr_assert(w.woken == 1 && parked.woken == 1, "as in PyTorch");
    cdi_kv_destroy(kv);
}

Test(kv, full_store_rejects_and_keeps_its_values)
{
    struct cdi_kv *kv = new_kv(20000);
    struct waiter w = {0};
    struct cdi_error err;
    static const uint8_t big[30000];
    char name[16];
    int n = 0;
    size_t bytes;
    cddp_status st = CDDP_OK;

    cdi_kv_client_init(&w.client, on_wake);
    cr_assert_eq(cdi_kv_set(kv, S("k"), (struct cdi_c10d_bytes){big, sizeof big}, &err), CDDP_E_LIMIT);
    cr_assert_not_null(strstr(err.msg, "the store is full"));
    cr_assert_eq(cdi_kv_bytes(kv), 0);
    (void)cdi_kv_set(kv, S("k"), S("small"), NULL);
    bytes = cdi_kv_bytes(kv);
    cr_assert_eq(cdi_kv_append(kv, S("k"), (struct cdi_c10d_bytes){big, sizeof big}, &err), CDDP_E_LIMIT);
    cr_assert_eq(cdi_kv_push(kv, S("q"), (struct cdi_c10d_bytes){big, sizeof big}, &err), CDDP_E_LIMIT);
    cr_assert(holds(kv, S("k"), "small"));
    cr_assert_eq(cdi_kv_bytes(kv), bytes);
    for (; st == CDDP_OK && n < 1000; n++) {
        struct cdi_c10d_request q = {.op = CDI_C10D_WAIT};
        struct cdi_buf list;
        bool now;

        cdi_buf_init(&list, 0);
        (void)snprintf(name, sizeof name, "w%d", n);
        (void)cdi_c10d_put_string(&list, name, strlen(name));
        (void)cdi_c10d_put_string(&list, name, strlen(name));
        q.items = (struct cdi_c10d_bytes){cdi_buf_data(&list), list.len};
        st = cdi_kv_wait(kv, &w.client, &q, &now, &err);
        cdi_buf_release(&list);
    }
    cr_assert_eq(st, CDDP_E_LIMIT, "waits have their limit too");
    cr_assert_leq(cdi_kv_bytes(kv), 20000);
    cdi_kv_cancel(kv, &w.client);
    cr_assert_eq(cdi_kv_bytes(kv), bytes);
    cdi_kv_destroy(kv);
}

Test(kv, limits_on_keys_values_and_waits)
{
    const struct cdi_kv_limits limits = {.key = 4, .value = 6, .waits = 2};
    struct waiter w = {0};
    struct cdi_error err;
    struct cdi_kv *kv = NULL;

    cr_assert_eq(cdi_kv_create(&kv, &limits), CDDP_OK);
    cdi_kv_client_init(&w.client, on_wake);
    cr_assert_eq(cdi_kv_set(kv, S("four"), S("sixsix"), &err), CDDP_OK);
    cr_assert_eq(cdi_kv_set(kv, S("fiver"), S("x"), &err), CDDP_E_LIMIT);
    cr_assert_str_eq(err.msg, "a key of 5 bytes; the limit is 4");
    cr_assert_eq(cdi_kv_set(kv, S("four"), S("sevenxx"), &err), CDDP_E_LIMIT);
    cr_assert_str_eq(err.msg, "a value of 7 bytes; the limit is 6");
    cr_assert(holds(kv, S("four"), "sixsix"), "existing values stay");
    cr_assert_eq(cdi_kv_push(kv, S("q"), S("sevenxx"), &err), CDDP_E_LIMIT);
    cr_assert_eq(cdi_kv_append(kv, S("p"), S("sevenxx"), &err), CDDP_E_LIMIT);
    cr_assert_eq(cdi_kv_count(kv), 1);
    cr_assert(!wait_for(kv, &w, "a", NULL, NULL) && !wait_for(kv, &w, "b", NULL, NULL));
    cr_assert_eq(cdi_kv_waits(kv), 2);
    cr_assert_eq(cdi_kv_barrier(kv, &w.client, S("bar"), 9, &(bool){false}, &err), CDDP_E_LIMIT);
    cr_assert_str_eq(err.msg, "2 waits are pending already, which is the store's limit");
    cdi_kv_cancel(kv, &w.client);
    cr_assert_eq(cdi_kv_waits(kv), 0);
    cr_assert_eq(cdi_kv_limits(kv)->waits, 2);
    cdi_kv_destroy(kv);
}
