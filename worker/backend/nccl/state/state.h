/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one NCCL communicator. The functions on it are in the headers beside this one, which use each other in
 * this order only: health < ring < failure, stamps < stage, nccl_call < issue < graph_capture < operation < wait <
 * region, communicator, element_ops < watch < nccl.
 *
 * Threads. Callers, the watch thread and the progress thread share three locks. `lock` protects the ring of operations
 * and every call of NCCL on comm. Calls that may wait for peers are made by a thread of NCCL (non-blocking
 * communicator) or by the call thread (blocking one). Callers poll them under the lock, until they are done or the
 * communicator has failed. `error_lock` protects the sticky error. It is never held for long, so that an error can be
 * set and read while another thread polls. `ring_lock` protects the data that the watch thread reads: the ring, how
 * far it has come, and the flight page. A thread with `lock` may read these without it, except for `done`. No call of
 * CUDA or NCCL is made with `ring_lock`: when a stream is full, callers wait in the driver, with `lock`, until it has
 * gone on. Order: lock, ring_lock, error_lock.
 *
 * States of an operation: enqueued (it has a ticket, and is in the flight page; pending, if another one follows at
 * once: no other thread may begin it meanwhile, since NCCL wants the same groups on all ranks); begun (NCCL was called,
 * after a write of the ticket on the communication stream); issued (NCCL has put it there, followed by another write);
 * started and done, when the stream has written these words. Then its slot in the ring is free. Between begun and
 * issued a call may be "in progress" in another thread: the caller returns, and the next caller or the progress thread
 * polls until it is done. Only join, region_create, split and destroy wait for the GPU.
 *
 * The watch thread reads words of memory. It makes no call of CUDA and takes no `lock` before it aborts comm, so that
 * no other thread's call of the driver can delay it. NCCL's calls on comm are made between cdi_nccl_enter and _leave:
 * the abort waits a moment for calls that are inside, and no other call enters afterwards.
 */
#ifndef CDI_NCCL_STATE_H
#define CDI_NCCL_STATE_H

#include "worker/backend/nccl/device/call_thread.h"
#include "worker/backend/nccl/device/device.h"
#include "worker/backend/nccl/device/launch_shape.h"
#include "worker/backend/nccl/device/teardown.h"
#include "worker/backend/peer_error.h"

#include <pthread.h>
#include <stdatomic.h>

#define CDI_CAPTURE_MARKS 64              /* operations of a capture that a stream can wait for alone */
#define CDI_GROUP_MAX 16                  /* pending operations, which start together */
#define CDI_GROUP_BYTES ((size_t)4 << 20) /* larger operations start at once: a group does not make them faster */
#define CDI_RING_FIRST 256                /* slots; a power of two; grows */
#define CDI_RING_LIMIT 65536
#define CDI_OP_TEXT 320
#define CDI_TOKEN_BYTES 64
#define CDI_TOKEN_COUNT_AT 32 /* in the token: see cdi_completion_done_by_kernel */
#define CDI_DRAIN_MS 2000     /* for the rest of a stream, when nothing on it waits for peers any more */
#define CDI_KEY_BYTES CDI_PEER_ERROR_KEY_BYTES
#define CDI_NAME_BYTES 128 /* of a key without its prefix */

/* Host memory on its way to the device and back: one block of each. */
struct cdi_staging {
    uint64_t ticket;
    uint8_t *pinned, *device;
    size_t cap, in_bytes, out_bytes, out_at;
    void *out; /* the caller's; NULL: no result */
    struct cdi_staging *next;
};

/* One operation as NCCL gets it (on device memory), and the block for its host memory. */
struct cdi_ring_op {
    struct cdi_coll op;
    struct cdi_staging *staged; /* NULL: it has no host memory */
};

/* Operations that were enqueued as one; NCCL gets them as a group. */
struct cdi_op_group {
    size_t n;
    const struct cdi_coll **ops; /* those of op[], for NCCL's calls; copies of their counts follow in memory */
    struct cdi_ring_op op[];
};

struct cdi_slot {
    struct cdi_ring_op one; /* of a group the first operation, as it was enqueued, for messages alone */
    size_t *counts;         /* copy of one.op.counts */
    struct cdi_op_group *group;
    uint64_t last; /* the last ticket that was begun with this one: they start and end together */
    CUevent done;  /* recorded after ticket `last`, for streams that wait; belongs to the slot */
    bool marked;   /* of ticket `last`: done is recorded. Otherwise all of these operations are op.unmarked */
    uint64_t flight_seq;
    uint64_t number;    /* among the operations that every rank calls; 0: messages, whose number differs by rank */
    int64_t started_ms; /* 0: not seen to have started */
    bool issued;
};

/*
 * Pinned memory, a word to a cache line: the last tickets that the stream has reached. Only their low halves: see
 * cdi_ticket_reached.
 */
struct cdi_completion_words {
    _Alignas(64) _Atomic uint32_t started;
    _Alignas(64) _Atomic uint32_t done;
    _Alignas(64) _Atomic uint32_t drained;
};

enum cdi_arena_kind { CDI_ARENA_NONE, CDI_ARENA_PLAIN, CDI_ARENA_REGISTERED, CDI_ARENA_WINDOW };

/* An operation, for error messages ("": none), and since when it runs (0: it has not started). */
struct cdi_op_info {
    char op[CDI_OP_TEXT];
    int64_t since_ms;
    uint64_t ticket;
    uint64_t number; /* the same on every rank; 0: messages */
};

struct cdi_gpu_region {
    struct cdi_region base; /* first: the backend's functions return its address */
    enum cdi_arena_kind kind;
    bool from_nccl;    /* ncclMemAlloc */
    CUdeviceptr plain; /* the driver's memory around it; 0: none */
    void *handle;
    ncclWindow_t window;
    struct cdi_gpu_region *next; /* of b->windows, */
    bool listed, dead;           /* whether it is among them; and destroyed by this rank */
    struct cdi_gpu_region *next_alive;
};

/*
 * The arguments of a call that may wait for peers. They are part of the backend, because such a call may outlive the
 * wait for it: in a thread of NCCL, or in the call thread.
 */
struct cdi_call {
    ncclComm_t comm; /* the communicator of the call, or the one that a join makes */
    ncclUniqueId *ids;
    int roots, color, key;
    ncclConfig_t config;
    struct cdi_gpu_region *region;
    struct cdi_coll op[CDI_GROUP_MAX];          /* copies, where the originals may go away during the call */
    const struct cdi_coll *list[CDI_GROUP_MAX]; /* for ops */
    const struct cdi_coll *const *ops;
    size_t n_ops;
    CUstream stream; /* for these operations */
};

/* Operations that are part of CUDA graphs: see graph_capture.h. */
struct cdi_replay_counts;  /* memory that graphs count in */
struct cdi_captured_group; /* collectives of a graph that start together */

struct cdi_capture {
    CUevent mark, tail;
    CUevent after[CDI_CAPTURE_MARKS];    /* after the last operations with cdi_coll.captured_mark, by their tickets */
    uint64_t marks;                      /* such tickets so far */
    struct cdi_coll held[CDI_GROUP_MAX]; /* pending operations, which start together with the next one */
    size_t n_held;
    struct cdi_replay_counts *counts;
    size_t room;
    /* With `ring_lock`: */
    struct cdi_captured_group **group; /* in the order of the program */
    atomic_size_t n_groups;
    const struct cdi_captured_group *last;    /* the last one that was seen to have begun */
    const struct cdi_captured_group *current; /* the one that a replay is in; NULL: none */
    uint64_t begun, ended;                    /* groups, in all replays */
};

struct cdi_backend {
    struct cdi_world world;    /* of this communicator */
    int *ranks;                /* of a subcommunicator: world.ranks */
    struct cdi_flight *record; /* the flight page in which operations are recorded */
    struct cdi_device device;
    char prefix[CDI_PEER_ERROR_PREFIX_MAX]; /* of each key, and of the communicator's name */
    struct cdi_teardown *teardown;          /* for comm's end. NULL: it is in use */
    ncclComm_t comm;                        /* NULL: none, or aborted */
    struct cdi_call_thread *call_thread;    /* makes the calls on a blocking comm that may wait. NULL: non-blocking */
    struct cdi_call call;                   /* with `lock` */
    struct cdi_launch_shapes shapes;        /* of operations; with `lock` */
    ncclComm_t child;                       /* NCCL writes a subcommunicator to it; with `lock` */
    uint32_t n_splits;
    bool old_gpu; /* of some rank of the job: see reduction_support.h */
    struct {
        bool windows, registration; /* of regions: see region.c */
    } use;
    struct cdi_gpu_region *windows; /* in the order of creation; with `lock` */
    struct cdi_gpu_region *alive;   /* all that this rank has not destroyed; with `lock` */
    bool has_left, is_idle; /* it has left the communicator; and NCCL has returned from every call that was made */

    pthread_mutex_t lock, ring_lock;
    struct cdi_slot *ring;
    size_t ring_size;
    uint64_t enqueued, begun, issued, done; /* the last ticket in each state: see above */
    uint64_t ready;                         /* the last one that may begin: of later ones, more are to come */
    uint64_t n_collectives;                 /* of those enqueued */
    _Atomic uint64_t reached;               /* the number of the last one that has started, or waits in its launch */
    struct cdi_peer_place place, replays;   /* what peers know of `reached`, and of replays; the progress thread's */
    int64_t begun_ms;                       /* when the tickets after `issued` were begun */
    size_t pending_bytes;
    struct cdi_completion_words *words;
    struct cdi_gpu_timestamps *stamps; /* private to gpu_timestamps.c. NULL: nothing is timed */
    _Atomic uint64_t n_stamped, n_stamps_read;
    unsigned n_acquired;         /* users of the communication stream */
    CUevent mark, tail;          /* for wait_stream; for stream_wait on everything */
    struct cdi_capture captured; /* with `lock`, except as remarked there */
    void *token;                 /* CDI_TOKEN_BYTES of device memory, for barriers and for kernels that write words */
    struct cdi_staging *results; /* that were not delivered yet, in the order of tickets */
    _Atomic uint64_t delivered;  /* the last ticket whose results were; written with `lock` */
    struct cdi_staging *free_staging;

    pthread_mutex_t copy_lock; /* one copy of the caller's at a time waits for copy_event */
    CUevent copy_event;

    pthread_mutex_t error_lock;
    pthread_cond_t changed; /* signals work, failure and the end to both threads; to joiners the abort */
    pthread_t watch, progress;
    bool watch_runs, progress_runs, busy, stopping, ended; /* ended: nothing runs any more after a failure */
    bool watches;                         /* the watch thread makes no call of the driver before a failure any more */
    bool abandoned;                       /* a call of NCCL that cannot be ended is still under way */
    bool held_by_graphs;                  /* graphs of the program may delay the abort: no thread waits for it */
    bool complete, notified;              /* after a failure: the error message is complete; the peers are notified */
    bool timed_out;                       /* the failure is a timeout: */
    struct cdi_op_info timed_out_op;      /* of this operation, */
    struct cdi_rank_list timed_out_peers; /* with these ranks, if these are messages; */
    bool late_ranks_known;                /* and the ranks that are late are in the error message */
    atomic_bool check_store;              /* a request to the progress thread */
    atomic_int n_in_store;                /* threads that are waiting for the store */
    atomic_bool notifying, from_peer;     /* from_peer: the error was in the store already */
    bool aborted;                         /* comm is gone; the watch thread's, until that has ended */
    atomic_int n_inside;                  /* NCCL's calls on comm */
    atomic_bool failed;
    struct cdi_error error;
};

/* Returns the slot of one of the last ring_size tickets. With `lock` or `ring_lock`. */
static inline struct cdi_slot *cdi_slot_of(const struct cdi_backend *b, uint64_t ticket)
{
    return &b->ring[ticket & (b->ring_size - 1)];
}

/* Returns whether the region is a window that all ranks have registered. NULL: it is not. */
static inline bool cdi_gpu_is_window(const struct cdi_region *r)
{
    return r != NULL && ((const struct cdi_gpu_region *)(const void *)r)->kind == CDI_ARENA_WINDOW;
}

#endif
