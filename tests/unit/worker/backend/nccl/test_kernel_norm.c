/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's kernels for norms and clipping, by their twins, against the CPU backend. */
#include "worker/backend/nccl/kernels/kernel_twin.h"

#include "hygiene.h"
#include "numbers.h"
#include "worker/backend/host_elementwise.h"

#include <math.h>

CDI_SUITE(kernel_norm);

enum { N_SM = 3, ROOM = 31000 };

static const cddp_dtype types[] = {CDDP_FLOAT16, CDDP_BFLOAT16, CDDP_FLOAT32, CDDP_FLOAT64};
static const size_t counts[] = {0, 1, 3, 4, 5, 255, 1024, 4099, 8192, 8193, 30001};
#define EACH(i, of) for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)

static double partial[CDI_TALLY_BLOCKS];

static double tally(const struct cdi_span *x, size_t n, bool largest, bool add, double out)
{
    struct cdi_launch l;

    while (n > 0) {
        size_t took = cdi_launch_tally(&l, x, n, largest, partial);

        cr_assert(took > 0 && took <= n);
        cdi_launch_on_host(&l);
        x += took;
        n -= took;
    }
    cdi_launch_fold(&l, partial, largest, add, &out);
    cdi_launch_on_host(&l);
    EACH(i, partial)
    cr_assert_eq(partial[i], 0, "left clear for the next one");
    return out;
}

static double tally_on_cpu(const struct cdi_span *x, size_t n, bool largest, bool add, double out)
{
    cr_assert_eq(cdi_element_norm(NULL, x, n, largest, add, &out, NULL), CDDP_OK);
    return out;
}

static void fill(cddp_dtype t, void *x, size_t n, uint32_t seed)
{
    for (size_t k = 0; k < n; k++) {
        seed = seed * 1664525u + 1013904223u;
        number_put(t, x, k, ((double)(seed >> 8) / (1 << 24) - 0.5) * 8);
    }
}

static bool is_close(double a, double b)
{
    return fabs(a - b) <= 1e-13 * fabs(b);
}

Test(kernel_norm, sums_and_largest_magnitudes_are_those_of_the_cpu_backend)
{
    static _Alignas(64) uint8_t x[8 * ROOM];

    EACH(t, types)
    EACH(c, counts)
    for (size_t shift = 0; shift < 4; shift++) {
        const struct cdi_span span = {x + shift * cddp_dtype_size(types[t]), counts[c], types[t]};

        fill(types[t], x, ROOM, (uint32_t)c);
        cr_assert(is_close(tally(&span, 1, false, false, -1), tally_on_cpu(&span, 1, false, false, -1)),
                  "type %zu, count %zu, shift %zu", t, counts[c], shift);
        cr_assert_eq(tally(&span, 1, true, false, 99), tally_on_cpu(&span, 1, true, false, 99));
        cr_assert_eq(tally(&span, 1, true, true, 99), 99);
        cr_assert(is_close(tally(&span, 1, false, true, 5), tally_on_cpu(&span, 1, false, true, 5)));
    }
}

Test(kernel_norm, order_of_a_sum_does_not_depend_on_addresses)
{
    static _Alignas(64) uint8_t x[8 * ROOM], y[8 * ROOM];

    EACH(t, types)
    for (size_t shift = 1; shift < 4; shift++) {
        size_t at = shift * cddp_dtype_size(types[t]);
        const struct cdi_span here = {x, 30001, types[t]}, there = {y + at, 30001, types[t]};
        double a, b;

        fill(types[t], x, 30001, 1);
        memcpy(y + at, x, sizeof x - at);
        a = tally(&here, 1, false, false, 0);
        b = tally(&there, 1, false, false, 0);
        cr_assert_eq(memcmp(&a, &b, sizeof a), 0, "type %zu, shift %zu: %a, %a", t, shift, a, b);
    }
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
    cr_assert(is_close(tally(span, N, false, false, 0), tally_on_cpu(span, N, false, false, 0)));
    cr_assert_eq(tally(span, N, true, false, 0), tally_on_cpu(span, N, true, false, 0));
    number_put(types[(N - 1) % 4], span[N - 1].x, 0, 1000);
    cr_assert_eq(tally(span, N, true, false, 0), 1000);
}

Test(kernel_norm, nan_is_above_infinity)
{
    static _Alignas(64) uint8_t x[8 * ROOM];

    EACH(t, types)
    for (size_t at = 0; at < 30001; at += 1 + at * 2) {
        const struct cdi_span span = {x, 30001, types[t]};

        fill(types[t], x, 30001, 9);
        number_put(types[t], x, at, -INFINITY);
        cr_assert_eq(tally(&span, 1, true, false, 0), INFINITY);
        cr_assert_eq(tally(&span, 1, false, false, 0), INFINITY);
        cr_assert(isnan(tally(&span, 1, true, true, NAN)) && isnan(tally(&span, 1, false, true, NAN)));
        number_put(types[t], x, 30000 - at, -NAN);
        cr_assert(isnan(tally(&span, 1, true, false, 0)) && isnan(tally(&span, 1, false, false, 0)));
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
