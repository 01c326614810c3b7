/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds numbers that are not finite, or that are not after a conversion to a narrower type, by the bits of their
 * magnitudes: a larger magnitude has larger bits, an infinity is above all numbers, and a NaN above it. Pure; any
 * thread. nvcc includes this file, too.
 */
#ifndef CDI_MATH_NONFINITE_H
#define CDI_MATH_NONFINITE_H

#include <cddp/cddp.h>

/* Kinds of numbers. A larger kind is worse. */
enum cdi_nonfinite { CDI_FINITE = 0, CDI_OVERFLOWS = 1, CDI_INF = 2, CDI_NAN = 3 };

#ifndef __CUDACC__

/* Returns the bits of infinity in a floating-point type. */
uint64_t cdi_nonfinite_inf(cddp_dtype dtype);
/*
 * Returns the bits of the smallest magnitude of dtype that is not finite after it was multiplied by `factor`, 0 <
 * factor <= 1, and converted to `sent`; with sent = CDDP_DTYPE_NONE, of infinity.
 */
uint64_t cdi_nonfinite_limit(cddp_dtype dtype, cddp_dtype sent, double factor);
/*
 * Returns the index of the first of `count` elements whose magnitude has bits of at least `limit`; count: there is
 * none. x is aligned to its element. dtype is float16, bfloat16, float32 or float64.
 */
size_t cdi_nonfinite_find(const void *x, size_t count, cddp_dtype dtype, uint64_t limit);
/* Returns the worst kind among the elements whose magnitude has bits of at least `limit`; CDI_FINITE: there is none. */
enum cdi_nonfinite cdi_nonfinite_worst(const void *x, size_t count, cddp_dtype dtype, uint64_t limit);

#endif
#endif
