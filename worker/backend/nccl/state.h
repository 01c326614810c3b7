/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one NCCL communicator, and what the files of this folder do with it.
 *
 * Threads. Callers and the watch thread meet under three locks. `lock` covers the ring of operations and every call
 * into NCCL on comm. Calls that may wait for peers are made by a thread of NCCL's (a non-blocking communicator) or by
 * the one aside (a blocking one); they are polled under the lock, and the polling ends when the communicator has
 * failed. `word` covers the sticky error and is never held for long, so that an error can be told and heard while
 * somebody polls. `page` covers what the watch thread looks at: the ring, how far it is, and the flight page; who has
 * `lock` may read that without it, but for `done`. It is held over no call of CUDA's or NCCL's: a stream that is full
 * makes callers wait in the driver, with `lock`, until it has gone on. Order: lock, page, word.
 *
 * An operation's way: its ticket is given and noted in the flight page (pending, if another one follows at once) ->
 * begun: NCCL was called, behind a write of the ticket on the communication stream -> issued: NCCL has put it there,
 * and a write behind it is, too -> started, done, as the words say that the stream has written -> its slot in the ring
 * is free. Between begun and issued a call may be "in progress" in another thread: the caller leaves, and the next one
 * (or the tending thread) asks until it is not. Nothing waits for the GPU but join, scan, region_create, split and
 * destroy.
 *
 * The watch thread reads words of memory and makes no call of CUDA, nor takes `lock`, before it aborts comm; so no
 * other thread's call of the driver can keep it from hearing. NCCL's calls on comm are made inside, between
 * cdi_nccl_enter and _leave: the abort waits a moment for who is there, and nobody comes in afterwards.
 */
#ifndef CDI_NCCL_STATE_H
#define CDI_NCCL_STATE_H

#include "worker/backend/nccl/call_thread.h"
#include "worker/backend/nccl/device.h"
#include "worker/backend/nccl/launch_shape.h"
#include "worker/backend/nccl/teardown.h"
#include "worker/backend/peer_error.h"

#include <pthread.h>
#include <stdatomic.h>

#define CDI_GROUP_MAX 16                  /* operations held back, to be started together */
#define CDI_GROUP_BYTES ((size_t)4 << 20) /* larger ones start at once: they gain nothing */
#define CDI_RING_FIRST 256                /* slots; a power of two; grows */
#define CDI_RING_LIMIT 65536
#define CDI_OP_TEXT 320
#define CDI_TOKEN_BYTES 64
#define CDI_TOKEN_COUNT_AT 32 /* in the token: see cdi_completion_done_by_kernel */
#define CDI_DRAIN_MS 2000     /* for what is left on a stream, when nothing on it waits for peers any more */
#define CDI_KEY_BYTES CDI_WORD_KEY_BYTES
#define CDI_NAME_BYTES 128 /* of a key without its prefix */

/* Host memory on its way to the device and back: one block of each. */
struct cdi_staged {
    uint64_t ticket;
    uint8_t *pinned, *device;
    size_t cap, in_bytes, out_bytes, out_at;
    void *out; /* the caller's; NULL: nothing comes back */
    struct cdi_staged *next;
};

/* One operation, as it is given to NCCL (device memory), and what it has of the host's. */
struct cdi_part {
    struct cdi_coll op;
    struct cdi_staged *staged; /* NULL: nothing */
};

/* Operations that were enqueued as one, in a group of NCCL's of their own. */
struct cdi_op_group {
    size_t n;
    const struct cdi_coll **ops; /* those of the parts, for NCCL's calls; behind them own copies of counts */
    struct cdi_part part[];
};

struct cdi_slot {
    struct cdi_part one; /* of several the first one, as it was enqueued, for messages alone */
    size_t *counts;      /* own copy of one.op.counts */
    struct cdi_op_group *several;
    uint64_t last; /* of those begun with it: they start and end together */
    CUevent done;  /* behind them, for streams that wait: of the last one; stays with the slot */
    bool marked;   /* of the last one: done is behind them. Else all of them are op.unmarked */
    uint64_t flight_seq;
    uint64_t number;    /* among those that every rank calls; 0: messages, of which ranks have more or fewer */
    int64_t started_ms; /* 0: not seen to have started */
    bool issued;
};

/* Pinned memory, a word to a line: the tickets up to which the stream has come. Only their low halves: see
 * cdi_ticket_reached. */
struct cdi_completion_words {
    _Alignas(64) _Atomic uint32_t started;
    _Alignas(64) _Atomic uint32_t done;
    _Alignas(64) _Atomic uint32_t drained;
};

enum cdi_arena_kind { CDI_ARENA_NONE, CDI_ARENA_PLAIN, CDI_ARENA_REGISTERED, CDI_ARENA_WINDOW };

/* An operation, for sentences ("": none), and since when it runs (0: it has not started). */
struct cdi_glance {
    char op[CDI_OP_TEXT];
    int64_t since_ms;
    uint64_t ticket;
    uint64_t number; /* the same on every rank; 0: messages */
};

struct cdi_gpu_region {
    struct cdi_region base; /* first: what the table gives is its address */
    enum cdi_arena_kind kind;
    bool from_nccl;    /* ncclMemAlloc */
    CUdeviceptr plain; /* the driver's memory around it; 0: none */
    void *handle;
    ncclWindow_t window;
    struct cdi_gpu_region *next; /* of b->windows, */
    bool listed, dead;           /* if it is among them; and destroyed by this rank */
    struct cdi_gpu_region *next_alive;
};

/*
 * What a call that may wait for peers works with. It lies here, because such a call may outlive the wait for it: in a
 * thread of NCCL's, or in the one aside.
 */
struct cdi_call {
    ncclComm_t comm; /* that it is about; of a join: that it makes */
    ncclUniqueId *ids;
    int roots, color, key;
    ncclConfig_t config;
    struct cdi_gpu_region *region;
    struct cdi_coll op[CDI_GROUP_MAX];          /* copies, where they could go away under the call */
    const struct cdi_coll *list[CDI_GROUP_MAX]; /* for ops */
    const struct cdi_coll *const *ops;
    size_t n_ops;
    CUstream stream; /* on which they go */
};

/* Operations that are part of CUDA graphs: see graph_capture.h. */
struct cdi_replay_counts;  /* memory that graphs count in */
struct cdi_captured_group; /* collectives of a graph that start together */

struct cdi_capture {
    CUevent mark, tail;
    struct cdi_coll held[CDI_GROUP_MAX]; /* that start together with the next one */
    size_t n_held;
    struct cdi_replay_counts *counts;
    size_t room;
    /* With the lock `page`: */
    struct cdi_captured_group **group; /* in the order of the program */
    atomic_size_t n_groups;
    const struct cdi_captured_group *last;     /* that was seen to have begun */
    const struct cdi_captured_group *standing; /* that a replay is in; NULL: none */
    uint64_t begun, ended;                     /* groups, in all replays */
};

struct cdi_backend {
    struct cdi_world world;        /* of this communicator */
    struct cdi_flight *own_flight; /* of a part */
    int *ranks;                    /* of a part: world.ranks */
    struct cdi_flight *record;     /* where operations are noted */
    struct cdi_device device;
    char prefix[CDI_WORD_PREFIX_MAX]; /* before each key, and in the communicator's name */
    struct cdi_teardown *leave;       /* for comm's end. NULL: it was needed */
    ncclComm_t comm;                  /* NULL: none, or aborted */
    struct cdi_call_thread *aside;   /* comm is a blocking one, and this has the calls that may wait. NULL: it is not */
    struct cdi_call call;            /* with `lock` */
    struct cdi_launch_shapes shapes; /* of operations; with `lock` */
    ncclComm_t child;                /* where NCCL puts a part's communicator; with `lock` */
    ncclResult_t refused;            /* what settle has met last; with `lock` */
    uint32_t n_splits;
    bool old_gpu; /* of some rank of the job: see reduction_support.h */
    struct {
        bool windows, registration; /* of regions: see region.c */
    } use;
    struct cdi_gpu_region *windows; /* in the order of their making; with `lock` */
    struct cdi_gpu_region *alive;   /* all that this rank has not destroyed; with `lock` */
    bool left, rests; /* nothing but memory is left of it; and NCCL has come back from all it was asked to do */

    pthread_mutex_t lock, page;
    struct cdi_slot *ring;
    size_t ring_size;
    uint64_t given, begun, issued, done; /* tickets: all up to it */
    uint64_t n_collectives;              /* of those given */
    int64_t begun_ms;                    /* when those from issued on were begun */
    size_t pending_bytes;
    struct cdi_completion_words *words;
    unsigned lent;                   /* the communication stream, to so many */
    CUevent mark, tail;              /* for follow; for lead behind everything */
    struct cdi_capture captured;     /* with `lock`, but for what it says */
    void *token;                     /* CDI_TOKEN_BYTES of device memory, for barriers, and for kernels that tell */
    struct cdi_staged *out_staged;   /* whose results were not taken yet, in order of tickets */
    _Atomic uint64_t brought;        /* tickets up to which somebody has taken them; written with `lock` */
    struct cdi_staged *spare_staged; /* blocks to be used again */

    pthread_mutex_t scan_lock;
    struct cdi_scan_found *scan_pinned, *scan_device;
    CUevent scan_event;
    double *partial; /* CDI_TALLY_BLOCKS of the device's, zeros between two tallies; used on the stream alone */

    pthread_mutex_t copy_lock; /* one copy of the caller's at a time waits by copy_event */
    CUevent copy_event;

    pthread_mutex_t word;
    pthread_cond_t news; /* for the two threads: work, failure, the end. For joiners: aborted */
    pthread_t watch, tender;
    bool watching, tending, busy, stopping, ended; /* ended: nothing runs any more after a failure */
    bool abandoned;                                /* something still does, in a call of NCCL's that cannot be ended */
    bool held;                                     /* the program's graphs may hold up the abort: nobody waits for it */
    bool complete, told;                           /* after a failure: the sentence; the peers */
    bool late;                                     /* the failure is a deadline's: */
    struct cdi_glance late_op;                     /* of what was not done in time, */
    struct cdi_rank_list late_peers;               /* with whom, where these are messages; */
    bool named;                                    /* and who did not come to it is known */
    atomic_bool ask_store;                         /* somebody is to; the tending thread takes it */
    atomic_int in_store;                           /* threads that are at it */
    atomic_bool telling, told_by_peer; /* by peer: the error came from the store: no need to tell it there */
    bool aborted;                      /* comm is gone; of the watch thread, until that has ended */
    atomic_int inside;                 /* NCCL's calls on comm */
    atomic_bool failed;
    struct cdi_error error;
};

/* The slot of one of the last ring_size tickets. With `lock` or `page`. */
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
