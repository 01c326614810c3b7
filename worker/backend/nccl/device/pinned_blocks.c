/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/device/pinned_blocks.h"

cddp_status cdi_blocks_create(struct cdi_blocks **out, struct cdi_error *err)
{
    struct cdi_blocks *c = cdi_host->alloc(1, sizeof *c);
    cddp_status st = CDDP_OK;

    if (c == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    (void)pthread_mutex_init(&c->lock, NULL);
    for (int i = 0; i < CDI_N_BLOCKS && st == CDDP_OK; i++) {
        void *pinned = NULL;

        st = cdi_cuda_check(cdi_cuda.pinned_alloc(&pinned, CDI_BLOCK_BYTES, 0), "allocating pinned memory", err);
        c->block[i] = pinned;
        if (st == CDDP_OK)
            st = cdi_cuda_check(cdi_cuda.event_create(&c->gone[i], CU_EVENT_DISABLE_TIMING), "creating an event", err);
    }
    if (st != CDDP_OK) {
        cdi_blocks_destroy(c);
        return st;
    }
    *out = c;
    return CDDP_OK;
}

void cdi_blocks_destroy(struct cdi_blocks *c)
{
    if (c == NULL)
        return;
    for (int i = 0; i < CDI_N_BLOCKS; i++) {
        if (c->gone[i] != NULL)
            (void)cdi_cuda.event_destroy(c->gone[i]);
        if (c->block[i] != NULL)
            (void)cdi_cuda.pinned_free(c->block[i]);
    }
    (void)pthread_mutex_destroy(&c->lock);
    cdi_host->release(c);
}
