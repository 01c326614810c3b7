/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills, and host functions: operations of a stream that need no kernel. */
#include "stream.h"

#include <stdlib.h>

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    void *staging; /* pageable memory is read before the call returns */
};

struct fill {
    void *to;
    uint32_t value;
    size_t width, count;
};

struct host_call {
    CUhostFn fn;
    void *arg;
};

enum side { HOST, DEVICE };

static void run_copy(struct si_op *op)
{
    const struct copy *c = op->data;

    si_touch_copy(standin_host(c->to), standin_host(c->staging != NULL ? c->staging : c->from), c->bytes);
}

static void drop_copy(struct si_op *op)
{
    free(((struct copy *)op->data)->staging);
}

/*
 * Returns whether it is on the side in the function's name, and whole. *tracked: in the table, so not pageable memory
 * of the program.
 */
static bool copy_fits(const char *function, const void *at, size_t bytes, enum side side, bool *tracked)
{
    const struct si_alloc *a;
    bool device = si_is_tagged(at), managed;

    si_lock();
    a = si_find_locked(at, bytes);
    *tracked = a != NULL;
    managed = a != NULL && a->kind == SI_MANAGED;
    si_unlock();
    if (managed) /* on both sides */
        return true;
    if (at == NULL || (side == DEVICE && !device) || (side == HOST && device)) {
        si_refused("%s: %p is %s", function, at, device ? "device memory, not the host's" : "no device memory");
        return false;
    }
    if (device && !*tracked)
        si_refused("%s: %zu bytes at %p are not within one piece of device memory", function, bytes, at);
    return !device || *tracked;
}

/* pageable: of the host's memory, which a graph cannot use. */
static CUresult push_copy(const char *function, struct si_op *op, const struct standin_ranges *r, CUstream stream,
                          bool wait, bool pageable)
{
    struct CUstream_st *s;
    struct si_stop *stop = NULL;
    CUresult rc;

    si_lock();
    rc = si_stream_here_locked(stream, function, &s);
    if (rc == CUDA_SUCCESS && pageable)
        rc = si_capture_asked_stream_locked(s, function);
    if (rc == CUDA_SUCCESS) {
        si_push_locked(s, op, r);
        stop = wait ? si_stop_create_locked(s) : NULL;
    }
    si_unlock();
    if (rc != CUDA_SUCCESS)
        si_op_destroy(op);
    if (stop != NULL)
        si_stop_reach(stop);
    return rc;
}

static CUresult copy_enqueue(const char *function, void *to, enum side to_side, const void *from, enum side from_side,
                             size_t bytes, CUstream stream, bool wait)
{
    struct standin_ranges r = {.n = 0};
    bool to_tracked, from_tracked;
    struct si_op *op;
    struct copy *c;

    if (bytes == 0)
        return CUDA_SUCCESS;
    if (!copy_fits(function, to, bytes, to_side, &to_tracked) ||
        !copy_fits(function, from, bytes, from_side, &from_tracked))
        return CUDA_ERROR_INVALID_VALUE;
    op = si_op_create(function, run_copy, sizeof *c);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    c = op->data;
    op->drop = drop_copy;
    c->to = to;
    c->from = from;
    c->bytes = bytes;
    if (from_tracked)
        si_range_add(&r, from, bytes, false);
    if (to_tracked)
        si_range_add(&r, to, bytes, true);
    if (!from_tracked) {
        c->staging = malloc(bytes);
        if (c->staging != NULL)
            si_touch_copy(c->staging, from, bytes);
    }
    /* Into pageable memory the driver copies before it returns. */
    return push_copy(function, op, &r, stream, wait || !to_tracked, !from_tracked || !to_tracked);
}

SI_EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t bytes, CUstream stream)
{
    CUresult rc = si_enter("cuMemcpyHtoDAsync");

    return rc != CUDA_SUCCESS ? rc
                              : copy_enqueue("cuMemcpyHtoDAsync", (void *)dst, DEVICE, src, HOST, bytes, stream, false);
}

SI_EXPORT CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    CUresult rc = si_enter("cuMemcpyDtoHAsync");

    return rc != CUDA_SUCCESS
               ? rc
               : copy_enqueue("cuMemcpyDtoHAsync", dst, HOST, (const void *)src, DEVICE, bytes, stream, false);
}

SI_EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    CUresult rc = si_enter("cuMemcpyDtoDAsync");

    return rc != CUDA_SUCCESS ? rc
                              : copy_enqueue("cuMemcpyDtoDAsync", (void *)dst, DEVICE, (const void *)src, DEVICE, bytes,
                                             stream, false);
}

SI_EXPORT CUresult cuMemcpyHtoD(CUdeviceptr dst, const void *src, size_t bytes)
{
    CUresult rc = si_enter("cuMemcpyHtoD");

    if (rc == CUDA_SUCCESS)
        rc = si_capture_unsafe("cuMemcpyHtoD");
    return rc != CUDA_SUCCESS ? rc : copy_enqueue("cuMemcpyHtoD", (void *)dst, DEVICE, src, HOST, bytes, NULL, true);
}

SI_EXPORT CUresult cuMemcpyDtoH(void *dst, CUdeviceptr src, size_t bytes)
{
    CUresult rc = si_enter("cuMemcpyDtoH");

    if (rc == CUDA_SUCCESS)
        rc = si_capture_unsafe("cuMemcpyDtoH");
    return rc != CUDA_SUCCESS ? rc
                              : copy_enqueue("cuMemcpyDtoH", dst, HOST, (const void *)src, DEVICE, bytes, NULL, true);
}

/* ---------------------------------------------------------------------------------------------------------- fills --
 */

static void run_fill(struct si_op *op)
{
    const struct fill *f = op->data;

    si_touch_fill(standin_host(f->to), f->value, f->width, f->count);
}

static CUresult fill_enqueue(const char *function, void *to, uint32_t value, size_t width, size_t count,
                             CUstream stream)
{
    struct standin_ranges r = {.n = 0};
    struct si_op *op;
    struct fill *f;
    bool tracked;

    if (count == 0)
        return CUDA_SUCCESS;
    if (count > SIZE_MAX / width || (uintptr_t)to % width != 0 ||
        !copy_fits(function, to, count * width, DEVICE, &tracked))
        return CUDA_ERROR_INVALID_VALUE;
    op = si_op_create(function, run_fill, sizeof *f);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    f = op->data;
    f->to = to;
    f->value = value;
    f->width = width;
    f->count = count;
    si_range_add(&r, to, count * width, true);
    return push_copy(function, op, &r, stream, false, false);
}

SI_EXPORT CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char uc, size_t N, CUstream hStream)
{
    CUresult rc = si_enter("cuMemsetD8Async");

    return rc != CUDA_SUCCESS ? rc : fill_enqueue("cuMemsetD8Async", (void *)dst, uc, 1, N, hStream);
}

SI_EXPORT CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int ui, size_t N, CUstream hStream)
{
    CUresult rc = si_enter("cuMemsetD32Async");

    return rc != CUDA_SUCCESS ? rc : fill_enqueue("cuMemsetD32Async", (void *)dst, ui, 4, N, hStream);
}

/* ------------------------------------------------------------------------------------------------- host functions --
 */

static void run_host_call(struct si_op *op)
{
    const struct host_call *h = op->data;

    si_thread.in_host_function = true;
    h->fn(h->arg);
    si_thread.in_host_function = false;
}

SI_EXPORT CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void *userData)
{
    CUresult rc = si_enter("cuLaunchHostFunc");
    struct standin_ranges none = {.n = 0};
    struct si_op *op;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (fn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    op = si_op_create("host function", run_host_call, sizeof(struct host_call));
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *(struct host_call *)op->data = (struct host_call){.fn = fn, .arg = userData};
    return push_copy("cuLaunchHostFunc", op, &none, hStream, false, false);
}
