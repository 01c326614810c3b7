/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a communicator's memory, and the lookup of buffers in it. */
#include "worker/comm/memory.h"

#include "worker/comm/comm.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#define PAGE ((size_t)4096)

void cdi_memory_add(cddp_comm *comm, struct cdi_extent *e)
{
    struct cdi_memory *m = cdi_comm_memory(comm);

    (void)pthread_mutex_lock(&m->lock);
    if (e->kind != CDI_MEMORY_HOST)
        e->id = atomic_fetch_add(&m->n_shared, 1) + 1;
    e->next = m->list;
    m->list = e;
    (void)pthread_mutex_unlock(&m->lock);
}

struct cdi_extent *cdi_memory_remove(cddp_comm *comm, const void *p, bool registered)
{
    struct cdi_memory *m = cdi_comm_memory(comm);
    struct cdi_extent *found = NULL;

    (void)pthread_mutex_lock(&m->lock);
    for (struct cdi_extent **at = &m->list; *at != NULL; at = &(*at)->next)
        if ((*at)->base == p && ((*at)->kind == CDI_MEMORY_REGISTERED) == registered) {
            found = *at;
            *at = found->next;
            break;
        }
    (void)pthread_mutex_unlock(&m->lock);
    return found;
}

bool cdi_memory_overlaps(cddp_comm *comm, const void *p, size_t bytes)
{
    struct cdi_memory *m = cdi_comm_memory(comm);
    uintptr_t a = (uintptr_t)p;
    bool found = false;

    (void)pthread_mutex_lock(&m->lock);
    for (const struct cdi_extent *e = m->list; e != NULL; e = e->next)
        found |= (uintptr_t)e->base < a + bytes && a < (uintptr_t)e->base + e->bytes;
    (void)pthread_mutex_unlock(&m->lock);
    return found;
}

static bool holds(const struct cdi_extent *e, const void *p, size_t bytes)
{
    uintptr_t a = (uintptr_t)e->base, b = (uintptr_t)p;

    return b >= a && bytes <= e->bytes && b - a <= e->bytes - bytes;
}

bool cdi_memory_find(cddp_comm *comm, const void *p, size_t bytes, struct cdi_extent *out)
{
    struct cdi_memory *m = cdi_comm_memory(comm);
    bool found = false;

    if (atomic_load_explicit(&m->n_shared, memory_order_relaxed) == 0)
        return false;
    (void)pthread_mutex_lock(&m->lock);
    for (const struct cdi_extent *e = m->list; e != NULL && !found; e = e->next)
        if (e->id != 0 && holds(e, p, bytes)) {
            *out = *e;
            found = true;
        }
    (void)pthread_mutex_unlock(&m->lock);
    return found;
}

static bool is_overrun(const struct cdi_extent *e, const void *p, size_t bytes)
{
    uintptr_t a = (uintptr_t)e->base, b = (uintptr_t)p;
    bool alone = e->region != NULL && e->bytes % PAGE != 0; /* nothing else begins right after it */

    return e->kind == CDI_MEMORY_SHARED && b >= a && b - a < e->bytes + alone && !holds(e, p, bytes);
}

bool cdi_memory_overrun(cddp_comm *comm, const void *p, size_t bytes, struct cdi_extent *out)
{
    struct cdi_memory *m = cdi_comm_memory(comm);
    bool found = false;

    (void)pthread_mutex_lock(&m->lock);
    for (const struct cdi_extent *e = m->list; e != NULL && !found; e = e->next)
        if (is_overrun(e, p, bytes)) {
            *out = *e;
            found = true;
        }
    (void)pthread_mutex_unlock(&m->lock);
    return found;
}

void cdi_extent_destroy(struct cdi_extent *e, const struct cdi_backend_ops *ops, struct cdi_backend *b)
{
    if (e->region != NULL)
        ops->region_destroy(b, e->region);
    else if (e->kind == CDI_MEMORY_HOST)
        ops->release_host(b, e->base);
    else if (e->kind == CDI_MEMORY_SHARED)
        ops->release(b, e->base);
    free(e);
}

void cdi_memory_release(struct cdi_memory *m, const struct cdi_backend_ops *ops, struct cdi_backend *b)
{
    while (m->list != NULL) {
        struct cdi_extent *e = m->list;

        m->list = e->next;
        cdi_extent_destroy(e, ops, b);
    }
}

void cdi_memory_place(cddp_comm *comm, struct cdi_coll *op)
{
    size_t size = (size_t)cdi_comm_world(comm)->size, rank = (size_t)cdi_comm_world(comm)->rank;
    size_t bytes = op->count * cddp_dtype_size(op->dtype);
    const char *in = op->in, *out = op->out;
    struct cdi_extent e = {.region = NULL};

    if (op->kind != CDI_ALL_REDUCE && op->kind != CDI_ALL_GATHER && op->kind != CDI_REDUCE_SCATTER)
        return;
    if (bytes == 0)
        return;
    op->anywhere = true;
    if (op->kind == CDI_ALL_REDUCE && in == out)
        (void)cdi_memory_find(comm, out, bytes, &e);
    else if (op->kind == CDI_ALL_GATHER && in == out + rank * bytes)
        (void)cdi_memory_find(comm, out, size * bytes, &e);
    else if (op->kind == CDI_REDUCE_SCATTER && out == in + rank * bytes)
        (void)cdi_memory_find(comm, in, size * bytes, &e);
    op->region = e.region;
}
