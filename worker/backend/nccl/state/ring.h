/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring of operations: a slot for each ticket that is under way, and how far the stream is. Functions without
 * a remark take any thread, with `lock` or without, and make no call of CUDA.
 */
#ifndef CDI_NCCL_RING_H
#define CDI_NCCL_RING_H

#include "worker/backend/nccl/state/state.h"

/* Grows the ring until n more tickets fit. With `lock`. CDDP_E_LIMIT, CDDP_E_NOMEM. */
cddp_status cdi_ring_make_room(struct cdi_backend *b, size_t n, struct cdi_error *err);
/* Returns the slot of the next ticket, with its event. With `lock`. CDDP_E_LIMIT, CDDP_E_NOMEM, CDDP_E_SYSTEM. */
cddp_status cdi_ring_next(struct cdi_backend *b, struct cdi_slot **out, struct cdi_error *err);
/* Replaces the caller's array of counts by a copy. CDDP_E_NOMEM. */
cddp_status cdi_slot_copy_counts(const struct cdi_backend *b, struct cdi_slot *s, struct cdi_error *err);
/* Returns operation i of a slot; NULL after the last one. */
struct cdi_ring_op *cdi_slot_op(struct cdi_slot *s, size_t i);
/* Returns whether the program has called send or recv; not whether a collective consists of them. */
bool cdi_op_is_message(const struct cdi_coll *op);
/* Describes the operation, as in "recv of 4 float32 from rank 1 and 2 more"; with `ring_lock` or `lock`. */
void cdi_slot_describe(const struct cdi_slot *s, uint64_t ticket, struct cdi_op_info *out);
/* Frees the slots and what they hold. */
void cdi_ring_free(struct cdi_backend *b);

/*
 * Updates the flight page with the tickets that the stream has written. Returns true if every ticket is done, which
 * remains so only with `lock`.
 */
bool cdi_ring_poll(struct cdi_backend *b);
/* Returns whether this ticket was done at the last update. */
bool cdi_ring_is_done(struct cdi_backend *b, uint64_t ticket);
/* Describes the operation that NCCL or the GPU is executing. */
void cdi_ring_current(struct cdi_backend *b, struct cdi_op_info *out);
/* Adds the ranks with which this rank exchanges the messages of a ticket that is not done. */
void cdi_ring_peers(struct cdi_backend *b, uint64_t ticket, struct cdi_rank_list *peers);
/* Gives operations under way ms more: this process was stopped for so long, for example by scontrol suspend. */
void cdi_ring_add_time(struct cdi_backend *b, int64_t ms);

/*
 * Copies ops and their counts into one block of cdi_host's memory. The BARRIER that opens messages is left out: it is
 * for backends that compare the calls of ranks. CDDP_E_NOMEM.
 */
cddp_status cdi_op_group_create(struct cdi_op_group **out, const struct cdi_coll *ops, size_t n, int n_ranks,
                                struct cdi_error *err);

#endif
