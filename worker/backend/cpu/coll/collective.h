/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The collectives themselves, over one primitive: a step, in which every rank makes its input visible and waits for all
 * others' (shm.h). One operation at a time, called by who runs the queue.
 */
#ifndef CDI_COLL_COLLECTIVE_H
#define CDI_COLL_COLLECTIVE_H

#include "worker/backend/cpu/node/wait.h"
#include "worker/backend/queue.h"

struct cdi_tcp;

#define CDI_SMALL_BYTES 8192 /* up to here every rank reduces everything by itself: one step instead of two */

struct cdi_cpu_comm {
    int rank, size;      /* in the world */
    struct cdi_shm *shm; /* of the node's ranks; NULL in a world of one */
    struct cdi_tcp *tcp; /* to the other nodes; NULL where there is one */
    struct cdi_wait wait;
    uint32_t step; /* the last one posted */
    uint64_t n_regions;
    const void **in; /* scratch, `size` of each */
    void **out;
    void **place;
    size_t *len, *at;
};

/* A region as the backend sees it. */
struct cdi_cpu_region {
    struct cdi_region pub; /* first: a cdi_region is one of these */
    uint64_t id;           /* 1, 2, ..., equal on all ranks */
    void **part;           /* by local rank */
};

/* *t is zeroed but for rank, size, shm and wait. CDDP_E_NOMEM. */
cddp_status cdi_cpu_comm_init(struct cdi_cpu_comm *t, struct cdi_error *err);
void cdi_cpu_comm_release(struct cdi_cpu_comm *t);

/*
 * Run one operation; blocks on peers. CDDP_OK, CDDP_E_MISMATCH, CDDP_E_PEER, CDDP_E_TIMEOUT, CDDP_E_ABORTED or what a
 * peer gave up with: after any of them the team has no common state left.
 */
cddp_status cdi_cpu_comm_run(struct cdi_cpu_comm *t, const struct cdi_work *work, bool on_thread,
                             struct cdi_error *err);

void cdi_cpu_comm_region_destroy(struct cdi_cpu_comm *t, struct cdi_region *region);

#endif
