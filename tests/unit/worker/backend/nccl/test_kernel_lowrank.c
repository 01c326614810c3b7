/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's kernels for PowerSGD, by their twins, against the CPU's arithmetic: the same bits. */
#include "tests/support/kernel_twin.h"

#include "hygiene.h"
#include "numbers.h"

#include <math.h>
#include <string.h>

CDI_SUITE(kernel_lowrank);

#define N_SM 3
#define MOST 70000 /* elements of a matrix */
#define THIN 9000  /* of its P or Q */
#define EACH(i, of) for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)

static const size_t shapes[][3] = {{1, 1, 1},    {1, 9, 1},    {9, 1, 1},     {7, 5, 2},     {8, 8, 8},    {33, 16, 3},
                                   {300, 17, 4}, {5, 1001, 5}, {257, 263, 9}, {2100, 31, 4}, {31, 263, 31}};

struct side {
    double m[MOST], e[MOST], p[THIN], q[THIN], fresh[THIN];
};

static struct side cpu, twin;

static double draw(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return (double)(*seed >> 8) / (1 << 24) - 0.5;
}

static struct cdi_lowrank_matrix matrix_of(struct side *s, const size_t shape[3], cddp_dtype t)
{
    return (struct cdi_lowrank_matrix){
        .of = {t, shape[0], shape[1], shape[2]}, .m = s->m, .p = s->p, .q = s->q, .error = s->e, .fresh = s->fresh};
}

static void step_on_twin(enum cdi_lowrank_step step, const struct cdi_lowrank_matrix *m, size_t n, double epsilon)
{
    struct cdi_launch l;

    for (size_t at = 0; at < n;) {
        size_t took = cdi_launch_lowrank(&l, N_SM, step, m + at, n - at, epsilon);

        cr_assert(took > 0);
        cdi_launch_on_host(&l);
        at += took;
    }
}

/* The initial value of Q. */
enum start { ANY, ZEROS, ALIKE, NEARLY_ALIKE, NOT_A_NUMBER };

static void begin(const size_t shape[3], cddp_dtype t, enum start start)
{
    const size_t n = shape[1];
    uint32_t seed = 7;

    memset(&cpu, 0, sizeof cpu);
    for (size_t k = 0; k < shape[0] * n; k++) {
        number_put(t, cpu.m, k, draw(&seed));
        number_put(t, cpu.e, k, draw(&seed) / 4);
    }
    for (size_t k = 0; k < n * shape[2]; k++) {
        double same = start == ALIKE || start == NEARLY_ALIKE ? 1 + (double)(k % n % 7) : draw(&seed);

        same += start == NEARLY_ALIKE ? 1e-3 * draw(&seed) : 0;
        number_put(t, cpu.q, k, start == ZEROS ? 0 : same);
        number_put(t, cpu.fresh, k, draw(&seed));
    }
    if (start == NOT_A_NUMBER)
        number_put(t, cpu.q, n * shape[2] - 1, NAN);
    twin = cpu;
}

static void all_steps(const size_t shape[3], cddp_dtype t, enum start start, double epsilon)
{
    static const enum cdi_lowrank_step steps[] = {CDI_LOWRANK_BASIS_Q, CDI_LOWRANK_FEED,  CDI_LOWRANK_LEFT,
                                                  CDI_LOWRANK_BASIS_P, CDI_LOWRANK_RIGHT, CDI_LOWRANK_PRODUCT};
    const struct cdi_lowrank_matrix on_cpu = matrix_of(&cpu, shape, t), on_twin = matrix_of(&twin, shape, t);

    begin(shape, t, start);
    for (int round = 0; round < 2; round++)
        EACH(s, steps)
        {
            cdi_lowrank_do(steps[s], &on_cpu, 1, epsilon);
            step_on_twin(steps[s], &on_twin, 1, epsilon);
            cr_assert_eq(memcmp(&cpu, &twin, sizeof cpu), 0, "%zu x %zu of rank %zu, start %d, step %zu", shape[0],
                         shape[1], shape[2], (int)start, s);
            if (s == 0 && round == 0 && (start == ZEROS || start == NOT_A_NUMBER))
                cr_assert_eq(memcmp(twin.q, twin.fresh, sizeof twin.q), 0, "a lost Q begins anew");
        }
}

Test(kernel_lowrank, every_step_gives_the_cpus_bits)
{
    EACH(s, shapes)
    for (int start = ANY; start <= NOT_A_NUMBER; start++) {
        all_steps(shapes[s], CDDP_FLOAT32, (enum start)start, 0);
        all_steps(shapes[s], CDDP_FLOAT64, (enum start)start, 1e-8);
    }
}

/* Sums of 16 bits, which tied parameters need, are rounded once. */
Test(kernel_lowrank, adds_16_bits_like_the_cpu)
{
    static const size_t shape[3] = {257, 263, 1};

    for (int wide = 0; wide < 2; wide++) {
        cddp_dtype t = wide == 0 ? CDDP_FLOAT16 : CDDP_BFLOAT16;
        const struct cdi_lowrank_matrix on_cpu = matrix_of(&cpu, shape, t), on_twin = matrix_of(&twin, shape, t);
        static uint16_t m[257 * 263], e[257 * 263];

        begin(shape, t, ANY);
        memcpy(m, cpu.m, sizeof m);
        memcpy(e, cpu.e, sizeof e);
        cdi_lowrank_do(CDI_LOWRANK_FEED, &on_cpu, 1, 0);
        step_on_twin(CDI_LOWRANK_FEED, &on_twin, 1, 0);
        cr_assert_eq(memcmp(&cpu, &twin, sizeof cpu), 0);
        for (size_t k = 0; k < sizeof m / sizeof m[0]; k++) {
            uint16_t sum;

            number_put(t, &sum, 0, number_get(t, m, k) + number_get(t, e, k));
            cr_assert(((uint16_t *)(void *)cpu.m)[k] == sum && ((uint16_t *)(void *)cpu.e)[k] == sum);
        }
    }
}

/* The residual of an overflowing product is not kept; and without memory for it nothing is written. */
Test(kernel_lowrank, residual_stays_finite)
{
    static const size_t shape[3] = {20, 30, 2};
    struct cdi_lowrank_matrix on_cpu = matrix_of(&cpu, shape, CDDP_FLOAT32),
                              on_twin = matrix_of(&twin, shape, CDDP_FLOAT32);
    size_t zeros = 0;

    begin(shape, CDDP_FLOAT32, ANY);
    for (size_t k = 0; k < 40; k++)
        number_put(CDDP_FLOAT32, cpu.p, k, k % 3 == 0 ? 1e38 : 0.5);
    for (size_t k = 0; k < 60; k++)
        number_put(CDDP_FLOAT32, cpu.q, k, k % 5 == 0 ? 1e3 : 0.25);
    twin = cpu;
    cdi_lowrank_do(CDI_LOWRANK_PRODUCT, &on_cpu, 1, 0);
    step_on_twin(CDI_LOWRANK_PRODUCT, &on_twin, 1, 0);
    cr_assert_eq(memcmp(&cpu, &twin, sizeof cpu), 0);
    for (size_t k = 0; k < 600; k++) {
        cr_assert(isfinite(number_get(CDDP_FLOAT32, twin.e, k)));
        zeros += !isfinite(number_get(CDDP_FLOAT32, twin.m, k));
    }
    cr_assert(zeros > 0 && zeros < 600);
    on_twin.error = NULL;
    step_on_twin(CDI_LOWRANK_FEED, &on_twin, 1, 0);
    step_on_twin(CDI_LOWRANK_PRODUCT, &on_twin, 1, 0);
    cr_assert_eq(memcmp(&cpu, &twin, sizeof cpu), 0);
}

/* More matrices than a launch takes, and none. */
Test(kernel_lowrank, many_matrices_take_several_launches)
{
    enum { MANY = 3 * CDI_KERNEL_PIECES + 1, ROWS = 6, COLS = 4, RANK = 2 };
    static float m[MANY][ROWS * COLS], p[2][MANY][ROWS * RANK], q[MANY][COLS * RANK];
    struct cdi_lowrank_matrix list[MANY];
    uint32_t seed = 3;

    for (size_t i = 0; i < MANY; i++) {
        for (size_t k = 0; k < ROWS * COLS; k++)
            m[i][k] = (float)draw(&seed);
        for (size_t k = 0; k < COLS * RANK; k++)
            q[i][k] = (float)draw(&seed);
        list[i] =
            (struct cdi_lowrank_matrix){.of = {CDDP_FLOAT32, ROWS, COLS, RANK}, .m = m[i], .p = p[0][i], .q = q[i]};
    }
    step_on_twin(CDI_LOWRANK_LEFT, list, MANY, 0);
    step_on_twin(CDI_LOWRANK_BASIS_P, list, MANY, 0);
    for (size_t i = 0; i < MANY; i++)
        list[i].p = p[1][i];
    cdi_lowrank_do(CDI_LOWRANK_LEFT, list, MANY, 0);
    cdi_lowrank_do(CDI_LOWRANK_BASIS_P, list, MANY, 0);
    cr_assert_eq(memcmp(p[0], p[1], sizeof p[0]), 0);
    step_on_twin(CDI_LOWRANK_FEED, list, MANY, 0); /* nothing to do */
    step_on_twin(CDI_LOWRANK_FEED, list, 0, 0);
}
