/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/layout/bucket.h"

#include "worker/base/dtype.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define N_DTYPES ((size_t)CDDP_BFLOAT16 + 1) /* a gradient's size is limited below */
/* Kinds of gradients that may share a bucket: by type, those of parameters of float16 and bfloat16, frozen ones. */
#define N_MADE (N_DTYPES + 2)
#define N_KINDS (N_MADE + N_DTYPES)

/* The bucket of one kind that is being filled. */
struct open_bucket {
    size_t payload; /* bytes of gradients in it; 0: empty */
    size_t n_grads;
    size_t n_closed;             /* of this kind before it */
    size_t opened;               /* its age, to order those left at the end */
    const struct cdi_grad *like; /* one of its kind */
};

static size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

static size_t align_up(size_t bytes)
{
    return round_up(bytes, CDI_GRAD_ALIGN);
}

static size_t kind_from(cddp_dtype dtype, cddp_dtype held, bool frozen)
{
    if (frozen)
        return N_MADE + (size_t)dtype;
    if (held == CDDP_DTYPE_NONE || held == dtype)
        return (size_t)dtype;
    return N_DTYPES + (held == CDDP_BFLOAT16);
}

static size_t kind_of(const struct cdi_grad *g)
{
    return kind_from(g->dtype, g->held, g->frozen);
}

static size_t bucket_kind(const struct cdi_bucket *b)
{
    return kind_from(b->dtype, b->held, b->idle);
}

/* How many bytes of gradients a byte of parameters has. */
static size_t ratio_of(const struct cdi_bucket *b)
{
    return cddp_dtype_size(b->dtype) / cddp_dtype_size(b->held);
}

/* Everything below adds and rounds these up without checks: no sum may wrap. */
static cddp_status check_sizes(const struct cdi_grad *grads, size_t n, size_t parts, struct cdi_error *err)
{
    size_t sum = 0, most; /* of padding that a gradient may add, if it has its own bucket */

    if (__builtin_mul_overflow(parts + 1, CDI_GRAD_ALIGN * 2, &most) || most > PTRDIFF_MAX)
        return cdi_fail(err, CDDP_E_NOMEM, "%zu ranks are too many for buckets", parts);

    for (size_t i = 0; i < n; i++) {
        assert(grads[i].bytes > 0 && cdi_dtype_valid(grads[i].dtype) && (size_t)grads[i].dtype < N_DTYPES);
        if (grads[i].bytes > PTRDIFF_MAX - most || grads[i].bytes + most > PTRDIFF_MAX - sum)
            return cdi_fail(err, CDDP_E_NOMEM, "%zu gradients need more bytes than the address space has", n);
        sum += grads[i].bytes + most;
    }
    return CDDP_OK;
}

/* Cuts gradients into aligned pieces of nearly equal size. Returns the largest possible number of buckets. */
static size_t bucket_split(struct cdi_grad *grads, size_t n, const struct cdi_bucket_caps *caps)
{
    size_t most = 0;

    for (size_t i = 0; i < n; i++) {
        struct cdi_grad *g = &grads[i];
        size_t parts = caps->split ? (g->bytes - 1) / caps->cap + 1 : 1;

        g->piece = parts == 1 ? g->bytes : align_up((g->bytes - 1) / parts + 1);
        g->n_parts = (g->bytes - 1) / g->piece + 1;
        most += g->n_parts;
    }
    return most;
}

/* Closes the open bucket, which gets the next number among all, and empties it. */
static void close_bucket(struct cdi_bucket_plan *p, struct open_bucket *o)
{
    const struct cdi_grad *g = o->like;

    p->b[p->n] = (struct cdi_bucket){.dtype = g->dtype,
                                     .held = g->held != CDDP_DTYPE_NONE ? g->held : g->dtype,
                                     .n_grads = o->n_grads,
                                     .missing = o->n_grads,
                                     .made = p->n,
                                     .idle = g->frozen};
    p->n++;
    o->n_closed++;
    o->payload = o->n_grads = 0;
}

static struct open_bucket *oldest_open(struct open_bucket open[N_KINDS])
{
    struct open_bucket *oldest = NULL;

    for (size_t t = 0; t < N_KINDS; t++)
        if (open[t].payload > 0 && (oldest == NULL || open[t].opened < oldest->opened))
            oldest = &open[t];
    return oldest;
}

/* Closes what is open, the oldest first. */
static void close_all(struct cdi_bucket_plan *p, struct open_bucket open[N_KINDS])
{
    struct open_bucket *rest;

    while ((rest = oldest_open(open)) != NULL)
        close_bucket(p, rest);
}

/* tail[t]: gradients of kind t with a lower number form its last bucket. */
static void find_tails(const struct cdi_bucket_plan *p, size_t last, size_t tail[N_KINDS])
{
    size_t taken[N_KINDS] = {0};

    for (size_t i = 0; i < p->n_grads; i++) {
        const struct cdi_grad *g = &p->grads[i];

        if (taken[kind_of(g)] >= last)
            continue;
        taken[kind_of(g)] += g->bytes;
        tail[kind_of(g)] = i + 1;
    }
}

/* A cut gradient has separate buckets. */
static void close_pieces(struct cdi_bucket_plan *p, struct open_bucket *o)
{
    for (size_t k = 0; k < o->like->n_parts; k++) {
        o->n_grads = 1;
        close_bucket(p, o);
    }
}

/*
 * Cuts the gradients into buckets. Afterwards grads[i].bucket counts among the buckets of the gradient's own kind,
 * since the place of a bucket among all is known only when it closes; number_buckets turns it into an index.
 */
static void bucket_cut(struct cdi_bucket_plan *p, const struct cdi_bucket_caps *caps)
{
    struct open_bucket open[N_KINDS] = {0};
    size_t tail[N_KINDS] = {0};

    find_tails(p, caps->last, tail);
    for (size_t i = p->n_grads; i-- > 0;) {
        struct cdi_grad *g = &p->grads[i];
        size_t kind = kind_of(g);
        struct open_bucket *o = &open[kind];

        if (caps->unit != NULL && i + 1 < p->n_grads && caps->unit[i] != caps->unit[i + 1])
            close_all(p, open);
        if (o->payload > 0 && (g->n_parts > 1 || i + 1 == tail[kind]))
            close_bucket(p, o);
        o->like = g;
        g->bucket = o->n_closed;
        g->claimed = false;
        g->copied_out = false;
        if (g->n_parts > 1) {
            close_pieces(p, o);
            continue;
        }
        if (o->payload == 0)
            o->opened = p->n_grads - i;
        o->payload += g->bytes;
        o->n_grads++;
        if (i >= tail[kind] && o->payload >= (o->n_closed == 0 ? caps->first : caps->cap))
            close_bucket(p, o);
    }
    close_all(p, open);
}

/*
 * Converts "the k-th bucket of its kind" to an index into p->b. Afterwards `index`, which has one entry per bucket,
 * lists the buckets kind by kind.
 */
static void number_buckets(struct cdi_bucket_plan *p, size_t *index)
{
    size_t start[N_KINDS + 1] = {0}, used[N_KINDS] = {0};

    for (size_t b = 0; b < p->n; b++)
        start[bucket_kind(&p->b[b]) + 1]++;
    for (size_t t = 1; t <= N_KINDS; t++)
        start[t] += start[t - 1];
    for (size_t b = 0; b < p->n; b++) {
        size_t t = bucket_kind(&p->b[b]);

        index[start[t] + used[t]++] = b;
    }
    for (size_t i = 0; i < p->n_grads; i++)
        p->grads[i].bucket = index[start[kind_of(&p->grads[i])] + p->grads[i].bucket];
}

/* Lists the gradients in the order of the arena, kind by kind, and where each bucket begins in that list. */
static void list_places(struct cdi_bucket_plan *p, const size_t *index)
{
    size_t start[N_KINDS + 1] = {0}, at = 0, piece = 0;

    for (size_t i = 0; i < p->n_grads; i++)
        start[kind_of(&p->grads[i]) + 1]++;
    for (size_t t = 1; t <= N_KINDS; t++)
        start[t] += start[t - 1];
    for (size_t i = p->n_grads; i-- > 0;)
        p->place[start[kind_of(&p->grads[i])]++] = i;
    for (size_t j = 0; j < p->n; j++) {
        struct cdi_bucket *b = &p->b[index[j]];

        b->first = at;
        piece = piece + 1 < p->grads[p->place[at]].n_parts ? piece + 1 : 0; /* a cut gradient has several buckets */
        at += piece == 0 ? b->n_grads : 0;
    }
}

/* Places the buckets one after the other, kind by kind, and in each its gradients, the last of the model first. */
static void bucket_place(struct cdi_bucket_plan *p, const size_t *index)
{
    size_t at = 0;

    for (size_t i = p->n_grads; i-- > 0;) {
        struct cdi_grad *g = &p->grads[i];

        for (size_t k = 0, rest = g->bytes; k < g->n_parts; k++) {
            struct cdi_bucket *b = &p->b[g->bucket + k];
            size_t bytes = rest < g->piece ? rest : g->piece;

            b->bytes = round_up(b->bytes, CDI_GRAD_ALIGN * ratio_of(b));
            if (k == 0)
                g->offset = b->bytes; /* offset in the bucket */
            b->bytes += bytes;
            rest -= bytes;
        }
    }
    for (size_t j = 0; j < p->n; j++) {
        struct cdi_bucket *b = &p->b[index[j]];

        b->offset = at;
        b->room = round_up(b->bytes, p->parts * CDI_GRAD_ALIGN * ratio_of(b));
        b->held_room = b->room / ratio_of(b);
        b->held_offset = p->held_bytes;
        p->held_bytes += b->held_room;
        at += b->room;
        p->made_bytes += b->idle ? 0 : b->room;
    }
    p->arena_bytes = at;
    for (size_t i = 0; i < p->n_grads; i++)
        p->grads[i].offset += p->b[p->grads[i].bucket].offset;
}

cddp_status cdi_bucket_plan_init(struct cdi_bucket_plan *p, struct cdi_grad *grads, size_t n,
                                 const struct cdi_bucket_caps *caps, struct cdi_error *err)
{
    cddp_status status = check_sizes(grads, n, caps->parts, err);
    size_t *index, *place, most;
    struct cdi_bucket *b;

    if (status != CDDP_OK)
        return status;
    most = bucket_split(grads, n, caps);
    b = calloc(most + 1, sizeof *b);
    index = calloc(most + 1, sizeof *index);
    place = calloc(n + 1, sizeof *place);
    if (b == NULL || index == NULL || place == NULL) {
        free(b);
        free(index);
        free(place);
        return cdi_fail(err, CDDP_E_NOMEM, "no memory to plan up to %zu buckets for %zu gradients", most, n);
    }
    *p = (struct cdi_bucket_plan){.grads = grads, .n_grads = n, .place = place, .b = b, .parts = caps->parts};
    bucket_cut(p, caps);
    number_buckets(p, index);
    list_places(p, index);
    bucket_place(p, index);
    for (size_t k = 0; k < p->n; k++)
        p->b[k].turn = k;
    p->ahead = p->n;
    status = p->made_bytes < p->arena_bytes ? cdi_bucket_sort_idle(p, index, err) : CDDP_OK;
    free(index);
    if (status != CDDP_OK) {
        p->grads = NULL; /* the caller's */
        cdi_bucket_plan_release(p);
    }
    return status;
}

static bool bucket_same(const struct cdi_bucket_plan *a, const struct cdi_bucket_plan *b)
{
    bool all = a->n == b->n;

    for (size_t k = 0; k < a->n && all; k++)
        all = a->b[k].offset == b->b[k].offset && a->b[k].bytes == b->b[k].bytes;
    return all;
}

cddp_status cdi_bucket_recut(struct cdi_bucket_plan *p, const struct cdi_bucket_caps *caps, bool *changed,
                             struct cdi_error *err)
{
    struct cdi_grad *grads = calloc(p->n_grads, sizeof *grads);
    struct cdi_bucket_plan fresh;
    cddp_status status;

    assert(p->parts == 1 && caps->parts == 1);
    if (grads == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory to plan %zu gradients anew", p->n_grads);
    for (size_t i = 0; i < p->n_grads; i++)
        grads[i] = (struct cdi_grad){.bytes = p->grads[i].bytes,
                                     .dtype = p->grads[i].dtype,
                                     .held = p->grads[i].held,
                                     .frozen = p->grads[i].frozen};
    status = cdi_bucket_plan_init(&fresh, grads, p->n_grads, caps, err);
    if (status != CDDP_OK) {
        free(grads);
        return status;
    }
    assert(fresh.arena_bytes == p->arena_bytes);
    if (changed != NULL)
        *changed = !bucket_same(p, &fresh);
    for (size_t i = 0; i < p->n_grads; i++) {
        struct cdi_grad *g = &p->grads[i];

        assert(grads[i].offset == g->offset);
        g->bucket = grads[i].bucket;
        g->n_parts = grads[i].n_parts;
        g->piece = grads[i].piece;
        g->claimed = g->copied_out = false;
    }
    free(grads);
    free(fresh.place);
    free(p->b);
    p->b = fresh.b;
    p->n = p->ahead = fresh.n;
    p->next = 0;
    return CDDP_OK;
}

void cdi_bucket_plan_release(struct cdi_bucket_plan *p)
{
    if (p == NULL)
        return;
    free(p->grads);
    free(p->place);
    free(p->b);
    *p = (struct cdi_bucket_plan){0};
}

bool cdi_bucket_claim(struct cdi_bucket_plan *p, size_t i)
{
    assert(i < p->n_grads);
    if (p->grads[i].claimed)
        return false;
    p->grads[i].claimed = true;
    return true;
}

size_t cdi_bucket_grad_ready(struct cdi_bucket_plan *p, size_t i)
{
    const struct cdi_grad *g = &p->grads[i];
    size_t k = 0;
    bool full = false;

    assert(i < p->n_grads && g->claimed);
    for (size_t part = 0; part < g->n_parts; part++) {
        struct cdi_bucket *b = &p->b[g->bucket + part];

        assert(b->state == CDI_BUCKET_FILLING && b->missing > 0);
        if (--b->missing > 0)
            continue;
        b->state = CDI_BUCKET_READY;
        full = true;
    }
    if (!full)
        return 0;
    /* Launch strictly in order: ranks must enqueue the same sequence. */
    while (p->next + k < p->ahead && p->b[p->next + k].state == CDI_BUCKET_READY)
        k++;
    return k;
}

void cdi_bucket_launched(struct cdi_bucket_plan *p)
{
    assert(p->next < p->ahead && p->b[p->next].state == CDI_BUCKET_READY);
    p->b[p->next++].state = CDI_BUCKET_FLYING;
}

void cdi_bucket_launched_late(struct cdi_bucket_plan *p, size_t b)
{
    assert(b >= p->ahead && b < p->n && p->b[b].state == CDI_BUCKET_READY);
    p->b[b].state = CDI_BUCKET_FLYING;
}

bool cdi_bucket_all_launched(const struct cdi_bucket_plan *p)
{
    return p->next == p->ahead;
}

void cdi_bucket_next_step(struct cdi_bucket_plan *p)
{
    assert(cdi_bucket_all_launched(p));
    cdi_bucket_reset(p);
}

void cdi_bucket_reset(struct cdi_bucket_plan *p)
{
    for (size_t b = 0; b < p->n; b++) {
        p->b[b].state = CDI_BUCKET_FILLING;
        p->b[b].missing = p->b[b].n_grads;
    }
    for (size_t i = 0; i < p->n_grads; i++) {
        p->grads[i].claimed = false;
        p->grads[i].copied_out = false;
    }
    p->next = 0;
}

/* When a bucket was complete, or will be. */
struct completion {
    size_t bucket, at;
};

static int earlier(const void *a, const void *b)
{
    const struct completion *x = a, *y = b;

    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (x->bucket > y->bucket) - (x->bucket < y->bucket);
}

/* Sorts the buckets by by[b].at, and by their numbers if it is equal. */
static cddp_status bucket_sort(struct cdi_bucket_plan *p, struct completion *by, size_t *to, struct cdi_error *err)
{
    struct cdi_bucket *moved = calloc(p->n, sizeof *moved);

    if (moved == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the order of %zu buckets", p->n);
    for (size_t b = 0; b < p->n; b++)
        by[b].bucket = b;
    qsort(by, p->n, sizeof *by, earlier);
    for (size_t b = 0; b < p->n; b++) {
        moved[b] = p->b[by[b].bucket];
        to[by[b].bucket] = b;
    }
    memcpy(p->b, moved, p->n * sizeof *moved);
    for (size_t i = 0; i < p->n_grads; i++)
        p->grads[i].bucket = to[p->grads[i].bucket];
    free(moved);
    return CDDP_OK;
}

cddp_status cdi_bucket_reorder(struct cdi_bucket_plan *p, const int32_t *order, size_t n, size_t *to,
                               struct cdi_error *err)
{
    struct completion *by = calloc(p->n, sizeof *by);
    cddp_status status = CDDP_OK;

    if (by == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the order of %zu buckets", p->n);
    for (size_t k = 0; k < n && status == CDDP_OK; k++)
        if (order[k] < 0 || (size_t)order[k] >= p->n_grads)
            status = cdi_fail(err, CDDP_E_PROTOCOL, "rank 0's order of gradients names gradient %d of %zu",
                              (int)order[k], p->n_grads);
        else
            for (size_t part = 0; part < p->grads[order[k]].n_parts; part++)
                by[p->grads[order[k]].bucket + part].at = k; /* the order among them stays: see earlier() */
    if (status == CDDP_OK)
        status = bucket_sort(p, by, to, err);
    for (size_t b = 0; b < p->n && status == CDDP_OK; b++) {
        p->b[b].turn = b;
        p->b[b].idle = false;
    }
    if (status == CDDP_OK)
        p->ahead = p->n;
    free(by);
    return status;
}

cddp_status cdi_bucket_sort_idle(struct cdi_bucket_plan *p, size_t *to, struct cdi_error *err)
{
    struct completion *by = calloc(p->n + 1, sizeof *by);
    size_t ahead = 0;
    cddp_status status;

    if (by == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the order of %zu buckets", p->n);
    for (size_t b = 0; b < p->n; b++) {
        by[b].at = p->b[b].turn + (p->b[b].idle ? p->n : 0);
        ahead += !p->b[b].idle;
    }
    status = bucket_sort(p, by, to, err);
    if (status == CDDP_OK)
        p->ahead = ahead;
    free(by);
    return status;
}
