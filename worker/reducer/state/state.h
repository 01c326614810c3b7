/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of a reducer, which its parts share, and the primitives that all of them use. Except for creation
 * (create.c, check.c, verify.c), cddp_ddp_join (join.c) and norm.c, the parts run with the lock held.
 *
 * The parts form floors. A file calls, and includes, only files of the floors below its own. tests/lint/include_rule.py
 * has their order and checks it; from the ground up, by rooms:
 *
 * - layout: bucket, tune, shard, active_ranks. Arithmetic of plans and shares.
 * - state: verify (the comparison at creation), this file; arena, used, check, overlap, replicate (where gradients are,
 *   which of them were used, input, shared memory, copies to all ranks); weight (of the mean), captured (CUDA graphs),
 *   debug (warnings).
 * - grads: compress, own (gradients in another type or in the user's memory); in_place, buffers, tied.
 * - reducer: stats, metrics (times of steps); plan (which gradient is in which bucket), nan_check, replicas (wrong
 *   numbers), powersgd, hook; launch (counts gradients down, and hands buckets to the backend); unused, uneven (missing
 *   gradients, ranks with fewer samples); step (grad_ready and wait); join, frozen, norm, powersgd_checkpoint; create.
 */
#ifndef CDI_REDUCER_STATE_H
#define CDI_REDUCER_STATE_H

#include "worker/comm/comm.h"
#include "worker/reducer/layout/bucket.h"
#include "worker/reducer/layout/tune.h"

#include <pthread.h>

#define CDI_DDP_STREAMS                                                                           \
    4 /* producing one bucket's gradients, before communication waits for each of them separately \
       */

/* The state of a bucket beside the plan. */
struct cdi_ddp_flight {
    uint64_t ticket;                /* of its all-reduce in this step */
    int64_t ready_ns;               /* its last gradient was reported; 0: not in this step, or nothing is measured */
    struct cdi_coll_times times;    /* of its operations in this step, */
    struct cdi_coll_times exchange; /* and of the optimizer's exchange of parameters */
    uint64_t sent[2], exchanged;   /* on a device: the first and last ticket that `times` is of, and that of exchange */
    void *stream[CDI_DDP_STREAMS]; /* on a device: where its gradients were made */
    int n_streams;
    bool more;         /* on a device: starts together with the next bucket; equal on all ranks */
    bool skipped;      /* in this step: idle, and in the end no rank used it */
    size_t n_tied;     /* its gradients of parameters that are tied to an earlier one */
    size_t own, n_own; /* in cddp_ddp.own.list: its gradients in the user's own memory, in the order of the arena */
    size_t stretch, n_stretches; /* in cddp_ddp.in_place.stretch, if some gradients are reduced in place */
    /* Compressed: */
    bool compressed;
    size_t comm_offset; /* in the communication region, in bytes */
    bool unpacked;      /* in this step, its result was brought back into the arena (or the hook has ended) */
};

/* unused.c: which gradients arrived in this step, in the first step, and on any rank. NULL arrays: not needed. */
struct cdi_ddp_unused {
    uint8_t *missing;   /* by parameter: it did not arrive on this rank in this step */
    uint8_t *used;      /* by parameter: it arrived on some rank, once map_ticket is complete */
    uint32_t *expected; /* static graph: how often each was reported ready in the first step */
    uint32_t *seen;     /* static graph: in this step */
    uint64_t map_ticket;
    size_t n_missing;
    bool known;    /* static graph: the first step is over */
    bool there;    /* the last step's map is only on the device: `used` is this rank's */
    bool followed; /* on a device: communication waits for the work that the compute stream had when this step ended */
    void *saved,
        *zeros; /* on the backend: the arena's old values, and as many zero bytes as the largest gradient has */
    /* On a device: */
    void *map; /* on the device: for each parameter a byte, nonzero if it is used; valid after map_ticket */
    struct cdi_slice *slices; /* buffer for a list of gradients with gaps between them */
    uint32_t *of;             /* the parameters in it */
};

/* overlap.c, tied.c: parameters that are the same memory. NULL arrays: there are none. */
struct cdi_ddp_tied {
    size_t *first; /* by parameter: the first one of the same memory, mostly itself */
    size_t *next;  /* by parameter: the next one of the same memory; n_params: none */
    bool folded;   /* with an optimizer: in this step, the first one's gradient became the sum */
};

/*
 * With divided parameters (fsdp.c): this rank's shares of all buckets, one after the other, on the backend. NULL: every
 * rank has whole parameters and gradients. The gradients' are the caller's (create.h).
 */
struct cdi_ddp_shares {
    char *params, *grads;
    const void *model;
    const char *(*unit_of)(const void *model, size_t i,
                           size_t *unit); /* names the unit of parameter i; NULL at first */
};

/* With replicas of divided parameters (fsdp/across.c). All NULL: there are none. */
struct cdi_ddp_across {
    cddp_comm *comm;                  /* of the ranks that have the same shares */
    uint32_t number;                  /* of the model there */
    cddp_status (*settle)(void *arg); /* at the end of a step: completes its means. Returns the sticky error */
    void *arg;
};

/* weight.c: the weights of the mean. */
struct cdi_ddp_weight {
    double *all; /* by rank; NULL: the mean has no weights */
    double mine; /* what this rank sends for this step */
    uint64_t ticket;
    bool pending; /* they are on their way */
    bool differ;  /* in this step; false: the mean is the plain one */
    bool none;    /* in this step, their sum is 0 */
    int active;   /* ranks that train in this step */
    double share; /* if they differ, the factor of this rank's gradients */
};

/* own.c: gradients in the user's own memory. NULL arrays: there are none. */
struct cdi_ddp_own {
    size_t *list;             /* parameters, bucket by bucket: see cdi_ddp_flight.own */
    struct cdi_slice *slices; /* buffer for those of one bucket */
    bool everywhere;          /* all gradients of all ranks are in such memory */
};

/* in_place.c: where in the user's memory a gradient may be reduced. */
struct cdi_ddp_home {
    void *grad;
    struct cdi_region *region; /* NULL: operations know no region at this address */
    uint64_t id;               /* of the memory (memory.h); 0: none */
    size_t at;                 /* offset in bytes */
    bool chosen;               /* it is reduced in place */
};

/* For finding gradients that are adjacent in memory. */
struct cdi_ddp_neighbour {
    size_t bucket;
    uint64_t id;
    size_t at, param;
};

/* A contiguous part of a bucket, reduced by one operation. */
struct cdi_ddp_stretch {
    void *at; /* NULL: in the arena, at `offset` */
    struct cdi_region *region;
    size_t offset, bytes;
};

/* in_place.c: gradients that are reduced in the user's memory. NULL arrays: there are none. */
struct cdi_ddp_in_place {
    bool any;                         /* if set, the arena holds only the other gradients */
    struct cdi_ddp_home *home;        /* by parameter */
    struct cdi_ddp_neighbour *sorted; /* buffer for all parameters */
    uint64_t hash;                    /* of all homes; 0: there are none */
    size_t *offset;                   /* by gradient of the plan: offset in the arena of those that stay there */
    size_t arena_bytes;
    struct cdi_ddp_stretch *stretch; /* bucket by bucket: see cdi_ddp_flight.stretch */
    size_t room;                     /* capacity of `stretch` */
    struct cdi_region *old_arena;    /* the previous arena; NULL: none */
};

/* With CDDP_DDP_TUNE, until the size is chosen: the bucket sizes on trial. */
struct cdi_ddp_trial {
    struct cdi_tune tune;
    size_t current;         /* the size in use */
    int64_t (*clock)(void); /* in ns; tests replace it */
    int64_t begun_ns;       /* when this step's first gradient was ready; 0: not yet */
    int32_t choice;         /* rank 0's, once ticket is complete */
    uint64_t ticket;
};

/* A step that becomes part of a CUDA graph. */
struct cdi_ddp_captured {
    uint64_t id;          /* of the capture, from the step's first gradient to the step's end; 0: none */
    struct cdi_error why; /* why the capture is no longer usable */
};

#define CDI_DDP_WAITS 32 /* of one step that are measured each; a later one prolongs the last */

/* When the program waited in this step. */
struct cdi_ddp_waits {
    size_t n;
    struct {
        int64_t begin_ns, end_ns;
        uint64_t begin, end; /* on a device instead: stamps of the compute stream */
    } of[CDI_DDP_WAITS];
    uint64_t ticket; /* on a device: the last one that the stream has waited for */
};

struct cdi_ddp_stats; /* private to reducer/stats.c */
struct cdi_metrics;   /* private to reducer/metrics.c */
struct cdi_ddp_debug; /* private to debug.c */
struct cdi_nan_check; /* private to nan_check.c */
struct cdi_replicas;  /* private to replicas.c */
struct cdi_item_ops;

struct cddp_ddp {
    const struct cdi_item_ops *item_ops; /* first: how it is saved in a checkpoint (checkpoint/item.h) */
    cddp_comm *comm;
    cddp_param *params; /* the caller's, with copies of the names; shapes are not kept */
    char *names;
    char *name;      /* of the model, for messages; NULL: none */
    uint32_t number; /* of the model on comm */
    uint32_t steps;  /* a hash of what every rank gave to the optimizer, on the host; 0: nothing yet */
    size_t *rows;    /* by parameter: the first dimension of its shape, or its count if it has none */
    size_t n_params;
    struct cdi_ddp_tied tied;
    struct cdi_ddp_shares shares;
    struct cdi_ddp_across across;
    struct cdi_region *region;         /* of gradients; NULL: they are divided */
    struct cdi_region *comm_region;    /* for compressed buckets; NULL: none */
    const struct cdi_backend_ops *ops; /* the communicator's */
    struct cdi_backend *b;
    void *stream; /* the compute stream */
    uint32_t flags;
    cddp_dtype comm_dtype;         /* CDDP_DTYPE_NONE: gradients are sent in their own type */
    cddp_hook hook;                /* begin is NULL: no hook */
    size_t *hook_params;           /* buffer for the list of a bucket's parameters */
    struct cdi_powersgd *powersgd; /* NULL: none */
    struct cdi_ddp_debug *debug;   /* NULL: CDDP_DEBUG is not set */
    struct cdi_ddp_stats *stats;   /* NULL: nothing is measured; the lock covers what it points to, and waits */
    struct cdi_ddp_waits waits;
    struct cdi_metrics *metrics;   /* NULL: CDDP_METRICS_FILE is not set */
    struct cdi_nan_check *nan;     /* NULL: CDDP_NAN_CHECK is off */
    struct cdi_replicas *replicas; /* NULL: CDDP_CHECK_REPLICAS is not set */
    bool has_own;                  /* some gradients are in the user's memory */
    struct cdi_ddp_own own;        /* the lock covers its list */
    struct cdi_ddp_in_place in_place;
    size_t n_buffers;
    struct cdi_slice *slices; /* the parameters, then the buffers */
    struct cdi_span *spans;   /* buffer for the spans to measure */
    double *norm;             /* on the backend: the squares of all gradients, or their largest magnitude */
    void *stage;              /* on the backend: staging buffer for small ones; NULL: there are none */
    cddp_ddp **held_by;       /* the optimizer's pointer to this reducer, set to NULL by cddp_ddp_destroy; NULL: none */
    void *optim_memory;       /* the optimizer's, on the backend; NULL: none, or it is on the host */
    bool sharded; /* there is an optimizer (optim.c): plain buckets are reduced and scattered, and the optimizer ends
                     the steps */

    struct cdi_grave grave;

    pthread_mutex_t lock; /* covers everything below */
    /*
     * The plan's gradients are the parameters'; with CDDP_DDP_JOIN one more follows, which counts the ranks that train.
     */
    struct cdi_bucket_plan plan;
    struct cdi_bucket_caps caps; /* of the current plan */
    bool automatic;              /* CDDP_DDP_TUNE: buckets cannot be divided among the ranks */
    struct cdi_ddp_trial *trial; /* NULL: none, or the size is chosen */
    size_t comm_bytes;
    struct cdi_ddp_flight *flight; /* by bucket */
    struct cdi_ddp_unused unused;
    struct cdi_ddp_weight weight;
    uint8_t *frozen; /* by parameter, of cddp_ddp_set_frozen; NULL: none was ever frozen */
    size_t n_frozen;
    void *one,
        *zero; /* with CDDP_DDP_JOIN: this rank's contribution to the count of ranks that train, on the backend */
    void *active_elements;   /* the reduced count, on the host */
    struct cdi_error sticky; /* status CDDP_OK: no error */
    uint64_t enqueued;       /* ticket of the last bucket launched; 0: none yet */
    uint64_t joined;         /* the last ticket that was waited for */
    size_t n_copied;     /* on a device: number of buckets whose means are being copied to where the user reads them */
    uint64_t step;       /* completed steps */
    uint64_t nvtx_range; /* of this step; 0: none */
    bool finishing;      /* a thread is in cdi_step_finish */
    bool begun;          /* some gradient was reported ready in this step */
    bool ended;          /* a step has ended, since cddp_ddp_join or cddp_ddp_set_frozen if one was called */
    bool by_param;       /* the program waits for single parameters (cddp_ddp_wait_param) */
    bool idle_due;       /* the next step's idle buckets are to be determined from the step that has ended */
    bool synced;         /* this step's buffers were sent */
    bool share_complete; /* with shares: this step's gradients were measured, so its share is complete */
    struct cdi_ddp_captured captured;
    uint64_t captured_steps; /* captured steps that have ended, or were given up */
    bool shadow;             /* this rank has no samples left, and only takes part in the reductions of the others */
    /* In the first step: gradients in order of arrival; later rank 0's. NULL: not needed, or the plan is final. */
    int32_t *order;
    size_t n_ordered;
    uint64_t order_ticket;
    uint64_t spare_ticket; /* of the newest broadcast for later steps, which no rank has to run; 0: none */
};

/*
 * Returns CDDP_OK; CDDP_E_INVALID if ddp is NULL, CDDP_E_STATE in a child of the process that made it. Every public
 * function calls it first.
 */
cddp_status cdi_ddp_check(const char *function, const cddp_ddp *ddp, struct cdi_error *err);
/*
 * Sets the sticky error, unless there is one, and ends the replicas, which would wait for this rank, and blame it once
 * its program exits. Returns the sticky error's status.
 */
cddp_status cdi_ddp_set_error(cddp_ddp *d, const struct cdi_error *err);
/*
 * Sets the sticky error and aborts the job: this rank will not finish the step, and its peers must not wait for it.
 * Returns the sticky error's status.
 */
cddp_status cdi_ddp_fail_misuse(cddp_ddp *d, const struct cdi_error *err);
/*
 * For a model or an optimizer whose creation has failed: if one of the model's two communicators has failed, aborts the
 * other.
 */
void cdi_ddp_end_both(cddp_comm *a, cddp_comm *b);
/* Returns the origin of its operations in `comm`: its own, or that of its replicas. */
struct cdi_origin cdi_ddp_origin(const cddp_ddp *d, const cddp_comm *comm);
/*
 * Enqueues an operation with this origin. Every collective of a reducer passes here, or through cdi_ddp_all_gather or
 * cdi_ddp_broadcast, so that two models in another order on one rank are CDDP_E_MISMATCH. Those of a hook's program do
 * not.
 */
cddp_status cdi_ddp_begin(cddp_ddp *d, const struct cdi_coll *op, uint64_t *ticket, struct cdi_error *err);
/* Like cdi_comm_all_gather and cdi_comm_broadcast. */
cddp_status cdi_ddp_all_gather(const cddp_ddp *d, cddp_comm *comm, const void *in, void *out, size_t count,
                               cddp_dtype dtype, struct cdi_error *err);
cddp_status cdi_ddp_broadcast(const cddp_ddp *d, void *at, size_t bytes, int root, struct cdi_error *err);
/* Notes, between the same operations on all ranks, what they have to have in common: later ones compare it. */
void cdi_ddp_note_step(cddp_ddp *d, const void *what, size_t bytes);
/* Enqueues an operation after the buckets. Sets the sticky error. */
cddp_status cdi_ddp_enqueue(cddp_ddp *d, const struct cdi_coll *op, uint64_t *ticket);
/* Waits for everything enqueued up to ticket. Releases the lock while it waits. Sets the sticky error. */
cddp_status cdi_ddp_join_ticket(cddp_ddp *d, uint64_t ticket);
/*
 * Are the times of this step measured by the device (cdi_flight_times_step)? false on the host, where those of all
 * steps are known or none.
 */
bool cdi_ddp_times_step(const cddp_ddp *d, uint64_t step);
/*
 * On a device: makes what is enqueued later begin after the work that is now on `stream`, and has the device measure
 * when that is, in a step that is measured. The status of wait_stream.
 */
cddp_status cdi_ddp_follow(cddp_ddp *d, void *stream, struct cdi_error *err);
/* On a device: makes the compute stream wait for everything up to ticket (0: everything). With the lock. */
cddp_status cdi_ddp_stream_wait(cddp_ddp *d, uint64_t ticket, struct cdi_error *err);
/*
 * Writes the name of bucket b for messages: "'fc1.weight' and 3 more". Any thread may call it, without the lock, while
 * the bucket is in flight.
 */
void cdi_ddp_name_bucket(const void *ddp, int b, char *buf, size_t cap);
/* With divided parameters: has messages and the flight page call an operation after a unit. */
void cdi_ddp_name_after_unit(const cddp_ddp *d, struct cdi_coll *op, size_t unit);

/* Returns true if parameter i is the memory of an earlier one, whose update is also its own. */
static inline bool cdi_ddp_is_tied(const cddp_ddp *d, size_t i)
{
    return d->tied.first != NULL && d->tied.first[i] != i;
}

/*
 * Returns true if parameter i is frozen: its gradient is not made, and keeps its value; of divided parameters it does
 * not exist.
 */
static inline bool cdi_ddp_is_frozen(const cddp_ddp *d, size_t i)
{
    return d->plan.grads[i].frozen || (d->n_frozen > 0 && d->frozen[i] != 0);
}

/* Returns true if parameters and gradients are divided among the ranks, and no rank has whole ones. */
static inline bool cdi_ddp_is_divided(const cddp_ddp *d)
{
    return d->shares.params != NULL;
}

/* Returns true with CDDP_DDP_STATIC_GRAPH. */
static inline bool cdi_ddp_is_static(const cddp_ddp *d)
{
    return (d->flags & CDDP_DDP_STATIC_GRAPH) != 0;
}

#endif
