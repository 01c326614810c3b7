/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies one rank's parameters to all ranks. Small neighbours are sent together, packed into a staging buffer, since a
 * collective costs more than their bytes. Larger ones, and single ones, are sent from their own memory.
 */
#include "worker/reducer/state/replicate.h"

#include <stdlib.h>

#define STAGE_BYTES ((size_t)1 << 20)

/* Returns how many of the n slices, of `bytes` together, are sent in one collective: the same on every rank. */
static size_t take_run(const struct cdi_slice *s, size_t n, size_t *bytes)
{
    size_t k = 1;

    *bytes = s[0].bytes;
    while (k < n && *bytes + s[k].bytes <= STAGE_BYTES)
        *bytes += s[k++].bytes;
    return k;
}

/* Returns the required size of the staging buffer, at least `largest`. */
static size_t stage_bytes(const struct cdi_slice *s, size_t n, size_t largest)
{
    size_t bytes;

    for (size_t i = 0, k; i < n; i += k) {
        k = take_run(s + i, n - i, &bytes);
        if (k > 1 && bytes > largest)
            largest = bytes;
    }
    return largest;
}

cddp_status cdi_replicate_init(cddp_ddp *d, const cddp_param *buffers, struct cdi_error *err)
{
    size_t n = d->n_params + d->n_buffers, bytes;

    d->slices = calloc(n, sizeof *d->slices);
    if (d->slices == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for %zu parameters and buffers", n);
    for (size_t i = 0; i < n; i++) {
        const cddp_param *p = i < d->n_params ? &d->params[i] : &buffers[i - d->n_params];

        d->slices[i] = (struct cdi_slice){p->data, p->count * cddp_dtype_size(p->dtype)};
    }
    /* At creation all are sent together, in a step only buffers. */
    bytes = stage_bytes(d->slices + d->n_params, d->n_buffers, stage_bytes(d->slices, n, 0));
    if (bytes == 0 || cdi_comm_world(d->comm)->size == 1)
        return CDDP_OK;
    return d->ops->alloc(d->b, bytes, &d->stage, err);
}

void cdi_replicate_release(cddp_ddp *d)
{
    free(d->slices);
    if (d->stage != NULL)
        d->ops->release(d->b, d->stage);
}

/* Enqueues a broadcast without waiting: work that is enqueued later follows it. */
static cddp_status begin_broadcast(cddp_ddp *d, void *at, size_t bytes, int root, struct cdi_error *err)
{
    struct cdi_coll op = {
        .kind = CDI_BROADCAST, .in = at, .out = at, .count = bytes, .dtype = CDDP_UINT8, .root = root, .bucket = -1};
    uint64_t ticket;
    cddp_status st = cdi_ddp_begin(d, &op, &ticket, err);

    if (st == CDDP_OK) {
        (void)pthread_mutex_lock(&d->lock);
        d->enqueued = ticket;
        (void)pthread_mutex_unlock(&d->lock);
    }
    return st;
}

static cddp_status replicate_broadcast(cddp_ddp *d, void *at, size_t bytes, int root, bool wait, struct cdi_error *err)
{
    if (d->ops->on_device && !wait)
        return begin_broadcast(d, at, bytes, root, err);
    return cdi_ddp_broadcast(d, at, bytes, root, err);
}

/* Sends k slices. */
static cddp_status send_run(cddp_ddp *d, const struct cdi_slice *s, size_t k, size_t bytes, int root, bool wait,
                            struct cdi_error *err)
{
    bool mine = cdi_comm_world(d->comm)->rank == root;
    cddp_status st = CDDP_OK;

    if (k == 1)
        return replicate_broadcast(d, s->data, bytes, root, wait, err);
    if (mine)
        st = d->ops->pack(d->b, d->stage, s, k, err);
    if (st == CDDP_OK)
        st = replicate_broadcast(d, d->stage, bytes, root, wait, err);
    return st == CDDP_OK && !mine ? d->ops->unpack(d->b, s, k, d->stage, err) : st;
}

cddp_status cdi_replicate(cddp_ddp *d, const struct cdi_slice *s, size_t n, int root, bool wait, struct cdi_error *err)
{
    cddp_status st = d->ops->on_device ? cdi_ddp_follow(d, d->stream, err) : CDDP_OK;
    uint8_t byte;
    size_t bytes;

    if (cdi_comm_world(d->comm)->size == 1)
        return st;
    for (size_t i = 0, k; i < n && st == CDDP_OK; i += k) {
        k = take_run(s + i, n - i, &bytes);
        st = send_run(d, s + i, k, bytes, root, wait, err);
    }
    /*
     * On a device the last copy out of the staging buffer may be in flight: a copy follows it, and the host waits for
     * that.
     */
    if (st != CDDP_OK || !d->ops->on_device)
        return st;
    if (!wait)
        return d->ops->stream_wait(d->b, 0, d->stream, err);
    if (d->stage != NULL)
        st = d->ops->copy(d->b, &byte, d->stage, 1, err);
    return st;
}
