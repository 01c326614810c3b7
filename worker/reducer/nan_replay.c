/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/nan_replay.h"

#include "common/float_state.h"
#include "worker/reducer/nan_word.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

/* On the device: what this rank has found, what all have, and how many captured steps have run. */
enum { MINE, ALL, COUNT, N_WORDS };

struct cdi_nan_replay {
    uint64_t *there;
    struct cdi_nan_report *report; /* pinned; kernels write it */
    uint64_t told;                 /* the number of the last report that was read */
    bool fatal;                    /* a finding is an error */
};

cddp_status cdi_nan_replay_init(cddp_ddp *d, bool fatal, struct cdi_error *err)
{
    void *words = NULL, *report = NULL;
    cddp_status st;

    d->nan_replay = calloc(1, sizeof *d->nan_replay);
    if (d->nan_replay == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for CDDP_NAN_CHECK");
    d->nan_replay->fatal = fatal;
    st = cdi_backend_zeros(d->ops, d->b, N_WORDS * sizeof(uint64_t), &words, err);
    d->nan_replay->there = words;
    if (st == CDDP_OK)
        st = d->ops->alloc_host(d->b, sizeof *d->nan_replay->report, &report, err);
    d->nan_replay->report = report;
    if (st == CDDP_OK)
        *d->nan_replay->report = (struct cdi_nan_report){0};
    return st;
}

uint64_t *cdi_nan_replay_word(const cddp_ddp *d)
{
    return &d->nan_replay->there[MINE];
}

const uint64_t *cdi_nan_replay_bad(const cddp_ddp *d)
{
    return d->nan_replay != NULL && d->nan_replay->fatal ? &d->nan_replay->there[ALL] : NULL;
}

cddp_status cdi_nan_replay_send(cddp_ddp *d, struct cdi_error *err)
{
    const struct cdi_nan_replay *r = d->nan_replay;
    struct cdi_coll op;
    uint64_t ticket;
    cddp_status st;

    if (r == NULL)
        return CDDP_OK;
    op = (struct cdi_coll){.kind = CDI_ALL_REDUCE,
                           .in = &r->there[MINE],
                           .out = &r->there[ALL],
                           .count = 1,
                           .dtype = CDDP_UINT64,
                           .op = CDDP_MAX,
                           .bucket = -1,
                           .asked = CDI_API_NAN_CHECK,
                           .lazy = true};
    st = d->ops->enqueue(d->b, &op, &ticket, err);
    return st == CDDP_OK ? d->ops->report(d->b, r->there, r->report, err) : st;
}

/* Copies the report. false: there is none that is new, or a kernel is writing it: the next call finds that one. */
static bool read_report(struct cdi_nan_replay *r, struct cdi_nan_report *out)
{
    out->number = atomic_load_explicit((_Atomic uint64_t *)&r->report->number, memory_order_acquire);
    if (out->number == 0 || out->number == r->told)
        return false;
    out->all = atomic_load_explicit((_Atomic uint64_t *)&r->report->all, memory_order_acquire);
    if (atomic_load_explicit((_Atomic uint64_t *)&r->report->number, memory_order_relaxed) != out->number)
        return false;
    r->told = out->number;
    return true;
}

cddp_status cdi_nan_replay_take(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_nan_report report;
    char what[320], text[480];
    int rank;

    if (d->nan_replay == NULL || d->nan_replay->report == NULL || !read_report(d->nan_replay, &report))
        return CDDP_OK;
    rank = cdi_nan_describe_one(d, report.all, what, sizeof what);
    (void)snprintf(text, sizeof text, "captured step, launch %" PRIu64 ": %s", report.number, what);
    if (d->nan_replay->fatal)
        return cdi_fail_by(err, cdi_rank_of_job(cdi_comm_world(d->comm), rank), CDDP_E_NONFINITE,
                           "%s; rank %d brought it", text, rank);
    if (rank == cdi_comm_world(d->comm)->rank)
        cddp_log(d->comm, CDDP_LOG_ALL, CDDP_LOG_WARN, text);
    return CDDP_OK;
}

void cdi_nan_replay_release(cddp_ddp *d)
{
    struct cdi_nan_replay *r = d->nan_replay;
    struct cdi_error err;

    if (r == NULL)
        return;
    if (cdi_nan_replay_take(d, &err) != CDDP_OK)
        cddp_log(d->comm, CDDP_LOG_ALL, CDDP_LOG_WARN, err.msg);
    if (r->there != NULL)
        d->ops->release(d->b, r->there);
    if (r->report != NULL)
        d->ops->release_host(d->b, r->report);
    free(r);
    d->nan_replay = NULL;
}

cddp_status cddp_ddp_replay_status(cddp_ddp *ddp)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = cdi_ddp_check("cddp_ddp_replay_status", ddp, &err);

    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    (void)pthread_mutex_lock(&ddp->lock);
    st = ddp->sticky.status;
    if (st != CDDP_OK)
        err = ddp->sticky;
    else if (ddp->ops->peek != NULL)
        st = ddp->ops->peek(ddp->b, &err);
    else
        st = ddp->ops->health(ddp->b, &err);
    if (st == CDDP_OK)
        st = cdi_nan_replay_take(ddp, &err);
    (void)pthread_mutex_unlock(&ddp->lock);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
