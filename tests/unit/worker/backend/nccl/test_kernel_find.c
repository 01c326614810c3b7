/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's kernel that finds numbers that are not finite, by its twin, against the CPU's search. */
#include "tests/support/kernel_twin.h"

#include "hygiene.h"
#include "numbers.h"

#include <math.h>

CDI_SUITE(kernel_find);

enum { N_SM = 3, ROOM = 31000, SPANS = 300 };

static const cddp_dtype types[] = {CDDP_FLOAT16, CDDP_BFLOAT16, CDDP_FLOAT32, CDDP_FLOAT64};
static const size_t counts[] = {0, 1, 3, 4, 5, 255, 1024, 4099, 8192, 8193, 30001};
#define EACH(i, of) for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)

static size_t n_launches;

static uint64_t find(const struct cdi_span *x, const uint64_t *word_of, size_t n, uint64_t limit, uint64_t word)
{
    n_launches = 0;
    while (n > 0) {
        struct cdi_launch l;
        size_t took = cdi_launch_find(&l, N_SM, x, word_of, n, limit, &word);

        cr_assert(took > 0 && took <= n);
        cdi_launch_on_host(&l);
        x += took;
        word_of += took;
        n -= took;
        n_launches++;
    }
    return word;
}

Test(kernel_find, finds_what_the_cpu_finds)
{
    static _Alignas(64) uint8_t memory[8 * ROOM];
    static const double bad[] = {NAN, INFINITY, -INFINITY, 1e30};
    const uint64_t word_of = 0x1200;

    EACH(t, types)
    EACH(c, counts)
    for (size_t shift = 0; shift < 4; shift++) {
        uint8_t *x = memory + shift * cddp_dtype_size(types[t]);
        const struct cdi_span span = {x, counts[c], types[t]};
        uint64_t limit = cdi_nonfinite_limit(types[t], CDDP_FLOAT16, 1);

        for (size_t k = 0; k < counts[c]; k++)
            number_put(types[t], x, k, k % 2 == 0 ? 60000 : -1e-6);
        cr_assert_eq(find(&span, &word_of, 1, limit, 5), 5, "type %zu, count %zu, shift %zu", t, counts[c], shift);
        for (size_t k = 0; k < counts[c]; k += 1 + counts[c] / 5)
            EACH(b, bad)
            {
                double old = number_get(types[t], x, k);
                uint64_t kind;

                number_put(types[t], x, k, bad[b]);
                kind = (uint64_t)cdi_nonfinite_worst(x, counts[c], types[t], limit);
                cr_assert_eq(find(&span, &word_of, 1, limit, 5), kind != 0 ? word_of | kind : 5,
                             "type %zu, count %zu, shift %zu, element %zu is %g", t, counts[c], shift, k, bad[b]);
                cr_assert_eq(find(&span, &word_of, 1, limit, 0x99999), 0x99999, "a larger word stays");
                number_put(types[t], x, k, old);
            }
    }
}

Test(kernel_find, largest_word_of_many_spans_wins)
{
    static float x[SPANS][70];
    static struct cdi_span span[SPANS];
    static uint64_t word_of[SPANS];

    for (size_t i = 0; i < SPANS; i++) {
        span[i] = (struct cdi_span){x[i], i % 7 == 3 ? 0 : i % 70 + 1, CDDP_FLOAT32};
        word_of[i] = (i * 77 % SPANS + 1) << 8;
    }
    cr_assert_eq(find(span, word_of, SPANS, 0x7f800000u, 0), 0);
    cr_assert_eq(n_launches, 3, "more than one launch takes");
    for (size_t i = 0; i < SPANS; i++)
        for (size_t k = i + 1; k < SPANS; k += 41) {
            uint64_t a = span[i].count > 0 ? word_of[i] | CDI_INF : 0, b = span[k].count > 0 ? word_of[k] | CDI_NAN : 0;

            x[i][span[i].count > 0 ? span[i].count - 1 : 0] = INFINITY;
            x[k][0] = NAN;
            cr_assert_eq(find(span, word_of, SPANS, 0x7f800000u, 0), a > b ? a : b, "%zu and %zu", i, k);
            memset(x[i], 0, sizeof x[i]);
            memset(x[k], 0, sizeof x[k]);
        }
}
