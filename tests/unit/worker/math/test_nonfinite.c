/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/math/nonfinite.h"

#include "hygiene.h"
#include "numbers.h"
#include "worker/math/float16.h"

#include <math.h>
#include <string.h>

CDI_SUITE(nonfinite);

static const cddp_dtype types[] = {CDDP_FLOAT16, CDDP_BFLOAT16, CDDP_FLOAT32, CDDP_FLOAT64};
#define N_TYPES (sizeof types / sizeof types[0])
#define MOST 5000

static _Alignas(64) uint8_t memory[8 * (MOST + 8)];

/* Large and small numbers of both signs, all finite. */
static void fill(void *x, size_t count, cddp_dtype dtype)
{
    for (size_t i = 0; i < count; i++)
        number_put(dtype, x, i, (i % 2 == 0 ? 1 : -1) * (i % 3 == 0 ? 60000.0 : 1e-5 * (double)i));
}

Test(nonfinite, finds_one_bad_element_at_any_place)
{
    static const size_t counts[] = {1, 2, 7, 1023, 1024, 1025, 2048, 2500, MOST};
    static const double bad[] = {NAN, INFINITY, -INFINITY, -NAN};

    for (size_t t = 0; t < N_TYPES; t++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
            for (size_t shift = 0; shift < 3; shift++) {
                size_t size = cddp_dtype_size(types[t]), n = counts[c];
                uint8_t *x = memory + shift * size;
                uint64_t inf = cdi_nonfinite_inf(types[t]);

                fill(x, n, types[t]);
                cr_assert_eq(cdi_nonfinite_find(x, n, types[t], inf), n);
                cr_assert_eq(cdi_nonfinite_worst(x, n, types[t], inf), CDI_FINITE);
                for (size_t at = 0; at < n; at += at < 10 || at + 10 > n ? 1 : 37) {
                    enum cdi_nonfinite want = isnan(bad[at % 4]) ? CDI_NAN : CDI_INF;
                    uint8_t old[8];

                    memcpy(old, x + at * size, size);
                    number_put(types[t], x, at, bad[at % 4]);
                    cr_assert_eq(cdi_nonfinite_find(x, n, types[t], inf), at, "type %zu, %zu of %zu", t, at, n);
                    cr_assert_eq(cdi_nonfinite_worst(x, n, types[t], inf), want);
                    memcpy(x + at * size, old, size);
                }
            }
}

Test(nonfinite, nothing_is_found_in_no_element)
{
    number_put(CDDP_FLOAT32, memory, 0, NAN);
    cr_assert_eq(cdi_nonfinite_find(memory, 0, CDDP_FLOAT32, cdi_nonfinite_inf(CDDP_FLOAT32)), 0);
    cr_assert_eq(cdi_nonfinite_worst(memory, 0, CDDP_FLOAT32, cdi_nonfinite_inf(CDDP_FLOAT32)), CDI_FINITE);
}

Test(nonfinite, largest_numbers_of_each_type_are_finite)
{
    static const struct {
        cddp_dtype dtype;
        uint64_t largest;
    } cases[] = {{CDDP_FLOAT16, 0x7bff},
                 {CDDP_BFLOAT16, 0x7f7f},
                 {CDDP_FLOAT32, 0x7f7fffff},
                 {CDDP_FLOAT64, 0x7fefffffffffffff}};

    for (size_t i = 0; i < 4; i++)
        for (int sign = 0; sign < 2; sign++) {
            size_t size = cddp_dtype_size(cases[i].dtype);
            uint64_t bits = cases[i].largest;

            memcpy(memory, &bits, size); /* little endian, as all that this library runs on */
            memory[size - 1] |= (uint8_t)(sign << 7);
            cr_assert_eq(cdi_nonfinite_find(memory, 1, cases[i].dtype, cdi_nonfinite_inf(cases[i].dtype)), 1);
            bits++;
            memcpy(memory, &bits, size);
            cr_assert_eq(cdi_nonfinite_worst(memory, 1, cases[i].dtype, cdi_nonfinite_inf(cases[i].dtype)), CDI_INF);
            bits++;
            memcpy(memory, &bits, size);
            cr_assert_eq(cdi_nonfinite_worst(memory, 1, cases[i].dtype, cdi_nonfinite_inf(cases[i].dtype)), CDI_NAN);
        }
}

Test(nonfinite, worst_is_named_wherever_it_is)
{
    float *x = (float *)(void *)memory;
    uint64_t limit = cdi_nonfinite_limit(CDDP_FLOAT32, CDDP_FLOAT16, 1);

    fill(x, MOST, CDDP_FLOAT32);
    x[100] = 1e6f;
    cr_assert_eq(cdi_nonfinite_worst(x, MOST, CDDP_FLOAT32, limit), CDI_OVERFLOWS);
    x[3000] = INFINITY;
    cr_assert_eq(cdi_nonfinite_worst(x, MOST, CDDP_FLOAT32, limit), CDI_INF);
    x[4999] = NAN;
    cr_assert_eq(cdi_nonfinite_worst(x, MOST, CDDP_FLOAT32, limit), CDI_NAN);
}

/* The limit is exact: the number with one bit less is finite after the conversion. */
Test(nonfinite, limit_is_the_first_number_that_overflows)
{
    static const double factors[] = {1, 0.5, 1.0 / 3, 1.0 / 1024};

    for (size_t f = 0; f < 4; f++)
        for (int t = 0; t < 2; t++) {
            cddp_dtype sent = t == 0 ? CDDP_FLOAT16 : CDDP_BFLOAT16;
            uint32_t limit = (uint32_t)cdi_nonfinite_limit(CDDP_FLOAT32, sent, factors[f]);
            float at = cdi_float_of_bits(limit), below = cdi_float_of_bits(limit - 1);
            uint16_t bits[2] = {sent == CDDP_FLOAT16 ? cdi_f16_of_float(at * (float)factors[f])
                                                     : cdi_bf16_of_float(at * (float)factors[f]),
                                sent == CDDP_FLOAT16 ? cdi_f16_of_float(below * (float)factors[f])
                                                     : cdi_bf16_of_float(below * (float)factors[f])};

            cr_assert_lt(bits[1], cdi_nonfinite_inf(sent), "factor %g", factors[f]);
            cr_assert(bits[0] == cdi_nonfinite_inf(sent) || limit == 0x7f800000u, "factor %g", factors[f]);
        }
    cr_assert_eq(cdi_nonfinite_limit(CDDP_FLOAT32, CDDP_FLOAT16, 1), 0x477ff000u, "65520");
    cr_assert_eq(cdi_nonfinite_limit(CDDP_FLOAT32, CDDP_DTYPE_NONE, 1), 0x7f800000u);
    cr_assert_eq(cdi_nonfinite_limit(CDDP_BFLOAT16, CDDP_FLOAT32, 1), 0x7f80u);
    cr_assert_eq(cdi_nonfinite_limit(CDDP_FLOAT64, CDDP_FLOAT16, 1), 0x7ff0000000000000u, "it is sent as it is");
}
