/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers from the standard normal distribution, as torch.randn draws them on a CPU from its Mersenne Twister, by the
 * method of Box and Muller ("A note on the generation of random normal deviates", 1958). Pure; one thread at a time.
 */
#ifndef CDI_MATH_RANDN_H
#define CDI_MATH_RANDN_H

#include "worker/math/mt19937.h"

#include <stdbool.h>
#include <stddef.h>

struct cdi_normal {
    struct cdi_mt19937 bits;
    bool has_second; /* numbers are made in pairs */
    double second;
};

/* As torch.manual_seed(seed). */
void cdi_normal_seed(struct cdi_normal *g, uint64_t seed);
/*
 * The next n numbers, as torch.randn(n) makes them: in float64 the same bits, where the C library's sine and logarithm
 * are PyTorch's; of float32 the same up to its rounding. How many are made at once counts.
 */
void cdi_normal_f64(struct cdi_normal *g, double *to, size_t n);
void cdi_normal_f32(struct cdi_normal *g, float *to, size_t n);

#endif
