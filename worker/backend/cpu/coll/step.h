/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communicator on the CPU, one operation under way, and the step that all operations are made of: every rank makes
 * its input visible and waits for that of all others (shm.h).
 *
 * Each file of this folder calls only those before it: choose, step, chain, rounds, exchange and reduction, region,
 * collective.
 */
#ifndef CDI_COLL_STEP_H
#define CDI_COLL_STEP_H

#include "worker/backend/cpu/coll/choose.h"
#include "worker/backend/cpu/node/wait.h"
#include "worker/backend/queue.h"

struct cdi_tcp;

/* Up to this size every rank reduces everything itself: one step instead of two. */
#define CDI_SMALL_BYTES 8192

struct cdi_cpu_comm {
    int rank, size;      /* in the world */
    struct cdi_shm *shm; /* of the node's ranks; NULL in a world of one */
    struct cdi_tcp *tcp; /* to the other nodes; NULL where there is one node */
    struct cdi_wait wait;
    struct cdi_queue *queue; /* it records who arrived last; NULL: there is none yet */
    uint32_t step;           /* the last one posted */
    uint64_t n_regions;
    struct cdi_choice_net net; /* between nodes */
    const void **in;           /* scratch, `size` of each */
    void **out;
    void **place;
    size_t *len, *at;
};

/* A region as the backend sees it. */
struct cdi_cpu_region {
    struct cdi_region pub; /* first: a cdi_region is one of these */
    uint64_t id;           /* 1, 2, ..., equal on all ranks */
    void **part;           /* by local rank */
    uint64_t *mapped;      /* by local rank, the bits of cdi_shm_map_pages(); NULL: few ranks */
};

/* One operation under way. */
struct cdi_run {
    struct cdi_cpu_comm *t;
    const struct cdi_work *w;
    bool on_thread;
    struct cdi_shm_desc desc;
    uint64_t hash;                       /* of desc */
    const struct cdi_cpu_region *region; /* of the operation, while all ranks have their memory at one place of it */
    bool anywhere;       /* ranks may have it at different places, and there are regions: all look before they begin */
    bool compared_here;  /* descriptors were compared within the node */
    bool compared_nodes; /* and between nodes */
    int late;            /* the rank that was seen arriving last, in the first step or between nodes */
    bool met_nodes;      /* this rank itself has seen who was late between nodes */
};

/* Allocates the scratch memory of *t, which is zeroed except for rank, size, shm and wait. CDDP_E_NOMEM. */
cddp_status cdi_cpu_comm_init(struct cdi_cpu_comm *t, struct cdi_error *err);
/* Frees the scratch memory. */
void cdi_cpu_comm_release(struct cdi_cpu_comm *t);

/* Describes the operation run->w for the comparison between ranks: sets desc, region and anywhere. */
void cdi_run_describe(struct cdi_run *run);

/*
 * Publishes what this rank wrote, and returns when what all ranks of the node wrote is visible. The first step of an
 * operation compares the operations of the ranks. CDDP_E_MISMATCH, or as cdi_wait_all.
 */
cddp_status cdi_step(struct cdi_run *run, struct cdi_error *err);
/* The same, with a longer deadline: some ranks of the node first wait for the network. */
cddp_status cdi_step_after_network(struct cdi_run *run, struct cdi_error *err);

/*
 * Records that `rank` was seen arriving last, now. is_short: the operation is so short that its end will do as the
 * time. Returns the time; 0: is_short.
 */
int64_t cdi_run_arrived(struct cdi_run *run, int rank, bool is_short);

/* Writes the operation's name for an error message; arg is the run. */
void cdi_run_what(const void *arg, char *buf, size_t cap);
/* Writes the name of any operation: "all_reduce(sum) of 10 float32". */
void cdi_desc_text(const struct cdi_shm_desc *d, char *buf, size_t cap);
/*
 * Words that ranks a and b called different `what`, such as "collectives", and why, if it is known. Always
 * CDDP_E_MISMATCH, by the higher rank.
 */
cddp_status cdi_run_mismatch(const struct cdi_run *run, int a, const struct cdi_shm_desc *da, int b,
                             const struct cdi_shm_desc *db, const char *what, struct cdi_error *err);

/* Sets [*lo, *hi) to a rank's share of n elements of `size` bytes: whole cache lines, except at the end. */
static inline void cdi_share(size_t n, size_t size, int rank, int n_ranks, size_t *lo, size_t *hi)
{
    size_t line = 64 / size, per = (n + (size_t)n_ranks - 1) / (size_t)n_ranks;

    per = (per + line - 1) / line * line;
    *lo = per * (size_t)rank < n ? per * (size_t)rank : n;
    *hi = n - *lo < per ? n : *lo + per;
}

/* Returns this rank's slot in the next step. */
static inline uint8_t *cdi_next_slot(const struct cdi_cpu_comm *t)
{
    return cdi_shm_slot(t->shm, t->shm->rank, t->step + 1);
}

/* Returns bytes [at, at + n) of the slot of a local rank in the last step: more than these may not be read there. */
static inline const uint8_t *cdi_slot_of(const struct cdi_cpu_comm *t, int local_rank, size_t at, size_t n)
{
    return cdi_shm_to_read(t->shm, cdi_shm_slot(t->shm, local_rank, t->step) + at, n);
}

/* Returns bytes [at, at + n) of a local rank's part of a region: more than these may not be touched there. */
static inline uint8_t *cdi_cpu_region_at(const struct cdi_cpu_region *region, int local_rank, size_t at, size_t n)
{
    uint8_t *base = region->part[local_rank];

    if (region->mapped != NULL)
        cdi_shm_map_pages(region->mapped + (size_t)local_rank * cdi_shm_page_words(region->pub.bytes), base, at, n);
    return base + at;
}

/* Returns room for at most `most` bytes in the next step, a number that is equal on all ranks: few bytes go into the
 * post itself. */
static inline uint8_t *cdi_next_room(const struct cdi_cpu_comm *t, size_t most)
{
    return most <= CDI_SHM_INLINE_BYTES ? cdi_shm_post(t->shm, t->shm->rank, t->step + 1)->data : cdi_next_slot(t);
}

/* Returns bytes [at, at + n) there of a local rank in the last step. */
static inline const uint8_t *cdi_room_of(const struct cdi_cpu_comm *t, int local_rank, size_t most, size_t at, size_t n)
{
    return most <= CDI_SHM_INLINE_BYTES ? cdi_shm_post(t->shm, local_rank, t->step)->data + at
                                        : cdi_slot_of(t, local_rank, at, n);
}

#endif
