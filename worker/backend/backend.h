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
#include "worker/math/lowrank.h"
#include "worker/math/optim_row.h"

#include <cddp/cddp.h>
#include <stdbool.h>
#include <string.h>

/*
 * Out-of-band exchange: how ranks find each other before they are connected, and report errors when a connection no
 * longer works. In production it is the job's store, with names of this round and communicator; in tests shared memory.
 * Values are bytes. Any thread. NULL functions: a world of one.
 */
struct cdi_oob {
    cddp_status (*set)(void *arg, const char *name, const void *value, size_t len, struct cdi_error *err);
    /*
     * Waits until the value exists; with timeout_ms 0 it only looks. CDDP_E_TIMEOUT: there is no such value;
     * CDDP_E_LIMIT: it is longer than cap.
     */
    cddp_status (*get)(void *arg, const char *name, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                       struct cdi_error *err);
    cddp_status (*add)(void *arg, const char *name, int64_t delta, int64_t *sum, struct cdi_error *err);
    void *arg;
};

/* Stores a text. */
static inline cddp_status cdi_oob_set_text(const struct cdi_oob *oob, const char *name, const char *text,
                                           struct cdi_error *err)
{
    return oob->set(oob->arg, name, text, strlen(text), err);
}

/* Reads a value as a text, which fits buf with a byte of 0 after it. Otherwise as get. */
static inline cddp_status cdi_oob_get_text(const struct cdi_oob *oob, const char *name, char *buf, size_t cap,
                                           int64_t timeout_ms, struct cdi_error *err)
{
    size_t len = 0;
    cddp_status st = oob->get(oob->arg, name, buf, cap - 1, &len, timeout_ms, err);

    if (st == CDDP_OK)
        buf[len] = '\0';
    return st;
}

#define CDI_PREFIX_BYTES 96
#define CDI_COMM_NAME_BYTES 48

/* Ends the wait for the members of a part that is being made: one of them died, or the whole was aborted. */
struct cdi_watch {
    cddp_status (*fn)(void *arg, const int *of_job, int n, struct cdi_error *err); /* of the n members; NULL: nothing */
    void *arg;
};

/* Who and where this rank is: filled by comm.c from the environment, read by all. */
struct cdi_world {
    int rank, size;
    const int *ranks; /* of a part, by its ranks: the ranks of the job; NULL: they are the same */
    int local_rank, local_size;
    int node_rank, n_nodes;
    int restart_count;
    /* Of keys in the store: of this life of the job, of this join among those of the process, and of a part. */
    char prefix[CDI_PREFIX_BYTES];
    char name[CDI_COMM_NAME_BYTES]; /* in front of error messages; "": none */
    int64_t join_timeout_ms;        /* for what happens while the communicator is made */
    int64_t timeout_ms;             /* of every wait for a peer */
    cddp_store *store;              /* NULL in a world of one without a store */
    bool shares_store;              /* other threads of this process may wait in it for other communicators meanwhile */
    struct cdi_oob keys;
    struct cdi_flight *flight; /* what the agent says */
    struct cdi_flight *record; /* where operations are noted; NULL: there, too */
    int device_rank;           /* which of this host's devices: the local rank as the launcher says it */
    const void *mpi_comm;      /* the MPI_Comm whose ranks are the job\'s; NULL: MPI_COMM_WORLD */
    int device;                /* the device that the program asked for by number; -1: by device_rank */
    struct cdi_watch watch;    /* of a part, until it is made */
};

static inline struct cdi_flight *cdi_world_record(const struct cdi_world *w)
{
    return w->record != NULL ? w->record : w->flight;
}

/* CDDP_OK, or what ends the wait for the ranks of w. Any thread. */
static inline cddp_status cdi_world_watch(const struct cdi_world *w, struct cdi_error *err)
{
    return w->watch.fn != NULL ? w->watch.fn(w->watch.arg, w->ranks, w->size, err) : CDDP_OK;
}

/* A rank of w as the rank of the job that it is, for errors. */
static inline int cdi_rank_of_job(const struct cdi_world *w, int rank)
{
    return rank >= 0 && w->ranks != NULL ? w->ranks[rank] : rank;
}

/*
 * What an operation does, with `count` elements of `dtype`. All but SEND and RECV are collectives of all ranks, called
 * with equal arguments (SEND and RECV: of the two ranks, which call them with each other as root). Sums are made in
 * rank order, ((r0+r1)+r2)+..., whatever the path; out never overlaps in, except as "in place" below allows.
 *
 * ALL_REDUCE      in, out: count. In place: in == out
 * BROADCAST       out: count; root's in goes to out of all. in == out; on root they may also be apart
 * ALL_GATHER      in: count, out: size * count, by rank. In place: in is this rank's part of out
 * BARRIER         no memory: ends after all ranks have begun it
 * REDUCE          in: count; out: count, written on root only (elsewhere it may be NULL). In place: in == out
 * ALL_GATHERV     like ALL_GATHER, but rank r gives counts[r] elements (count is not used)
 * REDUCE_SCATTER  in: size * count, out: count: block r of the reduction goes to rank r. In place: out is this rank's
 *                 block of in, whose other blocks keep their values
 * ALL_TO_ALL      in, out: size * count: block s of in goes to rank s, block r of out is from rank r
 * SEND            in: count, to rank root. Returns when in may be used again
 * RECV            out: count, from rank root. Messages of one rank to another arrive in the order of sending
 */
#define CDI_COLL_ENUMERATOR(NAME, ...) CDI_##NAME,
enum cdi_coll_kind { CDI_COLLECTIVES(CDI_COLL_ENUMERATOR, CDI_NO_COLLECTIVE) };
#undef CDI_COLL_ENUMERATOR

/* Memory of equal size on every rank that the backend can reduce in place: on the CPU, shared with the node's ranks. */
struct cdi_region {
    void *base; /* this rank's own part, 4096-byte aligned, zeroed */
    size_t bytes;
};

/* Public functions that communicate by collectives of their own. */
#define CDI_ASKING_FUNCTIONS(X)                \
    X(DDP_CREATE, "cddp_ddp_create")           \
    X(OPTIM_CREATE, "cddp_optim_create")       \
    X(SET_POWERSGD, "cddp_ddp_set_powersgd")   \
    X(COMM_SPLIT, "cddp_comm_split")           \
    X(CHECKPOINT_SAVE, "cddp_checkpoint_save") \
    X(CHECKPOINT_LOAD, "cddp_checkpoint_load") \
    X(CHECKPOINT_WAIT, "cddp_checkpoint_wait") \
    X(ALLOC, "cddp_alloc")                     \
    X(REGISTER, "cddp_register")               \
    X(METRIC_REDUCE, "cddp_metric_reduce")     \
    X(GRAD_NORM, "norm of the gradients")

/*
 * The caller of a collective: the program itself, one of these functions, or a collective that is made of others, which
 * the program has called (see enqueue_group).
 */
#define CDI_ASKED_ENUMERATOR(NAME, ...) CDI_ASKED_##NAME,
enum cdi_asked {
    CDI_ASKED_ITSELF = 0,
    CDI_ASKING_FUNCTIONS(CDI_ASKED_ENUMERATOR) CDI_COLLECTIVES(CDI_NO_COLLECTIVE, CDI_ASKED_ENUMERATOR)
        CDI_ASKED_ALL_GATHERV, /* whose parts do not lie one after another */
};
#undef CDI_ASKED_ENUMERATOR

/* One collective. Memory behind in and out stays the caller's and must live until the ticket is joined. */
struct cdi_coll {
    enum cdi_coll_kind kind;
    const void *in;
    void *out;
    size_t count;         /* elements: see the kinds */
    const size_t *counts; /* all_gatherv: per rank, equal on all ranks; copied when the operation is enqueued */
    cddp_dtype dtype;
    cddp_redop op;             /* all_reduce, reduce, reduce_scatter */
    int root;                  /* broadcast, reduce; send, recv: the other rank, never this one */
    struct cdi_region *region; /* all_reduce, all_gather, reduce_scatter in place inside it, or NULL: private memory */
    bool anywhere;             /* equal on all ranks: another rank may have its memory at another place of the region,
                                  or outside of it. On the host the backend looks, else `region` is everyone's */
    bool known;                /* in and out are known to be the backend's own memory, if it is a device */
    int bucket;                /* for the flight page and for messages; -1: none */
    enum cdi_asked asked;      /* compared between ranks */
    /* For messages: the parameters in `bucket` of `ddp`, as "'fc1.weight' and 3 more". Any thread. NULL: no names. */
    void (*name_bucket)(const void *ddp, int bucket, char *buf, size_t cap);
    const void *ddp;
    bool spare;    /* a rank that leaves needs it no more: it goes without a word to those who may wait in it */
    bool lazy;     /* may be left to the thread that joins it, which comes soon: no other is woken for it */
    bool streamed; /* nobody joins it, and streams alone wait for it: on a device, host memory is CDDP_E_INVALID */
    bool grace;    /* with lazy: nobody knows how soon; after a moment another thread takes it */
    bool more;     /* another operation follows at once, on all ranks: both start together; what waits for
                      it is started by join and lead */
    bool unmarked; /* nobody is going to wait for it alone: join and lead of its ticket wait for all that was enqueued.
                   Spares a device a mark behind it */
};

/* A stretch of memory, for pack and unpack. */
struct cdi_slice {
    void *data; /* pack only reads it. NULL: a gap in what lies together, which is neither read nor written */
    size_t bytes;
};

/* Elements of one type, for tally and clip. */
struct cdi_span {
    void *x; /* tally only reads it */
    size_t count;
    cddp_dtype dtype; /* a floating-point type */
};

/* How clip makes a factor of what tally left. */
struct cdi_clip {
    double max_norm;
    double factor; /* the norm is that of the elements times this */
    bool largest;  /* as tally was told */
};

/* What scan found. */
struct cdi_scan {
    uint64_t n_nan, n_inf;
};

/* What a rank says to a split. */
struct cdi_split {
    int color, key;
    const int *ranks; /* the part's n ranks, in its order, as ranks of the job; copied. NULL: they are not known, so
                         that its errors may not say which rank caused them */
    int n;
    int64_t timeout_ms; /* 0: as the whole's */
    const char *name;   /* of the part, copied; NULL: none */
    struct cdi_watch watch;
};

/* A part's world, from that of the whole: what it is called and how long it waits. */
static inline void cdi_split_adopt(struct cdi_world *w, const struct cdi_split *how)
{
    const char *name = how->name != NULL ? how->name : "";
    size_t len = strnlen(name, sizeof w->name - 1);

    memcpy(w->name, name, len);
    w->name[len] = '\0';
    w->timeout_ms = how->timeout_ms > 0 ? how->timeout_ms : w->timeout_ms;
    w->watch = how->watch;
}

struct cdi_backend; /* each backend's own */

/*
 * Two kinds of backend. On the host, operations work on host memory and the caller waits for them by join. On a device,
 * memory is the device's (operations also take host memory, at the price of copies), work is ordered by the device's
 * streams (void *: a cudaStream_t, NULL is CUDA's legacy stream), and follow and lead order the two without a wait of
 * the host.
 */
struct cdi_backend_ops {
    const char *name;
    bool on_device;
    bool keeps_store; /* it uses the job's store until it is destroyed: that comes before the store's goodbye */

    /* Connect to all ranks of the world; a collective. *out on success only. */
    cddp_status (*create)(struct cdi_backend **out, const struct cdi_world *world, struct cdi_error *err);
    /*
     * This rank leaves: it abandons work that was not joined, and tells its peers. Never blocks on them.
     * Regions and other memory stay. Afterwards only region_destroy, release, give_back and destroy are called. Once.
     */
    void (*leave)(struct cdi_backend *b);
    /* Free; also leaves where that has not been done. NULL-safe. */
    void (*destroy)(struct cdi_backend *b);

    /* A collective of all ranks with equal `bytes`: either all get their region or all an error (CDDP_E_NOMEM). */
    cddp_status (*region_create)(struct cdi_backend *b, size_t bytes, struct cdi_region **out, struct cdi_error *err);
    /*
     * Local; no operation on the region may be in flight on this rank. Element functions may: on a device it waits for
     * what was enqueued. Peers may still have it mapped. NULL-safe.
     */
    void (*region_destroy)(struct cdi_backend *b, struct cdi_region *r);

    /*
     * A communicator of its own for the ranks that give the same color (>= 0), in the order of key, then of rank here.
     * A collective of all ranks, behind all that was enqueued; blocks, at most for the join timeout. A negative color:
     * no part in any, and *out = NULL. The caller destroys *out, at any time, before b or after it; errors of one do
     * not spread to the other. Any thread. CDDP_OK, the sticky error, the errors of create.
     */
    cddp_status (*split)(struct cdi_backend *b, const struct cdi_split *how, struct cdi_backend **out,
                         struct cdi_error *err);

    /*
     * A communicator for some ranks of b, which alone call this: `world` describes it as for create, with its members
     * in world->ranks and keys of its own. The caller destroys it, before b or after it. NULL: create does it. Any
     * thread.
     */
    cddp_status (*group)(struct cdi_backend *b, const struct cdi_world *world, struct cdi_backend **out,
                         struct cdi_error *err);

    /*
     * Queue one operation and give its ticket (1, 2, ...). Never blocks on peers; but on a device, the first operation
     * on more than 64 KiB of host memory, and a fifth at once, get memory from the driver, which may wait for what runs
     * there. Any thread. Sticky errors come here; CDDP_E_INVALID (memory of another device, see check_memory).
     */
    cddp_status (*enqueue)(struct cdi_backend *b, const struct cdi_coll *op, uint64_t *ticket, struct cdi_error *err);
    /*
     * Queue n > 0 operations as one, with one ticket: no other thread's operation gets between them. ops and counts are
     * copied. All are collectives, or all are SEND and RECV. In a group:
     * - SENDs and RECVs cannot block each other. Those between the same two ranks match in the order of the array.
     * - root may be this rank: the k-th SEND to it and the k-th RECV from it are a copy. The caller has made sure that
     *   there are as many of both, of equal count and type.
     * - A BARRIER may stand before SENDs and RECVs, with asked, count, dtype and root of the collective that they are
     *   parts of. All ranks have it. A backend that compares what ranks call compares them there; others leave it out.
     * lazy and asked are those of the first one for all. NULL: the backend has no groups. Otherwise as enqueue.
     */
    cddp_status (*enqueue_group)(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, uint64_t *ticket,
                                 struct cdi_error *err);
    /*
     * Does the backend reduce elements of this type by this operation? CDDP_OK; CDDP_E_UNSUPPORTED: the message says
     * what to do instead. The same on every rank. enqueue is given nothing else. Any thread. NULL: it reduces all.
     */
    cddp_status (*check_reduction)(struct cdi_backend *b, cddp_dtype dtype, cddp_redop op, struct cdi_error *err);
    /* enqueue of a lazy operation, and join. Any thread. NULL: it gains nothing by both at once. */
    cddp_status (*run)(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_error *err);
    /* Return when every operation up to ticket is done: CDDP_OK, or the backend's sticky error. Any thread. */
    cddp_status (*join)(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err);
    /*
     * CDDP_IN_PROGRESS, CDDP_OK (every operation up to ticket is done) or the sticky error; CDDP_E_INVALID (no such
     * ticket). Never blocks; but where no thread but the callers' can run operations, it is join. Any thread. NULL: the
     * backend cannot tell.
     */
    cddp_status (*test)(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err);

    /*
     * Operations and element functions that are called from now on begin after all work that is now on `stream`. Never
     * blocks. On the host: nothing to do. Any thread. CDDP_OK, CDDP_E_UNSUPPORTED (the stream captures a graph; nothing
     * has happened), the sticky error.
     */
    cddp_status (*wait_stream)(struct cdi_backend *b, void *stream, struct cdi_error *err);
    /*
     * Work that comes on `stream` from now on begins after every operation up to ticket is done; ticket 0: after all
     * that was enqueued, element functions included. On a device it never blocks; on the host it is join. Any thread.
     * CDDP_OK, CDDP_E_UNSUPPORTED (as follow), the sticky error (what an operation does wrong later is told by the
     * calls after it).
     */
    cddp_status (*stream_wait)(struct cdi_backend *b, uint64_t ticket, void *stream, struct cdi_error *err);
    /*
     * Graphs of the program's; NULL on the host. Which capture is the stream part of? *id is 0 where it is in none.
     * CDDP_E_UNSUPPORTED (that capture has failed; the legacy stream waits for one). Asking ends no capture. Any
     * thread.
     */
    cddp_status (*capture_of)(struct cdi_backend *b, void *stream, uint64_t *id, struct cdi_error *err);
    /* Is a capture under way that has a part of capture_enter's in it? Any thread. */
    bool (*capture_lives)(struct cdi_backend *b);
    /*
     * From now on, until capture_leave, what this thread does with b becomes part of capture `id`, behind what `stream`
     * of it has now, and nothing is waited for, but that NCCL has taken it: enqueue and enqueue_group (of the device's
     * memory; the ticket is 0), follow and lead (with streams of that capture; behind all that was enqueued), pack,
     * unpack, cast, scale. Before the capture ends, the last call is a lead. CDDP_OK; CDDP_E_STATE (another capture has
     * such a part), the sticky error: then there is nothing to leave. What these calls return beside the sticky error
     * says that the capture is of no use.
     */
    cddp_status (*capture_enter)(struct cdi_backend *b, void *stream, uint64_t id, struct cdi_error *err);
    void (*capture_leave)(struct cdi_backend *b);
    /*
     * On a device: the stream of operations and element functions, for others' work, which comes behind all that was
     * enqueued and before what is enqueued afterwards. The device is the calling thread's until take_back, which is
     * called by the same thread, and only where lend was successful; in between the backend may be used as ever. Never
     * blocks on peers. Any thread. CDDP_OK, the sticky error. NULL on the host.
     */
    cddp_status (*stream_acquire)(struct cdi_backend *b, void **stream, struct cdi_error *err);
    void (*stream_release)(struct cdi_backend *b);

    /*
     * On a device: around several calls of one thread, which then cost less. The thread runs nothing of the program's
     * in between, and nests no hold in another. Any thread. CDDP_OK: let_go must follow. CDDP_E_SYSTEM: nothing has
     * happened. NULL on the host.
     */
    cddp_status (*hold)(struct cdi_backend *b, struct cdi_error *err);
    void (*let_go)(struct cdi_backend *b);

    /* Memory where the backend works: at least 64-byte aligned, not cleared. release is NULL-safe. Any thread. */
    cddp_status (*alloc)(struct cdi_backend *b, size_t bytes, void **out, struct cdi_error *err);
    void (*release)(struct cdi_backend *b, void *p);
    /* Do operations on memory that is in no region cost copies? The same on all ranks. NULL: they do not. */
    bool (*copies_private)(const struct cdi_backend *b);
    /* On a device: memory of the host that copies are fastest with. NULL on the host. As alloc and release. */
    cddp_status (*alloc_host)(struct cdi_backend *b, size_t bytes, void **out, struct cdi_error *err);
    void (*release_host)(struct cdi_backend *b, void *p);
    /* Is this memory of the backend's device? False on the host, and for host memory. Any thread. */
    bool (*is_device)(struct cdi_backend *b, const void *p);
    /*
     * May the backend be given this memory? CDDP_OK, for host memory, too; CDDP_E_INVALID (another device's: the
     * sentence names both); CDDP_E_SYSTEM. is_device calls memory that is refused here the device's, so that nobody
     * takes it for the host's; enqueue and copy refuse it themselves. Any thread. NULL: it may.
     */
    cddp_status (*check_memory)(struct cdi_backend *b, const void *p, struct cdi_error *err);
    /*
     * Copy between any two of host and device, behind what was enqueued; done on return, and so is what was enqueued,
     * also where bytes is 0. Other streams that use the memory were waited for. Any thread.
     */
    cddp_status (*copy)(struct cdi_backend *b, void *to, const void *from, size_t bytes, struct cdi_error *err);
    /*
     * For a thread that writes or reads a file meanwhile: the same copy, but behind nothing and without starting
     * anything, also after the communicator has failed. Nothing in flight may use the memory. Any thread. NULL on the
     * host.
     */
    cddp_status (*move)(struct cdi_backend *b, void *to, const void *from, size_t bytes, struct cdi_error *err);
    /*
     * Memory of the device for a while, 256-byte aligned; neither call waits for what runs there, which is nothing that
     * release promises. NULL: less than twice as much is free, as the program may want the rest, or it cannot be had.
     * give_back takes NULL, too. Any thread. NULL on the host.
     */
    void *(*borrow)(struct cdi_backend *b, size_t bytes);
    void (*give_back)(struct cdi_backend *b, void *p);
    /* Where memory and work are. Never fails. Any thread. */
    void (*describe)(struct cdi_backend *b, cddp_device_info *out);

    /* CDDP_OK or the sticky error. Any thread. */
    cddp_status (*health)(struct cdi_backend *b, struct cdi_error *err);
    /*
     * The same, but never waits, not even for an abort that is under way, and also tells of what this rank would only
     * find in its next wait: that a peer has aborted, or died. Any thread. NULL: health does.
     */
    cddp_status (*peek)(struct cdi_backend *b, struct cdi_error *err);
    /*
     * CDDP_E_PEER if one of these n ranks of the job is known to have died, whatever else has happened to b; else
     * CDDP_OK. Any thread. NULL: it cannot tell.
     */
    cddp_status (*lost)(struct cdi_backend *b, const int *of_job, int n, struct cdi_error *err);
    /* Make every wait, here and on peers, return `status` (CDDP_E_ABORTED) with this sentence. Any thread, repeatable.
     */
    void (*abort)(struct cdi_backend *b, cddp_status status, const char *why);
    /* Has any rank aborted, as far as this one can see without waiting? NULL where keeps_store. Any thread. */
    bool (*is_aborted)(struct cdi_backend *b);

    /*
     * Element functions: local, on the backend's memory, ordered before operations that are enqueued later. On the CPU
     * the calling thread does the work and it is done on return; on a device the work is behind what was enqueued, and
     * `lead` with ticket 0 orders a stream behind it (scan alone waits for its result). Any thread; slices and arrays
     * do not overlap, except that scale works in place. CDDP_OK, CDDP_E_INVALID (a type that the function does not
     * take); on a device also the sticky error.
     */
    /* Put n slices behind one another into `to`, or take them from there again. */
    cddp_status (*pack)(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n, struct cdi_error *err);
    cddp_status (*unpack)(struct cdi_backend *b, const struct cdi_slice *to, size_t n, const void *from,
                          struct cdi_error *err);
    /*
     * pack of elements of a floating-point type, each of which is multiplied by factor on its way, as scale does it.
     * All slices begin and end with whole elements.
     */
    cddp_status (*pack_scaled)(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                               cddp_dtype dtype, double factor, struct cdi_error *err);
    /*
     * On a device: pack, but slice i, unless it is a gap, is left out where flags[of[i]] is not 0 when the work is
     * done; flags are the device's memory. NULL on the host.
     */
    cddp_status (*pack_unless)(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                               const uint8_t *flags, const uint32_t *of, struct cdi_error *err);
    /*
     * Between float32 and float16 or bfloat16, in both directions: multiplied by factor in float32, then rounded to
     * nearest, ties to even. A NaN stays one.
     */
    cddp_status (*cast)(struct cdi_backend *b, void *to, cddp_dtype to_type, const void *from, cddp_dtype from_type,
                        size_t count, float factor, struct cdi_error *err);
    /* x[i] *= factor; a factor of float32 precision for all but float64. Floating-point types. */
    cddp_status (*scale)(struct cdi_backend *b, void *x, size_t count, cddp_dtype dtype, double factor,
                         struct cdi_error *err);
    /* Count NaNs and infinities. Floating-point types. */
    cddp_status (*scan)(struct cdi_backend *b, const void *x, size_t count, cddp_dtype dtype, struct cdi_scan *out,
                        struct cdi_error *err);
    /*
     * Of all n spans together, in float64: the sum of their squares, or with `largest` the largest magnitude, a NaN
     * above infinity. It goes into *out, memory of the backend; add: together with what is there. The order of the sum
     * depends on the counts and types alone.
     */
    cddp_status (*tally)(struct cdi_backend *b, const struct cdi_span *x, size_t n, bool largest, bool add, double *out,
                         struct cdi_error *err);
    /*
     * Scale n spans by max_norm / (norm + 1e-6) where that is below 1 or a NaN; the norm is made of *sum, memory of the
     * backend, which tally wrote, when the work is done.
     */
    cddp_status (*clip)(struct cdi_backend *b, const struct cdi_span *x, size_t n, const struct cdi_clip *how,
                        const double *sum, struct cdi_error *err);
    /* On a device; NULL on the host, where the caller does it. Zeros. */
    cddp_status (*clear)(struct cdi_backend *b, void *p, size_t bytes, struct cdi_error *err);
    /* A step of the optimizer: first its rows are counted, then each piece is updated by them (optim_row.h). */
    cddp_status (*optim_count)(struct cdi_backend *b, const struct cdi_optim_step *s, struct cdi_error *err);
    cddp_status (*optim_update)(struct cdi_backend *b, const struct cdi_optim_step *s,
                                const struct cdi_optim_piece *piece, size_t n, struct cdi_error *err);
    /* cdi_lowrank_do with the device's memory, to the same bits where numbers are finite. */
    cddp_status (*lowrank)(struct cdi_backend *b, enum cdi_lowrank_step step, const struct cdi_lowrank_matrix *m,
                           size_t n, double epsilon, struct cdi_error *err);
};

/* alloc, and zeros in it; on a device in the stream's order, so that the host waits for nothing. With an error *out may
 * be memory that is the caller's all the same. */
static inline cddp_status cdi_backend_zeros(const struct cdi_backend_ops *ops, struct cdi_backend *b, size_t bytes,
                                            void **out, struct cdi_error *err)
{
    cddp_status st = ops->alloc(b, bytes, out, err);

    if (st == CDDP_OK && ops->on_device)
        return ops->clear(b, *out, bytes, err);
    if (st == CDDP_OK)
        memset(*out, 0, bytes);
    return st;
}

extern const struct cdi_backend_ops cdi_cpu_backend;

#endif
