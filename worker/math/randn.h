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
    bool has_second; /* numbers are generated in pairs */
    double second;
};

/* Seeds the generator like torch.manual_seed(seed). */
void cdi_normal_seed(struct cdi_normal *g, uint64_t seed);
/*
 * Generates the next n numbers like torch.randn(n). float64 has the same bits, if the C library's sine and logarithm
 * are PyTorch's; float32 is the same up to its rounding. The numbers depend on how many are generated at once.
 */
void cdi_normal_f64(struct cdi_normal *g, double *to, size_t n);
void cdi_normal_f32(struct cdi_normal *g, float *to, size_t n);

#endif
