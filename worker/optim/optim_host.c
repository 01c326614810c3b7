/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer's part on the host: its state, and a step. Each bucket is updated and published as soon as it is
 * reduced, while later ones are still in flight. With the reducer's lock held, except for creation.
 */
#include "worker/optim/optim.h"

#include "worker/math/float16.h"
#include "worker/reducer/grads/tied.h"
#include "worker/reducer/norm.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 2048 /* elements that are updated and published at a time, so that both find them in a near cache */

static void *zeros(size_t bytes)
{
    void *p = aligned_alloc(CDI_GRAD_ALIGN, bytes);

    return p == NULL ? NULL : memset(p, 0, bytes);
}

static float float_of(cddp_dtype dtype, uint16_t x)
{
    return dtype == CDDP_FLOAT16 ? cdi_float_of_f16(x) : cdi_float_of_bf16(x);
}

void cdi_optim_host_copy(cddp_optim *o)
{
    const cddp_ddp *d = o->ddp;

    for (size_t i = 0; i < d->n_params && o->master != NULL; i++) {
        const struct cdi_shard *s = &o->shards[i];
        const uint16_t *w = (const uint16_t *)d->params[i].data + s->lo;
        float *master = o->master + s->master_at / sizeof *master;

        if (!cdi_shard_has_master(d->params[i].dtype))
            continue;
        for (size_t k = 0; k < s->count; k++)
            master[k] = float_of(d->params[i].dtype, w[k]);
    }
}

bool cdi_optim_host_init(cddp_optim *o)
{
    bool ok = true;

    for (int k = 0; ok && k < cdi_optim_n_states(&o->rule) && o->sizes.state > 0; k++)
        ok = (o->state[k] = zeros(o->sizes.state)) != NULL;
    if (ok && o->sizes.master > 0)
        ok = (o->master = zeros(o->sizes.master)) != NULL;
    if (ok)
        cdi_optim_host_copy(o);
    return ok;
}

void cdi_optim_host_release(cddp_optim *o)
{
    for (int k = 0; k < CDI_OPTIM_STATES; k++)
        free(o->state[k]);
    free(o->master);
}

/* Returns the rule for parameter i. */
static struct cdi_optim_rule rule_of(const cddp_optim *o, size_t i)
{
    struct cdi_optim_rule rule = o->now;

    rule.lr *= o->own[i].lr_factor;
    rule.weight_decay = o->own[i].weight_decay;
    return rule;
}

/* Updates elements [at, at + n) of this rank's shard of parameter i from the gradients at g. */
static void update_16(cddp_optim *o, const struct cdi_optim_rule *rule, size_t i, size_t at, size_t n, const void *g)
{
    const cddp_ddp *d = o->ddp;
    const struct cdi_shard *s = &o->shards[i];
    cddp_dtype dtype = d->params[i].dtype;
    float *master = o->master + s->master_at / sizeof(float) + at, grad[CHUNK], *state[CDI_OPTIM_STATES];
    uint16_t *w = (uint16_t *)d->params[i].data + s->lo + at;

    for (int k = 0; k < CDI_OPTIM_STATES; k++)
        state[k] = o->state[k] == NULL ? NULL : (float *)o->state[k] + s->state_at / sizeof(float) + at;
    for (size_t k = 0; k < n; k++)
        grad[k] =
            cdi_optim_has_wide_grad(&d->params[i]) ? ((const float *)g)[k] : float_of(dtype, ((const uint16_t *)g)[k]);
    cdi_optim_update_f32(rule, o->steps[i], master, grad, state, n);
    for (size_t k = 0; k < n; k++)
        w[k] = dtype == CDDP_FLOAT16 ? cdi_f16_of_float(master[k]) : cdi_bf16_of_float(master[k]);
}

static void update_chunk(cddp_optim *o, const struct cdi_optim_rule *rule, size_t i, size_t at, size_t n, void *g)
{
    const cddp_param *p = &o->ddp->params[i];
    const struct cdi_shard *s = &o->shards[i];

    if (p->dtype == CDDP_FLOAT64) {
        double *state[CDI_OPTIM_STATES];

        for (int k = 0; k < CDI_OPTIM_STATES; k++)
            state[k] = o->state[k] == NULL ? NULL : (double *)o->state[k] + s->state_at / sizeof(double) + at;
        cdi_optim_update_f64(rule, o->steps[i], (double *)p->data + s->lo + at, g, state, n);
    } else if (p->dtype == CDDP_FLOAT32) {
        float *state[CDI_OPTIM_STATES];

        for (int k = 0; k < CDI_OPTIM_STATES; k++)
            state[k] = o->state[k] == NULL ? NULL : (float *)o->state[k] + s->state_at / sizeof(float) + at;
        cdi_optim_update_f32(rule, o->steps[i], (float *)p->data + s->lo + at, g, state, n);
    } else {
        update_16(o, rule, i, at, n, g);
    }
}

/*
 * Copies new values, elements [at, at + n) of parameter i, between the program's memory and the gradients' place. With
 * float32 gradients, 16-bit parameters are converted on the way, without loss.
 */
static void copy_values(const cddp_ddp *d, size_t i, size_t at, size_t n, bool into_arena)
{
    const cddp_param *p = &d->params[i];
    size_t size = cddp_dtype_size(p->dtype);
    char *w = (char *)p->data + at * size;
    char *arena = (char *)cdi_arena_grad(d, i) + at * cddp_dtype_size(p->grad_dtype);

    if (n == 0)
        return;
    if (!cdi_optim_has_wide_grad(p)) {
        memcpy(into_arena ? arena : w, into_arena ? w : arena, n * size);
        return;
    }
    for (size_t k = 0; k < n; k++) {
        uint16_t *x = (uint16_t *)(void *)w + k;
        float *wide = (float *)(void *)arena + k;

        if (into_arena)
            *wide = float_of(p->dtype, *x);
        else
            *x = p->dtype == CDDP_FLOAT16 ? cdi_f16_of_float(*wide) : cdi_bf16_of_float(*wide);
    }
}

/* Updates this rank's part of parameter i, if some rank used it, and publishes it to the others. */
static void update_param(cddp_optim *o, size_t i)
{
    const cddp_ddp *d = o->ddp;
    const struct cdi_shard *s = &o->shards[i];
    struct cdi_optim_rule rule = rule_of(o, i);
    size_t size = cddp_dtype_size(d->params[i].grad_dtype);
    bool used = !cdi_optim_is_idle(o, i), exchanges = cdi_optim_exchanges(o);

    for (size_t at = 0; at < s->count; at += CHUNK) {
        size_t n = s->count - at < CHUNK ? s->count - at : CHUNK;

        if (used)
            update_chunk(o, &rule, i, at, n, (char *)cdi_arena_grad(d, i) + (s->lo + at) * size);
        if (exchanges)
            copy_values(d, i, s->lo + at, n, true);
    }
}

/* Copies the other ranks' parts of a bucket's parameters, which have arrived, to the user's memory. */
static cddp_status optim_collect_bucket(cddp_optim *o, size_t bucket)
{
    cddp_ddp *d = o->ddp;
    cddp_status st;

    if (!cdi_optim_bucket_has_untied(o, bucket))
        return CDDP_OK;
    st = cdi_ddp_join_ticket(d, o->tickets[bucket]);
    for (size_t k = 0; k < d->plan.b[bucket].n_grads && st == CDDP_OK; k++) {
        size_t i = cdi_bucket_grad(&d->plan, bucket, k), lo = o->shards[i].lo, hi = lo + o->shards[i].count;

        if (cdi_ddp_is_tied(d, i))
            continue;
        copy_values(d, i, 0, lo, false);
        copy_values(d, i, hi, d->params[i].count - hi, false);
    }
    return st;
}

/*
 * Does what needs all gradients, and waits for them: clipping, and checking that all are finite, so that the step can
 * be skipped. Sets the sticky error.
 */
static cddp_status measure_all(cddp_ddp *d, cddp_optim *o)
{
    struct cdi_error err;
    cddp_status st = cdi_ddp_join_ticket(d, d->enqueued);

    if (st != CDDP_OK)
        return st;
    st = o->max_norm > 0 ? cdi_norm_measure(d, &err) : cdi_norm_largest(d, &err);
    if (st == CDDP_OK)
        o->left_out = o->skip_nonfinite && !isfinite(*d->norm);
    if (st == CDDP_OK && o->max_norm > 0 && !o->left_out)
        st = cdi_norm_clip(d, o->max_norm, o->now.factor, NULL, &err);
    return st == CDDP_OK ? st : cdi_ddp_set_error(d, &err);
}

/*
 * Adds up the gradients of tied parameters, which may be in any bucket. Runs before any exchange: an exchange would
 * overwrite means that are not added yet.
 */
static cddp_status fold_tied(cddp_ddp *d)
{
    struct cdi_error err;
    cddp_status st = d->tied.first == NULL ? CDDP_OK : cdi_ddp_join_ticket(d, d->enqueued);

    return st != CDDP_OK || cdi_tied_fold(d, &err) == CDDP_OK ? st : cdi_ddp_set_error(d, &err);
}

/*
 * Each rank updates its share: a parameter would be torn where another rank's step has other numbers. A learning rate
 * that a program computes may differ in its last bit between kinds of processors, and that does not matter.
 */
static void note_step(const cddp_optim *o)
{
    const float numbers[] = {(float)o->now.lr + 0.0f, (float)o->now.factor, (float)o->max_norm + 0.0f, /* never -0 */
                             o->skip_nonfinite};

    cdi_ddp_note_step(o->ddp, numbers, sizeof numbers);
}

cddp_status cdi_optim_host_complete(cddp_ddp *d, void *arg)
{
    cddp_optim *o = arg;
    bool exchanges = cdi_optim_exchanges(o);
    cddp_status st;

    note_step(o);
    st = cdi_step_complete_share(d); /* from here on it is known which parameters no rank used */
    if (st == CDDP_OK && (o->skip_nonfinite || o->max_norm > 0))
        st = measure_all(d, o);
    o->skipped += o->left_out;
    if (o->left_out || st != CDDP_OK)
        return st;
    st = fold_tied(d);
    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++)
        o->steps[i] += !cdi_optim_is_idle(o, i);
    for (size_t b = 0; b < d->plan.n && st == CDDP_OK; b++) {
        st = cdi_ddp_join_ticket(d, d->flight[b].ticket);
        for (size_t k = 0; k < d->plan.b[b].n_grads && st == CDDP_OK; k++)
            update_param(o, cdi_bucket_grad(&d->plan, b, k));
        if (st == CDDP_OK && exchanges && cdi_optim_bucket_has_untied(o, b))
            st = cdi_optim_exchange(o, b);
        if (st == CDDP_OK && exchanges && b > 0)
            st = optim_collect_bucket(o, b - 1);
    }
    return st == CDDP_OK && exchanges ? optim_collect_bucket(o, d->plan.n - 1) : st;
}

cddp_status cdi_optim_host_pass_over(cddp_ddp *d, void *arg)
{
    static const uint64_t skip = 1;
    cddp_status st = cdi_ddp_join_ticket(d, d->enqueued);

    (void)arg;
    cdi_ddp_note_step(d, &skip, sizeof skip);
    return st == CDDP_OK ? cdi_step_complete_share(d) : st;
}
