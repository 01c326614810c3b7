/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/state/verify.h"

#include "common/cleanup.h"
#include "worker/base/dtype.h"
#include "worker/comm/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LIST_LIMIT ((size_t)1 << 30) /* bytes of one rank's list, before anything is allocated for it */
#define SHOWN_DIMS 8
#define SHOWN_TEXT (112 + 22 * SHOWN_DIMS)
#define NAME "%.200s"
#define TEXT "%.280s"

/* What each rank sends to all others, as u64 numbers. */
enum {
    F_N_PARAMS,
    F_HASH,
    F_LIST_BYTES,
    F_BUCKET_BYTES,
    F_FIRST_BUCKET_BYTES,
    F_LAST_BUCKET_BYTES,
    F_FLAGS,
    F_COMM_DTYPE,
    F_NAN_CHECK,
    F_CHECK_REPLICAS,
    F_ALL_OWN,
    F_PLACES,
    N_FIELDS
};

struct reader {
    const char *p;
    size_t len;
};

/* One entry of a list; points into the list: the name, the text, and the dimensions that the text leaves out. */
struct entry {
    const char *name;
    size_t len; /* of the whole entry */
    bool buffer;
    const char *text;
};

/* ------------------------------------------------------------------------------------------------- the lists ---- */

/* "float32 [3, 64]", "bfloat16 [64] with gradients of float32", "float32 [3, 64] tied to parameter 0" */
static void show(const cddp_param *p, size_t n_dims, size_t tied, size_t self, char text[SHOWN_TEXT])
{
    size_t at = (size_t)snprintf(text, SHOWN_TEXT, "%s [", cdi_dtype_name(p->dtype));

    for (size_t d = 0; d < n_dims && d < SHOWN_DIMS; d++)
        at += (size_t)snprintf(text + at, SHOWN_TEXT - at, "%s%zu", d == 0 ? "" : ", ",
                               p->shape == NULL ? p->count : p->shape[d]);
    at += (size_t)snprintf(text + at, SHOWN_TEXT - at, n_dims > SHOWN_DIMS ? ", ...]" : "]");
    if (p->grad_dtype != p->dtype && p->grad_dtype != CDDP_DTYPE_NONE)
        at += (size_t)snprintf(text + at, SHOWN_TEXT - at, " with gradients of %s", cdi_dtype_name(p->grad_dtype));
    if (tied != self)
        (void)snprintf(text + at, SHOWN_TEXT - at, " tied to parameter %zu", tied);
}

cddp_status cdi_verify_encode(struct cdi_buf *list, const cddp_param *params, const size_t *tied, size_t n,
                              bool buffers)
{
    cddp_status status = CDDP_OK;
    char text[SHOWN_TEXT];

    for (size_t i = 0; i < n && status == CDDP_OK; i++) {
        const cddp_param *p = &params[i];
        size_t n_dims = p->shape == NULL ? 1 : p->n_dims;

        show(p, n_dims, tied != NULL ? tied[i] : i, i, text);
        status = cdi_buf_append(list, p->name, strlen(p->name) + 1);
        if (status == CDDP_OK)
            status = cdi_buf_printf(list, "%c%s%c", buffers ? 'b' : 'p', text, '\0');
        for (size_t d = SHOWN_DIMS; d < n_dims && status == CDDP_OK; d++)
            status = cdi_buf_printf(list, "%zu ", p->shape[d]);
        if (status == CDDP_OK)
            status = cdi_buf_append(list, "", 1);
    }
    return status;
}

/* Reads the next text. Returns NULL at the end of the list, or if the list is malformed. */
static const char *next_text(struct reader *r)
{
    const char *text = r->p, *end = r->len > 0 ? memchr(text, '\0', r->len) : NULL;

    if (end == NULL)
        return NULL;
    r->len -= (size_t)(end + 1 - text);
    r->p = end + 1;
    return text;
}

static bool next_entry(struct reader *r, struct entry *e)
{
    *e = (struct entry){.name = next_text(r)};
    e->text = next_text(r);
    if (e->text == NULL || (*e->text != 'b' && *e->text != 'p') || next_text(r) == NULL)
        return false;
    e->buffer = *e->text++ == 'b';
    e->len = (size_t)(r->p - e->name);
    return true;
}

static const char *noun(const struct entry *e)
{
    return e->buffer ? "buffer" : "parameter";
}

static cddp_status verify_name_difference(size_t i, const struct entry *a, const char *who_a, const struct entry *b,
                                          const char *who_b, struct cdi_error *err)
{
    if (a->buffer != b->buffer)
        return cdi_fail(err, CDDP_E_MISMATCH, "'" NAME "' " TEXT " is a %s on %s, where %s has the %s '" NAME "' " TEXT,
                        a->name, a->text, noun(a), who_a, who_b, noun(b), b->name, b->text);
    if (strcmp(a->name, b->name) == 0)
        return cdi_fail(err, CDDP_E_MISMATCH, "%s %zu '" NAME "' is " TEXT " on %s but " TEXT " on %s", noun(a), i,
                        a->name, a->text, who_a, b->text, who_b);
    return cdi_fail(err, CDDP_E_MISMATCH, "%s %zu is '" NAME "' " TEXT " on %s but '" NAME "' " TEXT " on %s", noun(a),
                    i, a->name, a->text, who_a, b->name, b->text, who_b);
}

/*
 * Reports the surplus of the longer list; the lists are equal up to the end of the shorter one. `first` is the next
 * entry of rank_long's list.
 */
static cddp_status name_surplus(size_t i, const struct entry *first, struct reader rest, const char *who_long,
                                const char *who_short, struct cdi_error *err)
{
    struct entry e;
    size_t n_long = i + 1;

    while (next_entry(&rest, &e))
        n_long += e.buffer == first->buffer;
    return cdi_fail(err, CDDP_E_MISMATCH, "%s has %zu %ss but %s has %zu: %s %zu '" NAME "' " TEXT " is only on %s",
                    who_short, i, noun(first), who_long, n_long, noun(first), i, first->name, first->text, who_long);
}

cddp_status cdi_verify_compare(const struct cdi_buf *a, const char *who_a, const struct cdi_buf *b, const char *who_b,
                               struct cdi_error *err)
{
    struct reader ra = {(const char *)cdi_buf_data(a), a->len}, rb = {(const char *)cdi_buf_data(b), b->len};

    bool buffers = false;

    for (size_t i = 0;; i++) {
        struct entry ea, eb;
        bool has_a = next_entry(&ra, &ea), has_b = next_entry(&rb, &eb);

        if (!has_a && !has_b)
            return CDDP_OK;
        /* Buffers follow the parameters, and are counted separately. */
        if (!buffers && (!has_a || ea.buffer) && (!has_b || eb.buffer)) {
            buffers = true;
            i = 0;
        }
        if (!has_b)
            return name_surplus(i, &ea, ra, who_a, who_b, err);
        if (!has_a)
            return name_surplus(i, &eb, rb, who_b, who_a, err);
        if (ea.len != eb.len || memcmp(ea.name, eb.name, ea.len) != 0)
            return verify_name_difference(i, &ea, who_a, &eb, who_b, err);
    }
}

/* ------------------------------------------------------------------------------------------------- the ranks ---- */

/* FNV-1a: not against an adversary, and one comparison per job. */
static uint64_t hash(const uint8_t *p, size_t len)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < len; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* Fills `list` with rank `owner`'s list: on that rank its own, mine; on the others space for it. */
static cddp_status share_list(cddp_comm *comm, struct cdi_buf *list, const struct cdi_buf *mine, int owner,
                              size_t bytes, struct cdi_error *err)
{
    uint8_t *at;

    cdi_buf_init(list, LIST_LIMIT);
    at = cdi_buf_reserve(list, bytes == 0 ? 1 : bytes);
    if (at == NULL)
        return cdi_comm_give_up(comm, "create its reducer", err);
    if (owner == cdi_comm_world(comm)->rank)
        memcpy(at, cdi_buf_data(mine), bytes);
    cdi_buf_commit(list, bytes);
    return cdi_comm_broadcast(comm, at, bytes, CDDP_UINT8, owner, err);
}

/* Rank `other` differs from rank 0: both lists are sent to all, so that all find the same first difference. */
static cddp_status find_difference(cddp_comm *comm, const struct cdi_buf *mine, const uint64_t *records, int other,
                                   struct cdi_error *err)
{
    const struct cdi_who who = cdi_comm_who(comm, other);
    struct cdi_buf first = {0}, second = {0};
    cddp_status status = share_list(comm, &first, mine, 0, (size_t)records[F_LIST_BYTES], err);

    if (status == CDDP_OK)
        status = share_list(comm, &second, mine, other, (size_t)records[other * N_FIELDS + F_LIST_BYTES], err);
    if (status == CDDP_OK && cdi_verify_compare(&first, "rank 0", &second, who.text, err) == CDDP_OK)
        status = cdi_fail(err, CDDP_E_MISMATCH, "the parameters of rank 0 and %s have different hashes", who.text);
    else if (status == CDDP_OK)
        status = CDDP_E_MISMATCH;
    if (status == CDDP_E_MISMATCH && err != NULL)
        err->blamed = cdi_rank_of_job(cdi_comm_world(comm), other) + 1;
    cdi_buf_release(&first);
    cdi_buf_release(&second);
    return status;
}

static const char *type_text(uint64_t dtype)
{
    return dtype == CDDP_DTYPE_NONE ? "0" : cdi_dtype_name((cddp_dtype)dtype);
}

/* Compares the options that shape the buckets; the records alone suffice to name them. */
static cddp_status compare_options(const uint64_t *a, const uint64_t *b, const char *other, struct cdi_error *err)
{
    static const struct {
        int field;
        const char *name;
    } options[] = {{F_BUCKET_BYTES, "bucket_bytes"},
                   {F_FIRST_BUCKET_BYTES, "first_bucket_bytes"},
                   {F_LAST_BUCKET_BYTES, "last_bucket_bytes"},
                   {F_FLAGS, "flags"},
                   {F_COMM_DTYPE, "comm_dtype"}};

    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        int f = options[i].field;

        if (a[f] != b[f] && f == F_COMM_DTYPE)
            return cdi_fail(err, CDDP_E_MISMATCH,
                            "cddp_ddp_options.comm_dtype is %s on rank 0 but %s on %s: it must be the same on "
                            "every rank",
                            type_text(a[f]), type_text(b[f]), other);
        if (a[f] != b[f])
            return cdi_fail(err, CDDP_E_MISMATCH,
                            "cddp_ddp_options.%s is %" PRIu64 " on rank 0 but %" PRIu64
                            " on %s: it must be the same on every rank",
                            options[i].name, a[f], b[f], other);
    }
    return CDDP_OK;
}

/* Compares the variables of the environment by which the ranks check each other's numbers. */
static cddp_status compare_checks(const uint64_t *a, const uint64_t *b, const char *other, struct cdi_error *err)
{
    static const char *const modes[] = {"off", "warn", "error"};

    if (a[F_NAN_CHECK] != b[F_NAN_CHECK] && a[F_NAN_CHECK] < 3 && b[F_NAN_CHECK] < 3)
        return cdi_fail(err, CDDP_E_MISMATCH,
                        "CDDP_NAN_CHECK is %s on rank 0 but %s on %s: it must be the same on every rank",
                        modes[a[F_NAN_CHECK]], modes[b[F_NAN_CHECK]], other);
    if (a[F_CHECK_REPLICAS] != b[F_CHECK_REPLICAS])
        return cdi_fail(err, CDDP_E_MISMATCH,
                        "CDDP_CHECK_REPLICAS is %" PRIu64 " on rank 0 but %" PRIu64
                        " on %s: it must be the same on every rank",
                        a[F_CHECK_REPLICAS], b[F_CHECK_REPLICAS], other);
    return CDDP_OK;
}

static cddp_status compare_records(cddp_comm *comm, const struct cdi_buf *mine, const uint64_t *records,
                                   struct cdi_error *err)
{
    int size = cdi_comm_world(comm)->size;

    for (int r = 1; r < size; r++) {
        const struct cdi_who who = cdi_comm_who(comm, r);
        const uint64_t *record = records + (size_t)r * N_FIELDS;

        if (record[F_N_PARAMS] != records[F_N_PARAMS] || record[F_HASH] != records[F_HASH] ||
            record[F_LIST_BYTES] != records[F_LIST_BYTES])
            return find_difference(comm, mine, records, r, err);
        if (compare_options(records, record, who.text, err) != CDDP_OK ||
            compare_checks(records, record, who.text, err) != CDDP_OK) {
            if (err != NULL)
                err->blamed = cdi_rank_of_job(cdi_comm_world(comm), r) + 1;
            return CDDP_E_MISMATCH;
        }
    }
    return CDDP_OK;
}

cddp_status cdi_verify(cddp_comm *comm, const struct cdi_verify_input *in, const struct cdi_error *local,
                       struct cdi_error *err)
{
    const struct cdi_world *world = cdi_comm_world(comm);
    CDI_AUTOFREE void *cards = NULL;
    const uint64_t *records;
    uint64_t mine[N_FIELDS] = {0};
    struct cdi_error own;
    struct cdi_buf list;
    cddp_status status;

    cdi_buf_init(&list, LIST_LIMIT);
    status = local == NULL ? cdi_verify_encode(&list, in->params, in->tied, in->n_params, false) : CDDP_OK;
    if (local == NULL && status == CDDP_OK)
        status = cdi_verify_encode(&list, in->buffers, NULL, in->n_buffers, true);
    if (local == NULL && status != CDDP_OK) {
        (void)cdi_fail(&own, status, "no memory for the list of %zu parameters", in->n_params);
        local = &own;
    }
    if (local == NULL) {
        mine[F_N_PARAMS] = in->n_params;
        mine[F_HASH] = hash(cdi_buf_data(&list), list.len);
        mine[F_LIST_BYTES] = list.len;
        mine[F_BUCKET_BYTES] = in->bucket_bytes;
        mine[F_FIRST_BUCKET_BYTES] = in->first_bucket_bytes;
        mine[F_LAST_BUCKET_BYTES] = in->last_bucket_bytes;
        mine[F_FLAGS] = in->flags;
        mine[F_COMM_DTYPE] = in->comm_dtype;
        mine[F_NAN_CHECK] = in->nan_check;
        mine[F_CHECK_REPLICAS] = in->check_replicas;
        mine[F_ALL_OWN] = in->all_own;
        mine[F_PLACES] = in->places;
    }
    status = cdi_comm_agree(comm, "create its reducer", mine, sizeof mine, &cards, local, err);
    records = cards;
    if (status == CDDP_OK)
        status = compare_records(comm, &list, records, err);
    if (status == CDDP_OK && in->own_everywhere != NULL) {
        *in->own_everywhere = true;
        for (int r = 0; r < world->size; r++)
            *in->own_everywhere &= records[(size_t)r * N_FIELDS + F_ALL_OWN] != 0;
    }
    if (status == CDDP_OK && in->same_places != NULL) {
        *in->same_places = in->places != 0;
        for (int r = 0; r < world->size; r++)
            *in->same_places &= records[(size_t)r * N_FIELDS + F_PLACES] == in->places;
    }
    cdi_buf_release(&list);
    return status;
}
