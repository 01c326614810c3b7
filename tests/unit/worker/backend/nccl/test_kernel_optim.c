/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer's kernels, by their twins, against the CPU's arithmetic and PyTorch's results. */
#include "tests/support/kernel_twin.h"

#include "hygiene.h"
#include "numbers.h"
#include "worker/math/optim_update.h"

#include <math.h>
#include <string.h>

CDI_SUITE(kernel_optim);

enum { N_SM = 3, COUNT = 9001, STEPS = 40 };

static const struct cdi_optim_rule rules[] = {
    {.kind = CDDP_OPTIM_SGD, .lr = 0.1, .factor = 1},
    {.kind = CDDP_OPTIM_SGD, .lr = 0.1, .weight_decay = 0.01, .factor = 0.25},
    {.kind = CDDP_OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .dampening = 0.1, .factor = 1},
    {.kind = CDDP_OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .nesterov = 1, .weight_decay = 0.1, .factor = 1},
    {.kind = CDDP_OPTIM_ADAM,
     .lr = 1e-3,
     .weight_decay = 0.1,
     .beta1 = 0.9,
     .beta2 = 0.999,
     .eps = 1e-8,
     .factor = 1.0 / 3},
    {.kind = CDDP_OPTIM_ADAMW, .lr = 1e-3, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-6, .factor = 1},
};
#define EACH(i, of) for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)

static double draw(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (double)(*seed >> 8) / (1 << 24) - 0.5;
}

static struct cdi_optim_row row_of(const struct cdi_optim_rule *r)
{
    return (struct cdi_optim_row){.lr_factor = 1, .weight_decay = r->weight_decay};
}

static void step_on_twin(const struct cdi_optim_step *s, const struct cdi_optim_piece *piece, size_t n)
{
    struct cdi_launch l;

    for (size_t at = 0; at < s->n_rows;) {
        at += cdi_launch_count(&l, s, at);
        cdi_launch_on_host(&l);
    }
    for (size_t at = 0; at < n;) {
        size_t took = cdi_launch_update(&l, N_SM, s, piece + at, n - at);

        cr_assert(took > 0);
        cdi_launch_on_host(&l);
        at += took;
    }
}

/* float32 and float64; where the twin's is, and the CPU's. */
static struct {
    double w[COUNT], m[COUNT], v[COUNT], g[COUNT];
} twin, cpu;

static void step_on_cpu(const struct cdi_optim_rule *r, uint64_t step, cddp_dtype t)
{
    if (t == CDDP_FLOAT64)
        cdi_optim_update_f64(r, step, cpu.w, cpu.g, (double *[]){cpu.m, cpu.v}, COUNT);
    else
        cdi_optim_update_f32(r, step, (float *)(void *)cpu.w, (float *)(void *)cpu.g,
                             (float *[]){(float *)(void *)cpu.m, (float *)(void *)cpu.v}, COUNT);
}

static void check_rule(const struct cdi_optim_rule *r, cddp_dtype t)
{
    struct cdi_optim_row row = row_of(r);
    const int n_states = cdi_optim_n_states(r);
    const struct cdi_optim_piece piece = {.w = twin.w,
                                          .g = twin.g,
                                          .state = {n_states > 0 ? twin.m : NULL, n_states > 1 ? twin.v : NULL},
                                          .count = COUNT,
                                          .dtype = t};
    const struct cdi_optim_step s = {.rule = r, .rows = &row, .n_rows = 1, .publish = true};
    uint32_t seed = 5;

    memset(&twin, 0, sizeof twin);
    for (size_t k = 0; k < COUNT; k++)
        number_put(t, twin.w, k, draw(&seed));
    cpu = twin;
    for (uint64_t step = 1; step <= STEPS; step++) {
        for (size_t k = 0; k < COUNT; k++)
            number_put(t, twin.g, k, draw(&seed));
        memcpy(cpu.g, twin.g, sizeof cpu.g);
        step_on_twin(&s, &piece, 1);
        step_on_cpu(r, step, t);
        cr_assert_eq(row.steps, step);
        cr_assert_eq(memcmp(twin.g, twin.w, COUNT * cddp_dtype_size(t)), 0, "published");
        if (r->kind == CDDP_OPTIM_SGD)
            cr_assert_eq(memcmp(twin.w, cpu.w, sizeof cpu.w), 0, "step %d", (int)step);
        for (size_t k = 0; k < COUNT; k++)
            cr_assert_float_eq(number_get(t, twin.w, k), number_get(t, cpu.w, k), t == CDDP_FLOAT64 ? 1e-14 : 1e-6);
        if (r->kind == CDDP_OPTIM_ADAM)
            continue; /* its averages have the parameter in them */
        cr_assert_eq(memcmp(twin.m, cpu.m, sizeof cpu.m), 0, "averages are the same bits");
        cr_assert_eq(memcmp(twin.v, cpu.v, sizeof cpu.v), 0);
    }
}

Test(kernel_optim, optimizers_give_the_bits_of_the_cpu)
{
    EACH(r, rules)
    {
        check_rule(&rules[r], CDDP_FLOAT32);
        check_rule(&rules[r], CDDP_FLOAT64);
    }
}

/* Their gradients have the same type, or are float32; then the new values are published in that type, and collected. */
static void check_narrow(cddp_dtype t, bool long_g)
{
    static uint16_t w[COUNT], other[COUNT];
    static float g[COUNT], was[COUNT], master[COUNT], want[COUNT], wide[COUNT], s[4][COUNT];
    const cddp_dtype of_g = long_g ? CDDP_FLOAT32 : t;
    const struct cdi_optim_rule *r = &rules[3];
    struct cdi_optim_row row = row_of(r);
    struct cdi_optim_piece piece = {
        .w = w, .g = g, .state = {s[0]}, .master = master, .count = COUNT, .dtype = t, .long_g = long_g};
    struct cdi_optim_step step = {.rule = r, .rows = &row, .n_rows = 1};
    uint32_t seed = 3;

    memset(s, 0, sizeof s);
    for (size_t k = 0; k < COUNT; k++) {
        number_put(t, w, k, draw(&seed));
        want[k] = master[k] = (float)number_get(t, w, k);
    }
    for (uint64_t n = 1; n <= STEPS; n++) {
        for (size_t k = 0; k < COUNT; k++) {
            number_put(of_g, g, k, draw(&seed));
            wide[k] = (float)number_get(of_g, g, k);
        }
        memcpy(was, g, sizeof g);
        step.publish = n % 2 == 0; /* also the last one */
        step_on_twin(&step, &piece, 1);
        cdi_optim_update_f32(r, n, want, wide, (float *[]){s[2], s[3]}, COUNT);
        cr_assert_eq(memcmp(master, want, sizeof want), 0);
        cr_assert(step.publish || memcmp(g, was, sizeof g) == 0, "not published");
        for (size_t k = 0; k < COUNT; k++) {
            cr_assert_eq(w[k], t == CDDP_FLOAT16 ? cdi_f16_of_float(want[k]) : cdi_bf16_of_float(want[k]));
            cr_assert(!step.publish || number_get(of_g, g, k) == number_get(t, w, k), "published");
        }
    }
    piece.w = other;
    step.collect = true;
    step_on_twin(&step, &piece, 1);
    cr_assert_eq(memcmp(w, other, sizeof w), 0, "collected");
    cr_assert_eq(row.steps, STEPS + 1, "the rows were counted, but not used");
    step.collect = false;
    step.idle = &(uint8_t){1};
    memset(g, 0xff, sizeof g);
    step_on_twin(&step, &piece, 1);
    for (size_t k = 0; k < COUNT; k++)
        cr_assert_eq(number_get(of_g, g, k), number_get(t, w, k), "published, also where it is idle");
}

Test(kernel_optim, parameters_of_16_bits_are_rounded_from_float32)
{
    static const cddp_dtype narrow[] = {CDDP_FLOAT16, CDDP_BFLOAT16};

    EACH(t, narrow)
    {
        check_narrow(narrow[t], false);
        check_narrow(narrow[t], true);
    }
}

/* More of both than a launch takes, some idle; then all, since a number is not finite. */
Test(kernel_optim, idle_rows_do_not_change)
{
    enum { ROWS = CDI_KERNEL_ROWS + 100 };
    static struct cdi_optim_row row[ROWS];
    static struct cdi_optim_piece piece[ROWS];
    static float w[ROWS], g[ROWS], was[ROWS];
    static uint8_t idle[ROWS];
    const struct cdi_optim_rule sgd = {.kind = CDDP_OPTIM_SGD, .lr = 1, .factor = 1};
    double largest = 1e300;
    uint64_t skipped = 7;
    struct cdi_optim_step s = {.rule = &sgd,
                               .rows = row,
                               .n_rows = ROWS,
                               .idle = idle,
                               .largest = &largest,
                               .skipped = &skipped,
                               .publish = true};

    for (size_t i = 0; i < ROWS; i++) {
        row[i] = row_of(&sgd);
        row[i].lr_factor = 1 + (double)(i % 3);
        piece[i] =
            (struct cdi_optim_piece){.w = &w[i], .g = &g[i], .count = i % 11 != 0, .dtype = CDDP_FLOAT32, .row = i};
        idle[i] = i % 5 == 1;
        w[i] = (float)i;
        g[i] = 0.5f;
    }
    memcpy(was, w, sizeof w);
    step_on_twin(&s, piece, ROWS);
    for (size_t i = 0; i < ROWS; i++) {
        bool stays = idle[i] || i % 11 == 0;

        cr_assert_eq(w[i], stays ? was[i] : was[i] - 0.5f * (float)row[i].lr_factor, "row %zu", i);
        cr_assert_eq(g[i], i % 11 == 0 ? 0.5f : w[i], "published, also where it is idle");
        cr_assert_eq(row[i].steps, !idle[i]);
    }
    cr_assert_eq(skipped, 7);
    memcpy(was, w, sizeof w);
    for (int bad = 0; bad < 2; bad++) {
        largest = bad == 0 ? INFINITY : NAN;
        for (size_t i = 0; i < ROWS; i++)
            g[i] = NAN;
        step_on_twin(&s, piece, ROWS);
        cr_assert_eq(memcmp(w, was, sizeof w), 0);
        cr_assert_eq(skipped, 8 + (uint64_t)bad);
        for (size_t i = 0; i < ROWS; i++) {
            cr_assert_eq(row[i].steps, !idle[i]);
            cr_assert(i % 11 == 0 ? isnan(g[i]) : g[i] == w[i]);
        }
    }
}

/* The precision of 1 - power, which is their purpose. */
Test(kernel_optim, powers_are_those_of_libm)
{
    static const double bases[] = {0.5, 0.9, 0.95, 0.999, 0.9999};

    EACH(b, bases)
    for (uint64_t n = 1; n < 200000; n += 1 + n / 7)
        cr_assert_float_eq(cdi_power(bases[b], n), pow(bases[b], (double)n), 1e-12);
}
