/* SPDX-License-Identifier: Apache-2.0 */
/* What thread i of each kernel does, in the type REAL; gpu_kernels.h includes it once for float and once for double. */

/* Of one step of Adam. */
struct NAME(wine_scalars) {
    REAL step_size, correction, w1, w2, keep, eps;
};

WINE_BODY void NAME(wine_adam_step)(const struct NAME(wine_scalars) * a, REAL g, REAL *w, REAL *m, REAL *v)
{
    *m += a->w1 * (g - *m);
    *v = *v * a->keep + a->w2 * g * g;
    *w -= a->step_size * *m / (SQRT(*v) / a->correction + a->eps);
}

/* One step's memory, all of it on the device; every kernel takes this struct by value. */
struct NAME(wine_args) {
    REAL *w, *m, *v;                 /* W1[HIDDEN][IN], b1[HIDDEN], W2[OUT][HIDDEN], b2[OUT]; Adam's averages of them */
    REAL *g_w1, *g_b1, *g_w2, *g_b2; /* where their gradients lie */
    const REAL *x;                   /* [rows][IN] */
    const int32_t *label;            /* of each row */
    const int64_t *row;              /* of each of the n samples */
    REAL *h, *dz, *loss;             /* [n][HIDDEN] after the ReLU, [n][OUT] d(mean loss)/d(logits), [n] */
    double *epoch_loss;              /* two: the sum over samples so far, and their number */
    int32_t n, unused;
    struct NAME(wine_scalars) adam;
};

WINE_BODY void NAME(wine_hidden)(const struct NAME(wine_args) * a, int i)
{
    const int s = i / HIDDEN, j = i % HIDDEN;
    const REAL *x = a->x + a->row[s] * IN, *w1 = a->w + j * IN;
    REAL sum = 0;

    for (int k = 0; k < IN; k++)
        sum += w1[k] * x[k];
    sum += a->w[HIDDEN * IN + j];
    a->h[i] = sum > 0 ? sum : 0;
}

WINE_BODY void NAME(wine_output)(const struct NAME(wine_args) * a, int s)
{
    const REAL *w2 = a->w + HIDDEN * IN + HIDDEN, *b2 = w2 + OUT * HIDDEN, *h = a->h + s * HIDDEN;
    const int label = a->label[a->row[s]];
    REAL z[OUT], max, sum = 0;

    for (int c = 0; c < OUT; c++) {
        z[c] = 0;
        for (int j = 0; j < HIDDEN; j++)
            z[c] += w2[c * HIDDEN + j] * h[j];
        z[c] += b2[c];
    }
    max = z[0];
    for (int c = 1; c < OUT; c++)
        max = z[c] > max ? z[c] : max;
    for (int c = 0; c < OUT; c++)
        sum += EXP(z[c] - max);
    for (int c = 0; c < OUT; c++) {
        REAL p = EXP(z[c] - max - LOG(sum));

        if (c == label)
            p -= 1;
        a->dz[s * OUT + c] = p / (REAL)a->n;
    }
    a->loss[s] = LOG(sum) - (z[label] - max);
}

/* Gradients of the second layer; the last thread adds up the loss. */
WINE_BODY void NAME(wine_second)(const struct NAME(wine_args) * a, int i)
{
    REAL sum = 0;

    if (i < OUT * HIDDEN) {
        for (int s = 0; s < a->n; s++)
            sum += a->dz[s * OUT + i / HIDDEN] * a->h[s * HIDDEN + i % HIDDEN];
        a->g_w2[i] = sum;
    } else if (i < OUT * HIDDEN + OUT) {
        for (int s = 0; s < a->n; s++)
            sum += a->dz[s * OUT + i - OUT * HIDDEN];
        a->g_b2[i - OUT * HIDDEN] = sum;
    } else {
        for (int s = 0; s < a->n; s++)
            sum += a->loss[s];
        a->epoch_loss[0] += (double)(sum / (REAL)a->n) * (double)a->n;
        a->epoch_loss[1] += (double)a->n;
    }
}

/* Gradients of the first layer. */
WINE_BODY void NAME(wine_first)(const struct NAME(wine_args) * a, int i)
{
    const REAL *w2 = a->w + HIDDEN * IN + HIDDEN;
    const int is_bias = i >= HIDDEN * IN, j = is_bias ? i - HIDDEN * IN : i / IN, k = i % IN;
    REAL sum = 0;

    for (int s = 0; s < a->n; s++) {
        REAL da = 0;

        if (!(a->h[s * HIDDEN + j] > 0))
            continue;
        for (int c = 0; c < OUT; c++)
            da += a->dz[s * OUT + c] * w2[c * HIDDEN + j];
        sum += is_bias ? da : da * a->x[a->row[s] * IN + k];
    }
    if (is_bias)
        a->g_b1[j] = sum;
    else
        a->g_w1[i] = sum;
}

WINE_BODY REAL NAME(wine_gradient)(const struct NAME(wine_args) * a, int i)
{
    if (i < HIDDEN * IN)
        return a->g_w1[i];
    i -= HIDDEN * IN;
    if (i < HIDDEN)
        return a->g_b1[i];
    i -= HIDDEN;
    return i < OUT * HIDDEN ? a->g_w2[i] : a->g_b2[i - OUT * HIDDEN];
}

WINE_BODY void NAME(wine_adam)(const struct NAME(wine_args) * a, int i)
{
    NAME(wine_adam_step)(&a->adam, NAME(wine_gradient)(a, i), a->w + i, a->m + i, a->v + i);
}
