/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cddp_alloc, cddp_free, cddp_register and cddp_unregister. For memory of all ranks they first agree that all request
 * the same, and that all can have it: either all ranks get it or none, and it has the same number on all.
 */
#include "common/cleanup.h"
#include "common/float_state.h"
#include "worker/backend/who.h"
#include "worker/comm/agree.h"
#include "worker/comm/comm.h"
#include "worker/comm/memory.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>

#define KNOWN_FLAGS ((uint32_t)(CDDP_MEM_COLLECTIVE | CDDP_MEM_HOST))

/* -------------------------------------------------------------------------------------------------- agreement ---- */

/* What each rank requests. */
struct request {
    uint64_t flags, bytes;
};

/*
 * Checks that all ranks request the same, and that all can have it. A rank that cannot (mine, with its message in err)
 * reports that to the others, and returns its own error.
 */
static cddp_status memory_agree(cddp_comm *comm, const char *function, uint32_t flags, size_t bytes, cddp_status mine,
                                struct cdi_error *err)
{
    const struct cdi_world *w = cdi_comm_world(comm);
    const struct request mine_sent = {flags, bytes};
    CDI_AUTOFREE void *cards = NULL;
    const struct request *all;
    cddp_status st =
        cdi_comm_agree(comm, "share memory", &mine_sent, sizeof mine_sent, &cards, mine != CDDP_OK ? err : NULL, err);

    all = cards;
    for (int r = 1; r < w->size && st == CDDP_OK; r++)
        if (all[r].bytes != all[0].bytes || all[r].flags != all[0].flags)
            st = cdi_fail_by(err, cdi_rank_of_job(w, r), CDDP_E_MISMATCH,
                             "%s: rank 0 requests %" PRIu64 " bytes with flags %" PRIu64 ", but %s %" PRIu64
                             " bytes with flags %" PRIu64 ": request the same on all ranks",
                             function, all[0].bytes, all[0].flags, cdi_who(w->ranks, r).text, all[r].bytes,
                             all[r].flags);
    return st;
}

/*
 * Makes an entry for the list once all ranks agree on it. `mine`: whether this rank can take part, with its message in
 * err if it cannot.
 */
static cddp_status agree_on_entry(cddp_comm *comm, const char *function, uint32_t flags, size_t bytes, cddp_status mine,
                                  struct cdi_extent **out, struct cdi_error *err)
{
    struct cdi_extent *e = calloc(1, sizeof *e);
    cddp_status st = mine;

    if (e == NULL && st == CDDP_OK)
        st = cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    st = memory_agree(comm, function, flags, bytes, st, err);
    if (st != CDDP_OK || e == NULL) {
        free(e);
        return st != CDDP_OK ? st : CDDP_E_NOMEM; /* an analyzer cannot know that without e the ranks never agree */
    }
    *out = e;
    return CDDP_OK;
}

/* -------------------------------------------------------------------------------------------------- cddp_alloc ---- */

/*
 * Allocates the memory, as a region on the host and as plain memory on a device. A region of a device may be a
 * symmetric window, where NCCL adds what lies at one offset on all ranks, without a check that the ranks mean the same.
 * And NCCL reduces in place in any memory.
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
    st = memory_agree(comm, "cddp_alloc", CDDP_MEM_COLLECTIVE, e->bytes, st, err);
    if (st != CDDP_OK && e->base != NULL)
        ops->release(b, e->base);
    return st;
}

static cddp_status alloc_shared(cddp_comm *comm, size_t bytes, uint32_t flags, void **out, struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);
    struct cdi_extent *e;
    cddp_status st = CDDP_OK;

    if (ops->on_device && (flags & CDDP_MEM_HOST) != 0)
        st = cdi_fail(err, CDDP_E_UNSUPPORTED,
                      "cddp_alloc: backend %s reduces in memory of its GPU: leave out CDDP_MEM_HOST or "
                      "CDDP_MEM_COLLECTIVE",
                      ops->name);
    st = agree_on_entry(comm, "cddp_alloc", flags, bytes, st, &e, err);
    if (st != CDDP_OK)
        return st;
    *e = (struct cdi_extent){.kind = CDI_MEMORY_SHARED, .bytes = bytes};
    st = make_shared(comm, e, err);
    if (st != CDDP_OK) {
        free(e);
        return st;
    }
    cdi_memory_add(comm, e);
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
    cdi_memory_add(comm, e);
    *out = e->base;
    return CDDP_OK;
}

static cddp_status alloc_any(cddp_comm *comm, size_t bytes, uint32_t flags, void **out, struct cdi_error *err)
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
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    enum cdi_api_call before;
    cddp_status st;

    if (comm == NULL || out == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "cddp_alloc: comm and out must not be NULL"), &err);
    if (cdi_comm_own("cddp_alloc", comm, &err) != CDDP_OK)
        return cdi_last_error_return(CDDP_E_STATE, &err);
    before = cdi_api_enter(CDI_API_ALLOC);
    st = alloc_any(comm, bytes, flags, out, &err);
    (void)cdi_api_enter(before);
    return cdi_last_error_return(st, &err);
}

void cddp_free(cddp_comm *comm, void *p)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_extent *e;

    if (comm == NULL || p == NULL || cdi_comm_is_others("cddp_free", comm))
        return;
    e = cdi_memory_remove(comm, p, false);
    if (e != NULL)
        cdi_extent_destroy(e, cdi_comm_ops(comm), cdi_comm_backend(comm));
    else
        cdi_comm_ops(comm)->release(cdi_comm_backend(comm), p);
}

/* ------------------------------------------------------------------------------------------------ cddp_register ----
 */

static cddp_status check_registrable(cddp_comm *comm, const void *p, size_t bytes, struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);

    if (p == NULL || bytes == 0 || bytes > PTRDIFF_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_register: %p is not memory of %zu bytes", p, bytes);
    if (cdi_memory_overlaps(comm, p, bytes))
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

static cddp_status register_memory(cddp_comm *comm, void *p, size_t bytes, uint32_t flags, struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = cdi_comm_ops(comm);
    struct cdi_extent *e;
    cddp_status st;

    if (flags != CDDP_MEM_COLLECTIVE)
        return cdi_fail(err, flags == 0 ? CDDP_E_UNSUPPORTED : CDDP_E_INVALID,
                        "cddp_register: flags is %#" PRIx32
                        ", but must be CDDP_MEM_COLLECTIVE: only memory that all ranks "
                        "register together is faster",
                        flags);
    if (ops->copies_private != NULL && ops->copies_private(cdi_comm_backend(comm)))
        return cdi_fail(
            err, CDDP_E_UNSUPPORTED,
            "cddp_register: ranks of one node cannot share memory that the program has allocated: get it from "
            "cddp_alloc with CDDP_MEM_COLLECTIVE, or do not register it, and gradients in it are copied");
    st = agree_on_entry(comm, "cddp_register", flags, bytes, check_registrable(comm, p, bytes, err), &e, err);
    if (st != CDDP_OK)
        return st;
    *e = (struct cdi_extent){.base = p, .bytes = bytes, .kind = CDI_MEMORY_REGISTERED};
    cdi_memory_add(comm, e);
    return CDDP_OK;
}

cddp_status cddp_register(cddp_comm *comm, void *p, size_t bytes, uint32_t flags)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    enum cdi_api_call before;
    cddp_status st;

    if (comm == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "cddp_register: comm is NULL"), &err);
    if (cdi_comm_own("cddp_register", comm, &err) != CDDP_OK)
        return cdi_last_error_return(CDDP_E_STATE, &err);
    before = cdi_api_enter(CDI_API_REGISTER);
    st = register_memory(comm, p, bytes, flags, &err);
    (void)cdi_api_enter(before);
    return cdi_last_error_return(st, &err);
}

cddp_status cddp_unregister(cddp_comm *comm, void *p)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_extent *e;
    struct cdi_error err;

    if (comm == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "cddp_unregister: comm is NULL"), &err);
    if (cdi_comm_own("cddp_unregister", comm, &err) != CDDP_OK)
        return cdi_last_error_return(CDDP_E_STATE, &err);
    e = cdi_memory_remove(comm, p, true);
    if (e == NULL)
        return cdi_last_error_return(
            cdi_fail(&err, CDDP_E_INVALID, "cddp_unregister: no registered memory begins at %p", p), &err);
    free(e);
    return CDDP_OK;
}
