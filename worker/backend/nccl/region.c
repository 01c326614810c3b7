/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory on the GPU for a reducer's buckets, from ncclMemAlloc: a symmetric window where every rank can have one,
 * otherwise plain memory. All ranks agree on the next step before each collective call, since a rank that skips it
 * would leave the others waiting. They agree before the call, since a call that fails leaves its error as the state of
 * a non-blocking communicator for good (NCCL: group.cc, groupCleanup).
 *
 * If a window fails anyway, the job ends with an error message that names the switch. No new communicator is made
 * without windows: the failure is one rank's, and leaves the others in NCCL's barrier (dev_runtime.cc,
 * ncclDevrWindowRegisterInGroup). All ranks would have to give up a call that a blocking communicator does not return
 * from, and to join once more over sockets, beside memory that the first communicator may still use. A node that fails
 * does so at each start, before the first step: the switch costs one start, and no work is lost.
 *
 * Windows are created and freed in the same order on all ranks. Each rank puts a new one at the first free offset of
 * its list (dev_runtime.cc, ncclSpaceAlloc), and an NVLink switch adds the memory at that offset on every rank. Ranks
 * may destroy a region at any time; so a window stays until all ranks have, which they exchange when the next one is
 * made.
 *
 * Windows are for one node: no symmetric all-reduce leaves the NVLink domain (sym_kernels.cc), and across nodes a
 * window is a registration (dev_runtime.cc). A registration lets NVLS work on the memory itself, at a price: at every
 * launch NCCL compares it with those of all local ranks, in a spin that waits for them and checks no abort flag
 * (transport/nvls.cc, nvlsRegisterBuffer; misc/shmutils.cc, ncclShmemAllgather). So a launch would wait for peers, and
 * the abort after a death for ever. CDDP_NCCL_REGISTER=1 accepts that in exchange for multiprocessors. A window is also
 * a registration, which matters where no symmetric kernel exists (float64); from 2.28 on NCCL_LOCAL_REGISTER=0 prevents
 * that (register/register.cc, ncclCommRegister).
 */
#include "worker/backend/nccl/region.h"

#include "common/clock.h"
#include "worker/backend/nccl/issue.h"
#include "worker/backend/nccl/state/failure.h"
#include "worker/backend/nccl/state/health.h"
#include "worker/backend/nccl/wait.h"

#include <stdio.h>

#define GRANULE 4096u

/* Allocates NCCL's memory, which can be a window or be registered; otherwise, or if one rank is alone, the driver's. */
static cddp_status region_allocate(const struct cdi_backend *b, struct cdi_gpu_region *r, size_t bytes,
                                   struct cdi_error *err)
{
    cddp_status st;

    r->base.bytes = bytes == 0 ? GRANULE : (bytes + GRANULE - 1) / GRANULE * GRANULE;
    if (r->base.bytes < bytes)
        return cdi_fail(err, CDDP_E_NOMEM, "no GPU has %zu bytes of memory", bytes);
    r->from_nccl = b->world.size > 1 && cdi_nccl.memory_alloc(&r->base.base, r->base.bytes) == ncclSuccess;
    /* Without cuMem, as with NCCL_CUMEM_ENABLE=0, NCCL's memory is cudaMalloc's (allocator.cc, ncclMemAlloc). */
    if (r->from_nccl && (uintptr_t)r->base.base % GRANULE != 0) {
        (void)cdi_nccl.memory_free(r->base.base);
        r->from_nccl = false;
    }
    if (r->from_nccl)
        return CDDP_OK;
    st = cdi_cuda_check(cdi_cuda.memory_alloc(&r->plain, r->base.bytes + GRANULE),
                        "allocating GPU memory for gradients", err);
    if (st == CDDP_OK) /* whose alignment is smaller */
        r->base.base = (void *)(uintptr_t)((r->plain + GRANULE - 1) / GRANULE * GRANULE);
    return st;
}

static void release_memory(struct cdi_gpu_region *r)
{
    if (r->from_nccl)
        (void)cdi_nccl.memory_free(r->base.base);
    if (r->plain != 0)
        (void)cdi_cuda.memory_free(r->plain);
    cdi_host->release(r);
}

/* Zeroes the memory. The communicator is idle. */
static cddp_status region_clear(struct cdi_backend *b, struct cdi_gpu_region *r, struct cdi_error *err)
{
    CUstream s = b->device.stream;
    cddp_status st =
        cdi_cuda_check(cdi_cuda.set_bytes(cdi_device_ptr(r->base.base), 0, r->base.bytes, s), "clearing memory", err);

    return st == CDDP_OK ? cdi_cuda_check(cdi_cuda.stream_synchronize(s), "clearing memory", err) : st;
}

static ncclResult_t window_call(void *arg)
{
    struct cdi_backend *b = arg;
    struct cdi_gpu_region *r = b->call.region;

    return cdi_nccl.window_register(b->call.comm, r->base.base, r->base.bytes, &r->window, NCCL_WIN_COLL_SYMMETRIC);
}

/*
 * Registers the window, in a collective call of all ranks. *ok: this rank has a window; without symmetric memory NCCL
 * returns success and none. An error is one rank's, and the others wait in the call.
 */
static cddp_status region_make_window(struct cdi_backend *b, struct cdi_gpu_region *r, bool *ok, struct cdi_error *err)
{
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), b->world.init_timeout_ms);
    struct cdi_error why;
    ncclResult_t res;
    cddp_status st;

    (void)pthread_mutex_lock(&b->lock);
    st = cdi_issue_flush(b, &why);
    if (st == CDDP_OK) {
        cdi_gpu_set_busy(b);
        b->call.comm = b->comm;
        b->call.region = r;
        res = cdi_nccl_call(b, window_call);
        st = cdi_nccl_wait_ready(b, b->comm, res, "registering gradients as a window", deadline_ms, &why);
        *ok = st == CDDP_OK && r->window != NULL;
        if (st == CDDP_E_SYSTEM)
            (void)cdi_error_wrap(&why, "CDDP_NCCL_WINDOWS=0 avoids windows");
    }
    (void)pthread_mutex_unlock(&b->lock);
    if (st == CDDP_OK)
        return st;
    (void)cdi_gpu_fail(b, &why);
    return cdi_gpu_health(b, err);
}

static bool register_buffer(struct cdi_backend *b, struct cdi_gpu_region *r)
{
    ncclResult_t res;
    bool ok = false;

    (void)pthread_mutex_lock(&b->lock);
    if (cdi_issue_flush(b, NULL) == CDDP_OK && cdi_nccl_enter(b)) {
        res = cdi_nccl.comm_register(b->comm, r->base.base, r->base.bytes, &r->handle);
        cdi_nccl_leave(b);
        ok = cdi_nccl_wait_ready(b, b->comm, res, "registering gradients",
                                 cdi_deadline_ms(cdi_now_ms(), b->world.init_timeout_ms), NULL) == CDDP_OK &&
             r->handle != NULL;
    }
    (void)pthread_mutex_unlock(&b->lock);
    return ok;
}

/* With the lock. */
static void unregister(struct cdi_backend *b, struct cdi_gpu_region *r)
{
    if (!cdi_nccl_enter(b))
        return;
    if (r->window != NULL)
        (void)cdi_nccl.window_deregister(b->comm, r->window);
    if (r->handle != NULL)
        (void)cdi_nccl.comm_deregister(b->comm, r->handle);
    cdi_nccl_leave(b);
    r->window = NULL;
    r->handle = NULL;
}

static cddp_status all_ranks_can(struct cdi_backend *b, bool mine, bool *all, struct cdi_error *err)
{
    int32_t value = mine;
    cddp_status st = cdi_gpu_agree(b, &value, CDDP_MIN, err);

    *all = st == CDDP_OK && value != 0;
    return st;
}

/*
 * Gives the region the best of the three kinds that all ranks can have. A single rank only copies: NCCL would use none
 * of them.
 */
static cddp_status region_register(struct cdi_backend *b, struct cdi_gpu_region *r, struct cdi_error *err)
{
    bool registered = false, ok = false,
         can = b->use.windows && r->from_nccl && cdi_nccl.window_register != NULL && cdi_nccl.window_deregister != NULL;
    cddp_status st = all_ranks_can(b, can, &can, err);

    r->kind = CDI_ARENA_PLAIN;
    if (st != CDDP_OK || b->world.size == 1)
        return st;
    if (can) {
        st = region_make_window(b, r, &ok, err);
        if (st == CDDP_OK)
            st = all_ranks_can(b, ok, &ok, err);
        if (st != CDDP_OK || ok) {
            r->kind = CDI_ARENA_WINDOW;
            return st;
        }
        (void)pthread_mutex_lock(&b->lock);
        if (cdi_issue_flush(b, err) == CDDP_OK)
            unregister(b, r);
        (void)pthread_mutex_unlock(&b->lock);
    }
    if (st == CDDP_OK)
        st = all_ranks_can(b, b->use.registration, &registered, err);
    if (st != CDDP_OK || !registered)
        return st;
    st = all_ranks_can(b, register_buffer(b, r), &ok, err);
    r->kind = ok ? CDI_ARENA_REGISTERED : CDI_ARENA_PLAIN;
    if (st == CDDP_OK && !ok && r->handle != NULL) {
        (void)pthread_mutex_lock(&b->lock);
        if (cdi_issue_flush(b, err) == CDDP_OK)
            unregister(b, r);
        (void)pthread_mutex_unlock(&b->lock);
    }
    return st;
}

static const char *kind_name(enum cdi_arena_kind kind)
{
    static const char *const names[] = {"none", "plain", "registered", "a symmetric window"};

    return names[kind];
}

/* Removes a window from the list, and frees it. With `lock`; NCCL takes a call. */
static void region_drop(struct cdi_backend *b, struct cdi_gpu_region **at)
{
    struct cdi_gpu_region *r = *at;

    *at = r->next;
    if (b->comm != NULL)
        unregister(b, r);
    release_memory(r);
}

/* Frees the windows that every rank has destroyed. Each rank has the same windows in its list, in the same order. */
static cddp_status region_free_windows(struct cdi_backend *b, struct cdi_error *err)
{
    struct cdi_gpu_region **at = &b->windows;
    cddp_status st = CDDP_OK;

    while (*at != NULL && st == CDDP_OK) {
        bool dead;

        (void)pthread_mutex_lock(&b->lock);
        dead = (*at)->dead;
        (void)pthread_mutex_unlock(&b->lock);
        st = all_ranks_can(b, dead, &dead, err);
        (void)pthread_mutex_lock(&b->lock);
        if (st == CDDP_OK && dead && cdi_issue_flush(b, NULL) == CDDP_OK)
            region_drop(b, at);
        else
            at = &(*at)->next;
        (void)pthread_mutex_unlock(&b->lock);
    }
    return st;
}

void cdi_gpu_regions_detach(struct cdi_backend *b)
{
    (void)pthread_mutex_lock(&b->lock);
    while (b->windows != NULL) {
        struct cdi_gpu_region *r = b->windows;

        if (r->dead) {
            region_drop(b, &b->windows);
        } else {
            b->windows = r->next;
            r->listed = false;
        }
    }
    for (struct cdi_gpu_region *r = b->alive; r != NULL && b->comm != NULL; r = r->next_alive)
        unregister(b, r);
    (void)pthread_mutex_unlock(&b->lock);
}

static void region_list_window(struct cdi_backend *b, struct cdi_gpu_region *r)
{
    struct cdi_gpu_region **at = &b->windows;

    (void)pthread_mutex_lock(&b->lock);
    while (*at != NULL)
        at = &(*at)->next;
    *at = r;
    r->listed = true;
    (void)pthread_mutex_unlock(&b->lock);
}

static cddp_status region_make(struct cdi_backend *b, size_t bytes, struct cdi_gpu_region **out, struct cdi_error *err)
{
    cddp_status st = region_free_windows(b, err), own;
    struct cdi_gpu_region *r;
    struct cdi_error mine;
    char text[96];
    bool all;

    if (st != CDDP_OK)
        return st;
    r = cdi_host->alloc(1, sizeof *r);
    own = r == NULL ? cdi_fail(&mine, CDDP_E_NOMEM, "out of memory") : region_allocate(b, r, bytes, &mine);
    if (own == CDDP_OK)
        own = region_clear(b, r, &mine);
    st = all_ranks_can(b, own == CDDP_OK, &all, err);
    if (st == CDDP_OK && (!all || r == NULL))
        st = own == CDDP_OK
                 ? cdi_fail(err, CDDP_E_NOMEM, "the GPU of another rank cannot allocate %zu bytes for gradients", bytes)
                 : cdi_fail_since(err, &mine, "%s", mine.msg);
    if (st == CDDP_OK && r != NULL)
        st = region_register(b, r, err);
    if (st != CDDP_OK || r == NULL) {
        if (r != NULL)
            cdi_gpu_region_destroy(b, &r->base);
        return st;
    }
    (void)snprintf(text, sizeof text, "%zu bytes for gradients: %s", r->base.bytes, kind_name(r->kind));
    cdi_host->debug("NCCL-ARENA", text);
    if (r->kind == CDI_ARENA_WINDOW)
        region_list_window(b, r);
    (void)pthread_mutex_lock(&b->lock);
    r->next_alive = b->alive;
    b->alive = r;
    (void)pthread_mutex_unlock(&b->lock);
    *out = r;
    return CDDP_OK;
}

cddp_status cdi_gpu_region_create(struct cdi_backend *b, size_t bytes, struct cdi_region **out, struct cdi_error *err)
{
    struct cdi_gpu_region *r = NULL;
    cddp_status st = cdi_gpu_health(b, err);
    uint64_t seq;

    if (st != CDDP_OK)
        return st;
    st = cdi_device_enter(&b->device, err);
    if (st != CDDP_OK) { /* the other ranks wait for this one in it */
        st = cdi_gpu_check_device(b, NULL, err);
        cdi_device_leave(&b->device);
        return st;
    }
    (void)pthread_mutex_lock(&b->ring_lock);
    seq = cdi_host->flight_enqueue(b->record, CDI_FLIGHT_REGION, 0, bytes, -1);
    cdi_host->flight_start(b->record, seq);
    (void)pthread_mutex_unlock(&b->ring_lock);
    st = region_make(b, bytes, &r, err);
    if (cdi_gpu_health_now(b, NULL) == CDDP_OK) { /* the ranks may have agreed that one lacks the memory */
        (void)pthread_mutex_lock(&b->ring_lock);
        cdi_host->flight_done(b->record, seq);
        (void)pthread_mutex_unlock(&b->ring_lock);
    }
    if (st == CDDP_OK && r != NULL)
        *out = &r->base;
    cdi_device_leave(&b->device);
    return st;
}

/*
 * Waits for kernels and hooks that may still use the memory: freeing NCCL's memory, unlike the driver's, does not wait.
 */
static void region_await_work(struct cdi_backend *b)
{
    cddp_status st;

    (void)pthread_mutex_lock(&b->lock);
    st = cdi_issue_flush(b, NULL);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.event_record(b->tail, b->device.stream), "releasing gradients", NULL);
    (void)pthread_mutex_unlock(&b->lock);
    if (st == CDDP_OK)
        (void)cdi_gpu_await_event(b, b->tail, NULL);
}

/* Removes the region from the list, if creation has put it there. With `lock`. */
static void region_unlist(struct cdi_backend *b, const struct cdi_gpu_region *r)
{
    for (struct cdi_gpu_region **at = &b->alive; *at != NULL; at = &(*at)->next_alive)
        if (*at == r) {
            *at = r->next_alive;
            return;
        }
}

void cdi_gpu_region_destroy(struct cdi_backend *b, struct cdi_region *region)
{
    struct cdi_gpu_region *r = (struct cdi_gpu_region *)(void *)region;
    bool listed;

    if (r == NULL)
        return;
    (void)pthread_mutex_lock(&b->lock);
    region_unlist(b, r);
    listed = r->listed;
    (void)pthread_mutex_unlock(&b->lock);
    if (b->has_left && !b->is_idle) /* as for the case below */
        return;
    if (!cdi_gpu_is_idle(
            b)) /* NCCL or a kernel may still write to the memory, or NCCL to r->window: neither is freed */
        return;
    (void)cdi_device_enter(&b->device, NULL);
    if (!b->has_left) {
        region_await_work(b);
        (void)pthread_mutex_lock(&b->lock);
        (void)cdi_issue_flush(b, NULL); /* NCCL takes a call */
        if (!r->listed && b->comm != NULL)
            unregister(b, r);
        r->dead = true;
        listed = r->listed; /* from here another thread may free a listed one */
        (void)pthread_mutex_unlock(&b->lock);
    }
    if (!listed)
        release_memory(r);
    cdi_device_leave(&b->device);
}
