/* SPDX-License-Identifier: Apache-2.0 */
#include "mlp.h"

#include <cblas.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const size_t widths[MLP_LAYERS + 1] = {MLP_INPUTS, 2048, 2048, 2048, 2048, 2048, 2048, MLP_CLASSES};

struct mlp {
    float *a[MLP_LAYERS + 1]; /* a[0] is the caller's x; a[l + 1]: what layer l gives, batch x width */
    float *delta, *below;     /* of the loss by a layer's output, and by its input; batch x 2048 */
};

size_t mlp_param_count(size_t i)
{
    return i % 2 == 0 ? widths[i / 2] * widths[i / 2 + 1] : widths[i / 2 + 1];
}

/* One number in [-0.5, 0.5) for each n, the same in every language: a multiplicative hash of 32 bits. */
static float scatter(uint64_t n)
{
    uint32_t h = (uint32_t)n * 2654435761u;

    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return (float)((double)h / 4294967296.0 - 0.5);
}

void mlp_init_param(float *param, size_t i)
{
    /* Uniform, with the variance 2 / inputs that keeps signals at their size through ReLUs. */
    size_t layer = i / 2;
    double scale = i % 2 == 0 ? sqrt(24.0 / (double)widths[layer]) : 0;

    for (size_t k = 0; k < mlp_param_count(i); k++)
        param[k] = (float)((double)scatter(k + i * 7919) * scale);
}

void mlp_sample(size_t index, float *x, int *label)
{
    for (size_t k = 0; k < MLP_INPUTS; k++)
        x[k] = scatter(index * MLP_INPUTS + k + 1000003);
    *label = (int)(index * 31 % MLP_CLASSES);
}

struct mlp *mlp_create(size_t batch)
{
    struct mlp *m = calloc(1, sizeof *m);

    if (m == NULL)
        return NULL;
    for (size_t l = 0; l < MLP_LAYERS; l++)
        m->a[l + 1] = malloc(batch * widths[l + 1] * sizeof(float));
    m->delta = malloc(batch * 2048 * sizeof(float));
    m->below = malloc(batch * 2048 * sizeof(float));
    for (size_t l = 1; l <= MLP_LAYERS; l++)
        if (m->a[l] == NULL || m->delta == NULL || m->below == NULL) {
            mlp_destroy(m);
            return NULL;
        }
    return m;
}

void mlp_destroy(struct mlp *m)
{
    if (m == NULL)
        return;
    for (size_t l = 1; l <= MLP_LAYERS; l++)
        free(m->a[l]);
    free(m->delta);
    free(m->below);
    free(m);
}

static void forward(struct mlp *m, float *const params[MLP_PARAMS], const float *x, size_t batch,
                    void (*enter)(void *arg, size_t layer, bool back), void *arg)
{
    for (size_t l = 0; l < MLP_LAYERS; l++) {
        size_t in = widths[l], to = widths[l + 1];
        const float *from = l == 0 ? x : m->a[l], *bias;
        float *a = m->a[l + 1];

        if (enter != NULL)
            enter(arg, l, false);
        bias = params[2 * l + 1];
        for (size_t s = 0; s < batch; s++)
            memcpy(a + s * to, bias, to * sizeof *a);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)batch, (int)to, (int)in, 1, from, (int)in,
                    params[2 * l], (int)in, 1, a, (int)to);
        for (size_t k = 0; l + 1 < MLP_LAYERS && k < batch * to; k++)
            a[k] = a[k] > 0 ? a[k] : 0;
    }
}

/* Softmax cross-entropy: the mean loss, and its derivative by the logits into m->delta. */
static double loss(struct mlp *m, const int *labels, size_t batch)
{
    double sum = 0;

    for (size_t s = 0; s < batch; s++) {
        const float *z = m->a[MLP_LAYERS] + s * MLP_CLASSES;
        float *d = m->delta + s * MLP_CLASSES, top = z[0];
        double total = 0;

        for (size_t k = 1; k < MLP_CLASSES; k++)
            top = z[k] > top ? z[k] : top;
        for (size_t k = 0; k < MLP_CLASSES; k++)
            total += (double)(d[k] = expf(z[k] - top));
        for (size_t k = 0; k < MLP_CLASSES; k++)
            d[k] /= (float)(total * (double)batch);
        d[labels[s]] -= 1 / (float)batch;
        sum += log(total) + (double)top - (double)z[labels[s]];
    }
    return sum / (double)batch;
}

static void sum_rows(float *to, const float *rows, size_t n_rows, size_t width)
{
    memset(to, 0, width * sizeof *to);
    for (size_t s = 0; s < n_rows; s++)
        for (size_t k = 0; k < width; k++)
            to[k] += rows[s * width + k];
}

double mlp_step(struct mlp *m, float *const params[MLP_PARAMS], float *const grads[MLP_PARAMS], const float *x,
                const int *labels, size_t batch, void (*enter)(void *arg, size_t layer, bool back),
                void (*done)(void *arg, size_t i), void *arg)
{
    double value;

    forward(m, params, x, batch, enter, arg);
    value = loss(m, labels, batch);
    for (size_t l = MLP_LAYERS; l-- > 0;) {
        size_t in = widths[l], to = widths[l + 1];
        const float *from = l == 0 ? x : m->a[l];
        float *swap = m->delta;

        if (enter != NULL)
            enter(arg, l, true);
        sum_rows(grads[2 * l + 1], m->delta, batch, to);
        if (done != NULL)
            done(arg, 2 * l + 1);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)to, (int)in, (int)batch, 1, m->delta, (int)to, from,
                    (int)in, 0, grads[2 * l], (int)in);
        if (done != NULL)
            done(arg, 2 * l);
        if (l == 0)
            break;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)batch, (int)in, (int)to, 1, m->delta, (int)to,
                    params[2 * l], (int)in, 0, m->below, (int)in);
        for (size_t k = 0; k < batch * in; k++)
            m->below[k] = from[k] > 0 ? m->below[k] : 0;
        m->delta = m->below;
        m->below = swap;
    }
    return value;
}
