/* SPDX-License-Identifier: Apache-2.0 */
/* Every element type and every reduction, for tests that go through all of them. */
#ifndef CDI_TEST_TYPES_H
#define CDI_TEST_TYPES_H

#include <cddp/cddp.h>
#include <stdbool.h>

static const cddp_dtype all_types[] = {
    CDDP_INT8,    CDDP_UINT8,   CDDP_INT32,    CDDP_UINT32,      CDDP_INT64,       CDDP_UINT64, CDDP_FLOAT16,
    CDDP_FLOAT32, CDDP_FLOAT64, CDDP_BFLOAT16, CDDP_FLOAT8_E4M3, CDDP_FLOAT8_E5M2, CDDP_INT16,  CDDP_UINT16,
};
#define N_ALL_TYPES (sizeof all_types / sizeof all_types[0])

static const cddp_redop all_ops[] = {
    CDDP_SUM, CDDP_PROD, CDDP_MAX, CDDP_MIN, CDDP_AVG, CDDP_BAND, CDDP_BOR, CDDP_BXOR,
};
#define N_ALL_OPS (sizeof all_ops / sizeof all_ops[0])

/* Floats of 8 bits: moved by all, reduced by few. */
static inline bool type_is_small(cddp_dtype t)
{
    return t == CDDP_FLOAT8_E4M3 || t == CDDP_FLOAT8_E5M2;
}

static inline bool type_is_integer(cddp_dtype t)
{
    return (t >= CDDP_INT8 && t <= CDDP_UINT64) || t == CDDP_INT16 || t == CDDP_UINT16;
}

/* Is this reduction defined at all? */
static inline bool type_takes(cddp_dtype t, cddp_redop op)
{
    return op == CDDP_AVG ? !type_is_integer(t) : op < CDDP_BAND || type_is_integer(t);
}

#endif
