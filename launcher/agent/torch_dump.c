/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/torch_dump.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STACK_MAX (1u << 18)
#define MEMO_MAX (1u << 18)
#define TEXT_MAX 40

enum item_kind { ITEM_OTHER, ITEM_INT, ITEM_BOOL, ITEM_TEXT, ITEM_LIST, ITEM_TUPLE, ITEM_DICT, ITEM_MARK };

/* A value on the pickle's stack. Lists are kept as a short text, dicts not at all: entries are taken when one ends. */
struct item {
    enum item_kind kind;
    int64_t number;       /* of INT and BOOL; of TEXT the length */
    const uint8_t *bytes; /* of TEXT: in the input */
    char text[TEXT_MAX];  /* of LIST and TUPLE: "[4, 5"; without its end */
};

struct items {
    struct item *v;
    size_t n, cap;
};

struct reader {
    const uint8_t *at, *end;
    struct items stack, memo;
    struct torch_dump *out;
    cddp_status status;
};

/* ---------------------------------------------------------------------------------------------------- values ---- */

static bool fail(struct reader *r, cddp_status status)
{
    if (r->status == CDDP_OK)
        r->status = status;
    return false;
}

static bool grow(struct reader *r, struct items *items, size_t n, size_t max)
{
    size_t cap = items->cap == 0 ? 64 : 2 * items->cap;
    struct item *v;

    if (n <= items->cap)
        return true;
    if (n > max)
        return fail(r, CDDP_E_LIMIT);
    while (cap < n)
        cap *= 2;
    v = realloc(items->v, cap * sizeof *v);
    if (v == NULL)
        return fail(r, CDDP_E_NOMEM);
    memset(v + items->cap, 0, (cap - items->cap) * sizeof *v);
    items->v = v;
    items->cap = cap;
    return true;
}

static bool push(struct reader *r, enum item_kind kind, int64_t number, const uint8_t *bytes)
{
    if (!grow(r, &r->stack, r->stack.n + 1, STACK_MAX))
        return false;
    r->stack.v[r->stack.n++] = (struct item){.kind = kind, .number = number, .bytes = bytes};
    return true;
}

/* The place after the last mark; SIZE_MAX: there is none. */
static size_t after_mark(const struct reader *r)
{
    for (size_t i = r->stack.n; i > 0; i--)
        if (r->stack.v[i - 1].kind == ITEM_MARK)
            return i;
    return SIZE_MAX;
}

static bool take(struct reader *r, size_t n, const uint8_t **bytes)
{
    if ((size_t)(r->end - r->at) < n)
        return fail(r, CDDP_E_PROTOCOL);
    *bytes = r->at;
    r->at += n;
    return true;
}

/* Reads a little-endian number of 1 to 8 bytes. */
static bool take_number(struct reader *r, size_t n, uint64_t *value)
{
    const uint8_t *bytes = r->at;

    if (!take(r, n, &bytes))
        return false;
    *value = 0;
    for (size_t i = 0; i < n; i++)
        *value |= (uint64_t)bytes[i] << (8 * i);
    return true;
}

/* Appends as much of a text as has room. */
static void add_part(char out[TEXT_MAX], const char *part)
{
    size_t used = strlen(out), n = strlen(part);

    if (n > TEXT_MAX - 1 - used)
        n = TEXT_MAX - 1 - used;
    memcpy(out + used, part, n);
    out[used + n] = '\0';
}

/* Appends a number, or a list, to a list's text. */
static void add_text(struct item *list, const struct item *value)
{
    char part[TEXT_MAX] = "";

    if (value->kind == ITEM_INT)
        (void)snprintf(part, sizeof part, "%" PRId64, value->number);
    else if (value->kind == ITEM_LIST || value->kind == ITEM_TUPLE)
        memcpy(part, value->text, sizeof part);
    else
        return;
    if (list->text[0] != '\0' && list->text[1] != '\0')
        add_part(list->text, ", ");
    add_part(list->text, part);
    if (value->kind != ITEM_INT)
        add_part(list->text, "]");
}

/* ---------------------------------------------------------------------------------------------------- entries ---- */

static bool is_text(const struct item *i, const char *text)
{
    return i->kind == ITEM_TEXT && (size_t)i->number == strlen(text) && memcmp(i->bytes, text, strlen(text)) == 0;
}

static void copy_text(const struct item *i, char *out, size_t cap)
{
    size_t n = i->kind == ITEM_TEXT ? (size_t)i->number : 0;

    if (n > cap - 1)
        n = cap - 1;
    for (size_t k = 0; k < n; k++)
        out[k] = i->bytes[k] >= 0x20 && i->bytes[k] < 0x7F ? (char)i->bytes[k] : '?';
    out[n] = '\0';
}

/* What the pairs of a dict say of an entry; bit by bit which of the necessary keys it has. */
struct found {
    struct torch_entry entry;
    int64_t collective, message;
    unsigned has;
};
enum { HAS_RECORD = 1, HAS_NAME = 2, HAS_STATE = 4, HAS_SEQ = 8, HAS_ALL = 15 };

static void note_pair(struct found *f, const struct item *key, const struct item *value)
{
    if (is_text(key, "record_id") && value->kind == ITEM_INT) {
        f->entry.record = value->number;
        f->has |= HAS_RECORD;
    } else if (is_text(key, "profiling_name") && value->kind == ITEM_TEXT) {
        copy_text(value, f->entry.name, sizeof f->entry.name);
        f->has |= HAS_NAME;
    } else if (is_text(key, "state") && value->kind == ITEM_TEXT) {
        copy_text(value, f->entry.state, sizeof f->entry.state);
        f->has |= HAS_STATE;
    } else if (is_text(key, "collective_seq_id") && value->kind == ITEM_INT) {
        f->collective = value->number;
        f->has |= HAS_SEQ;
    } else if (is_text(key, "p2p_seq_id") && value->kind == ITEM_INT) {
        f->message = value->number;
    } else if (is_text(key, "is_p2p") && value->kind == ITEM_BOOL) {
        f->entry.p2p = value->number != 0;
    } else if (is_text(key, "retired") && value->kind == ITEM_BOOL) {
        f->entry.done |= value->number != 0;
    } else if (is_text(key, "input_sizes") && value->kind == ITEM_LIST) {
        (void)snprintf(f->entry.sizes, sizeof f->entry.sizes, "%s]", value->text);
    } else if (is_text(key, "process_group") && value->kind == ITEM_TUPLE && value->bytes != NULL) {
        const struct item last = {.kind = ITEM_TEXT, .number = value->number, .bytes = value->bytes};

        copy_text(&last, f->entry.group, sizeof f->entry.group);
    }
}

/* Takes an entry if the dict is one. */
static void note_dict(struct reader *r, const struct item *pairs, size_t n)
{
    struct torch_dump *d = r->out;
    struct found f = {.has = 0};

    for (size_t i = 0; i + 1 < n; i += 2)
        note_pair(&f, &pairs[i], &pairs[i + 1]);
    if (f.has != HAS_ALL)
        return;
    f.entry.seq = f.entry.p2p ? f.message : f.collective;
    f.entry.done |= strcmp(f.entry.state, "completed") == 0;
    d->n++;
    if (f.entry.done && (!d->has_last || f.entry.record > d->last.record)) {
        d->has_last = true;
        d->last = f.entry;
    } else if (!f.entry.done && (!d->has_open || f.entry.record < d->open.record)) {
        d->has_open = true;
        d->open = f.entry;
    }
}

/* ---------------------------------------------------------------------------------------------------- opcodes ---- */

static bool put_text(struct reader *r, size_t len_bytes)
{
    const uint8_t *bytes;
    uint64_t n;

    return take_number(r, len_bytes, &n) &&
           (n <= (uint64_t)(r->end - r->at) ? take(r, (size_t)n, &bytes) : fail(r, CDDP_E_PROTOCOL)) &&
           push(r, ITEM_TEXT, (int64_t)n, bytes);
}

static bool put_int(struct reader *r, size_t n)
{
    uint64_t value;

    if (!take_number(r, n, &value))
        return false;
    return push(r, ITEM_INT, n == 4 ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value, NULL);
}

/* LONG1: a number of at most 255 bytes, of which times need 8. A longer one is not needed here. */
static bool put_long(struct reader *r)
{
    uint64_t n, value = 0;
    const uint8_t *bytes;

    if (!take_number(r, 1, &n) || !take(r, (size_t)n, &bytes))
        return false;
    if (n > 8)
        return push(r, ITEM_OTHER, 0, NULL);
    for (size_t i = 0; i < n; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    if (n > 0 && n < 8 && (bytes[n - 1] & 0x80) != 0)
        value |= UINT64_MAX << (8 * n);
    return push(r, ITEM_INT, (int64_t)value, NULL);
}

static bool memo_put(struct reader *r, size_t len_bytes)
{
    uint64_t i;

    if (!take_number(r, len_bytes, &i) || r->stack.n == 0)
        return fail(r, CDDP_E_PROTOCOL);
    if (i >= MEMO_MAX)
        return fail(r, CDDP_E_LIMIT);
    if (!grow(r, &r->memo, (size_t)i + 1, MEMO_MAX))
        return false;
    if (i >= r->memo.n)
        r->memo.n = (size_t)i + 1;
    r->memo.v[i] = r->stack.v[r->stack.n - 1];
    return r->memo.v[i].kind != ITEM_MARK || fail(r, CDDP_E_PROTOCOL);
}

static bool memo_get(struct reader *r, size_t len_bytes)
{
    uint64_t i;

    if (!take_number(r, len_bytes, &i) || i >= r->memo.n)
        return fail(r, CDDP_E_PROTOCOL);
    if (!grow(r, &r->stack, r->stack.n + 1, STACK_MAX))
        return false;
    r->stack.v[r->stack.n++] = r->memo.v[i];
    return true;
}

/* Ends n values at the top as a tuple, which keeps its texts' last one, and its numbers. */
static bool end_tuple(struct reader *r, size_t from)
{
    struct item tuple = {.kind = ITEM_TUPLE, .text = "["};

    if (from > r->stack.n)
        return fail(r, CDDP_E_PROTOCOL);
    for (size_t i = from; i < r->stack.n; i++) {
        const struct item *v = &r->stack.v[i];

        if (v->kind == ITEM_MARK)
            return fail(r, CDDP_E_PROTOCOL);
        if (v->kind == ITEM_TEXT) {
            tuple.bytes = v->bytes;
            tuple.number = v->number;
        } else {
            add_text(&tuple, v);
        }
    }
    r->stack.n = from;
    if (!grow(r, &r->stack, r->stack.n + 1, STACK_MAX))
        return false;
    r->stack.v[r->stack.n++] = tuple;
    return true;
}

static bool end_tuple_at_mark(struct reader *r)
{
    size_t from = after_mark(r);

    if (from == SIZE_MAX)
        return fail(r, CDDP_E_PROTOCOL);
    memmove(&r->stack.v[from - 1], &r->stack.v[from], (r->stack.n - from) * sizeof r->stack.v[0]);
    r->stack.n--;
    return end_tuple(r, from - 1);
}

/* Appends the values from a place on to the list below them. */
static bool end_list(struct reader *r, size_t from, size_t below)
{
    if (from == SIZE_MAX || from < below + 1 || r->stack.v[from - below - 1].kind != ITEM_LIST)
        return fail(r, CDDP_E_PROTOCOL);
    for (size_t i = from; i < r->stack.n; i++)
        add_text(&r->stack.v[from - below - 1], &r->stack.v[i]);
    r->stack.n = from - below;
    return true;
}

static bool end_dict(struct reader *r, size_t from, size_t below)
{
    if (from == SIZE_MAX || from < below + 1 || r->stack.v[from - below - 1].kind != ITEM_DICT)
        return fail(r, CDDP_E_PROTOCOL);
    note_dict(r, &r->stack.v[from], r->stack.n - from);
    r->stack.n = from - below;
    return true;
}

static bool put_list(struct reader *r)
{
    if (!push(r, ITEM_LIST, 0, NULL))
        return false;
    r->stack.v[r->stack.n - 1].text[0] = '[';
    return true;
}

static bool skip_protocol(struct reader *r)
{
    uint64_t version;

    return take_number(r, 1, &version) && (version <= 4 || fail(r, CDDP_E_PROTOCOL));
}

static bool skip_float(struct reader *r)
{
    const uint8_t *bytes;

    return take(r, 8, &bytes) && push(r, ITEM_OTHER, 0, NULL);
}

static bool from_top(struct reader *r, size_t n, size_t *from)
{
    *from = r->stack.n - n;
    return r->stack.n >= n || fail(r, CDDP_E_PROTOCOL);
}

/* Opcodes of containers; Python, Lib/pickle.py. */
static bool run_container(struct reader *r, uint8_t op)
{
    size_t from;

    switch (op) {
    case ')': /* EMPTY_TUPLE */
        return end_tuple(r, r->stack.n);
    case 0x85: /* TUPLE1 to TUPLE3 */
    case 0x86:
    case 0x87:
        return from_top(r, op - 0x84u, &from) && end_tuple(r, from);
    case 't': /* TUPLE */
        return end_tuple_at_mark(r);
    case ']': /* EMPTY_LIST */
        return put_list(r);
    case 'a': /* APPEND */
        return from_top(r, 1, &from) && end_list(r, from, 0);
    case 'e': /* APPENDS */
        return end_list(r, after_mark(r), 1);
    case '}': /* EMPTY_DICT */
        return push(r, ITEM_DICT, 0, NULL);
    case 's': /* SETITEM */
        return from_top(r, 2, &from) && end_dict(r, from, 0);
    case 'u': /* SETITEMS */
        return end_dict(r, after_mark(r), 1);
    default:
        return fail(r, CDDP_E_PROTOCOL);
    }
}

static bool run_opcode(struct reader *r, uint8_t op)
{
    switch (op) {
    case 0x80: /* PROTO */
        return skip_protocol(r);
    case '(': /* MARK */
        return push(r, ITEM_MARK, 0, NULL);
    case 'N': /* NONE */
        return push(r, ITEM_OTHER, 0, NULL);
    case 0x88: /* NEWTRUE, NEWFALSE */
    case 0x89:
        return push(r, ITEM_BOOL, op == 0x88, NULL);
    case 'J': /* BININT, BININT1, BININT2 */
        return put_int(r, 4);
    case 'K':
        return put_int(r, 1);
    case 'M':
        return put_int(r, 2);
    case 0x8A: /* LONG1 */
        return put_long(r);
    case 'G': /* BINFLOAT */
        return skip_float(r);
    case 'X': /* BINUNICODE, SHORT_BINUNICODE */
        return put_text(r, 4);
    case 0x8C:
        return put_text(r, 1);
    case 'q': /* BINPUT, LONG_BINPUT */
        return memo_put(r, 1);
    case 'r':
        return memo_put(r, 4);
    case 'h': /* BINGET, LONG_BINGET */
        return memo_get(r, 1);
    case 'j':
        return memo_get(r, 4);
    default:
        return run_container(r, op);
    }
}

cddp_status torch_dump_read(const uint8_t *bytes, size_t n, struct torch_dump *out, struct cdi_error *err)
{
    struct reader r = {.at = bytes, .end = bytes + n, .out = out, .status = CDDP_OK};
    bool ended = false;

    *out = (struct torch_dump){0};
    if (n > TORCH_DUMP_MAX)
        return cdi_fail(err, CDDP_E_LIMIT, "the flight recorder's dump is larger than %u MiB", TORCH_DUMP_MAX >> 20);
    while (r.at < r.end) {
        uint8_t op = *r.at++;

        ended = op == '.'; /* STOP */
        if (ended || !run_opcode(&r, op))
            break;
    }
    if (!ended && r.status == CDDP_OK)
        r.status = CDDP_E_PROTOCOL;
    free(r.stack.v);
    free(r.memo.v);
    if (r.status == CDDP_OK)
        return CDDP_OK;
    *out = (struct torch_dump){0};
    return cdi_fail(err, r.status, "the flight recorder's dump cannot be read after %zu bytes", (size_t)(r.at - bytes));
}

void torch_dump_text(const struct torch_dump *d, char *text, size_t cap)
{
    const struct torch_entry *e = d->has_open ? &d->open : &d->last;

    text[0] = '\0';
    if (!d->has_open && !d->has_last)
        return;
    (void)snprintf(text, cap, "PyTorch's recorder: %s %s #%" PRId64 "%s%s%s%s%s%s)", d->has_open ? "in" : "after",
                   e->name, e->seq, e->group[0] != '\0' ? " of " : "", e->group, " (", e->sizes,
                   e->sizes[0] != '\0' ? ", " : "", e->state);
}
