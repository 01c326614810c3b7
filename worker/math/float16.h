/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Converts binary16 and bfloat16 to and from float32, in integer arithmetic: the same bits on every machine, whatever
 * its floating-point mode. Rounds to nearest, ties to even; a NaN stays a (quiet) NaN with its sign. Pure. GPU kernels
 * include it too.
 */
#ifndef CDI_MATH_FLOAT16_H
#define CDI_MATH_FLOAT16_H

#include <stdint.h>
#include <string.h>

/* A function for the host, and under nvcc also for the GPU. */
#ifdef __CUDACC__
#define CDI_INLINE static inline __host__ __device__
#else
#define CDI_INLINE static inline
#endif

/* Returns the index of the highest bit of x, which is not 0. */
CDI_INLINE uint32_t cdi_top_bit(uint32_t x)
{
#ifdef __CUDA_ARCH__
    return 31u - (uint32_t)__clz((int)x);
#else
    return 31u - (uint32_t)__builtin_clz(x);
#endif
}

CDI_INLINE float cdi_float_of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

CDI_INLINE uint32_t cdi_bits_of_float(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

CDI_INLINE float cdi_float_of_bf16(uint16_t h)
{
    return cdi_float_of_bits((uint32_t)h << 16);
}

CDI_INLINE uint16_t cdi_bf16_of_float(float f)
{
    uint32_t x = cdi_bits_of_float(f);

    if ((x & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(x >> 16 | 0x40u);
    return (uint16_t)((x + 0x7fffu + (x >> 16 & 1u)) >> 16);
}

CDI_INLINE float cdi_float_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mag = h & 0x7fffu;

    if (mag >= 0x7c00u) /* infinity, NaN (made quiet) */
        return cdi_float_of_bits(sign | 0x7f800000u | (mag & 0x3ffu) << 13 | (mag > 0x7c00u ? 0x400000u : 0u));
    if (mag >= 0x400u) /* normal: 15 becomes 127 */
        return cdi_float_of_bits(sign | ((mag << 13) + 0x38000000u));
    if (mag == 0)
        return cdi_float_of_bits(sign);
    /* Subnormal: mag units of 2^-24; its highest bit becomes the implicit one. */
    uint32_t top = cdi_top_bit(mag);

    return cdi_float_of_bits(sign | (top + 103u) << 23 | (mag << (23u - top) & 0x7fffffu));
}

CDI_INLINE uint16_t cdi_f16_of_float(float f)
{
    uint32_t x = cdi_bits_of_float(f), sign = x >> 16 & 0x8000u;

    x &= 0x7fffffffu;
    if (x > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (x >> 13 & 0x3ffu));
    if (x >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (x >= 0x38800000u) /* normal; a carry out of the mantissa increments the exponent, as it should */
        return (uint16_t)(sign | (x - 0x38000000u + 0xfffu + (x >> 13 & 1u)) >> 13);
    if (x <= 0x33000000u) /* 2^-25 is a tie with 0, and 0 is even */
        return (uint16_t)sign;
    uint32_t shift = 126u - (x >> 23), mant = (x & 0x7fffffu) | 0x800000u;
    uint32_t q = mant >> shift, rest = mant & ((1u << shift) - 1u), half = 1u << (shift - 1u);

    q += rest > half || (rest == half && (q & 1u));
    return (uint16_t)(sign | q);
}

#endif
