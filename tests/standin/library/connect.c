/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections. NCCL makes those of an algorithm at the first launch that takes it, with all ranks (since 2.23:
 * enqueue.cc, ncclPrepareTasks, and group.cc, ncclCollPreconnectFunc), and where the communicator is blocking its
 * caller waits for them meanwhile. With CDDP_STANDIN_CONNECT=1 each new kind, count and type of a collective is an
 * algorithm.
 */
#include "comm.h"

#include "common/env.h"

#include <string.h>

static uint64_t shape_of(const struct si_call *c)
{
    return ((uint64_t)c->kind << 56 ^ (uint64_t)c->type << 48 ^ (uint64_t)c->op << 40 ^ c->count) + 1;
}

static bool is_connected(struct ncclComm *comm, uint64_t shape)
{
    for (size_t i = 0; i < comm->n_connected; i++)
        if (comm->connected[i] == shape)
            return true;
    return false;
}

bool si_connect(const struct si_calls *calls)
{
    const struct segment_word word = {.kind = -5};
    const char *wanted = cdi_env_str("CDDP_STANDIN_CONNECT");
    struct ncclComm *comm = calls->comm;
    bool meet = false, met;

    if (!comm->blocking || wanted == NULL || strcmp(wanted, "1") != 0)
        return true;
    for (size_t i = 0; i < calls->n; i++) {
        const struct si_call *c = &calls->call[i];

        if (c->kind == SI_SEND || c->kind == SI_RECV || is_connected(comm, shape_of(c)))
            continue;
        if (comm->n_connected < SI_CONNECTED)
            comm->connected[comm->n_connected++] = shape_of(c);
        meet = true;
    }
    if (!meet)
        return true;
    (void)__atomic_add_fetch(&comm->inside, 1, __ATOMIC_ACQ_REL);
    met = segment_say(&comm->seg, SEGMENT_CALLS, &word);
    (void)__atomic_sub_fetch(&comm->inside, 1, __ATOMIC_ACQ_REL);
    return met;
}
