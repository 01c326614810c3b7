/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a reducer, which its parts share, and the primitives that all of them use. Except for creation
 * (create.c, check.c, verify.c), cddp_ddp_join (join.c) and norm.c, the parts run with the lock held.
 *
 * The parts form floors. A file calls, and includes, only files of the floors below its own:
 *
 *     bucket tune shard active_ranks verify    arithmetic of plans and shares; the comparison at creation
 *     state                                    this file
 *     arena used check replicate               where gradients are, which of them were used; input; copies to all ranks
 *     compress own captured debug              gradients in another type or in the user's memory; CUDA graphs; warnings
 *     in_place buffers                         gradients reduced in the user's memory; the model's buffers
 *     plan                                     which gradient is in which bucket
 *     powersgd                                 PowerSGD
 *     hook                                     communication hooks
 *     launch                                   counts gradients down, and hands buckets to the backend
 *     unused uneven                            gradients that are missing; ranks with fewer samples
 *     step                                     grad_ready and wait
 *     join norm powersgd_checkpoint            cddp_ddp_join; norms and clipping; PowerSGD's state in checkpoints
 *     create                                   cddp_ddp_create and cddp_ddp_destroy
 */
#ifndef CDI_REDUCER_STATE_H
#define CDI_REDUCER_STATE_H

#include "worker/comm/comm.h"
#include "worker/reducer/bucket.h"
#include "worker/reducer/tune.h"

#include <pthread.h>

#define CDI_DDP_STREAMS 4 /* that make one bucket's gradients, before communication waits for them one by one */

/* What there is to know of a bucket beside the plan. */
struct cdi_ddp_flight {
    uint64_t ticket;               /* of its all-reduce in this step */
    void *stream[CDI_DDP_STREAMS]; /* on a device: where its gradients were made */
    int n_streams;
    bool more;         /* on a device: starts together with the next bucket; equal on all ranks */
    bool skipped;      /* in this step: idle, and nobody used it after all */
    size_t own, n_own; /* in cddp_ddp.own.list: its gradients in the user's own memory, in the order of the arena */
    size_t stretch, n_stretches; /* in cddp_ddp.in_place.stretch, where some are reduced where they lie */
    /* Compressed: */
    bool compressed;
    size_t comm_offset; /* in the wire region, bytes */
    bool unpacked;      /* in this step, what came was brought back into the arena (or the hook has ended) */
};

/* unused.c: which gradients came in this step, in the first, and anywhere. NULL arrays: nobody asked for it. */
struct cdi_ddp_unused {
    uint8_t *missing;   /* by parameter: it did not come to this rank in this step */
    uint8_t *used;      /* by parameter: it came to some rank, once map_ticket is done */
    uint32_t *expected; /* static graph: how often each was said to be ready in the first step */
    uint32_t *seen;     /* static graph: in this step */
    uint64_t map_ticket;
    size_t n_missing;
    bool known;    /* static graph: the first step is over */
    bool followed; /* on a device: communication comes behind what the compute stream had when this step ended */
    void *saved,
        *zeros; /* on the backend: the arena's old values, and as many zeros as the largest gradient has bytes */
    /* On a device: */
    void *map;                /* there: a byte for each parameter, is it used? behind map_ticket */
    struct cdi_slice *slices; /* room for a list of gradients with gaps between them */
    uint32_t *of;             /* the parameters in it */
};

/* own.c: gradients in the user's own memory. NULL arrays: there are none. */
struct cdi_ddp_own {
    size_t *list;             /* parameters, bucket by bucket: see cdi_ddp_flight.own */
    struct cdi_slice *slices; /* room for those of one bucket */
    bool everywhere;          /* all gradients of all ranks are in such memory */
};

/* in_place.c: where the user's memory is that one gradient may be reduced in. */
struct cdi_ddp_home {
    void *grad;
    struct cdi_region *region; /* NULL: operations know no region there */
    uint64_t id;               /* of the memory (memory.h); 0: nowhere */
    size_t at;                 /* bytes from its begin */
    bool shared;               /* with another parameter */
    bool chosen;               /* it is reduced there */
};

/* To find what lies side by side. */
struct cdi_ddp_neighbour {
    size_t bucket;
    uint64_t id;
    size_t at, param;
};

/* Memory of a bucket that one operation reduces. */
struct cdi_ddp_stretch {
    void *at; /* NULL: in the arena, at `offset` */
    struct cdi_region *region;
    size_t offset, bytes;
};

/* in_place.c: gradients that are reduced where they lie. NULL arrays: there are none. */
struct cdi_ddp_in_place {
    bool any;                         /* then the arena has the others alone */
    struct cdi_ddp_home *home;        /* by parameter */
    struct cdi_ddp_neighbour *sorted; /* room for those of all parameters */
    uint64_t hash;                    /* of all homes; 0: there are none */
    size_t *offset;                   /* in the arena, by gradient of the plan, of what is left there */
    size_t arena_bytes;
    struct cdi_ddp_stretch *stretch; /* bucket by bucket: see cdi_ddp_flight.stretch */
    size_t room;                     /* for so many */
    struct cdi_region *left;         /* an arena of before; NULL: none */
};

/* With CDDP_DDP_TUNE, until it is settled: bucket sizes that are tried. */
struct cdi_ddp_trial {
    struct cdi_tune tune;
    size_t current;         /* the size in force */
    int64_t (*clock)(void); /* ns; tests have their own */
    int64_t begun_ns;       /* when this step's first gradient was ready; 0: none was */
    int32_t choice;         /* rank 0's, once ticket is done */
    uint64_t ticket;
};

/* A step that becomes part of a CUDA graph. */
struct cdi_ddp_captured {
    uint64_t id;          /* of the capture, from the step's first gradient to its end; 0: none */
    struct cdi_error why; /* the capture is of no use any more */
};

struct cdi_ddp_debug; /* debug.c's own */
struct cdi_item_ops;

struct cddp_ddp {
    const struct cdi_item_ops *item_ops; /* first: how it is saved in a checkpoint (checkpoint/item.h) */
    cddp_comm *comm;
    cddp_param *params; /* the caller's, with names of our own; shapes are not kept */
    char *names;
    char *name;   /* of the model, for messages; NULL: none */
    size_t *rows; /* by parameter: its shape's first size, or its count if it has none */
    size_t n_params;
    struct cdi_region *region;
    struct cdi_region *comm_region;    /* compressed buckets; NULL: none */
    const struct cdi_backend_ops *ops; /* of comm */
    struct cdi_backend *b;
    void *stream; /* the compute stream */
    uint32_t flags;
    cddp_dtype comm_dtype;         /* CDDP_DTYPE_NONE: gradients are sent as they are */
    cddp_hook hook;                /* begin is NULL: none */
    size_t *hook_params;           /* room for the list of a bucket's parameters */
    struct cdi_powersgd *powersgd; /* NULL: none */
    struct cdi_ddp_debug *debug;   /* NULL: CDDP_DEBUG is not set */
    bool has_own;                  /* some gradients are in the user's memory */
    struct cdi_ddp_own own;        /* its list is covered by the lock */
    struct cdi_ddp_in_place in_place;
    size_t n_buffers;
    struct cdi_slice *slices; /* where the parameters lie, and behind them the buffers */
    struct cdi_span *spans;   /* room for what is measured */
    double *norm;             /* on the backend: the squares of all gradients, or their largest magnitude */
    void *stage;              /* on the backend, where small ones travel together; NULL: there are none */
    cddp_ddp **held_by;       /* the optimizer's pointer to this, which becomes NULL at the end; NULL: none */
    void *optim_memory;       /* the optimizer's, on the backend; NULL: none, or it is on the host */
    bool sharded; /* there is an optimizer (optim.c): plain buckets are reduced and scattered, and it ends the steps */

    struct cdi_grave grave;

    pthread_mutex_t lock; /* covers what follows */
    /* Its gradients are the parameters', and behind them, with CDDP_DDP_JOIN, one more: how many ranks train? */
    struct cdi_bucket_plan plan;
    struct cdi_bucket_caps caps; /* of this plan */
    bool automatic;              /* CDDP_DDP_TUNE: buckets cannot be divided among the ranks */
    struct cdi_ddp_trial *trial; /* NULL: none, or it is settled */
    size_t comm_bytes;
    struct cdi_ddp_flight *flight; /* by bucket */
    struct cdi_ddp_unused unused;
    void *one, *zero;        /* with CDDP_DDP_JOIN: what this rank gives to that, on the backend */
    void *heads;             /* what came of it, on the host */
    struct cdi_error sticky; /* status CDDP_OK: none */
    uint64_t enqueued;       /* ticket of the last bucket launched; 0: none yet */
    uint64_t joined;         /* the last ticket that was waited for */
    size_t brought;          /* on a device: buckets whose means are under way to where the user reads them */
    uint64_t step;           /* steps that are complete */
    bool finishing;          /* a thread is in cdi_step_finish */
    bool begun;              /* something was said to be ready in this step */
    bool by_param;           /* the program waits for single parameters (cddp_ddp_wait_param) */
    bool idle_due;           /* the idle buckets of the step that comes are those of the one that has ended */
    bool synced;             /* this step's buffers were sent */
    bool settled;            /* with an optimizer: this step's gradients were measured, so its share has landed */
    struct cdi_ddp_captured captured;
    bool shadow; /* this rank has no samples, and only takes part in what the others reduce */
    /* In the first step: gradients as they came, later rank 0's. NULL: not wanted, or no new plan will come. */
    int32_t *order;
    size_t n_ordered;
    uint64_t order_ticket;
};

/*
 * Returns CDDP_OK; CDDP_E_INVALID if ddp is NULL, CDDP_E_STATE in a child of the process that made it. Every public
 * function calls it first.
 */
cddp_status cdi_ddp_check(const char *function, const cddp_ddp *ddp, struct cdi_error *err);
/* Sets the sticky error, unless there is one. Returns the sticky error's status. */
cddp_status cdi_ddp_set_error(cddp_ddp *d, const struct cdi_error *err);
/*
 * Sets the sticky error and aborts the job: this rank will not finish the step, and its peers must not wait for it.
 * Returns the sticky error's status.
 */
cddp_status cdi_ddp_fail_misuse(cddp_ddp *d, const struct cdi_error *err);
/* Enqueues an operation after the buckets. Sets the sticky error. */
cddp_status cdi_ddp_enqueue(cddp_ddp *d, const struct cdi_coll *op, uint64_t *ticket);
/* Waits for everything enqueued up to ticket. Releases the lock while it waits. Sets the sticky error. */
cddp_status cdi_ddp_join_ticket(cddp_ddp *d, uint64_t ticket);
/*
 * Writes the name of bucket b for messages: "'fc1.weight' and 3 more". Any thread may call it, without the lock, while
 * the bucket is in flight.
 */
void cdi_ddp_name_bucket(const void *ddp, int b, char *buf, size_t cap);

/* Returns true with CDDP_DDP_STATIC_GRAPH. */
static inline bool cdi_ddp_is_static(const cddp_ddp *d)
{
    return (d->flags & CDDP_DDP_STATIC_GRAPH) != 0;
}

#endif
