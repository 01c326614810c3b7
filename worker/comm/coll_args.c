/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/coll_args.h"

#include "worker/backend/describe.h"
#include "worker/base/dtype.h"

#include <stdint.h>
#include <stdlib.h>

/* The elements of a buffer, as multiples of `count`. */
enum extent { NONE, ONE, ALL, PARTS }; /* ALL: one for each rank; PARTS: counts, or this rank's own of them */

enum needs {
    REDUCES = 1,      /* op is used */
    ROOTED = 2,       /* root is a rank */
    PEER = 4,         /* root is another rank; in a group it may be this one */
    OUT_ON_ROOT = 8,  /* out is written on root only */
    IN_ON_ROOT = 16,  /* in is read on root only */
    IN_COUNTS = 32,   /* in_counts and in_offsets are used */
    OUT_COUNTS = 64,  /* out_counts and out_offsets are used */
    MAY_LACK_IN = 128 /* NULL: in is out */
};

static const struct kind {
    const char *name;
    enum cdi_coll_kind kind; /* of a collective that is made of others: their kind */
    enum cdi_api_call asked; /* CDI_API_ITSELF: an operation of the backend */
    enum extent in, out;
    unsigned needs;
} kinds[] = {
    [CDDP_COLL_ALL_REDUCE] = {"cddp_all_reduce", CDI_ALL_REDUCE, 0, ONE, ONE, REDUCES},
    [CDDP_COLL_BROADCAST] = {"cddp_broadcast", CDI_BROADCAST, 0, ONE, ONE, ROOTED | IN_ON_ROOT | MAY_LACK_IN},
    [CDDP_COLL_ALL_GATHER] = {"cddp_all_gather", CDI_ALL_GATHER, 0, ONE, ALL, 0},
    [CDDP_COLL_BARRIER] = {"cddp_barrier", CDI_BARRIER, 0, NONE, NONE, 0},
    [CDDP_COLL_REDUCE] = {"cddp_reduce", CDI_REDUCE, 0, ONE, ONE, REDUCES | ROOTED | OUT_ON_ROOT},
    [CDDP_COLL_ALL_GATHERV] = {"cddp_all_gatherv", CDI_ALL_GATHERV, 0, PARTS, PARTS, OUT_COUNTS},
    [CDDP_COLL_REDUCE_SCATTER] = {"cddp_reduce_scatter", CDI_REDUCE_SCATTER, 0, ALL, ONE, REDUCES},
    [CDDP_COLL_ALL_TO_ALL] = {"cddp_all_to_all", CDI_ALL_TO_ALL, 0, ALL, ALL, 0},
    [CDDP_COLL_SEND] = {"cddp_send", CDI_SEND, 0, ONE, NONE, ROOTED | PEER},
    [CDDP_COLL_RECV] = {"cddp_recv", CDI_RECV, 0, NONE, ONE, ROOTED | PEER},
    [CDDP_COLL_GATHER] = {"gather", CDI_SEND, CDI_API_GATHER, ONE, ALL, ROOTED | OUT_ON_ROOT},
    [CDDP_COLL_SCATTER] = {"scatter", CDI_SEND, CDI_API_SCATTER, ALL, ONE, ROOTED | IN_ON_ROOT},
    [CDDP_COLL_ALL_TO_ALLV] = {"all_to_allv", CDI_SEND, CDI_API_ALL_TO_ALLV, PARTS, PARTS, IN_COUNTS | OUT_COUNTS},
    [CDDP_COLL_REDUCE_SCATTERV] = {"reduce_scatterv", CDI_REDUCE, CDI_API_REDUCE_SCATTERV, PARTS, PARTS,
                                   REDUCES | IN_COUNTS},
};

static bool is_kind(const cddp_coll_args *a)
{
    return a->coll >= CDDP_COLL_ALL_REDUCE && a->coll <= CDDP_COLL_REDUCE_SCATTERV;
}

static bool is_message(const struct cdi_coll *op)
{
    return op->kind == CDI_SEND || op->kind == CDI_RECV;
}

/* ----------------------------------------------------------------------------------------- checking arguments ---- */

/* Sets *bytes to the size of `count` elements. Returns false if no memory is that large. */
static bool bytes_of(size_t count, cddp_dtype dtype, size_t *bytes)
{
    return !__builtin_mul_overflow(count, cddp_dtype_size(dtype), bytes) && *bytes <= PTRDIFF_MAX;
}

/* Returns p + bytes; NULL stays NULL. */
static void *offset_by(const void *p, size_t bytes)
{
    return p == NULL ? NULL : (uint8_t *)(uintptr_t)p + bytes;
}

static bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t x = (uintptr_t)a, y = (uintptr_t)b;

    return a_bytes > 0 && b_bytes > 0 && x < y + b_bytes && y < x + a_bytes;
}

/* Checks buffers that overlap: only exactly in place. bytes: of one block. */
static cddp_status check_place(const struct cdi_world *world, const cddp_coll_args *w, size_t bytes,
                               struct cdi_error *err)
{
    const struct kind *k = &kinds[w->coll];
    size_t part = (size_t)world->rank * bytes;

    if (w->coll == CDDP_COLL_ALL_TO_ALL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: in and out overlap", k->name);
    if (k->in == k->out && w->in != w->out)
        return cdi_fail(err, CDDP_E_INVALID, "%s: in and out overlap, but are not the same", k->name);
    if (k->in == ONE && k->out != ONE && w->in != (const char *)w->out + part)
        return cdi_fail(err, CDDP_E_INVALID, "%s: in overlaps out, but is not this rank's part of it", k->name);
    if (k->in == ALL && w->out != (const char *)w->in + part)
        return cdi_fail(err, CDDP_E_INVALID, "%s: out overlaps in, but is not this rank's part of it", k->name);
    return CDDP_OK;
}

/* Checks that buffers exist, fit the address space, and are disjoint or exactly in place. */
static cddp_status check_buffers(const struct cdi_world *world, const cddp_coll_args *w, struct cdi_error *err)
{
    const struct kind *k = &kinds[w->coll];
    size_t size = (size_t)world->size, block, all = 0, in_bytes, to_bytes;
    bool is_root = w->root == world->rank, reads = (k->needs & IN_ON_ROOT) == 0 || is_root,
         writes = (k->needs & OUT_ON_ROOT) == 0 || is_root;

    if (!bytes_of(w->count, w->dtype, &block) ||
        ((k->in == ALL || k->out == ALL) && (__builtin_mul_overflow(block, size, &all) || all > PTRDIFF_MAX)))
        return cdi_fail(err, CDDP_E_INVALID, "%s: no memory holds %zu elements", k->name, w->count);
    if (w->in == w->out && w->in != NULL && k->in == ONE && k->out == ONE) /* in place: the most frequent case */
        return CDDP_OK;
    in_bytes = k->in == NONE ? 0 : k->in == ALL ? all : block;
    to_bytes = k->out == NONE ? 0 : k->out == ALL ? all : block;
    if ((k->needs & MAY_LACK_IN) != 0 && w->in == NULL)
        reads = false;
    if (reads && in_bytes > 0 && w->in == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: in is NULL", k->name);
    if (writes && to_bytes > 0 && w->out == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: out is NULL", k->name);
    if (!reads || !writes || !overlap(w->in, in_bytes, w->out, to_bytes))
        return CDDP_OK;
    return check_place(world, w, block, err);
}

static cddp_status check_reduction(const cddp_coll_args *w, struct cdi_error *err)
{
    const char *name = kinds[w->coll].name;

    if (!cdi_redop_valid(w->op))
        return cdi_fail(err, CDDP_E_INVALID, "%s: %d is not a cddp_redop", name, (int)w->op);
    if (w->op == CDDP_AVG && cdi_dtype_is_integer(w->dtype))
        return cdi_fail(err, CDDP_E_INVALID, "%s: a mean of %s is not defined, use a floating-point type", name,
                        cdi_dtype_name(w->dtype));
    if (cdi_redop_is_bitwise(w->op) && !cdi_dtype_is_integer(w->dtype))
        return cdi_fail(err, CDDP_E_INVALID, "%s: a %s of %s is not defined, use an integer type", name,
                        cdi_redop_name(w->op), cdi_dtype_name(w->dtype));
    return CDDP_OK;
}

static cddp_status check_root(const struct cdi_world *world, const cddp_coll_args *w, bool alone, struct cdi_error *err)
{
    const char *name = kinds[w->coll].name;
    bool peer = (kinds[w->coll].needs & PEER) != 0;

    if (w->root < 0 || w->root >= world->size)
        return cdi_fail(err, CDDP_E_INVALID, "%s: %s %d is not a rank of a world of %d", name, peer ? "peer" : "root",
                        w->root, world->size);
    if (peer && alone && w->root == world->rank)
        return cdi_fail(err, CDDP_E_INVALID,
                        "%s: rank %d is this rank: a message to itself needs its receive in the same group", name,
                        w->root);
    return CDDP_OK;
}

/* ------------------------------------------------------------------------------------------ parts of any size ---- */

/* A buffer of parts, one for each rank, or a part alone. Counts, offsets and `end` are in elements. */
struct parts {
    const char *name;
    const uint8_t *p;
    const size_t *counts, *offsets; /* offsets NULL: one after another */
    size_t n;
    size_t size; /* of an element */
    size_t end;  /* after the last one */
};

/* Returns where part r begins, if the previous parts end at `at`. */
static size_t part_begin(const struct parts *b, size_t r, size_t at)
{
    return b->offsets != NULL ? b->offsets[r] : at;
}

/* Returns the offset of one part in bytes. */
static size_t part_place(const struct parts *b, size_t part)
{
    size_t at = 0;

    for (size_t r = 0; r < part && b->offsets == NULL; r++)
        at += b->counts[r];
    return part_begin(b, part, at) * b->size;
}

static cddp_status parts_measure(struct parts *b, const cddp_coll_args *a, struct cdi_error *err)
{
    size_t at = 0, bytes;

    if (b->counts == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: %s_counts is NULL, but must have the number of elements of each rank",
                        kinds[a->coll].name, b->name);
    b->end = 0;
    for (size_t r = 0; r < b->n; r++) {
        if (__builtin_add_overflow(part_begin(b, r, at), b->counts[r], &at))
            return cdi_fail(err, CDDP_E_INVALID, "%s: no memory holds all parts of %s", kinds[a->coll].name, b->name);
        if (b->counts[r] > 0 && at > b->end)
            b->end = at;
    }
    if (!bytes_of(b->end, a->dtype, &bytes))
        return cdi_fail(err, CDDP_E_INVALID, "%s: no memory holds %zu elements", kinds[a->coll].name, b->end);
    if (b->end > 0 && b->p == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: %s is NULL", kinds[a->coll].name, b->name);
    return CDDP_OK;
}

/* Do `elements` of a, of which the first is at `at`, and part j of b share memory? */
static bool part_overlaps(const struct parts *a, size_t at, size_t elements, const struct parts *b)
{
    size_t begin = 0;

    for (size_t j = 0; j < b->n; j++) {
        begin = part_begin(b, j, begin);
        if (overlap(offset_by(a->p, at * a->size), elements * a->size, offset_by(b->p, begin * b->size),
                    b->counts[j] * b->size))
            return true;
        begin += b->counts[j];
    }
    return false;
}

static bool share_memory(const struct parts *a, const struct parts *b)
{
    size_t at = 0;

    if (!overlap(a->p, a->end * a->size, b->p, b->end * b->size))
        return false;
    for (size_t i = 0; i < a->n; i++) {
        at = part_begin(a, i, at);
        if (part_overlaps(a, at, a->counts[i], b))
            return true;
        at += a->counts[i];
    }
    return false;
}

/* Parts with offsets may be in any order; in rising order, the usual case, one pass suffices. */
static bool are_apart(const struct parts *b)
{
    struct parts before = *b;
    size_t end = 0;
    bool rise = true;

    if (b->offsets == NULL)
        return true;
    for (size_t r = 0; r < b->n; r++) {
        rise = rise && (b->counts[r] == 0 || b->offsets[r] >= end);
        end = b->counts[r] == 0 ? end : b->offsets[r] + b->counts[r];
    }
    for (before.n = 0; before.n < b->n && !rise; before.n++)
        if (part_overlaps(b, b->offsets[before.n], b->counts[before.n], &before))
            return false;
    return true;
}

/* The same as check_buffers for parts. */
static cddp_status check_parts(const struct cdi_world *world, const cddp_coll_args *a, struct cdi_error *err)
{
    const char *name = kinds[a->coll].name;
    size_t n = (size_t)world->size, rank = (size_t)world->rank, size = cddp_dtype_size(a->dtype);
    struct parts
        in = {.name = "in", .p = a->in, .counts = a->in_counts, .offsets = a->in_offsets, .n = n, .size = size},
        to = {.name = "out", .p = a->out, .counts = a->out_counts, .offsets = a->out_offsets, .n = n, .size = size};
    bool both = kinds[a->coll].needs == (IN_COUNTS | OUT_COUNTS), gathers = kinds[a->coll].needs == OUT_COUNTS;
    struct parts *whole = gathers ? &to : &in, *own = gathers ? &in : &to;
    cddp_status st = parts_measure(whole, a, err);

    if (st == CDDP_OK && !both) { /* this rank's part of the whole */
        own->counts = whole->counts + rank;
        own->offsets = NULL;
        own->n = 1;
    }
    if (st == CDDP_OK)
        st = parts_measure(own, a, err);
    if (st != CDDP_OK)
        return st;
    if (!are_apart(both ? &to : whole))
        return cdi_fail(err, CDDP_E_INVALID, "%s: parts of %s overlap", name, both ? "out" : whole->name);
    if ((!both && own->p == offset_by(whole->p, part_place(whole, rank))) ||
        !share_memory(&in, &to)) /* in place, or disjoint */
        return CDDP_OK;
    if (both)
        return cdi_fail(err, CDDP_E_INVALID, "%s: in and out overlap", name);
    return cdi_fail(err, CDDP_E_INVALID, "%s: %s overlaps %s, but is not this rank's part of it", name, own->name,
                    whole->name);
}

/* --------------------------------------------------------------------------------------------- one operation ---- */

cddp_status cdi_coll_check_unused(const cddp_coll_args *a, struct cdi_error *err)
{
    unsigned needs = is_kind(a) ? kinds[a->coll].needs : IN_COUNTS | OUT_COUNTS;
    const char *none = NULL;

    if (a->flags != 0 || a->zero != 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_coll_args: flags and zero must be 0");
    if ((needs & OUT_COUNTS) == 0 && (a->out_counts != NULL || a->out_offsets != NULL))
        none = "out";
    if ((needs & IN_COUNTS) == 0 && (a->in_counts != NULL || a->in_offsets != NULL))
        none = "in";
    if (none != NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: %s_counts and %s_offsets are not used: they must be NULL",
                        kinds[a->coll].name, none, none);
    return CDDP_OK;
}

/* alone: it is not in a group. */
static cddp_status args_check(const struct cdi_world *w, const cddp_coll_args *a, bool alone, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    unsigned needs;

    if (!is_kind(a))
        return cdi_fail(err, CDDP_E_INVALID, "cddp_coll_args.coll is %d, which is not a collective", (int)a->coll);
    needs = kinds[a->coll].needs;
    if (a->coll == CDDP_COLL_BARRIER)
        return CDDP_OK;
    if (!cdi_dtype_valid(a->dtype))
        return cdi_fail(err, CDDP_E_INVALID, "%s: %d is not a cddp_dtype", kinds[a->coll].name, (int)a->dtype);
    if ((needs & ROOTED) != 0)
        st = check_root(w, a, alone, err);
    if (st == CDDP_OK && (needs & REDUCES) != 0)
        st = check_reduction(a, err);
    if (st != CDDP_OK)
        return st;
    return kinds[a->coll].in == PARTS ? check_parts(w, a, err) : check_buffers(w, a, err);
}

static struct cdi_coll plain(const struct cdi_world *w, const cddp_coll_args *a)
{
    struct cdi_coll op = {.kind = kinds[a->coll].kind,
                          .in = a->in,
                          .out = a->out,
                          .count = a->count,
                          .counts = a->coll == CDDP_COLL_ALL_GATHERV ? a->out_counts : NULL,
                          .dtype = a->dtype,
                          .op = a->op,
                          .root = a->root,
                          .bucket = -1};

    if ((kinds[a->coll].needs & MAY_LACK_IN) != 0 && (a->in == NULL || a->root != w->rank))
        op.in = a->out;
    return op;
}

bool cdi_coll_is_made(const cddp_coll_args *a)
{
    return is_kind(a) &&
           (kinds[a->coll].asked != CDI_API_ITSELF || (a->coll == CDDP_COLL_ALL_GATHERV && a->out_offsets != NULL));
}

cddp_status cdi_coll_op(const struct cdi_world *w, const cddp_coll_args *a, struct cdi_coll *op, struct cdi_error *err)
{
    cddp_status st = args_check(w, a, true, err);

    if (st == CDDP_OK)
        *op = plain(w, a);
    return st;
}

/* ---------------------------------------------------------------------------------------------------- groups ---- */

static void ops_add(struct cdi_coll_ops *to, const struct cdi_coll *op)
{
    to->ops[to->n++] = *op;
}

/* A message between this rank and another one, or itself: one of the two ends. */
static void add_message(struct cdi_coll_ops *to, const struct cdi_coll *like, enum cdi_coll_kind kind, const void *p,
                        size_t count, int peer)
{
    struct cdi_coll op = *like;

    op.kind = kind;
    op.in = kind == CDI_SEND ? p : NULL;
    op.out = kind == CDI_RECV ? (void *)(uintptr_t)p : NULL;
    op.count = count;
    op.root = peer;
    ops_add(to, &op);
}

/* gather: the root receives the blocks of all; scatter: it sends them. */
static void add_blocks(const struct cdi_world *w, const cddp_coll_args *a, const struct cdi_coll *like,
                       struct cdi_coll_ops *to)
{
    bool gathers = a->coll == CDDP_COLL_GATHER;
    const void *all = gathers ? a->out : a->in, *own = gathers ? a->in : a->out;
    enum cdi_coll_kind at_root = gathers ? CDI_RECV : CDI_SEND, elsewhere = gathers ? CDI_SEND : CDI_RECV;
    size_t bytes = a->count * cddp_dtype_size(a->dtype);

    for (int r = 0; r < w->size && w->rank == a->root; r++) {
        const void *block = offset_by(all, (size_t)r * bytes);
        bool copies = r == w->rank && block != own;

        if (r != w->rank || copies)
            add_message(to, like, at_root, block, a->count, r);
        if (copies)
            add_message(to, like, elsewhere, own, a->count, r);
    }
    if (w->rank != a->root)
        add_message(to, like, elsewhere, own, a->count, a->root);
}

/* Sends messages without elements, too, so that ranks with different counts get an error. */
static cddp_status add_all_to_allv(const struct cdi_world *w, const cddp_coll_args *a, const struct cdi_coll *like,
                                   struct cdi_coll_ops *to, struct cdi_error *err)
{
    size_t size = cddp_dtype_size(a->dtype), in = 0, out = 0;

    if (a->in_counts[w->rank] != a->out_counts[w->rank])
        return cdi_fail(err, CDDP_E_INVALID, "all_to_allv: rank %d sends itself %zu elements, but receives %zu",
                        w->rank, a->in_counts[w->rank], a->out_counts[w->rank]);
    for (int r = 0; r < w->size; r++) {
        in = a->in_offsets != NULL ? a->in_offsets[r] : in;
        out = a->out_offsets != NULL ? a->out_offsets[r] : out;
        add_message(to, like, CDI_SEND, offset_by(a->in, in * size), a->in_counts[r], r);
        add_message(to, like, CDI_RECV, offset_by(a->out, out * size), a->out_counts[r], r);
        in += a->in_counts[r];
        out += a->out_counts[r];
    }
    return CDDP_OK;
}

/* A reduction to each rank in turn, or a broadcast from each. */
static void add_of_each_rank(const struct cdi_world *w, const cddp_coll_args *a, const struct cdi_coll *like,
                             struct cdi_coll_ops *to)
{
    bool reduces = a->coll == CDDP_COLL_REDUCE_SCATTERV;
    const size_t *counts = reduces ? a->in_counts : a->out_counts, *offsets = reduces ? a->in_offsets : a->out_offsets;
    const void *whole = reduces ? a->in : a->out;
    size_t at = 0;

    for (int r = 0; r < w->size; r++) {
        struct cdi_coll op = *like;

        at = offsets != NULL ? offsets[r] : at;
        op.count = counts[r];
        op.root = r;
        if (reduces) {
            op.in = offset_by(whole, at * cddp_dtype_size(a->dtype));
            op.out = r == w->rank ? a->out : NULL;
        } else {
            op.out = offset_by(whole, at * cddp_dtype_size(a->dtype));
            op.in = r == w->rank ? a->in : op.out;
        }
        ops_add(to, &op);
        at += counts[r];
    }
}

static cddp_status add_args(const struct cdi_world *w, const cddp_coll_args *a, struct cdi_coll_ops *to,
                            struct cdi_error *err)
{
    struct cdi_coll op = plain(w, a);

    op.asked = kinds[a->coll].asked;
    if (a->coll == CDDP_COLL_ALL_GATHERV && cdi_coll_is_made(a)) {
        op.kind = CDI_BROADCAST;
        op.counts = NULL;
        op.asked = CDI_API_ALL_GATHERV;
    }
    if (op.asked == CDI_API_ALL_GATHERV || op.asked == CDI_API_REDUCE_SCATTERV) {
        add_of_each_rank(w, a, &op, to);
        return CDDP_OK;
    }
    if (op.asked != CDI_API_ITSELF) {
        bool uneven = op.asked == CDI_API_ALL_TO_ALLV;

        op = (struct cdi_coll){.kind = CDI_BARRIER,
                               .count = uneven ? 0 : a->count,
                               .dtype = a->dtype,
                               .root = uneven ? 0 : a->root,
                               .bucket = -1,
                               .asked = op.asked};
        ops_add(to, &op);
        if (uneven)
            return add_all_to_allv(w, a, &op, to, err);
        add_blocks(w, a, &op, to);
        return CDDP_OK;
    }
    ops_add(to, &op);
    return CDDP_OK;
}

/* Checks that each message of this rank to itself has a receive of equal count and type. */
static cddp_status match_own(const struct cdi_world *w, const struct cdi_coll *ops, size_t n, struct cdi_error *err)
{
    size_t s = 0, d = 0;

    for (;;) {
        while (s < n && (ops[s].kind != CDI_SEND || ops[s].root != w->rank))
            s++;
        while (d < n && (ops[d].kind != CDI_RECV || ops[d].root != w->rank))
            d++;
        if (s == n && d == n)
            return CDDP_OK;
        if (s == n || d == n)
            return cdi_fail(err, CDDP_E_INVALID, "args[%zu]: rank %d %s itself a message that the group does not %s",
                            s == n ? d : s, w->rank, s == n ? "receives of" : "sends", s == n ? "send" : "receive");
        if (ops[s].count != ops[d].count || ops[s].dtype != ops[d].dtype)
            return cdi_fail(
                err, CDDP_E_INVALID, "rank %d sends itself %zu %s (args[%zu]), but receives %zu %s (args[%zu])",
                w->rank, ops[s].count, cdi_dtype_name(ops[s].dtype), s, ops[d].count, cdi_dtype_name(ops[d].dtype), d);
        s++;
        d++;
    }
}

static cddp_status add_all(const struct cdi_world *w, const cddp_coll_args *args, size_t n, struct cdi_coll_ops *out,
                           struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < n && st == CDDP_OK; i++) {
        st = cdi_coll_check_unused(&args[i], err);
        if (st == CDDP_OK)
            st = args_check(w, &args[i], n == 1, err);
        if (st == CDDP_OK && ((kinds[args[i].coll].needs & PEER) != 0) != ((kinds[args[0].coll].needs & PEER) != 0))
            st = cdi_fail(err, CDDP_E_INVALID,
                          "%s, but args[0] is %s: a group has either collectives, or sends and receives",
                          kinds[args[i].coll].name, kinds[args[0].coll].name);
        if (st == CDDP_OK)
            st = add_args(w, &args[i], out, err);
        if (st != CDDP_OK && n > 1)
            (void)cdi_error_wrap(err, "args[%zu]", i);
    }
    return st;
}

cddp_status cdi_coll_ops(const struct cdi_world *w, const cddp_coll_args *args, size_t n, struct cdi_coll_ops *out,
                         struct cdi_error *err)
{
    size_t most = 0, bytes;
    cddp_status st;

    for (size_t i = 0; i < n; i++) /* an unknown kind counts as one */
        most += !is_kind(&args[i]) || kinds[args[i].coll].asked == 0 ? args[i].out_offsets != NULL ? (size_t)w->size : 1
                                                                     : 2 * (size_t)w->size + 1;
    if (!__builtin_mul_overflow(most, sizeof *out->ops, &bytes) && bytes <= PTRDIFF_MAX)
        out->ops = malloc(bytes > 0 ? bytes : 1);
    if (out->ops == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a group of %zu operations", n);
    st = add_all(w, args, n, out, err);
    return st == CDDP_OK && n > 0 && is_message(&out->ops[0]) ? match_own(w, out->ops, out->n, err) : st;
}

void cdi_coll_release(struct cdi_coll_ops *ops)
{
    free(ops->ops);
    *ops = (struct cdi_coll_ops){0};
}

static bool is_opening(const struct cdi_coll *op)
{
    return op->kind == CDI_BARRIER && cdi_api_call_is_coll(op->asked);
}

size_t cdi_coll_part(const struct cdi_coll *ops, size_t n)
{
    bool messages = is_message(&ops[0]) || is_opening(&ops[0]);
    size_t i = 1;

    while (i < n && !is_opening(&ops[i]) && is_message(&ops[i]) == messages)
        i++;
    return i;
}
