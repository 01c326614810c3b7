/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the conformance suite about operations that are enqueued as one (conformance_group.c). */
#ifndef CDI_CONFORMANCE_CONFORMANCE_GROUP_H
#define CDI_CONFORMANCE_CONFORMANCE_GROUP_H

#include "ranks.h"

/*
 * Runs one group of up to `most` messages between all ranks, also to themselves, which the seed chooses; each rank has
 * them in an order that its random state `own`, not 0, chooses. The backend is open.
 */
int group_exchange(struct rank *r, uint64_t seed, uint64_t *own, size_t most);

int group_of_messages(struct rank *r);
int group_of_collectives(struct rank *r);
int group_that_does_not_fit(struct rank *r);
int group_made(struct rank *r);
int group_asked_for(struct rank *r);
int group_differs(struct rank *r);
int group_length_differs(struct rank *r);
int group_stay_away(struct rank *r);
int group_half_stays_away(struct rank *r);
int group_counts_differ(struct rank *r);
int group_dies(struct rank *r); /* rank 1 */
int group_aborted(struct rank *r);

#endif
