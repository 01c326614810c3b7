/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of pinned memory for copies, made with the device: pinned memory is slow to get and to free, and the driver
 * may wait meanwhile for all that runs on the GPU, collectives and their peers included.
 */
#ifndef CDI_NCCL_PINNED_BLOCKS_H
#define CDI_NCCL_PINNED_BLOCKS_H

#include "worker/backend/nccl/device/library.h"

#include <pthread.h>

#define CDI_BLOCK_BYTES ((size_t)2 << 20)
#define CDI_N_BLOCKS 2

struct cdi_blocks {
    pthread_mutex_t lock; /* one copy at a time; never held during a wait for a peer */
    uint8_t *block[CDI_N_BLOCKS];
    CUevent gone[CDI_N_BLOCKS]; /* recorded after the last copy from or to the block */
};

/* Allocates the blocks of a device. The context is current. CDDP_E_NOMEM, CDDP_E_SYSTEM. */
cddp_status cdi_blocks_create(struct cdi_blocks **out, struct cdi_error *err);
/* Frees them; no copy is under way. NULL-safe. */
void cdi_blocks_destroy(struct cdi_blocks *c);

#endif
