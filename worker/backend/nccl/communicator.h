/* SPDX-License-Identifier: Apache-2.0 */
/* The NCCL communicator of a backend: how ranks connect, split, and leave. */
#ifndef CDI_NCCL_COMMUNICATOR_H
#define CDI_NCCL_COMMUNICATOR_H

#include "worker/backend/nccl/state/state.h"

/*
 * Connects all ranks. local: the result of the steps in which a rank can fail alone. All ranks agree whether to go on;
 * then NCCL makes the communicator.
 */
cddp_status cdi_communicator_join(struct cdi_backend *b, const struct cdi_error *local, bool share,
                                  struct cdi_error *err);
/* Splits b; part (NULL: this rank is not in any) gets its communicator, rank and size. Blocks. */
cddp_status cdi_communicator_split(struct cdi_backend *b, int color, int key, struct cdi_backend *part,
                                   struct cdi_error *err);
/*
 * Releases comm without waiting for peers: finalizes it if nothing is in flight and destroys it in another thread,
 * otherwise aborts it. Returns false if a call on it is still under way; then all that it may use must stay.
 */
bool cdi_communicator_release(struct cdi_backend *b);
/* Returns the rank's number among the roots that publish unique ids, or -1; spread as NCCL advises. Pure. */
int cdi_root_of_rank(int rank, int size, int roots);

#endif
