/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products by cuBLAS, opened by name at run time. Sums are made in float32. The workspace is the caller's, so
 * that no product allocates, also while a CUDA graph is captured. One stream and one workspace give the same bits in
 * every run with the same version of cuBLAS on GPUs of the same kind (cuBLAS manual, "Results Reproducibility").
 */
#ifndef GPT_CUBLAS_H
#define GPT_CUBLAS_H

#include "gpu.h"

#define CUBLAS_WORKSPACE_BYTES \
    ((size_t)32 << 20) /* what its manual recommends for Hopper, and more than older GPUs need */

/* A row-major matrix of the GPU's, or such a matrix transposed; `ld` numbers lie from row to row. */
struct matrix {
    const void *at;
    size_t ld;
    bool turned;
    size_t stride; /* numbers from one of a batch to the next */
};

/* Uses g->stream, and `workspace` of CUBLAS_WORKSPACE_BYTES on the device. g->why names what is missing. */
bool cublas_open(struct gpu *g, void *workspace);
void cublas_close(struct gpu *g);

/*
 * Enqueues c[m][n] = alpha * a[m][k] * b[k][n], or += with add, for `batch` matrices. c is as large as the others'
 * numbers, or float32 with `wide`.
 */
struct product {
    size_t m, n, k, batch;
    float alpha;
    struct matrix a, b, c;
    bool add, wide;
};
bool cublas_gemm(struct gpu *g, const struct product *p);

#endif
