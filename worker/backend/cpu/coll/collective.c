/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/coll/collective.h"

#include "worker/backend/cpu/coll/bruck.h"
#include "worker/backend/cpu/coll/exchange.h"
#include "worker/backend/cpu/coll/reduction.h"
#include "worker/backend/cpu/coll/region.h"
#include "worker/base/host_id.h"

#include <stdlib.h>
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
        st = cdi_bruck_run(run, NULL, err);
    return st == CDDP_OK ? cdi_step_after_network(run, err) : st;
}

/* What the first rank of a node tells all others. */
struct report {
    uint64_t machine; /* equal for nodes that share a kernel */
    uint32_t cores, delay_us;
};

static struct report report_of(const struct cdi_cpu_comm *t)
{
    struct report mine = {.cores = (uint32_t)cdi_shm_usable_cpus(t->shm), .delay_us = cdi_tcp_delay_us(t->tcp)};
    uint8_t host[CDI_HOST_ID];

    cdi_host_id(host);
    memcpy(&mine.machine, host, sizeof mine.machine);
    return mine;
}

static int compare_sizes(const void *a, const void *b)
{
    size_t x = *(const size_t *)a, y = *(const size_t *)b;

    return (x > y) - (x < y);
}

/* all: the reports of all nodes. */
static struct cdi_choice_net net_of(const struct cdi_cpu_comm *t, const uint8_t *all)
{
    struct cdi_choice_net net = {.crowd = 1};
    uint32_t cores = UINT32_MAX, alike = 0, most = 0;

    for (int k = 0; k < t->tcp->n_nodes; k++) {
        struct report r;

        memcpy(&r, all + (size_t)k * sizeof r, sizeof r);
        t->at[k] = r.machine;
        cores = r.cores < cores ? r.cores : cores;
        net.delay_us = r.delay_us > net.delay_us ? r.delay_us : net.delay_us;
    }
    qsort(t->at, (size_t)t->tcp->n_nodes, sizeof *t->at, compare_sizes);
    for (int k = 0; k < t->tcp->n_nodes; k++) {
        alike = k > 0 && t->at[k] == t->at[k - 1] ? alike + 1 : 1;
        most = alike > most ? alike : most;
    }
    if (cores > 0 && most > cores)
        net.crowd = (most + cores - 1) / cores;
    return net;
}

cddp_status cdi_cpu_comm_agree(struct cdi_cpu_comm *t, struct cdi_error *err)
{
    const struct cdi_work barrier = {.op = {.kind = CDI_BARRIER, .bucket = -1}};
    struct cdi_run run = {.t = t, .w = &barrier, .late = t->rank};
    const struct report mine = report_of(t);
    const uint8_t *all;
    cddp_status st = cdi_wait_check(&t->wait, err);

    if (st != CDDP_OK)
        return st;
    cdi_run_describe(&run);
    memset(t->len, 0, (size_t)t->size * sizeof *t->len);
    for (int k = 0; k < t->tcp->n_nodes; k++)
        t->len[t->tcp->first[k]] = sizeof mine;
    st = cdi_bruck_gather(&run, &mine, &all, err);
    if (st == CDDP_OK && t->net.crowd == 0)
        t->net = net_of(t, all);
    return st;
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
