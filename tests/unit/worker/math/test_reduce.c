/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "types.h"
#include "worker/backend/host_elementwise.h"
#include "worker/base/dtype.h"
#include "worker/math/float16.h"
#include "worker/math/reduce.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

CDI_SUITE(reduce);

static uint64_t state = 1;

static uint64_t next_random(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 11;
}

/* The value of a binary16, by its definition. */
static double value_of_f16(uint16_t h)
{
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);

    return h & 0x8000 ? -v : v;
}

/* Returns the nearest of the two neighbours, ties to the even one: lo and hi are adjacent, lo's bits are `bits`. */
static uint16_t nearest(double x, double lo, double hi, uint16_t bits)
{
    if (x - lo < hi - x)
        return bits;
    if (x - lo > hi - x)
        return (uint16_t)(bits + 1);
    return (uint16_t)(bits & 1 ? bits + 1 : bits);
}

Test(reduce, reads_every_float16)
{
    for (uint32_t h = 0; h < 65536; h++) {
        float got = cdi_float_of_f16((uint16_t)h);
        double want = value_of_f16((uint16_t)h);

        if (isnan(want))
            cr_assert(isnan(got), "%04x", h);
        else
            cr_assert(got == (float)want && !signbit(got) == !signbit(want), "%04x: %g, not %g", h, got, want);
    }
}

Test(reduce, float16_round_trip)
{
    for (uint32_t h = 0; h < 65536; h++) {
        uint32_t quiet = (h & 0x7fff) > 0x7c00 ? h | 0x200 : h;

        cr_assert_eq(cdi_f16_of_float(cdi_float_of_f16((uint16_t)h)), quiet, "%04x", h);
    }
}

Test(reduce, rounds_float32_to_float16)
{
    for (uint16_t h = 0; h < 0x7c00; h++) {
        double lo = value_of_f16(h), hi = h == 0x7bff ? 65536.0 : value_of_f16((uint16_t)(h + 1));
        float mid = (float)((lo + hi) / 2);
        const float tries[] = {(float)lo, nextafterf((float)lo, INFINITY), nextafterf(mid, 0),
                               mid,       nextafterf(mid, INFINITY),       nextafterf((float)hi, 0)};

        for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
            uint16_t want = nearest(tries[i], lo, hi, h);

            cr_assert_eq(cdi_f16_of_float(tries[i]), want, "%a", tries[i]);
            cr_assert_eq(cdi_f16_of_float(-tries[i]), want | 0x8000, "%a", -tries[i]);
        }
    }
    cr_assert_eq(cdi_f16_of_float(1e30f), 0x7c00);
    cr_assert_eq(cdi_f16_of_float(-INFINITY), 0xfc00);
    cr_assert_eq(cdi_f16_of_float(1e-30f), 0);
}

Test(reduce, rounds_float32_to_bfloat16)
{
    for (uint32_t h = 0; h < 0x7f80; h++) {
        uint32_t x = h << 16;

        cr_assert_eq(cdi_bf16_of_float(cdi_float_of_bits(x)), h);
        cr_assert_eq(cdi_bf16_of_float(cdi_float_of_bits(x | 0x7fff)), h);
        cr_assert_eq(cdi_bf16_of_float(cdi_float_of_bits(x | 0x8000)), h + (h & 1), "a tie");
        cr_assert_eq(cdi_bf16_of_float(cdi_float_of_bits(x | 0x8001)), h + 1);
        cr_assert_eq(cdi_bf16_of_float(cdi_float_of_bits(x | 0x80008001)), 0x8000 | (h + 1));
    }
    for (uint32_t h = 0x7f81; h < 0x8000; h++)
        cr_assert(isnan(cdi_float_of_bf16(cdi_bf16_of_float(cdi_float_of_bf16((uint16_t)h)))));
    cr_assert_eq(cdi_bf16_of_float(INFINITY), 0x7f80);
}

/* On any processor, and with any begin and end. */
Test(reduce, casts_match_scalar_code)
{
    enum { N = 65536 + 5 };
    static float wide[N + 1], back[N + 1];
    static uint16_t narrow[N + 1];

    for (int round = 0; round < 32; round++) {
        size_t skip = (size_t)round % 2, n = N - (size_t)round;

        for (size_t i = 0; i < N + 1; i++) { /* each float16, values between them, and random bits */
            uint32_t near =
                cdi_bits_of_float(cdi_float_of_f16((uint16_t)i)) + (uint32_t)(next_random() % 0x4001) - 0x2000;

            wide[i] = cdi_float_of_bits(round < 24 ? near : (uint32_t)next_random());
        }
        cr_assert_eq(cdi_element_cast(NULL, narrow + skip, CDDP_FLOAT16, wide + skip, CDDP_FLOAT32, n, 1, NULL),
                     CDDP_OK);
        for (size_t i = skip; i < skip + n; i++)
            cr_assert_eq(narrow[i], cdi_f16_of_float(wide[i]), "%08x", cdi_bits_of_float(wide[i]));
        for (size_t i = 0; i < N + 1; i++)
            narrow[i] = (uint16_t)(i + (size_t)round);
        cr_assert_eq(cdi_element_cast(NULL, back + skip, CDDP_FLOAT32, narrow + skip, CDDP_FLOAT16, n, 1, NULL),
                     CDDP_OK);
        for (size_t i = skip; i < skip + n; i++)
            cr_assert_eq(cdi_bits_of_float(back[i]), cdi_bits_of_float(cdi_float_of_f16(narrow[i])), "%04x", narrow[i]);
    }
}

/* ------------------------------------------------------------------------- compared with scalar reference code ---- */

static double real(cddp_dtype dtype, const void *p, size_t i)
{
    switch ((int)dtype) {
    case CDDP_FLOAT16:
        return cdi_float_of_f16(((const uint16_t *)p)[i]);
    case CDDP_BFLOAT16:
        return cdi_float_of_bf16(((const uint16_t *)p)[i]);
    case CDDP_FLOAT32:
        return ((const float *)p)[i];
    default:
        return ((const double *)p)[i];
    }
}

static int64_t whole(cddp_dtype dtype, const void *p, size_t i)
{
    switch ((int)dtype) {
    case CDDP_INT8:
        return ((const int8_t *)p)[i];
    case CDDP_UINT8:
        return ((const uint8_t *)p)[i];
    case CDDP_INT16:
        return ((const int16_t *)p)[i];
    case CDDP_UINT16:
        return ((const uint16_t *)p)[i];
    case CDDP_INT32:
        return ((const int32_t *)p)[i];
    case CDDP_UINT32:
        return ((const uint32_t *)p)[i];
    default:
        return ((const int64_t *)p)[i];
    }
}

static void naive_real(uint8_t *out, void *const *in, int n, size_t i, cddp_dtype dtype, cddp_redop op)
{
    bool wide = dtype == CDDP_FLOAT64;
    double acc = real(dtype, in[0], i);
    float f;

    for (int r = 1; r < n; r++) {
        double x = real(dtype, in[r], i);

        acc = op == CDDP_PROD  ? acc * x
              : op == CDDP_MAX ? (isnan(acc) || isnan(x) ? NAN : fmax(acc, x))
              : op == CDDP_MIN ? (isnan(acc) || isnan(x) ? NAN : fmin(acc, x))
                               : acc + x;
        if (!wide)
            acc = (float)acc; /* exact in double first, so this is one rounding */
    }
    if (op == CDDP_AVG)
        acc = wide ? acc * (1.0 / n) : (double)((float)acc * (1.0f / (float)n));
    f = (float)acc;
    if (dtype == CDDP_FLOAT64)
        memcpy(out, &acc, 8);
    else if (dtype == CDDP_FLOAT32)
        memcpy(out, &f, 4);
    else
        *(uint16_t *)(void *)out = dtype == CDDP_FLOAT16 ? cdi_f16_of_float(f) : cdi_bf16_of_float(f);
}

static void naive_whole(uint8_t *out, void *const *in, int n, size_t i, cddp_dtype dtype, cddp_redop op)
{
    int64_t acc = whole(dtype, in[0], i);
    bool above = dtype == CDDP_UINT64;

    for (int r = 1; r < n; r++) {
        int64_t x = whole(dtype, in[r], i);
        bool larger = above ? (uint64_t)x > (uint64_t)acc : x > acc;

        acc = op == CDDP_PROD   ? (int64_t)((uint64_t)acc * (uint64_t)x)
              : op == CDDP_MAX  ? (larger ? x : acc)
              : op == CDDP_MIN  ? (larger ? acc : x)
              : op == CDDP_BAND ? (acc & x)
              : op == CDDP_BOR  ? (acc | x)
              : op == CDDP_BXOR ? (acc ^ x)
                                : (int64_t)((uint64_t)acc + (uint64_t)x);
    }
    memcpy(out, &acc, cddp_dtype_size(dtype)); /* little-endian: wraps to the type */
}

static void fill(cddp_dtype dtype, void *p, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double x = ((double)(next_random() % 20001) - 10000) / 64 + (double)(next_random() % 997) / 997;

        switch ((int)dtype) {
        case CDDP_FLOAT16:
            ((uint16_t *)p)[i] = cdi_f16_of_float((float)x);
            break;
        case CDDP_BFLOAT16:
            ((uint16_t *)p)[i] = cdi_bf16_of_float((float)x);
            break;
        case CDDP_FLOAT32:
            ((float *)p)[i] = (float)x;
            break;
        case CDDP_FLOAT64:
            ((double *)p)[i] = x;
            break;
        default: {
            uint64_t v = next_random() * 0x9e3779b97f4a7c15u;

            memcpy((uint8_t *)p + i * cddp_dtype_size(dtype), &v, cddp_dtype_size(dtype));
        }
        }
    }
}

static void one_case(enum cdi_reduce_kind kind, cddp_dtype dtype, cddp_redop op, int n, size_t count, bool in_place)
{
    const struct cdi_partial whole = {.n_total = n};
    size_t size = cddp_dtype_size(dtype), bytes = count * size;
    void *in[5];
    uint8_t *want = malloc(bytes + 1), *two = malloc(bytes + 1);
    void *out[2] = {NULL, two};

    for (int r = 0; r < n; r++) {
        in[r] = malloc(bytes + 1);
        fill(dtype, in[r], count);
    }
    for (size_t i = 0; i < count; i++) {
        if (cdi_dtype_is_float(dtype))
            naive_real(want + i * size, in, n, i, dtype, op);
        else
            naive_whole(want + i * size, in, n, i, dtype, op);
    }
    out[0] = in_place ? in[n - 1] : malloc(bytes + 1);
    two[bytes] = 0x5a;
    cdi_reduce_partial_by(kind, &whole, out, 2, (const void *const *)in, n, count, dtype, op);
    cr_assert_eq(memcmp(out[0], want, bytes), 0, "%s %s of %zu, %d ranks, kind %d", cdi_redop_name(op),
                 cdi_dtype_name(dtype), count, n, (int)kind);
    cr_assert_eq(memcmp(two, want, bytes), 0);
    cr_assert_eq(two[bytes], 0x5a, "nothing after the end is written");
    if (!in_place)
        free(out[0]);
    for (int r = 0; r < n; r++)
        free(in[r]);
    free(two);
    free(want);
}

static void every_case(enum cdi_reduce_kind kind)
{
    const size_t counts[] = {0, 1, 3, 31, 127, 511, 512, 513, 1024, 1025, 4099};

    for (size_t t = 0; t < N_ALL_TYPES; t++)
        for (size_t o = 0; o < N_ALL_OPS; o++)
            for (int n = 1; n <= 5; n++)
                for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
                    if (type_takes(all_types[t], all_ops[o]) && !type_is_small(all_types[t]))
                        one_case(kind, all_types[t], all_ops[o], n, counts[c], c % 2);
}

Test(reduce, baseline_matches_reference)
{
    every_case(CDI_REDUCE_PLAIN);
}

Test(reduce, avx2_matches_reference)
{
    if (!cdi_reduce_has(CDI_REDUCE_AVX2))
        cr_skip("this processor has no AVX2");
    every_case(CDI_REDUCE_AVX2);
}

Test(reduce, avx512_matches_reference)
{
    if (!cdi_reduce_has(CDI_REDUCE_AVX512))
        cr_skip("this processor has no AVX-512");
    every_case(CDI_REDUCE_AVX512);
}

/* All of float16 with a few values, infinities and one NaN at a time: cases that moderate random numbers miss. */
Test(reduce, all_code_sums_float16_alike)
{
    const uint16_t others[] = {0, 0x8000, 1, 0x03ff, 0x0400, 0x3c00, 0x7bff, 0xfbff, 0x7c00};
    uint16_t *a = malloc(65536 * 2), *b = malloc(65536 * 2), *want = malloc(65536 * 2), *got = malloc(65536 * 2);
    const struct cdi_partial two = {.n_total = 2};
    const void *const in[] = {a, b};
    void *plain[] = {want}, *out[] = {got};

    for (size_t k = 0; k < sizeof others / sizeof others[0]; k++) {
        for (uint32_t h = 0; h < 65536; h++) {
            a[h] = (uint16_t)h;
            b[h] = others[k];
        }
        cdi_reduce_partial_by(CDI_REDUCE_PLAIN, &two, plain, 1, in, 2, 65536, CDDP_FLOAT16, CDDP_AVG);
        for (int kind = CDI_REDUCE_AVX2; kind <= CDI_REDUCE_AVX512; kind++) {
            if (!cdi_reduce_has((enum cdi_reduce_kind)kind))
                continue;
            memset(got, 0, 65536 * 2);
            cdi_reduce_partial_by((enum cdi_reduce_kind)kind, &two, out, 1, in, 2, 65536, CDDP_FLOAT16, CDDP_AVG);
            for (uint32_t h = 0; h < 65536; h++)
                cr_assert_eq(got[h], want[h], "%04x + %04x: %04x, not %04x (kind %d)", h, others[k], got[h], want[h],
                             kind);
        }
    }
    free(a);
    free(b);
    free(want);
    free(got);
}

/* On three nodes with one, two and one rank, from memory with only the alignment of an element. */
static void in_stretches(enum cdi_reduce_kind kind, cddp_dtype dtype, cddp_redop op)
{
    enum { COUNT = 1000 };
    size_t size = cddp_dtype_size(dtype), bytes = COUNT * size;
    uint8_t *mem = malloc(7 * (bytes + 64)), *acc = malloc(COUNT * 8);
    struct cdi_partial p = {.to = acc, .n_total = 4};
    void *out[3];
    const void *in[4];

    for (size_t k = 0; k < 4; k++) {
        in[k] = mem + k * (bytes + 64) + size;
        fill(dtype, mem + k * (bytes + 64) + size, COUNT);
    }
    for (size_t k = 0; k < 3; k++)
        out[k] = mem + (4 + k) * (bytes + 64) + size * (k + 1);
    cdi_reduce(out, 1, in, 4, COUNT, dtype, op);
    cdi_reduce_partial_by(kind, &p, NULL, 0, in, 1, COUNT, dtype, op);
    p.from = acc;
    cdi_reduce_partial_by(kind, &p, NULL, 0, in + 1, 2, COUNT, dtype, op);
    p.to = NULL;
    cdi_reduce_partial_by(kind, &p, out + 1, 2, in + 3, 1, COUNT, dtype, op);
    for (int k = 1; k < 3; k++)
        cr_assert_eq(memcmp(out[k], out[0], bytes), 0, "%s %s, kind %d", cdi_redop_name(op), cdi_dtype_name(dtype),
                     (int)kind);
    free(mem);
    free(acc);
}

Test(reduce, partial_sums_have_same_bits)
{
    for (int kind = CDI_REDUCE_PLAIN; kind <= CDI_REDUCE_AVX512; kind++)
        for (size_t t = 0; t < N_ALL_TYPES; t++)
            for (size_t o = 0; o < N_ALL_OPS; o++)
                if (cdi_reduce_has((enum cdi_reduce_kind)kind) && type_takes(all_types[t], all_ops[o]) &&
                    !type_is_small(all_types[t]))
                    in_stretches((enum cdi_reduce_kind)kind, all_types[t], all_ops[o]);
}

Test(reduce, sums_in_rank_order)
{
    /* (1e20 + -1e20) + 1 = 1, but 1e20 + (-1e20 + 1) = 0 in float32. */
    float a = 1e20f, b = -1e20f, c = 1, out;
    void *o[] = {&out};
    const void *const abc[] = {&a, &b, &c}, *const bca[] = {&b, &c, &a};

    cdi_reduce(o, 1, abc, 3, 1, CDDP_FLOAT32, CDDP_SUM);
    cr_assert_eq(out, 1.0f);
    cdi_reduce(o, 1, bca, 3, 1, CDDP_FLOAT32, CDDP_SUM);
    cr_assert_eq(out, 0.0f);
}

Test(reduce, nan_propagates_in_min_and_max)
{
    const float n[2] = {NAN, 1}, m[2] = {1, NAN};
    float out[2];
    void *o[] = {out};
    const void *const in[] = {n, m};

    for (int op = CDDP_MAX; op <= CDDP_MIN; op++) {
        cdi_reduce(o, 1, in, 2, 2, CDDP_FLOAT32, (cddp_redop)op);
        cr_assert(isnan(out[0]) && isnan(out[1]));
    }
}

/* Their product does not fit an int: its overflow would be undefined. */
Test(reduce, products_of_16_bits_wrap)
{
    const uint16_t u[2] = {65535, 65535}, v[2] = {65535, 2};
    const int16_t a[2] = {-32768, 32767}, b[2] = {-32768, -3};
    uint16_t u_out[2];
    int16_t a_out[2];
    void *o[] = {u_out}, *p[] = {a_out};
    const void *const unsigned_in[] = {u, v}, *const signed_in[] = {a, b};

    cdi_reduce(o, 1, unsigned_in, 2, 2, CDDP_UINT16, CDDP_PROD);
    cr_assert(u_out[0] == 1 && u_out[1] == 65534);
    cdi_reduce(p, 1, signed_in, 2, 2, CDDP_INT16, CDDP_PROD);
    cr_assert(a_out[0] == 0 && a_out[1] == (int16_t)(uint16_t)(32767u * 65533u), "%d", a_out[1]);
}

Test(reduce, rejects_8_bit_floats)
{
    struct cdi_error err;

    for (size_t t = 0; t < N_ALL_TYPES; t++) {
        cddp_status st = cdi_element_check_reduction(NULL, all_types[t], CDDP_MAX, &err);

        cr_assert_eq(st, type_is_small(all_types[t]) ? CDDP_E_UNSUPPORTED : CDDP_OK, "%s",
                     cdi_dtype_name(all_types[t]));
        cr_assert_eq(cdi_reduce_acc_size(all_types[t]) == 0, type_is_small(all_types[t]));
        cr_assert(st == CDDP_OK || (strstr(err.msg, cdi_dtype_name(all_types[t])) && strstr(err.msg, "float32")));
    }
}
