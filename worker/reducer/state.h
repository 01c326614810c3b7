/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the reducer: what its parts share. reducer_create.c makes it, of what reducer_input.c has looked at;
 * reducer_plan.c says which buckets there are, and reducer.c takes steps; unused.c knows what to do about gradients
 * that do not come; uneven.c goes on for a rank that has no more samples; wire.c sends gradients in fewer bits; norm.c
 * measures and clips gradients that have landed; own.c brings those in the user's own memory in and out, but for those
 * that are reduced where they lie (in_place.c); hook.c and powersgd.h communicate in other ways. All but creation,
 * cddp_ddp_join and norm.c is called with the lock held.
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
    size_t wire_offset; /* in the wire region, bytes */
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

struct cddp_ddp {
    cddp_comm *comm;
    cddp_param *params; /* the caller's, with names of our own; shapes are not kept */
    char *names;
    char *name;   /* of the model, for messages; NULL: none */
    size_t *rows; /* by parameter: its shape's first size, or its count if it has none */
    size_t n_params;
    struct cdi_region *region;
    struct cdi_region *wire;           /* compressed buckets; NULL: none */
    const struct cdi_backend_ops *ops; /* of comm */
    struct cdi_backend *b;
    void *stream; /* the compute stream */
    uint32_t flags;
    cddp_dtype wire_dtype;         /* CDDP_DTYPE_NONE: gradients are sent as they are */
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
    size_t wire_bytes;
    struct cdi_ddp_flight *flight; /* by bucket */
    struct cdi_ddp_unused unused;
    void *one, *zero;        /* with CDDP_DDP_JOIN: what this rank gives to that, on the backend */
    void *heads;             /* what came of it, on the host */
    struct cdi_error sticky; /* status CDDP_OK: none */
    uint64_t enqueued;       /* ticket of the last bucket launched; 0: none yet */
    uint64_t joined;         /* the last ticket that was waited for */
    size_t brought;          /* on a device: buckets whose means are under way to where the user reads them */
    uint64_t step;           /* steps that are complete */
    bool finishing;          /* a thread is in cdi_ddp_finish */
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

/* --- reducer_input.c: CDDP_OK, or CDDP_E_INVALID and a sentence that names the member */
/* What a program says, as this library knows it, with defaults. */
struct cdi_ddp_input {
    cddp_ddp_options opt; /* whose buffers are those below */
    cddp_param *params, *buffers;
};

/*
 * opt may be NULL. To be released, after a failure too, after which there are the options alone. Also
 * CDDP_E_UNSUPPORTED and CDDP_E_NOMEM.
 */
cddp_status cdi_ddp_read_input(struct cdi_ddp_input *in, const cddp_param *params, size_t n,
                               const cddp_ddp_options *opt, struct cdi_error *err);
void cdi_ddp_release_input(struct cdi_ddp_input *in);
cddp_status cdi_ddp_check_input(const cddp_param *params, size_t n, const cddp_ddp_options *opt, struct cdi_error *err);
/* On a device: is it a stream that says the same in every thread? */
cddp_status cdi_ddp_check_stream(const cddp_ddp *d, const void *stream, struct cdi_error *err);
/* Is each parameter and buffer where the backend works? */
cddp_status cdi_ddp_check_memory(const cddp_ddp *d, const cddp_param *params, const cddp_param *buffers,
                                 struct cdi_error *err);

/* --- reducer_plan.c */
/* At creation: which gradient is in which bucket. CDDP_OK, CDDP_E_NOMEM. */
cddp_status cdi_ddp_plan(cddp_ddp *d, const cddp_ddp_options *opt, struct cdi_error *err);
/* Gradient i came next in the first step. */
void cdi_ddp_note_order(cddp_ddp *d, size_t i);
/*
 * Between two steps. Rank 0's order is told to all while the second step runs, and is everyone's from the third. Then,
 * with CDDP_DDP_TUNE, each step has a bucket size of the schedule, until rank 0's choice has reached all. Sticks.
 */
cddp_status cdi_ddp_update_plan(cddp_ddp *d);
/*
 * A step begins: with CDDP_DDP_SKIP_UNUSED the buckets that nobody used in the one before come last in it. Not earlier,
 * since on a device the host waits for the step before: by now the program has put more there. Sticks.
 */
cddp_status cdi_ddp_settle_idle(cddp_ddp *d);
/* A step's first gradient is ready: if it is measured, it counts from now. */
void cdi_ddp_trial_begin(cddp_ddp *d);
/* CDDP_E_STATE, for a function that needs the buckets to stay as they are, while they do not; else CDDP_OK. */
cddp_status cdi_ddp_still_trying(const cddp_ddp *d, const char *function, struct cdi_error *err);

/* --- reducer.c */
void *cdi_ddp_arena_grad(const cddp_ddp *d, size_t i);
/* For messages: "'fc1.weight' and 3 more". While bucket b of ddp is in flight, and so needs no lock. Any thread. */
void cdi_ddp_name_bucket(const void *ddp, int b, char *buf, size_t cap);
/* Keep the first error; every later call returns it. */
cddp_status cdi_ddp_set_error(cddp_ddp *d, const struct cdi_error *err);
/* This rank misused the reducer and will not finish the step: its peers must not wait for it. Sticks. */
cddp_status cdi_ddp_fail_misuse(cddp_ddp *d, const struct cdi_error *err);
/* Gradient i, claimed, is in the arena: launch what may be launched. Sticks. */
cddp_status cdi_ddp_count_down(cddp_ddp *d, size_t i);
/* All gradients of idle bucket b are in the arena: launch it out of turn. Sticks. */
cddp_status cdi_ddp_launch_late(cddp_ddp *d, size_t b);
/* Wait for what was enqueued up to ticket, without the lock, which is held before and after. Sticks. */
cddp_status cdi_ddp_join_ticket(cddp_ddp *d, uint64_t ticket);
/* Enqueue an operation behind the buckets. Sticks. */
cddp_status cdi_ddp_enqueue(cddp_ddp *d, const struct cdi_coll *op, uint64_t *ticket);
/* The end of a step begins: every gradient must have come, or what does not come is filled in. Sticks. */
cddp_status cdi_ddp_close_step(cddp_ddp *d);
/*
 * The end of a step, without the lock: cdi_ddp_close_step, then `land` brings what was reduced to where it belongs,
 * with the lock held. The thread's last error is set.
 */
cddp_status cdi_ddp_finish(cddp_ddp *d, cddp_status (*land)(cddp_ddp *d, void *arg), void *arg);
/* Every bucket was launched: until the means are in the arena (a device: are going to be). Sticks. */
cddp_status cdi_ddp_complete(cddp_ddp *d);
/*
 * With an optimizer: until this rank's share of the means is in the arena, but for what a bucket's own ticket tells.
 * Those that were sent in another way than by reduce-scatter are there as a whole. Sticks.
 */
cddp_status cdi_ddp_complete_share(cddp_ddp *d);
/* All of it is over. Sticks. */
cddp_status cdi_ddp_next_step(cddp_ddp *d);

/* --- replicate.c */
cddp_status cdi_replicate_init(cddp_ddp *d, const cddp_param *buffers, struct cdi_error *err);
void cdi_replicate_release(cddp_ddp *d);
/*
 * Rank root's n of d->slices become everyone's: a collective, without the lock. wait: blocks on a device, too, until
 * all is there; else its compute stream is put behind it.
 */
cddp_status cdi_replicate(cddp_ddp *d, const struct cdi_slice *s, size_t n, int root, bool wait, struct cdi_error *err);

/* --- buffers.c: without buffers these do nothing */
/* The root's buffers become everyone's, before a step; the lock is let go meanwhile. Sticks. */
cddp_status cdi_buffers_sync(cddp_ddp *d, bool trains);
/* A step begins: have they been sent, where they must be? Sticks. */
cddp_status cdi_buffers_check(cddp_ddp *d);

/* --- unused.c: with CDDP_DDP_FIND_UNUSED or CDDP_DDP_STATIC_GRAPH; else these do nothing */
cddp_status cdi_unused_init(cddp_ddp *d, struct cdi_error *err);
void cdi_unused_release(cddp_ddp *d);
/* Parameter i is said to be ready. *now: its gradient is complete and is to be counted. Misuse sticks. */
cddp_status cdi_unused_on_ready(cddp_ddp *d, size_t i, bool *now);
/* At the end of a step: what did not come counts as zeros, and the ranks tell each other what came. Sticks. */
cddp_status cdi_unused_fill(cddp_ddp *d);
/* Wait until the host knows what no rank used, where it has to, and something is missing here. */
cddp_status cdi_unused_known(cddp_ddp *d, struct cdi_error *err);
/* All has landed: gradients that came nowhere get their old values. Sticks. */
cddp_status cdi_unused_restore(cddp_ddp *d);
/* Zeros into the arena. */
cddp_status cdi_unused_zero(cddp_ddp *d, size_t i, struct cdi_error *err);
/* Did some rank use a gradient of bucket b in the step that has landed? The same answer on every rank. */
bool cdi_unused_is_used(const cddp_ddp *d, size_t b);
/* Should gradient i stay as it is, since no rank used it? */
bool cdi_unused_nowhere(const cddp_ddp *d, size_t i);

/* A step begins: nothing is missing yet. */
void cdi_unused_next_step(cddp_ddp *d);

/* --- own.c: without gradients in the user's own memory these do nothing */
cddp_status cdi_own_init(cddp_ddp *d, struct cdi_error *err);
void cdi_own_release(cddp_ddp *d);
/* Are all of this rank's gradients in such memory? */
bool cdi_own_is_all(const cddp_ddp *d);
/* Is the factor of bucket b's mean in what cdi_own_gather brings, so that only the sum is left? Equal on all ranks. */
bool cdi_own_scales(const cddp_ddp *d, size_t b);
/* There is a new plan, with new flights: which gradients does each bucket hold? */
void cdi_own_place(cddp_ddp *d);
/* Other gradients than before are in such memory. */
void cdi_own_list(cddp_ddp *d);
/* On a device: a bucket's gradients go into the arena, before it starts. One launch. */
cddp_status cdi_own_gather(cddp_ddp *d, size_t bucket, struct cdi_error *err);
/* Its means go out of it, those that have not gone yet and that some rank used. One launch. */
cddp_status cdi_own_scatter(cddp_ddp *d, size_t bucket, struct cdi_error *err);

/* --- in_place.c: without gradients that are reduced where they lie these do nothing */
/* At creation: where could they be? Behind cdi_own_init and the plan. */
cddp_status cdi_in_place_init(cddp_ddp *d, struct cdi_error *err);
void cdi_in_place_release(cddp_ddp *d);
/* At creation, where all ranks' hashes are equal: which of them are? */
void cdi_in_place_choose(cddp_ddp *d);
/* There is a new plan, with new flights: room for its stretches, and which are they? */
cddp_status cdi_in_place_reserve(cddp_ddp *d, struct cdi_error *err);
void cdi_in_place_lay(cddp_ddp *d);
/* Is gradient i of the parameters one of them? */
bool cdi_in_place_is(const cddp_ddp *d, size_t i);
/* Without any these tell of the arena alone, where each bucket is one stretch. */
size_t cdi_in_place_arena_bytes(const cddp_ddp *d);
size_t cdi_in_place_offset(const cddp_ddp *d, size_t i); /* of gradient i in the arena, where it is one of it */
size_t cdi_in_place_stretches(const cddp_ddp *d, size_t b);
struct cdi_ddp_stretch cdi_in_place_stretch(const cddp_ddp *d, size_t b, size_t k);
/*
 * From now on each bucket is to be one stretch: all gradients are copied into the arena. A collective of all ranks,
 * between two steps; it need not be the first. CDDP_OK, CDDP_E_NOMEM, or what a collective may return.
 */
cddp_status cdi_in_place_leave(cddp_ddp *d, struct cdi_error *err);

/* --- captured.c: on a device; else nothing is captured */
/*
 * Locked. Is this call, with this stream, part of a graph? *captured: what the thread does with the backend becomes so,
 * until cdi_captured_leave. Refused is what cannot be captured; that breaks neither the capture nor the reducer.
 * always: also in the middle of a step that is not captured, where it costs a call of the driver.
 */
cddp_status cdi_captured_enter(cddp_ddp *d, void *stream, bool always, bool *captured, struct cdi_error *err);
/* st: of what was done in between; *err is its sentence. An error is the capture's, unless the backend has failed. */
cddp_status cdi_captured_leave(cddp_ddp *d, void *stream, cddp_status st, struct cdi_error *err);
/* The step is complete: all of it is in the graph. */
void cdi_captured_forget(cddp_ddp *d);
/* Locked: CDDP_E_UNSUPPORTED, and nothing is broken, where the compute stream captures a graph. */
cddp_status cdi_captured_refuse(cddp_ddp *d, const char *function, struct cdi_error *err);

/* --- wire.c */
/* Where each bucket of the plan lies in the wire region, whose size is what the largest of all plans needs. */
void cdi_wire_place(cddp_ddp *d);
cddp_status cdi_wire_init(cddp_ddp *d, struct cdi_error *err);
/* A full bucket: make it small, and let op say so. */
cddp_status cdi_wire_pack(cddp_ddp *d, size_t bucket, struct cdi_coll *op, struct cdi_error *err);
/* It has landed: bring it back into the arena, once per step. */
cddp_status cdi_wire_unpack(cddp_ddp *d, size_t bucket, struct cdi_error *err);

/* --- reducer_create.c */
/* Each public function's first question: is there a reducer (CDDP_E_INVALID), and is it this process's (CDDP_E_STATE)?
 */
cddp_status cdi_ddp_check(const char *function, const cddp_ddp *ddp, struct cdi_error *err);

/* --- debug.c: with CDDP_DEBUG=1, on the CPU; else these do nothing */
cddp_status cdi_debug_init(cddp_ddp *d, struct cdi_error *err);
void cdi_debug_release(cddp_ddp *d);
/* Without the lock: the program wants to know where gradient i, in range, is. */
void cdi_debug_asked(cddp_ddp *d, size_t i);
/* Gradient i is in the arena, and its bucket was not launched yet. */
void cdi_debug_ready(cddp_ddp *d, size_t i);
/* All gradients of the step came. */
void cdi_debug_complete(cddp_ddp *d);
/* The means are where the program reads them. */
void cdi_debug_completed(cddp_ddp *d);

/* --- hook.c */
/* The reducer's lock, which a hook's thread may find held by itself. */
void cdi_hook_init_lock(cddp_ddp *d);
/*
 * A full bucket, in place of its all-reduce; the hook may wait for nobody. *ticket: 0, there is nothing to join. On a
 * device the hook's work is behind all that was enqueued, in its stream. Sticks.
 */
cddp_status cdi_hook_begin(cddp_ddp *d, size_t bucket, uint64_t *ticket);
/* It has landed, on a device: it is going to. Once per step; nothing to do without a hook. Sticks. */
cddp_status cdi_hook_end(cddp_ddp *d, size_t bucket);

/* --- norm.c */
cddp_status cdi_norm_init(cddp_ddp *d, struct cdi_error *err);
void cdi_norm_release(cddp_ddp *d);
/* With an optimizer, behind the last bucket: the largest magnitude of all gradients, NaN above all, into d->norm. */
cddp_status cdi_norm_largest(cddp_ddp *d, struct cdi_error *err);
/* In the same place: the sum of the squares; and clipping by it, where gradients count `scale` times. */
cddp_status cdi_norm_measure(cddp_ddp *d, struct cdi_error *err);
cddp_status cdi_norm_clip(cddp_ddp *d, double max_norm, double scale, struct cdi_error *err);

/* --- uneven.c */
/* Bytes of the plan's last gradient, where it is of this type. */
size_t cdi_uneven_bytes(const cddp_ddp *d, cddp_dtype dtype);
cddp_status cdi_uneven_init(cddp_ddp *d, struct cdi_error *err);
void cdi_uneven_release(cddp_ddp *d);
/* This step has begun: put into the arena that this rank trains (or, in cddp_ddp_join, that it does not). Sticks. */
cddp_status cdi_uneven_begin(cddp_ddp *d, bool trains);
/*
 * The means have landed: with CDDP_DDP_JOIN_ACTIVE they become those over the ranks that trained; with
 * CDDP_DDP_JOIN_STRICT it is an error if some did not. Sticks.
 */
cddp_status cdi_uneven_complete(cddp_ddp *d);

#endif
