/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/collective.h"

#include "worker/backend/cpu/handover.h"
#include "worker/backend/cpu/reduce.h"
#include "worker/dtype.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KIND_REGION = 100 };

/* One operation under way. */
struct run {
    struct cdi_team *t;
    const struct cdi_work *w;
    bool on_thread;
    struct cdi_shm_desc desc;
    bool begun; /* descriptors were compared */
};

cddp_status cdi_team_init(struct cdi_team *t, struct cdi_error *err)
{
    t->in = calloc((size_t)t->size, sizeof *t->in);
    t->out = calloc((size_t)t->size, sizeof *t->out);
    if (t->in == NULL || t->out == NULL) {
        cdi_team_release(t);
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d ranks", t->size);
    }
    return CDDP_OK;
}

void cdi_team_release(struct cdi_team *t)
{
    free(t->in);
    free(t->out);
    t->in = NULL;
    t->out = NULL;
}

/* --------------------------------------------------------------------------------------------- descriptors ---------
 */

static struct cdi_shm_desc describe(const struct cdi_work *w)
{
    const struct cdi_op *op = &w->op;
    struct cdi_shm_desc d = {.kind = (uint32_t)op->kind};

    if (w->is_region)
        return (struct cdi_shm_desc){.kind = KIND_REGION, .count = w->region_bytes};
    switch (op->kind) {
    case CDI_ALL_REDUCE:
        d.op = (uint32_t)op->op;
        if (op->region != NULL) {
            d.region = ((const struct cdi_cpu_region *)op->region)->id;
            d.offset = (uint64_t)((const uint8_t *)op->out - (const uint8_t *)op->region->base);
        }
        break;
    case CDI_BROADCAST:
        d.root = op->root;
        break;
    case CDI_ALL_GATHER:
        break;
    case CDI_BARRIER:
        return d;
    }
    d.dtype = (uint32_t)op->dtype;
    d.count = op->count;
    return d;
}

/* "all_reduce(sum) of 10 float32" */
static void desc_text(const struct cdi_shm_desc *d, char *buf, size_t cap)
{
    const char *type = cdi_dtype_name((cddp_dtype)d->dtype);

    switch (d->kind) {
    case CDI_ALL_REDUCE:
        if (d->region == 0)
            (void)snprintf(buf, cap, "all_reduce(%s) of %" PRIu64 " %s", cdi_op_name((cddp_op)d->op), d->count, type);
        else
            (void)snprintf(buf, cap, "all_reduce(%s) of %" PRIu64 " %s at byte %" PRIu64 " of shared region %" PRIu64,
                           cdi_op_name((cddp_op)d->op), d->count, type, d->offset, d->region);
        break;
    case CDI_BROADCAST:
        (void)snprintf(buf, cap, "broadcast of %" PRIu64 " %s from rank %d", d->count, type, (int)d->root);
        break;
    case CDI_ALL_GATHER:
        (void)snprintf(buf, cap, "all_gather of %" PRIu64 " %s", d->count, type);
        break;
    case CDI_BARRIER:
        (void)snprintf(buf, cap, "barrier");
        break;
    case KIND_REGION:
        (void)snprintf(buf, cap, "making shared memory of %" PRIu64 " bytes", d->count);
        break;
    default:
        (void)snprintf(buf, cap, "an unknown operation");
        break;
    }
}

static void what(const void *arg, char *buf, size_t cap)
{
    const struct run *run = arg;
    size_t n;

    desc_text(&run->desc, buf, cap);
    n = strlen(buf);
    if (run->w->op.bucket >= 0 && !run->w->is_region)
        (void)snprintf(buf + n, cap - n, " (bucket %d)", run->w->op.bucket);
}

/* Every rank looks at the same descriptors and so comes to the same sentence. */
static cddp_status compare(const struct run *run, struct cdi_error *err)
{
    const struct cdi_team *t = run->t;
    const struct cdi_shm_desc *first = &t->shm->ranks[0].desc[t->step & 1u];

    for (int r = 1; r < t->size; r++) {
        const struct cdi_shm_desc *other = &t->shm->ranks[r].desc[t->step & 1u];
        char a[160], b[160];

        if (memcmp(first, other, sizeof *first) == 0)
            continue;
        desc_text(first, a, sizeof a);
        desc_text(other, b, sizeof b);
        return cdi_fail(err, CDDP_E_MISMATCH, "ranks called different collectives: rank 0 called %s, rank %d called %s",
                        a, r, b);
    }
    return CDDP_OK;
}

/* ---------------------------------------------------------------------------------------------------- steps --------
 */

/* This rank's slot, and that of others, in the step that comes next. */
static uint8_t *next_slot(const struct cdi_team *t)
{
    return cdi_shm_slot(t->shm, t->rank, t->step + 1);
}

static const uint8_t *slot_of(const struct cdi_team *t, int rank)
{
    return cdi_shm_slot(t->shm, rank, t->step);
}

/* What this rank wrote becomes visible; on return what all ranks wrote is. The first step compares the operations. */
static cddp_status step(struct run *run, struct cdi_error *err)
{
    struct cdi_team *t = run->t;
    struct cdi_shm_rank *me = &t->shm->ranks[t->rank];
    uint32_t s = t->step + 1;
    cddp_status st;

    if (!run->begun)
        me->desc[s & 1u] = run->desc;
    cdi_counter_post(&me->posted, s);
    t->step = s;
    st = cdi_wait_all(&t->wait, s, run->on_thread, what, run, err);
    if (st == CDDP_OK && !run->begun) {
        run->begun = true;
        st = compare(run, err);
    }
    return st;
}

/* Rank's part of n elements: whole cache lines, except at the end. */
static void share(size_t n, size_t size, int rank, int n_ranks, size_t *lo, size_t *hi)
{
    size_t line = 64 / size, per = (n + (size_t)n_ranks - 1) / (size_t)n_ranks;

    per = (per + line - 1) / line * line;
    *lo = per * (size_t)rank < n ? per * (size_t)rank : n;
    *hi = n - *lo < per ? n : *lo + per;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ------------------------------------------------------------------------------------------------ all-reduce -------
 */

static cddp_status reduce_small(struct run *run, struct cdi_error *err)
{
    struct cdi_team *t = run->t;
    const struct cdi_op *op = &run->w->op;
    void *out = op->out;
    cddp_status st;

    if (op->count > 0)
        memcpy(next_slot(t), op->in, op->count * cddp_dtype_size(op->dtype));
    st = step(run, err);
    if (st != CDDP_OK || op->count == 0)
        return st;
    for (int r = 0; r < t->size; r++)
        t->in[r] = slot_of(t, r);
    cdi_reduce(&out, 1, t->in, t->size, op->count, op->dtype, op->op);
    return CDDP_OK;
}

/* A stretch of private data that fits a slot; in elements. */
struct piece {
    size_t at, n;
};

static struct piece piece_of(const struct cdi_op *op, size_t k)
{
    size_t most = CDI_SHM_PIECE_BYTES / cddp_dtype_size(op->dtype), at = k * most;

    return (struct piece){.at = at, .n = op->count - at < most ? op->count - at : most};
}

/* Offer everything but what this rank reduces itself. */
static void offer_piece(const struct cdi_team *t, const struct cdi_op *op, struct piece p)
{
    size_t size = cddp_dtype_size(op->dtype), lo, hi;
    const uint8_t *in = (const uint8_t *)op->in + p.at * size;

    share(p.n, size, t->rank, t->size, &lo, &hi);
    memcpy(next_slot(t), in, lo * size);
    memcpy(next_slot(t) + hi * size, in + hi * size, (p.n - hi) * size);
}

/* Reduce this rank's share of what all have offered in this step; others find it in the next. */
static void reduce_share(const struct cdi_team *t, const struct cdi_op *op, struct piece p)
{
    size_t size = cddp_dtype_size(op->dtype), lo, hi;
    void *to[2];

    share(p.n, size, t->rank, t->size, &lo, &hi);
    for (int r = 0; r < t->size; r++)
        t->in[r] = (r == t->rank ? (const uint8_t *)op->in + p.at * size : slot_of(t, r)) + lo * size;
    to[0] = (uint8_t *)op->out + (p.at + lo) * size;
    to[1] = next_slot(t) + CDI_SHM_PIECE_BYTES;
    cdi_reduce(to, 2, t->in, t->size, hi - lo, op->dtype, op->op);
}

static void collect_shares(const struct cdi_team *t, const struct cdi_op *op, struct piece p)
{
    size_t size = cddp_dtype_size(op->dtype), lo, hi;

    for (int r = 0; r < t->size; r++) {
        share(p.n, size, r, t->size, &lo, &hi);
        if (r != t->rank)
            memcpy((uint8_t *)op->out + (p.at + lo) * size, slot_of(t, r) + CDI_SHM_PIECE_BYTES, (hi - lo) * size);
    }
}

/* A pipeline: one step carries the inputs of one piece and the results of the piece before it. */
static cddp_status reduce_staged(struct run *run, struct cdi_error *err)
{
    struct cdi_team *t = run->t;
    const struct cdi_op *op = &run->w->op;
    size_t most = CDI_SHM_PIECE_BYTES / cddp_dtype_size(op->dtype), n_pieces = (op->count + most - 1) / most;

    for (size_t k = 0; k <= n_pieces; k++) {
        cddp_status st;

        if (k < n_pieces)
            offer_piece(t, op, piece_of(op, k));
        st = step(run, err);
        if (st != CDDP_OK)
            return st;
        if (k > 0)
            collect_shares(t, op, piece_of(op, k - 1));
        if (k < n_pieces)
            reduce_share(t, op, piece_of(op, k));
    }
    return CDDP_OK;
}

/* In shared memory: each rank reduces its share of all arenas and writes it into all arenas. */
static cddp_status reduce_direct(struct run *run, struct cdi_error *err)
{
    struct cdi_team *t = run->t;
    const struct cdi_op *op = &run->w->op;
    const struct cdi_cpu_region *region = (const struct cdi_cpu_region *)op->region;
    size_t size = cddp_dtype_size(op->dtype), lo, hi;
    cddp_status st = step(run, err);

    if (st != CDDP_OK)
        return st;
    share(op->count, size, t->rank, t->size, &lo, &hi);
    for (int r = 0; r < t->size; r++) {
        t->out[r] = (uint8_t *)region->part[r] + run->desc.offset + lo * size;
        t->in[r] = t->out[r];
    }
    cdi_reduce(t->out, t->size, t->in, t->size, hi - lo, op->dtype, op->op);
    return step(run, err);
}

static cddp_status all_reduce(struct run *run, struct cdi_error *err)
{
    const struct cdi_op *op = &run->w->op;

    if (op->count * cddp_dtype_size(op->dtype) <= CDI_SMALL_BYTES)
        return reduce_small(run, err);
    return op->region != NULL ? reduce_direct(run, err) : reduce_staged(run, err);
}

/* ---------------------------------------------------------------------------------------------------- others -------
 */

static cddp_status broadcast(struct run *run, struct cdi_error *err)
{
    struct cdi_team *t = run->t;
    const struct cdi_op *op = &run->w->op;
    size_t bytes = op->count * cddp_dtype_size(op->dtype), at = 0;
    uint8_t *buf = op->out;

    do {
        size_t n = smaller(CDI_SHM_PIECE_BYTES, bytes - at);
        cddp_status st;

        if (t->rank == op->root && n > 0)
            memcpy(next_slot(t), buf + at, n);
        st = step(run, err);
        if (st != CDDP_OK)
            return st;
        if (t->rank != op->root && n > 0)
            memcpy(buf + at, slot_of(t, op->root), n);
        at += n;
    } while (at < bytes);
    return CDDP_OK;
}

static cddp_status all_gather(struct run *run, struct cdi_error *err)
{
    struct cdi_team *t = run->t;
    const struct cdi_op *op = &run->w->op;
    size_t bytes = op->count * cddp_dtype_size(op->dtype), at = 0;
    uint8_t *out = op->out, *mine = out + (size_t)t->rank * bytes;

    if (bytes > 0 && op->in != mine)
        memcpy(mine, op->in, bytes);
    do {
        size_t n = smaller(CDI_SHM_PIECE_BYTES, bytes - at);
        cddp_status st;

        if (n > 0)
            memcpy(next_slot(t), mine + at, n);
        st = step(run, err);
        if (st != CDDP_OK)
            return st;
        for (int r = 0; r < t->size && n > 0; r++)
            if (r != t->rank)
                memcpy(out + (size_t)r * bytes + at, slot_of(t, r), n);
        at += n;
    } while (at < bytes);
    return CDDP_OK;
}

/* ---------------------------------------------------------------------------------------------------- regions ------
 */

static struct cdi_cpu_region *region_alloc(struct cdi_team *t, size_t bytes)
{
    struct cdi_cpu_region *region = calloc(1, sizeof *region);

    if (region == NULL)
        return NULL;
    region->part = calloc((size_t)t->size, sizeof *region->part);
    if (region->part == NULL) {
        free(region);
        return NULL;
    }
    region->id = ++t->n_regions;
    region->pub.bytes = bytes;
    return region;
}

/* Tell all ranks how it went here; the first failure is everybody's. */
static cddp_status agree(struct run *run, cddp_status mine, const struct cdi_error *why, struct cdi_error *agreed,
                         struct cdi_error *err)
{
    struct cdi_team *t = run->t;
    struct cdi_shm_rank *me = &t->shm->ranks[t->rank];
    cddp_status st;

    me->report_status = (int32_t)mine;
    (void)snprintf(me->report, sizeof me->report, "%.500s", mine == CDDP_OK ? "" : why->msg);
    st = step(run, err);
    if (st != CDDP_OK)
        return st;
    for (int r = 0; r < t->size; r++) {
        const struct cdi_shm_rank *other = &t->shm->ranks[r];

        if (other->report_status == CDDP_OK)
            continue;
        (void)cdi_fail(agreed, (cddp_status)other->report_status, "cannot share %zu bytes with each rank: %s",
                       run->w->region_bytes, other->report);
        return CDDP_OK;
    }
    agreed->status = CDDP_OK;
    return CDDP_OK;
}

static cddp_status region_create(struct run *run, struct cdi_error *err)
{
    struct cdi_team *t = run->t;
    const struct cdi_work *w = run->w;
    struct cdi_cpu_region *region;
    struct cdi_error why;
    bool broken = false;
    cddp_status mine, st = step(run, err);

    if (st != CDDP_OK)
        return st;
    region = region_alloc(t, w->region_bytes);
    if (region == NULL) /* rare enough to end the communicator over it: peers are told by the abort word */
        return cdi_fail(err, CDDP_E_NOMEM, "rank %d: out of memory", t->rank);
    mine = cdi_handover_parts(&t->wait, w->region_bytes, region->part, &broken, &why);
    if (broken)
        st = cdi_fail(err, mine, "making shared memory: %.900s", why.msg);
    else
        st = agree(run, mine, &why, w->region_err, err);
    if (st == CDDP_OK && w->region_err->status == CDDP_OK) {
        region->pub.base = region->part[t->rank];
        *w->region_out = &region->pub;
        return CDDP_OK;
    }
    cdi_team_region_destroy(t, &region->pub);
    return st;
}

void cdi_team_region_destroy(struct cdi_team *t, struct cdi_region *pub)
{
    struct cdi_cpu_region *region = (struct cdi_cpu_region *)pub;

    if (region == NULL)
        return;
    if (t->shm == NULL)
        free(region->part[0]);
    else
        for (int r = 0; r < t->size; r++)
            cdi_shm_unmap(&t->shm->mapper, region->part[r], region->pub.bytes);
    free(region->part);
    free(region);
}

/* ------------------------------------------------------------------------------------------------ a world of one ---
 */

static cddp_status region_alone(struct cdi_team *t, const struct cdi_work *w)
{
    struct cdi_cpu_region *region = region_alloc(t, w->region_bytes);
    void *mem = region == NULL ? NULL : aligned_alloc(4096, w->region_bytes);

    if (mem == NULL) {
        if (region != NULL)
            free(region->part);
        free(region);
        (void)cdi_fail(w->region_err, CDDP_E_NOMEM, "out of memory for %zu bytes", w->region_bytes);
        return CDDP_OK;
    }
    memset(mem, 0, w->region_bytes);
    region->part[0] = mem;
    region->pub.base = mem;
    *w->region_out = &region->pub;
    w->region_err->status = CDDP_OK;
    return CDDP_OK;
}

static cddp_status run_alone(struct cdi_team *t, const struct cdi_work *w)
{
    const struct cdi_op *op = &w->op;

    if (w->is_region)
        return region_alone(t, w);
    if ((op->kind == CDI_ALL_REDUCE || op->kind == CDI_ALL_GATHER) && op->in != op->out && op->count > 0)
        memcpy(op->out, op->in, op->count * cddp_dtype_size(op->dtype));
    return CDDP_OK;
}

cddp_status cdi_team_run(struct cdi_team *t, const struct cdi_work *work, bool on_thread, struct cdi_error *err)
{
    struct run run = {.t = t, .w = work, .on_thread = on_thread};
    cddp_status st;

    if (t->size == 1)
        return run_alone(t, work);
    st = cdi_wait_check(&t->wait, err);
    if (st != CDDP_OK)
        return st;
    run.desc = describe(work);
    if (work->is_region)
        return region_create(&run, err);
    switch (work->op.kind) {
    case CDI_ALL_REDUCE:
        return all_reduce(&run, err);
    case CDI_BROADCAST:
        return broadcast(&run, err);
    case CDI_ALL_GATHER:
        return all_gather(&run, err);
    case CDI_BARRIER:
        return step(&run, err);
    }
    return cdi_fail(err, CDDP_E_INVALID, "no such collective");
}
