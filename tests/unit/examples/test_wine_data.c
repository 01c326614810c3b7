/* SPDX-License-Identifier: Apache-2.0 */
#include "../../examples/wine/data.h"
#include "hygiene.h"

#include <string.h>

CDI_SUITE(wine_data);

static struct wine_data d;
static char why[4096];

/* What scikit-learn's StandardScaler made of the training rows, in double and rounded to float. */
static void read_all(const char *name, void *out, size_t bytes)
{
    FILE *f = fopen(name, "rb");

    cr_assert_not_null(f);
    cr_assert_eq(fread(out, 1, bytes, f), bytes);
    cr_assert_eq(fgetc(f), EOF);
    fclose(f);
}

Test(wine_data, standardised_rows_are_scikit_learns_to_the_last_bit)
{
    static double want[142][WINE_FEATURES];
    static float want32[142][WINE_FEATURES];

    cr_assert(wine_load(&d, CDI_WINE_DATA, NULL, why, sizeof why), "%s", why);
    cr_assert_eq(d.train.n, 142);
    cr_assert_eq(d.test.n, 36);
    read_all(CDI_TEST_DATA "/wine/Xtrain.f64", want, sizeof want);
    read_all(CDI_TEST_DATA "/wine/Xtrain.f32", want32, sizeof want32);
    for (int i = 0; i < 142; i++)
        for (int k = 0; k < WINE_FEATURES; k++) {
            cr_assert_eq(d.train.x[i][k], want[i][k], "row %d, column %d", i, k);
            cr_assert_eq((float)d.train.x[i][k], want32[i][k]);
        }
}

Test(wine_data, no_row_is_both_trained_on_and_tested)
{
    cr_assert(wine_load(&d, CDI_WINE_DATA, NULL, why, sizeof why));
    for (size_t i = 0; i < d.train.n; i++)
        for (size_t j = 0; j < d.test.n; j++)
            cr_assert_neq(memcmp(d.train.x[i], d.test.x[j], sizeof d.test.x[j]), 0, "rows %zu and %zu", i, j);
}

Test(wine_data, the_initial_weights_may_come_from_elsewhere)
{
    cr_assert(wine_load(&d, CDI_WINE_DATA, CDI_WINE_DATA "/init.f32", why, sizeof why));
    cr_assert_not(wine_load(&d, CDI_WINE_DATA, CDI_WINE_DATA "/wine.csv", why, sizeof why));
    cr_assert(strstr(why, "wine.csv: longer than 1091 float32") != NULL, "%s", why);
}
