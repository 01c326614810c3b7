/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control segment that the ranks of one node share: counters, descriptors of the operation at hand, staging slots,
 * the abort word with its sentence. Made by local rank 0 (handover.h), mapped by all. Ranks may also be threads of one
 * process (tests); nothing here is global to a process.
 *
 * The rule for everything that is not atomic: a rank writes its own part, then posts a step; others read it after they
 * have seen that step. What belongs to a step (post, descriptor, slot) exists twice, for odd and even steps, and every
 * step waits for all ranks: who writes for step s+2 knows that all have posted s+1, and so are done reading step s.
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

#define CDI_SHM_PIECE_BYTES (256u * 1024) /* large private data goes through the slots in pieces of this size */
/* Of a piece: what this rank puts in, and, behind it, what it has reduced (half of it at most, in whole lines). */
#define CDI_SHM_SLOT_BYTES (CDI_SHM_PIECE_BYTES + CDI_SHM_PIECE_BYTES / 2 + 4096)
#define CDI_SHM_STAGES 8 /* several nodes: so many pieces of private data are on their way to them and back */
#define CDI_SHM_TEXT 512
#define CDI_SHM_MAIL_BYTES (64u * 1024) /* send and recv go through in pieces of this size */
#define CDI_SHM_INLINE_BYTES 48         /* so much data travels with the post itself */
#define CDI_SHM_CPU_WORDS 32            /* processors beyond 2048 are not told apart */

/*
 * A futex between processes. Posters make the system call only if somebody sleeps. What is said along with the value
 * lies in the same cache line: small operations move nothing else between cores. Sleepers have a line of their own,
 * which the poster looks at each time and others seldom.
 */
struct cdi_counter {
    _Alignas(64) _Atomic uint32_t value;
    uint64_t hash; /* of the descriptor */
    uint8_t data[CDI_SHM_INLINE_BYTES];
    _Alignas(64) _Atomic uint32_t sleepers;
};

/* What a rank is about to do; compared between ranks before any data is touched. */
struct cdi_shm_desc {
    uint32_t kind, dtype, op;
    int32_t root;
    uint64_t count;
    uint64_t region; /* 0: private memory */
    uint64_t offset; /* in the region */
};

/* What a rank sends to another one: one piece at a time, which its receiver takes before the next comes. */
struct cdi_shm_mail {
    struct cdi_counter sent, taken; /* pieces; equal: the mail is the sender's to write */
    _Atomic uint64_t address;       /* number of the piece << 32 | local rank of the receiver */
    struct cdi_shm_desc desc;       /* of the whole message */
    uint8_t data[CDI_SHM_MAIL_BYTES];
};

struct cdi_shm_rank {
    struct cdi_counter post[2];         /* the last even and the last odd step whose input is visible */
    _Alignas(64) _Atomic uint32_t left; /* said goodbye */
    _Atomic int32_t pid;
    _Atomic uint32_t holds; /* it has locked its byte of the segment, which the kernel gives up when it dies */
    _Atomic uint32_t cpu;   /* on which it was seen last, by itself */
    _Atomic uint64_t autogroup;
    _Atomic uint64_t cpus[CDI_SHM_CPU_WORDS]; /* on which it may run */
    _Atomic uint32_t moved; /* changes while this rank gets on with what others wait for: pieces over the network */
    _Atomic uint32_t
        waits_for; /* a rank in the world, plus 1, while this rank sleeps until that one comes; for errors */
    struct cdi_shm_desc desc[2];
    struct cdi_shm_mail mail;
};

struct cdi_shm_header; /* shm.c */

/* Who maps the segments: NULL functions mean mmap(2). Tests that run ranks as threads share one mapping. */
struct cdi_mapper {
    void *(*map)(void *arg, int fd, size_t bytes); /* NULL with errno set */
    void (*unmap)(void *arg, void *p, size_t bytes);
    void *arg;
};

struct cdi_shm {
    int rank, size; /* within the node */
    int first;      /* the rank in the world of the node's rank 0: add it for messages */
    struct cdi_shm_header *header;
    size_t bytes;
    struct cdi_shm_rank *ranks;
    uint8_t *slots;
    uint8_t *stages; /* NULL: there are none */
    bool staged;     /* there are, once the segment is mapped */
    int *socks;      /* by rank, -1: none. Rank 0 has one to every other rank, the others one to rank 0 */
    int life;        /* the segment's descriptor, kept for the locks; -1: none */
    struct cdi_mapper mapper;
};

/* Bytes of the segment for `size` ranks, with stages or without. */
size_t cdi_shm_bytes(int size, bool staged);
/* A memfd of `bytes` bytes, all of them there (so that a full memory is an error now and no SIGBUS later). *fd on
 * success: CDDP_OK, CDDP_E_NOMEM, CDDP_E_SYSTEM. */
cddp_status cdi_shm_memfd(const char *name, size_t bytes, int *fd, struct cdi_error *err);
/* Map a memfd that has at least `bytes` bytes. CDDP_E_NOMEM, CDDP_E_PROTOCOL (smaller, or can still shrink). */
cddp_status cdi_shm_map(const struct cdi_mapper *m, int fd, size_t bytes, void **out, struct cdi_error *err);
void cdi_shm_unmap(const struct cdi_mapper *m, void *p, size_t bytes);

/* No mapping and no socket yet. All ranks of the node say alike whether it is staged. CDDP_E_NOMEM. */
cddp_status cdi_shm_create(struct cdi_shm **out, int rank, int size, int first, bool staged, const struct cdi_mapper *m,
                           struct cdi_error *err);
/* Adopt a mapped segment; local rank 0 initialises it first. CDDP_E_VERSION: it is not one of ours. */
void cdi_shm_format(struct cdi_shm *s, void *segment);
cddp_status cdi_shm_adopt(struct cdi_shm *s, void *segment, struct cdi_error *err);
/*
 * Shows the others that this rank lives: locks its byte of the segment, whose descriptor s owns from now on. A child
 * that this process forks does not inherit the lock, while it does inherit sockets. Where there are no locks, only the
 * sockets tell of a death. No other descriptor of the segment may be closed in this process, since that would give up
 * the lock.
 */
void cdi_shm_hold(struct cdi_shm *s, int fd);
/* Say goodbye to peers, unmap, close the sockets; once, then it does nothing. NULL-safe. */
void cdi_shm_leave(struct cdi_shm *s);
/* The same, and free. NULL-safe. */
void cdi_shm_destroy(struct cdi_shm *s);

/* Note, for the others, on which processor this rank runs. */
static inline uint32_t cdi_shm_tell_cpu(const struct cdi_shm *s)
{
    uint32_t cpu = (uint32_t)sched_getcpu();
    _Atomic uint32_t *mine = &s->ranks[s->rank].cpu;

    if (atomic_load_explicit(mine, memory_order_relaxed) != cpu) /* seldom: so the line stays in all caches */
        atomic_store_explicit(mine, cpu, memory_order_relaxed);
    return cpu;
}

static inline struct cdi_counter *cdi_shm_post(const struct cdi_shm *s, int rank, uint32_t step)
{
    return &s->ranks[rank].post[step & 1u];
}

static inline uint8_t *cdi_shm_slot(const struct cdi_shm *s, int rank, uint32_t step)
{
    return s->slots + ((size_t)rank * 2 + (step & 1u)) * CDI_SHM_SLOT_BYTES;
}

/* Where piece k of what local rank `rank` puts in lies, and that of the results that it shows to the others. */
static inline uint8_t *cdi_shm_stage_in(const struct cdi_shm *s, int rank, size_t k)
{
    return s->stages + ((size_t)rank * 2 * CDI_SHM_STAGES + k % CDI_SHM_STAGES) * CDI_SHM_PIECE_BYTES;
}

static inline uint8_t *cdi_shm_stage_out(const struct cdi_shm *s, int rank, size_t k)
{
    return cdi_shm_stage_in(s, rank, k) + (size_t)CDI_SHM_STAGES * CDI_SHM_PIECE_BYTES;
}

/* Has the counter come to `step`? Steps wrap around. */
static inline bool cdi_counter_reached(struct cdi_counter *c, uint32_t step)
{
    return (int32_t)(atomic_load_explicit(&c->value, memory_order_acquire) - step) >= 0;
}
/* Set the counter: who spins sees it. cdi_counter_wake must follow, for who sleeps. */
static inline void cdi_counter_set(struct cdi_counter *c, uint32_t step)
{
    atomic_store_explicit(&c->value, step, memory_order_release);
}
/* Take the counter's line to this core, where peers have read it: setting it soon does not wait for that then. */
static inline void cdi_counter_fetch(struct cdi_counter *c)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0"
                     :
                     : "m"(c->value)); /* the builtin asks for a copy to read, where nothing is known */
#else
    __builtin_prefetch(c, 1);
#endif
}
void cdi_counter_wake(struct cdi_counter *c);
/* Both. */
void cdi_counter_post(struct cdi_counter *c, uint32_t step);

/* Tell all ranks that the communicator is broken, and why; the first one wins. Any thread. */
void cdi_shm_abort(struct cdi_shm *s, const struct cdi_error *why);
/* CDDP_OK, or what cdi_shm_abort was told. One atomic load in the common case. */
cddp_status cdi_shm_aborted(const struct cdi_shm *s, struct cdi_error *err);
/* The same without a wait: CDDP_OK also while the reason is being written. Any thread. */
cddp_status cdi_shm_peek(const struct cdi_shm *s, struct cdi_error *err);
/* The futex word that changes from 0 on abort. */
_Atomic uint32_t *cdi_shm_abort_word(const struct cdi_shm *s);

static inline bool cdi_shm_left(const struct cdi_shm *s, int rank)
{
    return atomic_load_explicit(&s->ranks[rank].left, memory_order_seq_cst) != 0;
}
/* Processors on which at least one of the ranks may run, cut down to this process's quota. */
int cdi_shm_usable_cpus(const struct cdi_shm *s);
/* Are all ranks in one group of the scheduler, so that sched_yield lets another one run? */
bool cdi_shm_can_yield(const struct cdi_shm *s);
/* Is this peer's lock free, without a goodbye? Any thread. */
bool cdi_shm_has_died(const struct cdi_shm *s, int rank);
/* A peer whose lock is free, without a goodbye; or -1. Any thread. */
int cdi_shm_died(const struct cdi_shm *s);
/* A peer that died: its socket hung up, or its lock is free, without a goodbye. Or -1. One thread at a time. */
int cdi_shm_hung_up(struct cdi_shm *s);

#endif
