/* SPDX-License-Identifier: Apache-2.0 */
/* One table defines the fields of every message; the encoder, the decoder and its checks use it. */
#include "protocol/message.h"

#include "common/utf8.h"
#include "protocol/frame.h"
#include "protocol/json_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

enum kind { I32, U32, I64, BOOL, TEXT, LINES, ENUM, FAILURE };

struct field {
    const char *name;
    enum kind kind;
    size_t offset, size; /* in the struct; size: of a text's array */
    int64_t min, max;    /* of a number */
};

#define AT(type, member) offsetof(type, member), sizeof(((type *)0)->member)
#define MSG(member) AT(struct cdi_msg, u.member)
#define FAIL(member) AT(struct cdi_failure, member)
#define PORT_MAX 65535

static const struct field failure_fields[] = {
    {"kind", ENUM, FAIL(kind), CDI_END_NONE, CDI_END_HANG},
    {"code", I32, FAIL(code), INT32_MIN, INT32_MAX},
    {"rank", I32, FAIL(rank), -1, INT32_MAX},
    {"local_rank", I32, FAIL(local_rank), -1, INT32_MAX},
    {"node_rank", I32, FAIL(node_rank), -1, INT32_MAX},
    {"pid", I64, FAIL(pid), 0, INT64_MAX},
    {"time_ms", I64, FAIL(time_ms), 0, INT64_MAX / 4},
    {"core_dumped", U32, FAIL(core_dumped), 0, 1},
    {"misses", U32, FAIL(misses), 0, INT32_MAX},
    {"error", I32, FAIL(error), INT32_MIN, 0},
    {"blames", U32, FAIL(blames), 0, INT32_MAX},
    {"age_ms", I64, FAIL(age_ms), 0, CDI_JOIN_TIME_MAX_MS},
    {"final", U32, FAIL(final), 0, 1},
    {"host", TEXT, FAIL(host), 0, 0},
    {"text", LINES, FAIL(text), 0, 0},
    {NULL, I32, 0, 0, 0, 0},
};

static const struct field join_fields[] = {
    {"version", U32, MSG(join.version), 0, UINT32_MAX},
    {"release", TEXT, MSG(join.release), 0, 0},
    {"run_id", TEXT, MSG(join.run_id), 0, 0},
    {"host", TEXT, MSG(join.host), 0, 0},
    {"pid", I64, MSG(join.pid), 0, INT64_MAX},
    {"node_rank", I32, MSG(join.node_rank), -1, INT32_MAX},
    {"n_procs", U32, MSG(join.n_procs), 1, INT32_MAX},
    {"min_nodes", U32, MSG(join.min_nodes), 1, INT32_MAX},
    {"max_nodes", U32, MSG(join.max_nodes), 1, INT32_MAX},
    {"spares", U32, MSG(join.spares), 0, INT32_MAX},
    {"max_restarts", U32, MSG(join.max_restarts), 0, UINT32_MAX},
    {"topology", TEXT, MSG(join.topology), 0, 0},
    {"join_timeout_ms", I64, MSG(join.join_timeout_ms), -1, CDI_JOIN_TIME_MAX_MS},
    {"last_call_ms", I64, MSG(join.last_call_ms), -1, CDI_JOIN_TIME_MAX_MS},
    {"close_timeout_ms", I64, MSG(join.close_timeout_ms), -1, CDI_JOIN_TIME_MAX_MS},
    {"lease_ms", I64, MSG(join.lease_ms), -1, CDI_JOIN_TIME_MAX_MS},
    {"session", TEXT, MSG(join.session), 0, 0},
    {"round", I64, MSG(join.round), -1, UINT32_MAX},
    {"nonce", TEXT, MSG(join.nonce), 0, 0},
    {"restart_count", U32, MSG(join.restart_count), 0, UINT32_MAX},
    {"hang_warning_ms", I64, MSG(join.hang_warning_ms), 0, CDI_JOIN_TIME_MAX_MS},
    {"hang_timeout_ms", I64, MSG(join.hang_timeout_ms), 0, CDI_JOIN_TIME_MAX_MS},
    {"on_hang", ENUM, MSG(join.on_hang), CDI_ON_HANG_NONE, CDI_ON_HANG_STOP},
    {"sent_ms", I64, MSG(join.sent_ms), 0, INT64_MAX / 4},
    {NULL, I32, 0, 0, 0, 0},
};
static const struct field failed_fields[] = {
    {"round", U32, MSG(failed.round), 0, UINT32_MAX},
    {"failure", FAILURE, MSG(failed.failure), 0, 0},
    {NULL, I32, 0, 0, 0, 0},
};
static const struct field done_fields[] = {
    {"round", U32, MSG(done.round), 0, UINT32_MAX},
    {NULL, I32, 0, 0, 0, 0},
};
static const struct field stopped_fields[] = {
    {"round", U32, MSG(stopped.round), 0, UINT32_MAX},
    {NULL, I32, 0, 0, 0, 0},
};
static const struct field leave_fields[] = {
    {"reason", TEXT, MSG(leave.reason), 0, 0},
    {"final", BOOL, MSG(leave.final), 0, 1},
    {NULL, I32, 0, 0, 0, 0},
};
static const struct field heartbeat_fields[] = {
    {"seq", U32, MSG(heartbeat.seq), 0, UINT32_MAX},
    {NULL, I32, 0, 0, 0, 0},
};
static const struct field welcome_fields[] = {
    {"version", U32, MSG(welcome.version), 0, UINT32_MAX},
    {"release", TEXT, MSG(welcome.release), 0, 0},
    {"session", TEXT, MSG(welcome.session), 0, 0},
    {"lease_ms", U32, MSG(welcome.lease_ms), 1, UINT32_MAX},
    {"resumed", BOOL, MSG(welcome.resumed), 0, 1},
    {"hosted", BOOL, MSG(welcome.hosted), 0, 1},
    {NULL, I32, 0, 0, 0, 0},
};
static const struct field waiting_fields[] = {
    {"have", U32, MSG(waiting.have), 0, UINT32_MAX},
    {"need", U32, MSG(waiting.need), 0, UINT32_MAX},
    {"text", TEXT, MSG(waiting.text), 0, 0},
    {NULL, I32, 0, 0, 0, 0},
};
static const struct field assign_fields[] = {
    {"round", U32, MSG(assign.round), 0, UINT32_MAX},
    {"node_rank", I32, MSG(assign.node_rank), 0, INT32_MAX},
    {"n_nodes", U32, MSG(assign.n_nodes), 1, INT32_MAX},
    {"rank_base", U32, MSG(assign.rank_base), 0, INT32_MAX},
    {"world_size", U32, MSG(assign.world_size), 1, INT32_MAX},
    {"restart_count", U32, MSG(assign.restart_count), 0, UINT32_MAX},
    {"master_addr", TEXT, MSG(assign.master_addr), 0, 0},
    {"master_port", U32, MSG(assign.master_port), 0, PORT_MAX},
    {NULL, I32, 0, 0, 0, 0},
};
static const struct field round_over_fields[] = {
    {"round", U32, MSG(round_over.round), 0, UINT32_MAX}, {"restart", BOOL, MSG(round_over.restart), 0, 1},
    {"counts", BOOL, MSG(round_over.counts), 0, 1},       {"text", TEXT, MSG(round_over.text), 0, 0},
    {"failure", FAILURE, MSG(round_over.failure), 0, 0},  {NULL, I32, 0, 0, 0, 0},
};
static const struct field closed_fields[] = {
    {"status", ENUM, MSG(closed.status), CDI_CLOSE_DONE, CDI_CLOSE_LEFT},
    {"text", TEXT, MSG(closed.text), 0, 0},
    {"failure", FAILURE, MSG(closed.failure), 0, 0},
    {"retry", BOOL, MSG(closed.retry), 0, 1},
    {"gone", BOOL, MSG(closed.gone), 0, 1},
    {NULL, I32, 0, 0, 0, 0},
};

/* Members that were added within version 1: an older peer does not send them, which means 0, false or "". */
static const struct added {
    enum cdi_msg_type type;
    const char *name;
} added_members[] = {
    {CDI_MSG_JOIN, "nonce"},           {CDI_MSG_JOIN, "restart_count"}, {CDI_MSG_WELCOME, "hosted"},
    {CDI_MSG_CLOSED, "retry"},         {CDI_MSG_CLOSED, "gone"},        {CDI_MSG_FAILED, "misses"},
    {CDI_MSG_ROUND_OVER, "misses"},    {CDI_MSG_CLOSED, "misses"},      {CDI_MSG_JOIN, "hang_warning_ms"},
    {CDI_MSG_JOIN, "hang_timeout_ms"}, {CDI_MSG_JOIN, "on_hang"},       {CDI_MSG_JOIN, "sent_ms"},
    {CDI_MSG_FAILED, "error"},         {CDI_MSG_ROUND_OVER, "error"},   {CDI_MSG_CLOSED, "error"},
    {CDI_MSG_FAILED, "blames"},        {CDI_MSG_ROUND_OVER, "blames"},  {CDI_MSG_CLOSED, "blames"},
    {CDI_MSG_FAILED, "age_ms"},        {CDI_MSG_ROUND_OVER, "age_ms"},  {CDI_MSG_CLOSED, "age_ms"},
    {CDI_MSG_FAILED, "final"},         {CDI_MSG_ROUND_OVER, "final"},   {CDI_MSG_CLOSED, "final"},
};

static const struct message {
    enum cdi_msg_type type;
    const char *name;
    const struct field *fields;
} messages[] = {
    {CDI_MSG_JOIN, "JOIN", join_fields},          {CDI_MSG_FAILED, "FAILED", failed_fields},
    {CDI_MSG_DONE, "DONE", done_fields},          {CDI_MSG_STOPPED, "STOPPED", stopped_fields},
    {CDI_MSG_LEAVE, "LEAVE", leave_fields},       {CDI_MSG_HEARTBEAT, "HEARTBEAT", heartbeat_fields},
    {CDI_MSG_WELCOME, "WELCOME", welcome_fields}, {CDI_MSG_WAITING, "WAITING", waiting_fields},
    {CDI_MSG_ASSIGN, "ASSIGN", assign_fields},    {CDI_MSG_ROUND_OVER, "ROUND_OVER", round_over_fields},
    {CDI_MSG_CLOSED, "CLOSED", closed_fields},
};

/* All enums here are as wide as an int; the table's ENUM reads and writes them as such. */
_Static_assert(sizeof(enum cdi_end_kind) == sizeof(uint32_t), "an enum is 32 bits wide");
_Static_assert(sizeof(enum cdi_on_hang) == sizeof(uint32_t), "an enum is 32 bits wide");
_Static_assert(sizeof(enum cdi_close_status) == sizeof(uint32_t), "an enum is 32 bits wide");

static const struct message *message_of(unsigned type)
{
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++)
        if ((unsigned)messages[i].type == type)
            return &messages[i];
    return NULL;
}

const char *cdi_msg_name(enum cdi_msg_type type)
{
    const struct message *m = message_of((unsigned)type);

    return m == NULL ? "?" : m->name;
}

/* ---------------------------------------------------------------------------------------------------- encode ---- */

/* Replaces each byte of invalid UTF-8 by one '?', so that the text still fits into the receiver's array. */
static json_t *text_to_json(const char *text, size_t cap)
{
    char clean[1024];
    size_t len = strnlen(text, cap < sizeof clean ? cap : sizeof clean);

    cdi_utf8_clean(clean, text, len);
    /* Without its NUL the text would be one byte too long for the receiver. */
    return json_stringn(clean, len == cap ? len - 1 : len);
}

static json_t *fields_to_json(const struct field *f, const char *base)
{
    json_t *object = json_object();

    for (; object != NULL && f->name != NULL; f++) {
        const char *at = base + f->offset;
        json_t *value = NULL;
        int32_t i32;
        uint32_t u32;
        int64_t i64;

        switch (f->kind) {
        case I32:
            memcpy(&i32, at, sizeof i32);
            value = json_integer(i32);
            break;
        case U32:
        case ENUM:
            memcpy(&u32, at, sizeof u32);
            value = json_integer(u32);
            break;
        case I64:
            memcpy(&i64, at, sizeof i64);
            value = json_integer(i64);
            break;
        case BOOL:
            value = json_boolean(*(const bool *)at);
            break;
        case TEXT:
        case LINES:
            value = text_to_json(at, f->size);
            break;
        case FAILURE:
            value = fields_to_json(failure_fields, at);
            break;
        }
        if (json_object_set_new(object, f->name, value) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

static int append_chunk(const char *bytes, size_t len, void *buf)
{
    return cdi_buf_append(buf, bytes, len) == CDDP_OK ? 0 : -1;
}

cddp_status cdi_msg_encode(const struct cdi_msg *msg, struct cdi_buf *out, struct cdi_error *err)
{
    const struct message *m = message_of((unsigned)msg->type);
    struct cdi_buf payload;
    json_t *json;
    cddp_status st;

    if (m == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "unknown type %u of a control message", (unsigned)msg->type);
    cdi_buf_init(&payload, CDI_FRAME_MAX);
    json = fields_to_json(m->fields, (const char *)msg);
    if (json == NULL || json_dump_callback(json, append_chunk, &payload, JSON_COMPACT) != 0)
        st = CDDP_E_NOMEM;
    else
        st = cdi_frame_put(out, (uint16_t)msg->type, cdi_buf_data(&payload), payload.len);
    json_decref(json);
    cdi_buf_release(&payload);
    return st == CDDP_OK ? st : cdi_fail(err, st, "cannot encode a %s message", m->name);
}

/* ---------------------------------------------------------------------------------------------------- decode ---- */

static cddp_status number_from_json(const struct message *m, const struct field *f, const json_t *value, char *at,
                                    struct cdi_error *err)
{
    json_int_t n;
    int32_t i32;
    uint32_t u32;

    if (!json_is_integer(value))
        return cdi_fail(err, CDDP_E_PROTOCOL, "%s: '%s' is not an integer", m->name, f->name);
    n = json_integer_value(value);
    if (n < f->min || n > f->max)
        return cdi_fail(err, CDDP_E_PROTOCOL, "%s: '%s' is %" PRId64 ", not in %" PRId64 " to %" PRId64, m->name,
                        f->name, (int64_t)n, f->min, f->max);
    if (f->kind == I64) {
        memcpy(at, &(int64_t){n}, sizeof(int64_t));
    } else if (f->kind == I32) {
        i32 = (int32_t)n;
        memcpy(at, &i32, sizeof i32);
    } else {
        u32 = (uint32_t)n;
        memcpy(at, &u32, sizeof u32);
    }
    return CDDP_OK;
}

/* A text that is too long only when it is visible is cut. */
static cddp_status text_from_json(const struct message *m, const struct field *f, json_t *value, char *at,
                                  struct cdi_error *err)
{
    size_t len = json_text_bytes(value);

    if (!json_is_string(value))
        return cdi_fail(err, CDDP_E_PROTOCOL, "%s: '%s' is not a string", m->name, f->name);
    if (len >= f->size)
        return cdi_fail(err, CDDP_E_PROTOCOL, "%s: '%s' has %zu bytes; the limit is %zu", m->name, f->name, len,
                        f->size - 1);
    json_cut(at, f->size, f->kind == LINES ? json_lines(value) : json_line(value));
    return CDDP_OK;
}

static bool may_be_missing(const struct message *m, const struct field *f)
{
    for (size_t i = 0; i < sizeof added_members / sizeof added_members[0]; i++)
        if (added_members[i].type == m->type && strcmp(added_members[i].name, f->name) == 0)
            return true;
    return false;
}

static cddp_status fields_from_json(const struct message *m, const struct field *f, const json_t *object, char *base,
                                    struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (; st == CDDP_OK && f->name != NULL; f++) {
        json_t *value = json_object_get(object, f->name);
        char *at = base + f->offset;

        if (value == NULL && may_be_missing(m, f))
            continue;
        if (value == NULL)
            return cdi_fail(err, CDDP_E_PROTOCOL, "%s: '%s' is missing", m->name, f->name);
        switch (f->kind) {
        case I32:
        case U32:
        case I64:
        case ENUM:
            st = number_from_json(m, f, value, at, err);
            break;
        case TEXT:
        case LINES:
            st = text_from_json(m, f, value, at, err);
            break;
        case BOOL:
            if (!json_is_boolean(value))
                return cdi_fail(err, CDDP_E_PROTOCOL, "%s: '%s' is neither true nor false", m->name, f->name);
            *(bool *)at = json_is_true(value);
            break;
        case FAILURE:
            if (!json_is_object(value))
                return cdi_fail(err, CDDP_E_PROTOCOL, "%s: '%s' is not an object", m->name, f->name);
            st = fields_from_json(m, failure_fields, value, at, err);
            break;
        }
    }
    return st;
}

cddp_status cdi_msg_decode(uint16_t type, const void *payload, size_t len, struct cdi_msg *msg, struct cdi_error *err)
{
    const struct message *m = message_of(type);
    struct cdi_msg decoded;
    json_error_t why;
    json_t *json;
    cddp_status st;

    if (m == NULL)
        return cdi_fail(err, CDDP_E_PROTOCOL, "unknown type %u of a control message", type);
    json = json_loadb(payload, len, JSON_REJECT_DUPLICATES, &why);
    if (json == NULL)
        return cdi_fail(err, CDDP_E_PROTOCOL, "%s: not JSON: %s at byte %d", m->name, why.text, why.position);
    memset(&decoded, 0, sizeof decoded);
    decoded.type = m->type;
    if (!json_is_object(json))
        st = cdi_fail(err, CDDP_E_PROTOCOL, "%s: not a JSON object", m->name);
    else
        st = fields_from_json(m, m->fields, json, (char *)&decoded, err);
    json_decref(json);
    if (st == CDDP_OK)
        *msg = decoded;
    return st;
}
