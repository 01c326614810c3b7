/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps that become part of a CUDA graph: which calls belong to one, and which cannot be captured. A captured step
 * launches the plan's buckets in the plan's order, like every other step. But it has neither tickets nor a number, and
 * the host decides nothing at its end, since a replay makes no calls here. So everything that the host decides anew in
 * each step is rejected; so are the first steps, which learn the order of gradients.
 *
 * An error in a capture belongs to the capture: the reducer forgets its step as soon as the capture is over.
 */
#include "worker/reducer/state/captured.h"

#include <string.h>

#define NEVER (CDDP_DDP_FIND_UNUSED | CDDP_DDP_SKIP_UNUSED | CDDP_DDP_STATIC_GRAPH | CDDP_DDP_JOIN | CDDP_DDP_WEIGHTED)

static cddp_status refuse(struct cdi_error *err, const char *what)
{
    return cdi_fail(err, CDDP_E_UNSUPPORTED, "the stream captures a graph, and %s", what);
}

/* Checks, with the lock held, that a captured step can begin. */
static cddp_status may_begin(const cddp_ddp *d, struct cdi_error *err)
{
    if (d->hook.begin != NULL)
        return refuse(err, "a communication hook cannot be captured");
    if (d->powersgd != NULL)
        return refuse(err, "PowerSGD cannot be captured");
    if ((d->flags & NEVER) != 0)
        return refuse(err,
                      "with CDDP_DDP_FIND_UNUSED, _SKIP_UNUSED, _STATIC_GRAPH, _JOIN or _WEIGHTED the ranks exchange "
                      "in each step which gradients they used, or their weights, which cannot be captured");
    if (d->n_frozen > 0)
        return refuse(err, "a step with frozen parameters (cddp_ddp_set_frozen) cannot be captured");
    if (d->begun)
        return cdi_fail(err, CDDP_E_STATE, "the capture began in the middle of step %llu: begin it between two steps",
                        (unsigned long long)d->step);
    if (d->order != NULL || d->trial != NULL)
        return cdi_fail(err, CDDP_E_STATE,
                        "the stream captures a graph, but after %llu steps the buckets are not final yet: take %s "
                        "before the capture",
                        (unsigned long long)d->step,
                        d->trial != NULL ? "steps until cddp_ddp_bucket_cap returns a size" : "two steps");
    return CDDP_OK;
}

/* Resets the reducer as if the captured step had not begun. */
void cdi_captured_forget(cddp_ddp *d)
{
    cdi_bucket_reset(&d->plan);
    for (size_t b = 0; b < d->plan.n; b++) {
        d->flight[b].unpacked = d->flight[b].skipped = false;
        d->flight[b].n_streams = 0;
    }
    d->n_copied = 0;
    d->begun = d->share_complete = d->tied.folded = false;
    d->captured = (struct cdi_ddp_captured){0};
    d->captured_steps++;
}

cddp_status cdi_captured_enter(cddp_ddp *d, void *stream, bool always, bool *captured, struct cdi_error *err)
{
    struct cdi_ddp_captured *c = &d->captured;
    cddp_status st;
    uint64_t id;

    *captured = false;
    if (d->ops->capture_of == NULL || d->sticky.status != CDDP_OK || (d->begun && c->id == 0 && !always))
        return CDDP_OK;
    st = d->ops->capture_of(d->b, stream, &id, err);
    if (st == CDDP_OK && c->id != 0 && id != c->id) {
        if (d->ops->capture_lives(d->b))
            return cdi_fail(err, CDDP_E_STATE,
                            "a step of this reducer is being captured, and this stream is not part of the capture: let "
                            "it wait for an event of the capture first, or end the step with cddp_ddp_wait");
        cdi_captured_forget(d);
    }
    if (st != CDDP_OK || id == 0)
        return st;
    st = c->id == 0 ? may_begin(d, err) : c->why.status;
    if (st != CDDP_OK) {
        if (c->id != 0)
            *err = c->why;
        return st;
    }
    st = d->ops->capture_enter(d->b, stream, id, err);
    if (st != CDDP_OK)
        return st;
    c->id = id;
    *captured = true;
    return CDDP_OK;
}

cddp_status cdi_captured_leave(cddp_ddp *d, void *stream, cddp_status st, struct cdi_error *err)
{
    /* Even after a call that did nothing, perhaps the step's first, the capture must be able to end. */
    if (st != CDDP_OK && d->sticky.status == CDDP_OK)
        (void)d->ops->stream_wait(d->b, 0, stream, NULL);
    d->ops->capture_leave(d->b);
    if (!d->begun)
        d->captured.id = 0;
    if (d->sticky.status == CDDP_OK)
        return st;
    *err = d->sticky;
    if (d->ops->health(d->b, NULL) == CDDP_OK) {
        d->sticky = (struct cdi_error){.status = CDDP_OK};
        d->captured.why = *err;
    }
    return err->status;
}

cddp_status cdi_captured_refuse(cddp_ddp *d, const char *function, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    uint64_t id = 0;

    if (d->ops->capture_of != NULL && d->sticky.status == CDDP_OK)
        st = d->ops->capture_of(d->b, d->stream, &id, err);
    if (st == CDDP_OK && id != 0)
        st = cdi_fail(err, CDDP_E_UNSUPPORTED, "the stream captures a graph, and %s cannot be captured", function);
    return st;
}
