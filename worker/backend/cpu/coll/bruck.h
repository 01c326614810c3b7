/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An all-gather of small blocks between all nodes, in ceil(log2(nodes)) rounds: in round k a node sends what it has to
 * the node 2^k further on. Without data it is a barrier.
 */
#ifndef CDI_COLL_BRUCK_H
#define CDI_COLL_BRUCK_H

#include "worker/backend/cpu/coll/chain.h"

/*
 * Fills block, of which node k has the bytes [tcp->node_at[k], tcp->node_at[k + 1]), and this node has its own. All
 * together is at most CDI_TCP_PAYLOAD_MAX; block may be NULL without any. Compares the operation with that of all nodes
 * that send. Only local rank 0 calls it, on all nodes. Errors as from cdi_step().
 */
cddp_status cdi_bruck_run(struct cdi_run *run, uint8_t *block, struct cdi_error *err);

/*
 * The same from rank to rank: rank r gives t->len[r] bytes; those of this rank are at `mine`. The sum of all is at most
 * CDI_SHM_PIECE_BYTES. Sets *all to the data of all ranks, in their order, until the next step. All ranks call it.
 */
cddp_status cdi_bruck_gather(struct cdi_run *run, const void *mine, const uint8_t **all, struct cdi_error *err);

#endif
