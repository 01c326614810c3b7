/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/c10d.h"

#include <string.h>

/*
 * The arguments of each operation, one letter each: k a key, v a value, i an i64, u a u32, K a list of keys, P a list
 * of (key, value) pairs.
 */
static const struct {
    const char *name, *args;
} ops[CDI_C10D_N_OPS] = {
    [CDI_C10D_VALIDATE] = {"VALIDATE", "u"},
    [CDI_C10D_SET] = {"SET", "kv"},
    [CDI_C10D_COMPARE_SET] = {"COMPARE_SET", "kvv"},
    [CDI_C10D_GET] = {"GET", "k"},
    [CDI_C10D_ADD] = {"ADD", "ki"},
    [CDI_C10D_CHECK] = {"CHECK", "K"},
    [CDI_C10D_WAIT] = {"WAIT", "K"},
    [CDI_C10D_GETNUMKEYS] = {"GETNUMKEYS", ""},
    [CDI_C10D_DELETE_KEY] = {"DELETE_KEY", "k"},
    [CDI_C10D_APPEND] = {"APPEND", "kv"},
    [CDI_C10D_MULTI_GET] = {"MULTI_GET", "K"},
    [CDI_C10D_MULTI_SET] = {"MULTI_SET", "P"},
    [CDI_C10D_CANCEL_WAIT] = {"CANCEL_WAIT", ""},
    [CDI_C10D_PING] = {"PING", "u"},
    [CDI_C10D_QUEUE_PUSH] = {"QUEUE_PUSH", "kv"},
    [CDI_C10D_QUEUE_POP] = {"QUEUE_POP", "k"},
    [CDI_C10D_QUEUE_LEN] = {"QUEUE_LEN", "k"},
    [CDI_C10D_LIST_KEYS] = {"LIST_KEYS", ""},
    [CDI_C10D_BARRIER] = {"BARRIER", "ki"},
};

cddp_status cdi_c10d_sniff_ping(const uint8_t *bytes, size_t len, bool *own)
{
    const uint8_t *ping = bytes + CDI_C10D_HELLO_LEN;

    *own = false;
    if (len <= CDI_C10D_HELLO_LEN)
        return CDDP_IN_PROGRESS;
    if (*ping != CDI_C10D_PING)
        return CDDP_OK;
    if (len < CDI_C10D_HELLO_LEN + 5)
        return CDDP_IN_PROGRESS;
    *own = cdi_c10d_get_u32(ping + 1) >> 20 == 0xCDDu;
    return CDDP_OK;
}

const char *cdi_c10d_op_name(unsigned op)
{
    return op < CDI_C10D_N_OPS ? ops[op].name : "?";
}

cddp_status cdi_c10d_put_string(struct cdi_buf *b, const void *data, size_t len)
{
    if (cdi_buf_reserve(b, 8 + (len < SIZE_MAX - 8 ? len : SIZE_MAX - 8)) == NULL)
        return b->limit - b->len < len || b->limit - b->len - len < 8 ? CDDP_E_LIMIT : CDDP_E_NOMEM;
    (void)cdi_buf_put_u64(b, len);
    return cdi_buf_append(b, data, len);
}

/* Skips one string; its length is limited. */
static cddp_status skip_string(struct cdi_c10d_reader *r, const struct cdi_buf *in, bool key, const char *op,
                               struct cdi_error *err)
{
    size_t max = key ? CDI_C10D_KEY_MAX : CDI_C10D_VALUE_MAX;
    uint64_t len;

    if (in->len - r->pos < 8)
        return CDDP_IN_PROGRESS;
    len = cdi_c10d_get_u64(cdi_buf_data(in) + r->pos);
    if (len > max)
        return cdi_fail(err, CDDP_E_LIMIT, "a %s of %llu bytes in a %s request; the limit is %zu",
                        key ? "key" : "value", (unsigned long long)len, op, max);
    if (r->pos + 8 + len > CDI_C10D_REQUEST_MAX)
        return cdi_fail(err, CDDP_E_LIMIT, "a %s request of more than %u bytes", op, CDI_C10D_REQUEST_MAX);
    if (in->len - r->pos - 8 < len)
        return CDDP_IN_PROGRESS;
    r->pos += 8 + (size_t)len;
    return CDDP_OK;
}

/* Skips a list: its count, then its strings. */
static cddp_status skip_list(struct cdi_c10d_reader *r, const struct cdi_buf *in, bool pairs, const char *op,
                             struct cdi_error *err)
{
    if (r->list_at == 0) {
        if (in->len - r->pos < 8)
            return CDDP_IN_PROGRESS;
        r->count = cdi_c10d_get_u64(cdi_buf_data(in) + r->pos);
        if (r->count > CDI_C10D_LIST_MAX)
            return cdi_fail(err, CDDP_E_LIMIT, "a list of %llu keys in a %s request; the limit is %u",
                            (unsigned long long)r->count, op, CDI_C10D_LIST_MAX);
        r->pos += 8;
        r->list_at = r->pos;
        r->left = pairs ? 2 * r->count : r->count;
    }
    for (; r->left > 0; r->left--) {
        cddp_status st = skip_string(r, in, !pairs || r->left % 2 == 0, op, err);

        if (st != CDDP_OK)
            return st;
    }
    return CDDP_OK;
}

static cddp_status skip_number(struct cdi_c10d_reader *r, const struct cdi_buf *in, size_t width)
{
    const uint8_t *p = cdi_buf_data(in) + r->pos;

    if (in->len - r->pos < width)
        return CDDP_IN_PROGRESS;
    r->number = width == 4 ? (int64_t)cdi_c10d_get_u32(p) : (int64_t)cdi_c10d_get_u64(p);
    r->pos += width;
    return CDDP_OK;
}

static struct cdi_c10d_bytes string_at(const struct cdi_buf *in, size_t at)
{
    const uint8_t *p = cdi_buf_data(in) + at;

    if (at == 0)
        return (struct cdi_c10d_bytes){(const uint8_t *)"", 0};
    return (struct cdi_c10d_bytes){p + 8, (size_t)cdi_c10d_get_u64(p)};
}

cddp_status cdi_c10d_next(struct cdi_c10d_reader *r, const struct cdi_buf *in, struct cdi_c10d_request *req,
                          struct cdi_error *err)
{
    const char *args, *name;
    unsigned op;

    if (in->len == 0)
        return CDDP_IN_PROGRESS;
    op = cdi_buf_data(in)[0];
    if (op >= CDI_C10D_N_OPS)
        return cdi_fail(err, CDDP_E_PROTOCOL, "%u is not a store operation", op);
    name = ops[op].name;
    if (r->pos == 0)
        r->pos = 1;
    for (args = ops[op].args; args[r->arg] != '\0'; r->arg++) {
        char kind = args[r->arg];
        size_t at = r->pos;
        cddp_status st;

        if (kind == 'k' || kind == 'v')
            st = skip_string(r, in, kind == 'k', name, err);
        else if (kind == 'K' || kind == 'P')
            st = skip_list(r, in, kind == 'P', name, err);
        else
            st = skip_number(r, in, kind == 'u' ? 4 : 8);
        if (st != CDDP_OK)
            return st;
        r->at[r->arg] = at;
    }
    *req = (struct cdi_c10d_request){
        .op = (enum cdi_c10d_op)op,
        .size = r->pos,
        .key = string_at(in, args[0] == 'k' ? r->at[0] : 0),
        .value = string_at(in, args[0] == 'k' && args[1] == 'v' ? r->at[1] : 0),
        .desired = string_at(in, op == CDI_C10D_COMPARE_SET ? r->at[2] : 0),
        .count = r->count,
        .items = {cdi_buf_data(in) + r->list_at, r->list_at == 0 ? 0 : r->pos - r->list_at},
        .number = r->number,
    };
    *r = (struct cdi_c10d_reader){0};
    return CDDP_OK;
}

bool cdi_c10d_next_item(const struct cdi_c10d_request *req, size_t *at, struct cdi_c10d_bytes *item)
{
    if (*at >= req->items.len)
        return false;
    item->len = (size_t)cdi_c10d_get_u64(req->items.data + *at);
    item->data = req->items.data + *at + 8;
    *at += 8 + item->len;
    return true;
}
