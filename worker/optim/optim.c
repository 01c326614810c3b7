/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sharded optimizer, public as cddp_optim_*. The reducer reduces and scatters each bucket instead of reducing it
 * everywhere, unless it sends the bucket in another way (compressed, by PowerSGD, by a hook), which gives whole means.
 * This rank's part of the bucket is updated, and the new values replace the gradients in the arena. From there the
 * ranks exchange them and copy them to the user's parameters. One thread, with the reducer's lock held.
 */
#include "worker/optim/optim.h"

#include "common/crc64.h"
#include "common/float_state.h"
#include "worker/backend/who.h"
#include "worker/comm/agree.h"
#include "worker/reducer/grads/in_place.h"
#include "worker/reducer/step.h"

#include <math.h>
#include <stdlib.h>

/* Checks, with the lock held, that this reducer can have an optimizer, and now. */
static cddp_status optim_check_reducer(const cddp_ddp *d, struct cdi_error *err)
{
    /* A rank without samples would have to clip and to skip like the others, but it does not know when. */
    const char *with = (d->flags & CDDP_DDP_JOIN) != 0
                           ? "ranks of different numbers of steps (CDDP_DDP_JOIN): one that waits in cddp_ddp_join "
                             "cannot know whether the others clip or skip, and has a share to update"
                       : (d->flags & CDDP_DDP_SPLIT) != 0 ? "gradients in several buckets (CDDP_DDP_SPLIT)"
                       : d->automatic                     ? "a bucket size found by trial (CDDP_DDP_TUNE)"
                                                          : NULL;

    if (d->sticky.status != CDDP_OK) {
        *err = d->sticky;
        return err->status;
    }
    if (with != NULL)
        return cdi_fail(err, CDDP_E_UNSUPPORTED, "cddp_optim_create: the sharded optimizer cannot be combined with %s",
                        with);
    if (d->sharded)
        return cdi_fail(err, CDDP_E_STATE, "cddp_optim_create: this model has an optimizer already");
    if (d->begun)
        return cdi_fail(err, CDDP_E_STATE, "cddp_optim_create was called in the middle of step %llu",
                        (unsigned long long)d->step);
    return CDDP_OK;
}

/* -------------------------------------------------------------------------------------------------- creation ---- */

/* What the ranks compare. */
struct card {
    double value[8];
    uint64_t groups; /* a hash of the groups' values for each parameter */
    uint64_t kind;
};

static const char *const card_names[] = {"lr",    "weight_decay", "momentum", "dampening",
                                         "beta1", "beta2",        "eps",      "flags"};

static struct card card_of(const struct cdi_optim_rule *r, uint64_t flags, const struct cdi_optim_own *own,
                           size_t n_params)
{
    return (struct card){
        .value = {r->lr, r->weight_decay, r->momentum, r->dampening, r->beta1, r->beta2, r->eps, (double)flags},
        .groups = cdi_crc64(0, own, n_params * sizeof *own),
        .kind = (uint64_t)r->kind};
}

static cddp_status optim_compare(const struct cdi_world *w, const struct card *all, struct cdi_error *err)
{
    int n = w->size;

    for (int r = 1; r < n; r++) {
        if (all[r].kind != all[0].kind)
            return cdi_fail_by(err, cdi_rank_of_job(w, r), CDDP_E_MISMATCH,
                               "cddp_optim_options.kind is %d on rank 0 but %d on %s", (int)all[0].kind,
                               (int)all[r].kind, cdi_who(w->ranks, r).text);
        for (size_t k = 0; k < sizeof card_names / sizeof card_names[0]; k++)
            if (all[r].value[k] != all[0].value[k])
                return cdi_fail_by(err, cdi_rank_of_job(w, r), CDDP_E_MISMATCH,
                                   "cddp_optim_options.%s is %.17g on rank 0 but %.17g on %s", card_names[k],
                                   all[0].value[k], all[r].value[k], cdi_who(w->ranks, r).text);
        if (all[r].groups != all[0].groups)
            return cdi_fail_by(err, cdi_rank_of_job(w, r), CDDP_E_MISMATCH,
                               "cddp_optim_options.groups differ: a parameter has other values on rank 0 than on %s",
                               cdi_who(w->ranks, r).text);
    }
    return CDDP_OK;
}

/* Compares the ranks. st and *err: this rank's result so far. */
static cddp_status optim_agree(cddp_comm *comm, const char *what, const struct card *mine, cddp_status st,
                               struct cdi_error *err)
{
    void *all;

    st = cdi_comm_agree(comm, what, mine, sizeof *mine, &all, st == CDDP_OK ? NULL : err, err);
    if (st == CDDP_OK)
        st = optim_compare(cdi_comm_world(comm), all, err);
    free(all);
    return st;
}

static void optim_release(cddp_optim *o)
{
    if (o == NULL)
        return;
    if (o->on_device)
        cdi_optim_device_release(o);
    else
        cdi_optim_host_release(o);
    free(o->own);
    free(o->shards);
    free(o->steps);
    free(o->tickets);
    free(o);
}

static cddp_status optim_make(cddp_optim **out, cddp_ddp *d, const struct cdi_optim_rule *rule,
                              const cddp_optim_options *opt, struct cdi_error *err)
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
        o->grad_scale = 1;
        o->own = calloc(d->n_params, sizeof *o->own);
        o->shards = calloc(d->n_params, sizeof *o->shards);
        o->steps = calloc(d->n_params, sizeof *o->steps);
        o->tickets = calloc(d->plan.n, sizeof *o->tickets);
        ok = o->own != NULL && o->shards != NULL && o->steps != NULL && o->tickets != NULL;
    }
    if (ok)
        o->sizes =
            cdi_shard_all(o->shards, &d->plan, d->params, d->tied.first, d->n_params, cdi_comm_world(d->comm)->rank);
    if (!ok || (!o->on_device && !cdi_optim_host_init(o)))
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the optimizer's state on %s",
                        cdi_comm_who(d->comm, cdi_comm_world(d->comm)->rank).text);
    if (cdi_optim_apply_groups(o->own, d, opt, err) != CDDP_OK)
        return err->status;
    return o->on_device ? cdi_optim_device_init(o, err) : CDDP_OK;
}

static cddp_status optim_create(cddp_optim **out, cddp_ddp *d, const cddp_optim_options *given, struct cdi_error *err)
{
    struct cdi_optim_rule rule = {0};
    cddp_optim_options opt = {.size = sizeof opt};
    cddp_optim *o = NULL;
    struct card mine = {.kind = 0};
    cddp_status st;

    (void)pthread_mutex_lock(&d->lock);
    st = optim_check_reducer(d, err);
    if (st == CDDP_OK && out == NULL)
        st = cdi_fail(err, CDDP_E_INVALID, "cddp_optim_create: out and ddp must not be NULL");
    if (st == CDDP_OK)
        st = cdi_optim_make_rule(&rule, &opt, given, err);
    st = cdi_in_place_disable(d, "create its optimizer", st, err);
    (void)pthread_mutex_unlock(&d->lock);
    if (st == CDDP_OK)
        st = optim_make(&o, d, &rule, &opt, err);
    if (st == CDDP_OK)
        mine = card_of(&rule, opt.flags, o->own, d->n_params);
    st = optim_agree(d->comm, "create its optimizer", &mine, st, err);
    if (d->across.comm != NULL) { /* the replicas, each of which has its group's status */
        cddp_status group = st;

        st = optim_agree(d->across.comm, "create its replica's optimizer", &mine, group, err);
        if (group == CDDP_OK && st != CDDP_OK)
            (void)cdi_error_wrap(err, "replicas");
    }
    if (st != CDDP_OK || out == NULL) {
        if (d->across.comm != NULL)
            cdi_ddp_end_both(d->comm, d->across.comm);
        optim_release(o);
        return st;
    }
    d->sharded = true;
    d->held_by = &o->ddp;
    *out = o;
    return CDDP_OK;
}

cddp_status cddp_optim_create(cddp_optim **out, cddp_ddp *ddp, const cddp_optim_options *opt)
{
    CDI_DEFAULT_FLOAT_STATE;
    enum cdi_api_call before = cdi_api_enter(CDI_API_OPTIM_CREATE);
    struct cdi_error err;
    cddp_status st = ddp != NULL ? cdi_comm_own("cddp_optim_create", ddp->comm, &err) : CDDP_OK;

    if (ddp == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_optim_create: out and ddp must not be NULL");
    else if (st == CDDP_OK)
        st = optim_create(out, ddp, opt, &err);
    (void)cdi_api_enter(before);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

/* ---------------------------------------------------------------------------------------------------- a step ---- */

static cddp_status optim_finish(const char *function, cddp_optim *o, cddp_status (*how)(cddp_ddp *d, void *arg))
{
    struct cdi_error err;
    cddp_status st = cdi_optim_check(function, o, &err);
    bool captured;

    if (o == NULL || st != CDDP_OK)
        return cdi_last_error_set(&err);
    st = cdi_step_finish_captured(o->ddp, how, o, &captured);
    return captured || st != CDDP_OK ? st : cdi_step_finish(o->ddp, how, o);
}

cddp_status cddp_optim_step(cddp_optim *optim, const cddp_optim_step_args *args)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = cdi_optim_check("cddp_optim_step", optim, &err);

    if (st == CDDP_OK)
        st = cdi_optim_read_args(optim, args, &err);
    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    st = optim_finish("cddp_optim_step", optim, optim->on_device ? cdi_optim_device_complete : cdi_optim_host_complete);
    if (st != CDDP_OK || !optim->left_out)
        return st;
    (void)cdi_fail(&err, CDDP_E_NONFINITE,
                   "cddp_optim_step: a gradient is not finite, so the step was skipped: nothing has changed");
    return cdi_last_error_set(&err);
}

cddp_status cddp_optim_skip(cddp_optim *optim)
{
    CDI_DEFAULT_FLOAT_STATE;

    return optim_finish("cddp_optim_skip", optim,
                        optim != NULL && optim->on_device ? cdi_optim_device_pass_over : cdi_optim_host_pass_over);
}

/* -------------------------------------------------------------------------------------------------- the rest ---- */

/* Sets both for the next step, and for later launches of graphs. */
static cddp_status set_numbers(cddp_optim *o, double lr, double grad_scale)
{
    struct cdi_error err;

    if (o->on_device && cdi_optim_device_store(o, lr, grad_scale, &err) != CDDP_OK)
        return cdi_last_error_set(&err);
    o->rule.lr = lr;
    o->grad_scale = grad_scale;
    return CDDP_OK;
}

cddp_status cddp_optim_set_lr(cddp_optim *optim, double lr)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;

    CDI_FLOAT_FENCE(lr);
    if (cdi_optim_check("cddp_optim_set_lr", optim, &err) != CDDP_OK)
        return cdi_last_error_set(&err);
    if (!(lr >= 0 && isfinite(lr))) {
        (void)cdi_fail(&err, CDDP_E_INVALID, "cddp_optim_set_lr: a learning rate is a number, 0 or more");
        return cdi_last_error_set(&err);
    }
    return set_numbers(optim, lr, optim->grad_scale);
}

cddp_status cddp_optim_set_grad_scale(cddp_optim *optim, double scale)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;

    CDI_FLOAT_FENCE(scale);
    if (cdi_optim_check("cddp_optim_set_grad_scale", optim, &err) != CDDP_OK)
        return cdi_last_error_set(&err);
    if (!(scale > 0 && isfinite(scale))) {
        (void)cdi_fail(&err, CDDP_E_INVALID, "cddp_optim_set_grad_scale: a scale is a number above 0");
        return cdi_last_error_set(&err);
    }
    return set_numbers(optim, optim->rule.lr, scale);
}

cddp_status cddp_optim_skipped(cddp_optim *optim, uint64_t *steps)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = cdi_optim_check("cddp_optim_skipped", optim, &err);

    if (st == CDDP_OK && steps == NULL)
        st = cdi_fail(&err, CDDP_E_INVALID, "cddp_optim_skipped: steps must not be NULL");
    if (st == CDDP_OK && optim->on_device)
        st = cdi_ddp_follow(optim->ddp, optim->ddp->stream, &err);
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
    CDI_DEFAULT_FLOAT_STATE;

    if (optim == NULL || (optim->ddp != NULL && cdi_comm_is_others("cddp_optim_destroy", optim->ddp->comm)))
        return;
    if (optim->ddp != NULL) {
        optim->ddp->sharded = false;
        optim->ddp->held_by = NULL;
    }
    optim_release(optim);
}
