/* SPDX-License-Identifier: Apache-2.0 */
/* One operation under way, and the step that all of them are made of: between the files of the collectives. */
#ifndef CDI_COLL_STEP_H
#define CDI_COLL_STEP_H

#include "worker/backend/cpu/coll/collective.h"

struct cdi_run {
    struct cdi_cpu_comm *t;
    const struct cdi_work *w;
    bool on_thread;
    struct cdi_shm_desc desc;
    uint64_t hash;                       /* of desc */
    const struct cdi_cpu_region *region; /* of the operation, while all ranks have their memory at one place of it */
    bool anywhere; /* ranks may have it at different places, and there are regions: all look before they begin */
    bool begun;    /* descriptors were compared within the node */
    bool across;   /* and between nodes */
};

/* What this rank wrote becomes visible; on return what all ranks wrote is. The first step compares the operations. */
cddp_status cdi_step(struct cdi_run *run, struct cdi_error *err);
/* The operation's name for a sentence; arg is the run. */
void cdi_run_what(const void *arg, char *buf, size_t cap);
/* The name of any operation: "all_reduce(sum) of 10 float32". */
void cdi_desc_text(const struct cdi_shm_desc *d, char *buf, size_t cap);

/* This rank's slot in the step that comes next, and that of a local rank in the last one. */
static inline uint8_t *cdi_next_slot(const struct cdi_cpu_comm *t)
{
    return cdi_shm_slot(t->shm, t->shm->rank, t->step + 1);
}

static inline const uint8_t *cdi_slot_of(const struct cdi_cpu_comm *t, int local_rank)
{
    return cdi_shm_slot(t->shm, local_rank, t->step);
}

/* The same for at most `most` bytes, which all ranks know alike: where that fits, in the post itself. */
static inline uint8_t *cdi_next_room(const struct cdi_cpu_comm *t, size_t most)
{
    return most <= CDI_SHM_INLINE_BYTES ? cdi_shm_post(t->shm, t->shm->rank, t->step + 1)->data : cdi_next_slot(t);
}

static inline const uint8_t *cdi_room_of(const struct cdi_cpu_comm *t, int local_rank, size_t most)
{
    return most <= CDI_SHM_INLINE_BYTES ? cdi_shm_post(t->shm, local_rank, t->step)->data : cdi_slot_of(t, local_rank);
}

/* all_reduce, reduce, reduce_scatter (reduction.c). */
cddp_status cdi_run_reduction(struct cdi_run *run, struct cdi_error *err);
/* broadcast, all_gather(v), all_to_all, send, recv (move.c). */
cddp_status cdi_run_move(struct cdi_run *run, struct cdi_error *err);

/*
 * Bytes from every rank to every rank, in pieces: rank r gives t->len[r] bytes (known to all), this one those at
 * `mine`; take is called for each stretch: n bytes at offset `at` of what `from` gives, this rank's own included. At
 * least one step.
 */
typedef void (*cdi_take_fn)(void *arg, int from, size_t at, const uint8_t *p, size_t n);
cddp_status cdi_exchange(struct cdi_run *run, const void *mine, cdi_take_fn take, void *arg, struct cdi_error *err);

#endif
