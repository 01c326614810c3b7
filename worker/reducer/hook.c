/* SPDX-License-Identifier: Apache-2.0 */
/* Communication hooks: user functions that replace a bucket's all-reduce. */
#include "worker/reducer/hook.h"

#include "common/cleanup.h"
#include "common/float_state.h"
#include "common/status.h"
#include "worker/backend/who.h"
#include "worker/base/last_error.h"
#include "worker/base/sized.h"
#include "worker/comm/agree.h"
#include "worker/reducer/grads/in_place.h"
#include "worker/reducer/plan.h"
#include "worker/reducer/powersgd.h"

#include <stdlib.h>

static cddp_bucket hook_describe_bucket(cddp_ddp *d, size_t bucket)
{
    const struct cdi_bucket *b = &d->plan.b[bucket];
    cddp_bucket seen = {.size = sizeof seen,
                        .index = bucket,
                        .is_last = bucket + 1 == d->plan.n,
                        .dtype = b->dtype,
                        .data = (char *)d->region->base + b->offset,
                        .count = b->bytes / cddp_dtype_size(b->dtype),
                        .params = d->hook_params};

    for (size_t k = b->n_grads; k-- > 0;) {
        size_t i = cdi_bucket_grad(&d->plan, bucket, k);
        const struct cdi_grad *g = &d->plan.grads[i];

        if (i >= d->n_params) /* the count of ranks that train (uneven.c) */
            continue;
        d->hook_params[seen.n_params++] = i;
        seen.offset = b->offset > g->offset ? (b->offset - g->offset) / cddp_dtype_size(b->dtype) : 0;
    }
    return seen;
}

/*
 * A user's function runs with the lock held. Meanwhile this is the reducer's sticky error, so its functions return it
 * to the only thread that can enter them. The mutex is recursive: otherwise that thread would deadlock.
 */
static const struct cdi_error in_hook = {
    .status = CDDP_E_STATE,
    .msg = "a communication hook has called a function of the reducer that runs it: it may call collectives only"};

void cdi_hook_init_lock(cddp_ddp *d)
{
    pthread_mutexattr_t attr;

    (void)pthread_mutexattr_init(&attr); /* on Linux none of these can fail */
    (void)pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    (void)pthread_mutex_init(&d->lock, &attr);
    (void)pthread_mutexattr_destroy(&attr);
}

/*
 * Fails the job: peers would wait for a bucket that is never sent. *why: of the call that failed in the hook, if its
 * status is st. A failure of the communicator comes first, also if the hook returns another status.
 */
static cddp_status hook_failed(cddp_ddp *d, size_t bucket, const char *which, cddp_status st, struct cdi_error *why)
{
    struct cdi_error err;

    if (d->ops->health(d->b, &err) != CDDP_OK)
        *why = err;
    else if (why->status != st || st >= 0)
        (void)cdi_fail(why, st < 0 ? st : CDDP_E_STATE, "%s", cdi_status_text(st));
    (void)cdi_error_wrap(why, "the communication hook's %s failed for bucket %zu", which, bucket);
    return cdi_ddp_fail_misuse(d, why);
}

/* *why: of this thread's last call that failed in the hook; its status is CDDP_OK if there is none. */
static cddp_status hook_run(cddp_ddp *d, const cddp_bucket *seen, uint64_t *ticket, struct cdi_error *why)
{
    CDI_CALLERS_FLOAT_STATE;
    struct cdi_error *last = cdi_last_error_mine();
    cddp_status before = last->status, st;

    last->status = CDDP_OK;
    st = ticket != NULL ? d->hook.begin(d->hook.arg, d->comm, seen, ticket) : d->hook.end(d->hook.arg, d->comm, seen);
    if (st != CDDP_OK)
        *why = *last;
    if (last->status == CDDP_OK)
        last->status = before;
    return st;
}

/* Calls the hook's begin, or its end if ticket is NULL. On a device the hook gets the stream for its work. */
static cddp_status hook_call(cddp_ddp *d, size_t bucket, uint64_t *ticket)
{
    cddp_bucket seen = hook_describe_bucket(d, bucket);
    struct cdi_error err, why;
    cddp_status st;

    if (d->ops->on_device && d->ops->stream_acquire(d->b, &seen.stream, &err) != CDDP_OK)
        return cdi_ddp_set_error(d, &err);
    d->sticky = in_hook;
    st = hook_run(d, &seen, ticket, &why);
    d->sticky.status = CDDP_OK;
    if (d->ops->on_device)
        d->ops->stream_release(d->b);
    return st == CDDP_OK ? st : hook_failed(d, bucket, ticket != NULL ? "begin" : "end", st, &why);
}

cddp_status cdi_hook_begin(cddp_ddp *d, size_t bucket, uint64_t *ticket)
{
    *ticket = 0;
    return hook_call(d, bucket, ticket);
}

cddp_status cdi_hook_end(cddp_ddp *d, size_t bucket)
{
    if (d->hook.end == NULL || d->flight[bucket].unpacked)
        return CDDP_OK;
    d->flight[bucket].unpacked = true;
    return hook_call(d, bucket, NULL);
}

/* Checks whether the reducer can have a hook, and makes room for one. */
static cddp_status check_hook(cddp_ddp *d, struct cdi_error *err)
{
    if (cdi_plan_check_final(d, "cddp_ddp_set_hook", err) != CDDP_OK)
        return err->status;
    if ((d->flags & CDDP_DDP_SKIP_UNUSED) != 0)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_ddp_set_hook: this reducer skips unused buckets (CDDP_DDP_SKIP_UNUSED), but a hook needs "
                        "every bucket");
    if (d->n_frozen > 0)
        return cdi_fail(
            err, CDDP_E_UNSUPPORTED,
            "cddp_ddp_set_hook: parameters are frozen (cddp_ddp_set_frozen), but a hook needs every bucket");
    if (d->comm_dtype != CDDP_DTYPE_NONE)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_ddp_set_hook: this reducer compresses gradients itself (comm_dtype)");
    if (d->hook_params == NULL)
        d->hook_params = calloc(d->n_params, sizeof *d->hook_params);
    if (d->hook_params == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the list of %zu parameters", d->n_params);
    return CDDP_OK;
}

/* Where gradients are reduced in place: all ranks pass a hook, or none. A collective. */
static cddp_status hook_agree(cddp_ddp *d, bool has, cddp_status alone, struct cdi_error *err)
{
    const struct cdi_world *w = cdi_comm_world(d->comm);
    CDI_AUTOFREE void *cards = NULL;
    uint8_t mine = has;
    const uint8_t *all;
    cddp_status st =
        cdi_comm_agree(d->comm, "set its hook", &mine, sizeof mine, &cards, alone == CDDP_OK ? NULL : err, err);

    all = cards;
    for (int r = 1; r < w->size && st == CDDP_OK; r++)
        if (all[r] != all[0])
            st = cdi_fail_by(err, cdi_rank_of_job(w, r), CDDP_E_MISMATCH,
                             "cddp_ddp_set_hook: %s passes %s, unlike rank 0", cdi_who(w->ranks, r).text,
                             all[r] != 0 ? "a hook" : "NULL");
    return st;
}

/* Sets the hook, with the lock held. alone: this rank's error so far, which is in *err. */
static cddp_status set_hook(cddp_ddp *d, const cddp_hook *hook, cddp_status alone, struct cdi_error *err)
{
    cddp_status st = alone;

    if (d->sticky.status != CDDP_OK) {
        *err = d->sticky;
        return err->status;
    }
    if (st == CDDP_OK && d->begun)
        st = cdi_fail(err, CDDP_E_STATE, "cddp_ddp_set_hook was called in the middle of step %llu",
                      (unsigned long long)d->step);
    if (st == CDDP_OK && hook != NULL)
        st = check_hook(d, err);
    if (d->in_place.any)
        st = hook_agree(d, hook != NULL, st, err);
    if (st == CDDP_OK && hook != NULL)
        st = cdi_in_place_disable(d, "set its hook", st, err);
    if (st != CDDP_OK)
        return st;
    cdi_powersgd_destroy(d->powersgd);
    d->powersgd = NULL;
    d->hook = hook != NULL ? *hook : (cddp_hook){0};
    return CDDP_OK;
}

static cddp_status read_hook(cddp_hook *hook, const cddp_hook *given, struct cdi_error *err)
{
    cddp_status st = cdi_sized_get(hook, sizeof *hook, given, "cddp_hook", err);

    if (st == CDDP_OK && hook->begin == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_hook.begin is NULL: nothing would be communicated");
    return st;
}

cddp_status cddp_ddp_set_hook(cddp_ddp *ddp, const cddp_hook *hook)
{
    CDI_DEFAULT_FLOAT_STATE;
    cddp_hook known;
    struct cdi_error err;
    cddp_status st = cdi_ddp_check("cddp_ddp_set_hook", ddp, &err);

    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&ddp->lock);
        st = set_hook(ddp, hook == NULL ? NULL : &known, hook == NULL ? CDDP_OK : read_hook(&known, hook, &err), &err);
        (void)pthread_mutex_unlock(&ddp->lock);
    }
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
