/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's half of the stand-in. Ranks are processes, as in the project; each exits with 0 if its checks hold. Run with
 * CDDP_STANDIN_REPORT=count: faults are counted and checked.
 */
#include "worker/math/float16.h"
#include "world.h"

#include <dlfcn.h>

CDI_SUITE(nccl);

/* ----------------------------------------------------------------------------------------------------- operations --
 */

static void set(struct rank *r, CUdeviceptr at, size_t n, float first, float step)
{
    for (size_t i = 0; i < n; i++)
        r->host[i] = first + step * (float)(i % 100);
    CU(cuMemcpyHtoDAsync(at, r->host, n * sizeof(float), r->stream));
    CU(cuStreamSynchronize(r->stream));
}

static const float *get(struct rank *r, CUdeviceptr at, size_t n)
{
    CU(cuMemcpyDtoHAsync(r->host, at, n * sizeof(float), r->stream));
    CU(cuStreamSynchronize(r->stream));
    return r->host;
}

static int every_operation(struct rank *r)
{
    void *in, *out;
    const float *x;

    if (open_rank(r, 1) != 0)
        return 1;
    in = (void *)r->in;
    out = (void *)r->out;
    set(r, r->in, N, (float)r->rank, 1);
    CHECK(ncclAllReduce(in, out, N, ncclFloat32, ncclSum, r->comm, r->stream) == ncclSuccess);
    x = get(r, r->out, N);
    for (size_t i = 0; i < N; i++)
        CHECK(x[i] == 3 + 3 * (float)(i % 100));
    CHECK(ncclAllReduce(in, in, N, ncclFloat32, ncclMax, r->comm, r->stream) == ncclSuccess);
    x = get(r, r->in, N);
    CHECK(x[0] == 2 && x[N - 1] == 2 + (N - 1) % 100);

    set(r, r->in, N, (float)r->rank, 0);
    CHECK(ncclBroadcast(in, out, N, ncclFloat32, 1, r->comm, r->stream) == ncclSuccess);
    x = get(r, r->out, N);
    CHECK(x[0] == 1 && x[N - 1] == 1);
    CHECK(ncclReduce(in, out, N, ncclFloat32, ncclSum, 2, r->comm, r->stream) == ncclSuccess);
    x = get(r, r->out, N);
    CHECK(x[0] == (r->rank == 2 ? 3 : 1) && x[N - 1] == x[0]);
    CHECK(ncclAllGather(in, out, N, ncclFloat32, r->comm, r->stream) == ncclSuccess);
    x = get(r, r->out, 3 * N);
    CHECK(x[0] == 0 && x[N] == 1 && x[3 * N - 1] == 2);
    CHECK(ncclReduceScatter(out, in, N, ncclFloat32, ncclSum, r->comm, r->stream) == ncclSuccess);
    x = get(r, r->in, N);
    CHECK(x[0] == 3 * (float)r->rank && x[N - 1] == x[0]);
    return close_rank(r);
}

Test(nccl, every_operation_gives_its_result)
{
    cr_assert_eq(world(3, every_operation), 0);
}

static int ring(struct rank *r)
{
    int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;
    const float *x;

    if (open_rank(r, 0) != 0)
        return 1;
    set(r, r->in, N, (float)r->rank, 0);
    for (int i = 0; i < 3; i++) {
        CHECK(ncclGroupStart() == ncclSuccess);
        CHECK(ncclSend((void *)r->in, N, ncclFloat32, next, r->comm, r->stream) == ncclSuccess);
        CHECK(ncclRecv((void *)r->out, N, ncclFloat32, before, r->comm, r->stream) == ncclSuccess);
        CHECK(settle(r, ncclGroupEnd()) == ncclSuccess);
    }
    x = get(r, r->out, N);
    CHECK(x[0] == (float)before && x[N - 1] == (float)before);
    return close_rank(r);
}

Test(nccl, group_exchanges_messages_in_a_ring)
{
    cr_assert_eq(world(4, ring), 0);
}

/* In one group; a blocking communicator goes on after a rejected call. */
static int to_oneself(struct rank *r)
{
    if (open_rank(r, 1) != 0)
        return 1;
    set(r, r->in, 8, 3, 0);
    set(r, r->out, 8, 0, 0);
    CHECK(ncclSend((void *)r->in, 8, ncclFloat32, r->rank, r->comm, r->stream) == ncclInvalidUsage);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclRecv((void *)r->out, 8, ncclFloat32, r->rank, r->comm, r->stream) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclRecv((void *)r->out, 8, ncclFloat32, r->rank, r->comm, r->stream) == ncclSuccess);
    CHECK(ncclSend((void *)r->in, 8, ncclFloat32, r->rank, r->comm, r->stream) == ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    CHECK(get(r, r->out, 8)[7] == 3);
    return close_rank(r);
}

Test(nccl, message_to_self_needs_both_ends_in_a_group)
{
    cr_assert_eq(world(2, to_oneself), 0);
}

static int averages(struct rank *r)
{
    double third = 1.0 / 3;
    ncclRedOp_t op;
    const float *x;
    uint16_t one = cdi_bf16_of_float(1), got;

    if (open_rank(r, 1) != 0)
        return 1;
    set(r, r->in, N, (float)(r->rank + 1), 0);
    CHECK(ncclAllReduce((void *)r->in, (void *)r->out, N, ncclFloat32, ncclAvg, r->comm, r->stream) == ncclSuccess);
    x = get(r, r->out, N);
    CHECK(x[0] > 1.999f && x[0] < 2.001f && x[N - 1] == x[0]);
    /* The factor is rounded to the type: three times bfloat16(1/3) is not 1. */
    CU(cuMemcpyHtoD(r->in, &one, sizeof one));
    CHECK(ncclAllReduce((void *)r->in, (void *)r->out, 1, ncclBfloat16, ncclAvg, r->comm, r->stream) == ncclSuccess);
    CU(cuStreamSynchronize(r->stream));
    CU(cuMemcpyDtoH(&got, r->out, sizeof got));
    CHECK(got == cdi_bf16_of_float(3 * cdi_float_of_bf16(cdi_bf16_of_float(1.0f / 3))));

    CHECK(ncclRedOpCreatePreMulSum(&op, &third, ncclFloat64, ncclScalarHostImmediate, r->comm) == ncclSuccess);
    CHECK(ncclAllReduce((void *)r->in, (void *)r->out, 8, ncclFloat32, op, r->comm, r->stream) == ncclInvalidArgument);
    CU(cuMemcpyHtoD(r->in, &(double){6}, sizeof(double)));
    CHECK(ncclAllReduce((void *)r->in, (void *)r->out, 1, ncclFloat64, op, r->comm, r->stream) == ncclSuccess);
    CU(cuStreamSynchronize(r->stream));
    CU(cuMemcpyDtoH(&third, r->out, sizeof third));
    CHECK(third == 6);
    CHECK(ncclRedOpDestroy(op, r->comm) == ncclSuccess);
    return close_rank(r);
}

Test(nccl, averages_and_premultiplied_sums_round_as_nccl_does)
{
    cr_assert_eq(world(3, averages), 0);
}

/* ------------------------------------------------------------------------------------------------- communicators -- */

static int in_progress(struct rank *r)
{
    ncclResult_t rc;
    int count;

    if (open_rank(r, 0) != 0)
        return 1;
    CU(cuMemsetD32Async(r->in, 0, N, r->stream));
    rc = ncclAllReduce((void *)r->in, (void *)r->in, N, ncclFloat32, ncclSum, r->comm, r->stream);
    CHECK(rc == ncclInProgress);
    rc = ncclCommCount(r->comm, &count);
    CHECK(rc == ncclInvalidArgument || rc == ncclSuccess); /* it may have ended meanwhile */
    CHECK(settle(r, ncclInProgress) == ncclSuccess);
    CHECK(ncclCommCount(r->comm, &count) == ncclSuccess && count == 2);
    return close_rank(r);
}

Test(nccl, non_blocking_communicator_returns_in_progress)
{
    cr_assert_eq(setenv("CDDP_STANDIN_PROGRESS", "100", 1), 0);
    cr_assert_eq(world(2, in_progress), 0);
}

static int parts(struct rank *r)
{
    ncclComm_t part = NULL;
    int rank = -1, count = -1;

    if (open_rank(r, 0) != 0)
        return 1;
    /* 0 and 2 together, in the order 2, 0; 1 alone; 3 in none. */
    CHECK(settle(r, ncclCommSplit(r->comm, r->rank == 3 ? NCCL_SPLIT_NOCOLOR : r->rank % 2, -r->rank, &part, NULL)) ==
          ncclSuccess);
    CHECK((part == NULL) == (r->rank == 3));
    if (part != NULL) {
        struct rank sub = *r;

        sub.comm = part;
        CHECK(ncclCommUserRank(part, &rank) == ncclSuccess && ncclCommCount(part, &count) == ncclSuccess);
        CHECK(rank == (r->rank == 0) && count == (r->rank == 1 ? 1 : 2));
        set(r, r->in, N, (float)r->rank, 0);
        CHECK(settle(&sub, ncclAllReduce((void *)r->in, (void *)r->out, N, ncclFloat32, ncclSum, part, r->stream)) ==
              ncclSuccess);
        CHECK(get(r, r->out, N)[N - 1] == (r->rank == 1 ? 1 : 2));
        CHECK(settle(&sub, ncclCommFinalize(part)) == ncclSuccess);
        CHECK(ncclCommDestroy(part) == ncclSuccess);
    }
    return close_rank(r);
}

Test(nccl, split_makes_subcommunicators)
{
    cr_assert_eq(world(4, parts), 0);
}

static int several_ids(struct rank *r)
{
    ncclResult_t (*scalable)(ncclComm_t *, int, int, int, ncclUniqueId *, ncclConfig_t *);

    *(void **)&scalable = dlsym(RTLD_DEFAULT, "ncclCommInitRankScalable");
    CHECK(scalable != NULL);
    use_device(r, r->rank);
    if (r->rank < 2) {
        CHECK(ncclGetUniqueId(&r->board->id[r->rank]) == ncclSuccess);
        r->board->written++;
    }
    while (r->board->written < 2)
        (void)usleep(100);
    CHECK(scalable(&r->comm, r->size, r->rank, 2, r->board->id, NULL) == ncclSuccess);
    CHECK(ncclCommDestroy(r->comm) == ncclSuccess);
    return 0;
}

Test(nccl, several_ids_make_one_communicator)
{
    cr_assert_eq(world(3, several_ids), 0);
}

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

static int one_device(struct rank *r)
{
    use_device(r, 0);
    CHECK(join(r, 1) == (getenv("NCCL_HOSTID") == NULL ? ncclInvalidUsage : ncclSuccess));
    if (r->comm != NULL)
        CHECK(ncclCommDestroy(r->comm) == ncclSuccess);
    return 0;
}

static int one_device_two_hosts(struct rank *r)
{
    char host[8];

    (void)snprintf(host, sizeof host, "h%d", r->rank);
    CHECK(setenv("NCCL_HOSTID", host, 1) == 0);
    return one_device(r);
}

Test(nccl, ranks_share_a_device_only_as_different_hosts)
{
    cr_assert_eq(world(2, one_device), 0);
    cr_assert_eq(world(2, one_device_two_hosts), 0);
}

/* --------------------------------------------------------------------------------------------------------- memory --
 */

static int windows(struct rank *r)
{
    ncclResult_t (*window)(ncclComm_t, void *, size_t, ncclWindow_t *, int);
    ncclResult_t (*no_window)(ncclComm_t, ncclWindow_t);
    ncclWindow_t w = NULL;
    void *arena, *handle;
    const uint16_t ones[] = {cdi_bf16_of_float(1), cdi_bf16_of_float(1), cdi_bf16_of_float(1)};
    uint16_t one = 0;

    *(void **)&window = dlsym(RTLD_DEFAULT, "ncclCommWindowRegister");
    *(void **)&no_window = dlsym(RTLD_DEFAULT, "ncclCommWindowDeregister");
    if (open_rank(r, 1) != 0)
        return 1;
    CHECK(ncclMemAlloc(&arena, 8192) == ncclSuccess);
    CHECK(window(r->comm, (void *)r->in, 8192, &w, NCCL_WIN_COLL_SYMMETRIC) == ncclUnhandledCudaError);
    CHECK(window(r->comm, arena, 8192, &w, NCCL_WIN_COLL_SYMMETRIC) == ncclSuccess && w != NULL);
    /* In a window the average of a reduce-scatter is made after the sum, so that it is exact here. */
    CU(cuMemcpyHtoD((CUdeviceptr)arena, ones, sizeof ones));
    CHECK(ncclReduceScatter(arena, (char *)arena + 4096, 1, ncclBfloat16, ncclAvg, r->comm, r->stream) == ncclSuccess);
    CU(cuStreamSynchronize(r->stream));
    CU(cuMemcpyDtoH(&one, (CUdeviceptr)((char *)arena + 4096), sizeof one));
    CHECK(one == ones[0]);
    CHECK(no_window(r->comm, w) == ncclSuccess && no_window(r->comm, w) == ncclInvalidArgument);
    CHECK(ncclCommRegister(r->comm, arena, 8192, &handle) == ncclSuccess);
    CHECK(ncclCommDeregister(r->comm, handle) == ncclSuccess);
    CHECK(ncclMemFree(arena) == ncclSuccess);
    return close_rank(r);
}

Test(nccl, windows_and_registered_buffers)
{
    cr_assert_eq(world(3, windows), 0);
}

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

static int no_windows(struct rank *r)
{
    ncclWindow_t w = (ncclWindow_t)1;
    void *arena;

    use_device(r, 0);
    CHECK(join(r, 1) == ncclSuccess);
    CHECK(ncclMemAlloc(&arena, 8192) == ncclSuccess);
    CHECK(ncclCommWindowRegister(r->comm, arena, 8192, &w, 0) == ncclSuccess && w == NULL);
    CHECK(ncclMemFree(arena) == ncclSuccess);
    return ncclCommDestroy(r->comm) != ncclSuccess;
}

Test(nccl, no_window_without_hardware_support)
{
    cr_assert_eq(setenv("CDDP_STANDIN_WINDOWS", "0", 1), 0);
    cr_assert_eq(world(1, no_windows), 0);
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
