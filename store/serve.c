/* SPDX-License-Identifier: Apache-2.0 */
#include "store/serve.h"

#include <string.h>

static void serve_on_wake(struct cdi_kv_client *client)
{
    struct cdi_serve *s = (struct cdi_serve *)client;

    if (cdi_buf_put_u8(s->out, CDI_C10D_STOP_WAITING) != CDDP_OK)
        s->broken = true;
    s->woken(s);
}

void cdi_serve_init(struct cdi_serve *s, struct cdi_kv *kv, struct cdi_buf *out, void (*woken)(struct cdi_serve *s))
{
    *s = (struct cdi_serve){.kv = kv, .out = out, .woken = woken};
    cdi_kv_client_init(&s->client, serve_on_wake);
}

void cdi_serve_release(struct cdi_serve *s)
{
    cdi_kv_cancel(s->kv, &s->client);
}

static cddp_status serve_add(struct cdi_serve *s, const struct cdi_c10d_request *q, struct cdi_error *err)
{
    int64_t sum;
    cddp_status st = cdi_kv_add(s->kv, q->key, q->number, &sum, err);

    return st != CDDP_OK ? st : cdi_c10d_put_i64(s->out, sum);
}

static cddp_status serve_compare_set(struct cdi_serve *s, const struct cdi_c10d_request *q, struct cdi_error *err)
{
    struct cdi_c10d_bytes now;
    cddp_status st = cdi_kv_compare_set(s->kv, q->key, q->value, q->desired, &now, err);

    return st != CDDP_OK ? st : cdi_c10d_put_string(s->out, now.data, now.len);
}

static cddp_status serve_get(struct cdi_serve *s, struct cdi_c10d_bytes key)
{
    struct cdi_c10d_bytes value;

    cdi_kv_get(s->kv, key, &value);
    return cdi_c10d_put_string(s->out, value.data, value.len);
}

static cddp_status serve_check(struct cdi_serve *s, const struct cdi_c10d_request *q)
{
    struct cdi_c10d_bytes key;
    size_t at = 0;
    bool all = true;

    while (all && cdi_c10d_next_item(q, &at, &key))
        all = cdi_kv_has(s->kv, key);
    return cdi_buf_put_u8(s->out, all ? CDI_C10D_READY : CDI_C10D_NOT_READY);
}

static cddp_status serve_multi_get(struct cdi_serve *s, const struct cdi_c10d_request *q)
{
    struct cdi_c10d_bytes key;
    size_t at = 0;
    cddp_status st = CDDP_OK;

    while (st == CDDP_OK && cdi_c10d_next_item(q, &at, &key))
        st = serve_get(s, key);
    return st;
}

static cddp_status serve_multi_set(struct cdi_serve *s, const struct cdi_c10d_request *q, struct cdi_error *err)
{
    struct cdi_c10d_bytes key, value;
    size_t at = 0;
    cddp_status st = CDDP_OK;

    while (st == CDDP_OK && cdi_c10d_next_item(q, &at, &key) && cdi_c10d_next_item(q, &at, &value))
        st = cdi_kv_set(s->kv, key, value, err);
    return st;
}

static cddp_status serve_queue_pop(struct cdi_serve *s, const struct cdi_c10d_request *q)
{
    size_t len = cdi_kv_queue_len(s->kv, q->key);
    struct cdi_c10d_bytes value;
    cddp_status st = cdi_c10d_put_i64(s->out, (int64_t)len);

    if (st != CDDP_OK || len == 0)
        return st;
    value = cdi_kv_front(s->kv, q->key);
    st = cdi_c10d_put_string(s->out, value.data, value.len);
    if (st == CDDP_OK)
        cdi_kv_pop(s->kv, q->key);
    return st;
}

static bool is_guarded(const struct cdi_serve *s, struct cdi_c10d_bytes key)
{
    const size_t len = sizeof CDI_SERVE_GUARDED - 1;

    return s->guarded && key.len >= len && memcmp(key.data, CDI_SERVE_GUARDED, len) == 0;
}

static cddp_status serve_list_keys(struct cdi_serve *s)
{
    struct cdi_c10d_bytes key;
    size_t at = 0;
    int64_t n = (int64_t)cdi_kv_count(s->kv);
    cddp_status st;

    while (s->guarded && cdi_kv_next(s->kv, &at, &key))
        n -= is_guarded(s, key);
    st = cdi_c10d_put_i64(s->out, n);
    at = 0;
    while (st == CDDP_OK && cdi_kv_next(s->kv, &at, &key))
        if (!is_guarded(s, key))
            st = cdi_c10d_put_string(s->out, key.data, key.len);
    return st;
}

static cddp_status serve_wait(struct cdi_serve *s, const struct cdi_c10d_request *q, struct cdi_error *err)
{
    bool now = false;
    cddp_status st;

    if (q->op == CDI_C10D_WAIT)
        st = cdi_kv_wait(s->kv, &s->client, q, &now, err);
    else
        st = cdi_kv_barrier(s->kv, &s->client, q->key, q->number, &now, err);
    return st == CDDP_OK && now ? cdi_buf_put_u8(s->out, CDI_C10D_STOP_WAITING) : st;
}

/* A client that has proved nothing may not touch libcddp's keys: their token opens the data ports. */
static cddp_status check_keys(const struct cdi_serve *s, const struct cdi_c10d_request *q, struct cdi_error *err)
{
    struct cdi_c10d_bytes key = q->key, value;
    size_t at = 0;
    bool guarded = is_guarded(s, key);

    while (s->guarded && !guarded && cdi_c10d_next_item(q, &at, &key)) {
        guarded = is_guarded(s, key);
        if (q->op == CDI_C10D_MULTI_SET)
            (void)cdi_c10d_next_item(q, &at, &value);
    }
    return guarded ? cdi_fail(err, CDDP_E_DENIED,
                              "%s of a key of libcddp (%.*s...) without a proof of the job's auth token",
                              cdi_c10d_op_name(q->op), (int)sizeof CDI_SERVE_GUARDED - 1, CDI_SERVE_GUARDED)
                   : CDDP_OK;
}

/* Checks that the first request, and no later one, is VALIDATE with the right magic. */
static cddp_status check_order(struct cdi_serve *s, const struct cdi_c10d_request *q, struct cdi_error *err)
{
    bool validate = q->op == CDI_C10D_VALIDATE;

    if (validate != !s->validated)
        return cdi_fail(err, CDDP_E_PROTOCOL, "%s %s VALIDATE", cdi_c10d_op_name(q->op), validate ? "after" : "before");
    if (validate && q->number != CDI_C10D_MAGIC)
        return cdi_fail(err, CDDP_E_PROTOCOL, "VALIDATE with the wrong magic 0x%08x", (unsigned)q->number);
    return CDDP_OK;
}

static cddp_status serve_request(struct cdi_serve *s, const struct cdi_c10d_request *q, struct cdi_error *err)
{
    switch (q->op) {
    case CDI_C10D_VALIDATE:
        s->validated = true;
        return CDDP_OK;
    case CDI_C10D_SET:
        return cdi_kv_set(s->kv, q->key, q->value, err);
    case CDI_C10D_COMPARE_SET:
        return serve_compare_set(s, q, err);
    case CDI_C10D_GET:
        return serve_get(s, q->key);
    case CDI_C10D_ADD:
        return serve_add(s, q, err);
    case CDI_C10D_CHECK:
        return serve_check(s, q);
    case CDI_C10D_WAIT:
    case CDI_C10D_BARRIER:
        return serve_wait(s, q, err);
    case CDI_C10D_GETNUMKEYS:
        return cdi_c10d_put_i64(s->out, (int64_t)cdi_kv_count(s->kv));
    case CDI_C10D_DELETE_KEY:
        return cdi_c10d_put_i64(s->out, cdi_kv_delete(s->kv, q->key));
    case CDI_C10D_APPEND:
        return cdi_kv_append(s->kv, q->key, q->value, err);
    case CDI_C10D_MULTI_GET:
        return serve_multi_get(s, q);
    case CDI_C10D_MULTI_SET:
        return serve_multi_set(s, q, err);
    case CDI_C10D_CANCEL_WAIT:
        cdi_kv_cancel(s->kv, &s->client);
        return cdi_buf_put_u8(s->out, CDI_C10D_WAIT_CANCELED);
    case CDI_C10D_PING:
        return cdi_buf_put_u32(s->out, (uint32_t)q->number);
    case CDI_C10D_QUEUE_PUSH:
        return cdi_kv_push(s->kv, q->key, q->value, err);
    case CDI_C10D_QUEUE_POP:
        return serve_queue_pop(s, q);
    case CDI_C10D_QUEUE_LEN:
        return cdi_c10d_put_i64(s->out, (int64_t)cdi_kv_queue_len(s->kv, q->key));
    case CDI_C10D_LIST_KEYS:
        return serve_list_keys(s);
    case CDI_C10D_N_OPS:
        break;
    }
    return cdi_fail(err, CDDP_E_PROTOCOL, "no such operation");
}

cddp_status cdi_serve_feed(struct cdi_serve *s, struct cdi_buf *in, size_t enough_out, struct cdi_error *err)
{
    struct cdi_c10d_request q;
    cddp_status st;

    for (;;) {
        if (s->broken)
            return cdi_fail(err, CDDP_E_LIMIT, "replies of %zu bytes were not read", s->out->len);
        if (s->out->len >= enough_out)
            return CDDP_IN_PROGRESS;
        /* A first operation other than VALIDATE is rejected by its first byte; no more of it is read. */
        if (!s->validated && in->len > 0 && cdi_buf_data(in)[0] != CDI_C10D_VALIDATE)
            return cdi_fail(err, CDDP_E_PROTOCOL, "%s before VALIDATE", cdi_c10d_op_name(cdi_buf_data(in)[0]));
        st = cdi_c10d_next(&s->reader, in, &q, err);
        if (st != CDDP_OK)
            return st == CDDP_IN_PROGRESS ? CDDP_OK : st;
        if (err != NULL)
            err->status = CDDP_OK;
        if (s->counts != NULL)
            s->counts[q.op]++;
        st = check_order(s, &q, err);
        if (st == CDDP_OK)
            st = check_keys(s, &q, err);
        if (st == CDDP_OK)
            st = serve_request(s, &q, err);
        cdi_buf_consume(in, q.size);
        if (st != CDDP_OK && err != NULL && err->status == CDDP_OK) /* from a buffer, without a message */
            (void)cdi_fail(err, st, "the reply to %s is too large (%zu bytes are waiting already)",
                           cdi_c10d_op_name(q.op), s->out->len);
        if (st != CDDP_OK)
            return st;
    }
}
