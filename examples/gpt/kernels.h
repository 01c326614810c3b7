/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of the model: a table of functions, so that the passes of model.h do not know what computes. Matrices
 * are row-major. "out" is written, "d..." is a gradient. `add` adds to a parameter's gradient what a further
 * micro-batch has, and without it the gradient is overwritten. One thread per process: the matrix product uses static
 * memory.
 */
#ifndef GPT_KERNELS_H
#define GPT_KERNELS_H

#include "real.h"

/* A matrix as it lies in memory: element (i, j) is at[i * row + j * col]. */
struct view {
    const real *at;
    size_t row, col;
};

static inline struct view plain(const real *at, size_t width)
{
    return (struct view){at, width, 1};
}

static inline struct view turned(const real *at, size_t width) /* transposed */
{
    return (struct view){at, 1, width};
}

struct kernels {
    const char *name; /* "avx512", ... or "openblas" */

    /* c[m][n] = alpha * a[m][k] * b[k][n], or += with add; ldc elements from row to row of c. */
    void (*gemm)(size_t m, size_t n, size_t k, real alpha, struct view a, struct view b, bool add, real *c, size_t ldc);

    /* out[s * time + t] = wte[token] + wpe[t], for `seqs` sequences of `time` tokens. */
    void (*embed)(real *out, const uint8_t *tokens, const real *wte, const real *wpe, size_t seqs, size_t time,
                  size_t width);
    /* dwte is always added to: where it is tied to the output layer, that has been there before. */
    void (*embed_back)(real *dwte, real *dwpe, const real *d_out, const uint8_t *tokens, size_t seqs, size_t time,
                       size_t width, bool add);

    /* Each row to mean 0 and variance 1, then times w plus b. mean and rstd, per row, are for the way back. */
    void (*norm)(real *out, real *mean, real *rstd, const real *in, const real *w, const real *b, size_t rows,
                 size_t width);
    /* d_in += ...; the residual stream has its own part in it. */
    void (*norm_back)(real *d_in, real *dw, real *db, const real *d_out, const real *in, const real *w,
                      const real *mean, const real *rstd, size_t rows, size_t width, bool add);

    void (*bias)(real *out, const real *b, size_t rows, size_t width); /* each row = b */
    void (*bias_back)(real *db, const real *d_out, size_t rows, size_t width, bool add);

    void (*plus)(real *out, const real *a, const real *b, size_t n); /* out = a + b */
    void (*gelu)(real *out, const real *in, size_t n);               /* the form with tanh, as in GPT-2 */
    void (*gelu_back)(real *d, const real *in, size_t n);            /* d *= the derivative at in */

    /* Row i of `rows`, which is row first + i of the whole: softmax over columns 0 .. first + i, then zeros up to ld.
     */
    void (*causal)(real *att, size_t first, size_t rows, size_t width, size_t ld);
    /* d = att * (d - sum(att * d)) in each row: from the gradient of the softmax to that of what went in. */
    void (*causal_back)(real *d, const real *att, size_t rows, size_t width, size_t ld);

    /*
     * Returns the sum over the rows of -log(softmax(logits)[target]). With scale other than 0 logits become the
     * gradient of scale times that sum.
     */
    double (*entropy)(real *logits, const uint8_t *targets, size_t rows, size_t vocab, real scale);
};

/*
 * Returns the kernels of this name: "plain", "avx2", "avx512" or "openblas", which multiplies matrices by OpenBLAS.
 * NULL: that of OpenBLAS, if it is installed, else the best ones of this processor. Returns NULL if it cannot be used
 * here.
 */
const struct kernels *kernels_pick(const char *name);

#endif
