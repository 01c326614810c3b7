/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sum of float64 numbers of 0 or more that does not depend on their order or grouping: a fixed-point number over the
 * whole range of float64, whose additions are exact, and one rounding at the end. Words of several sums may be added
 * one by one, also by another machine. The idea: Kulisch's long accumulator, with room for carries in each word, as in
 * R. M. Neal, "Fast exact summation using small and large superaccumulators", 2015 (arXiv:1505.05571); for reproducible
 * sums see also J. Demmel and H. D. Nguyen, "Parallel reproducible summation", 2015. Pure. GPU kernels include it too.
 *
 * Word k < CDI_EXACT_LIMBS counts units of 2^(32 k - 1074). A number adds less than 2^32 to each of three of them, so
 * words hold 2^32 - 1 numbers, or 2^32 - 1 sums that cdi_exact_carry() has passed. The highest limb's end is above 2^64
 * times the largest number.
 */
#ifndef CDI_MATH_EXACT_SUM_H
#define CDI_MATH_EXACT_SUM_H

#include "worker/math/float16.h"

#define CDI_EXACT_LIMBS 68
#define CDI_EXACT_INF CDI_EXACT_LIMBS       /* the number of infinities */
#define CDI_EXACT_NAN (CDI_EXACT_LIMBS + 1) /* and of NaNs */
#define CDI_EXACT_WORDS (CDI_EXACT_LIMBS + 2)
#define CDI_EXACT_ONE ((uint64_t)1 << 52) /* the digit that the format of a normal number leaves out */

CDI_INLINE uint64_t cdi_bits_of_double(double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

CDI_INLINE double cdi_double_of_bits(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Adds whole * 2^(at - 1074), for at < 2046, to the words w[0], w[stride], ... */
CDI_INLINE void cdi_exact_add_at(uint64_t *w, uint32_t stride, uint64_t whole, uint32_t at)
{
    const uint32_t shift = at % 32;

    w += at / 32 * stride;
    w[0] += (uint32_t)(whole << shift);
    w[stride] += (uint32_t)(whole >> (32 - shift));
    w[2 * stride] += whole >> 32 >> (32 - shift);
}

/* Adds x, which is not negative, or a NaN. */
CDI_INLINE void cdi_exact_add(uint64_t *w, uint32_t stride, double x)
{
    const uint64_t bits = cdi_bits_of_double(x) & 0x7fffffffffffffffu, fraction = bits & 0xfffffffffffffu;
    const uint32_t exponent = (uint32_t)(bits >> 52);

    if (exponent == 2047)
        w[(fraction == 0 ? CDI_EXACT_INF : CDI_EXACT_NAN) * stride]++;
    else if (exponent == 0)
        cdi_exact_add_at(w, stride, fraction, 0);
    else
        cdi_exact_add_at(w, stride, fraction | CDI_EXACT_ONE, exponent - 1);
}

/* Moves carries up, so that each limb is below 2^32. */
CDI_INLINE void cdi_exact_carry(uint64_t *w)
{
    uint64_t carry = 0;

    for (int k = 0; k < CDI_EXACT_LIMBS; k++) {
        carry += w[k];
        w[k] = (uint32_t)carry;
        carry >>= 32;
    }
}

/* Returns the sum, rounded once: to nearest, ties to even. cdi_exact_carry() has passed. */
CDI_INLINE double cdi_exact_round(const uint64_t *w)
{
    uint32_t k = CDI_EXACT_LIMBS - 1, top, low, shift;
    uint64_t part, whole;

    while (k > 0 && w[k] == 0)
        k--;
    top = 32 * k + (w[k] != 0 ? cdi_top_bit((uint32_t)w[k]) : 0); /* the highest bit that is set */
    if (w[CDI_EXACT_NAN] != 0)
        return cdi_double_of_bits(0x7ff8000000000000u);
    if (w[CDI_EXACT_INF] != 0 || top >= 1074 + 1024)
        return cdi_double_of_bits(0x7ff0000000000000u);
    if (top <= 52)
        return cdi_double_of_bits(w[1] << 32 | w[0]); /* the format of small numbers */
    low = top - 52;
    k = low / 32;
    shift = low % 32;
    whole = w[k] >> shift | w[k + 1] << (32 - shift) | w[k + 2] << (32 - shift) << 32;
    k = (low - 1) / 32;
    shift = (low - 1) % 32;
    part = w[k] & (((uint64_t)2 << shift) - 1); /* the digits that rounding removes */
    if (part == (uint64_t)1 << shift && (whole & 1) == 0) {
        while (k > 0 && w[k - 1] == 0)
            k--;
        part -= k == 0; /* a tie */
    }
    return cdi_double_of_bits(((uint64_t)low << 52) + whole + (part >> shift));
}

#endif
