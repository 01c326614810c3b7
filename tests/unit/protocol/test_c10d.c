/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "protocol/c10d.h"

#include <string.h>
#include <time.h>

CDI_SUITE(c10d);

static void put(struct cdi_buf *b, const char *s)
{
    cr_assert_eq(cdi_c10d_put_string(b, s, strlen(s)), CDDP_OK);
}

static bool is(struct cdi_c10d_bytes bytes, const char *text)
{
    return bytes.len == strlen(text) && memcmp(bytes.data, text, bytes.len) == 0;
}

/* One of each operation. */
static void put_all(struct cdi_buf *b)
{
    (void)cdi_buf_append(b, CDI_C10D_HELLO, CDI_C10D_HELLO_LEN);
    (void)cdi_c10d_put_op(b, CDI_C10D_SET), put(b, "k"), put(b, "value");
    (void)cdi_c10d_put_op(b, CDI_C10D_COMPARE_SET), put(b, "k"), put(b, "old"), put(b, "new");
    (void)cdi_c10d_put_op(b, CDI_C10D_GET), put(b, "");
    (void)cdi_c10d_put_op(b, CDI_C10D_ADD), put(b, "n"), (void)cdi_c10d_put_i64(b, -5);
    for (int op = CDI_C10D_CHECK; op <= CDI_C10D_WAIT; op++) {
        (void)cdi_c10d_put_op(b, (enum cdi_c10d_op)op);
        (void)cdi_buf_put_u64(b, 2), put(b, "a"), put(b, "bb");
    }
    (void)cdi_c10d_put_op(b, CDI_C10D_GETNUMKEYS);
    (void)cdi_c10d_put_op(b, CDI_C10D_DELETE_KEY), put(b, "k");
    (void)cdi_c10d_put_op(b, CDI_C10D_APPEND), put(b, "k"), put(b, "value");
    (void)cdi_c10d_put_op(b, CDI_C10D_MULTI_GET), (void)cdi_buf_put_u64(b, 0);
    (void)cdi_c10d_put_op(b, CDI_C10D_MULTI_SET), (void)cdi_buf_put_u64(b, 1), put(b, "a"), put(b, "bb");
    (void)cdi_c10d_put_op(b, CDI_C10D_CANCEL_WAIT);
    (void)cdi_c10d_put_op(b, CDI_C10D_PING), (void)cdi_buf_put_u32(b, 0xdeadbeef);
    (void)cdi_c10d_put_op(b, CDI_C10D_QUEUE_PUSH), put(b, "k"), put(b, "value");
    (void)cdi_c10d_put_op(b, CDI_C10D_QUEUE_POP), put(b, "k");
    (void)cdi_c10d_put_op(b, CDI_C10D_QUEUE_LEN), put(b, "k");
    (void)cdi_c10d_put_op(b, CDI_C10D_LIST_KEYS);
    (void)cdi_c10d_put_op(b, CDI_C10D_BARRIER), put(b, "k"), (void)cdi_c10d_put_i64(b, 3);
}

static void check(const struct cdi_c10d_request *q)
{
    struct cdi_c10d_bytes item;
    size_t at = 0;

    switch (q->op) {
    case CDI_C10D_VALIDATE:
        cr_assert_eq(q->number, CDI_C10D_MAGIC);
        break;
    case CDI_C10D_SET:
    case CDI_C10D_APPEND:
    case CDI_C10D_QUEUE_PUSH:
        cr_assert(is(q->key, "k") && is(q->value, "value") && q->desired.len == 0);
        break;
    case CDI_C10D_COMPARE_SET:
        cr_assert(is(q->key, "k") && is(q->value, "old") && is(q->desired, "new"));
        break;
    case CDI_C10D_GET:
        cr_assert_eq(q->key.len, 0);
        break;
    case CDI_C10D_ADD:
        cr_assert(is(q->key, "n") && q->number == -5);
        break;
    case CDI_C10D_BARRIER:
        cr_assert(is(q->key, "k") && q->number == 3 && q->value.len == 0);
        break;
    case CDI_C10D_PING:
        cr_assert_eq(q->number, 0xdeadbeef);
        break;
    case CDI_C10D_CHECK:
    case CDI_C10D_WAIT:
    case CDI_C10D_MULTI_SET:
        cr_assert_eq(q->count, q->op == CDI_C10D_MULTI_SET ? 1 : 2);
        cr_assert(cdi_c10d_next_item(q, &at, &item) && is(item, "a"));
        cr_assert(cdi_c10d_next_item(q, &at, &item) && is(item, "bb"));
        cr_assert(!cdi_c10d_next_item(q, &at, &item));
        break;
    case CDI_C10D_MULTI_GET:
        cr_assert_eq(q->count, 0);
        cr_assert(!cdi_c10d_next_item(q, &at, &item));
        break;
    case CDI_C10D_DELETE_KEY:
    case CDI_C10D_QUEUE_POP:
    case CDI_C10D_QUEUE_LEN:
        cr_assert(is(q->key, "k"));
        break;
    case CDI_C10D_GETNUMKEYS:
    case CDI_C10D_CANCEL_WAIT:
    case CDI_C10D_LIST_KEYS:
    case CDI_C10D_N_OPS:
        break;
    }
}

Test(c10d, parses_every_operation_in_any_pieces)
{
    struct cdi_buf wire, in;

    cdi_buf_init(&wire, 0);
    put_all(&wire);
    for (size_t cut = 1; cut <= wire.len; cut++) {
        struct cdi_c10d_reader r = {0};
        struct cdi_c10d_request q;
        struct cdi_error err;
        int want = 0;

        cdi_buf_init(&in, 0);
        for (size_t at = 0; at < wire.len; at += cut) {
            size_t n = wire.len - at < cut ? wire.len - at : cut;

            (void)cdi_buf_append(&in, cdi_buf_data(&wire) + at, n);
            while (cdi_c10d_next(&r, &in, &q, &err) == CDDP_OK) {
                cr_assert_eq((int)q.op, want);
                check(&q);
                cdi_buf_consume(&in, q.size);
                want++;
            }
        }
        cr_assert_eq(want, CDI_C10D_N_OPS);
        cr_assert_eq(in.len, 0);
        cdi_buf_release(&in);
    }
    cdi_buf_release(&wire);
}

static cddp_status read_one(const struct cdi_buf *in, struct cdi_error *err)
{
    struct cdi_c10d_reader r = {0};
    struct cdi_c10d_request q;

    return cdi_c10d_next(&r, in, &q, err);
}

Test(c10d, rejects_large_lengths_before_the_data)
{
    struct cdi_buf in;
    struct cdi_error err;

    cdi_buf_init(&in, 0);
    (void)cdi_c10d_put_op(&in, CDI_C10D_GET), (void)cdi_buf_put_u64(&in, CDI_C10D_KEY_MAX);
    cr_assert_eq(read_one(&in, &err), CDDP_IN_PROGRESS);
    cdi_buf_release(&in);
    (void)cdi_c10d_put_op(&in, CDI_C10D_GET), (void)cdi_buf_put_u64(&in, CDI_C10D_KEY_MAX + 1);
    cr_assert_eq(read_one(&in, &err), CDDP_E_LIMIT);
    cr_assert_not_null(strstr(err.msg, "a key of 8193 bytes"));
    cdi_buf_release(&in);
    (void)cdi_c10d_put_op(&in, CDI_C10D_SET), put(&in, "k"), (void)cdi_buf_put_u64(&in, CDI_C10D_VALUE_MAX + 1);
    cr_assert_eq(read_one(&in, &err), CDDP_E_LIMIT);
    cdi_buf_release(&in);
    (void)cdi_c10d_put_op(&in, CDI_C10D_SET), put(&in, "k"), (void)cdi_buf_put_u64(&in, UINT64_MAX);
    cr_assert_eq(read_one(&in, &err), CDDP_E_LIMIT);
    cdi_buf_release(&in);
    (void)cdi_c10d_put_op(&in, CDI_C10D_WAIT), (void)cdi_buf_put_u64(&in, CDI_C10D_LIST_MAX + 1);
    cr_assert_eq(read_one(&in, &err), CDDP_E_LIMIT);
    cdi_buf_release(&in);
    (void)cdi_buf_put_u8(&in, 19);
    cr_assert_eq(read_one(&in, &err), CDDP_E_PROTOCOL);
    cdi_buf_release(&in);
}

Test(c10d, limits_total_size_of_a_request)
{
    struct cdi_c10d_reader r = {0};
    struct cdi_c10d_request q;
    struct cdi_buf in;
    struct cdi_error err;
    static const char value[CDI_C10D_VALUE_MAX];
    cddp_status st = CDDP_IN_PROGRESS;

    cdi_buf_init(&in, 0);
    (void)cdi_c10d_put_op(&in, CDI_C10D_MULTI_SET), (void)cdi_buf_put_u64(&in, 100);
    for (int i = 0; i < 9 && st == CDDP_IN_PROGRESS; i++) {
        put(&in, "k");
        (void)cdi_c10d_put_string(&in, value, sizeof value);
        st = cdi_c10d_next(&r, &in, &q, &err);
    }
    cr_assert_eq(st, CDDP_E_LIMIT);
    cr_assert_leq(in.len, CDI_C10D_REQUEST_MAX + 2 * CDI_C10D_VALUE_MAX);
    cdi_buf_release(&in);
}

/* CPU time of this process, which other processes do not affect. */
static int64_t used_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Returns the time for a MULTI_SET of n keys in pieces of 4 KiB. */
static int64_t time_multi_set(uint64_t n)
{
    struct cdi_c10d_reader r = {0};
    struct cdi_c10d_request q;
    struct cdi_buf wire, in;
    struct cdi_error err;
    int64_t begin;
    cddp_status st = CDDP_IN_PROGRESS;

    cdi_buf_init(&wire, 0);
    cdi_buf_init(&in, 0);
    (void)cdi_c10d_put_op(&wire, CDI_C10D_MULTI_SET), (void)cdi_buf_put_u64(&wire, n);
    for (uint64_t i = 0; i < n; i++)
        put(&wire, "some/key"), put(&wire, "some value");
    begin = used_ns();
    for (size_t at = 0; at < wire.len; at += 4096) {
        cr_assert_eq(st, CDDP_IN_PROGRESS);
        (void)cdi_buf_append(&in, cdi_buf_data(&wire) + at, wire.len - at < 4096 ? wire.len - at : 4096);
        st = cdi_c10d_next(&r, &in, &q, &err);
    }
    cr_assert_eq(st, CDDP_OK);
    cr_assert_eq(q.count, n);
    cdi_buf_release(&wire);
    cdi_buf_release(&in);
    return used_ns() - begin;
}

Test(c10d, long_list_in_small_pieces_takes_linear_time)
{
    int64_t small = INT64_MAX, large = INT64_MAX;

    for (int i = 0; i < 5; i++) {
        int64_t s = time_multi_set(8000), l = time_multi_set(64000);

        small = s < small ? s : small;
        large = l < large ? l : large;
    }
    /* Eight times the keys: a quadratic parser would need 64 times as long. */
    cr_assert_lt(large, 24 * small, "%lld ns against %lld ns", (long long)large, (long long)small);
}

Test(c10d, string_that_does_not_fit_is_not_written)
{
    struct cdi_buf b;

    cdi_buf_init(&b, 12);
    cr_assert_eq(cdi_c10d_put_string(&b, "12345", 5), CDDP_E_LIMIT);
    cr_assert_eq(b.len, 0);
    cr_assert_eq(cdi_c10d_put_string(&b, "1234", 4), CDDP_OK);
    cr_assert_eq(cdi_c10d_put_string(&b, "", 0), CDDP_E_LIMIT);
    cr_assert_eq(cdi_c10d_get_u64(cdi_buf_data(&b)), 4);
    cdi_buf_release(&b);
}

Test(c10d, recognizes_first_ping_of_libcddp)
{
    static const uint8_t opening[] = "\x00\xce\xf7\x85\x3c\x0d";
    uint8_t b[10];
    bool own = true;

    memcpy(b, opening, 6);
    for (uint32_t random = 0; random < 0xF0000000u; random += 0x7654321u) {
        uint32_t nonce = cdi_c10d_own_ping(random);

        memcpy(b + 6, &nonce, 4);
        for (size_t len = 5; len < 10; len++)
            cr_assert_eq(cdi_c10d_sniff_ping(b, len, &own), CDDP_IN_PROGRESS);
        cr_assert(cdi_c10d_sniff_ping(b, 10, &own) == CDDP_OK && own);
        memcpy(b + 6, &(uint32_t){random >> 10}, 4); /* a process id */
        cr_assert(cdi_c10d_sniff_ping(b, 10, &own) == CDDP_OK && !own);
    }
    b[5] = CDI_C10D_SET;
    cr_assert(cdi_c10d_sniff_ping(b, 6, &own) == CDDP_OK && !own);
}
