/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer's kernels, in the style of element.h. The arithmetic is that of optim_update.c, operation by operation;
 * but the powers of beta use multiplications only, since each processor has its own pow.
 */
#ifndef CDI_KERNELS_ELEMENT_OPTIM_H
#define CDI_KERNELS_ELEMENT_OPTIM_H

#include "worker/backend/nccl/kernels/element.h"

#include <math.h>

/* --- A step begins: rows that take part, and their scalars. ------------------------------------------------------- */

CDI_INLINE double cdi_power(double x, uint64_t n)
{
    double product = 1;

    for (; n > 0; n >>= 1) {
        if ((n & 1) != 0)
            product *= x;
        x *= x;
    }
    return product;
}

CDI_INLINE int cdi_is_finite(double x)
{
    return (cdi_bits_of_double(x) & 0x7ff0000000000000u) != 0x7ff0000000000000u;
}

CDI_INLINE void cdi_count_body(const struct cdi_kernel_thread *t, const struct cdi_count_args *a)
{
    const int bad = a->bad != NULL && *a->bad != 0;
    const int skip = !bad && a->largest != NULL && !cdi_is_finite(*a->largest);

    if (a->first == 0 && cdi_first_unit(t) == 0 && skip)
        ++*a->skipped;
    for (uint64_t i = cdi_first_unit(t); i < a->n; i += cdi_unit_step(t)) {
        struct cdi_optim_row *r = &a->rows[a->first + i];

        r->idle = bad || skip || (a->idle[i / 64] >> (i % 64) & 1) != 0;
        if (r->idle)
            continue;
        r->steps++;
        r->lr = (a->lr_at != NULL ? *a->lr_at : a->lr) * r->lr_factor;
        if (a->kind == CDDP_OPTIM_SGD)
            continue;
        r->step_size = r->lr / (1 - cdi_power(a->beta1, r->steps));
        r->correction = sqrt(1 - cdi_power(a->beta2, r->steps));
        r->shrink = a->kind == CDDP_OPTIM_ADAMW ? 1 - r->lr * r->weight_decay : 1;
    }
}

/* --- One pass over parameter, gradient and state. ----------------------------------------------------------------- */

/* NOLINTBEGIN(bugprone-macro-parentheses): a type in parentheses is not a type. */
#define CDI_OPTIM_ELEMENT(T, suffix, SQRT)                                                                  \
    struct cdi_now_##suffix {                                                                               \
        T lr, decay, factor, keep, take, ahead, step_size, correction, eps, take_m, keep_v, take_v, shrink; \
        int adam, momentum;                                                                                 \
    };                                                                                                      \
    CDI_INLINE struct cdi_now_##suffix cdi_now_of_##suffix(const struct cdi_update_args *a,                 \
                                                           const struct cdi_optim_row *r)                   \
    {                                                                                                       \
        struct cdi_now_##suffix n;                                                                          \
                                                                                                            \
        n.adam = a->kind != CDDP_OPTIM_SGD;                                                                 \
        n.momentum = a->momentum != 0;                                                                      \
        n.lr = (T)r->lr;                                                                                    \
        n.decay = a->kind == CDDP_OPTIM_ADAMW ? (T)0 : (T)r->weight_decay;                                  \
        n.factor = (T)(a->factor_at != NULL ? *a->factor_at : a->factor);                                   \
        n.keep = r->steps == 1 ? (T)0 : (T)a->momentum;                                                     \
        n.take = r->steps == 1 ? (T)1 : (T)(1 - a->dampening);                                              \
        n.ahead = a->nesterov ? (T)a->momentum : (T)0;                                                      \
        n.step_size = (T)r->step_size;                                                                      \
        n.correction = (T)r->correction;                                                                    \
        n.eps = (T)a->eps;                                                                                  \
        n.take_m = (T)(1 - a->beta1);                                                                       \
        n.keep_v = (T)a->beta2;                                                                             \
        n.take_v = (T)(1 - a->beta2);                                                                       \
        n.shrink = (T)r->shrink;                                                                            \
        return n;                                                                                           \
    }                                                                                                       \
    /* Returns the new value of w; m, v: the state of this element, NULL if the optimizer has none. */      \
    CDI_INLINE T cdi_element_step_##suffix(const struct cdi_now_##suffix *n, T w, T g, T *m, T *v)          \
    {                                                                                                       \
        const T d = n->decay != 0 ? g * n->factor + n->decay * w : g * n->factor;                           \
                                                                                                            \
        if (n->adam && m != NULL && v != NULL) {                                                            \
            const T m1 = *m + n->take_m * (d - *m), v1 = *v * n->keep_v + n->take_v * d * d;                \
                                                                                                            \
            *m = m1;                                                                                        \
            *v = v1;                                                                                        \
            return w * n->shrink - n->step_size * m1 / (SQRT(v1) / n->correction + n->eps);                 \
        }                                                                                                   \
        if (n->momentum && m != NULL) {                                                                     \
            const T m1 = n->keep * *m + n->take * d;                                                        \
                                                                                                            \
            *m = m1;                                                                                        \
            return w - n->lr * (n->ahead != 0 ? d + n->ahead * m1 : m1);                                    \
        }                                                                                                   \
        return w - n->lr * d;                                                                               \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

CDI_OPTIM_ELEMENT(float, f32, sqrtf)
CDI_OPTIM_ELEMENT(double, f64, sqrt)

/* Updates elements [from, to) of the piece: those of this thread. */
CDI_INLINE void cdi_update_f64(const struct cdi_kernel_thread *t, const struct cdi_update_args *a,
                               const struct cdi_kernel_piece *p, uint64_t from, uint64_t to)
{
    const struct cdi_now_f64 now = cdi_now_of_f64(a, &a->rows[p->row]);
    double *w = (double *)p->w, *g = (double *)p->g, *m = (double *)p->m, *v = (double *)p->v;

    for (uint64_t i = from + t->thread; i < to; i += t->n_threads) {
        w[i] = cdi_element_step_f64(&now, w[i], g[i], m == NULL ? NULL : m + i, v == NULL ? NULL : v + i);
        if (a->publish)
            g[i] = w[i];
    }
}

/* Four elements, whose new values it returns; m, v: NULL, or where their state is. */
CDI_INLINE cdi_wide cdi_step_four(const struct cdi_now_f32 *now, cdi_wide w, cdi_wide g, cdi_wide *m, cdi_wide *v)
{
    cdi_wide m4 = {{0, 0, 0, 0}}, v4 = {{0, 0, 0, 0}};

    if (m != NULL)
        m4 = *m;
    if (v != NULL)
        v4 = *v;
    for (int k = 0; k < 4; k++) {
        float m1 = cdi_float_of_bits(m4.part[k]), v1 = cdi_float_of_bits(v4.part[k]);

        w.part[k] =
            cdi_bits_of_float(cdi_element_step_f32(now, cdi_float_of_bits(w.part[k]), cdi_float_of_bits(g.part[k]),
                                                   m != NULL ? &m1 : NULL, v != NULL ? &v1 : NULL));
        m4.part[k] = cdi_bits_of_float(m1);
        v4.part[k] = cdi_bits_of_float(v1);
    }
    if (m != NULL)
        *m = m4;
    if (v != NULL)
        *v = v4;
    return w;
}

/* Returns the elements of [from, to) that units of `unit` elements take, from being a multiple of them. */
CDI_INLINE uint64_t cdi_update_wide(const struct cdi_kernel_piece *p, uint64_t from, uint64_t to, uint64_t unit)
{
    const uintptr_t all = (uintptr_t)p->w | (uintptr_t)p->g | (uintptr_t)p->m | (uintptr_t)p->v | (uintptr_t)p->master;

    return all % sizeof(cdi_wide) == 0 ? (to - from) / unit * unit : 0;
}

CDI_INLINE cdi_wide *cdi_four_at(void *x, uint64_t i)
{
    return x == NULL ? NULL : (cdi_wide *)x + i / 4;
}

CDI_INLINE void cdi_update_f32(const struct cdi_kernel_thread *t, const struct cdi_update_args *a,
                               const struct cdi_kernel_piece *p, uint64_t from, uint64_t to)
{
    const struct cdi_now_f32 now = cdi_now_of_f32(a, &a->rows[p->row]);
    const uint64_t wide = from + cdi_update_wide(p, from, to, 4);
    float *w = (float *)p->w, *g = (float *)p->g, *m = (float *)p->m, *v = (float *)p->v;

    for (uint64_t i = from + (uint64_t)t->thread * 4; i < wide; i += (uint64_t)t->n_threads * 4) {
        cdi_wide *const at = (cdi_wide *)p->w + i / 4, *const of_g = (cdi_wide *)p->g + i / 4;
        const cdi_wide made = cdi_step_four(&now, *at, *of_g, cdi_four_at(m, i), cdi_four_at(v, i));

        *at = made;
        if (a->publish)
            *of_g = made;
    }
    for (uint64_t i = wide + t->thread; i < to; i += t->n_threads) {
        w[i] = cdi_element_step_f32(&now, w[i], g[i], m == NULL ? NULL : m + i, v == NULL ? NULL : v + i);
        if (a->publish)
            g[i] = w[i];
    }
}

/* Eight elements from i on, in two halves, since more would take many registers. */
CDI_INLINE void cdi_update_eight(const struct cdi_now_f32 *now, const struct cdi_kernel_piece *p, int publish,
                                 uint64_t i)
{
    cdi_narrow *const of_g = (cdi_narrow *)p->g + i / 8;
    cdi_narrow w, g = {{0, 0, 0, 0, 0, 0, 0, 0}};

    if (!p->long_g)
        g = *of_g;
    for (int half = 0; half < 2; half++) {
        const uint64_t at = i + 4 * (uint64_t)half;
        cdi_wide *const master = (cdi_wide *)(void *)p->master + at / 4;
        cdi_wide d;

        if (p->long_g)
            d = ((cdi_wide *)p->g)[at / 4];
        else
            for (int k = 0; k < 4; k++)
                d.part[k] = cdi_bits_of_float(cdi_widen(g.part[4 * half + k], p->dtype));
        d = cdi_step_four(now, *master, d, cdi_four_at(p->m, at), cdi_four_at(p->v, at));
        *master = d;
        for (int k = 0; k < 4; k++) {
            w.part[4 * half + k] = cdi_round(cdi_float_of_bits(d.part[k]), p->dtype);
            d.part[k] = cdi_bits_of_float(cdi_widen(w.part[4 * half + k], p->dtype));
        }
        if (publish && p->long_g)
            ((cdi_wide *)p->g)[at / 4] = d;
    }
    ((cdi_narrow *)p->w)[i / 8] = w;
    if (publish && !p->long_g)
        *of_g = w;
}

CDI_INLINE void cdi_update_narrow(const struct cdi_kernel_thread *t, const struct cdi_update_args *a,
                                  const struct cdi_kernel_piece *p, uint64_t from, uint64_t to)
{
    const struct cdi_now_f32 now = cdi_now_of_f32(a, &a->rows[p->row]);
    const uint64_t wide = from + cdi_update_wide(p, from, to, 8);
    uint16_t *w = (uint16_t *)p->w, *g = (uint16_t *)p->g;
    float *m = (float *)p->m, *v = (float *)p->v, *long_g = (float *)p->g;

    for (uint64_t i = from + (uint64_t)t->thread * 8; i < wide; i += (uint64_t)t->n_threads * 8)
        cdi_update_eight(&now, p, a->publish, i);
    for (uint64_t i = wide + t->thread; i < to; i += t->n_threads) {
        const float d = p->long_g ? long_g[i] : cdi_widen(g[i], p->dtype);

        p->master[i] = cdi_element_step_f32(&now, p->master[i], d, m == NULL ? NULL : m + i, v == NULL ? NULL : v + i);
        w[i] = cdi_round(p->master[i], p->dtype);
        if (a->publish && p->long_g)
            long_g[i] = cdi_widen(w[i], p->dtype);
        else if (a->publish)
            g[i] = w[i];
    }
}

/* Copies values between parameters and the gradients' place, in its type; on the way back none is rounded again. */
CDI_INLINE void cdi_update_copy(const struct cdi_kernel_thread *t, const struct cdi_kernel_piece *p, uint64_t from,
                                uint64_t to, int collect)
{
    void *const out = collect ? p->w : p->g;
    const void *const in = collect ? p->g : p->w;

    for (uint64_t i = from + t->thread; i < to; i += t->n_threads)
        if (p->long_g && collect)
            ((uint16_t *)out)[i] = cdi_round(((const float *)in)[i], p->dtype);
        else if (p->long_g)
            ((float *)out)[i] = cdi_widen(((const uint16_t *)in)[i], p->dtype);
        else if (p->dtype == CDDP_FLOAT64)
            ((double *)out)[i] = ((const double *)in)[i];
        else if (p->dtype == CDDP_FLOAT32)
            ((float *)out)[i] = ((const float *)in)[i];
        else
            ((uint16_t *)out)[i] = ((const uint16_t *)in)[i];
}

CDI_INLINE const struct cdi_kernel_piece *cdi_piece_of_chunk(const struct cdi_update_args *a, uint32_t c)
{
    return &a->piece[cdi_entry_of_chunk(&a->piece[0].first_chunk, sizeof a->piece[0], a->n, c)];
}

CDI_INLINE void cdi_update_body(const struct cdi_kernel_thread *t, const struct cdi_update_args *a)
{
    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const struct cdi_kernel_piece *p = cdi_piece_of_chunk(a, c);
        uint64_t from = (uint64_t)(c - p->first_chunk) * CDI_PIECE_CHUNK, to = from + CDI_PIECE_CHUNK;

        to = to < p->count ? to : p->count;
        if (a->collect || a->rows[p->row].idle) { /* the other ranks take idle ones from the gradients' place, too */
            if (a->collect || a->publish)
                cdi_update_copy(t, p, from, to, a->collect);
        } else if (p->dtype == CDDP_FLOAT64) {
            cdi_update_f64(t, a, p, from, to);
        } else if (p->dtype == CDDP_FLOAT32) {
            cdi_update_f32(t, a, p, from, to);
        } else {
            cdi_update_narrow(t, a, p, from, to);
        }
    }
}

#endif
