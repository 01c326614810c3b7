/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of a step, compared with PyTorch's results for the same parameters and gradients
 * (tests/data/optim.json).
 */
#include "hygiene.h"
#include "worker/math/optim_update.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

CDI_SUITE(optim_update);

#define MAX_COUNT 16
#define N_CASES 9

static json_t *record(void)
{
    json_error_t why;
    json_t *all = json_load_file(CDI_TEST_DATA "/optim.json", 0, &why);

    cr_assert_not_null(all, "optim.json: %s", why.text);
    cr_assert_eq(json_array_size(json_object_get(all, "cases")), N_CASES);
    return all;
}

static double option(const json_t *options, const char *name, double otherwise)
{
    const json_t *value = json_object_get(options, name);

    return value == NULL ? otherwise : json_is_true(value) ? 1 : json_number_value(value);
}

static struct cdi_optim_rule rule_of(const json_t *one)
{
    const json_t *options = json_object_get(one, "options"), *betas = json_object_get(options, "betas");
    const char *kind = json_string_value(json_object_get(one, "kind"));

    return (struct cdi_optim_rule){
        .kind = strcmp(kind, "SGD") == 0    ? CDDP_OPTIM_SGD
                : strcmp(kind, "Adam") == 0 ? CDDP_OPTIM_ADAM
                                            : CDDP_OPTIM_ADAMW,
        .nesterov = option(options, "nesterov", 0) != 0,
        .lr = option(options, "lr", 0),
        .weight_decay = option(options, "weight_decay", 0),
        .momentum = option(options, "momentum", 0),
        .dampening = option(options, "dampening", 0),
        .beta1 = betas == NULL ? 0.9 : json_number_value(json_array_get(betas, 0)),
        .beta2 = betas == NULL ? 0.999 : json_number_value(json_array_get(betas, 1)),
        .eps = option(options, "eps", 1e-8),
        .factor = 1,
    };
}

static size_t numbers(const json_t *list, double *out)
{
    size_t n = json_array_size(list);

    cr_assert(n > 0 && n <= MAX_COUNT);
    for (size_t i = 0; i < n; i++)
        out[i] = json_number_value(json_array_get(list, i));
    return n;
}

/* In float64 and in float32; the largest differences. */
static void run(const json_t *all, const json_t *one, double *worst, double *worst_f32)
{
    struct cdi_optim_rule rule = rule_of(one);
    double w[MAX_COUNT], g[MAX_COUNT], want[MAX_COUNT], m[MAX_COUNT] = {0}, v[MAX_COUNT] = {0};
    float w32[MAX_COUNT], g32[MAX_COUNT], m32[MAX_COUNT] = {0}, v32[MAX_COUNT] = {0};
    const json_t *after = json_object_get(one, "after"), *gradients = json_object_get(all, "gradients");
    size_t n = numbers(json_object_get(all, "start"), w);

    for (size_t i = 0; i < n; i++)
        w32[i] = (float)w[i];
    *worst = *worst_f32 = 0;
    for (size_t step = 0; step < json_array_size(gradients); step++) {
        cr_assert_eq(numbers(json_array_get(gradients, step), g), n);
        cr_assert_eq(numbers(json_array_get(after, step), want), n);
        for (size_t i = 0; i < n; i++)
            g32[i] = (float)g[i];
        cdi_optim_update_f64(&rule, step + 1, w, g, (double *[]){m, v}, n);
        cdi_optim_update_f32(&rule, step + 1, w32, g32, (float *[]){m32, v32}, n);
        for (size_t i = 0; i < n; i++) {
            *worst = fmax(*worst, fabs(w[i] - want[i]));
            *worst_f32 = fmax(*worst_f32, fabs((double)w32[i] - want[i]));
        }
    }
}

Test(optim_update, sgd_adam_and_adamw_match_torch)
{
    json_t *all = record();

    for (size_t c = 0; c < N_CASES; c++) {
        double worst, worst_f32;

        run(all, json_array_get(json_object_get(all, "cases"), c), &worst, &worst_f32);
        cr_expect(worst <= 1e-12, "case %zu: float64 is off by %g", c, worst);
        cr_expect(worst_f32 <= 2e-6, "case %zu: float32 is off by %g", c, worst_f32);
    }
    json_decref(all);
}

Test(optim_update, step_is_independent_of_cuts)
{
    static const struct cdi_optim_rule rules[] = {
        {.kind = CDDP_OPTIM_SGD, .lr = 0.1, .weight_decay = 0.01, .factor = 0.25},
        {.kind = CDDP_OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .nesterov = 1, .factor = 1},
        {.kind = CDDP_OPTIM_ADAMW,
         .lr = 0.1,
         .weight_decay = 0.1,
         .beta1 = 0.9,
         .beta2 = 0.99,
         .eps = 1e-8,
         .factor = 1},
    };
    enum { N = 77 };

    for (size_t r = 0; r < sizeof rules / sizeof rules[0]; r++)
        for (size_t cut = 0; cut <= N; cut++) {
            float w[2][N], g[N], m[2][N] = {{0}}, v[2][N] = {{0}};

            for (int i = 0; i < N; i++) {
                g[i] = (float)(i * 37 % 19 - 9) / 7;
                w[0][i] = w[1][i] = (float)(i * 11 % 23 - 11) / 13;
            }
            for (uint64_t step = 1; step <= 3; step++) {
                cdi_optim_update_f32(&rules[r], step, w[0], g, (float *[]){m[0], v[0]}, N);
                cdi_optim_update_f32(&rules[r], step, w[1], g, (float *[]){m[1], v[1]}, cut);
                cdi_optim_update_f32(&rules[r], step, w[1] + cut, g + cut, (float *[]){m[1] + cut, v[1] + cut},
                                     N - cut);
            }
            cr_assert_arr_eq(w[0], w[1], sizeof w[0], "rule %zu cut at %zu", r, cut);
        }
}
