/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix product, whose name ends with the kind of processor that it was compiled for. */
#ifndef GPT_GEMM_H
#define GPT_GEMM_H

#include "kernels.h"

#define GPT_JOIN_(a, b) a##b
#define GPT_JOIN(a, b) GPT_JOIN_(a, b)
#define GPT_STRING_(a) #a
#define GPT_STRING(a) GPT_STRING_(a)
#define GEMM_NAME GPT_JOIN(gemm_, GPT_KIND)

void GEMM_NAME(size_t m, size_t n, size_t k, real alpha, struct view a, struct view b, bool add, real *c, size_t ldc);

#endif
