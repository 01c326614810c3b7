/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator for tests of the code above it: a scripted backend that records each operation, completes them on
 * demand, or fails; and blocking collectives between "ranks" that are threads of one process. It defines the functions
 * of worker/comm/comm.h, so a test links it in place of comm.c.
 */
#ifndef CDI_TEST_FAKE_BACKEND_H
#define CDI_TEST_FAKE_BACKEND_H

#include "worker/comm/comm.h"
#include "worker/comm/memory.h"

#include <pthread.h>

#define FAKE_OPS 256

struct fake_world; /* what the ranks share */

struct cddp_comm {
    struct fake_world *shared;
    struct cdi_world world;
    struct cdi_memory memory;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t step; /* for cddp_log */
    /* The record. */
    struct cdi_coll ops[FAKE_OPS];
    size_t n_ops; /* enqueued so far: the last ticket */
    size_t n_joins, n_regions, n_allocated, n_broadcasts;
    char calls[4096]; /* of a device: "wait_stream 1; all_reduce 0; stream_wait 0 on 2; ", streams and tickets as
                         numbers */
    struct cdi_grave *graves;        /* opened by fake_close */
    char abort_text[CDI_ERROR_TEXT]; /* of the last abort; "" if there was none */
    /* The script. */
    bool device;              /* a backend with streams; operations complete at once */
    const void *on_host;      /* for such a backend this is host memory, all else its own */
    bool manual;              /* join blocks until fake_complete; false: everything completes at once */
    size_t completed;         /* tickets */
    double factor;            /* what a completed all_reduce does to float32 elements; 0: nothing */
    cddp_status fail_enqueue; /* CDDP_OK, or what the next enqueue returns */
    cddp_status fail_join;    /* the same for join */
    cddp_status fail_health;  /* the state of a device from now on */
    cddp_status fail_region;  /* the same for region_create */
    cddp_status fail_gather;  /* the same for the blocking collectives */
};

/* n communicators of one world, comms[0 .. n). */
void fake_open(cddp_comm *comms, int n);
void fake_close(cddp_comm *comms, int n);
/* Complete every operation up to this ticket. */
void fake_complete(cddp_comm *comm, size_t ticket);

/* Run fn(&comms[r], arg) on a thread per rank and wait for all of them. */
void fake_run(cddp_comm *comms, int n, void (*fn)(cddp_comm *comm, void *arg), void *arg);

#endif
