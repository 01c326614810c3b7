/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a backend is: a table of functions below the communicator and the reducer, which know nothing else of it.
 * Internal for now; it becomes the public plug-in contract once it is complete.
 *
 * Work is enqueued and joined, so that one reducer serves streams on a GPU and a communication thread on a CPU. A
 * backend runs operations strictly in the order of their tickets, which is the program order and so the same on every
 * rank. Arguments were checked by the caller (comm.c): backends do not check them again.
 */
#ifndef CDI_BACKEND_H
#define CDI_BACKEND_H

#include "common/error.h"
#include "protocol/flight.h"

#include <cddp/cddp.h>
#include <stdbool.h>

/* Who and where this rank is: filled by comm.c from the environment, read by all. */
struct cdi_world {
    int rank, size;
    int local_rank, local_size;
    int node_rank, n_nodes;
    int restart_count;
    int64_t join_timeout_ms; /* for what happens while the communicator is made */
    int64_t timeout_ms;      /* of every wait for a peer */
    cddp_store *store;       /* NULL in a world of one without a store */
    struct cdi_flight *flight;
};

enum cdi_op_kind { CDI_ALL_REDUCE, CDI_BROADCAST, CDI_ALL_GATHER, CDI_BARRIER };

/* Memory of equal size on every rank that the backend can reduce in place: on the CPU, shared with the node's ranks. */
struct cdi_region {
    void *base; /* this rank's own part, 4096-byte aligned, zeroed */
    size_t bytes;
};

/* One collective. Memory behind in and out stays the caller's and must live until the ticket is joined. */
struct cdi_op {
    enum cdi_op_kind kind;
    const void *in;
    void *out;
    size_t count; /* elements; all_gather: per rank */
    cddp_dtype dtype;
    cddp_op op;                /* all_reduce */
    int root;                  /* broadcast */
    struct cdi_region *region; /* all_reduce in place inside it (in == out), or NULL: private memory */
    int bucket;                /* for the flight page and for messages; -1: none */
    bool lazy;                 /* may be run by the thread that joins it: not worth a wake-up of another one */
};

struct cdi_backend; /* each backend's own */

struct cdi_backend_ops {
    const char *name;

    /* Connect to all ranks of the world; a collective. *out on success only. */
    cddp_status (*create)(struct cdi_backend **out, const struct cdi_world *world, struct cdi_error *err);
    /* Free; work that was not joined is abandoned. Never blocks on peers. NULL-safe. */
    void (*destroy)(struct cdi_backend *b);

    /* A collective of all ranks with equal `bytes`: either all get their region or all an error (CDDP_E_NOMEM). */
    cddp_status (*region_create)(struct cdi_backend *b, size_t bytes, struct cdi_region **out, struct cdi_error *err);
    /* Local; no operation on the region may be in flight on this rank. Peers may still have it mapped. NULL-safe. */
    void (*region_destroy)(struct cdi_backend *b, struct cdi_region *r);

    /* Queue one operation and give its ticket (1, 2, ...). Never blocks on peers. Any thread. Sticky errors come here.
     */
    cddp_status (*enqueue)(struct cdi_backend *b, const struct cdi_op *op, uint64_t *ticket, struct cdi_error *err);
    /* Return when every operation up to ticket is done: CDDP_OK, or the backend's sticky error. Any thread. */
    cddp_status (*join)(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err);

    /* CDDP_OK or the sticky error. Any thread. */
    cddp_status (*health)(struct cdi_backend *b, struct cdi_error *err);
    /* Make every wait, here and on peers, return `status` (CDDP_E_ABORTED) with this sentence. Any thread, repeatable.
     */
    void (*abort)(struct cdi_backend *b, cddp_status status, const char *why);
};

extern const struct cdi_backend_ops cdi_cpu_backend;

#endif
