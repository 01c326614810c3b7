/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuBLAS's matrix products as operations of a stream: what a program needs that opens it by name. The functions and
 * their numbers are those of cublas_api.h and library_types.h of CUDA 12, which need not be installed. A product on a
 * stream that is being captured needs a workspace of the program's: without one the library would allocate (cuBLAS
 * manual, "CUDA Graphs Support", and cublasSetWorkspace(), which says that cublasSetStream() takes it away).
 */
#include "blas.h"
#include "core.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    STATUS_SUCCESS = 0,
    STATUS_NOT_INITIALIZED = 1,
    STATUS_ALLOC_FAILED = 3,
    STATUS_INVALID_VALUE = 7,
    STATUS_EXECUTION_FAILED = 13,
    STATUS_NOT_SUPPORTED = 15
};
enum { COMPUTE_32F = 68, GEMM_DEFAULT = -1, MAGIC = 0x5e4e700b };

struct handle {
    uint32_t magic;
    CUstream stream;
    char *workspace; /* NULL: cuBLAS's own */
    size_t workspace_bytes;
};

/* cublas_api.h is not there to declare them. */
SI_EXPORT int cublasCreate_v2(struct handle **out);
SI_EXPORT int cublasDestroy_v2(struct handle *h);
SI_EXPORT int cublasSetStream_v2(struct handle *h, CUstream stream);
SI_EXPORT int cublasSetWorkspace_v2(struct handle *h, void *workspace, size_t bytes);
SI_EXPORT int cublasSetMathMode(struct handle *h, int mode);
SI_EXPORT int cublasGemmEx(struct handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                           int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c,
                           int c_type, int ldc, int compute, int algorithm);
SI_EXPORT int cublasGemmStridedBatchedEx(struct handle *h, int ta, int tb, int m, int n, int k, const void *alpha,
                                         const void *a, int a_type, int lda, long long stride_a, const void *b,
                                         int b_type, int ldb, long long stride_b, const void *beta, void *c, int c_type,
                                         int ldc, long long stride_c, int batch, int compute, int algorithm);

static bool is_handle(const struct handle *h)
{
    return h != NULL && h->magic == MAGIC;
}

int cublasCreate_v2(struct handle **out)
{
    if (si_enter_alloc("cublasCreate") != CUDA_SUCCESS || si_current() == NULL)
        return STATUS_NOT_INITIALIZED;
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return STATUS_ALLOC_FAILED;
    (*out)->magic = MAGIC;
    return STATUS_SUCCESS;
}

int cublasDestroy_v2(struct handle *h)
{
    if (si_enter("cublasDestroy") != CUDA_SUCCESS || !is_handle(h))
        return STATUS_NOT_INITIALIZED;
    h->magic = 0;
    free(h);
    return STATUS_SUCCESS;
}

int cublasSetStream_v2(struct handle *h, CUstream stream)
{
    if (si_enter("cublasSetStream") != CUDA_SUCCESS || !is_handle(h))
        return STATUS_NOT_INITIALIZED;
    h->stream = stream;
    h->workspace = NULL;
    return STATUS_SUCCESS;
}

int cublasSetWorkspace_v2(struct handle *h, void *workspace, size_t bytes)
{
    if (si_enter("cublasSetWorkspace") != CUDA_SUCCESS || !is_handle(h))
        return STATUS_NOT_INITIALIZED;
    if ((uintptr_t)workspace % 256 != 0) /* "must be aligned to at least 256 bytes" */
        return STATUS_INVALID_VALUE;
    h->workspace = workspace;
    h->workspace_bytes = bytes;
    return STATUS_SUCCESS;
}

int cublasSetMathMode(struct handle *h, int mode)
{
    if (si_enter("cublasSetMathMode") != CUDA_SUCCESS || !is_handle(h))
        return STATUS_NOT_INITIALIZED;
    return mode == 0 || mode == 16 ? STATUS_SUCCESS : STATUS_NOT_SUPPORTED;
}

/* ------------------------------------------------------------------------------------------------------- products --
 */

static void run_product(struct si_op *op)
{
    struct si_product p = *(const struct si_product *)op->data;
    int fault = si_planted_kernel();

    if (fault != 0) {
        si_op_fault(op, (CUresult)fault);
        return;
    }
    p.a.at = standin_host(p.a.at);
    p.b.at = standin_host(p.b.at);
    p.c.at = standin_host(p.c.at);
    si_touch_product(&p);
}

static size_t size_of(int type)
{
    return type == SI_BLAS_32F ? 4 : type == SI_BLAS_16BF ? 2 : 0;
}

/* From the first number to the last one, of all of a batch. `rows` are those that lie beside each other. */
static void add_range(struct standin_ranges *r, const struct si_matrix *x, int rows, int columns, int batch, bool write)
{
    const size_t last = (size_t)x->stride * (size_t)(batch - 1) + (size_t)x->ld * (size_t)(columns - 1) + (size_t)rows;

    si_range_add(r, x->at, last * size_of(x->type), write);
}

static bool is_good(const struct si_product *p)
{
    const int rows_a = p->a.turned ? p->k : p->m, rows_b = p->b.turned ? p->n : p->k;

    return p->m > 0 && p->n > 0 && p->k > 0 && p->batch > 0 && p->a.ld >= rows_a && p->b.ld >= rows_b &&
           p->c.ld >= p->m && p->a.stride >= 0 && p->b.stride >= 0 && p->c.stride >= 0;
}

static int product(const struct handle *h, const char *function, const struct si_product *p, int compute, int algorithm)
{
    struct standin_ranges r = {.n = 0};
    struct CUstream_st *s;
    struct si_op *op;
    CUresult rc = si_enter(function);

    if (rc != CUDA_SUCCESS)
        return STATUS_EXECUTION_FAILED;
    if (!is_handle(h))
        return STATUS_NOT_INITIALIZED;
    if (!is_good(p)) {
        si_refused("%s: %d x %d x %d, %d of them, with rows of %d, %d and %d numbers", function, p->m, p->n, p->k,
                   p->batch, p->a.ld, p->b.ld, p->c.ld);
        return STATUS_INVALID_VALUE;
    }
    if (size_of(p->a.type) == 0 || p->a.type != p->b.type || (p->c.type != p->a.type && p->c.type != SI_BLAS_32F) ||
        compute != COMPUTE_32F || algorithm != GEMM_DEFAULT)
        return STATUS_NOT_SUPPORTED;
    op = si_op_create(function, run_product, sizeof *p);
    if (op == NULL)
        return STATUS_ALLOC_FAILED;
    *(struct si_product *)op->data = *p;
    add_range(&r, &p->a, p->a.turned ? p->k : p->m, p->a.turned ? p->m : p->k, p->batch, false);
    add_range(&r, &p->b, p->b.turned ? p->n : p->k, p->b.turned ? p->k : p->n, p->batch, false);
    add_range(&r, &p->c, p->m, p->n, p->batch, true);
    if (h->workspace != NULL)
        si_range_add(&r, h->workspace, h->workspace_bytes, true);
    si_lock();
    rc = si_stream_here_locked(h->stream, function, &s);
    if (rc == CUDA_SUCCESS && h->workspace == NULL && si_stream_captures_locked(s))
        si_fault("%s: on a stream that is being captured, and cublasSetWorkspace was not called after "
                 "cublasSetStream: cuBLAS would allocate",
                 function);
    if (rc == CUDA_SUCCESS)
        si_push_locked(s, op, &r);
    si_unlock();
    if (rc != CUDA_SUCCESS)
        si_op_destroy(op);
    return rc == CUDA_SUCCESS ? STATUS_SUCCESS : STATUS_EXECUTION_FAILED;
}

int cublasGemmEx(struct handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int a_type,
                 int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
                 int compute, int algorithm)
{
    const struct si_product p = {m,
                                 n,
                                 k,
                                 1,
                                 *(const float *)alpha,
                                 *(const float *)beta,
                                 {a, lda, a_type, ta != 0, 0},
                                 {b, ldb, b_type, tb != 0, 0},
                                 {c, ldc, c_type, false, 0}};

    return product(h, "cublasGemmEx", &p, compute, algorithm);
}

int cublasGemmStridedBatchedEx(struct handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                               int a_type, int lda, long long stride_a, const void *b, int b_type, int ldb,
                               long long stride_b, const void *beta, void *c, int c_type, int ldc, long long stride_c,
                               int batch, int compute, int algorithm)
{
    const struct si_product p = {m,
                                 n,
                                 k,
                                 batch,
                                 *(const float *)alpha,
                                 *(const float *)beta,
                                 {a, lda, a_type, ta != 0, stride_a},
                                 {b, ldb, b_type, tb != 0, stride_b},
                                 {c, ldc, c_type, false, stride_c}};

    return product(h, "cublasGemmStridedBatchedEx", &p, compute, algorithm);
}
