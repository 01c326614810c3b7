/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sharded optimizer, public as cddp_optim_*. The reducer reduces and scatters each bucket instead of reducing it
 * everywhere, unless it sends it in a way of its own (compressed, by PowerSGD, by a hook), which makes whole means;
 * here this rank's part of it is updated, the new values take the gradients' place in the arena, from where the ranks
 * exchange them, and come back into the user's parameters. One thread, with the reducer's lock held.
 */
#include "worker/optim/optim.h"

#include "common/crc64.h"
#include "worker/math/float16.h"
#include "worker/reducer/arena.h"
#include "worker/reducer/captured.h"
#include "worker/reducer/in_place.h"
#include "worker/reducer/norm.h"
#include "worker/reducer/step.h"
#include "worker/reducer/used.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK 2048 /* elements that are updated and published at a time, so that they are in a near cache for both */

/* Is the gradient of a parameter of 16 bits float32? */
static bool is_long(const cddp_param *p)
{
    return p->grad_dtype != p->dtype;
}

static bool has_long_gradients(const cddp_ddp *d)
{
    bool any = false;

    for (size_t i = 0; i < d->n_params; i++)
        any |= is_long(&d->params[i]);
    return any;
}

/* Locked. Can this reducer have an optimizer, and now? */
static cddp_status check_reducer(const cddp_ddp *d, struct cdi_error *err)
{
    /* Who has no more samples would have to clip and to skip as the others do, which it does not hear of. */
    const char *with = (d->flags & CDDP_DDP_JOIN) != 0
                           ? "ranks of different numbers of steps (CDDP_DDP_JOIN): one that waits in cddp_ddp_join "
                             "cannot know whether the others clip or skip, and has a share to update"
                       : (d->flags & CDDP_DDP_SPLIT) != 0 ? "gradients in several buckets (CDDP_DDP_SPLIT)"
                       : d->ops->on_device && has_long_gradients(d)
                           ? "gradients of another type than their parameters (grad_dtype) on a GPU"
                       : d->automatic ? "a bucket size that is found by trying (CDDP_DDP_TUNE)"
                                      : NULL;

    if (d->sticky.status != CDDP_OK) {
        *err = d->sticky;
        return err->status;
    }
    if (with != NULL)
        return cdi_fail(err, CDDP_E_UNSUPPORTED,
                        "cddp_optim_create: an optimizer whose state is divided does not go with %s", with);
    if (d->sharded)
        return cdi_fail(err, CDDP_E_STATE, "cddp_optim_create: this reducer has an optimizer already");
    if (d->begun)
        return cdi_fail(err, CDDP_E_STATE, "cddp_optim_create was called in the middle of step %llu",
                        (unsigned long long)d->step);
    return CDDP_OK;
}

/* -------------------------------------------------------------------------------------------------- creation ---- */

/* What ranks compare. */
struct card {
    double value[8];
    uint64_t groups; /* a hash of what they say of each parameter */
    int32_t status;  /* of a rank that failed before */
    int32_t kind;
};

static const char *const card_names[] = {"lr",    "weight_decay", "momentum", "dampening",
                                         "beta1", "beta2",        "eps",      "flags"};

static struct card card_of(const struct cdi_optim_rule *r, uint64_t flags, const struct cdi_optim_own *own,
                           size_t n_params, cddp_status status)
{
    return (struct card){
        .value = {r->lr, r->weight_decay, r->momentum, r->dampening, r->beta1, r->beta2, r->eps, (double)flags},
        .groups = status == CDDP_OK ? cdi_crc64(0, own, n_params * sizeof *own) : 0,
        .status = status,
        .kind = (int32_t)r->kind};
}

static cddp_status compare(const struct cdi_world *w, const struct card *all, struct cdi_error *err)
{
    int n = w->size;

    for (int r = 0; r < n; r++)
        if (all[r].status != CDDP_OK)
            return cdi_fail_by(err, cdi_rank_of_job(w, r), (cddp_status)all[r].status,
                               "cddp_optim_create failed on rank %d", r);
    for (int r = 1; r < n; r++) {
        if (all[r].kind != all[0].kind)
            return cdi_fail_by(err, cdi_rank_of_job(w, r), CDDP_E_MISMATCH,
                               "cddp_optim_options.kind is %d on rank 0 but %d on rank %d", (int)all[0].kind,
                               (int)all[r].kind, r);
        for (size_t k = 0; k < sizeof card_names / sizeof card_names[0]; k++)
            if (all[r].value[k] != all[0].value[k])
                return cdi_fail_by(err, cdi_rank_of_job(w, r), CDDP_E_MISMATCH,
                                   "cddp_optim_options.%s is %.17g on rank 0 but %.17g on rank %d", card_names[k],
                                   all[0].value[k], all[r].value[k], r);
        if (all[r].groups != all[0].groups)
            return cdi_fail_by(err, cdi_rank_of_job(w, r), CDDP_E_MISMATCH,
                               "cddp_optim_options.groups say something else of a parameter on rank 0 than on rank %d",
                               r);
    }
    return CDDP_OK;
}

/* A rank that fails alone still takes part: the others must not wait for it. */
static cddp_status agree(cddp_comm *comm, const struct card *mine, struct cdi_error *err)
{
    struct card *all = calloc((size_t)cddp_world_size(comm), sizeof *all);
    cddp_status alone = (cddp_status)mine->status;
    struct cdi_error other;
    cddp_status st;

    if (all == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %d ranks", cddp_world_size(comm));
    st = cdi_comm_all_gather(comm, mine, all, sizeof *mine, CDDP_UINT8, &other);
    if (st == CDDP_OK)
        st = compare(cdi_comm_world(comm), all, &other);
    free(all);
    if (alone == CDDP_OK && st != CDDP_OK)
        *err = other;
    return alone != CDDP_OK ? alone : st;
}

static void release(cddp_optim *o)
{
    if (o == NULL)
        return;
    if (o->on_device)
        cdi_optim_device_release(o);
    for (int k = 0; k < CDI_OPTIM_STATES && !o->on_device; k++)
        free(o->state[k]);
    if (!o->on_device)
        free(o->master);
    free(o->own);
    free(o->shards);
    free(o->steps);
    free(o->tickets);
    free(o);
}

static void *zeros(size_t bytes)
{
    void *p = aligned_alloc(CDI_GRAD_ALIGN, bytes);

    return p == NULL ? NULL : memset(p, 0, bytes);
}

static float float_of(cddp_dtype dtype, uint16_t x)
{
    return dtype == CDDP_FLOAT16 ? cdi_float_of_f16(x) : cdi_float_of_bf16(x);
}

/* The float32 copies of this rank's parameters of 16 bits. */
static void copy_masters(cddp_optim *o)
{
    const cddp_ddp *d = o->ddp;

    for (size_t i = 0; i < d->n_params; i++) {
        const struct cdi_shard *s = &o->shards[i];
        const uint16_t *w = (const uint16_t *)d->params[i].data + s->lo;
        float *master = o->master + s->master_at / sizeof *master;

        if (!cdi_shard_has_master(d->params[i].dtype))
            continue;
        for (size_t k = 0; k < s->count; k++)
            master[k] = float_of(d->params[i].dtype, w[k]);
    }
}

static cddp_status make(cddp_optim **out, cddp_ddp *d, const struct cdi_optim_rule *rule, const cddp_optim_options *opt,
                        struct cdi_error *err)
{
    cddp_optim *o = calloc(1, sizeof *o);
    bool ok = o != NULL;

    *out = o;
    if (ok) {
        o->item_ops = &cdi_optim_item_ops;
        o->ddp = d;
        o->rule = *rule;
        o->on_device = d->ops->on_device;
        o->rule.factor = cddp_ddp_grad_scale(d);
        o->own = calloc(d->n_params, sizeof *o->own);
        o->shards = calloc(d->n_params, sizeof *o->shards);
        o->steps = calloc(d->n_params, sizeof *o->steps);
        o->tickets = calloc(d->plan.n, sizeof *o->tickets);
        ok = o->own != NULL && o->shards != NULL && o->steps != NULL && o->tickets != NULL;
    }
    if (ok)
        o->sizes = cdi_shard_all(o->shards, &d->plan, d->params, d->n_params, cdi_comm_world(d->comm)->rank);
    for (int k = 0; ok && !o->on_device && k < cdi_optim_n_states(rule) && o->sizes.state > 0; k++)
        ok = (o->state[k] = zeros(o->sizes.state)) != NULL;
    if (ok && !o->on_device && o->sizes.master > 0)
        ok = (o->master = zeros(o->sizes.master)) != NULL;
    if (!ok)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the optimizer's state on rank %d",
                        cdi_comm_world(d->comm)->rank);
    if (o->master != NULL)
        copy_masters(o);
    if (cdi_optim_apply_groups(o->own, d, opt, err) != CDDP_OK)
        return err->status;
    return o->on_device ? cdi_optim_device_init(o, err) : CDDP_OK;
}

static cddp_status create(cddp_optim **out, cddp_ddp *d, const cddp_optim_options *said, struct cdi_error *err)
{
    struct cdi_optim_rule rule = {0};
    cddp_optim_options opt;
    cddp_optim *o = NULL;
    struct card mine;
    cddp_status st;

    (void)pthread_mutex_lock(&d->lock);
    st = check_reducer(d, err);
    if (st == CDDP_OK)
        st = cdi_in_place_leave(d, err);
    (void)pthread_mutex_unlock(&d->lock);
    if (st == CDDP_OK)
        st = cdi_optim_make_rule(&rule, &opt, said, err);
    if (st == CDDP_OK)
        st = make(&o, d, &rule, &opt, err);
    mine = card_of(&rule, st == CDDP_OK ? opt.flags : 0, st == CDDP_OK ? o->own : NULL, d->n_params, st);
    st = agree(d->comm, &mine, err);
    if (st != CDDP_OK) {
        release(o);
        return st;
    }
    d->sharded = true;
    d->held_by = &o->ddp;
    *out = o;
    return CDDP_OK;
}

cddp_status cddp_optim_create(cddp_optim **out, cddp_ddp *ddp, const cddp_optim_options *opt)
{
    enum cdi_asked before = cdi_comm_ask(CDI_ASKED_OPTIM_CREATE);
    struct cdi_error err;
    cddp_status st = ddp != NULL ? cdi_comm_own("cddp_optim_create", ddp->comm, &err) : CDDP_OK;

    if (out == NULL || ddp == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_optim_create: out and ddp must not be NULL");
    else if (st == CDDP_OK)
        st = create(out, ddp, opt, &err);
    (void)cdi_comm_ask(before);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

/* ---------------------------------------------------------------------------------------------------- a step ---- */

/* What parameter i is updated by. */
static struct cdi_optim_rule rule_of(const cddp_optim *o, size_t i)
{
    struct cdi_optim_rule rule = o->now;

    rule.lr *= o->own[i].lr_factor;
    rule.weight_decay = o->own[i].weight_decay;
    return rule;
}

/* Elements [at, at + n) of this rank's shard of parameter i, whose gradients are at g: there the new values go, too. */
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
        grad[k] = is_long(&d->params[i]) ? ((const float *)g)[k] : float_of(dtype, ((const uint16_t *)g)[k]);
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

bool cdi_optim_is_idle(const cddp_optim *o, size_t i)
{
    return o->own[i].is_frozen != 0 || cdi_used_nowhere(o->ddp, i);
}

/*
 * New values, elements [at, at + n) of parameter i, between where the program has them and the gradients' place. Where
 * gradients are float32 and parameters have 16 bits they take that type on the way, which loses nothing.
 */
static void copy_values(const cddp_ddp *d, size_t i, size_t at, size_t n, bool into_arena)
{
    const cddp_param *p = &d->params[i];
    size_t size = cddp_dtype_size(p->dtype);
    char *w = (char *)p->data + at * size;
    char *arena = (char *)cdi_arena_grad(d, i) + at * cddp_dtype_size(p->grad_dtype);

    if (n == 0)
        return;
    if (!is_long(p)) {
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

/* This rank's part of parameter i: updated where some rank used it, and put where the others take it from. */
static void update_param(cddp_optim *o, size_t i)
{
    const cddp_ddp *d = o->ddp;
    const struct cdi_shard *s = &o->shards[i];
    struct cdi_optim_rule rule = rule_of(o, i);
    size_t size = cddp_dtype_size(d->params[i].grad_dtype);
    bool used = !cdi_optim_is_idle(o, i), alone = cdi_comm_world(d->comm)->size == 1;

    for (size_t at = 0; at < s->count; at += CHUNK) {
        size_t n = s->count - at < CHUNK ? s->count - at : CHUNK;

        if (used)
            update_chunk(o, &rule, i, at, n, (char *)cdi_arena_grad(d, i) + (s->lo + at) * size);
        if (!alone)
            copy_values(d, i, s->lo + at, n, true);
    }
}

cddp_status cdi_optim_exchange(cddp_optim *o, size_t bucket)
{
    cddp_ddp *d = o->ddp;
    const struct cdi_bucket *b = &d->plan.b[bucket];
    size_t part = b->room / d->plan.parts;
    char *at = (char *)d->region->base + b->offset;
    struct cdi_coll op = {
        .kind = CDI_ALL_GATHER,
        .in = at + part * (size_t)cdi_comm_world(d->comm)->rank,
        .out = at,
        .count = part / cddp_dtype_size(b->dtype),
        .dtype = b->dtype,
        .region = d->region,
        .bucket = (int)bucket,
        .name_bucket = d->ops->on_device ? NULL : cdi_ddp_name_bucket,
        .ddp = d,
        .lazy = bucket + 1 == d->plan.n, /* the only one that is waited for at once */
        .more = d->ops->on_device && d->flight[bucket].more && bucket + 1 < d->plan.n,
    };

    return cdi_ddp_enqueue(d, &op, &o->tickets[bucket]);
}

/* The other ranks' parts of a bucket's parameters have come: to where the user has them. */
static cddp_status collect(cddp_optim *o, size_t bucket)
{
    cddp_ddp *d = o->ddp;
    cddp_status st = cdi_ddp_join_ticket(d, o->tickets[bucket]);

    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++) {
        size_t lo = o->shards[i].lo, hi = lo + o->shards[i].count;

        if (d->plan.grads[i].bucket != bucket)
            continue;
        copy_values(d, i, 0, lo, false);
        copy_values(d, i, hi, d->params[i].count - hi, false);
    }
    return st;
}

/*
 * What has to know all gradients, which have landed then: clipping, and whether one of them is no finite number, so
 * that the step is left out. Sticks.
 */
static cddp_status look_at_all(cddp_ddp *d, cddp_optim *o)
{
    struct cdi_error err;
    cddp_status st = cdi_ddp_join_ticket(d, d->enqueued);

    if (st != CDDP_OK)
        return st;
    st = o->max_norm > 0 ? cdi_norm_measure(d, &err) : cdi_norm_largest(d, &err);
    if (st == CDDP_OK)
        o->left_out = o->skip_nonfinite && !isfinite(*d->norm);
    if (st == CDDP_OK && o->max_norm > 0 && !o->left_out)
        st = cdi_norm_clip(d, o->max_norm, o->now.factor, &err);
    return st == CDDP_OK ? st : cdi_ddp_set_error(d, &err);
}

static cddp_status land(cddp_ddp *d, void *arg)
{
    cddp_optim *o = arg;
    bool alone = cdi_comm_world(d->comm)->size == 1;
    cddp_status st = cdi_step_complete_share(d); /* what no rank used is known from here on */

    if (st == CDDP_OK && (o->skip_nonfinite || o->max_norm > 0))
        st = look_at_all(d, o);
    o->skipped += o->left_out;
    if (o->left_out || st != CDDP_OK)
        return st;
    for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++)
        o->steps[i] += !cdi_optim_is_idle(o, i);
    for (size_t b = 0; b < d->plan.n && st == CDDP_OK; b++) {
        st = cdi_ddp_join_ticket(d, d->flight[b].ticket);
        for (size_t i = 0; i < d->n_params && st == CDDP_OK; i++)
            if (d->plan.grads[i].bucket == b)
                update_param(o, i);
        if (st == CDDP_OK && !alone)
            st = cdi_optim_exchange(o, b);
        if (st == CDDP_OK && !alone && b > 0)
            st = collect(o, b - 1);
    }
    return st == CDDP_OK && !alone ? collect(o, d->plan.n - 1) : st;
}

/* Nothing is made of the gradients. */
static cddp_status pass_over(cddp_ddp *d, void *arg)
{
    cddp_status st = cdi_ddp_join_ticket(d, d->enqueued);

    (void)arg;
    return st == CDDP_OK ? cdi_step_complete_share(d) : st;
}

cddp_status cdi_optim_check(const char *function, const cddp_optim *o, struct cdi_error *err)
{
    if (o == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: optim must not be NULL", function);
    if (o->ddp == NULL)
        return cdi_fail(err, CDDP_E_STATE,
                        "%s: this optimizer's reducer is gone: only cddp_optim_destroy is of use now", function);
    return cdi_comm_own(function, o->ddp->comm, err);
}

static cddp_status finish(const char *function, cddp_optim *o, cddp_status (*how)(cddp_ddp *d, void *arg))
{
    struct cdi_error err;
    cddp_status st = cdi_optim_check(function, o, &err);

    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&o->ddp->lock);
        st = cdi_captured_refuse(o->ddp, function, &err);
        (void)pthread_mutex_unlock(&o->ddp->lock);
    }
    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    return cdi_step_finish(o->ddp, how, o);
}

cddp_status cddp_optim_step(cddp_optim *optim, const cddp_optim_step_args *args)
{
    struct cdi_error err;
    cddp_status st = cdi_optim_check("cddp_optim_step", optim, &err);

    if (st == CDDP_OK)
        st = cdi_optim_read_args(optim, args, &err);
    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    st = finish("cddp_optim_step", optim, optim->on_device ? cdi_optim_device_complete : land);
    if (st != CDDP_OK || !optim->left_out)
        return st;
    (void)cdi_fail(&err, CDDP_E_NONFINITE,
                   "cddp_optim_step: a gradient is no finite number, so the step was left out: nothing has changed");
    return cdi_last_error_set(&err);
}

cddp_status cddp_optim_skip(cddp_optim *optim)
{
    return finish("cddp_optim_skip", optim, optim != NULL && optim->on_device ? cdi_optim_device_pass_over : pass_over);
}

/* -------------------------------------------------------------------------------------------------- the rest ---- */

cddp_status cddp_optim_set_lr(cddp_optim *optim, double lr)
{
    struct cdi_error err;

    if (cdi_optim_check("cddp_optim_set_lr", optim, &err) != CDDP_OK)
        return cdi_last_error_set(&err);
    if (!(lr >= 0 && isfinite(lr))) {
        (void)cdi_fail(&err, CDDP_E_INVALID, "cddp_optim_set_lr: a learning rate is a number, 0 or more");
        return cdi_last_error_set(&err);
    }
    optim->rule.lr = lr;
    return CDDP_OK;
}

cddp_status cddp_optim_skipped(cddp_optim *optim, uint64_t *steps)
{
    struct cdi_error err;
    cddp_status st = cdi_optim_check("cddp_optim_skipped", optim, &err);

    if (st == CDDP_OK && steps == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_optim_skipped: steps must not be NULL");
    if (st == CDDP_OK && optim->on_device)
        st = optim->ddp->ops->copy(optim->ddp->b, steps, optim->device_skipped, sizeof *steps, &err);
    else if (st == CDDP_OK)
        *steps = optim->skipped;
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

size_t cddp_optim_state_bytes(const cddp_optim *optim)
{
    return optim == NULL ? 0 : optim->sizes.state * (size_t)cdi_optim_n_states(&optim->rule) + optim->sizes.master;
}

void cddp_optim_destroy(cddp_optim *optim)
{
    if (optim == NULL || (optim->ddp != NULL && cdi_comm_is_others("cddp_optim_destroy", optim->ddp->comm)))
        return;
    if (optim->ddp != NULL) {
        optim->ddp->sharded = false;
        optim->ddp->held_by = NULL;
    }
    release(optim);
}
