/* SPDX-License-Identifier: Apache-2.0 */
/* The watch thread of a communicator, and the end of its threads. */
#ifndef CDI_NCCL_WATCH_H
#define CDI_NCCL_WATCH_H

#include "worker/backend/nccl/state/state.h"

/* Starts the watch thread and the progress thread. */
cddp_status cdi_watch_start(struct cdi_backend *b, struct cdi_error *err);
/*
 * Ends both threads; after a failure the communicator is aborted. Returns false if the abort does not return; then b
 * must stay.
 */
bool cdi_watch_stop(struct cdi_backend *b);

#endif
