/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/host_elementwise.h"

#include "worker/base/dtype.h"
#include "worker/math/float16.h"
#include "worker/math/reduce.h"

#include <stdatomic.h>
#include <stdlib.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

cddp_status cdi_element_pack(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                             struct cdi_error *err)
{
    uint8_t *p = to;

    (void)b;
    (void)err;
    for (size_t i = 0; i < n; i++) {
        if (from[i].bytes > 0 && from[i].data != NULL)
            memcpy(p, from[i].data, from[i].bytes);
        p += from[i].bytes;
    }
    return CDDP_OK;
}

cddp_status cdi_element_unpack(struct cdi_backend *b, const struct cdi_slice *to, size_t n, const void *from,
                               struct cdi_error *err)
{
    const uint8_t *p = from;

    (void)b;
    (void)err;
    for (size_t i = 0; i < n; i++) {
        if (to[i].bytes > 0 && to[i].data != NULL)
            memcpy(to[i].data, p, to[i].bytes);
        p += to[i].bytes;
    }
    return CDDP_OK;
}

/*
 * Converts float16 with instructions of the processor, with the bits of float16.h. Returns how many of the first
 * elements are done.
 */
#if defined(__x86_64__)

#define F16C __attribute__((target("avx2,f16c")))

F16C static size_t narrow_f16c(uint16_t *to, const float *from, size_t count)
{
    size_t i = 0;

    for (; count - i >= 8; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    return i;
}

F16C static size_t widen_f16c(float *to, const uint16_t *from, size_t count)
{
    size_t i = 0;

    for (; count - i >= 8; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + i))));
    return i;
}

/* Checked once, since CPUID is slow on a virtual machine. */
static bool has_f16c(void)
{
    static _Atomic int known = -1;
    int has = atomic_load_explicit(&known, memory_order_relaxed);

    if (has < 0) {
        has = cdi_reduce_has(CDI_REDUCE_AVX2);
        atomic_store_explicit(&known, has, memory_order_relaxed);
    }
    return has == 1;
}

static size_t narrow_fast(uint16_t *to, const float *from, size_t count)
{
    return has_f16c() ? narrow_f16c(to, from, count) : 0;
}

static size_t widen_fast(float *to, const uint16_t *from, size_t count)
{
    return has_f16c() ? widen_f16c(to, from, count) : 0;
}

#elif defined(__aarch64__)

static size_t narrow_fast(uint16_t *to, const float *from, size_t count)
{
    size_t i = 0;

    for (; count - i >= 4; i += 4)
        vst1_u16(to + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i))));
    return i;
}

static size_t widen_fast(float *to, const uint16_t *from, size_t count)
{
    size_t i = 0;

    for (; count - i >= 4; i += 4)
        vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from + i))));
    return i;
}

#else

static size_t narrow_fast(uint16_t *to, const float *from, size_t count)
{
    (void)to;
    (void)from;
    (void)count;
    return 0;
}

static size_t widen_fast(float *to, const uint16_t *from, size_t count)
{
    (void)to;
    (void)from;
    (void)count;
    return 0;
}

#endif

cddp_status cdi_element_pack_scaled(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                                    cddp_dtype dtype, double factor, struct cdi_error *err)
{
    uint8_t *p = to;
    cddp_status st = cdi_dtype_is_float(dtype)
                         ? cdi_element_pack(b, to, from, n, err)
                         : cdi_fail(err, CDDP_E_INVALID, "cannot scale %s", cdi_dtype_name(dtype));

    for (size_t i = 0; i < n && st == CDDP_OK; p += from[i++].bytes)
        if (from[i].data != NULL)
            st = cdi_element_scale(b, p, from[i].bytes / cddp_dtype_size(dtype), dtype, factor, err);
    return st;
}

/* One element, multiplied in float32. */
static void cast_scaled(void *to, cddp_dtype to_type, const void *from, cddp_dtype from_type, size_t i, float factor)
{
    if (from_type == CDDP_FLOAT32) {
        float x = ((const float *)from)[i] * factor;

        ((uint16_t *)to)[i] = to_type == CDDP_FLOAT16 ? cdi_f16_of_float(x) : cdi_bf16_of_float(x);
    } else {
        uint16_t x = ((const uint16_t *)from)[i];

        ((float *)to)[i] = (from_type == CDDP_FLOAT16 ? cdi_float_of_f16(x) : cdi_float_of_bf16(x)) * factor;
    }
}

cddp_status cdi_element_cast(struct cdi_backend *b, void *to, cddp_dtype to_type, const void *from,
                             cddp_dtype from_type, size_t count, float factor, struct cdi_error *err)
{
    const float *wide = from;
    const uint16_t *narrow = from;
    cddp_dtype other = from_type == CDDP_FLOAT32 ? to_type : from_type;

    (void)b;
    if (factor != 1.0f && (from_type == CDDP_FLOAT32 || to_type == CDDP_FLOAT32) &&
        (other == CDDP_FLOAT16 || other == CDDP_BFLOAT16)) {
        for (size_t i = 0; i < count; i++)
            cast_scaled(to, to_type, from, from_type, i, factor);
        return CDDP_OK;
    }
    if (from_type == CDDP_FLOAT32 && to_type == CDDP_FLOAT16)
        for (size_t i = narrow_fast(to, wide, count); i < count; i++)
            ((uint16_t *)to)[i] = cdi_f16_of_float(wide[i]);
    else if (from_type == CDDP_FLOAT32 && to_type == CDDP_BFLOAT16)
        for (size_t i = 0; i < count; i++)
            ((uint16_t *)to)[i] = cdi_bf16_of_float(wide[i]);
    else if (from_type == CDDP_FLOAT16 && to_type == CDDP_FLOAT32)
        for (size_t i = widen_fast(to, narrow, count); i < count; i++)
            ((float *)to)[i] = cdi_float_of_f16(narrow[i]);
    else if (from_type == CDDP_BFLOAT16 && to_type == CDDP_FLOAT32)
        for (size_t i = 0; i < count; i++)
            ((float *)to)[i] = cdi_float_of_bf16(narrow[i]);
    else
        return cdi_fail(err, CDDP_E_INVALID, "cannot cast %s to %s", cdi_dtype_name(from_type),
                        cdi_dtype_name(to_type));
    return CDDP_OK;
}

cddp_status cdi_element_scale(struct cdi_backend *b, void *x, size_t count, cddp_dtype dtype, double factor,
                              struct cdi_error *err)
{
    float f = (float)factor;
    uint16_t *narrow = x;

    (void)b;
    if (dtype == CDDP_FLOAT64)
        for (size_t i = 0; i < count; i++)
            ((double *)x)[i] *= factor;
    else if (dtype == CDDP_FLOAT32)
        for (size_t i = 0; i < count; i++)
            ((float *)x)[i] *= f;
    else if (dtype == CDDP_FLOAT16)
        for (size_t i = 0; i < count; i++)
            narrow[i] = cdi_f16_of_float(cdi_float_of_f16(narrow[i]) * f);
    else if (dtype == CDDP_BFLOAT16)
        for (size_t i = 0; i < count; i++)
            narrow[i] = cdi_bf16_of_float(cdi_float_of_bf16(narrow[i]) * f);
    else
        return cdi_fail(err, CDDP_E_INVALID, "cannot scale %s", cdi_dtype_name(dtype));
    return CDDP_OK;
}

cddp_status cdi_element_check_reduction(struct cdi_backend *b, cddp_dtype dtype, cddp_redop op, struct cdi_error *err)
{
    (void)b;
    (void)op;
    if (cdi_reduce_acc_size(dtype) > 0)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_UNSUPPORTED,
                    "the host does not compute with %s: convert it to float32 or bfloat16, reduce that, and convert "
                    "the result",
                    cdi_dtype_name(dtype));
}

cddp_status cdi_host_memory_alloc(struct cdi_backend *b, size_t bytes, void **out, struct cdi_error *err)
{
    void *p = NULL;

    (void)b;
    if (posix_memalign(&p, 64, bytes > 0 ? bytes : 1) != 0)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %zu bytes", bytes);
    *out = p;
    return CDDP_OK;
}

void cdi_host_memory_release(struct cdi_backend *b, void *p)
{
    (void)b;
    free(p);
}

cddp_status cdi_host_memory_copy(struct cdi_backend *b, void *to, const void *from, size_t bytes, struct cdi_error *err)
{
    (void)b;
    (void)err;
    if (bytes > 0)
        memcpy(to, from, bytes);
    return CDDP_OK;
}
