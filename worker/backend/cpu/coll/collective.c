/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/coll/collective.h"

#include "worker/backend/cpu/coll/exchange.h"
#include "worker/backend/cpu/coll/reduction.h"
#include "worker/backend/cpu/coll/region.h"
#include "worker/backend/cpu/coll/rounds.h"

#include <string.h>

static cddp_status run_alone(struct cdi_cpu_comm *t, const struct cdi_work *w)
{
    const struct cdi_coll *op = &w->op;

    if (w->is_region)
        return cdi_cpu_region_create_alone(t, w);
    if (op->kind != CDI_BARRIER && op->in != op->out) {
        size_t count = op->kind == CDI_ALL_GATHERV ? op->counts[0] : op->count;

        if (count > 0)
            memcpy(op->out, op->in, count * cddp_dtype_size(op->dtype));
    }
    return CDDP_OK;
}

/* Within the node a barrier is a step; between nodes it is an exchange of 0 bytes. */
static cddp_status run_barrier(struct cdi_run *run, struct cdi_error *err)
{
    cddp_status st = cdi_step(run, err);

    if (run->t->tcp == NULL || st != CDDP_OK)
        return st;
    if (run->t->shm->rank == 0)
        st = cdi_rounds_run(run, NULL, err);
    return st == CDDP_OK ? cdi_step_after_network(run, err) : st;
}

cddp_status cdi_cpu_comm_agree(struct cdi_cpu_comm *t, struct cdi_error *err)
{
    const struct cdi_work barrier = {.op = {.kind = CDI_BARRIER, .bucket = -1}};
    struct cdi_run run = {.t = t, .w = &barrier, .late = t->rank};
    const uint8_t *all;
    cddp_status st = cdi_wait_check(&t->wait, err);

    if (st != CDDP_OK)
        return st;
    cdi_run_describe(&run);
    for (int r = 0; r < t->size; r++)
        t->len[r] = r == 0 ? sizeof t->table : 0;
    st = cdi_rounds_gather(&run, &t->table, &all, err);
    if (st != CDDP_OK)
        return st;
    memcpy(&t->table, all, sizeof t->table);
    return cdi_choose_valid(&t->table)
               ? CDDP_OK
               : cdi_fail(err, CDDP_E_PROTOCOL, "rank 0 has sent an unusable " CDI_COLL_TABLE_ENV);
}

cddp_status cdi_cpu_comm_run(struct cdi_cpu_comm *t, const struct cdi_work *work, bool on_thread, struct cdi_error *err)
{
    struct cdi_run run = {.t = t, .w = work, .on_thread = on_thread, .late = t->rank};
    cddp_status st;

    if (t->size == 1)
        return run_alone(t, work);
    st = cdi_wait_check(&t->wait, err);
    if (st != CDDP_OK)
        return st;
    cdi_run_describe(&run);
    if (work->is_region)
        return cdi_cpu_region_create(&run, err);
    switch (work->op.kind) {
    case CDI_ALL_REDUCE:
    case CDI_REDUCE:
    case CDI_REDUCE_SCATTER:
        return cdi_run_reduction(&run, err);
    case CDI_BROADCAST:
    case CDI_ALL_GATHER:
    case CDI_ALL_GATHERV:
    case CDI_ALL_TO_ALL:
    case CDI_SEND:
    case CDI_RECV:
        return cdi_run_exchange(&run, err);
    case CDI_BARRIER:
        return run_barrier(&run, err);
    }
    return cdi_fail(err, CDDP_E_INVALID, "no such collective");
}
