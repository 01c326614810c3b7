/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of arrays whose type is known at run time, as doubles: floating-point types only. */
#ifndef CDI_TEST_NUMBERS_H
#define CDI_TEST_NUMBERS_H

#include "worker/math/float16.h"

#include <cddp/cddp.h>

static inline void number_put(cddp_dtype t, void *to, size_t k, double x)
{
    if (t == CDDP_FLOAT64)
        ((double *)to)[k] = x;
    else if (t == CDDP_FLOAT32)
        ((float *)to)[k] = (float)x;
    else
        ((uint16_t *)to)[k] = t == CDDP_FLOAT16 ? cdi_f16_of_float((float)x) : cdi_bf16_of_float((float)x);
}

static inline double number_get(cddp_dtype t, const void *from, size_t k)
{
    if (t == CDDP_FLOAT64)
        return ((const double *)from)[k];
    if (t == CDDP_FLOAT32)
        return (double)((const float *)from)[k];
    if (t == CDDP_FLOAT16)
        return (double)cdi_float_of_f16(((const uint16_t *)from)[k]);
    return (double)cdi_float_of_bf16(((const uint16_t *)from)[k]);
}

/* Element k of gradient i. */
static inline void grad_put(cddp_ddp *ddp, cddp_dtype t, size_t i, size_t k, double x)
{
    number_put(t, cddp_ddp_grad(ddp, i), k, x);
}

static inline double grad_get(cddp_ddp *ddp, cddp_dtype t, size_t i, size_t k)
{
    return number_get(t, cddp_ddp_grad(ddp, i), k);
}

#endif
