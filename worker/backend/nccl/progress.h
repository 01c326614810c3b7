/* SPDX-License-Identifier: Apache-2.0 */
/* The progress thread of a communicator. */
#ifndef CDI_NCCL_PROGRESS_H
#define CDI_NCCL_PROGRESS_H

#include "worker/backend/nccl/state/state.h"

/* Runs until the communicator fails or ends. b: the backend. */
void *cdi_progress_main(void *b);

#endif
