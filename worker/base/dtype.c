/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/base/dtype.h"

enum sort { INTEGER, FLOAT, SMALL_FLOAT };

/* By number; entries without a name are gaps. */
static const struct {
    const char *name;
    size_t size;
    enum sort sort;
} types[] = {
    [CDDP_INT8] = {"int8", 1, INTEGER},
    [CDDP_UINT8] = {"uint8", 1, INTEGER},
    [CDDP_INT32] = {"int32", 4, INTEGER},
    [CDDP_UINT32] = {"uint32", 4, INTEGER},
    [CDDP_INT64] = {"int64", 8, INTEGER},
    [CDDP_UINT64] = {"uint64", 8, INTEGER},
    [CDDP_FLOAT16] = {"float16", 2, FLOAT},
    [CDDP_FLOAT32] = {"float32", 4, FLOAT},
    [CDDP_FLOAT64] = {"float64", 8, FLOAT},
    [CDDP_BFLOAT16] = {"bfloat16", 2, FLOAT},
    [CDDP_FLOAT8_E4M3] = {"float8_e4m3", 1, SMALL_FLOAT},
    [CDDP_FLOAT8_E5M2] = {"float8_e5m2", 1, SMALL_FLOAT},
    [CDDP_INT16] = {"int16", 2, INTEGER},
    [CDDP_UINT16] = {"uint16", 2, INTEGER},
};

static const char *const ops[] = {
    [CDDP_SUM] = "sum",  [CDDP_PROD] = "product",     [CDDP_MAX] = "max",        [CDDP_MIN] = "min",
    [CDDP_AVG] = "mean", [CDDP_BAND] = "bitwise and", [CDDP_BOR] = "bitwise or", [CDDP_BXOR] = "bitwise xor",
};

bool cdi_dtype_valid(cddp_dtype dtype)
{
    return (int)dtype > 0 && (size_t)dtype < sizeof types / sizeof types[0] && types[dtype].name != NULL;
}

const char *cdi_dtype_name(cddp_dtype dtype)
{
    return cdi_dtype_valid(dtype) ? types[dtype].name : "?";
}

bool cdi_dtype_is_float(cddp_dtype dtype)
{
    return cdi_dtype_valid(dtype) && types[dtype].sort == FLOAT;
}

bool cdi_dtype_is_integer(cddp_dtype dtype)
{
    return cdi_dtype_valid(dtype) && types[dtype].sort == INTEGER;
}

size_t cddp_dtype_size(cddp_dtype dtype)
{
    return cdi_dtype_valid(dtype) ? types[dtype].size : 0;
}

bool cdi_redop_valid(cddp_redop op)
{
    return (int)op >= 0 && (size_t)op < sizeof ops / sizeof ops[0] && ops[op] != NULL;
}

const char *cdi_redop_name(cddp_redop op)
{
    return cdi_redop_valid(op) ? ops[op] : "?";
}

bool cdi_redop_is_bitwise(cddp_redop op)
{
    return op == CDDP_BAND || op == CDDP_BOR || op == CDDP_BXOR;
}
