/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cddp_alloc, cddp_free, cddp_register and cddp_unregister. What all ranks have together they agree on first: that all
 * ask for the same, and that all can have it. So either all have it or none, and it has the same number on all.
 */
#include "worker/comm/memory.h"

#include "common/cleanup.h"
#include "worker/comm/comm.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define KNOWN_FLAGS ((uint32_t)(CDDP_MEM_COLLECTIVE | CDDP_MEM_HOST))
#define PAGE ((size_t)4096)

/* ------------------------------------------------------------------------------------------------- the list ---- */

static void add(cddp_comm *comm, struct cdi_extent *e)
{
    struct cdi_memory *m = cdi_comm_memory(comm);

    (void)pthread_mutex_lock(&m->lock);
    if (e->kind != CDI_MEMORY_HOST)
        e->id = atomic_fetch_add(&m->n_shared, 1) + 1;
    e->next = m->list;
    m->list = e;
    (void)pthread_mutex_unlock(&m->lock);
}

/* Take the one that begins at p out of the list; NULL: there is none. */
static struct cdi_extent *take_out(cddp_comm *comm, const void *p, bool registered)
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

static bool meets(const struct cdi_extent *e, const void *p, size_t bytes)
{
    uintptr_t a = (uintptr_t)e->base, b = (uintptr_t)p;

    return a < b + bytes && b < a + e->bytes;
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

static bool overrun(const struct cdi_extent *e, const void *p, size_t bytes)
{
    uintptr_t a = (uintptr_t)e->base, b = (uintptr_t)p;
    bool alone = e->region != NULL && e->bytes % PAGE != 0; /* nothing else begins right behind it */

    return e->kind == CDI_MEMORY_SHARED && b >= a && b - a < e->bytes + alone && !holds(e, p, bytes);
}

bool cdi_memory_overrun(cddp_comm *comm, const void *p, size_t bytes, struct cdi_extent *out)
{
    struct cdi_memory *m = cdi_comm_memory(comm);
    bool found = false;

    (void)pthread_mutex_lock(&m->lock);
    for (const struct cdi_extent *e = m->list; e != NULL && !found; e = e->next)
        if (overrun(e, p, bytes)) {
            *out = *e;
            found = true;
        }
    (void)pthread_mutex_unlock(&m->lock);
    return found;
}

static void destroy(struct cdi_extent *e, const struct cdi_backend_ops *ops, struct cdi_backend *b)
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
        destroy(e, ops, b);
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

/* -------------------------------------------------------------------------------------------------- together ---- */

/* What each rank says; u64 on the wire. */
struct wish {
    uint64_t status, flags, bytes;
};

/*
 * Do all ranks ask for the same, and can all have it? A rank that cannot (mine, with its message) says so, and gets its
 * own error back.
 */
static cddp_status agree(cddp_comm *comm, const char *function, uint32_t flags, size_t bytes, cddp_status mine,
                         struct cdi_error *err)
{
    const struct cdi_world *w = cdi_comm_world(comm);
    const struct wish wish = {(uint64_t)(-(int)mine), flags, bytes};
    CDI_AUTOFREE struct wish *all = calloc((size_t)w->size, sizeof *all);
    struct cdi_error own = {.status = mine};
    cddp_status st;

    if (all == NULL) { /* the others wait for this rank's word */
        (void)cdi_fail(err, CDDP_E_NOMEM, "rank %d: %s: out of memory", w->rank, function);
        cdi_comm_ops(comm)->abort(cdi_comm_backend(comm), CDDP_E_ABORTED, err->msg);
        return CDDP_E_NOMEM;
    }
    if (mine != CDDP_OK)
        own = *err;
    st = cdi_comm_all_gather(comm, &wish, all, 3, CDDP_UINT64, err);
    if (st != CDDP_OK || mine != CDDP_OK) {
        *err = st != CDDP_OK ? *err : own;
        return st != CDDP_OK ? st : mine;
    }
    for (int r = 0; r < w->size; r++)
        if (all[r].status != 0)
            return cdi_fail_by(err, cdi_rank_of_job(w, r), (cddp_status)(-(int)all[r].status),
                               "%s: rank %d could not take part", function, r);
    for (int r = 1; r < w->size; r++)
        if (all[r].bytes != all[0].bytes || all[r].flags != all[0].flags)
            return cdi_fail_by(err, cdi_rank_of_job(w, r), CDDP_E_MISMATCH,
                               "%s: rank 0 asks for %" PRIu64 " bytes with flags %" PRIu64 ", but rank %d for %" PRIu64
                               " with flags %" PRIu64 ": memory of all ranks has one size",
                               function, all[0].bytes, all[0].flags, r, all[r].bytes, all[r].flags);
    return CDDP_OK;
}

/* -------------------------------------------------------------------------------------------------- cddp_alloc ---- */

/*
 * On a device it is no region. A region may be a symmetric window there, in which NCCL adds what lies at one offset on
 * all ranks, and does not look whether ranks mean the same. And NCCL reduces where memory lies, whatever memory it is.
 */
static cddp_status make_shared(cddp_comm *comm, struct cdi_extent *e, struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);
    struct cdi_backend *b = cdi_comm_backend(comm);
    cddp_status st;

    if (!ops->on_device) {
        st = ops->region_create(b, e->bytes, &e->region, err);
        if (st == CDDP_OK)
            e->base = e->region->base;
        return st;
    }
    st = ops->alloc(b, e->bytes, &e->base, err);
    if (st != CDDP_OK)
        e->base = NULL;
    st = agree(comm, "cddp_alloc", CDDP_MEM_COLLECTIVE, e->bytes, st, err);
    if (st != CDDP_OK && e->base != NULL)
        ops->release(b, e->base);
    return st;
}

static cddp_status alloc_shared(cddp_comm *comm, size_t bytes, uint32_t flags, void **out, struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);
    struct cdi_extent *e = calloc(1, sizeof *e);
    cddp_status st = CDDP_OK;

    if (e == NULL)
        st = cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    else if (ops->on_device && (flags & CDDP_MEM_HOST) != 0)
        st = cdi_fail(err, CDDP_E_UNSUPPORTED,
                      "cddp_alloc: backend %s reduces in memory of its GPU: leave out CDDP_MEM_HOST or "
                      "CDDP_MEM_COLLECTIVE",
                      ops->name);
    st = agree(comm, "cddp_alloc", flags, bytes, st, err);
    if (st == CDDP_OK && e != NULL) {
        *e = (struct cdi_extent){.kind = CDI_MEMORY_SHARED, .bytes = bytes};
        st = make_shared(comm, e, err);
    }
    if (st != CDDP_OK || e == NULL) {
        free(e);
        return st;
    }
    add(comm, e);
    *out = e->base;
    return CDDP_OK;
}

static cddp_status alloc_host(cddp_comm *comm, size_t bytes, void **out, struct cdi_error *err)
{
    struct cdi_extent *e = calloc(1, sizeof *e);
    cddp_status st;

    if (e == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    st = cdi_comm_ops(comm)->alloc_host(cdi_comm_backend(comm), bytes, &e->base, err);
    if (st != CDDP_OK) {
        free(e);
        return st;
    }
    e->kind = CDI_MEMORY_HOST;
    e->bytes = bytes;
    add(comm, e);
    *out = e->base;
    return CDDP_OK;
}

static cddp_status alloc(cddp_comm *comm, size_t bytes, uint32_t flags, void **out, struct cdi_error *err)
{
    if ((flags & ~KNOWN_FLAGS) != 0)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_alloc: flags has unknown bits (%#" PRIx32 ")", flags);
    if ((flags & CDDP_MEM_COLLECTIVE) != 0)
        return alloc_shared(comm, bytes, flags, out, err);
    if ((flags & CDDP_MEM_HOST) != 0 && cdi_comm_ops(comm)->alloc_host != NULL)
        return alloc_host(comm, bytes, out, err);
    return cdi_comm_ops(comm)->alloc(cdi_comm_backend(comm), bytes, out, err);
}

cddp_status cddp_alloc(cddp_comm *comm, size_t bytes, uint32_t flags, void **out)
{
    struct cdi_error err;
    enum cdi_asked before;
    cddp_status st;

    if (comm == NULL || out == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "cddp_alloc: comm and out must not be NULL"), &err);
    if (cdi_comm_own("cddp_alloc", comm, &err) != CDDP_OK)
        return cdi_last_error_return(CDDP_E_STATE, &err);
    before = cdi_comm_ask(CDI_ASKED_ALLOC);
    st = alloc(comm, bytes, flags, out, &err);
    (void)cdi_comm_ask(before);
    return cdi_last_error_return(st, &err);
}

void cddp_free(cddp_comm *comm, void *p)
{
    struct cdi_extent *e;

    if (comm == NULL || p == NULL || cdi_comm_is_others("cddp_free", comm))
        return;
    e = take_out(comm, p, false);
    if (e != NULL)
        destroy(e, cdi_comm_ops(comm), cdi_comm_backend(comm));
    else
        cdi_comm_ops(comm)->release(cdi_comm_backend(comm), p);
}

/* ------------------------------------------------------------------------------------------------ cddp_register ----
 */

static cddp_status check_own(cddp_comm *comm, const void *p, size_t bytes, struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);
    struct cdi_memory *m = cdi_comm_memory(comm);
    bool taken = false;

    if (p == NULL || bytes == 0 || bytes > PTRDIFF_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_register: there is no memory of %zu bytes at %p", bytes, p);
    (void)pthread_mutex_lock(&m->lock);
    for (const struct cdi_extent *e = m->list; e != NULL; e = e->next)
        taken |= meets(e, p, bytes);
    (void)pthread_mutex_unlock(&m->lock);
    if (taken)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_register: this memory, or part of it, is registered already or is memory of cddp_alloc");
    if (!ops->on_device)
        return CDDP_OK;
    if (ops->check_memory != NULL && ops->check_memory(cdi_comm_backend(comm), p, err) != CDDP_OK)
        return err->status;
    if (!ops->is_device(cdi_comm_backend(comm), p))
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_register: this is host memory, but backend %s reduces in memory of "
                        "its GPU",
                        ops->name);
    return CDDP_OK;
}

static cddp_status enlist(cddp_comm *comm, void *p, size_t bytes, uint32_t flags, struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);
    struct cdi_extent *e;
    cddp_status st;

    if (flags != CDDP_MEM_COLLECTIVE)
        return cdi_fail(err, flags == 0 ? CDDP_E_UNSUPPORTED : CDDP_E_INVALID,
                        "cddp_register: flags is %#" PRIx32 ", but only memory that all ranks register together "
                        "(CDDP_MEM_COLLECTIVE) gains by it",
                        flags);
    if (ops->copies_private != NULL && ops->copies_private(cdi_comm_backend(comm)))
        return cdi_fail(err, CDDP_E_UNSUPPORTED,
                        "cddp_register: ranks of one node cannot share memory of the program's own: take it from "
                        "cddp_alloc with CDDP_MEM_COLLECTIVE, or leave it as it is, and gradients in it are copied");
    st = check_own(comm, p, bytes, err);
    e = calloc(1, sizeof *e);
    if (e == NULL && st == CDDP_OK)
        st = cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    st = agree(comm, "cddp_register", flags, bytes, st, err);
    if (st != CDDP_OK || e == NULL) {
        free(e);
        return st;
    }
    *e = (struct cdi_extent){.base = p, .bytes = bytes, .kind = CDI_MEMORY_REGISTERED};
    add(comm, e);
    return CDDP_OK;
}

cddp_status cddp_register(cddp_comm *comm, void *p, size_t bytes, uint32_t flags)
{
    struct cdi_error err;
    enum cdi_asked before;
    cddp_status st;

    if (comm == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "cddp_register: comm is NULL"), &err);
    if (cdi_comm_own("cddp_register", comm, &err) != CDDP_OK)
        return cdi_last_error_return(CDDP_E_STATE, &err);
    before = cdi_comm_ask(CDI_ASKED_REGISTER);
    st = enlist(comm, p, bytes, flags, &err);
    (void)cdi_comm_ask(before);
    return cdi_last_error_return(st, &err);
}

cddp_status cddp_unregister(cddp_comm *comm, void *p)
{
    struct cdi_extent *e;
    struct cdi_error err;

    if (comm == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "cddp_unregister: comm is NULL"), &err);
    if (cdi_comm_own("cddp_unregister", comm, &err) != CDDP_OK)
        return cdi_last_error_return(CDDP_E_STATE, &err);
    e = take_out(comm, p, true);
    if (e == NULL)
        return cdi_last_error_return(
            cdi_fail(&err, CDDP_E_INVALID, "cddp_unregister: no registered memory begins at %p", p), &err);
    free(e);
    return CDDP_OK;
}
