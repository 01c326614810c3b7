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
#include "worker/backend/nccl/graph_capture.h"
#include "worker/backend/nccl/launch_shape.h"
#include "worker/backend/nccl/teardown.h"
#include "worker/backend/nccl/ticket.h"
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
struct cdi_several {
    size_t n;
    const struct cdi_coll **ops; /* those of the parts, for NCCL's calls; behind them own copies of counts */
    struct cdi_part part[];
};

struct cdi_slot {
    struct cdi_part one; /* of several the first one, as it was enqueued, for messages alone */
    size_t *counts;      /* own copy of one.op.counts */
    struct cdi_several *several;
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

/* ---------------------------------------------------------------------------------------- failing (watch.c) ---- */

/* The first error stays; the watch thread then completes the flight page, aborts the communicator and tells the peers.
 * Any thread, with or without `lock`. Returns err's status. */
cddp_status cdi_gpu_fail(struct cdi_backend *b, const struct cdi_error *err);
/*
 * CDDP_OK or the sticky error; also looks whether the agent has spoken. After a failure _health waits, at most a few
 * seconds, until nothing of this communicator runs on the GPU any more (never with `lock`); _health_now does not wait.
 */
cddp_status cdi_gpu_health(struct cdi_backend *b, struct cdi_error *err);
cddp_status cdi_gpu_health_now(struct cdi_backend *b, struct cdi_error *err);
/* False: the communicator has failed, and its end was waited for in vain, so that anything of it may still be in use.
 */
bool cdi_gpu_is_at_rest(struct cdi_backend *b);
/*
 * The operation has not been done in time: fail. Waits for nothing: who did not come to it the tending thread adds to
 * the sentence, so that it is complete after cdi_gpu_health. With `lock` or without, without `word`.
 */
void cdi_gpu_too_late(struct cdi_backend *b, const struct cdi_glance *what);
/* After a failure: ask the store who was late, if that was why, and say so. No lock is held. */
void cdi_watch_name_late(struct cdi_backend *b);
/* There is work for the watch thread: an operation, or a call that all ranks take part in. With `lock`. */
void cdi_gpu_busy(struct cdi_backend *b);
cddp_status cdi_watch_start(struct cdi_backend *b, struct cdi_error *err);
/* Around NCCL's calls on comm. False: the communicator has failed, and there may be no comm any more. Any thread. */
bool cdi_nccl_enter(struct cdi_backend *b);
void cdi_nccl_leave(struct cdi_backend *b);
/* Has a peer said in the store that it failed? Then this communicator has, too. */
void cdi_watch_listen(struct cdi_backend *b);
/* Tell the peers, once the error's sentence is complete, unless that was done. */
void cdi_watch_tell(struct cdi_backend *b);
/*
 * A pause, as long as there is work; where there was none, *idle_until_ms (or NULL) is when that ended. False: the
 * communicator has failed, or is to end.
 */
bool cdi_watch_pause(struct cdi_backend *b, int64_t ms, int64_t *idle_until_ms);
/* A thread that no signal reaches, with a small stack. */
cddp_status cdi_watch_thread(struct cdi_backend *b, pthread_t *out, void *(*run)(void *b), struct cdi_error *err);
/*
 * Ends both threads; after a failure the communicator is aborted. False: the abort does not come back; b must stay.
 */
bool cdi_watch_stop(struct cdi_backend *b);

/* -------------------------------------------------------------------------- the communicator (communicator.c) ---- */

/* What a rank can fail in alone has been tried; `local` says how it went. All ranks agree whether to go on. Then comm.
 */
cddp_status cdi_communicator_join(struct cdi_backend *b, const struct cdi_error *local, bool share,
                                  struct cdi_error *err);
/*
 * Make a call that may wait for peers, on b or on what is in b->call: here where communicators do not block, else
 * aside. Returns what it has returned, or ncclInProgress.
 */
ncclResult_t cdi_communicator_call(struct cdi_backend *b, ncclResult_t (*fn)(void *b));
/*
 * What comm (of b, or made by it) says of itself after a call that has returned r: r alone is believed only where it is
 * an error.
 */
ncclResult_t cdi_communicator_state(struct cdi_backend *b, ncclComm_t comm, ncclResult_t r);
/*
 * A call on comm has returned r: ask comm until it is done (with `lock`, where comm is b's). CDDP_OK: comm takes the
 * next call; the sticky error; CDDP_E_TIMEOUT; CDDP_E_SYSTEM, CDDP_E_PEER: NCCL's error. what: for the sentence.
 */
cddp_status cdi_nccl_wait_ready(struct cdi_backend *b, ncclComm_t comm, ncclResult_t r, const char *what,
                                int64_t deadline_ms, struct cdi_error *err);
/* Split b; part (NULL: this rank takes part in none) gets its communicator, rank and size. Blocks. */
cddp_status cdi_communicator_split(struct cdi_backend *b, int color, int key, struct cdi_backend *part,
                                   struct cdi_error *err);
/*
 * Release comm without waiting for peers: finalized if nothing is in flight, and destroyed aside; else aborted. False:
 * a call of it is still under way, and all that it may use must stay.
 */
bool cdi_communicator_leave(struct cdi_backend *b);
/* The rank's number among the roots that hand out unique ids, or -1; spread as NCCL advises. Pure. */
int cdi_root_of_rank(int rank, int size, int roots);
/* "all_reduce: NCCL says ...". Any thread, with or without `lock`. */
cddp_status cdi_nccl_fail(struct cdi_backend *b, ncclResult_t r, const char *what, struct cdi_error *err);

/* ---------------------------------------------------------------------------------- operations (operation.c) ---- */

cddp_status cdi_gpu_check_reduction(struct cdi_backend *b, cddp_dtype dtype, cddp_redop op, struct cdi_error *err);
cddp_status cdi_gpu_enqueue(struct cdi_backend *b, const struct cdi_coll *op, uint64_t *ticket, struct cdi_error *err);
cddp_status cdi_gpu_enqueue_group(struct cdi_backend *b, const struct cdi_coll *ops, size_t n, uint64_t *ticket,
                                  struct cdi_error *err);
/*
 * Copies of ops and their counts, in one block of cdi_host's memory. The BARRIER that opens messages is left out, which
 * is for backends that compare what ranks call. CDDP_E_NOMEM.
 */
cddp_status cdi_several_make(struct cdi_several **out, const struct cdi_coll *ops, size_t n, int n_ranks,
                             struct cdi_error *err);
/* With `lock`: begin what is held back, where NCCL takes it at once. */
void cdi_gpu_nudge(struct cdi_backend *b);
/*
 * With `lock`: NCCL has said r to what was begun last ("in progress": ask it until it is on the stream), and whatever
 * comes behind it, its ends first, may be put there. Nothing to do where nothing was begun. Polls, see settle above.
 */
cddp_status cdi_nccl_poll_async(struct cdi_backend *b, ncclResult_t r, struct cdi_error *err);
/* With `lock`: all that has a ticket is on the stream, and NCCL takes the next call. */
cddp_status cdi_gpu_flush(struct cdi_backend *b, struct cdi_error *err);
/*
 * Note in the flight page what the words tell. True: all that has a ticket is done; that stays so only with `lock`. No
 * call of CUDA. Any thread, with `lock` or without; so the two below.
 */
bool cdi_gpu_poll(struct cdi_backend *b);
/* Was this ticket done when that was last noted? */
bool cdi_gpu_is_done(struct cdi_backend *b, uint64_t ticket);
/* What NCCL or the GPU is at. */
void cdi_gpu_current(struct cdi_backend *b, struct cdi_glance *out);
/* With whom this rank exchanges the messages of a ticket that is not done. */
void cdi_gpu_peers(struct cdi_backend *b, uint64_t ticket, struct cdi_rank_list *peers);
/* This process was stopped for so long, as by scontrol suspend: what is under way gets that time in addition. */
void cdi_gpu_forgive(struct cdi_backend *b, int64_t ms);
/* A call about op has ended with st: that may be the program's fault, or the GPU has failed; then the communicator has,
 * too. Without `lock`. */
cddp_status cdi_gpu_failed_call(struct cdi_backend *b, cddp_status st, const struct cdi_coll *op,
                                struct cdi_error *err);
void cdi_gpu_free_ring(struct cdi_backend *b);
/* With `lock`, for operations beside the ring: what is done before and behind NCCL's calls of b->call, and these. */
cddp_status cdi_gpu_before(struct cdi_backend *b, struct cdi_coll *op, struct cdi_error *err);
cddp_status cdi_gpu_after(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_error *err);
ncclResult_t cdi_gpu_calls(void *b);

/* ------------------------------------------------------------------------------ what is captured (captured.c) ---- */

/* The table's functions. */
cddp_status cdi_gpu_capture_of(struct cdi_backend *b, void *stream, uint64_t *id, struct cdi_error *err);
bool cdi_gpu_capture_lives(struct cdi_backend *b);
cddp_status cdi_gpu_capture_enter(struct cdi_backend *b, void *stream, uint64_t id, struct cdi_error *err);
void cdi_gpu_capture_leave(struct cdi_backend *b);
/* Is this thread between enter and leave? Then these take the place of their namesakes. */
bool cdi_gpu_captures(const struct cdi_backend *b);
cddp_status cdi_capture_enqueue(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_error *err);
cddp_status cdi_capture_enqueue_group(struct cdi_backend *b, const struct cdi_coll *ops, size_t n,
                                      struct cdi_error *err);
cddp_status cdi_capture_follow(struct cdi_backend *b, CUstream stream, struct cdi_error *err);
cddp_status cdi_capture_lead(struct cdi_backend *b, CUstream stream, struct cdi_error *err);
cddp_status cdi_capture_element_begin(struct cdi_backend *b, struct cdi_error *err);
cddp_status cdi_capture_open(struct cdi_backend *b, struct cdi_error *err);
/* Nothing of it runs any more. */
void cdi_capture_close(struct cdi_backend *b);
/* Note in the flight page what graphs have told. True: no replay stands in a collective. No call of CUDA. */
bool cdi_capture_poll(struct cdi_backend *b);
/* The captured collective that a replay stands in, if there is one, as cdi_gpu_current tells of others. */
void cdi_capture_current(struct cdi_backend *b, struct cdi_glance *out);
/* For cdi_gpu_forgive, which holds `page`: replays, too, get the time in which the process was stopped. */
void cdi_capture_forgive(struct cdi_backend *b, int64_t ms, int64_t now_ms);

/* With `lock`: of one of the last ring_size tickets. */
static inline struct cdi_slot *cdi_slot_of(const struct cdi_backend *b, uint64_t ticket)
{
    return &b->ring[ticket & (b->ring_size - 1)];
}

/* ------------------------------------------------------------------------------------------ who waits (wait.c) ---- */

cddp_status cdi_gpu_test(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err);
cddp_status cdi_gpu_join(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err);
cddp_status cdi_gpu_wait_stream(struct cdi_backend *b, void *stream, struct cdi_error *err);
cddp_status cdi_gpu_stream_wait(struct cdi_backend *b, uint64_t ticket, void *stream, struct cdi_error *err);
/* Block until the event has come, the communicator has failed and nothing runs any more. Without `lock`. */
cddp_status cdi_gpu_await_event(struct cdi_backend *b, CUevent event, struct cdi_error *err);
/* One blocking all_reduce of host memory, for agreements. */
cddp_status cdi_gpu_agree(struct cdi_backend *b, int32_t *value, cddp_redop op, struct cdi_error *err);

/* --------------------------------------------------------------------------- what the stream tells (told.c) ---- */

/* The words; also finds out whether the driver's streams can write. The context is current. */
cddp_status cdi_completion_create(struct cdi_backend *b, struct cdi_error *err);
void cdi_completion_destroy(struct cdi_backend *b);
/* With `lock`: put the write of a ticket on the stream. */
cddp_status cdi_completion_write_started(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err);
cddp_status cdi_completion_write_done(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err);
/*
 * In place of those: a scale kernel, with a grid above 0, writes the ticket as its last act. That is before CUDA takes
 * the kernel for done: no end where an event behind it is asked once the word has come.
 */
void cdi_completion_started_by_kernel(struct cdi_backend *b, uint64_t ticket, struct cdi_launch *scale);
void cdi_completion_done_by_kernel(struct cdi_backend *b, uint64_t ticket, struct cdi_launch *scale);
/* Wait, at most CDI_DRAIN_MS, for all that is on the stream. False: it is not done. One thread at a time. */
bool cdi_completion_drain(struct cdi_backend *b);

/* ------------------------------------------------------------------------------------ who tends it (tend.c) ---- */

cddp_status cdi_progress_start(struct cdi_backend *b, struct cdi_error *err);
/*
 * Ask the driver whether the GPU is well; a fault of it is the communicator's end. op: what this thread was at (NULL:
 * what the GPU is at). Without `lock`, with the context entered briefly or not.
 */
cddp_status cdi_gpu_ask(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_error *err);

/* ------------------------------------------------------------------------------------ host memory (stage.c) ---- */

/* Blocks for small operations, so that none of them asks the driver for memory. At creation, the context current. */
cddp_status cdi_stage_open(struct cdi_backend *b, struct cdi_error *err);
/* A block for an operation that has host memory, with its input in it; *out = NULL: it has none. Without `lock`. */
cddp_status cdi_stage_prepare(struct cdi_backend *b, const struct cdi_coll *op, struct cdi_staged **out,
                              struct cdi_error *err);
/* CDDP_E_INVALID: it has, and must not. */
cddp_status cdi_stage_refuse(struct cdi_error *err);
/* With `lock`: a block that holds nothing may be used again. */
void cdi_stage_spare(struct cdi_backend *b, struct cdi_staged *s);
/* With `lock`: the list of results has it from now on. */
void cdi_stage_keep(struct cdi_backend *b, struct cdi_staged *s);
/* Has the operation host memory? */
cddp_status cdi_stage_is_needed(const struct cdi_backend *b, const struct cdi_coll *op, bool *is,
                                struct cdi_error *err);
/* With `lock`: around the operation on the communication stream; its pointers become the device's. */
cddp_status cdi_stage_in(struct cdi_backend *b, struct cdi_part *part, struct cdi_error *err);
cddp_status cdi_stage_out(struct cdi_backend *b, const struct cdi_part *part, struct cdi_error *err);
/*
 * With `lock`: results up to ticket, which are there, go to the callers. Returns blocks to be freed without it, and
 * only where nothing is in flight.
 */
struct cdi_staged *cdi_stage_take(struct cdi_backend *b, uint64_t ticket);
/* The same, but blocks to be freed stay until the next one that joins. */
void cdi_stage_bring(struct cdi_backend *b, uint64_t ticket);
/* Free a list; waits for what runs on the GPU, so never with `lock`. */
void cdi_stage_free(struct cdi_staged *list);

/* --------------------------------------------------------------------------- regions, elements (their files) ---- */

cddp_status cdi_gpu_region_create(struct cdi_backend *b, size_t bytes, struct cdi_region **out, struct cdi_error *err);
void cdi_gpu_region_destroy(struct cdi_backend *b, struct cdi_region *r);
/*
 * Before the communicator goes and after its threads have ended: what is dead in b->windows is freed, and of all that
 * is alive nothing but the memory stays.
 */
void cdi_gpu_regions_leave(struct cdi_backend *b);
bool cdi_gpu_is_window(const struct cdi_region *r);

cddp_status cdi_gpu_pack(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                         struct cdi_error *err);
cddp_status cdi_gpu_unpack(struct cdi_backend *b, const struct cdi_slice *to, size_t n, const void *from,
                           struct cdi_error *err);
cddp_status cdi_gpu_pack_scaled(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                                cddp_dtype dtype, double factor, struct cdi_error *err);
cddp_status cdi_gpu_pack_unless(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                                const uint8_t *flags, const uint32_t *of, struct cdi_error *err);
cddp_status cdi_gpu_cast(struct cdi_backend *b, void *to, cddp_dtype to_type, const void *from, cddp_dtype from_type,
                         size_t count, float factor, struct cdi_error *err);
cddp_status cdi_gpu_scale(struct cdi_backend *b, void *x, size_t count, cddp_dtype dtype, double factor,
                          struct cdi_error *err);
cddp_status cdi_gpu_scan(struct cdi_backend *b, const void *x, size_t count, cddp_dtype dtype, struct cdi_scan *out,
                         struct cdi_error *err);
cddp_status cdi_gpu_tally(struct cdi_backend *b, const struct cdi_span *x, size_t n, bool largest, bool add,
                          double *out, struct cdi_error *err);
cddp_status cdi_gpu_clip(struct cdi_backend *b, const struct cdi_span *x, size_t n, const struct cdi_clip *how,
                         const double *sum, struct cdi_error *err);
cddp_status cdi_gpu_clear(struct cdi_backend *b, void *p, size_t bytes, struct cdi_error *err);
cddp_status cdi_gpu_optim_count(struct cdi_backend *b, const struct cdi_optim_step *s, struct cdi_error *err);
cddp_status cdi_gpu_optim_update(struct cdi_backend *b, const struct cdi_optim_step *s,
                                 const struct cdi_optim_piece *piece, size_t n, struct cdi_error *err);
cddp_status cdi_gpu_lowrank(struct cdi_backend *b, enum cdi_lowrank_step step, const struct cdi_lowrank_matrix *m,
                            size_t n, double epsilon, struct cdi_error *err);
/* Enter the device, lock, and start what is held back: kernels may be launched. CDDP_OK: leave with _end. */
cddp_status cdi_gpu_element_begin(struct cdi_backend *b, struct cdi_error *err);
void cdi_gpu_element_end(struct cdi_backend *b);

#endif
