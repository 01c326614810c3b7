/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's half of the stand-in. Ranks are processes, as in the project; each exits with 0 if its checks hold. Run with
 * CDDP_STANDIN_REPORT=count: faults are counted and checked.
 */
#include "world.h"

#include <dlfcn.h>

CDI_SUITE(nccl);

/* ------------------------------------------------------------------------------------------------- communicators -- */

static int alone(struct rank *r)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id = share_id(r);
    ncclResult_t rc = ncclSuccess;

    config.blocking = 0;
    use_device(r, 0);
    CHECK(ncclCommInitRankConfig(&r->comm, 2, id, 0, &config) == ncclInProgress);
    for (int i = 0; i < 20; i++) {
        CHECK(ncclCommGetAsyncError(r->comm, &rc) == ncclSuccess && rc == ncclInProgress);
        (void)usleep(1000);
    }
    CHECK(ncclCommAbort(r->comm) == ncclSuccess);
    CHECK(ncclCommGetAsyncError(r->comm, &rc) == ncclInvalidArgument);
    return 0;
}

Test(nccl, abort_ends_a_wait_for_a_missing_rank)
{
    cr_assert_eq(world(1, alone), 0);
}

static int abort_work(struct rank *r)
{
    if (open_rank(r, 0) != 0)
        return 1;
    if (r->rank == 0) {
        CHECK(settle(r, ncclAllReduce((void *)r->in, (void *)r->in, 8, ncclFloat32, ncclSum, r->comm, r->stream)) ==
              ncclSuccess);
        CHECK(settle(r, ncclAllReduce((void *)r->out, (void *)r->out, 8, ncclFloat32, ncclSum, r->comm, r->stream)) ==
              ncclSuccess);
        (void)usleep(20000);
        CHECK(cuStreamQuery(r->stream) == CUDA_ERROR_NOT_READY);
    }
    CHECK(ncclCommAbort(r->comm) == ncclSuccess);
    CU(cuStreamSynchronize(r->stream));
    return 0;
}

Test(nccl, abort_ends_queued_operations)
{
    cr_assert_eq(world(2, abort_work), 0);
}

/* --------------------------------------------------------------------------------------------------------- memory --
 */

static int window_sizes(struct rank *r)
{
    ncclWindow_t w;
    void *arena;

    use_device(r, r->rank);
    CHECK(join(r, 1) == ncclSuccess);
    CHECK(ncclMemAlloc(&arena, 8192) == ncclSuccess);
    CHECK(ncclCommWindowRegister(r->comm, arena, 4096 * (size_t)(r->rank + 1), &w, 0) == ncclInvalidUsage);
    CHECK(standin_faults() == 1 && strstr(standin_last_fault(), "ranks do not agree") != NULL);
    return 0;
}

Test(nccl, windows_of_different_sizes_are_a_fault)
{
    cr_assert_eq(world(2, window_sizes), 0);
}

static int freed_while_registered(struct rank *r)
{
    void *arena, *handle;

    use_device(r, 0);
    CHECK(join(r, 1) == ncclSuccess);
    CHECK(ncclMemAlloc(&arena, 8192) == ncclSuccess);
    CHECK(ncclCommRegister(r->comm, arena, 8192, &handle) == ncclSuccess);
    CHECK(ncclMemFree(arena) == ncclSuccess);
    CHECK(standin_faults() == 1 && strstr(standin_last_fault(), "registered") != NULL);
    return 0;
}

Test(nccl, freeing_registered_memory_is_a_fault)
{
    cr_assert_eq(world(1, freed_while_registered), 0);
}

/* --------------------------------------------------------------------------------------------------------- faults --
 */

static int different_counts(struct rank *r)
{
    if (open_rank(r, 1) != 0)
        return 1;
    CHECK(ncclAllReduce((void *)r->in, (void *)r->in, r->rank == 0 ? 8 : 9, ncclFloat32, ncclSum, r->comm, r->stream) ==
          ncclSuccess);
    CU(cuStreamSynchronize(r->stream));
    CHECK(standin_faults() == 1 && strstr(standin_last_fault(), "ranks do not agree") != NULL);
    return 0;
}

Test(nccl, different_calls_on_ranks_are_a_fault)
{
    cr_assert_eq(world(2, different_counts), 0);
}

static int planted(struct rank *r)
{
    ncclResult_t rc = ncclSuccess;
    void *p;

    CHECK(setenv("CDDP_STANDIN_FAIL", "ncclMemAlloc:1:1,alloc:2+:2,async:2:6", 1) == 0);
    use_device(r, r->rank);
    CHECK(join(r, 0) == ncclSuccess);
    standin_configure();
    r->stream = device_stream(); /* the first call that allocates */
    CHECK(ncclMemAlloc(&p, 64) == ncclUnhandledCudaError);
    CHECK(cuMemAlloc(&r->in, 64) == CUDA_ERROR_OUT_OF_MEMORY && cuMemAlloc(&r->in, 64) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(unsetenv("CDDP_STANDIN_FAIL") == 0);
    standin_configure();
    CU(cuMemAlloc(&r->in, 64));
    CHECK(setenv("CDDP_STANDIN_FAIL", "async:2:6", 1) == 0);
    standin_configure();
    CHECK(settle(r, ncclAllReduce((void *)r->in, (void *)r->in, 8, ncclFloat32, ncclSum, r->comm, r->stream)) ==
          ncclSuccess);
    rc = settle(r, ncclAllReduce((void *)r->in, (void *)r->in, 8, ncclFloat32, ncclSum, r->comm, r->stream));
    CHECK(rc == ncclSuccess || rc == ncclRemoteError);
    while (rc == ncclSuccess)
        CHECK(ncclCommGetAsyncError(r->comm, &rc) == ncclSuccess);
    CHECK(rc == ncclRemoteError && cuStreamQuery(r->stream) == CUDA_ERROR_NOT_READY);
    CHECK(ncclCommAbort(r->comm) == ncclSuccess);
    CU(cuStreamSynchronize(r->stream));
    return 0;
}

Test(nccl, planted_failures_happen_at_their_call)
{
    cr_assert_eq(world(2, planted), 0);
}

Test(nccl, an_older_library_lacks_the_newer_functions)
{
    int version;

    cr_assert_not_null(dlsym(RTLD_DEFAULT, "ncclCommWindowRegister"));
    cr_assert_eq(setenv("CDDP_STANDIN_NCCL_VERSION", "22403", 1), 0);
    cr_assert_null(dlsym(RTLD_DEFAULT, "ncclCommWindowRegister"));
    cr_assert_not_null(dlsym(RTLD_DEFAULT, "ncclCommInitRankScalable"));
    cr_assert_eq(setenv("CDDP_STANDIN_NCCL_VERSION", "21900", 1), 0);
    cr_assert_null(dlsym(RTLD_DEFAULT, "ncclCommInitRankScalable"));
    cr_assert_not_null(dlsym(RTLD_DEFAULT, "ncclCommSplit"));
    cr_assert_eq(ncclGetVersion(&version), ncclSuccess);
    cr_assert_eq(version, 21900);
}

Test(nccl, setting_skips_an_event_wait)
{
    CUstream s;
    CUevent e;
    CUcontext ctx;
    CUdeviceptr p;

    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&ctx, 0));
    CU(cuCtxSetCurrent(ctx));
    p = device_floats(8, 0);
    s = device_stream();
    e = device_event();
    cr_assert_eq(setenv("CDDP_STANDIN_SKIP_WAIT", "2", 1), 0);
    standin_configure();
    for (unsigned i = 1; i <= 3; i++) {
        CU(cuMemsetD8Async(p, 0, 8, NULL));
        CU(cuEventRecord(e, NULL));
        CU(cuStreamWaitEvent(s, e, 0));
        CU(cuMemsetD8Async(p, 0, 8, s));
        CU(cuCtxSynchronize());
        cr_assert_eq(standin_faults(), i >= 2, "wait %u", i);
    }
    CU(cuMemFree(p));
    CU(cuStreamDestroy(s));
    CU(cuEventDestroy(e));
}
