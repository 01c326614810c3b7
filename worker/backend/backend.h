/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface of a backend: a table of functions. The communicator and the reducer know nothing else of a backend.
 * It is internal for now, and becomes the public plug-in contract once it is complete.
 *
 * Operations are enqueued and joined, so that one reducer serves streams on a GPU and a communication thread on a CPU.
 * A backend runs operations strictly in the order of their tickets. That is the program order, so it is the same on
 * every rank. The caller (coll_args.c) has checked the arguments: backends do not check them again.
 */
#ifndef CDI_BACKEND_H
#define CDI_BACKEND_H

#include "common/error.h"
#include "protocol/flight.h"
#include "worker/math/exact_sum.h"
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

/*
 * Checks the n members of a part while it is created. An error ends the wait for them: one of them has died, or the
 * parent communicator was aborted.
 */
struct cdi_watch {
    cddp_status (*fn)(void *arg, const int *of_job, int n, struct cdi_error *err); /* NULL: no check */
    void *arg;
};

/* The rank of this process and its surroundings. comm.c fills it from the environment. */
struct cdi_world {
    int rank, size;
    const int *ranks; /* of a part: the rank of the job for each of its ranks; NULL: they are the same */
    int local_rank, local_size;
    int node_rank, n_nodes;
    int restart_count;
    /* Before keys in the store: it tells apart rounds of the job, communicators of a process, and parts. */
    char prefix[CDI_PREFIX_BYTES];
    char name[CDI_COMM_NAME_BYTES]; /* before error messages; "": none */
    int64_t init_timeout_ms;        /* of the creation of the communicator */
    int64_t timeout_ms;             /* of every wait for a peer */
    cddp_store *store;              /* NULL in a world of one without a store */
    bool shares_store;              /* other threads of this process may wait in it for other communicators */
    struct cdi_oob keys;
    struct cdi_flight *flight; /* the page that the agent writes to */
    struct cdi_flight *record; /* of the operations; NULL: `flight` */
    int device_rank;           /* which device of this node: the local rank as the launcher sets it */
    const void *mpi_comm;      /* the MPI_Comm whose ranks are those of the job; NULL: MPI_COMM_WORLD */
    int device;                /* the device number that the program requested; -1: device_rank decides */
    struct cdi_watch watch;    /* of a part, while it is created */
};

static inline struct cdi_flight *cdi_world_record(const struct cdi_world *w)
{
    return w->record != NULL ? w->record : w->flight;
}

/* Returns CDDP_OK, or the error that ends the wait for the ranks of w. Any thread. */
static inline cddp_status cdi_world_watch(const struct cdi_world *w, struct cdi_error *err)
{
    return w->watch.fn != NULL ? w->watch.fn(w->watch.arg, w->ranks, w->size, err) : CDDP_OK;
}

/* Returns the rank of the job that a rank of w is, for errors. */
static inline int cdi_rank_of_job(const struct cdi_world *w, int rank)
{
    return rank >= 0 && w->ranks != NULL ? w->ranks[rank] : rank;
}

/* Returns the error with which this rank aborts: caused by it, unless *why names another one. */
static inline struct cdi_error cdi_abort_of(const struct cdi_world *w, const struct cdi_error *why)
{
    struct cdi_error err = *why;

    err.blamed = err.blamed > 0 ? err.blamed : cdi_rank_of_job(w, w->rank) + 1;
    return err;
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

/* Memory of equal size on every rank, in which the backend can reduce. On the CPU the ranks of a node share it. */
struct cdi_region {
    void *base; /* this rank's own part, 4096-byte aligned, zeroed */
    size_t bytes;
};

/* Public functions that use collectives internally. */
#define CDI_ASKING_FUNCTIONS(X)                \
    X(DDP_CREATE, "cddp_ddp_create")           \
    X(OPTIM_CREATE, "cddp_optim_create")       \
    X(FSDP_CREATE, "cddp_fsdp_create")         \
    X(FSDP_GATHER, "cddp_fsdp_gather")         \
    X(FSDP_READY, "cddp_fsdp_grads_ready")     \
    X(SET_POWERSGD, "cddp_ddp_set_powersgd")   \
    X(COMM_SPLIT, "cddp_comm_split")           \
    X(CHECKPOINT_SAVE, "cddp_checkpoint_save") \
    X(CHECKPOINT_LOAD, "cddp_checkpoint_load") \
    X(CHECKPOINT_WAIT, "cddp_checkpoint_wait") \
    X(ALLOC, "cddp_alloc")                     \
    X(REGISTER, "cddp_register")               \
    X(METRIC_REDUCE, "cddp_metric_reduce")     \
    X(GRAD_NORM, "norm of the gradients")      \
    X(NAN_CHECK, "CDDP_NAN_CHECK")             \
    X(CHECK_REPLICAS, "CDDP_CHECK_REPLICAS")   \
    X(SHOULD_STOP, "cddp_should_stop")         \
    X(WEIGHTS, "CDDP_DDP_WEIGHTED")            \
    X(SET_FROZEN, "cddp_ddp_set_frozen")

/*
 * The caller of a collective: the program itself, one of these functions, or a collective that is made of others, which
 * the program has called (see enqueue_group).
 */
#define CDI_API_ENUMERATOR(NAME, ...) CDI_API_##NAME,
enum cdi_api_call {
    CDI_API_ITSELF = 0,
    CDI_ASKING_FUNCTIONS(CDI_API_ENUMERATOR) CDI_COLLECTIVES(CDI_NO_COLLECTIVE, CDI_API_ENUMERATOR)
        CDI_API_ALL_GATHERV, /* whose parts do not lie one after another */
};
#undef CDI_API_ENUMERATOR

/* When the operations of a bucket ran: as in struct cdi_flight_entry, 0 for what is not known. */
struct cdi_coll_times {
    int64_t started_ns, arrived_ns, done_ns;
    int64_t thread_ns; /* processor time of the backend's own thread */
    int late_rank;     /* of the job; -1: not known */
    bool by_joiner;    /* the last one ran in the thread that joined it */
};

/* Whose operation it is. Compared between ranks, except on a device. */
struct cdi_origin {
    uint32_t model; /* number of a reducer, 1, 2, ... in the order of creation on its communicator; 0: of none */
    uint32_t steps; /* a hash of the steps of its optimizer so far; 0: none */
};

/* One operation. in and out stay the caller's, and must live until the ticket is joined. */
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
                                  or outside of it. A backend on the host compares the places */
    bool known;                /* in and out are known to be memory of the backend, if that is a device */
    int bucket;                /* for the flight page and for messages; -1: none */
    enum cdi_api_call asked;   /* compared between ranks */
    struct cdi_origin of;      /* likewise */
    /* Writes the parameters in `bucket` of `ddp`, such as "'fc1.weight' and 3 more". Any thread. NULL: no names. */
    void (*name_bucket)(const void *ddp, int bucket, char *buf, size_t cap);
    const void *ddp;
    bool spare;    /* a rank that leaves does not need its result: ranks that wait in it get no error */
    bool ahead;    /* for messages: begun before the program asked for it, as a forecast. Not compared */
    bool lazy;     /* the thread that joins it soon may run it: no other thread is woken for it */
    bool streamed; /* no thread joins it, only streams wait for it: on a device, host memory is CDDP_E_INVALID */
    bool grace;    /* with lazy: the join may be late; after a moment another thread runs it */
    bool more;     /* another operation follows at once, on all ranks: both start together; join and stream_wait start
                      an operation that waits for the next one */
    int64_t ready_ns, enqueued_ns; /* for the flight page: when its bucket was ready, and now. 0: not known */
    struct cdi_coll_times *times;  /* set before the operation is done, on the host; lives as long as in and out. NULL:
                                      not wanted. Zeroed before the first operation of a bucket */
    bool timed;                    /* on a device, of a bucket: coll_times will be asked */
    bool captured_mark; /* in a capture, of an operation without `more`: it has a ticket, for stream_wait alone */
    bool unmarked; /* no caller waits for it alone: join and stream_wait of its ticket wait for all that was enqueued.
                      Saves a device an event after it */
};

/* A stretch of memory, for pack and unpack. */
struct cdi_slice {
    void *data; /* pack only reads it. NULL: a gap in the packed memory, which is neither read nor written */
    size_t bytes;
};

/* Elements of one type, for norm and clip. */
struct cdi_span {
    void *x; /* norm only reads it */
    size_t count;
    cddp_dtype dtype; /* a floating-point type */
};

#define CDI_NORM_LINE 64 /* bytes of a gradient whose squares are added up in float64 */
/* The room of norm: the result, the words of the sum, and on a device those that blocks add to, zeros in between. */
#define CDI_NORM_ROOM (1 + 2 * CDI_EXACT_WORDS)

/* How clip computes a factor from the result of norm. */
struct cdi_clip {
    double max_norm;
    double factor;           /* the norm is that of the elements times this factor */
    bool largest;            /* as in the call of norm */
    const double *factor_at; /* on a device: in place of factor, read when the work runs. NULL: factor */
};

/* The arguments of a split. */
struct cdi_split {
    int color, key;
    const int *ranks; /* the n ranks of the part, in its order, as ranks of the job; copied. NULL: they are not known,
                         and its errors may lack the rank that caused them */
    int n;
    struct cdi_flight *record; /* for the records of its operations; outlives it */
    int64_t timeout_ms;        /* 0: that of the parent */
    const char *name;          /* of the part, copied; NULL: none */
    struct cdi_oob keys;       /* of the part, which may outlive its parent. NULL: those of its parent */
    struct cdi_watch watch;
};

/* Sets name, timeout, watch and keys of a part, whose world begins as a copy of its parent's. */
static inline void cdi_split_adopt(struct cdi_world *w, const struct cdi_split *how)
{
    const char *name = how->name != NULL ? how->name : "";
    size_t len = strnlen(name, sizeof w->name - 1);

    memcpy(w->name, name, len);
    w->name[len] = '\0';
    w->timeout_ms = how->timeout_ms > 0 ? how->timeout_ms : w->timeout_ms;
    w->watch = how->watch;
    if (how->keys.set != NULL)
        w->keys = how->keys;
}

struct cdi_backend; /* each backend's own */

/*
 * There are two kinds of backends. On the host, operations work on host memory, and the caller waits for them by join.
 * On a device, operations work on device memory (host memory costs copies). Streams of the device order the work; a
 * stream is a void *: a cudaStream_t, where NULL is the legacy stream of CUDA. wait_stream and stream_wait order a
 * stream and the operations without a wait of the host.
 */
struct cdi_backend_ops {
    const char *name;
    bool on_device;
    bool keeps_store; /* it uses the job's store until `leave`, which then precedes the goodbye in the store */

    /* Connects this rank with all ranks of the world; a collective. *out is set on success only. */
    cddp_status (*create)(struct cdi_backend **out, const struct cdi_world *world, struct cdi_error *err);
    /*
     * Tells the peers that this rank takes part in nothing more, before it waits for them to leave, too; `leave`
     * follows. Never blocks. NULL where keeps_store: then `leave` comes first.
     */
    void (*goodbye)(struct cdi_backend *b);
    /*
     * Ends the membership of this rank: it drops work that was not joined, and notifies its peers. Never blocks on
     * them. Regions and other memory stay. Afterwards only region_destroy, release, give_back and destroy are called.
     * Called once.
     */
    void (*leave)(struct cdi_backend *b);
    /* Frees *b; calls leave first if that was not done. NULL-safe. */
    void (*destroy)(struct cdi_backend *b);

    /* Creates a region; a collective of all ranks with equal `bytes`. All succeed or all get an error (CDDP_E_NOMEM).
     */
    cddp_status (*region_create)(struct cdi_backend *b, size_t bytes, struct cdi_region **out, struct cdi_error *err);
    /*
     * Frees a region; local. No operation on the region may be in flight on this rank; element functions may be: on a
     * device it waits for everything that was enqueued. Peers may still have it mapped. NULL-safe.
     */
    void (*region_destroy)(struct cdi_backend *b, struct cdi_region *r);

    /*
     * Creates a separate communicator for the ranks with the same color (>= 0), in the order of key, then of rank in b.
     * A collective of all ranks, after everything that was enqueued; blocks, at most for the join timeout. A negative
     * color: this rank is in no part, and *out = NULL. The caller destroys *out, before or after b; errors of one do
     * not spread to the other. Any thread. CDDP_OK, the sticky error, the errors of create. NULL: the members of each
     * part make it, as those of a group.
     */
    cddp_status (*split)(struct cdi_backend *b, const struct cdi_split *how, struct cdi_backend **out,
                         struct cdi_error *err);

    /*
     * Creates a communicator for some ranks of b; only these call it. `world` describes it as for create, with its
     * members in world->ranks and with separate keys. The caller destroys it, before or after b. NULL: create is used.
     * Any thread.
     */
    cddp_status (*group)(struct cdi_backend *b, const struct cdi_world *world, struct cdi_backend **out,
                         struct cdi_error *err);

    /*
     * Enqueues one operation and sets *ticket (1, 2, ...). Never blocks on peers. On a device, the first operation on
     * more than 64 KiB of host memory, and a fifth such operation at once, allocate memory, and the driver may wait for
     * running work. Any thread. CDDP_OK, the sticky error, CDDP_E_INVALID (memory of another device, see check_memory).
     */
    cddp_status (*enqueue)(struct cdi_backend *b, const struct cdi_coll *op, uint64_t *ticket, struct cdi_error *err);
    /*
     * Checks whether `calls` calls of enqueue and enqueue_group would be refused, with these n operations in all,
     * before the first of them begins anything. Other threads may still take the room. Any thread. CDDP_OK,
     * CDDP_E_LIMIT, CDDP_E_NOMEM, and CDDP_E_INVALID as of enqueue.
     */
    cddp_status (*can_enqueue)(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, size_t calls,
                               struct cdi_error *err);
    /*
     * Enqueues n > 0 operations as one, with one ticket: no operation of another thread runs between them. ops and
     * counts are copied. All are collectives, or all are SEND and RECV. In a group:
     * - SENDs and RECVs cannot block each other. Those between the same two ranks match in the order of the array.
     * - root may be this rank: the k-th SEND to it and the k-th RECV from it are a copy. The caller guarantees equal
     *   numbers of both, with equal counts and types.
     * - A BARRIER may precede SENDs and RECVs, with asked, count, dtype and root of the collective that they implement.
     *   All ranks have it. A backend that compares the calls of the ranks does so there; other backends skip it.
     * lazy and asked of the first operation hold for all. Otherwise as enqueue.
     */
    cddp_status (*enqueue_group)(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, uint64_t *ticket,
                                 struct cdi_error *err);
    /*
     * Does the backend reduce elements of this type by this operation? CDDP_OK; CDDP_E_UNSUPPORTED, and the message
     * names an alternative. The same on every rank. enqueue gets only what passes here. Any thread.
     */
    cddp_status (*check_reduction)(struct cdi_backend *b, cddp_dtype dtype, cddp_redop op, struct cdi_error *err);
    /* Enqueues a lazy operation and joins it. Any thread. NULL: both calls separately are as fast. */
    cddp_status (*run)(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_error *err);
    /* Waits until every operation up to ticket is done. CDDP_OK, the sticky error. Any thread. */
    cddp_status (*join)(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err);
    /*
     * Returns CDDP_IN_PROGRESS, CDDP_OK (every operation up to ticket is done), the sticky error, or CDDP_E_INVALID (no
     * such ticket). Never blocks, except where only threads of callers can run operations: there it is join. Any
     * thread.
     */
    cddp_status (*test)(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err);

    /*
     * Makes operations and element functions that are called later begin after all work that is now on `stream`. Never
     * blocks. On the host it has no effect. timed: coll_times tells when the device came there. Any thread. CDDP_OK,
     * CDDP_E_UNSUPPORTED (the stream captures a graph; nothing was done), the sticky error.
     */
    cddp_status (*wait_stream)(struct cdi_backend *b, void *stream, bool timed, struct cdi_error *err);
    /*
     * Makes later work on `stream` begin after every operation up to ticket is done; ticket 0: after everything that
     * was enqueued, element functions included. On a device it never blocks; on the host it is join. Any thread.
     * CDDP_OK, CDDP_E_UNSUPPORTED (as wait_stream), the sticky error (later calls report later failures).
     */
    cddp_status (*stream_wait)(struct cdi_backend *b, uint64_t ticket, void *stream, struct cdi_error *err);
    /*
     * Times of a device, in ns of CLOCK_MONOTONIC; the backend keeps those of the last hundreds of buckets and stamps.
     * NULL where operations have cdi_coll.times. Any thread.
     * stamp: records the place where `stream` is now, which is not being captured. Never blocks. Returns a number; 0:
     * nothing is timed, or too many stamps are ahead of the device.
     * stamp_time: false: the device has not come there, or the backend has not noticed it. *ns 0: it will not be known.
     * coll_times: of a bucket's operation; 0 for what is not known. *ready_ns: when the device had made the gradients.
     * Once the time of a later stamp is known, it is for good. The two also work after `leave`.
     */
    uint64_t (*stamp)(struct cdi_backend *b, void *stream);
    bool (*stamp_time)(struct cdi_backend *b, uint64_t stamp, int64_t *ns);
    void (*coll_times)(struct cdi_backend *b, uint64_t ticket, struct cdi_coll_times *times, int64_t *ready_ns);
    /*
     * For graphs of the program; NULL on the host. Sets *id to the capture that the stream is part of; 0: none.
     * CDDP_E_UNSUPPORTED (that capture has failed; the legacy stream waits for one). Does not end the capture. Any
     * thread.
     */
    cddp_status (*capture_of)(struct cdi_backend *b, void *stream, uint64_t *id, struct cdi_error *err);
    /* Is there an unfinished capture that contains work after capture_enter? Any thread. */
    bool (*capture_lives)(struct cdi_backend *b);
    /*
     * Makes the calls of this thread with b part of capture `id`, after the present work of its `stream`, until
     * capture_leave. The calls are enqueue and enqueue_group (of device memory; the ticket is 0, but for
     * captured_mark), wait_stream and stream_wait (with streams of that capture; after everything that was enqueued, or
     * after the operation of a ticket of that capture), pack, unpack, cast, scale. They wait for nothing, except until
     * NCCL has accepted the work. The last call before the end of the capture is stream_wait with ticket 0. CDDP_OK;
     * CDDP_E_STATE (another capture has such a part) or the sticky error: then do not call capture_leave. Any other
     * error of these calls means that the capture is unusable.
     */
    cddp_status (*capture_enter)(struct cdi_backend *b, void *stream, uint64_t id, struct cdi_error *err);
    void (*capture_leave)(struct cdi_backend *b);
    /*
     * On a device: sets *stream to the stream of operations and element functions, for work of the caller, which runs
     * after everything that was enqueued and before everything that is enqueued later. The device is current in the
     * calling thread until it calls stream_release, which must follow a success; in between the backend may be used as
     * usual. Never blocks on peers. Any thread. CDDP_OK, the sticky error. NULL on the host.
     */
    cddp_status (*stream_acquire)(struct cdi_backend *b, void **stream, struct cdi_error *err);
    void (*stream_release)(struct cdi_backend *b);

    /*
     * On a device: makes several calls of one thread cheaper, until let_go. The thread runs no code of the program in
     * between, and calls are not nested. Any thread. CDDP_OK: let_go must follow. CDDP_E_SYSTEM: nothing was done. NULL
     * on the host.
     */
    cddp_status (*hold)(struct cdi_backend *b, struct cdi_error *err);
    void (*let_go)(struct cdi_backend *b);

    /* Allocates memory of the backend: at least 64-byte aligned, not cleared. release is NULL-safe. Any thread. */
    cddp_status (*alloc)(struct cdi_backend *b, size_t bytes, void **out, struct cdi_error *err);
    void (*release)(struct cdi_backend *b, void *p);
    /* Do operations on memory outside regions cost copies? The same on all ranks. NULL: they do not. */
    bool (*copies_private)(const struct cdi_backend *b);
    /* On a device: the same for host memory that copies are fastest with. NULL on the host. */
    cddp_status (*alloc_host)(struct cdi_backend *b, size_t bytes, void **out, struct cdi_error *err);
    void (*release_host)(struct cdi_backend *b, void *p);
    /* Is this memory of the device of the backend? False for host memory. Any thread. NULL on the host. */
    bool (*is_device)(struct cdi_backend *b, const void *p);
    /*
     * Can the backend use this memory? CDDP_OK, also for host memory; CDDP_E_INVALID (memory of another device: the
     * message names both); CDDP_E_SYSTEM. is_device is true for memory that is rejected here, so that no caller treats
     * it as host memory; enqueue and copy reject it themselves. Any thread. NULL: it can.
     */
    cddp_status (*check_memory)(struct cdi_backend *b, const void *p, struct cdi_error *err);
    /*
     * Copies between any two of host and device, after everything that was enqueued. On return the copy and all earlier
     * work are done, also where bytes is 0. The caller has waited for other streams that use the memory. Any thread.
     */
    cddp_status (*copy)(struct cdi_backend *b, void *to, const void *from, size_t bytes, struct cdi_error *err);
    /*
     * Copies likewise, but waits for no other work and starts none, also after the communicator has failed: for a
     * thread that reads or writes a file. No work in flight may use the memory. Any thread. NULL on the host.
     */
    cddp_status (*move)(struct cdi_backend *b, void *to, const void *from, size_t bytes, struct cdi_error *err);
    /*
     * Allocates memory of the device for a while, 256-byte aligned. Unlike release, neither call waits for running
     * work. Returns NULL if less than twice as much is free, since the program may need the rest, or if the allocation
     * fails. give_back is NULL-safe. Any thread. NULL on the host.
     */
    void *(*borrow)(struct cdi_backend *b, size_t bytes);
    void (*give_back)(struct cdi_backend *b, void *p);
    /* Describes the device. Never fails. Any thread. */
    void (*describe)(struct cdi_backend *b, cddp_device_info *out);

    /* Returns CDDP_OK or the sticky error. Any thread. */
    cddp_status (*health)(struct cdi_backend *b, struct cdi_error *err);
    /*
     * Returns the same, but never waits, not even for an abort in progress. It also reports what this rank would only
     * find in its next wait: that a peer has aborted or died. Any thread.
     */
    cddp_status (*peek)(struct cdi_backend *b, struct cdi_error *err);
    /*
     * Returns CDDP_E_PEER if one of these n ranks of the job is known to have died, whatever other error b has;
     * otherwise CDDP_OK. Any thread. NULL: the backend does not know.
     */
    cddp_status (*check_ranks)(struct cdi_backend *b, const int *of_job, int n, struct cdi_error *err);
    /*
     * Makes every wait, here and on peers, return this error (CDDP_E_ABORTED), by this rank if it names none. Any
     * thread, repeatable.
     */
    void (*abort)(struct cdi_backend *b, const struct cdi_error *why);
    /* Has any rank aborted, as far as this rank knows without a wait? NULL where keeps_store. Any thread. */
    bool (*is_aborted)(struct cdi_backend *b);

    /*
     * Element functions: local, on memory of the backend, ordered before operations that are enqueued later. On the CPU
     * the calling thread does the work before it returns. On a device the work runs after everything that was enqueued,
     * and stream_wait with ticket 0 orders a stream after it. Any thread. Slices and
     * arrays do not overlap, except that scale works in place. CDDP_OK, CDDP_E_INVALID (a type that the function does
     * not support); on a device also the sticky error.
     */
    /* Copy n slices one after another into `to`, or back. */
    cddp_status (*pack)(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n, struct cdi_error *err);
    cddp_status (*unpack)(struct cdi_backend *b, const struct cdi_slice *to, size_t n, const void *from,
                          struct cdi_error *err);
    /*
     * Packs elements of a floating-point type, each multiplied by factor as scale does it. All slices begin and end
     * with whole elements.
     */
    cddp_status (*pack_scaled)(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                               cddp_dtype dtype, double factor, struct cdi_error *err);
    /*
     * On a device: packs, but skips slice i, unless it is a gap, if flags[of[i]] is not 0 when the work runs; flags is
     * memory of the device. NULL on the host.
     */
    cddp_status (*pack_unless)(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                               const uint8_t *flags, const uint32_t *of, struct cdi_error *err);
    /*
     * Converts between float32 and float16 or bfloat16, in both directions: multiplies by factor in float32, then
     * rounds to nearest, ties to even. A NaN stays a NaN.
     */
    cddp_status (*cast)(struct cdi_backend *b, void *to, cddp_dtype to_type, const void *from, cddp_dtype from_type,
                        size_t count, float factor, struct cdi_error *err);
    /* Multiplies each x[i] by factor, which has float32 precision except for float64. Floating-point types. */
    cddp_status (*scale)(struct cdi_backend *b, void *x, size_t count, cddp_dtype dtype, double factor,
                         struct cdi_error *err);
    /*
     * On a device: finds numbers that are not finite in n spans. *word, memory of the device, becomes the largest of
     * its value and of word_of[k] | kind for each element of x[k] whose magnitude has bits of at least `limit`
     * (math/nonfinite.h); `kind` is enum cdi_nonfinite. x and word_of are copied, and nothing waits for the result.
     * NULL on the host.
     */
    cddp_status (*find_nonfinite)(struct cdi_backend *b, const struct cdi_span *x, const uint64_t *word_of, size_t n,
                                  uint64_t limit, uint64_t *word, struct cdi_error *err);
    /*
     * Computes, over all n spans, the sum of the squares, or with `largest` the largest magnitude, where a NaN counts
     * as more than infinity. Stores it in *out, which is the first of CDI_NORM_ROOM numbers in memory of the backend,
     * zeros before the first call, that no other work uses meanwhile.
     *
     * Squares are added up in float64 in each line of CDI_NORM_LINE bytes, counted from the span's first element: in
     * each 16 bytes the second half is added to the first until one number is left, and so are the four numbers of the
     * line. What the last line lacks counts as zeros. The sum of all lines is exact, and rounded once: *out is followed
     * by its CDI_EXACT_WORDS words. So the bits depend neither on the order of spans, nor on cuts between lines.
     */
    cddp_status (*norm)(struct cdi_backend *b, const struct cdi_span *x, size_t n, bool largest, double *out,
                        struct cdi_error *err);
    /* Stores in *out the sum that the words after it have, to which those of other norms may have been added. */
    cddp_status (*norm_round)(struct cdi_backend *b, double *out, struct cdi_error *err);
    /*
     * Scales n spans by max_norm / (norm + 1e-6) if that is below 1 or a NaN. The norm is computed from *sum, the
     * result of norm in memory of the backend, when the work runs.
     */
    cddp_status (*clip)(struct cdi_backend *b, const struct cdi_span *x, size_t n, const struct cdi_clip *how,
                        const double *sum, struct cdi_error *err);
    /*
     * On a device: sum[k], memory of the device, becomes the sum of the words of slice k (math/hash64.h). A gap
     * has the sum 0. Nothing waits for the result. NULL on the host.
     */
    cddp_status (*hash)(struct cdi_backend *b, const struct cdi_slice *x, size_t n, uint64_t *sum,
                        struct cdi_error *err);
    /*
     * On a device: stores n numbers, at most 2, in the order of `stream`: its earlier work finds the old ones, its
     * later work the new ones. Never blocks. CDDP_OK, CDDP_E_UNSUPPORTED (as wait_stream), the sticky error. NULL on
     * the host.
     */
    cddp_status (*store)(struct cdi_backend *b, double *to, const double *value, size_t n, void *stream,
                         struct cdi_error *err);
    /*
     * On a device, in a capture: counts a launch, and tells the host about words[1] if it is not 0 (cdi_report in
     * kernel.h). words: three of the device's; report: of alloc_host. NULL on the host.
     */
    cddp_status (*report)(struct cdi_backend *b, uint64_t *words, struct cdi_nan_report *report, struct cdi_error *err);
    /* On a device: sets memory to zeros. NULL on the host, where the caller uses memset. */
    cddp_status (*clear)(struct cdi_backend *b, void *p, size_t bytes, struct cdi_error *err);
    /* Run a step of the optimizer: the first counts its rows, the second updates the pieces with them (optim_row.h). */
    cddp_status (*optim_count)(struct cdi_backend *b, const struct cdi_optim_step *s, struct cdi_error *err);
    cddp_status (*optim_update)(struct cdi_backend *b, const struct cdi_optim_step *s,
                                const struct cdi_optim_piece *piece, size_t n, struct cdi_error *err);
    /* Does what cdi_lowrank_do() does on memory of the device, with equal bits where numbers are finite. */
    cddp_status (*lowrank)(struct cdi_backend *b, enum cdi_lowrank_step step, const struct cdi_lowrank_matrix *m,
                           size_t n, double epsilon, struct cdi_error *err);
};

/*
 * Allocates zeroed memory; on a device in the order of the stream, so that the host does not wait. After an error *out
 * may still be memory, which the caller releases.
 */
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

static inline bool cdi_backend_is_device(const struct cdi_backend_ops *ops, struct cdi_backend *b, const void *p)
{
    return ops->on_device && ops->is_device(b, p);
}

extern const struct cdi_backend_ops cdi_cpu_backend;

#endif
