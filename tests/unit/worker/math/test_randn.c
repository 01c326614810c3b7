/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "worker/math/randn.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

CDI_SUITE(randn);

static double recorded(const json_t *list, size_t k)
{
    return strtod(json_string_value(json_array_get(list, k)), NULL);
}

/* Two draws, one after the other, of n and of 5. */
static void meet(const json_t *one)
{
    bool f64 = strcmp(json_string_value(json_object_get(one, "type")), "f64") == 0;
    const json_t *drawn = json_object_get(one, "drawn");
    struct cdi_normal g;
    double wide[64];
    float narrow[64];

    cdi_normal_seed(&g, (uint64_t)json_integer_value(json_object_get(one, "seed")));
    for (size_t d = 0; d < 2; d++) {
        const json_t *want = json_array_get(drawn, d);
        size_t n = json_array_size(want);

        cr_assert(n > 0 && n <= 64);
        cdi_normal_f64(&g, wide, f64 ? n : 0);
        cdi_normal_f32(&g, narrow, f64 ? 0 : n);
        for (size_t k = 0; k < n; k++) {
            double got = f64 ? wide[k] : (double)narrow[k];

            cr_assert(fabs(got - recorded(want, k)) <= (f64 ? 1e-15 : 1e-6), "draw %zu, number %zu of %zu is %.17g", d,
                      k, n, got);
        }
    }
}

Test(randn, matches_torch_randn)
{
    json_t *all = json_load_file(CDI_TEST_DATA "/powersgd_vectors.json", 0, NULL), *one;
    size_t i;

    cr_assert_eq(json_array_size(json_object_get(all, "randn")), 10);
    json_array_foreach(json_object_get(all, "randn"), i, one) meet(one);
    json_decref(all);
}

Test(randn, seeding_drops_second_of_pair)
{
    struct cdi_normal g;
    double first[3], again[3];

    cdi_normal_seed(&g, 9);
    cdi_normal_f64(&g, first, 3);
    cdi_normal_seed(&g, 9);
    cdi_normal_f64(&g, again, 3);
    for (int k = 0; k < 3; k++)
        cr_assert_eq(first[k], again[k]);
}
