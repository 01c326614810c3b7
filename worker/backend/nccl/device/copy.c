/* SPDX-License-Identifier: Apache-2.0 */
/* While one of the two blocks is being copied, the host fills or empties the other. */
#include "worker/backend/nccl/device/copy.h"

#include <string.h>

/* Waits until the block is free; one that was never used is. */
static cddp_status await_block(const struct cdi_blocks *c, size_t i, struct cdi_error *err)
{
    return cdi_cuda_check(cdi_cuda.event_synchronize(c->gone[i % CDI_N_BLOCKS]), "copying", err);
}

static size_t copy_piece_bytes(size_t bytes, size_t piece)
{
    size_t left = bytes - piece * CDI_BLOCK_BYTES;

    return left < CDI_BLOCK_BYTES ? left : CDI_BLOCK_BYTES;
}

/* Copies piece i through block i % 2. */
static cddp_status send_piece(const struct cdi_device *d, uint8_t *to, const uint8_t *from, size_t bytes, size_t i,
                              struct cdi_error *err)
{
    const struct cdi_blocks *c = d->blocks;
    size_t at = i * CDI_BLOCK_BYTES, n = copy_piece_bytes(bytes, i);
    cddp_status st = await_block(c, i, err);

    if (st != CDDP_OK)
        return st;
    memcpy(c->block[i % CDI_N_BLOCKS], from + at, n);
    st = cdi_cuda_check(cdi_cuda.to_device(cdi_device_ptr(to + at), c->block[i % CDI_N_BLOCKS], n, d->side),
                        "copying to the GPU", err);
    return st == CDDP_OK ? cdi_cuda_check(cdi_cuda.event_record(c->gone[i % CDI_N_BLOCKS], d->side), "copying", err)
                         : st;
}

static cddp_status fetch_piece(const struct cdi_device *d, const uint8_t *from, size_t bytes, size_t i,
                               struct cdi_error *err)
{
    const struct cdi_blocks *c = d->blocks;
    cddp_status st =
        cdi_cuda_check(cdi_cuda.to_host(c->block[i % CDI_N_BLOCKS], cdi_device_ptr(from + i * CDI_BLOCK_BYTES),
                                        copy_piece_bytes(bytes, i), d->side),
                       "copying from the GPU", err);

    return st == CDDP_OK ? cdi_cuda_check(cdi_cuda.event_record(c->gone[i % CDI_N_BLOCKS], d->side), "copying", err)
                         : st;
}

static cddp_status copy_to_device(const struct cdi_device *d, void *to, const void *from, size_t bytes,
                                  struct cdi_error *err)
{
    size_t n_pieces = (bytes + CDI_BLOCK_BYTES - 1) / CDI_BLOCK_BYTES;
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < n_pieces && st == CDDP_OK; i++)
        st = send_piece(d, to, from, bytes, i, err);
    return st;
}

static cddp_status copy_to_host(const struct cdi_device *d, void *to, const void *from, size_t bytes,
                                struct cdi_error *err)
{
    const struct cdi_blocks *c = d->blocks;
    size_t n_pieces = (bytes + CDI_BLOCK_BYTES - 1) / CDI_BLOCK_BYTES;
    cddp_status st = n_pieces > 0 ? fetch_piece(d, from, bytes, 0, err) : CDDP_OK;

    for (size_t i = 0; i < n_pieces && st == CDDP_OK; i++) {
        if (i + 1 < n_pieces)
            st = fetch_piece(d, from, bytes, i + 1, err);
        if (st == CDDP_OK)
            st = await_block(c, i, err);
        if (st == CDDP_OK)
            memcpy((uint8_t *)to + i * CDI_BLOCK_BYTES, c->block[i % CDI_N_BLOCKS], copy_piece_bytes(bytes, i));
    }
    return st;
}

cddp_status cdi_device_copy(const struct cdi_device *d, void *to, const void *from, size_t bytes, struct cdi_error *err)
{
    bool to_device, from_device;
    cddp_status st = bytes == 0 ? CDDP_OK : cdi_device_owns(d, to, &to_device, err);

    if (st == CDDP_OK && bytes > 0)
        st = cdi_device_owns(d, from, &from_device, err);
    if (st != CDDP_OK || bytes == 0)
        return st;
    if (!to_device && !from_device) {
        memcpy(to, from, bytes);
        return CDDP_OK;
    }
    (void)pthread_mutex_lock(&d->blocks->lock);
    if (!from_device)
        st = copy_to_device(d, to, from, bytes, err);
    else if (!to_device)
        st = copy_to_host(d, to, from, bytes, err);
    else
        st = cdi_cuda_check(cdi_cuda.on_device(cdi_device_ptr(to), cdi_device_ptr(from), bytes, d->side), "copying",
                            err);
    /* Also after an error: the next copy uses the blocks, and the caller its memory. */
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.stream_synchronize(d->side), "copying", err);
    else
        (void)cdi_cuda.stream_synchronize(d->side);
    (void)pthread_mutex_unlock(&d->blocks->lock);
    return st;
}

/* cuMemAlloc and cuMemFree may wait for all work on the GPU; these functions wait for one stream. */
void *cdi_device_borrow(const struct cdi_device *d, size_t bytes)
{
    size_t room = 0, total = 0;
    CUdeviceptr p = 0;

    if (cdi_cuda.memory_info(&room, &total) != CUDA_SUCCESS || room / 2 < bytes ||
        cdi_cuda.memory_alloc_async(&p, bytes, d->side) != CUDA_SUCCESS)
        return NULL;
    if (cdi_cuda.stream_synchronize(d->side) != CUDA_SUCCESS) {
        (void)cdi_cuda.memory_free_async(p, d->side);
        return NULL;
    }
    return (void *)(uintptr_t)p;
}

void cdi_device_give_back(const struct cdi_device *d, void *p)
{
    (void)cdi_cuda.memory_free_async(cdi_device_ptr(p), d->side);
    (void)cdi_cuda.stream_synchronize(
        d->side); /* then the pool returns it to the driver, and the program can allocate it */
}
