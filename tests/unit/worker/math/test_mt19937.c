/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "worker/math/mt19937.h"

#include <inttypes.h>
#include <jansson.h>

CDI_SUITE(mt19937);

/* 2^63 is beyond jansson's integers, so all numbers are read as doubles; they are exact. */
static uint64_t seed_of(const json_t *v)
{
    double seed = json_real_value(v);

    return seed < 0 ? (uint64_t)(int64_t)seed : (uint64_t)seed;
}

Test(mt19937, matches_torch)
{
    json_t *all = json_load_file(CDI_TEST_DATA "/sampler_vectors.json", JSON_DECODE_INT_AS_REAL, NULL);
    json_t *one;
    size_t i, n = 0;

    cr_assert_not_null(all);
    json_array_foreach(json_object_get(all, "mt19937"), i, one)
    {
        uint64_t seed = seed_of(json_object_get(one, "seed"));
        json_t *first = json_object_get(one, "first5");
        struct cdi_mt19937 g;
        uint32_t v = 0;

        cdi_mt19937_seed(&g, seed);
        for (size_t k = 0; k < 700; k++) {
            v = cdi_mt19937_u32(&g);
            if (k < 5)
                cr_assert_eq((double)v, json_real_value(json_array_get(first, k)), "seed %" PRIu64 ", draw %zu", seed,
                             k);
        }
        cr_assert_eq((double)v, json_real_value(json_object_get(one, "u32_at_699")), "seed %" PRIu64, seed);
        n++;
    }
    cr_assert_eq(n, 9);
    json_decref(all);
}

Test(mt19937, ten_thousandth_draw_matches_standard)
{
    struct cdi_mt19937 g;

    cdi_mt19937_seed(&g, 5489);
    for (int i = 0; i < 9999; i++)
        (void)cdi_mt19937_u32(&g);
    cr_assert_eq(cdi_mt19937_u32(&g), 4123659995u, "C++11, [rand.predef]");
}

Test(mt19937, uses_low_half_of_seed)
{
    struct cdi_mt19937 a, b;

    cdi_mt19937_seed(&a, 7);
    cdi_mt19937_seed(&b, (UINT64_C(1) << 32) + 7);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(cdi_mt19937_u32(&a), cdi_mt19937_u32(&b));
}
