/* SPDX-License-Identifier: Apache-2.0 */
/* Types, statuses and error messages, which all other headers use. */
#ifndef CDDP_TYPES_H
#define CDDP_TYPES_H

#include <cddp/status.h>
#include <cddp/version.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The initial value of a struct that begins with `size`: its size is set, and all else is zero, so that a member that
 * a later version adds has its default:
 *
 *     cddp_param p = CDDP_INIT(cddp_param);
 *     p.name = "w";
 *
 * In C also as a compound literal, (cddp_param)CDDP_INIT(cddp_param), and in C++ as an expression.
 */
#ifdef __cplusplus
extern "C++" {
template <typename T> inline T cddp_init_struct()
{
    T value = T();

    value.size = sizeof(T);
    return value;
}
}
#define CDDP_INIT(type) cddp_init_struct<type>()
#else
#define CDDP_INIT(type)      \
    {                        \
        .size = sizeof(type) \
    }
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The element types. Their numbers are NCCL's plus one, so that 0 is not a type and a forgotten one is an error; types
 * that NCCL does not have begin at 64. A bool is a CDDP_UINT8 with CDDP_MAX for "any" and CDDP_MIN for "all". A complex
 * number is two floating-point elements: give twice the count. MINLOC and MAXLOC are two calls: the MIN or MAX of the
 * value, then the MIN of the index, for which the other ranks give the largest one.
 *
 * Every collective and message moves every type. Reductions are those of cddp_redop; of 8-bit floats the GPU's only.
 */
typedef enum cddp_dtype {
    CDDP_DTYPE_NONE = 0,
    CDDP_INT8 = 1,
    CDDP_UINT8 = 2,
    CDDP_INT32 = 3,
    CDDP_UINT32 = 4,
    CDDP_INT64 = 5,
    CDDP_UINT64 = 6,
    CDDP_FLOAT16 = 7, /* IEEE 754 binary16; how it is summed: see cddp_redop */
    CDDP_FLOAT32 = 8,
    CDDP_FLOAT64 = 9,
    CDDP_BFLOAT16 = 10, /* the upper half of a float32; how it is summed: see cddp_redop */
    CDDP_FLOAT8_E4M3 = 11,
    CDDP_FLOAT8_E5M2 = 12,
    CDDP_INT16 = 64,
    CDDP_UINT16 = 65,
    CDDP_ENUM_32(CDDP_DTYPE)
} cddp_dtype;

/*
 * Reductions. Their numbers are NCCL's; those that NCCL does not have begin at 64. AVG, of floating-point types only,
 * is the sum multiplied by 1/world size. BAND, BOR and BXOR, of integers only, are "and", "or" and "exclusive or" of
 * each bit. Sums and products of integers wrap around. NaN in MIN and MAX: on the host a NaN wins; on a GPU the result
 * is not specified.
 *
 * A reduction that a backend cannot do is CDDP_E_UNSUPPORTED on every rank, before anything is sent. On the host that
 * is every reduction of FLOAT8_E4M3 and FLOAT8_E5M2. On a GPU it is every reduction of INT16 and UINT16, BAND, BOR and
 * BXOR of any type, and AVG of 8-bit floats; their other reductions need NCCL 2.24 and compute capability 9.0 on every
 * rank.
 *
 * On the host sums are made in rank order, those of float16 and bfloat16 in float32, and each result is rounded once.
 * On a GPU the order is NCCL's, and so is the type: its ring and tree add float16 and bfloat16 in these types
 * themselves, and round at every rank; only NVLink switches and symmetric windows add them in float32. There the mean
 * of float16 is multiplied before the sum, so that gradients do not overflow; of the other types after it. Gradients of
 * 16 bits can be summed in float32 everywhere: cddp_ddp_options.comm_dtype.
 */
typedef enum cddp_redop {
    CDDP_SUM = 0,
    CDDP_PROD = 1,
    CDDP_MAX = 2,
    CDDP_MIN = 3,
    CDDP_AVG = 4,
    CDDP_BAND = 64,
    CDDP_BOR = 65,
    CDDP_BXOR = 66,
    CDDP_ENUM_32(CDDP_REDOP)
} cddp_redop;

/* Returns the bytes per element; 0 for a value that is not a type. Any thread. */
CDDP_API size_t cddp_dtype_size(cddp_dtype dtype);

/* Returns the text of a status, such as "timed out". Static storage, never NULL. Any thread. */
CDDP_API const char *cddp_strerror(cddp_status status);
/* Returns the name of a status, such as "CDDP_E_TIMEOUT". Static storage, never NULL. Any thread. */
CDDP_API const char *cddp_status_name(cddp_status status);
/*
 * Returns the error message of the calling thread's last failed libcddp call ("" if none failed yet). It stays valid
 * until the same thread's next failing call.
 */
CDDP_API const char *cddp_last_error(void);
/* An error as values, beside its text. */
typedef struct cddp_error_info {
    size_t size;          /* sizeof(cddp_error_info), set by the caller: the library writes that many bytes at most */
    cddp_status status;   /* CDDP_OK: there is none */
    int32_t rank;         /* the rank, in the world, that caused it: it died, aborted, was late, or failed on behalf of
                             all; of two that differ the higher one; -1: unknown, none, or this rank's own mistake */
    int32_t os_error;     /* errno; 0: none */
    int32_t device_error; /* CUDA's or NCCL's code; 0: none */
    char message[1024];   /* as cddp_last_error() has it; "" if there is none */
} cddp_error_info;

/* Stores the calling thread's last error, that of cddp_last_error(), in *info. Never fails; NULL is ignored. */
CDDP_API void cddp_last_error_info(cddp_error_info *info);
/* Returns the library's version, "0.1.0" (CDDP_VERSION is the header's). Any thread. */
CDDP_API const char *cddp_version(void);

#ifdef __cplusplus
}
#endif

#endif
