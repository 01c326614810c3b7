/* SPDX-License-Identifier: Apache-2.0 */
/* cddp_ddp_set_frozen: parameters that are not trained for a while. unused.c takes their gradients out of each step. */
#include "common/crc64.h"
#include "common/float_state.h"
#include "worker/backend/who.h"
#include "worker/comm/agree.h"
#include "worker/reducer/plan.h"
#include "worker/reducer/state/captured.h"

#include <stdlib.h>
#include <string.h>

/* Checks what this rank can check alone, with the lock held, and makes the new list in `frozen`. */
static cddp_status frozen_prepare(cddp_ddp *d, const size_t *params, size_t n, bool freeze, uint8_t *frozen,
                                  struct cdi_error *err)
{
    if (frozen == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for a list of %zu parameters", d->n_params);
    if (d->begun)
        return cdi_fail(err, CDDP_E_STATE, "cddp_ddp_set_frozen was called in the middle of step %llu",
                        (unsigned long long)d->step);
    if (d->unused.missing != NULL)
        return cdi_fail(
            err, CDDP_E_UNSUPPORTED,
            "cddp_ddp_set_frozen: with CDDP_DDP_FIND_UNUSED a gradient that no rank reports keeps its value "
            "anyway; with CDDP_DDP_STATIC_GRAPH all steps are like the first");
    if (d->hook.begin != NULL || d->powersgd != NULL)
        return cdi_fail(err, CDDP_E_UNSUPPORTED, "cddp_ddp_set_frozen: a hook, and PowerSGD, need every bucket");
    if (params == NULL && n > 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_ddp_set_frozen: n is %zu, but params is NULL", n);
    if (d->frozen != NULL)
        memcpy(frozen, d->frozen, d->n_params);
    for (size_t k = 0; k < n; k++) {
        if (params[k] >= d->n_params)
            return cdi_fail(err, CDDP_E_INVALID, "there is no parameter %zu, only 0 to %zu", params[k],
                            d->n_params - 1);
        frozen[params[k]] = freeze;
    }
    for (size_t i = 0; d->tied.first != NULL && i < d->n_params; i++) {
        size_t first = d->tied.first[i];

        if (frozen[i] != frozen[first])
            return cdi_fail(err, CDDP_E_INVALID,
                            "cddp_ddp_set_frozen: parameters %zu '%.200s' and %zu '%.200s' are tied (the same data), "
                            "and one of them would be frozen: freeze both or neither, in one call",
                            first, d->params[first].name, i, d->params[i].name);
    }
    return CDDP_OK;
}

/* Compares the lists, also if this rank has failed alone. Without the lock. */
static cddp_status frozen_agree(cddp_ddp *d, const struct cdi_error *alone, const uint8_t *frozen,
                                struct cdi_error *err)
{
    const struct cdi_world *world = cdi_comm_world(d->comm);
    const uint64_t mine[] = {d->step, alone == NULL ? cdi_crc64(0, frozen, d->n_params) : 0}, *all;
    void *cards;
    cddp_status st = cdi_comm_agree(d->comm, "freeze parameters", mine, sizeof mine, &cards, alone, err);

    all = cards;
    for (int r = 1; r < world->size && st == CDDP_OK; r++)
        if (memcmp(&all[2 * r], all, sizeof mine) != 0)
            st = cdi_fail_by(err, cdi_rank_of_job(world, r), CDDP_E_MISMATCH,
                             "cddp_ddp_set_frozen: %s would have other frozen parameters than rank 0, or is in "
                             "another step",
                             cdi_who(world->ranks, r).text);
    free(cards);
    return st;
}

static cddp_status set_frozen(cddp_ddp *d, const size_t *params, size_t n, bool freeze, struct cdi_error *err)
{
    uint8_t *frozen = calloc(d->n_params, 1);
    struct cdi_error alone;
    cddp_status mine, st;

    (void)pthread_mutex_lock(&d->lock);
    st = d->sticky.status;
    if (st != CDDP_OK)
        *err = d->sticky;
    else
        st = cdi_captured_refuse(d, "cddp_ddp_set_frozen", err);
    mine = st == CDDP_OK ? frozen_prepare(d, params, n, freeze, frozen, &alone) : st;
    (void)pthread_mutex_unlock(&d->lock);
    if (st == CDDP_OK)
        st = frozen_agree(d, mine == CDDP_OK ? NULL : &alone, frozen, err);
    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&d->lock);
        free(d->frozen);
        d->frozen = frozen;
        d->n_frozen = 0;
        for (size_t i = 0; i < d->n_params; i++)
            d->n_frozen += frozen[i];
        d->idle_due = true;
        d->ended = false; /* with the new list, cddp_ddp_was_used can no longer report on the step that ended */
        (void)pthread_mutex_unlock(&d->lock);
        return CDDP_OK;
    }
    free(frozen);
    return st;
}

cddp_status cddp_ddp_set_frozen(cddp_ddp *ddp, const size_t *params, size_t n, int frozen)
{
    CDI_DEFAULT_FLOAT_STATE;
    enum cdi_api_call before = cdi_api_enter(CDI_API_SET_FROZEN);
    struct cdi_error err;
    cddp_status st = cdi_ddp_check("cddp_ddp_set_frozen", ddp, &err);

    if (st == CDDP_OK)
        st = set_frozen(ddp, params, n, frozen != 0, &err);
    (void)cdi_api_enter(before);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
