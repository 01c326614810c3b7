/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for NCCL, and memory registered with a communicator: buffers of one rank, windows of all. */
#include "comm.h"
#include "version.h"

#include "common/env.h"

#include <stdlib.h>
#include <string.h>

SI_EXPORT ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    int rc = si_enter_nccl("ncclMemAlloc", true);

    if (rc != 0)
        return (ncclResult_t)rc;
    rc = (int)si_alloc(SI_NCCL_MEMORY, size, SI_WINDOW_ALIGNMENT, ptr);
    return rc == CUDA_SUCCESS               ? ncclSuccess
           : rc == CUDA_ERROR_INVALID_VALUE ? ncclInvalidArgument
                                            : ncclUnhandledCudaError;
}

SI_EXPORT ncclResult_t ncclMemFree(void *ptr)
{
    int rc = si_enter_nccl("ncclMemFree", false);

    if (rc != 0 || ptr == NULL)
        return (ncclResult_t)rc;
    return si_free(ptr, SI_NCCL_MEMORY, "ncclMemFree") == CUDA_SUCCESS ? ncclSuccess : ncclInvalidArgument;
}

/* A registration of [at, at + bytes), or NULL with a refusal. */
static struct si_window *registration(struct ncclComm *comm, const char *function, void *at, size_t bytes)
{
    struct si_window *w = calloc(1, sizeof *w);
    struct si_alloc *a = NULL;

    si_lock();
    if (w != NULL && bytes > 0 && si_is_tagged(at))
        a = si_find_locked(at, bytes);
    if (a != NULL) {
        *w = (struct si_window){.alloc = a, .at = at, .bytes = bytes};
        a->registered++;
    }
    si_unlock();
    if (a != NULL)
        return w;
    free(w);
    (void)si_comm_refuse(comm, ncclInvalidArgument, "%s: %zu bytes at %p are not within one piece of device memory",
                         function, bytes, at);
    return NULL;
}

static bool window_take_out(struct si_window **list, const void *w)
{
    bool found = false;

    si_lock();
    for (; *list != NULL && !found; list = *list != NULL ? &(*list)->next : list) {
        struct si_window *old = *list;

        if (old != w)
            continue;
        *list = old->next;
        old->alloc->registered--;
        free(old);
        found = true;
        break;
    }
    si_unlock();
    return found;
}

/*
 * These calls do not check the state of the communicator, so that they succeed on a failed one. During another call in
 * progress they would change data that its thread is using.
 */
static ncclResult_t unasked(struct ncclComm *comm, const char *function)
{
    if (!si_comm_is_alive(comm))
        return si_comm_refuse(NULL, ncclInvalidArgument, "%s: %p is not a communicator, or was destroyed or aborted",
                              function, (void *)comm);
    if (si_comm_state(comm) == ncclInProgress)
        si_fault("%s: communicator '%s' is still in progress, and this call does not wait for NCCL's own thread",
                 function, comm->name);
    return ncclSuccess;
}

SI_EXPORT ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclCommRegister", false);
    struct si_window *w;

    if (rc == ncclSuccess)
        rc = unasked(comm, "ncclCommRegister");
    if (rc != ncclSuccess)
        return rc;
    w = registration(comm, "ncclCommRegister", buff, size);
    if (w == NULL)
        return ncclInvalidArgument;
    si_lock();
    w->next = comm->buffers;
    comm->buffers = w;
    si_unlock();
    *handle = w;
    return ncclSuccess;
}

SI_EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclCommDeregister", false);

    if (rc == ncclSuccess)
        rc = unasked(comm, "ncclCommDeregister");
    if (rc != ncclSuccess || handle == NULL)
        return rc;
    return window_take_out(&comm->buffers, handle)
               ? ncclSuccess
               : si_comm_refuse(comm, ncclInvalidUsage, "ncclCommDeregister: %p is not registered", handle);
}

struct window {
    void *at;
    size_t bytes;
    ncclWindow_t *out;
    int flags;
    bool symmetric;
    uint64_t place;
};

/* Compares with the value of CDDP_STANDIN_WINDOWS. */
static bool windows_are(const char *word)
{
    const char *offered = cdi_env_str("CDDP_STANDIN_WINDOWS");

    return offered != NULL && strcmp(offered, word) == 0;
}

/*
 * The first free place, in a list that each rank keeps for itself (allocator.cc:206 of v2.30.7, ncclSpaceAlloc; 2.27
 * counts up, and takes nothing back: register/register.cc:181 of v2.27.7).
 */
static uint64_t free_place(struct ncclComm *comm, size_t bytes)
{
    uint64_t place = 0;
    bool moved = !si_version().window_at_once;

    si_lock();
    while (moved) {
        moved = false;
        for (const struct si_window *w = comm->windows; w != NULL; w = w->next)
            if (w->symmetric && place < w->place + w->bytes && w->place < place + bytes) {
                place = w->place + w->bytes;
                moved = true;
            }
    }
    si_unlock();
    return place;
}

/* Returns whether every rank has called it with the same arguments. */
static ncclResult_t window_agree(struct ncclComm *comm, const struct window *want)
{
    const struct segment_word word = {
        .kind = -4, .count = want->bytes, .root = want->flags, .offset = (int64_t)want->place};

    if (!segment_say(&comm->seg, SEGMENT_CALLS, &word))
        return ncclInternalError;
    for (int r = 0; r < comm->seg.n_ranks; r++) {
        const struct segment_word *other = segment_heard(&comm->seg, SEGMENT_CALLS, r);

        if (other->kind == word.kind && other->count == word.count && other->root == word.root) {
            /* dev_runtime.cc:352 of v2.30.7: each binds its memory there to the one object of the switch. */
            if (other->offset != word.offset)
                si_fault("on communicator '%s' rank %d puts a window at %lld, and rank %d at %lld: an NVLink switch "
                         "would add different memory. Windows must come and go in one order on all ranks",
                         comm->name, comm->seg.rank, (long long)word.offset, r, (long long)other->offset);
            continue;
        }
        si_fault("ranks do not agree: on communicator '%s' rank %d registers a window of %zu bytes, while rank %d %s",
                 comm->name, comm->seg.rank, want->bytes, r,
                 other->kind == word.kind ? "registers one of another size" : "calls something else");
        return ncclInvalidUsage;
    }
    return ncclSuccess;
}

/* dev_runtime.cc:579 of v2.28.9, dev_runtime.cc:846 of v2.30.7: memory that ncclMemAlloc did not make has no handle. */
static ncclResult_t window_check_memory(struct ncclComm *comm, const struct window *want)
{
    const struct si_alloc *a;
    bool from_nccl;

    si_lock();
    a = si_find_locked(want->at, want->bytes);
    from_nccl = a != NULL && a->kind == SI_NCCL_MEMORY;
    si_unlock();
    if (!from_nccl)
        return si_comm_refuse(comm, ncclUnhandledCudaError,
                              "ncclCommWindowRegister: %zu bytes at %p are not memory of ncclMemAlloc", want->bytes,
                              want->at);
    if ((uintptr_t)want->at % SI_WINDOW_ALIGNMENT != 0)
        return si_comm_refuse(comm, ncclInvalidArgument, "ncclCommWindowRegister: %p is not aligned to %d", want->at,
                              SI_WINDOW_ALIGNMENT);
    return ncclSuccess;
}

static ncclResult_t window_make(struct ncclComm *comm, struct window *want, struct si_window **out)
{
    ncclResult_t rc = want->symmetric ? window_check_memory(comm, want) : ncclSuccess;
    struct si_window *w;

    want->place = want->symmetric ? free_place(comm, want->bytes) : 0;
    if (rc == ncclSuccess && want->symmetric)
        rc = window_agree(comm, want);
    if (rc != ncclSuccess)
        return rc;
    w = registration(comm, "ncclCommWindowRegister", want->at, want->bytes);
    if (w == NULL)
        return ncclInvalidArgument;
    w->symmetric = want->symmetric;
    w->place = want->place;
    si_lock();
    w->next = comm->windows;
    comm->windows = w;
    si_unlock();
    *out = w;
    return ncclSuccess;
}

static ncclResult_t window_create(struct ncclComm *comm, void *arg)
{
    struct window want = *(struct window *)arg;
    struct si_window *w = NULL;
    ncclResult_t rc;

    free(arg);
    rc = window_make(comm, &want, &w);
    if (rc == ncclSuccess && windows_are("lost") && window_take_out(&comm->windows, w))
        w = NULL;
    si_comm_dawdle(comm);
    si_touch_store((void **)want.out, w);
    return rc;
}

/* 2.27: unsuitable memory gives no window, and no error; the pointer is stored before the other ranks have arrived. */
static ncclResult_t window_2_27(struct ncclComm *comm, struct window *want)
{
    struct si_window *w;
    bool good;

    *want->out = NULL;
    good = window_check_memory(comm, want) == ncclSuccess;
    w = good ? registration(comm, "ncclCommWindowRegister", want->at, want->bytes) : NULL;
    if (w == NULL)
        return ncclSuccess;
    w->symmetric = want->symmetric;
    si_lock();
    w->next = comm->windows;
    comm->windows = w;
    si_unlock();
    *want->out = (ncclWindow_t)(void *)w;
    return ncclInProgress;
}

static ncclResult_t window_create_2_27(struct ncclComm *comm, void *arg)
{
    struct window want = *(struct window *)arg;

    free(arg);
    return window_agree(comm, &want);
}

static ncclResult_t window_register(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags)
{
    const struct si_version v = si_version();
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclCommWindowRegister", false);
    struct window want = {.at = buff,
                          .bytes = size,
                          .out = win,
                          .flags = winFlags,
                          .symmetric = !windows_are("0")}; /* NCCL_CUMEM_ENABLE, NVLink between all */
    struct window *w;

    if (rc == ncclSuccess)
        rc = si_comm_check(comm, "ncclCommWindowRegister");
    if (rc != ncclSuccess)
        return rc;
    if (!want.symmetric && !v.window_without_symmetry) {
        *win = NULL;
        return ncclSuccess;
    }
    if (v.window_at_once) {
        rc = window_2_27(comm, &want);
        if (rc != ncclInProgress || !want.symmetric)
            return ncclSuccess;
    }
    w = malloc(sizeof *w);
    if (w == NULL)
        return ncclSystemError;
    *w = want;
    rc = si_comm_task(comm, v.window_at_once ? window_create_2_27 : window_create, w);
    return rc == ncclInProgress && !v.window_tells ? ncclSuccess : rc;
}

static ncclResult_t window_deregister(ncclComm_t comm, ncclWindow_t win)
{
    ncclResult_t rc = (ncclResult_t)si_enter_nccl("ncclCommWindowDeregister", false);

    if (rc == ncclSuccess)
        rc = unasked(comm, "ncclCommWindowDeregister");
    if (rc != ncclSuccess || win == NULL)
        return rc;
    return window_take_out(&comm->windows, win)
               ? ncclSuccess
               : si_comm_refuse(comm, ncclInvalidArgument, "ncclCommWindowDeregister: %p is not a window", (void *)win);
}

SI_NEWER(ncclCommWindowRegister, 22703, window_register)
SI_NEWER(ncclCommWindowDeregister, 22703, window_deregister)
