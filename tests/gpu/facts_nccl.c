/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's part of the facts: on one rank, so that it needs no peer. */
#include "facts.h"

#include <dlfcn.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BYTES ((size_t)4 << 20)
#define READY_US 30e6 /* limit for a non-blocking call */

/* Like nccl_device/core.h of 2.30.7, which is not C; ncclCommQueryProperties exists from 2.29 on. */
struct properties {
    size_t size;
    unsigned int magic, version;
    int rank, n_ranks, cuda_device, nvml_device;
    bool device_api, multimem;
    int gin_type, n_lsa_teams;
    bool host_rma;
    int railed_gin_type;
};

/* X(function): NULL if the library does not have it. */
#define FACTS_NCCL(X)           \
    X(ncclGetVersion)           \
    X(ncclGetUniqueId)          \
    X(ncclCommInitRank)         \
    X(ncclCommInitRankConfig)   \
    X(ncclCommGetAsyncError)    \
    X(ncclCommAbort)            \
    X(ncclCommDestroy)          \
    X(ncclMemAlloc)             \
    X(ncclMemFree)              \
    X(ncclCommWindowRegister)   \
    X(ncclCommWindowDeregister) \
    X(ncclAllReduce)

struct nccl {
#define X(function) __typeof__(&(function)) p_##function;
    FACTS_NCCL(X)
#undef X
    ncclResult_t (*query)(ncclComm_t comm, struct properties *p);
    ncclComm_t blocking, waiting; /* NULL until made */
    void *memory;
    ncclWindow_t window; /* here, since NCCL's thread may write it late */
};

static bool load(struct nccl *n)
{
    const char *path = getenv("CDDP_NCCL_LIBRARY");
    void *library, *symbol;

    path = path != NULL && path[0] != '\0' ? path : "libnccl.so.2";
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        facts_text("error", dlerror());
        return false;
    }
    facts_text("library", path);
#define X(function)                     \
    symbol = dlsym(library, #function); \
    memcpy(&n->p_##function, &symbol, sizeof symbol);
    FACTS_NCCL(X)
#undef X
    symbol = dlsym(library, "ncclCommQueryProperties");
    memcpy(&n->query, &symbol, sizeof symbol);
    facts_int("has_windows", n->p_ncclCommWindowRegister != NULL);
    facts_int("has_properties", n->query != NULL);
    return n->p_ncclGetVersion != NULL && n->p_ncclGetUniqueId != NULL && n->p_ncclCommInitRank != NULL &&
           n->p_ncclCommInitRankConfig != NULL && n->p_ncclCommGetAsyncError != NULL && n->p_ncclCommAbort != NULL &&
           n->p_ncclCommDestroy != NULL && n->p_ncclAllReduce != NULL;
}

/* Waits until it is ready, has failed, or takes too long. Returns its state. */
static ncclResult_t settle(const struct nccl *n, ncclComm_t comm)
{
    const struct timespec pause = {.tv_nsec = 20000};
    const double end = facts_now_us() + READY_US;
    ncclResult_t state = ncclInProgress;

    while (n->p_ncclCommGetAsyncError(comm, &state) == ncclSuccess && state == ncclInProgress && facts_now_us() < end)
        (void)nanosleep(&pause, NULL);
    return state;
}

static void make_blocking(struct nccl *n, const char *name)
{
    ncclUniqueId id;
    ncclResult_t r = n->p_ncclGetUniqueId(&id);
    double from = facts_now_us();

    if (r == ncclSuccess)
        r = n->p_ncclCommInitRank(&n->blocking, 1, id, 0);
    facts_timed(name, (int)r, facts_now_us() - from);
    if (r != ncclSuccess)
        n->blocking = NULL;
}

static void tell_properties(const struct nccl *n)
{
    struct properties p = {.size = sizeof p, .magic = 0xcafebeef, .version = NCCL_VERSION_CODE};
    ncclResult_t r;

    if (n->query == NULL)
        return;
    r = n->query(n->blocking, &p);
    facts_int("properties_code", (int)r);
    if (r != ncclSuccess)
        return;
    facts_int("symmetric_support", p.device_api);
    facts_int("multimem_support", p.multimem);
}

/* The immediate result of a window's registration on a communicator that does not block, and its final one. */
static void tell_window(struct nccl *n)
{
    ncclResult_t state = ncclSuccess, r;
    double from = facts_now_us();

    if (n->p_ncclCommWindowRegister == NULL || n->p_ncclCommWindowDeregister == NULL || n->memory == NULL)
        return;
    facts_begin("window");
    r = n->p_ncclCommWindowRegister(n->waiting, n->memory, BYTES, &n->window, NCCL_WIN_COLL_SYMMETRIC);
    facts_int("returned", (int)r);
    facts_int("there_at_once", n->window != NULL);
    (void)n->p_ncclCommGetAsyncError(n->waiting, &state);
    facts_int("state_at_once", (int)state);
    facts_int("state_in_the_end", (int)settle(n, n->waiting));
    facts_us("us", facts_now_us() - from);
    facts_int("there_in_the_end", n->window != NULL);
    if (n->window != NULL) {
        facts_int("deregistered", (int)n->p_ncclCommWindowDeregister(n->waiting, n->window));
        (void)settle(n, n->waiting);
    }
    facts_end();
}

static void tell_waiting(const struct facts *f, struct nccl *n)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    ncclResult_t r = n->p_ncclGetUniqueId(&id), state;
    double from = facts_now_us();

    config.blocking = 0;
    facts_begin("non_blocking");
    if (r == ncclSuccess)
        r = n->p_ncclCommInitRankConfig(&n->waiting, 1, id, 0, &config);
    facts_int("init_returned", (int)r);
    state = r == ncclSuccess || r == ncclInProgress ? settle(n, n->waiting) : r;
    facts_timed("init_us", (int)state, facts_now_us() - from);
    if (state == ncclSuccess) {
        tell_window(n);
        if (n->memory != NULL && settle(n, n->waiting) == ncclSuccess)
            FACTS_MEASURE("all_reduce_4KiB_us",
                          (r = n->p_ncclAllReduce(n->memory, n->memory, 1024, ncclFloat, ncclSum, n->waiting,
                                                  (cudaStream_t)f->stream),
                           r == ncclInProgress ? settle(n, n->waiting) : r),
                          (void)f->cuda.p_cuStreamSynchronize(f->stream));
    }
    (void)f->cuda.p_cuStreamSynchronize(f->stream);
    if (n->waiting != NULL)
        facts_int("abort_returned", (int)n->p_ncclCommAbort(n->waiting));
    facts_end();
}

static void tell_blocking(const struct facts *f, struct nccl *n)
{
    if (n->blocking == NULL)
        return;
    tell_properties(n);
    if (n->p_ncclMemAlloc != NULL && n->p_ncclMemAlloc(&n->memory, BYTES) == ncclSuccess) {
        facts_pointer(f, "ncclMemAlloc_memory", n->memory);
        if (f->cuda.p_cuMemsetD8Async != NULL)
            (void)f->cuda.p_cuMemsetD8Async((CUdeviceptr)(uintptr_t)n->memory, 0, BYTES, f->stream);
    }
    if (n->memory == NULL)
        return;
    for (int avg = 0; avg < 2; avg++)
        FACTS_MEASURE(avg ? "all_reduce_avg_4MiB_us" : "all_reduce_4MiB_us",
                      n->p_ncclAllReduce(n->memory, n->memory, BYTES / sizeof(float), ncclFloat,
                                         avg ? ncclAvg : ncclSum, n->blocking, (cudaStream_t)f->stream),
                      (void)f->cuda.p_cuStreamSynchronize(f->stream));
}

void facts_nccl(const struct facts *f)
{
    static struct nccl n;
    int version = 0;

    facts_begin("nccl");
    if (load(&n)) {
        (void)n.p_ncclGetVersion(&version);
        facts_int("version", version);
        make_blocking(&n, "first_init_us");
        if (n.blocking != NULL)
            (void)n.p_ncclCommDestroy(n.blocking);
        n.blocking = NULL;
        make_blocking(&n, "second_init_us");
        tell_blocking(f, &n);
        tell_waiting(f, &n);
        (void)f->cuda.p_cuStreamSynchronize(f->stream);
        if (n.blocking != NULL)
            (void)n.p_ncclCommDestroy(n.blocking);
        if (n.memory != NULL && n.p_ncclMemFree != NULL)
            (void)n.p_ncclMemFree(n.memory);
    }
    facts_end();
}
