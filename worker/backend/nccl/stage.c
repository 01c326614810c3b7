/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on host memory: it is copied through a block of pinned memory to a block of the device's, and results take
 * the same way back, so that no caller's thread waits for a pageable copy that itself waits for peers. Results reach
 * the caller's memory when the operation is joined.
 *
 * The driver may wait for all work on the GPU while it allocates or frees memory, and so for peers. Therefore a few
 * small blocks are allocated at creation, enough for agreements; others are allocated at first use, and used again.
 * Large ones are freed when nothing is in flight.
 */
#include "worker/backend/nccl/stage.h"

#include "worker/backend/nccl/state/ring.h"

#include <string.h>

#define SMALLEST_BLOCK ((size_t)64 << 10)
#define KEPT_BLOCK ((size_t)64 << 20)
#define FIRST_BLOCKS 4 /* of the smallest size */
#define ALIGN 256u

/* Computes the bytes that this rank contributes and receives. */
static void stage_sizes(const struct cdi_backend *b, const struct cdi_coll *op, size_t *in, size_t *out)
{
    size_t size = cddp_dtype_size(op->dtype), n = op->count * size, all = n * (size_t)b->world.size,
           rank = (size_t)b->world.rank;
    bool root = op->root == b->world.rank;

    *in = *out = n;
    switch (op->kind) {
    case CDI_ALL_REDUCE:
        break;
    case CDI_BROADCAST:
        *in = root ? n : 0;
        *out = root && op->in == op->out ? 0 : n;
        break;
    case CDI_REDUCE:
        *out = root ? n : 0;
        break;
    case CDI_ALL_GATHER:
        *out = all;
        break;
    case CDI_REDUCE_SCATTER:
        *in = all;
        break;
    case CDI_ALL_TO_ALL:
        *in = *out = all;
        break;
    case CDI_ALL_GATHERV:
        *in = op->counts[rank] * size;
        *out = 0;
        for (int r = 0; r < b->world.size; r++)
            *out += op->counts[r] * size;
        break;
    case CDI_SEND:
        *out = 0;
        break;
    case CDI_RECV:
        *in = 0;
        break;
    case CDI_BARRIER:
        *in = *out = 0;
        break;
    }
}

/*
 * Releases the blocks of operations that are done and have no result, which may never be joined. With `lock`, the
 * context current.
 */
static void stage_reuse(struct cdi_backend *b)
{
    struct cdi_staging **at = &b->results;

    if (*at != NULL)
        (void)cdi_ring_poll(b);
    while (*at != NULL) {
        struct cdi_staging *s = *at;

        if (s->out_bytes > 0 || !cdi_ring_is_done(b, s->ticket) || s->cap > KEPT_BLOCK) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        cdi_stage_release(b, s);
    }
}

/* Returns the smallest free block that is large enough, or NULL. */
static struct cdi_staging *stage_get(struct cdi_backend *b, size_t bytes)
{
    struct cdi_staging **best = NULL, *s = NULL;

    for (struct cdi_staging **at = &b->free_staging; *at != NULL; at = &(*at)->next)
        if ((*at)->cap >= bytes && (best == NULL || (*at)->cap < (*best)->cap))
            best = at;
    if (best != NULL) {
        s = *best;
        *best = s->next;
    }
    return s;
}

void cdi_stage_release(struct cdi_backend *b, struct cdi_staging *s)
{
    s->next = b->free_staging;
    b->free_staging = s;
}

static void stage_free_block(struct cdi_staging *s)
{
    if (s->device != NULL)
        (void)cdi_cuda.memory_free(cdi_device_ptr(s->device));
    if (s->pinned != NULL)
        (void)cdi_cuda.pinned_free(s->pinned);
    cdi_host->release(s);
}

/*
 * Allocates a block. Half a block is kept until nothing is in flight, since freeing it may wait for that. Without
 * `lock`.
 */
static cddp_status stage_new(struct cdi_backend *b, struct cdi_staging **out, size_t bytes, struct cdi_error *err)
{
    struct cdi_staging *s = cdi_host->alloc(1, sizeof *s);
    CUdeviceptr device;
    void *pinned;
    cddp_status st;

    if (s == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    for (s->cap = SMALLEST_BLOCK; s->cap < bytes;)
        s->cap *= 2;
    st = cdi_cuda_check(cdi_cuda.pinned_alloc(&pinned, s->cap, 0), "allocating pinned memory for a collective", err);
    if (st == CDDP_OK) {
        s->pinned = pinned;
        st = cdi_cuda_check(cdi_cuda.memory_alloc(&device, s->cap), "allocating GPU memory for a collective", err);
    }
    if (st != CDDP_OK) {
        s->cap = 0;
        (void)pthread_mutex_lock(&b->lock);
        cdi_stage_release(b, s);
        (void)pthread_mutex_unlock(&b->lock);
        return st;
    }
    s->device = (uint8_t *)(uintptr_t)device;
    *out = s;
    return CDDP_OK;
}

cddp_status cdi_stage_open(struct cdi_backend *b, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    for (int i = 0; i < FIRST_BLOCKS && st == CDDP_OK; i++) {
        struct cdi_staging *s;

        st = stage_new(b, &s, SMALLEST_BLOCK, err);
        if (st != CDDP_OK)
            return st;
        cdi_stage_release(b, s);
    }
    return st;
}

/* Finds out whether p is host memory. If nothing is moved, it is not checked. */
static cddp_status stage_is_host(const struct cdi_backend *b, const void *p, size_t bytes, bool *on_host,
                                 struct cdi_error *err)
{
    bool on_device = true;
    cddp_status st = bytes > 0 ? cdi_device_owns(&b->device, p, &on_device, err) : CDDP_OK;

    *on_host = !on_device;
    return st;
}

/* Computes the bytes of input and result, and finds out whether they are host memory. */
static cddp_status stage_inspect(const struct cdi_backend *b, const struct cdi_coll *op, size_t *in, size_t *back,
                                 bool *in_host, bool *out_host, struct cdi_error *err)
{
    cddp_status st;

    *in = *back = 0;
    *in_host = *out_host = false;
    if (op->region != NULL || op->known || op->kind == CDI_BARRIER)
        return CDDP_OK;
    stage_sizes(b, op, in, back);
    st = stage_is_host(b, op->in, *in, in_host, err);
    *out_host = *in_host;
    if (st == CDDP_OK && (*in == 0 || op->out != op->in))
        st = stage_is_host(b, op->out, *back, out_host, err);
    *out_host = *out_host && *back > 0;
    return st;
}

cddp_status cdi_stage_is_needed(const struct cdi_backend *b, const struct cdi_coll *op, bool *is, struct cdi_error *err)
{
    size_t in, back;
    bool in_host, out_host;
    cddp_status st = stage_inspect(b, op, &in, &back, &in_host, &out_host, err);

    *is = in_host || out_host;
    return st;
}

/* The result would arrive only with a join, and a graph would repeat its copies. */
cddp_status cdi_stage_reject(struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_INVALID,
                    "host memory cannot be used in stream order: pass GPU memory, or call "
                    "cddp_coll_start and cddp_coll_wait");
}

cddp_status cdi_stage_prepare(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_staging **out,
                              struct cdi_error *err)
{
    size_t in, back, at = 0;
    bool in_host, out_host;
    struct cdi_staging *s;
    cddp_status st = stage_inspect(b, op, &in, &back, &in_host, &out_host, err);

    *out = NULL;
    if (st != CDDP_OK || (!in_host && !out_host))
        return st;
    if (op->streamed)
        return cdi_stage_reject(err);
    if (in_host && out_host && op->in != op->out)
        at = (in + ALIGN - 1) / ALIGN * ALIGN;
    (void)pthread_mutex_lock(&b->lock);
    stage_reuse(b);
    s = stage_get(b, at + (in > back ? in : back));
    (void)pthread_mutex_unlock(&b->lock);
    if (s == NULL && stage_new(b, &s, at + (in > back ? in : back), err) != CDDP_OK)
        return err != NULL ? err->status : CDDP_E_NOMEM;
    s->in_bytes = in_host ? in : 0;
    s->out_bytes = out_host ? back : 0;
    s->out_at = at;
    s->out = out_host ? op->out : NULL;
    s->next = NULL;
    if (in_host)
        memcpy(s->pinned, op->in, in);
    *out = s;
    return CDDP_OK;
}

void cdi_stage_add_result(struct cdi_backend *b, struct cdi_staging *s)
{
    struct cdi_staging **end = &b->results;

    while (*end != NULL)
        end = &(*end)->next;
    s->ticket = b->enqueued;
    *end = s;
}

cddp_status cdi_stage_in(struct cdi_backend *b, struct cdi_ring_op *part, struct cdi_error *err)
{
    struct cdi_staging *s = part->staged;
    struct cdi_coll *op = &part->op;
    bool one = op->kind == CDI_BROADCAST && op->in == op->out; /* one buffer for both */

    if (s == NULL)
        return CDDP_OK;
    if (s->in_bytes > 0)
        op->in = s->device;
    if (s->out_bytes > 0)
        op->out = s->device + s->out_at;
    if (one)
        op->in = op->out = s->device;
    if (s->in_bytes == 0)
        return CDDP_OK;
    return cdi_cuda_check(cdi_cuda.to_device(cdi_device_ptr(s->device), s->pinned, s->in_bytes, b->device.stream),
                          "copying to the GPU", err);
}

cddp_status cdi_stage_out(struct cdi_backend *b, const struct cdi_ring_op *part, struct cdi_error *err)
{
    const struct cdi_staging *s = part->staged;

    if (s == NULL || s->out_bytes == 0)
        return CDDP_OK;
    return cdi_cuda_check(
        cdi_cuda.to_host(s->pinned + s->out_at, cdi_device_ptr(s->device + s->out_at), s->out_bytes, b->device.stream),
        "copying from the GPU", err);
}

/* Takes free blocks that are too large to be kept, and halves. */
static struct cdi_staging *stage_take_large(struct cdi_backend *b)
{
    struct cdi_staging **at = &b->free_staging, *large = NULL;

    while (*at != NULL) {
        struct cdi_staging *s = *at;

        if (s->cap > 0 && s->cap <= KEPT_BLOCK) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        s->next = large;
        large = s;
    }
    return large;
}

void cdi_stage_deliver(struct cdi_backend *b, uint64_t ticket)
{
    while (b->results != NULL && b->results->ticket <= ticket) {
        struct cdi_staging *s = b->results;

        b->results = s->next;
        if (s->out_bytes > 0)
            memcpy(s->out, s->pinned + s->out_at, s->out_bytes);
        cdi_stage_release(b, s);
    }
    if (ticket > atomic_load(&b->delivered))
        atomic_store(&b->delivered, ticket);
}

struct cdi_staging *cdi_stage_finish(struct cdi_backend *b, uint64_t ticket)
{
    cdi_stage_deliver(b, ticket);
    return cdi_ring_is_done(b, b->enqueued) ? stage_take_large(b) : NULL;
}

void cdi_stage_free(struct cdi_staging *list)
{
    while (list != NULL) {
        struct cdi_staging *s = list;

        list = s->next;
        stage_free_block(s);
    }
}
