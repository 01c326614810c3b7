/* SPDX-License-Identifier: Apache-2.0 */
/* Creation and destruction of a reducer: cddp_ddp_create and cddp_ddp_destroy. */
#include "worker/reducer/create.h"

#include "common/float_state.h"
#include "worker/base/nvtx.h"
#include "worker/reducer/grads/compress.h"
#include "worker/reducer/grads/in_place.h"
#include "worker/reducer/grads/user_grads.h"
#include "worker/reducer/hook.h"
#include "worker/reducer/layout/shard.h"
#include "worker/reducer/metrics.h"
#include "worker/reducer/nan_check.h"
#include "worker/reducer/norm.h"
#include "worker/reducer/plan.h"
#include "worker/reducer/powersgd.h"
#include "worker/reducer/replicas.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/check.h"
#include "worker/reducer/state/debug.h"
#include "worker/reducer/state/overlap.h"
#include "worker/reducer/state/replicate.h"
#include "worker/reducer/state/verify.h"
#include "worker/reducer/stats.h"
#include "worker/reducer/uneven.h"
#include "worker/reducer/unused.h"

#include <stdlib.h>
#include <string.h>

/* Copies the caller's parameters, with their names in one block. */
static bool copy_params(cddp_ddp *d, const cddp_param *params, size_t n)
{
    size_t bytes = 0;
    char *at;

    for (size_t i = 0; i < n; i++)
        bytes += strlen(params[i].name) + 1;
    if (n == 0) /* rejected earlier */
        return false;
    d->params = calloc(n, sizeof *d->params);
    d->names = at = malloc(bytes);
    d->rows = calloc(n, sizeof *d->rows);
    if (d->params == NULL || at == NULL || d->rows == NULL)
        return false;
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(params[i].name) + 1;

        d->params[i] = params[i];
        d->params[i].shape = NULL;
        d->rows[i] = params[i].n_dims > 0 ? params[i].shape[0] : params[i].count;
        d->params[i].name = memcpy(at, params[i].name, len);
        at += len;
    }
    return true;
}

/* Checks the memory of whole parameters, and finds those that share it. */
static cddp_status prepare_whole(cddp_ddp *d, const cddp_param *params, const cddp_ddp_options *opt,
                                 struct cdi_error *err)
{
    cddp_status status = cdi_ddp_check_memory(d, params, opt->buffers, err);

    return status == CDDP_OK ? cdi_overlap_find(&d->tied, params, d->n_params, opt->buffers, opt->n_buffers, err)
                             : status;
}

/* Allocates this rank's shares of parameters, as zeros, and lets the parameters point there. */
static cddp_status make_shares(cddp_ddp *d, struct cdi_error *err)
{
    void *at = NULL;
    cddp_status status = cdi_backend_zeros(d->ops, d->b, cdi_arena_share_bytes(d), &at, err);

    d->shares.params = at;
    d->slices = calloc(d->n_params, sizeof *d->slices);
    if (status == CDDP_OK && d->slices == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu parameters", d->n_params);
    for (size_t i = 0; i < d->n_params && status == CDDP_OK; i++) {
        const struct cdi_shard own = cdi_shard_one(&d->plan, i, cdi_comm_world(d->comm)->rank);
        size_t size = cddp_dtype_size(d->params[i].dtype);

        d->params[i].data = cdi_arena_param(d, i);
        if (own.count > 0)
            d->slices[i] = (struct cdi_slice){(char *)d->params[i].data + own.lo * size, own.count * size};
    }
    return status;
}

/*
 * Does what a rank can do alone. unit: each parameter's unit, if parameters are divided; NULL: they are whole. free_ddp
 * frees a reducer in any state of creation.
 */
static cddp_status ddp_prepare(cddp_ddp **out, cddp_comm *comm, const cddp_param *params, size_t n, const size_t *unit,
                               const cddp_ddp_options *opt, struct cdi_error *err)
{
    cddp_status status;
    cddp_ddp *d;

    status = cdi_ddp_check_input(params, n, opt, unit != NULL, err);
    if (status != CDDP_OK)
        return status;
    d = calloc(1, sizeof *d);
    if (d == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for a reducer");
    *out = d;
    d->item_ops = &cdi_powersgd_item_ops;
    cdi_hook_init_lock(d);
    d->comm = comm;
    d->ops = cdi_comm_ops(comm);
    d->b = cdi_comm_backend(comm);
    d->stream = opt->stream;
    d->flags = opt->flags;
    d->comm_dtype = opt->comm_dtype;
    d->n_params = n;
    d->n_buffers = opt->n_buffers;
    if (opt->name != NULL && (d->name = strdup(opt->name)) == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for a name");
    status = cdi_ddp_check_stream(d, opt->stream, err);
    if (status == CDDP_OK && unit == NULL)
        status = prepare_whole(d, params, opt, err);
    if (status != CDDP_OK)
        return status;
    if (!copy_params(d, params, n))
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu parameters", n);
    status = cdi_user_grads_init(d, err);
    if (status == CDDP_OK)
        status = cdi_plan_create(d, opt, unit, err);
    if (status == CDDP_OK)
        status = cdi_stats_create(d, err);
    if (status == CDDP_OK)
        status = cdi_metrics_create(d, err);
    if (status == CDDP_OK)
        status = cdi_in_place_init(d, err);
    if (status == CDDP_OK)
        status = cdi_in_place_reserve(d, err);
    if (status == CDDP_OK && unit == NULL) /* it looks at whole parameters and gradients */
        status = cdi_debug_init(d, err);
    if (status == CDDP_OK)
        status = cdi_nan_init(d, err);
    if (status == CDDP_OK && d->nan != NULL && unit != NULL)
        status = cdi_fail(err, CDDP_E_UNSUPPORTED, "CDDP_NAN_CHECK needs whole gradients, and these are divided");
    if (status == CDDP_OK)
        status = cdi_replicas_init(d, err);
    if (status == CDDP_OK)
        status = cdi_unused_init(d, err);
    if (status == CDDP_OK)
        status = cdi_norm_init(d, err);
    if (status == CDDP_OK)
        status = unit != NULL ? make_shares(d, err) : cdi_replicate_init(d, opt->buffers, err);
    return status == CDDP_OK ? cdi_uneven_init(d, err) : status;
}

/* Frees everything but what the ranks exchange between two steps. */
static void strip_ddp(cddp_ddp *d)
{
    cdi_debug_release(d);
    cdi_stats_release(d);
    cdi_nan_release(d);
    cdi_replicas_release(d);
    cdi_unused_release(d);
    cdi_uneven_release(d);
    cdi_replicate_release(d);
    cdi_overlap_release(&d->tied);
    cdi_user_grads_release(d);
    cdi_in_place_release(d);
    cdi_norm_release(d);
    if (d->comm_region != NULL)
        d->ops->region_destroy(d->b, d->comm_region);
    if (d->region != NULL)
        d->ops->region_destroy(d->b, d->region);
    if (d->shares.params != NULL)
        d->ops->release(d->b, d->shares.params);
    if (d->optim_memory != NULL)
        d->ops->release(d->b, d->optim_memory);
    cdi_bucket_plan_release(&d->plan);
    free(d->flight);
    free(d->hook_params);
    free(d->rows);
    cdi_powersgd_destroy(d->powersgd);
    free(d->params);
    free(d->names);
    free(d->name);
}

static void free_rest(void *ddp)
{
    cddp_ddp *d = ddp;

    cdi_nan_free(d);
    free(d->order);
    free(d->trial);
    (void)pthread_mutex_destroy(&d->lock);
    free(d);
}

static void free_all(void *ddp)
{
    strip_ddp(ddp);
    free_rest(ddp);
}

static void free_ddp(cddp_ddp *d)
{
    if (d == NULL)
        return;
    cdi_metrics_stop(d);
    free_all(d);
}

static cddp_status ddp_create(cddp_ddp **out, cddp_comm *comm, const cddp_param *params, size_t n, const size_t *unit,
                              const cddp_ddp_options *opt, struct cdi_error *err)
{
    struct cdi_ddp_input given;
    struct cdi_verify_input in;
    struct cdi_error local;
    cddp_ddp *d = NULL;
    bool own_everywhere = false, same_places = false;
    /* A rank that fails alone still takes part in the comparison: the others must not wait for it. */
    cddp_status alone = cdi_ddp_read_input(&given, params, n, opt, &local);
    cddp_status status;

    if (alone == CDDP_OK && out == NULL)
        alone = cdi_fail(&local, CDDP_E_INVALID, "cddp_ddp_create: out and comm must not be NULL");
    if (alone == CDDP_OK)
        alone = ddp_prepare(&d, comm, given.params, n, unit, &given.opt, &local);
    in = (struct cdi_verify_input){
        .params = given.params,
        .n_params = n,
        .buffers = given.buffers,
        .n_buffers = given.opt.n_buffers,
        .bucket_bytes = given.opt.bucket_bytes,
        .first_bucket_bytes = given.opt.first_bucket_bytes,
        .last_bucket_bytes = given.opt.last_bucket_bytes,
        .flags = given.opt.flags,
        .comm_dtype = given.opt.comm_dtype,
    };
    in.tied = alone == CDDP_OK ? d->tied.first : NULL;
    in.all_own = alone == CDDP_OK && cdi_user_grads_is_all(d);
    in.own_everywhere = &own_everywhere;
    in.places = alone == CDDP_OK ? d->in_place.hash : 0;
    in.same_places = &same_places;
    in.nan_check = alone == CDDP_OK ? (uint64_t)cdi_nan_mode(d) : 0;
    in.check_replicas = alone == CDDP_OK ? cdi_replicas_period(d) : 0;
    status = cdi_verify(comm, &in, alone == CDDP_OK ? NULL : &local, err);

    if (alone != CDDP_OK)
        status = alone;
    if (status == CDDP_OK) {
        d->number = cdi_comm_number_model(comm);
        d->own.everywhere = own_everywhere;
    }
    if (status == CDDP_OK && same_places)
        cdi_in_place_choose(d);
    if (status == CDDP_OK && unit == NULL && (given.opt.flags & CDDP_DDP_NO_BROADCAST) == 0)
        status = cdi_replicate(d, d->slices, n + given.opt.n_buffers, 0, true, err);
    if (status == CDDP_OK && unit == NULL)
        status = d->ops->region_create(d->b, cdi_arena_bytes(d), &d->region, err);
    if (status == CDDP_OK)
        status = cdi_compress_init(d, err);
    if (status == CDDP_OK)
        cdi_metrics_start(d);
    if (status != CDDP_OK && given.opt.name != NULL)
        (void)cdi_error_wrap(err, "model '%.64s'", given.opt.name);
    cdi_ddp_release_input(&given);
    if (status != CDDP_OK) {
        free_ddp(d);
        return status;
    }
    cdi_stats_planned(d);
    cdi_comm_set_step(comm, d, 0);
    *out = d;
    return CDDP_OK;
}

cddp_status cdi_ddp_create(cddp_ddp **out, cddp_comm *comm, const cddp_param *params, size_t n, const size_t *unit,
                           const cddp_ddp_options *opt, struct cdi_error *err)
{
    cddp_status status = ddp_create(out, comm, params, n, unit, opt, err);

    if (status == CDDP_OK)
        cdi_comm_hold(comm);
    return status;
}

cddp_status cddp_ddp_create(cddp_ddp **out, cddp_comm *comm, const cddp_param *params, size_t n_params,
                            const cddp_ddp_options *opt)
{
    CDI_DEFAULT_FLOAT_STATE;
    enum cdi_api_call before = cdi_api_enter(CDI_API_DDP_CREATE);
    struct cdi_error err;
    cddp_status status;

    status = cdi_comm_own("cddp_ddp_create", comm, &err);
    if (status == CDDP_OK && comm == NULL)
        status = cdi_fail(&err, CDDP_E_INVALID, "cddp_ddp_create: out and comm must not be NULL");
    else if (status == CDDP_OK)
        status = cdi_ddp_create(out, comm, params, n_params, NULL, opt, &err);
    (void)cdi_api_enter(before);
    return status == CDDP_OK ? status : cdi_last_error_set(&err);
}

void cddp_ddp_destroy(cddp_ddp *ddp)
{
    CDI_DEFAULT_FLOAT_STATE;
    bool in_flight, in_step, broken, waits;
    struct cdi_error err;
    cddp_comm *comm;
    uint64_t last;

    if (ddp == NULL || cdi_comm_is_others("cddp_ddp_destroy", ddp->comm))
        return;
    comm = ddp->comm;
    cdi_stats_settle(ddp);
    cdi_comm_end_steps(comm, ddp);
    cdi_metrics_stop(ddp);
    (void)pthread_mutex_lock(&ddp->lock);
    in_flight = !cdi_comm_is_over(comm) && ddp->joined < ddp->enqueued;
    broken = in_flight && ddp->ops->health(ddp->b, &err) != CDDP_OK;
    /* Operations in flight may access the caller's own memory, which the caller may free after this. */
    waits = ddp->ops->on_device || ddp->in_place.any;
    last = ddp->enqueued - (!ddp->ops->on_device && ddp->enqueued == ddp->spare_ticket && !broken);
    if (in_flight && (broken || waits) && ddp->joined < last)
        (void)cdi_ddp_join_ticket(ddp, last);
    in_flight = in_flight && !broken && (!waits || last < ddp->enqueued);
    in_step = ddp->begun;
    cdi_nvtx_end(ddp->nvtx_range);
    (void)pthread_mutex_unlock(&ddp->lock);
    if (ddp->held_by != NULL)
        *ddp->held_by = NULL; /* so that the optimizer can report it, instead of writing to freed memory */
    if (!in_flight) {
        free_all(ddp);
    } else {
        /* Operations in flight need the peers, for whom this rank does not wait: their memory stays. */
        ddp->grave = (struct cdi_grave){.free_it = in_step ? free_all : free_rest, .it = ddp};
        if (!in_step)
            strip_ddp(ddp);
        cdi_comm_bury(comm, &ddp->grave);
    }
    cdi_comm_let_go(comm);
}
