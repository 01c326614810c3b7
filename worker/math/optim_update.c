/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/math/optim_update.h"

#include <math.h>

int cdi_optim_n_states(const struct cdi_optim_rule *r)
{
    if (r->kind == CDDP_OPTIM_SGD)
        return r->momentum != 0 ? 1 : 0;
    return 2;
}

/*
 * For type T. The loops for the decays of Adam (added to the gradient) and AdamW (the parameter shrinks) are separate,
 * so that they stay simple enough for compilers to vectorise.
 */
/* NOLINTBEGIN(bugprone-macro-parentheses): a type in parentheses is not a type. */
#define DEFINE(T, suffix, SQRT)                                                                                      \
    static void sgd_##suffix(const struct cdi_optim_rule *r, T *restrict w, const T *restrict g, size_t count)       \
    {                                                                                                                \
        const T lr = (T)r->lr, decay = (T)r->weight_decay, factor = (T)r->factor;                                    \
                                                                                                                     \
        for (size_t i = 0; i < count; i++)                                                                           \
            w[i] -= lr * (decay != 0 ? g[i] * factor + decay * w[i] : g[i] * factor);                                \
    }                                                                                                                \
    static void momentum_##suffix(const struct cdi_optim_rule *r, uint64_t step, T *restrict w, const T *restrict g, \
                                  T *restrict m, size_t count)                                                       \
    {                                                                                                                \
        const T lr = (T)r->lr, decay = (T)r->weight_decay, factor = (T)r->factor, momentum = (T)r->momentum;         \
        const T take = step == 1 ? (T)1 : (T)(1 - r->dampening), keep = step == 1 ? (T)0 : momentum;                 \
        const T ahead = r->nesterov != 0 ? momentum : (T)0;                                                          \
                                                                                                                     \
        for (size_t i = 0; i < count; i++) {                                                                         \
            T d = decay != 0 ? g[i] * factor + decay * w[i] : g[i] * factor;                                         \
                                                                                                                     \
            m[i] = keep * m[i] + take * d;                                                                           \
            w[i] -= lr * (ahead != 0 ? d + ahead * m[i] : m[i]);                                                     \
        }                                                                                                            \
    }                                                                                                                \
    static void adam_##suffix(const struct cdi_optim_rule *r, uint64_t step, T *restrict w, const T *restrict g,     \
                              T *restrict m, T *restrict v, size_t count)                                            \
    {                                                                                                                \
        const T step_size = (T)(r->lr / (1 - pow(r->beta1, (double)step)));                                          \
        const T correction = (T)sqrt(1 - pow(r->beta2, (double)step)), keep = (T)r->beta2, eps = (T)r->eps;          \
        const T take_m = (T)(1 - r->beta1), take_v = (T)(1 - r->beta2), factor = (T)r->factor;                       \
        const T decay = r->kind == CDDP_OPTIM_ADAM ? (T)r->weight_decay : (T)0;                                      \
        const T shrink = r->kind == CDDP_OPTIM_ADAMW ? (T)(1 - r->lr * r->weight_decay) : (T)1;                      \
                                                                                                                     \
        for (size_t i = 0; i < count; i++) {                                                                         \
            T d = decay != 0 ? g[i] * factor + decay * w[i] : g[i] * factor;                                         \
                                                                                                                     \
            m[i] += take_m * (d - m[i]);                                                                             \
            v[i] = v[i] * keep + take_v * d * d;                                                                     \
            w[i] = w[i] * shrink - step_size * m[i] / (SQRT(v[i]) / correction + eps);                               \
        }                                                                                                            \
    }                                                                                                                \
    void cdi_optim_update_##suffix(const struct cdi_optim_rule *r, uint64_t step, T *w, const T *g, T *const *s,     \
                                   size_t count)                                                                     \
    {                                                                                                                \
        if (r->kind != CDDP_OPTIM_SGD)                                                                               \
            adam_##suffix(r, step, w, g, s[0], s[1], count);                                                         \
        else if (cdi_optim_n_states(r) > 0)                                                                          \
            momentum_##suffix(r, step, w, g, s[0], count);                                                           \
        else                                                                                                         \
            sgd_##suffix(r, w, g, count);                                                                            \
    }
/* NOLINTEND(bugprone-macro-parentheses) */

DEFINE(float, f32, sqrtf)
DEFINE(double, f64, sqrt)
