/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model of examples/gpt, in float64; test_gpt_model_f32.c compiles the same for float32. Losses and the gradients
 * of every tensor against PyTorch's (tests/reference/record_gpt.py) and against finite differences.
 */
#include "hygiene.h"
#include "kernels.h"
#include "model.h"

#include <float.h>
#include <math.h>
#include <string.h>

CDI_SUITE(gpt_model);

/* As record_gpt.py has them. */
static const struct {
    struct gpt_config config;
    size_t seqs, weights;
} cases[] = {{{11, 5, 2, 2, 8, 0}, 3, 1888}, {{7, 70, 1, 2, 6, 1}, 2, 1026}};

static const char *const kinds[] = {"plain", "avx2", "avx512", "openblas"};

enum { N_CASES = sizeof cases / sizeof cases[0], N_KINDS = sizeof kinds / sizeof kinds[0], MOST = 1888 };

/* Relative to the largest gradient of the same tensor. */
static const double tolerance = sizeof(real) == sizeof(double) ? 1e-10 : 1e-4;

static double spread(uint64_t n)
{
    uint64_t z = (n + 1) * UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (double)((z >> 33) % 2001) / 1000.0 - 1.0;
}

struct fixture {
    struct gpt m;
    uint8_t text[3 * 70 + 1];
    real gradients[MOST];
    size_t seqs, tokens, told, in_order;
};

static void tell(void *arg, size_t i)
{
    struct fixture *f = arg;

    f->told++;
    f->in_order += i < f->m.n_params;
}

static void set_up(struct fixture *f, size_t which, const char *kind)
{
    uint64_t n = 0;

    memset(f, 0, sizeof *f);
    f->seqs = cases[which].seqs;
    f->tokens = f->seqs * cases[which].config.context;
    cr_assert_null(gpt_check(&cases[which].config));
    cr_assert(gpt_create(&f->m, &cases[which].config, kernels_pick(kind), f->seqs, true));
    cr_assert_eq(f->m.n_weights, cases[which].weights);
    for (size_t i = 0; i < f->m.n_params; i++) {
        struct gpt_param *p = &f->m.params[i];
        const double one = strstr(p->name, "ln_") != NULL && strstr(p->name, "weight") != NULL ? 1 : 0;

        p->g = f->gradients + n;
        for (size_t j = 0; j < p->count; j++)
            p->w[j] = (real)(one + 0.3 * spread(n++));
    }
    for (size_t i = 0; i <= f->tokens; i++)
        f->text[i] = (uint8_t)(i * i * 7 / 3 % cases[which].config.vocab);
}

static double loss(struct fixture *f, real scale)
{
    double sum;

    cr_assert(gpt_forward(&f->m, f->text, f->text + 1, f->seqs, f->m.config.context, scale, &sum));
    return sum / (double)f->tokens;
}

static double gradients(struct fixture *f)
{
    const double l = loss(f, 1 / (real)f->tokens);

    cr_assert(gpt_backward(&f->m, f->text, f->seqs, false, (struct gpt_ready){tell, f}));
    return l;
}

static double largest(const double *x, size_t n)
{
    double max = 0;

    for (size_t i = 0; i < n; i++)
        max = fabs(x[i]) > max ? fabs(x[i]) : max;
    return max;
}

/* Every gradient of every tensor; `want` has them one after another. */
static void compare(const struct fixture *f, const double *want, double at_most, const char *kind)
{
    size_t n = 0;

    for (size_t i = 0; i < f->m.n_params; n += f->m.params[i++].count) {
        const double scale = largest(want + n, f->m.params[i].count);

        cr_assert_gt(scale, 0);
        for (size_t j = 0; j < f->m.params[i].count; j++) {
            const double off = fabs((double)f->gradients[n + j] - want[n + j]) / scale;

            cr_assert(off <= at_most, "%s: gradient %zu of %s is %.17g, not %.17g: %.2g of the largest", kind, j,
                      f->m.params[i].name, (double)f->gradients[n + j], want[n + j], off);
        }
    }
}

static void read_record(size_t which, double *numbers)
{
    FILE *file = fopen(CDI_TEST_DATA "/gpt-gradients.f64", "rb");
    long at = 0;

    cr_assert_not_null(file);
    for (size_t i = 0; i < which; i++)
        at += (long)((cases[i].weights + 1) * sizeof(double));
    cr_assert_eq(fseek(file, at, SEEK_SET), 0);
    cr_assert_eq(fread(numbers, sizeof(double), cases[which].weights + 1, file), cases[which].weights + 1);
    fclose(file);
}

Test(gpt_model, loss_and_gradients_are_pytorchs)
{
    static struct fixture f;
    static double record[1 + MOST];
    int n = 0;

    for (size_t c = 0; c < N_CASES; c++)
        for (size_t k = 0; k < N_KINDS; k++) {
            if (kernels_pick(kinds[k]) == NULL)
                continue;
            set_up(&f, c, kinds[k]);
            read_record(c, record);
            const double l = gradients(&f);

            cr_assert(fabs(l - record[0]) <= tolerance * record[0], "%s: loss %.17g, not %.17g", kinds[k], l,
                      record[0]);
            compare(&f, record + 1, tolerance, kinds[k]);
            gpt_release(&f.m);
            n++;
        }
    cr_assert_geq(n, N_CASES);
}

/* Central differences of order 10: (2100 d1 - 600 d2 + 150 d3 - 25 d4 + 2 d5) / 2520h, dk = loss(w + kh) - loss(w -
 * kh). */
static double slope(struct fixture *f, real *w, double h)
{
    static const double factors[] = {2100, -600, 150, -25, 2};
    const real was = *w;
    double sum = 0;

    for (int k = 0; k < 5; k++) {
        *w = (real)((double)was + (k + 1) * h);
        sum += factors[k] * loss(f, 0);
        *w = (real)((double)was - (k + 1) * h);
        sum -= factors[k] * loss(f, 0);
    }
    *w = was;
    return sum / (2520 * h);
}

Test(gpt_model, gradients_are_the_slopes_of_the_loss, .disabled = sizeof(real) != sizeof(double), .timeout = 110)
{
    static struct fixture f;
    static double slopes[MOST];

    for (size_t c = 0; c < N_CASES; c++) {
        set_up(&f, c, "plain");
        for (size_t i = 0; i < f.m.n_weights; i++)
            slopes[i] = slope(&f, f.m.params[0].w + i, 2.5e-3);
        (void)gradients(&f);
        compare(&f, slopes, 1e-10, "differences");
        gpt_release(&f.m);
    }
}

Test(gpt_model, gradients_of_micro_batches_add_up)
{
    static struct fixture f;
    static double whole[MOST];

    set_up(&f, 0, NULL);
    (void)gradients(&f);
    for (size_t i = 0; i < f.m.n_weights; i++)
        whole[i] = (double)f.gradients[i];
    for (size_t s = 0; s < f.seqs; s++) {
        const uint8_t *text = f.text + s * f.m.config.context;

        double sum;

        cr_assert(gpt_forward(&f.m, text, text + 1, 1, f.m.config.context, 1 / (real)f.tokens, &sum));
        cr_assert(gpt_backward(&f.m, text, 1, s > 0, (struct gpt_ready){NULL, NULL}));
    }
    compare(&f, whole, sizeof(real) == sizeof(double) ? 1e-13 : 1e-5, "parts");
    gpt_release(&f.m);
}

static size_t order[64];
static size_t n_told;

static void note(void *arg, size_t i)
{
    (void)arg;
    order[n_told++] = i;
}

Test(gpt_model, each_gradient_is_reported_once_from_the_last_to_the_first)
{
    static struct fixture f;

    for (size_t c = 0; c < N_CASES; c++) {
        bool seen[64] = {false};

        n_told = 0;
        set_up(&f, c, NULL);
        (void)loss(&f, 1);
        cr_assert(gpt_backward(&f.m, f.text, f.seqs, false, (struct gpt_ready){note, NULL}));
        cr_assert_eq(n_told, f.m.n_params);
        for (size_t i = 0; i < n_told; i++) {
            cr_assert(!seen[order[i]]);
            seen[order[i]] = true;
        }
        cr_assert_eq(order[n_told - 1], WTE);
        cr_assert_geq(order[0] + 2, f.m.n_params);
        for (size_t u = 0; u <= gpt_last_unit(&f.m); u++) { /* of each unit the first parameter is the last */
            bool complete = false;

            for (size_t i = 0; i < n_told; i++) {
                cr_assert(!complete || order[i] < gpt_unit_begin(&f.m, u) || order[i] >= gpt_unit_begin(&f.m, u + 1));
                complete = complete || order[i] == gpt_unit_begin(&f.m, u);
            }
            cr_assert(complete);
        }
        gpt_release(&f.m);
    }
}

/* Later tokens do not change the logits of earlier ones, and a shorter text has the same logits. */
Test(gpt_model, no_token_sees_a_later_one)
{
    static struct fixture f;
    static real before[70 * 7];
    double none;

    set_up(&f, 1, NULL);
    cr_assert(gpt_forward(&f.m, f.text, NULL, 1, 70, 0, &none));
    memcpy(before, f.m.logits, sizeof before);
    f.text[69] ^= 1;
    cr_assert(gpt_forward(&f.m, f.text, NULL, 1, 70, 0, &none));
    for (size_t i = 0; i < 69 * 7; i++)
        cr_assert(fabs((double)(before[i] - f.m.logits[i])) < 1e-5);
    cr_assert(gpt_forward(&f.m, f.text, NULL, 1, 33, 0, &none));
    for (size_t i = 0; i < 33 * 7; i++)
        cr_assert(fabs((double)(before[i] - f.m.logits[i])) < 1e-5);
    gpt_release(&f.m);
}

static void check_product(const struct kernels *k, size_t m, size_t n, size_t d, bool ta, bool tb, bool add)
{
    const size_t lda = (ta ? m : d) + 3, ldb = (tb ? d : n) + 1, ldc = n + 2;
    real *a = calloc((ta ? d : m) * lda, sizeof *a), *b = calloc((tb ? n : d) * ldb, sizeof *b);
    real *c = calloc(m * ldc, sizeof *c);
    const struct view va = ta ? turned(a, lda) : plain(a, lda), vb = tb ? turned(b, ldb) : plain(b, ldb);

    cr_assert(a != NULL && b != NULL && c != NULL);
    for (size_t i = 0; i < (ta ? d : m) * lda; i++)
        a[i] = (real)spread(i);
    for (size_t i = 0; i < (tb ? n : d) * ldb; i++)
        b[i] = (real)spread(i + 1000003);
    for (size_t i = 0; i < m * ldc; i++)
        c[i] = 3;
    k->gemm(m, n, d, (real)0.5, va, vb, add, c, ldc);
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < ldc; j++) {
            double want = add ? 3 : 0;

            for (size_t p = 0; p < d && j < n; p++)
                want += 0.5 * (double)va.at[i * va.row + p * va.col] * (double)vb.at[p * vb.row + j * vb.col];
            if (j >= n)
                want = 3;
            cr_assert(fabs((double)c[i * ldc + j] - want) < (sizeof(real) == 8 ? 1e-11 : 1e-3),
                      "%s: %zu x %zu x %zu, %d %d %d: c[%zu][%zu]", k->name, m, n, d, ta, tb, add, i, j);
        }
    free(a);
    free(b);
    free(c);
}

/* Around the sizes of tiles and blocks. */
Test(gpt_model, product_of_matrices_of_any_size)
{
    static const size_t sizes[][3] = {{1, 1, 1},    {1, 40, 3},   {13, 33, 257}, {12, 32, 256},
                                      {145, 31, 5}, {150, 70, 9}, {5, 1030, 7},  {48, 64, 300}};

    for (size_t k = 0; k < N_KINDS; k++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0] && kernels_pick(kinds[k]) != NULL; s++)
            for (int how = 0; how < 8; how++)
                check_product(kernels_pick(kinds[k]), sizes[s][0], sizes[s][1], sizes[s][2], how & 1, how & 2, how & 4);
}

Test(gpt_model, start_has_gpt2s_deviations)
{
    struct gpt m;
    const struct gpt_config config = {256, 64, 2, 2, 64, 0};

    cr_assert(gpt_create(&m, &config, kernels_pick(NULL), 1, true));
    gpt_init(&m, 1);
    for (size_t i = 0; i < m.n_params; i++) {
        const struct gpt_param *p = &m.params[i];
        double sum = 0, squares = 0, want = p->n_dims == 1 ? 0 : strstr(p->name, "c_proj") ? 0.01 : 0.02;

        for (size_t j = 0; j < p->count; j++) {
            sum += (double)p->w[j];
            squares += (double)(p->w[j] * p->w[j]);
        }
        sum /= (double)p->count;
        squares = sqrt(fabs(squares / (double)p->count - sum * sum));
        cr_assert(fabs(squares - want) < 0.001, "%s: %g", p->name, squares);
    }
    gpt_release(&m);
}

Test(gpt_model, rejects_sizes_that_do_not_fit)
{
    static const struct gpt_config bad[] = {{1, 8, 1, 1, 8, 0},   {257, 8, 1, 1, 8, 0}, {256, 1, 1, 1, 8, 0},
                                            {256, 8, 0, 1, 8, 0}, {256, 8, 1, 3, 8, 0}, {256, 8, 1, 8, 8, 0},
                                            {256, 8, 1, 0, 8, 0}, {256, 8, 1, 1, 0, 0}};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_not_null(gpt_check(&bad[i]));
    cr_assert_null(kernels_pick("abacus"));
    /* Sizes whose products are more than a size_t. */
    const struct gpt_config huge = {256, 65536, 1000, 16384, 65536, 0};
    struct gpt m;

    cr_assert_null(gpt_check(&huge));
    cr_assert(!gpt_create(&m, &huge, kernels_pick(NULL), 1000000, true));
    gpt_release(&m);
    cr_assert(!gpt_create(&m, &huge, kernels_pick(NULL), 32767, true));
    gpt_release(&m);
}
