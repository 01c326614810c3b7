/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/node_report.h"

#include "protocol/json_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char *const place_names[] = {
    [CDI_PLACE_OUTSIDE] = "outside",
    [CDI_PLACE_START] = "start",
    [CDI_PLACE_BEFORE] = "before",
    [CDI_PLACE_IN] = "in",
    [CDI_PLACE_AFTER] = "after",
    [CDI_PLACE_IN_REPLAY] = "in_replay",
    [CDI_PLACE_AFTER_REPLAY] = "after_replay",
    [CDI_PLACE_EXITED] = "exited",
};
#define N_PLACES (sizeof place_names / sizeof place_names[0])

/* One table of members for the encoder and the decoder. Members that are 0, -1 for a rank, a bucket or a GPU's load,
 * are left out. */
enum kind { I32, U32, I64, U64, TEXT };
static const struct member {
    const char *name;
    enum kind kind;
    size_t offset, size; /* size: of a TEXT's array */
    int64_t none;        /* the value of a member that is missing */
} members[] = {
#define NUMBER(name, kind, none)                                     \
    {                                                                \
#name, kind, offsetof(struct cdi_rank_report, name), 0, none \
    }
#define STRING(name)                                                                                        \
    {                                                                                                       \
#name, TEXT, offsetof(struct cdi_rank_report, name), sizeof(((struct cdi_rank_report *)0)->name), 0 \
    }
    NUMBER(rank, I32, -1),
    NUMBER(pid, I64, 0),
    NUMBER(dtype, U32, 0),
    NUMBER(seq, U64, 0),
    NUMBER(count, U64, 0),
    NUMBER(step, U64, 0),
    NUMBER(replay, U64, 0),
    NUMBER(bucket, I32, -1),
    NUMBER(peer, I32, -1),
    NUMBER(for_ms, I64, 0),
    STRING(part),
    STRING(names),
    STRING(doing),
    NUMBER(halted, U32, 0),
    NUMBER(cpu_permille, U32, 0),
    NUMBER(resident_bytes, U64, 0),
    NUMBER(gpu_permille, I32, -1),
    NUMBER(gpu_used_bytes, U64, 0),
    NUMBER(gpu_total_bytes, U64, 0),
    NUMBER(n_steps, U32, 0),
    NUMBER(step_us, U64, 0),
    NUMBER(comm_us, U64, 0),
    NUMBER(exposed_us, U64, 0),
    NUMBER(late_us, U64, 0),
    NUMBER(transfer_us, U64, 0),
    NUMBER(late_rank, I32, -1),
    NUMBER(late_count, U32, 0),
    NUMBER(step_age_ms, I64, 0),
    NUMBER(late, U32, 0),
#undef NUMBER
#undef STRING
};
#define N_MEMBERS (sizeof members / sizeof members[0])

const char *cdi_place_name(enum cdi_place place)
{
    return (size_t)place < N_PLACES ? place_names[place] : "?";
}

static int64_t get_number(const struct cdi_rank_report *r, const struct member *m)
{
    const char *at = (const char *)r + m->offset;
    int32_t i32;
    uint32_t u32;
    int64_t i64;

    switch (m->kind) {
    case I32:
        memcpy(&i32, at, sizeof i32);
        return i32;
    case U32:
        memcpy(&u32, at, sizeof u32);
        return u32;
    case I64:
    case U64:
    case TEXT:
        break;
    }
    memcpy(&i64, at, sizeof i64);
    return i64 < 0 && m->kind == U64 ? INT64_MAX : i64;
}

static void set_number(struct cdi_rank_report *r, const struct member *m, int64_t value)
{
    char *at = (char *)r + m->offset;
    int32_t i32 = (int32_t)value;
    uint32_t u32 = (uint32_t)value;

    if (m->kind == I32)
        memcpy(at, &i32, sizeof i32);
    else if (m->kind == U32)
        memcpy(at, &u32, sizeof u32);
    else
        memcpy(at, &value, sizeof value);
}

static int set_new(json_t *object, const char *name, json_t *value)
{
    return json_object_set_new(object, name, value); /* -1 for a NULL value, too */
}

static json_t *encode_rank(const struct cdi_rank_report *r)
{
    json_t *o = json_object();
    int rc = o == NULL ? -1 : 0;

    for (size_t i = 0; i < N_MEMBERS && rc == 0; i++) {
        const struct member *m = &members[i];
        const char *text = (const char *)r + m->offset;

        if (m->kind == TEXT && *text != '\0')
            rc = set_new(o, m->name, json_text(text));
        else if (m->kind != TEXT && (get_number(r, m) != m->none || i == 0))
            rc = set_new(o, m->name, json_integer(get_number(r, m)));
    }
    if (rc == 0)
        rc = set_new(o, "place", json_string(cdi_place_name(r->place)));
    if (rc == 0 && r->op != CDI_FLIGHT_NONE)
        rc = set_new(o, "op", json_string(cdi_flight_op_name(r->op)));
    if (rc == 0 && r->op != CDI_FLIGHT_NONE)
        rc = set_new(o, "op_number", json_integer(r->op));
    if (rc == 0 && r->stack != NULL)
        rc = set_new(o, "stack", json_text(r->stack));
    if (rc == 0)
        return o;
    json_decref(o);
    return NULL;
}

json_t *cdi_node_report_encode(const struct cdi_node_report *r)
{
    json_t *ranks = json_array(), *o;
    int rc = ranks == NULL ? -1 : 0;

    for (size_t i = 0; i < r->n_ranks && rc == 0; i++)
        rc = json_array_append_new(ranks, encode_rank(&r->ranks[i]));
    if (rc != 0) {
        json_decref(ranks);
        return NULL;
    }
    o = json_pack("{s:I, s:I, s:i, s:o?}", "round", (json_int_t)r->round, "asked", (json_int_t)r->asked, "node_rank",
                  (int)r->node_rank, "host", json_text(r->host));
    if (o == NULL || json_object_set_new(o, "ranks", ranks) != 0) {
        json_decref(o);
        return NULL;
    }
    return o;
}

/* Sets *value to an integer member, or to `none` if it is missing. Returns false for another type or range. */
static bool take_number(json_t *object, const char *name, int64_t none, int64_t min, int64_t max, int64_t *value)
{
    json_t *v = json_object_get(object, name);

    *value = v == NULL ? none : (int64_t)json_integer_value(v);
    return v == NULL || (json_is_integer(v) && *value >= min && *value <= max);
}

static bool take_member(struct cdi_rank_report *r, json_t *o, const struct member *m)
{
    int64_t min = m->kind == I32 ? -1 : 0, max = m->kind == I32 ? INT32_MAX : m->kind == U32 ? UINT32_MAX : INT64_MAX;
    json_t *text = json_object_get(o, m->name);
    int64_t value;

    if (m->kind == TEXT) {
        const char *s = json_line(text);

        json_cut((char *)r + m->offset, m->size, s);
        return text == NULL || s != NULL;
    }
    if (!take_number(o, m->name, m->none, min, max, &value))
        return false;
    set_number(r, m, value);
    return true;
}

static bool take_place(struct cdi_rank_report *r, json_t *o)
{
    const char *name = json_line(json_object_get(o, "place"));

    for (size_t i = 0; name != NULL && i < N_PLACES; i++)
        if (strcmp(name, place_names[i]) == 0) {
            r->place = (enum cdi_place)i;
            return true;
        }
    return false;
}

static bool decode_rank(json_t *o, struct cdi_rank_report *r)
{
    int64_t op;

    *r = (struct cdi_rank_report){.rank = -1};
    for (size_t i = 0; i < N_MEMBERS; i++)
        if (!take_member(r, o, &members[i]))
            return false;
    if (!take_number(o, "op_number", 0, 0, UINT32_MAX, &op))
        return false;
    r->op = (uint32_t)op;
    r->stack = json_lines(json_object_get(o, "stack"));
    return r->rank >= 0 && take_place(r, o);
}

cddp_status cdi_node_report_decode(json_t *root, struct cdi_node_report *out, struct cdi_error *err)
{
    json_t *ranks = json_object_get(root, "ranks");
    struct cdi_node_report r = {.n_ranks = json_array_size(ranks)};
    int64_t round, asked, node_rank;

    if (!json_is_array(ranks) || !take_number(root, "round", 0, 0, UINT32_MAX, &round) ||
        !take_number(root, "asked", 0, 0, UINT32_MAX, &asked) ||
        !take_number(root, "node_rank", -1, -1, INT32_MAX, &node_rank))
        return cdi_fail(err, CDDP_E_PROTOCOL, "a report of a node has a wrong form");
    if (r.n_ranks > CDI_REPORT_RANKS_MAX)
        return cdi_fail(err, CDDP_E_LIMIT, "a report of a node has %zu ranks; %d are allowed", r.n_ranks,
                        CDI_REPORT_RANKS_MAX);
    r.round = (uint32_t)round;
    r.asked = (uint32_t)asked;
    r.node_rank = (int32_t)node_rank;
    json_cut(r.host, sizeof r.host, json_line(json_object_get(root, "host")));
    r.ranks = calloc(r.n_ranks + 1, sizeof *r.ranks);
    if (r.ranks == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a report of a node");
    for (size_t i = 0; i < r.n_ranks; i++)
        if (!decode_rank(json_array_get(ranks, i), &r.ranks[i])) {
            free(r.ranks);
            return cdi_fail(err, CDDP_E_PROTOCOL, "a report of a node: rank number %zu has a wrong form", i);
        }
    r.holds = json_incref(root);
    *out = r;
    return CDDP_OK;
}

void cdi_node_report_release(struct cdi_node_report *r)
{
    free(r->ranks);
    json_decref(r->holds);
    *r = (struct cdi_node_report){0};
}
