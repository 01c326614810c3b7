/* SPDX-License-Identifier: Apache-2.0 */
/* The primitives of the reducer that all of its parts use: errors, tickets and names. */
#include "worker/reducer/state/state.h"

#include "common/clock.h"
#include "common/crc64.h"
#include "worker/backend/who.h"

#include <limits.h>
#include <stdio.h>

cddp_status cdi_ddp_check(const char *function, const cddp_ddp *ddp, struct cdi_error *err)
{
    if (ddp == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "%s: ddp must not be NULL", function);
    return cdi_comm_own(function, ddp->comm, err);
}

/* Other ranks of comm would wait for this one; now they hear why. */
static void end_comm(cddp_comm *comm, const struct cdi_error *err)
{
    const struct cdi_world *w = cdi_comm_world(comm);
    struct cdi_error why;

    if (cdi_comm_is_over(comm))
        return;
    (void)cdi_fail_by(&why, err->blamed - 1, CDDP_E_ABORTED, "%s: %.800s", cdi_who(w->ranks, w->rank).text, err->msg);
    cdi_comm_ops(comm)->abort(cdi_comm_backend(comm), &why);
}

cddp_status cdi_ddp_set_error(cddp_ddp *d, const struct cdi_error *err)
{
    if (d->sticky.status != CDDP_OK)
        return d->sticky.status;
    d->sticky = *err;
    if (d->name != NULL)
        (void)cdi_error_wrap(&d->sticky, "model '%.64s'", d->name);
    if (d->across.comm != NULL)
        end_comm(d->across.comm, &d->sticky);
    return d->sticky.status;
}

static void end_if_ended(cddp_comm *comm, const cddp_comm *other)
{
    struct cdi_error why;

    if (!cdi_comm_is_over(other) && cdi_comm_ops(other)->health(cdi_comm_backend(other), &why) != CDDP_OK)
        end_comm(comm, &why);
}

void cdi_ddp_end_both(cddp_comm *a, cddp_comm *b)
{
    end_if_ended(a, b);
    end_if_ended(b, a);
}

cddp_status cdi_ddp_fail_misuse(cddp_ddp *d, const struct cdi_error *err)
{
    const struct cdi_world *w = cdi_comm_world(d->comm);
    struct cdi_error why;

    (void)cdi_fail_by(&why, err->blamed - 1, CDDP_E_ABORTED, "%s: %s%.64s%s%.800s", cdi_who(w->ranks, w->rank).text,
                      d->name != NULL ? "model '" : "", d->name != NULL ? d->name : "", d->name != NULL ? "': " : "",
                      err->msg);
    (void)cdi_ddp_set_error(d, err);
    d->ops->abort(d->b, &why);
    return d->sticky.status;
}

struct cdi_origin cdi_ddp_origin(const cddp_ddp *d, const cddp_comm *comm)
{
    return (struct cdi_origin){.model = comm == d->comm ? d->number : d->across.number, .steps = d->steps};
}

cddp_status cdi_ddp_begin(cddp_ddp *d, const struct cdi_coll *op, uint64_t *ticket, struct cdi_error *err)
{
    struct cdi_coll mine = *op;

    mine.of = cdi_ddp_origin(d, d->comm);
    return d->ops->enqueue(d->b, &mine, ticket, err);
}

cddp_status cdi_ddp_all_gather(const cddp_ddp *d, cddp_comm *comm, const void *in, void *out, size_t count,
                               cddp_dtype dtype, struct cdi_error *err)
{
    struct cdi_origin before = cdi_api_set_origin(cdi_ddp_origin(d, comm));
    cddp_status st = cdi_comm_all_gather(comm, in, out, count, dtype, err);

    (void)cdi_api_set_origin(before);
    return st;
}

cddp_status cdi_ddp_broadcast(const cddp_ddp *d, void *at, size_t bytes, int root, struct cdi_error *err)
{
    struct cdi_origin before = cdi_api_set_origin(cdi_ddp_origin(d, d->comm));
    cddp_status st = cdi_comm_broadcast(d->comm, at, bytes, CDDP_UINT8, root, err);

    (void)cdi_api_set_origin(before);
    return st;
}

void cdi_ddp_note_step(cddp_ddp *d, const void *what, size_t bytes)
{
    d->steps = (uint32_t)cdi_crc64(d->steps, what, bytes);
}

cddp_status cdi_ddp_enqueue(cddp_ddp *d, const struct cdi_coll *op, uint64_t *ticket)
{
    struct cdi_error err;

    if (cdi_ddp_begin(d, op, ticket, &err) != CDDP_OK)
        return cdi_ddp_set_error(d, &err);
    if (d->captured.id == 0) /* a captured operation has no ticket */
        d->enqueued = *ticket;
    return CDDP_OK;
}

/* Notes that the program has waited for `ticket` from begin_ns until now. */
static void note_wait(cddp_ddp *d, uint64_t ticket, int64_t begin_ns)
{
    const struct cdi_ddp_flight *last = d->plan.next > 0 ? &d->flight[d->plan.next - 1] : NULL;
    struct cdi_ddp_waits *w = &d->waits;

    if (w->n < CDI_DDP_WAITS)
        w->of[w->n++].begin_ns = begin_ns;
    /* Mostly this thread has run the last bucket itself, and has read the clock at its end. */
    if (last != NULL && last->ticket == ticket && last->times.by_joiner && last->times.done_ns > begin_ns)
        w->of[w->n - 1].end_ns = last->times.done_ns;
    else
        w->of[w->n - 1].end_ns = cdi_now_ticks_ns();
}

cddp_status cdi_ddp_join_ticket(cddp_ddp *d, uint64_t ticket)
{
    int64_t begin_ns = 0;
    struct cdi_error err;
    cddp_status status;

    (void)pthread_mutex_unlock(&d->lock);
    if (d->stats != NULL && !d->ops->on_device)
        begin_ns = cdi_now_ticks_ns();
    status = d->ops->join(d->b, ticket, &err);
    (void)pthread_mutex_lock(&d->lock);
    if (d->stats != NULL && !d->ops->on_device)
        note_wait(d, ticket, begin_ns);
    if (d->joined < ticket)
        d->joined = ticket;
    return status == CDDP_OK ? status : cdi_ddp_set_error(d, &err);
}

/* Notes that the compute stream waits between two stamps. */
static void note_stream_wait(cddp_ddp *d, uint64_t ticket, uint64_t begin, uint64_t end)
{
    struct cdi_ddp_waits *w = &d->waits;

    if (w->n < CDI_DDP_WAITS)
        w->of[w->n++].begin = begin;
    w->of[w->n - 1].end = end;
    w->ticket = ticket > w->ticket ? ticket : w->ticket;
}

bool cdi_ddp_times_step(const cddp_ddp *d, uint64_t step)
{
    /* A part's communicator has no page of the agent, so its reducer has no stats either. */
    return d->stats != NULL && d->ops->stamp != NULL && cdi_flight_times_step(cdi_comm_world(d->comm)->flight, step);
}

cddp_status cdi_ddp_follow(cddp_ddp *d, void *stream, struct cdi_error *err)
{
    return d->ops->wait_stream(d->b, stream, cdi_ddp_times_step(d, d->step), err);
}

cddp_status cdi_ddp_stream_wait(cddp_ddp *d, uint64_t ticket, struct cdi_error *err)
{
    bool begins = cdi_ddp_times_step(d, d->step), ends = begins || cdi_ddp_times_step(d, d->step + 1);
    /* Measure only the first wait for a ticket: each parameter of a bucket waits for the same one. */
    bool timed =
        ends && d->captured.id == 0 && (ticket == 0 || ticket > d->waits.ticket) && d->ops->hold(d->b, NULL) == CDDP_OK;
    uint64_t begin = timed && begins ? d->ops->stamp(d->b, d->stream) : 0;
    cddp_status status = d->ops->stream_wait(d->b, ticket, d->stream, err);

    if (timed && status == CDDP_OK)
        note_stream_wait(d, ticket, begin, d->ops->stamp(d->b, d->stream));
    if (timed)
        d->ops->let_go(d->b);
    return status;
}

void cdi_ddp_name_bucket(const void *ddp, int b, char *buf, size_t cap)
{
    const cddp_ddp *d = ddp;
    size_t n = 0, first = 0, bucket = (size_t)b;

    for (size_t i = 0; i < d->n_params; i++)
        if (bucket >= d->plan.grads[i].bucket && bucket < d->plan.grads[i].bucket + d->plan.grads[i].n_parts &&
            n++ == 0)
            first = i;
    buf[0] = '\0';
    if (n > 1)
        (void)snprintf(buf, cap, "'%.48s' and %zu more", d->params[first].name, n - 1);
    else if (n == 1)
        (void)snprintf(buf, cap, "'%.48s'", d->params[first].name);
}

/* Implements cdi_coll.name_bucket, with the unit as bucket number. */
static void name_unit(const void *ddp, int unit, char *buf, size_t cap)
{
    const cddp_ddp *d = ddp;

    buf[0] = '\0';
    for (size_t i = 0, u; i < d->n_params; i++) {
        const char *name = d->shares.unit_of(d->shares.model, i, &u);

        if (u == (size_t)unit) {
            (void)snprintf(buf, cap, "'%.64s'", name);
            return;
        }
    }
}

void cdi_ddp_name_after_unit(const cddp_ddp *d, struct cdi_coll *op, size_t unit)
{
    op->bucket = unit < INT_MAX ? (int)unit : -1;
    /* A device's backend also formats texts after a failure, when the model may be gone. */
    op->name_bucket = d->ops->on_device ? NULL : name_unit;
    op->ddp = d;
}
