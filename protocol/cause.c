/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/cause.h"

#include <signal.h>

static bool is_of_order(const struct cdi_cause *c)
{
    return c->ordered != 0 && ((c->kind == CDI_END_SIGNAL && c->code == c->ordered) ||
                               (c->kind == CDI_END_EXIT && c->code == 128 + c->ordered));
}

/*
 * Also of a process that a signal has killed: C++ ends with abort() after an error that nobody catches. SIGKILL comes
 * from outside: the process may have met its last error, and gone on, long before.
 */
static bool follows(const struct cdi_cause *c)
{
    if (c->kind != CDI_END_EXIT && (c->kind != CDI_END_SIGNAL || c->code == SIGKILL))
        return false;
    if (c->blamed >= 0)
        return c->blamed != c->rank;
    return c->error == CDDP_E_PEER || c->error == CDDP_E_ABORTED || c->error == CDDP_E_REMOTE ||
           c->error == CDDP_E_CLOSED;
}

enum cdi_cause_class cdi_cause_class_of(const struct cdi_cause *c)
{
    if (c->kind == CDI_END_NONE)
        return CDI_CAUSE_NONE;
    if (is_of_order(c))
        return CDI_CAUSE_ORDERED;
    return follows(c) ? CDI_CAUSE_FOLLOWS : CDI_CAUSE_OWN;
}

struct cdi_cause cdi_cause_of(const struct cdi_failure *f, int64_t at_ms)
{
    return (struct cdi_cause){.kind = f->kind,
                              .code = f->code,
                              .rank = f->rank,
                              .error = f->error,
                              .blamed = (int32_t)((f->misses > 0 ? f->misses : f->blames) - 1),
                              .at_ms = f->time_ms > 0 ? at_ms : 0};
}

bool cdi_cause_may_follow(enum cdi_end_kind kind, int32_t code)
{
    return kind == CDI_END_EXIT || (kind == CDI_END_SIGNAL && !cdi_signal_is_cause(code));
}

static int64_t time_of(const struct cdi_cause *c)
{
    const bool sudden =
        c->kind == CDI_END_NODE || (c->kind == CDI_END_SIGNAL && cdi_signal_is_cause(c->code) && !c->recorded);

    return c->at_ms <= 0 ? INT64_MAX : c->at_ms - (sudden ? CDI_CAUSE_SUDDEN_MS : 0);
}

bool cdi_cause_precedes(const struct cdi_cause *a, const struct cdi_cause *b)
{
    const enum cdi_cause_class of_a = cdi_cause_class_of(a), of_b = cdi_cause_class_of(b);

    if (of_a != of_b)
        return of_a < of_b;
    if (time_of(a) != time_of(b))
        return time_of(a) < time_of(b);
    return (uint32_t)a->rank < (uint32_t)b->rank;
}
