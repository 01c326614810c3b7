/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communication stream writes tickets into words of pinned memory, which any thread may read. The alternative,
 * cuEventQuery, would end a graph capture of the program, would wait for another thread whose call of the driver does
 * not return, and costs a call each time.
 *
 * The write is version 2 of cuStreamWriteValue32, which every driver of CUDA 11.7 and newer has, "by default on all
 * platforms" (CUDA Driver API 11.8, Stream Memory Operations). The attribute CAN_USE_STREAM_MEM_OPS_V1 is about version
 * 1. A driver that rejects the write anyway is rejected at creation: the alternative has all of the drawbacks above.
 */
#include "worker/backend/nccl/state/completion.h"

#include "common/clock.h"

#include <string.h>
#include <time.h>

static cddp_status write_word(struct cdi_backend *b, _Atomic uint32_t *word, uint32_t value, struct cdi_error *err)
{
    return cdi_cuda_check(cdi_cuda.stream_write(b->device.stream, cdi_device_ptr(word), value, 0),
                          "enqueueing the write of a word", err);
}

cddp_status cdi_completion_create(struct cdi_backend *b, struct cdi_error *err)
{
    void *pinned = NULL;
    cddp_status st =
        cdi_cuda_check(cdi_cuda.pinned_alloc(&pinned, sizeof *b->words, 0), "allocating pinned memory", err);

    if (st != CDDP_OK)
        return st;
    memset(pinned, 0, sizeof *b->words);
    b->words = pinned;
    return write_word(b, &b->words->done, 0, err);
}

/* Memory that the stream may still write to is never freed: it could overwrite other data. */
void cdi_completion_destroy(struct cdi_backend *b)
{
    if (b->words != NULL && cdi_completion_drain(b))
        (void)cdi_cuda.pinned_free(b->words);
    b->words = NULL;
}

cddp_status cdi_completion_write_started(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err)
{
    return write_word(b, &b->words->started, (uint32_t)ticket, err);
}

cddp_status cdi_completion_write_done(struct cdi_backend *b, uint64_t ticket, struct cdi_error *err)
{
    return write_word(b, &b->words->done, (uint32_t)ticket, err);
}

/* The count of blocks follows the element that barriers reduce. */
static void write_by_kernel(struct cdi_backend *b, _Atomic uint32_t *word, uint64_t ticket, struct cdi_launch *scale)
{
    cdi_launch_scale_signals(scale, word, (uint32_t)ticket, (uint8_t *)b->token + CDI_TOKEN_COUNT_AT);
}

void cdi_completion_started_by_kernel(struct cdi_backend *b, uint64_t ticket, struct cdi_launch *scale)
{
    write_by_kernel(b, &b->words->started, ticket, scale);
}

void cdi_completion_done_by_kernel(struct cdi_backend *b, uint64_t ticket, struct cdi_launch *scale)
{
    write_by_kernel(b, &b->words->done, ticket, scale);
}

bool cdi_completion_drain(struct cdi_backend *b)
{
    int64_t until_ms = cdi_now_ms() + CDI_DRAIN_MS;
    const struct timespec nap = {.tv_nsec = 100000};
    uint32_t mine = atomic_load(&b->words->drained) + 1;

    if (write_word(b, &b->words->drained, mine, NULL) != CDDP_OK)
        return true; /* the device has failed, and runs nothing any more */
    while (atomic_load(&b->words->drained) != mine) {
        if (cdi_now_ms() > until_ms)
            return false;
        (void)nanosleep(&nap, NULL);
    }
    return true;
}
