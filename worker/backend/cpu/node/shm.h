/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control segment that the ranks of one node share: counters, descriptors of the running operation, staging slots,
 * the abort word with its error message. Local rank 0 creates it (shm_bootstrap.h), and all ranks map it. Ranks may
 * also be threads of one process (tests); nothing here is global to a process.
 *
 * The rule for everything that is not atomic: a rank writes its own part, then posts a step; others read it after they
 * have seen that step. The data of a step (post, descriptor, slot) exist twice, for odd and even steps, and every step
 * waits for all ranks. So a rank that writes for step s+2 knows that all have posted s+1, and have finished reading s.
 *
 * Accounting by RSS (Slurm without cgroups) counts a page in every rank that has it mapped. So data that all ranks read
 * lie close together, data of two ranks lie apart, and pages enter a rank's map one by one.
 */
#ifndef CDI_NODE_SHM_H
#define CDI_NODE_SHM_H

#include "common/error.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define CDI_SHM_PIECE_BYTES (256u * 1024) /* large private data pass through the slots in pieces of this size */
/* A piece of this rank's input, then its share of the reduced piece (at most half of it, in whole lines). */
#define CDI_SHM_SLOT_BYTES (CDI_SHM_PIECE_BYTES + CDI_SHM_PIECE_BYTES / 2 + 4096)
#define CDI_SHM_STAGES 8 /* several nodes: so many pieces of private data are in transit at a time */
#define CDI_SHM_TEXT 512
#define CDI_SHM_MAIL_BYTES (64u * 1024) /* send and recv move pieces of this size */
#define CDI_SHM_INLINE_BYTES 48         /* so many bytes of data fit the post itself */
#define CDI_SHM_CPU_WORDS 32            /* processors beyond 2048 are not distinguished */

/*
 * A futex between processes. A poster makes the system call only if a rank sleeps. The data of a small operation are in
 * the cache line of the value: nothing else moves between cores. The number of sleepers has a separate line, which the
 * poster reads each time and others rarely.
 */
struct cdi_counter {
    _Alignas(64) _Atomic uint32_t value;
    uint64_t hash; /* of the descriptor */
    uint8_t data[CDI_SHM_INLINE_BYTES];
    _Alignas(64) _Atomic uint32_t sleepers;
};

/* The operation that a rank begins; compared between ranks before any data is written. */
struct cdi_shm_desc {
    uint32_t kind, dtype, op;
    int32_t root;
    uint64_t count;
    uint64_t region; /* 0: private memory */
    uint64_t offset; /* in the region */
};

/* A flag in kind, the lowest above the kinds, for messages: cdi_coll.ahead. It is not compared. */
#define CDI_DESC_AHEAD 0x8000u

static inline struct cdi_shm_desc cdi_desc_compared(const struct cdi_shm_desc *d)
{
    struct cdi_shm_desc x = *d;

    x.kind &= ~CDI_DESC_AHEAD;
    return x;
}

/* A message of this rank to another one: one piece at a time, which its receiver takes before the next is written. */
struct cdi_shm_mail {
    struct cdi_counter sent, taken; /* numbers of pieces; equal: the sender may write */
    _Atomic uint64_t address;       /* number of the piece << 32 | local rank of the receiver */
    struct cdi_shm_desc desc;       /* of the whole message */
};

struct cdi_shm_rank {
    struct cdi_counter post[2];         /* the last even and the last odd step whose input is visible */
    _Alignas(64) _Atomic uint32_t left; /* has sent a goodbye */
    _Atomic int32_t pid;
    _Atomic uint64_t process; /* random, since containers of one pod may have equal pids */
    _Atomic uint32_t holds;   /* it has locked its byte of the segment; the kernel releases the lock when it dies */
    _Atomic uint32_t cpu;     /* its last processor, as it has noted itself */
    _Atomic uint64_t autogroup;
    _Atomic uint64_t cpus[CDI_SHM_CPU_WORDS]; /* processors on which it may run */
    _Atomic uint32_t moved; /* changes while this rank moves data over the network for which others wait */
    _Atomic uint32_t
        waits_for; /* a rank in the world, plus 1, while this rank sleeps until that rank arrives; for errors */
    _Atomic int32_t
        late; /* between nodes: which rank in the world this rank saw arriving last, for ranks without a link */
    _Atomic int32_t lost; /* the rank of the job, plus 1, whose death ended a communicator of this rank's process */
    _Atomic int64_t arrived_ns; /* and when, on the clock of all; 0: it waited for none */
    struct cdi_shm_desc desc[2];
    struct cdi_shm_mail mail;
};

struct cdi_shm_header; /* shm.c */

/* Functions that map the segments; NULL: mmap(2). Tests that run ranks as threads share one mapping. */
struct cdi_mapper {
    void *(*map)(void *arg, int fd, size_t bytes); /* NULL with errno set */
    void (*unmap)(void *arg, void *p, size_t bytes);
    void *arg;
};

struct cdi_shm {
    int rank, size; /* within the node */
    int first;      /* the rank in the world of local rank 0: add it for messages */
    struct cdi_shm_header *header;
    size_t bytes;
    struct cdi_shm_rank *ranks;
    uint8_t *mails; /* the bytes of the messages */
    uint8_t *slots;
    uint64_t *mapped; /* a bit for each page of slots and stages that this rank has asked for; NULL: it asks for none */
    uint8_t *stages;  /* NULL: none */
    bool staged;      /* the segment has stages */
    int *socks;       /* by rank, -1: none. Rank 0 has one to every other rank, the others one to rank 0 */
    int life;         /* descriptor of the segment, open for the locks; -1: none */
    struct cdi_mapper mapper;
    struct cdi_shm *next; /* of this process */
};

/* Returns the bytes of a segment for `size` ranks, with stages or without. */
size_t cdi_shm_bytes(int size, bool staged);
/*
 * Creates a memfd of `bytes` bytes, all of them allocated, so that lack of memory is an error here and not a SIGBUS
 * later. `huge`: of huge pages, where the kernel has some. Sets *fd on success. CDDP_E_NOMEM, CDDP_E_SYSTEM.
 */
cddp_status cdi_shm_memfd(const char *name, size_t bytes, bool huge, int *fd, struct cdi_error *err);
/*
 * Should a region of `bytes` bytes for each of `size` ranks consist of huge pages? A rank that reduces its share of all
 * arenas maps whole pages at both ends of each share: with many ranks those would be most of its RSS.
 */
bool cdi_shm_suits_huge(int size, size_t bytes);
/* Maps a memfd that has at least `bytes` bytes. CDDP_E_NOMEM, CDDP_E_PROTOCOL (smaller, or can still shrink). */
cddp_status cdi_shm_map(const struct cdi_mapper *m, int fd, size_t bytes, void **out, struct cdi_error *err);
void cdi_shm_unmap(const struct cdi_mapper *m, void *p, size_t bytes);

/* Creates *out, without a mapping and sockets. `staged` is equal on all ranks of the node. CDDP_E_NOMEM. */
cddp_status cdi_shm_create(struct cdi_shm **out, int rank, int size, int first, bool staged, const struct cdi_mapper *m,
                           struct cdi_error *err);
/* Initialises a mapped segment and attaches it to s. Local rank 0 only. */
void cdi_shm_format(struct cdi_shm *s, void *segment);
/* Attaches a segment that local rank 0 has initialised. CDDP_E_VERSION: it has another layout. */
cddp_status cdi_shm_adopt(struct cdi_shm *s, void *segment, struct cdi_error *err);
/*
 * Locks this rank's byte of the segment, which shows the others that it is alive; s owns fd from now on. A child that
 * this process forks inherits sockets, but not the lock. Without locks, only the sockets report a death. This process
 * must not close any other descriptor of the segment, since that would release the lock.
 */
void cdi_shm_hold(struct cdi_shm *s, int fd);
/* Sends a goodbye to peers; cdi_shm_leave() follows. */
void cdi_shm_say_goodbye(struct cdi_shm *s);
/* Sends a goodbye to peers, unmaps, closes the sockets. Does nothing the second time. NULL-safe. */
void cdi_shm_leave(struct cdi_shm *s);
/* Leaves, and frees. NULL-safe. */
void cdi_shm_destroy(struct cdi_shm *s);
/*
 * Tells all segments of this process that a rank of the job has died. Its program may end now, and others that only see
 * that end name the one that died first.
 */
void cdi_shm_note_lost(int of_job);

/* Publishes the processor on which this rank runs. Returns it. */
static inline uint32_t cdi_shm_tell_cpu(const struct cdi_shm *s)
{
    uint32_t cpu = (uint32_t)sched_getcpu();
    _Atomic uint32_t *mine = &s->ranks[s->rank].cpu;

    if (atomic_load_explicit(mine, memory_order_relaxed) != cpu) /* rarely, so that the line stays in all caches */
        atomic_store_explicit(mine, cpu, memory_order_relaxed);
    return cpu;
}

/* Returns the counter of a local rank for a step. */
static inline struct cdi_counter *cdi_shm_post(const struct cdi_shm *s, int rank, uint32_t step)
{
    return &s->ranks[rank].post[step & 1u];
}

/* Returns the slot of a local rank for a step. */
static inline uint8_t *cdi_shm_slot(const struct cdi_shm *s, int rank, uint32_t step)
{
    return s->slots + ((size_t)rank * 2 + (step & 1u)) * CDI_SHM_SLOT_BYTES;
}

/* Returns how many words the bits of the pages of `bytes` bytes fill. */
size_t cdi_shm_page_words(size_t bytes);
/*
 * Maps those pages of bytes [at, at + n) of shared memory at `base` whose bits in `mapped` are not set, and sets them.
 * The kernel answers a fault of reading with the 16 pages around it: in a large world that would map most of the
 * segment in every rank.
 */
void cdi_shm_map_pages(uint64_t *mapped, void *base, size_t at, size_t n);

/* Returns p, where n bytes of slots or stages may be read then. */
static inline const uint8_t *cdi_shm_to_read(const struct cdi_shm *s, const uint8_t *p, size_t n)
{
    if (s->mapped != NULL)
        cdi_shm_map_pages(s->mapped, s->slots, (size_t)(p - s->slots), n);
    return p;
}

/* Returns the room for the bytes of a local rank's message. */
static inline uint8_t *cdi_shm_mail_data(const struct cdi_shm *s, int rank)
{
    return s->mails + (size_t)rank * CDI_SHM_MAIL_BYTES;
}

/* Returns the stage for piece k of the input of local rank `rank`. */
static inline uint8_t *cdi_shm_stage_in(const struct cdi_shm *s, int rank, size_t k)
{
    return s->stages + ((size_t)rank * 2 * CDI_SHM_STAGES + k % CDI_SHM_STAGES) * CDI_SHM_PIECE_BYTES;
}

/* Returns the stage for piece k of its results. */
static inline uint8_t *cdi_shm_stage_out(const struct cdi_shm *s, int rank, size_t k)
{
    return cdi_shm_stage_in(s, rank, k) + (size_t)CDI_SHM_STAGES * CDI_SHM_PIECE_BYTES;
}

/* Has the counter reached `step`? Steps wrap around. */
static inline bool cdi_counter_reached(struct cdi_counter *c, uint32_t step)
{
    return (int32_t)(atomic_load_explicit(&c->value, memory_order_acquire) - step) >= 0;
}
/* Stores the value, which spinning waiters see. Call cdi_counter_wake() next to wake sleepers. */
static inline void cdi_counter_set(struct cdi_counter *c, uint32_t step)
{
    atomic_store_explicit(&c->value, step, memory_order_release);
}
/* Fetches the counter's cache line for writing, after peers have read it, so that the next store does not wait. */
static inline void cdi_counter_fetch(struct cdi_counter *c)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(c->value)); /* without a known target the builtin fetches a shared copy */
#else
    __builtin_prefetch(c, 1);
#endif
}
/* Wakes the ranks that sleep on the counter. */
void cdi_counter_wake(struct cdi_counter *c);
/* Sets the counter and wakes the sleepers. */
void cdi_counter_post(struct cdi_counter *c, uint32_t step);

/* Aborts the communicator on all ranks of the node with this error; the first call wins. Any thread. */
void cdi_shm_abort(struct cdi_shm *s, const struct cdi_error *why);
/* Returns CDDP_OK, or the error of cdi_shm_abort(). One atomic load in the common case. */
cddp_status cdi_shm_aborted(const struct cdi_shm *s, struct cdi_error *err);
/* Returns the same without a wait: CDDP_OK also while the error is being written. Any thread. */
cddp_status cdi_shm_peek(const struct cdi_shm *s, struct cdi_error *err);
/* Returns the futex word that changes from 0 on abort. */
_Atomic uint32_t *cdi_shm_abort_word(const struct cdi_shm *s);

/* Has this local rank left with a goodbye? */
static inline bool cdi_shm_left(const struct cdi_shm *s, int rank)
{
    return atomic_load_explicit(&s->ranks[rank].left, memory_order_seq_cst) != 0;
}
/* Returns the number of processors on which at least one of the ranks may run, at most this process's quota. */
int cdi_shm_usable_cpus(const struct cdi_shm *s);
/* Are all ranks in one scheduler group, so that sched_yield() lets another rank run? */
bool cdi_shm_can_yield(const struct cdi_shm *s);
/* Is this peer's lock free, without a goodbye? Any thread. */
bool cdi_shm_has_died(const struct cdi_shm *s, int rank);
/* Returns a peer whose lock is free, without a goodbye; or -1. Any thread. */
int cdi_shm_find_dead(const struct cdi_shm *s);

#endif
