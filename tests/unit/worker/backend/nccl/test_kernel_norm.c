/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's kernels for norms and clipping, by their twins, against the CPU backend. */
#include "tests/support/kernel_twin.h"

#include "hygiene.h"
#include "numbers.h"
#include "worker/backend/host_elementwise.h"
#include "worker/backend/nccl/kernels/element_norm.h"

#include <math.h>

CDI_SUITE(kernel_norm);

enum { N_SM = 3, ROOM = 31000 };

static const cddp_dtype types[] = {CDDP_FLOAT16, CDDP_BFLOAT16, CDDP_FLOAT32, CDDP_FLOAT64};
static const size_t counts[] = {0, 1, 3, 4, 5, 255, 1024, 4099, 8192, 8193, 30001};
#define EACH(i, of) for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)

static double room[CDI_NORM_ROOM];

static double tally(const struct cdi_span *x, size_t n, bool largest)
{
    uint64_t *words = (uint64_t *)(void *)(room + 1), *of_blocks = words + CDI_EXACT_WORDS;
    struct cdi_launch l;

    while (n > 0) {
        size_t took = cdi_launch_tally(&l, N_SM, x, n, largest, of_blocks);

        cr_assert(took > 0 && took <= n);
        cdi_launch_on_host(&l);
        x += took;
        n -= took;
    }
    cdi_launch_fold(&l, of_blocks, words, largest, room);
    cdi_launch_on_host(&l);
    for (size_t k = 0; k < CDI_EXACT_WORDS; k++)
        cr_assert_eq(of_blocks[k], 0, "left clear for the next one");
    return room[0];
}

static double tally_on_cpu(const struct cdi_span *x, size_t n, bool largest)
{
    static double out[CDI_NORM_ROOM];

    cr_assert_eq(cdi_element_norm(NULL, x, n, largest, out, NULL), CDDP_OK);
    return out[0];
}

/* Checks that the twins have the bits of the CPU's backend, in the words of the sum, too. */
static void expect_same(const struct cdi_span *x, size_t n, const char *what, size_t which)
{
    double want[CDI_NORM_ROOM] = {0};

    cr_assert_eq(cdi_element_norm(NULL, x, n, false, want, NULL), CDDP_OK);
    (void)tally(x, n, false);
    cr_assert_arr_eq(room, want, (1 + CDI_EXACT_WORDS) * sizeof *room, "%s %zu: %a, not %a", what, which, room[0],
                     want[0]);
    cr_assert_eq(cdi_bits_of_double(tally(x, n, true)), cdi_bits_of_double(tally_on_cpu(x, n, true)), "%s %zu", what,
                 which);
}

static void fill(cddp_dtype t, void *x, size_t n, uint32_t seed)
{
    for (size_t k = 0; k < n; k++) {
        seed = seed * 1664525u + 1013904223u;
        number_put(t, x, k, ((double)(seed >> 8) / (1 << 24) - 0.5) * 8);
    }
}

Test(kernel_norm, sums_and_largest_magnitudes_are_those_of_the_cpu_backend)
{
    static _Alignas(64) uint8_t x[8 * ROOM];

    EACH(t, types)
    EACH(c, counts)
    for (size_t shift = 0; shift < 4; shift++) {
        const struct cdi_span span = {x + shift * cddp_dtype_size(types[t]), counts[c], types[t]};

        fill(types[t], x, ROOM, (uint32_t)c);
        expect_same(&span, 1, "shift", shift);
    }
}

static uint64_t dice = 88172645463325252u;

static uint64_t roll(void)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return dice;
}

/* Any bits that are finite: small ones without a leading digit, and squares that are 0 or infinite, too. */
static void fill_finite(cddp_dtype t, void *x, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        double v = cdi_double_of_bits(roll());

        if (t == CDDP_FLOAT32)
            v = (double)cdi_float_of_bits((uint32_t)roll());
        else if (t != CDDP_FLOAT64)
            v = (double)(t == CDDP_FLOAT16 ? cdi_float_of_f16((uint16_t)roll()) : cdi_float_of_bf16((uint16_t)roll()));
        number_put(t, x, k, isfinite(v) ? v : 1);
    }
}

Test(kernel_norm, bits_do_not_depend_on_cuts_between_lines_nor_order_nor_addresses)
{
    enum { PARTS = 60 };
    static _Alignas(64) uint8_t x[8 * ROOM], y[8 * ROOM];

    EACH(t, types)
    for (int tame = 0; tame < 2; tame++)
        for (size_t shift = 0; shift < 4; shift++) {
            const size_t size = cddp_dtype_size(types[t]), line = CDI_NORM_LINE / size, count = 30001;
            const struct cdi_span whole = {x, count, types[t]};
            struct cdi_span part[PARTS];
            size_t from = 0, n = 0;
            double want;

            if (tame)
                fill(types[t], x, count, 1);
            else
                fill_finite(types[t], x, count);
            memcpy(y + shift * size, x, count * size);
            want = tally_on_cpu(&whole, 1, false);
            cr_assert(isfinite(want) || types[t] == CDDP_FLOAT64);
            while (from < count) {
                size_t to = n + 1 == PARTS ? count : from + roll() % 200 * line;

                to = to < count ? to : count;
                part[n++] = (struct cdi_span){y + (shift + from) * size, to - from, types[t]};
                from = to;
            }
            for (size_t k = n; k-- > 1;) { /* in any order */
                size_t with = roll() % (k + 1);
                struct cdi_span other = part[with];

                part[with] = part[k];
                part[k] = other;
            }
            cr_assert_eq(cdi_bits_of_double(tally(&whole, 1, false)), cdi_bits_of_double(want));
            cr_assert_eq(cdi_bits_of_double(tally_on_cpu(part, n, false)), cdi_bits_of_double(want));
            expect_same(part, n, "shift", shift);
        }
}

/* As many lines as words of the CPU's collection by exponents hold, of the largest numbers, and one more. */
Test(kernel_norm, many_lines_of_one_exponent_do_not_overflow)
{
    enum { LINES = 3 * 2048 + 1 };
    static _Alignas(64) double x[LINES * 8];
    const struct cdi_span span = {x, LINES * 8, CDDP_FLOAT64};
    double square = 0x1.fffffep+100 * 0x1.fffffep+100; /* exact */

    memset(x, 0, sizeof x);
    for (size_t k = 0; k < LINES; k++)
        x[8 * k] = 0x1.fffffep+100;
    cr_assert_eq(tally_on_cpu(&span, 1, false), LINES * square);
    expect_same(&span, 1, "lines", LINES);
}

/* Adds lines to the sums of two threads in turn, joins those, and compares with an exact sum of all. */
static void expect_sum(const double *line, size_t n, const char *what)
{
    uint64_t got[CDI_EXACT_WORDS] = {0}, want[CDI_EXACT_WORDS] = {0};
    struct cdi_tally_own own[2] = {{.limb = 0}, {.limb = 0}};

    for (size_t k = 0; k < n; k++) {
        cdi_tally_line(&own[k / 7 % 2], line[k], got);
        cdi_exact_add(want, 1, line[k]);
    }
    cdi_tally_join(&own[0], &own[1], got);
    cdi_tally_empty(&own[0], got);
    cdi_exact_carry(got);
    cdi_exact_carry(want);
    cr_assert_arr_eq(got, want, sizeof want, "%s", what);
}

Test(kernel_norm, a_threads_sum_is_exact_whatever_its_lines)
{
    enum { LINES = 30000 };
    static double x[LINES];

    for (size_t k = 0; k < LINES; k++)
        x[k] = cdi_double_of_bits(roll() & INT64_MAX);
    expect_sum(x, LINES, "any bits");
    for (size_t k = 0; k < LINES; k++)
        x[k] = cdi_double_of_bits(roll() >> roll() % 64 >> 1);
    expect_sum(x, LINES, "often small or 0");
    for (int up = 55; up < 70; up++) { /* the limbs are those of 1, until the highest one is full */
        for (size_t k = 0; k < LINES; k++)
            x[k] = k < 14 ? 1 : ldexp(0x1.fffffffffffffp+0, up);
        expect_sum(x, LINES, "large");
    }
    expect_sum((const double[]){0, 1, 0, 0, 0, 0, 0, 0x1p-1074, 0}, 9, "zeros");
    expect_sum((const double[]){1, INFINITY, NAN, INFINITY, 0x1.fffffffffffffp+1023, -NAN, 0, 2}, 8, "not finite");
}

Test(kernel_norm, sums_of_threads_have_carries_and_are_moved_where_they_do_not_fit)
{
    uint64_t word[CDI_EXACT_WORDS] = {0};
    struct cdi_tally_own a = {{UINT64_MAX, UINT64_MAX, 1}, 5}, b = {{1, 0, 1}, 5}, c = {{0, 3, (uint64_t)1 << 63}, 5};

    cdi_tally_join(&a, &b, word);
    cr_assert(a.part[0] == 0 && a.part[1] == 0 && a.part[2] == 3);
    cdi_tally_add(&a, 0, UINT64_MAX, 0);
    cdi_tally_add(&a, 7, 2, 0);
    cr_assert(a.part[0] == 7 && a.part[1] == 1 && a.part[2] == 4);
    cdi_tally_join(&a, &c, word);
    cr_assert(a.part[2] == 4 && c.part[1] == 0 && c.part[2] == 0);
    cr_assert(word[7] == 3 && word[10] == (uint64_t)1 << 31);
    b = (struct cdi_tally_own){{1, 0, 0}, 6};
    cdi_tally_join(&a, &b, word);
    cr_assert(a.limb == 5 && a.part[0] == 7 && word[6] == 1);
}

Test(kernel_norm, counts_more_spans_than_fit_in_a_launch)
{
    enum { N = 2 * CDI_KERNEL_SPANS + 7 };
    static _Alignas(64) uint8_t x[8 * ROOM];
    struct cdi_span span[N];

    memset(x, 0, sizeof x);
    for (size_t i = 0; i < N; i++) {
        cddp_dtype t = types[i % 4];

        span[i] = (struct cdi_span){x + i * 512, i % 5 == 2 ? 0 : 1 + i % 60, t};
        fill(t, span[i].x, span[i].count, (uint32_t)i);
    }
    expect_same(span, N, "spans", N);
    number_put(types[(N - 1) % 4], span[N - 1].x, 0, 1000);
    cr_assert_eq(tally(span, N, true), 1000);
}

Test(kernel_norm, words_of_several_norms_add_up)
{
    static _Alignas(64) uint8_t x[8 * ROOM];
    const struct cdi_span all = {x, 30001, CDDP_FLOAT32}, first = {x, 16 * 700, CDDP_FLOAT32};
    const struct cdi_span rest = {x + 64 * 700, 30001 - 16 * 700, CDDP_FLOAT32};
    static double one[CDI_NORM_ROOM], other[CDI_NORM_ROOM];
    uint64_t a[CDI_EXACT_WORDS], b[CDI_EXACT_WORDS];
    struct cdi_launch l;

    fill(CDDP_FLOAT32, x, ROOM, 5);
    cr_assert_eq(cdi_element_norm(NULL, &first, 1, false, one, NULL), CDDP_OK);
    cr_assert_eq(cdi_element_norm(NULL, &rest, 1, false, other, NULL), CDDP_OK);
    memcpy(a, one + 1, sizeof a);
    memcpy(b, other + 1, sizeof b);
    for (size_t k = 0; k < CDI_EXACT_WORDS; k++)
        a[k] += b[k];
    memcpy(one + 1, a, sizeof a);
    memcpy(other, one, sizeof one);
    cr_assert_eq(cdi_element_norm_round(NULL, one, NULL), CDDP_OK);
    cr_assert_eq(cdi_bits_of_double(one[0]), cdi_bits_of_double(tally_on_cpu(&all, 1, false)));
    cdi_launch_fold(&l, (uint64_t *)(void *)(other + 1), (uint64_t *)(void *)(other + 1), false, other);
    cdi_launch_on_host(&l);
    cr_assert_eq(cdi_bits_of_double(other[0]), cdi_bits_of_double(one[0]));
}

Test(kernel_norm, nan_is_above_infinity)
{
    static _Alignas(64) uint8_t x[8 * ROOM];

    EACH(t, types)
    for (size_t at = 0; at < 30001; at += 1 + at * 2) {
        const struct cdi_span span = {x, 30001, types[t]};

        fill(types[t], x, 30001, 9);
        number_put(types[t], x, at, -INFINITY);
        cr_assert_eq(tally(&span, 1, true), INFINITY);
        cr_assert_eq(tally(&span, 1, false), INFINITY);
        expect_same(&span, 1, "infinity at", at);
        number_put(types[t], x, 30000 - at, -NAN);
        cr_assert(isnan(tally(&span, 1, true)) && isnan(tally(&span, 1, false)));
        cr_assert(isnan(tally_on_cpu(&span, 1, true)) && isnan(tally_on_cpu(&span, 1, false)));
    }
}

static void clip(const struct cdi_span *x, size_t n, const struct cdi_clip *how, const double *sum)
{
    struct cdi_launch l;

    while (n > 0) {
        size_t took = cdi_launch_clip(&l, N_SM, x, n, how, sum);

        cdi_launch_on_host(&l);
        x += took;
        n -= took;
    }
}

Test(kernel_norm, clipping_gives_the_bits_of_the_cpu_backend)
{
    static const struct cdi_clip hows[] = {
        {1, 1, false, NULL}, {1, 0.25, false, NULL}, {2, 1, true, NULL}, {0, 1, false, NULL}, {1e9, 1, true, NULL}};
    static const double sums[] = {0, 17.3, 1e300, INFINITY};
    static _Alignas(64) uint8_t want[8 * ROOM], got[8 * ROOM];

    EACH(t, types)
    EACH(c, counts)
    EACH(h, hows)
    EACH(s, sums)
    for (size_t shift = 0; shift < 2; shift++) {
        size_t at = shift * cddp_dtype_size(types[t]);
        const struct cdi_span a = {want + at, counts[c], types[t]}, b = {got + at, counts[c], types[t]};

        fill(types[t], want, counts[c] + 1, 3);
        memcpy(got, want, sizeof got);
        cr_assert_eq(cdi_element_clip(NULL, &a, 1, &hows[h], &sums[s], NULL), CDDP_OK);
        clip(&b, 1, &hows[h], &sums[s]);
        cr_assert_eq(memcmp(want, got, sizeof got), 0, "type %zu, count %zu, how %zu, sum %zu", t, counts[c], h, s);
    }
}

Test(kernel_norm, nan_norm_reaches_every_element)
{
    float x[] = {1, 2, 3};
    const struct cdi_span span = {x, 3, CDDP_FLOAT32};
    const struct cdi_clip how = {1, 1, false, NULL};
    const double sum = NAN;

    clip(&span, 1, &how, &sum);
    for (int k = 0; k < 3; k++)
        cr_assert(isnan(x[k]));
}
