/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/dtype.h"

static const struct {
    const char *name;
    size_t size;
    bool is_float;
} types[] = {
    [CDDP_INT8] = {"int8", 1, false},      [CDDP_UINT8] = {"uint8", 1, false},
    [CDDP_INT32] = {"int32", 4, false},    [CDDP_UINT32] = {"uint32", 4, false},
    [CDDP_INT64] = {"int64", 8, false},    [CDDP_UINT64] = {"uint64", 8, false},
    [CDDP_FLOAT16] = {"float16", 2, true}, [CDDP_FLOAT32] = {"float32", 4, true},
    [CDDP_FLOAT64] = {"float64", 8, true}, [CDDP_BFLOAT16] = {"bfloat16", 2, true},
};

static const char *const ops[] = {
    [CDDP_SUM] = "sum", [CDDP_PROD] = "product", [CDDP_MAX] = "max", [CDDP_MIN] = "min", [CDDP_AVG] = "mean",
};

bool cdi_dtype_valid(cddp_dtype dtype)
{
    return (int)dtype > 0 && (size_t)dtype < sizeof types / sizeof types[0];
}

const char *cdi_dtype_name(cddp_dtype dtype)
{
    return cdi_dtype_valid(dtype) ? types[dtype].name : "?";
}

bool cdi_dtype_is_float(cddp_dtype dtype)
{
    return cdi_dtype_valid(dtype) && types[dtype].is_float;
}

size_t cddp_dtype_size(cddp_dtype dtype)
{
    return cdi_dtype_valid(dtype) ? types[dtype].size : 0;
}

bool cdi_op_valid(cddp_redop op)
{
    return (int)op >= 0 && (size_t)op < sizeof ops / sizeof ops[0];
}

const char *cdi_op_name(cddp_redop op)
{
    return cdi_op_valid(op) ? ops[op] : "?";
}
