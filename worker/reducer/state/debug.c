/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With CDDP_DEBUG=1: likely mistakes of a training program, which are not errors, since a correct program could do the
 * same. Each is reported once, on stderr, by the rank that detects it. Nothing is communicated, so ranks may differ in
 * the variable.
 */
#include "worker/reducer/state/debug.h"

#include "common/crc64.h"
#include "common/env.h"
#include "common/log.h"
#include "worker/backend/who.h"
#include "worker/math/float16.h"
#include "worker/reducer/state/arena.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define FROZEN_STEPS 10 /* steps after which some parameter should have changed */

enum warning { ALL_ZERO = 1, SAME_EVERYWHERE = 2, FROZEN = 4, WRITTEN_LATE = 8 };

/* Set by any thread. */
struct asked {
    _Atomic bool yes;
};

struct cdi_ddp_debug {
    uint32_t warned;
    uint8_t *seen;       /* by parameter: its gradient of the first step was seen */
    struct asked *asked; /* by parameter: cddp_ddp_grad was called for it */
    uint64_t *crc; /* by parameter: CRC of its gradient in the user's memory when it was ready; 0: not in this step */
    uint8_t *own;  /* laid out like the arena: this rank's gradients of the first step */
    uint64_t params_crc; /* of all parameters at the end of the first step, before the first update */
};

cddp_status cdi_debug_init(cddp_ddp *d, struct cdi_error *err)
{
    int64_t on;
    cddp_status st = cdi_env_int_or("CDDP_DEBUG", 0, 1, 0, &on, err);

    if (st != CDDP_OK || on == 0 || d->ops->on_device)
        return st;
    d->debug = calloc(1, sizeof *d->debug);
    if (d->debug == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for CDDP_DEBUG");
    d->debug->seen = calloc(d->n_params, sizeof *d->debug->seen);
    d->debug->asked = calloc(d->n_params, sizeof *d->debug->asked);
    d->debug->crc = calloc(d->n_params, sizeof *d->debug->crc);
    d->debug->own = calloc(1, d->plan.arena_bytes);
    if (d->debug->seen == NULL || d->debug->asked == NULL || d->debug->crc == NULL || d->debug->own == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for CDDP_DEBUG, which keeps the first step's gradients");
    cdi_log_set_name("libcddp");
    return CDDP_OK;
}

void cdi_debug_release(cddp_ddp *d)
{
    if (d->debug == NULL)
        return;
    free(d->debug->seen);
    free(d->debug->asked);
    free(d->debug->crc);
    free(d->debug->own);
    free(d->debug);
    d->debug = NULL;
}

/* Returns true if this warning was not reported yet, and marks it as reported. */
static bool debug_warns_first(cddp_ddp *d, enum warning what)
{
    bool first = (d->debug->warned & (uint32_t)what) == 0;

    d->debug->warned |= (uint32_t)what;
    return first;
}

static struct cdi_who who(const cddp_ddp *d)
{
    const struct cdi_world *w = cdi_comm_world(d->comm);

    return cdi_who(w->ranks, w->rank);
}

void cdi_debug_asked(cddp_ddp *d, size_t i)
{
    if (d->debug != NULL)
        atomic_store_explicit(&d->debug->asked[i].yes, true, memory_order_relaxed);
}

void cdi_debug_ready(cddp_ddp *d, size_t i)
{
    struct cdi_ddp_debug *g = d->debug;

    if (g == NULL || i >= d->n_params)
        return;
    if (d->params[i].grad != NULL)
        g->crc[i] = cdi_crc64(0, d->params[i].grad, d->plan.grads[i].bytes);
    if (d->step > 0)
        return;
    memcpy(g->own + d->plan.grads[i].offset, cdi_arena_grad(d, i), d->plan.grads[i].bytes);
    g->seen[i] = 1;
}

/* ------------------------------------------------------------------------------------------- a step's end begins -- */

static bool is_zero(const uint8_t *p, size_t n)
{
    size_t i = 0;

    while (i < n && p[i] == 0)
        i++;
    return i == n;
}

/* Returns true if some gradients arrived in the first step. With a static graph their arrival is not observed. */
static bool some_came(const cddp_ddp *d)
{
    for (size_t i = 0; i < d->n_params; i++)
        if (d->debug->seen[i])
            return true;
    return false;
}

/* Returns true if gradients arrived in this first step, and all of them are zero. */
static bool all_zero(const cddp_ddp *d)
{
    for (size_t i = 0; i < d->n_params; i++) {
        if (d->debug->seen[i] && !is_zero(d->debug->own + d->plan.grads[i].offset, d->plan.grads[i].bytes))
            return false;
    }
    return some_came(d);
}

static void look_for_zeros(cddp_ddp *d)
{
    size_t n_unasked = 0, first = 0;

    if (!all_zero(d) || !debug_warns_first(d, ALL_ZERO))
        return;
    for (size_t i = d->n_params; i-- > 0;)
        if (d->params[i].grad == NULL && !cdi_arena_excludes(d, i) &&
            !atomic_load_explicit(&d->debug->asked[i].yes, memory_order_relaxed)) {
            n_unasked++;
            first = i;
        }
    if (n_unasked > 0)
        cdi_log(CDI_LOG_WARN, "DDP-ZERO",
                "%s: the gradients of the first step are all zero, and cddp_ddp_grad() was not called for %zu of "
                "%zu parameters, such as '%.100s': the backward pass must write to the address that it returns",
                who(d).text, n_unasked, d->n_params, d->params[first].name);
    else
        cdi_log(CDI_LOG_WARN, "DDP-ZERO",
                "%s: the gradients of the first step are all zero: does the backward pass write to "
                "cddp_ddp_grad() (or to `grad`), and before cddp_ddp_grad_ready()?",
                who(d).text);
}

/* Warns of a gradient that was written after it was reported ready: the mean overwrites it. */
static void look_for_late_writes(cddp_ddp *d)
{
    for (size_t i = 0; i < d->n_params; i++) {
        if (d->params[i].grad == NULL || !d->plan.grads[i].claimed || d->plan.grads[i].copied_out ||
            d->debug->crc[i] == 0 || d->debug->crc[i] == cdi_crc64(0, d->params[i].grad, d->plan.grads[i].bytes))
            continue;
        if (debug_warns_first(d, WRITTEN_LATE))
            cdi_log(CDI_LOG_WARN, "DDP-LATE",
                    "%s: the gradient of '%.100s' was written between cddp_ddp_grad_ready() and cddp_ddp_wait() "
                    "in step %llu: that write is lost",
                    who(d).text, d->params[i].name, (unsigned long long)d->step);
        return;
    }
}

static void look_for_frozen_parameters(cddp_ddp *d)
{
    uint64_t crc = 0;

    for (size_t i = 0; i < d->n_params; i++)
        crc = cdi_crc64(crc, d->params[i].data, d->params[i].count * cddp_dtype_size(d->params[i].dtype));
    if (d->step == 0)
        d->debug->params_crc = crc;
    else if (crc == d->debug->params_crc && debug_warns_first(d, FROZEN))
        cdi_log(CDI_LOG_WARN, "DDP-FROZEN",
                "%s: no parameter has changed in %d steps: does the optimizer update the memory that was passed "
                "to cddp_ddp_create() as `data`?",
                who(d).text, FROZEN_STEPS);
}

void cdi_debug_complete(cddp_ddp *d)
{
    if (d->debug == NULL || d->shadow)
        return;
    if (d->step == 0)
        look_for_zeros(d);
    look_for_late_writes(d);
    if (d->step == 0 || d->step == FROZEN_STEPS)
        look_for_frozen_parameters(d);
}

/*
 * ------------------------------------------------------------------------------------------------- after reduction --
 */

static double debug_number(const void *p, size_t i, cddp_dtype dtype)
{
    if (dtype == CDDP_FLOAT64)
        return ((const double *)p)[i];
    if (dtype == CDDP_FLOAT16)
        return (double)cdi_float_of_f16(((const uint16_t *)p)[i]);
    if (dtype == CDDP_BFLOAT16)
        return (double)cdi_float_of_bf16(((const uint16_t *)p)[i]);
    return (double)((const float *)p)[i]; /* there are no gradients of integer types */
}

/* Returns true if the mean of parameter i equals this rank's gradient. Then most likely all ranks had the same one. */
static bool mean_is_own(const cddp_ddp *d, size_t i)
{
    const uint8_t *own = d->debug->own + d->plan.grads[i].offset;
    const void *mean = d->params[i].grad != NULL ? d->params[i].grad : cdi_arena_grad(d, i);
    double n = (d->flags & CDDP_DDP_SUM) != 0 ? cdi_comm_world(d->comm)->size : 1;
    bool is_short = cddp_dtype_size(d->params[i].grad_dtype) == 2 || d->comm_dtype != CDDP_DTYPE_NONE;

    for (size_t k = 0; k < d->params[i].count; k++) {
        double mine = debug_number(own, k, d->params[i].grad_dtype) * n,
               got = debug_number(mean, k, d->params[i].grad_dtype);

        if (!(fabs(got - mine) <= fabs(mine) * (is_short ? 1e-2 : 1e-6)))
            return false;
    }
    return true;
}

void cdi_debug_completed(cddp_ddp *d)
{
    bool same = true;

    if (d->debug == NULL)
        return;
    memset(d->debug->crc, 0, d->n_params * sizeof *d->debug->crc);
    if (d->step > 0 || d->shadow)
        return;
    if (cdi_comm_world(d->comm)->size > 1 && !d->sharded && d->powersgd == NULL && d->hook.begin == NULL &&
        (d->flags & CDDP_DDP_JOIN) == 0 && !d->weight.differ && some_came(d) && !all_zero(d)) {
        for (size_t i = 0; i < d->n_params && same; i++)
            same = !d->debug->seen[i] || mean_is_own(d, i);
        if (same && debug_warns_first(d, SAME_EVERYWHERE))
            cdi_log(CDI_LOG_WARN, "DDP-SAME",
                    "%s: the mean of all %d ranks' gradients is this rank's own in the first step, as if all were "
                    "the same: does each rank read its own samples (cddp_sampler_create, or a seed that depends on the "
                    "rank)?",
                    who(d).text, cdi_comm_world(d->comm)->size);
    }
    free(d->debug->own); /* not needed in later steps */
    d->debug->own = NULL;
}
