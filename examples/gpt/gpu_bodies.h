/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What thread i of each kernel does, or the warp of row r; numbers of the model have the type NUM. gpu_kernels.h
 * includes this once for float32 and once for bfloat16. [rows][width] is the shape wherever none is given.
 */

/* ------------------------------------------------------------------------------------------ the element's own ---- */

/* in: tokens [rows], wte, wpe. out: the start of the residual stream. */
GPU_BODY void NAME(gpu_embed)(const struct gpu_args *a, uint64_t i)
{
    const uint8_t *tokens = (const uint8_t *)a->in[0].at;
    const NUM *wte = (const NUM *)a->in[1].at, *wpe = (const NUM *)a->in[2].at;
    const uint64_t r = i / a->width, c = i % a->width;

    ((NUM *)a->out[0].at)[i] = PUT(GET(wte[tokens[r] * a->width + c]) + GET(wpe[r % a->time * a->width + c]));
}

/* in: the bias [width]. out += the bias. */
GPU_BODY void NAME(gpu_bias)(const struct gpu_args *a, uint64_t i)
{
    const NUM *b = (const NUM *)a->in[0].at;
    NUM *out = (NUM *)a->out[0].at;

    out[i] = PUT(GET(out[i]) + GET(b[i % a->width]));
}

/* in: the bias. out: x += the bias; GELU of it. */
GPU_BODY void NAME(gpu_bias_gelu)(const struct gpu_args *a, uint64_t i)
{
    const NUM *b = (const NUM *)a->in[0].at;
    NUM *x = (NUM *)a->out[0].at;
    const NUM sum = PUT(GET(x[i]) + GET(b[i % a->width]));

    x[i] = sum;
    ((NUM *)a->out[1].at)[i] = PUT(GET(sum) * gpu_gate(GET(sum)));
}

/* in: the bias, the residual stream, what a layer adds to it. out: the stream after it. */
GPU_BODY void NAME(gpu_bias_plus)(const struct gpu_args *a, uint64_t i)
{
    const NUM *b = (const NUM *)a->in[0].at, *stream = (const NUM *)a->in[1].at, *x = (const NUM *)a->in[2].at;

    ((NUM *)a->out[0].at)[i] = PUT(GET(stream[i]) + (GET(x[i]) + GET(b[i % a->width])));
}

/* in: what GELU was taken of. out *= its derivative there. */
GPU_BODY void NAME(gpu_gelu_back)(const struct gpu_args *a, uint64_t i)
{
    const float x = GET(((const NUM *)a->in[0].at)[i]), g = gpu_gate(x);
    NUM *d = (NUM *)a->out[0].at;

    d[i] = PUT(GET(d[i]) * (g + x * g * (1 - g) * 1.5957691216057308f * (1 + 3 * 0.044715f * x * x)));
}

/* in: tokens [rows]. out: 1 in the column of the row's token, 0 elsewhere; width is the vocabulary's. */
GPU_BODY void NAME(gpu_one_hot)(const struct gpu_args *a, uint64_t i)
{
    const uint8_t *tokens = (const uint8_t *)a->in[0].at;

    ((NUM *)a->out[0].at)[i] = PUT(tokens[i / a->width] == i % a->width ? 1.0f : 0.0f);
}

/* in: the gradient of the residual stream. out: that of wpe [time][width], the sum over the sequences. */
GPU_BODY void NAME(gpu_place_back)(const struct gpu_args *a, uint64_t i)
{
    const NUM *d = (const NUM *)a->in[0].at;
    NUM *g = (NUM *)a->out[0].at;
    float sum = a->add ? GET(g[i]) : 0;

    for (uint32_t s = 0; s < a->rows / a->time; s++)
        sum += GET(d[(uint64_t)s * a->time * a->width + i]);
    g[i] = PUT(sum);
}

/* ------------------------------------------------------------------------- sums over all rows, in two kernels ---- */

/* in: d_out. out: partial sums of its columns, float [CHUNKS][width]; thread i makes the i-th. */
GPU_BODY void NAME(gpu_bias_columns)(const struct gpu_args *a, uint64_t i)
{
    const NUM *d = (const NUM *)a->in[0].at;
    const uint64_t chunk = i / a->width, c = i % a->width, end = (chunk + 1) * a->rows / GPU_CHUNKS;
    float sum = 0;

    for (uint64_t r = chunk * a->rows / GPU_CHUNKS; r < end; r++)
        sum += GET(d[r * a->width + c]);
    ((float *)a->out[0].at)[i] = sum;
}

/* in: d_out, x, mean and rstd float [rows][2]. out: partial sums for the gradients of w, and then of b. */
GPU_BODY void NAME(gpu_norm_columns)(const struct gpu_args *a, uint64_t i)
{
    const NUM *d = (const NUM *)a->in[0].at, *x = (const NUM *)a->in[1].at;
    const float *stats = (const float *)a->in[2].at;
    const uint64_t chunk = i / a->width, c = i % a->width, end = (chunk + 1) * a->rows / GPU_CHUNKS;
    float dw = 0, db = 0;

    for (uint64_t r = chunk * a->rows / GPU_CHUNKS; r < end; r++) {
        const float dy = GET(d[r * a->width + c]);

        dw += dy * ((GET(x[r * a->width + c]) - stats[2 * r]) * stats[2 * r + 1]);
        db += dy;
    }
    ((float *)a->out[0].at)[i] = dw;
    ((float *)a->out[1].at)[i] = db;
}

/* in: partial sums float [CHUNKS][width]. out: the gradient [width]. */
GPU_BODY void NAME(gpu_columns)(const struct gpu_args *a, uint64_t c)
{
    const float *part = (const float *)a->in[0].at;
    NUM *g = (NUM *)a->out[0].at;
    float sum = a->add ? GET(g[c]) : 0;

    for (uint64_t k = 0; k < GPU_CHUNKS; k++)
        sum += part[k * a->width + c];
    g[c] = PUT(sum);
}

/* ------------------------------------------------------------------------------------------------------ AdamW ---- */

/* in: struct gpu_step. out: two struct gpu_adam, without and with decay. The arithmetic is that of cddp_optim. */
GPU_BODY void NAME(gpu_adam_now)(const struct gpu_args *a, uint64_t i)
{
    const struct gpu_step *s = (const struct gpu_step *)a->in[0].at;
    struct gpu_adam *now = (struct gpu_adam *)a->out[0].at + i;

    now->step_size = (float)(s->lr / (1 - gpu_power(GPU_BETA1, s->step)));
    now->correction = (float)sqrt(1 - gpu_power(a->beta2, s->step));
    now->shrink = (float)(1 - s->lr * (i == 0 ? 0 : a->decay));
    now->take_m = (float)(1 - GPU_BETA1);
    now->take_v = (float)(1 - a->beta2);
    now->keep_v = (float)a->beta2;
}

/* in: struct gpu_adam, the gradient. out: the weight; its float32 copy (in float32 the weight itself), m, v. */
GPU_BODY void NAME(gpu_adam)(const struct gpu_args *a, uint64_t i)
{
    const struct gpu_adam *now = (const struct gpu_adam *)a->in[0].at;
    float *w = (float *)a->out[1].at + i, *m = (float *)a->out[2].at + i, *v = (float *)a->out[3].at + i;
    const float g = GET(((const NUM *)a->in[1].at)[i]);
    const float m1 = *m + now->take_m * (g - *m), v1 = *v * now->keep_v + now->take_v * g * g;

    *m = m1;
    *v = v1;
    *w = *w * now->shrink - now->step_size * m1 / (sqrtf(v1) / now->correction + (float)GPU_ADAM_EPS);
    ((NUM *)a->out[0].at)[i] = PUT(*w);
}

/* ------------------------------------------------------------------------------------------------------- rows ---- */

/* in: x, w, b. out: the normed rows; float [rows][2]: mean and rstd. */
GPU_BODY void NAME(gpu_norm)(const struct gpu_args *a, uint64_t r, uint32_t lane)
{
    const NUM *x = (const NUM *)a->in[0].at + r * a->width, *w = (const NUM *)a->in[1].at;
    const NUM *b = (const NUM *)a->in[2].at;
    NUM *y = (NUM *)a->out[0].at + r * a->width;
    float *stats = (float *)a->out[1].at + 2 * r, mean, squares, rstd;

    GPU_SUM(float, mean, i, a->width, GET(x[i]));
    mean /= (float)a->width;
    GPU_SUM(float, squares, i, a->width, (GET(x[i]) - mean) * (GET(x[i]) - mean));
    rstd = 1 / sqrtf(squares / (float)a->width + GPU_EPS);
    GPU_EACH(i, a->width)
    y[i] = PUT((GET(x[i]) - mean) * rstd * GET(w[i]) + GET(b[i]));
    if (GPU_FIRST_LANE) {
        stats[0] = mean;
        stats[1] = rstd;
    }
    (void)lane;
}

/* in: d_out, x, w, mean and rstd. out (+)= the gradient of x. */
GPU_BODY void NAME(gpu_norm_back)(const struct gpu_args *a, uint64_t r, uint32_t lane)
{
    const NUM *d = (const NUM *)a->in[0].at + r * a->width, *x = (const NUM *)a->in[1].at + r * a->width;
    const NUM *w = (const NUM *)a->in[2].at;
    const float mean = ((const float *)a->in[3].at)[2 * r], rstd = ((const float *)a->in[3].at)[2 * r + 1];
    NUM *dx = (NUM *)a->out[0].at + r * a->width;
    float sum, along;

    GPU_SUM(float, sum, i, a->width, GET(d[i]) * GET(w[i]));
    GPU_SUM(float, along, i, a->width, GET(d[i]) * GET(w[i]) * ((GET(x[i]) - mean) * rstd));
    sum /= (float)a->width;
    along /= (float)a->width;
    GPU_EACH(i, a->width)
    {
        const float normed = (GET(x[i]) - mean) * rstd, own = (GET(d[i]) * GET(w[i]) - sum - normed * along) * rstd;

        dx[i] = PUT(a->add ? GET(dx[i]) + own : own);
    }
    (void)lane;
}

/* in: float [rows][time]. out: the softmax over the columns up to the row's own place, then zeros. */
GPU_BODY void NAME(gpu_causal)(const struct gpu_args *a, uint64_t r, uint32_t lane)
{
    const float *x = (const float *)a->in[0].at + r * a->time;
    NUM *att = (NUM *)a->out[0].at + r * a->time;
    const uint32_t seen = (uint32_t)(r % a->time) + 1;
    float max, sum;

    GPU_MAX(max, i, seen, x[i]);
    GPU_SUM(float, sum, i, seen, expf(x[i] - max));
    GPU_EACH(i, a->time)
    att[i] = PUT(i < seen ? expf(x[i] - max) / sum : 0.0f);
    (void)lane;
}

/* in: float [rows][time], the gradient of the softmax. out: the softmax becomes the gradient of what went in. */
GPU_BODY void NAME(gpu_causal_back)(const struct gpu_args *a, uint64_t r, uint32_t lane)
{
    const float *d = (const float *)a->in[0].at + r * a->time;
    NUM *att = (NUM *)a->out[0].at + r * a->time;
    const uint32_t seen = (uint32_t)(r % a->time) + 1;
    float sum;

    GPU_SUM(float, sum, i, seen, GET(att[i]) * d[i]);
    GPU_EACH(i, seen)
    att[i] = PUT(GET(att[i]) * (d[i] - sum));
    (void)lane;
}

/* in: logits float, targets [rows]. out: the loss of each row, float; with a scale the gradient of the logits. */
GPU_BODY void NAME(gpu_entropy)(const struct gpu_args *a, uint64_t r, uint32_t lane)
{
    const float *x = (const float *)a->in[0].at + r * a->width;
    const uint32_t target = ((const uint8_t *)a->in[1].at)[r];
    NUM *d = (NUM *)a->out[1].at + r * a->width;
    float max, sum;

    GPU_MAX(max, i, a->width, x[i]);
    GPU_SUM(float, sum, i, a->width, expf(x[i] - max));
    if (GPU_FIRST_LANE)
        ((float *)a->out[0].at)[r] = logf(sum) - (x[target] - max);
    if (a->scale != 0)
        GPU_EACH(i, a->width)
    d[i] = PUT(expf(x[i] - max) * (a->scale / sum) - (i == target ? a->scale : 0));
    (void)lane;
}

/* in: float [width]. out: its sum, float64; one row. */
GPU_BODY void NAME(gpu_total)(const struct gpu_args *a, uint64_t r, uint32_t lane)
{
    const float *x = (const float *)a->in[0].at;
    double *out = (double *)a->out[0].at + r, sum;

    GPU_SUM(double, sum, i, a->width, (double)x[i]);
    if (GPU_FIRST_LANE)
        *out = a->add ? *out + sum : sum;
    (void)lane;
}
