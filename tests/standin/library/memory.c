/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A table of allocations. Device memory is heap memory, so that a sanitizer sees its ends, and its addresses carry a
 * tag in bits 48 to 55 that no processor accepts: a host that dereferences one crashes at that place.
 */
#include "core.h"

#include <stdlib.h>

#define ALLOCS 65536
#define TAG_SHIFT 48
#define TAG_MASK ((uintptr_t)0xff << TAG_SHIFT)
#define TAG_DEVICE ((uintptr_t)0xd0 << TAG_SHIFT)

static struct si_alloc *table[ALLOCS];
static size_t n_allocs;
static uint64_t n_ever, n_freed;

bool si_is_hosts(enum si_memory kind)
{
    return kind == SI_PINNED || kind == SI_MANAGED;
}

bool si_is_tagged(const void *at)
{
    return ((uintptr_t)at & ((uintptr_t)0xf0 << TAG_SHIFT)) == TAG_DEVICE;
}

void *standin_host(const void *device)
{
    return (void *)(si_is_tagged(device) ? (uintptr_t)device & ~TAG_MASK : (uintptr_t)device);
}

struct si_alloc *si_find_locked(const void *at, size_t bytes)
{
    const char *host = standin_host(at);

    for (size_t i = 0; i < n_allocs; i++) {
        struct si_alloc *a = table[i];

        if (host >= a->host && host < a->host + a->bytes && bytes <= (size_t)(a->host + a->bytes - host) &&
            si_is_hosts(a->kind) != si_is_tagged(at))
            return a;
    }
    return NULL;
}

void si_count_memory_locked(unsigned *device, unsigned *pinned)
{
    *device = *pinned = 0;
    for (size_t i = 0; i < n_allocs; i++)
        *(table[i]->kind == SI_PINNED ? pinned : device) += 1;
}

uint64_t standin_allocations(void)
{
    uint64_t n;

    si_lock();
    n = n_ever + n_freed;
    si_unlock();
    return n;
}

static CUresult enter_table(struct si_alloc *a)
{
    CUresult rc = CUDA_SUCCESS;

    si_lock();
    if (n_allocs == ALLOCS || (a->kind != SI_PINNED && a->bytes > si_settings.device_memory - a->ctx->used)) {
        rc = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        table[n_allocs++] = a;
        a->number = ++n_ever;
        if (a->kind != SI_PINNED)
            a->ctx->used += a->bytes;
    }
    si_unlock();
    return rc;
}

CUresult si_alloc(enum si_memory kind, size_t bytes, size_t align, void **out)
{
    CUcontext ctx = si_current();
    struct si_alloc *a;
    void *p = NULL;

    if (ctx == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (bytes == 0 || out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (kind != SI_PINNED && bytes > si_settings.device_memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    a = calloc(1, sizeof *a);
    if (a == NULL || posix_memalign(&p, align, bytes) != 0) {
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *a =
        (struct si_alloc){.kind = kind, .host = p, .bytes = bytes, .ctx = ctx, .of_no_context = kind == SI_NCCL_MEMORY};
    if (enter_table(a) != CUDA_SUCCESS) {
        free(p);
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    si_touch_fill(p, 0xff, 1, bytes);
    *out = si_is_hosts(kind) ? p : (void *)((uintptr_t)p | TAG_DEVICE | (uintptr_t)ctx->device << TAG_SHIFT);
    return CUDA_SUCCESS;
}

/* Take the allocation that begins at `at` out of the table. */
static struct si_alloc *leave_table(const void *at, enum si_memory kind, const char *function)
{
    struct si_alloc *a = NULL;

    si_lock();
    for (size_t i = 0; i < n_allocs && a == NULL; i++) {
        if (table[i]->host != standin_host(at) || table[i]->kind != kind)
            continue;
        a = table[i];
        if (a->registered > 0)
            si_fault("%s: memory %llu is freed while it is registered with NCCL", function,
                     (unsigned long long)a->number);
        table[i] = table[--n_allocs];
        n_freed++;
        if (kind != SI_PINNED)
            a->ctx->used -= a->bytes;
    }
    si_unlock();
    return a;
}

CUresult si_free(const void *at, enum si_memory kind, const char *function)
{
    CUcontext ctx = NULL;
    struct si_alloc *a;

    si_lock();
    a = si_find_locked(at, 1);
    if (a != NULL && a->kind == kind && a->host == standin_host(at))
        ctx = a->ctx;
    si_unlock();
    if (ctx == NULL) {
        si_refused("%s: %p is not such memory, or has been freed", function, at);
        return CUDA_ERROR_INVALID_VALUE;
    }
    si_context_hold();
    (void)si_synchronise(ctx);
    si_context_let_go();
    a = leave_table(at, kind, function);
    if (a == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    si_history_release(&a->history);
    free(a->host);
    free(a);
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------ the driver's functions */

SI_EXPORT CUresult cuMemAlloc(CUdeviceptr *dptr, size_t bytesize)
{
    CUresult rc = si_enter_alloc("cuMemAlloc");
    void *at = NULL;

    if (rc == CUDA_SUCCESS)
        rc = si_capture_unsafe("cuMemAlloc");
    if (rc == CUDA_SUCCESS)
        rc = si_alloc(SI_DEVICE, bytesize, 512, &at);
    if (rc == CUDA_SUCCESS)
        *dptr = (CUdeviceptr)at;
    return rc;
}

/* Memory that host and devices use by the same address; here host memory, without a tag. */
SI_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    CUresult rc = si_enter_alloc("cuMemAllocManaged");
    void *at = NULL;

    if (rc == CUDA_SUCCESS && flags != CU_MEM_ATTACH_GLOBAL)
        rc = CUDA_ERROR_NOT_SUPPORTED;
    if (rc == CUDA_SUCCESS)
        rc = si_capture_unsafe("cuMemAllocManaged");
    if (rc == CUDA_SUCCESS)
        rc = si_alloc(SI_MANAGED, bytesize, 4096, &at);
    if (rc == CUDA_SUCCESS)
        *dptr = (CUdeviceptr)at;
    return rc;
}

SI_EXPORT CUresult cuMemFree(CUdeviceptr dptr)
{
    CUresult rc = si_enter("cuMemFree");

    if (rc == CUDA_SUCCESS)
        rc = si_capture_unsafe("cuMemFree");
    if (rc != CUDA_SUCCESS || dptr == 0)
        return rc;
    return si_free((const void *)dptr, si_is_tagged((const void *)dptr) ? SI_DEVICE : SI_MANAGED, "cuMemFree");
}

/* On a stream that captures, the driver would make a memory node of it, whose address lives as long as the graph. */
static CUresult is_no_node(const struct CUstream_st *s, const char *function)
{
    if (!si_stream_captures_locked(s))
        return CUDA_SUCCESS;
    si_refused("%s: the stand-in has no memory nodes of graphs", function);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* In the order of a stream, and waiting for no other: NVIDIA's "Stream Ordered Memory Allocator". */
SI_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream hStream)
{
    CUresult rc = si_enter_alloc("cuMemAllocAsync");
    struct CUstream_st *s;
    struct si_alloc *block;
    void *at = NULL;

    if (rc != CUDA_SUCCESS)
        return rc;
    si_lock();
    rc = si_stream_here_locked(hStream, "cuMemAllocAsync", &s);
    if (rc == CUDA_SUCCESS)
        rc = is_no_node(s, "cuMemAllocAsync");
    si_unlock();
    if (rc == CUDA_SUCCESS)
        rc = si_alloc(SI_DEVICE, bytesize, 512, &at);
    if (rc != CUDA_SUCCESS)
        return rc;
    si_lock();
    block = si_find_locked(at, 1);
    if (block != NULL) /* it was allocated above */
        block->of_no_context = true;
    si_unlock();
    *dptr = (CUdeviceptr)at;
    return CUDA_SUCCESS;
}

static void run_nothing(struct si_op *op)
{
    (void)op;
}

/* Enqueues the end of `at` on the stream, as an operation that writes all of it. */
static CUresult push_free(const void *at, CUstream stream, struct si_stop **stop)
{
    struct si_op *op = si_op_create("cuMemFreeAsync", run_nothing, 0);
    struct standin_ranges r = {.n = 0};
    const struct si_alloc *a;
    struct CUstream_st *s;
    CUresult rc;

    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    si_lock();
    a = si_find_locked(at, 1);
    rc = a == NULL || a->kind != SI_DEVICE || a->host != standin_host(at)
             ? CUDA_ERROR_INVALID_VALUE
             : si_stream_here_locked(stream, "cuMemFreeAsync", &s);
    if (rc == CUDA_SUCCESS)
        rc = is_no_node(s, "cuMemFreeAsync");
    if (rc == CUDA_SUCCESS) {
        si_range_add(&r, at, a->bytes, true);
        si_push_locked(s, op, &r);
        *stop = si_stop_create_locked(s);
    }
    si_unlock();
    if (rc != CUDA_SUCCESS)
        si_op_destroy(op);
    return rc;
}

/* The stand-in waits for the stream, where the driver returns at once. */
SI_EXPORT CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream)
{
    CUresult rc = si_enter("cuMemFreeAsync");
    struct si_stop *stop = NULL;
    struct si_alloc *a;

    if (rc == CUDA_SUCCESS)
        rc = push_free((const void *)dptr, hStream, &stop);
    if (rc != CUDA_SUCCESS)
        return rc;
    if (stop != NULL)
        si_stop_reach(stop);
    a = leave_table((const void *)dptr, SI_DEVICE, "cuMemFreeAsync");
    if (a == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    si_history_release(&a->history);
    free(a->host);
    free(a);
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    CUresult rc = si_enter_alloc("cuMemHostAlloc");

    (void)Flags;
    if (rc == CUDA_SUCCESS)
        rc = si_capture_unsafe("cuMemHostAlloc");
    return rc == CUDA_SUCCESS ? si_alloc(SI_PINNED, bytesize, 4096, pp) : rc;
}

SI_EXPORT CUresult cuMemFreeHost(void *p)
{
    CUresult rc = si_enter("cuMemFreeHost");

    if (rc == CUDA_SUCCESS)
        rc = si_capture_unsafe("cuMemFreeHost");
    if (rc != CUDA_SUCCESS || p == NULL)
        return rc;
    return si_free(p, SI_PINNED, "cuMemFreeHost");
}

SI_EXPORT CUresult cuMemGetInfo(size_t *free_bytes, size_t *total)
{
    CUresult rc = si_enter("cuMemGetInfo");
    CUcontext ctx = si_current();

    if (rc != CUDA_SUCCESS)
        return rc;
    if (ctx == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    si_lock();
    *total = si_settings.device_memory;
    *free_bytes = si_settings.device_memory - ctx->used;
    si_unlock();
    return CUDA_SUCCESS;
}

/* By "kernels running in the current CUcontext" (cuda.h). Contexts of one device share no addresses. */
static bool is_within_reach(const struct si_alloc *a)
{
    CUcontext here = si_current();

    return si_is_hosts(a->kind) ||
           (here != NULL && (a->of_no_context ? here->device == a->ctx->device : here == a->ctx));
}

static CUresult attribute(void *data, CUpointer_attribute which, const struct si_alloc *a, CUdeviceptr ptr)
{
    uintptr_t start = (uintptr_t)a->host | (si_is_hosts(a->kind) ? 0 : (uintptr_t)ptr & TAG_MASK);

    if (which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(CUmemorytype *)data = a->kind == SI_PINNED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    else if (which == CU_POINTER_ATTRIBUTE_CONTEXT)
        *(CUcontext *)data = a->of_no_context ? NULL : a->ctx;
    else if (which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER && !is_within_reach(a))
        return CUDA_ERROR_INVALID_VALUE;
    else if (which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
        *(CUdeviceptr *)data = ptr;
    else if (which == CU_POINTER_ATTRIBUTE_IS_MANAGED)
        *(unsigned *)data = a->kind == SI_MANAGED;
    else if (which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)data = (int)a->ctx->device;
    else if (which == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
        *(CUdeviceptr *)data = start;
    else if (which == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
        *(size_t *)data = a->bytes;
    else
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute which, CUdeviceptr ptr)
{
    CUresult rc = si_enter("cuPointerGetAttribute");
    const struct si_alloc *a;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    si_lock();
    a = si_find_locked((const void *)ptr, 1);
    rc = a == NULL ? CUDA_ERROR_INVALID_VALUE : attribute(data, which, a, ptr);
    si_unlock();
    return rc;
}

/*
 * Fills the results of the plural call for memory that CUDA does not know: NVIDIA's page has "default NULL values". For
 * the ordinal this is assumed to be a number that no device has.
 */
static CUresult no_attribute(void *data, CUpointer_attribute which)
{
    if (which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || which == CU_POINTER_ATTRIBUTE_IS_MANAGED)
        *(unsigned *)data = 0;
    else if (which == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)data = CU_DEVICE_INVALID;
    else if (which == CU_POINTER_ATTRIBUTE_CONTEXT || which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
             which == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR || which == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
        *(size_t *)data = 0;
    else
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

/* Unlike the one above, it has no error for memory that CUDA does not know. */
SI_EXPORT CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *which, void **data, CUdeviceptr ptr)
{
    CUresult rc = si_enter("cuPointerGetAttributes");
    const struct si_alloc *a;

    if (rc == CUDA_SUCCESS && (which == NULL || data == NULL))
        rc = CUDA_ERROR_INVALID_VALUE;
    if (rc != CUDA_SUCCESS)
        return rc;
    si_lock();
    a = si_find_locked((const void *)ptr, 1);
    for (unsigned i = 0; i < n && rc == CUDA_SUCCESS; i++)
        rc = a == NULL ? no_attribute(data[i], which[i]) : attribute(data[i], which[i], a, ptr);
    si_unlock();
    return rc;
}
