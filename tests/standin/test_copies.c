/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that libcddp accepts, and its copies: the public functions in a world of one, on the stand-in. */
#include "device.h"
#include "hygiene.h"

#include <cddp/cddp.h>
#include <string.h>

#include "tests/support/world.h" /* and not the one of this folder */

CDI_SUITE(copies);

#define BLOCK ((size_t)2 << 20) /* of pinned memory */

#define OK(call) cr_assert_eq((call), CDDP_OK, "%s: %s", #call, cddp_last_error())
#define SAYS(what) cr_assert(strstr(cddp_last_error(), what) != NULL, "%s", cddp_last_error())

static cddp_comm *begin(void)
{
    cddp_comm *comm;

    OK(cddp_init(&comm, NULL));
    cr_assert_str_eq(cddp_backend_name(comm), "nccl");
    return comm;
}

static void end(cddp_comm *comm)
{
    OK(cddp_finalize(comm));
    cr_assert_eq(standin_faults(), 0, "%s", standin_last_fault());
}

/* The error of a driver that is older than the nvcc that made the kernels' code. */
Test(copies, names_the_driver_that_the_kernels_need)
{
    cddp_comm *comm;

    cr_assert_eq(setenv("CDDP_STANDIN_DRIVER", "12040", 1), 0);
    cr_assert_eq(setenv("CDDP_STANDIN_FAIL", "cuLibraryLoadData:1:222", 1), 0);
    standin_configure();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_E_SYSTEM);
    SAYS("the CUDA driver reports CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)");
#if CUDA_VERSION >= 13000 /* like that of nvcc, from the same toolkit */
    SAYS("the GPU code of libcddp needs CUDA 13.");
    SAYS("but the NVIDIA driver supports CUDA 12.4: install driver 580 or newer, or build with the nvcc of CUDA 12");
#endif
}

Test(copies, names_the_oldest_supported_driver)
{
    cddp_comm *comm;

    cr_assert_eq(setenv("CDDP_STANDIN_DRIVER", "11080", 1), 0);
    standin_configure();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_E_VERSION);
    SAYS("the NVIDIA driver supports CUDA 11.8: this build of the nccl backend needs driver 5");
#if CUDA_VERSION >= 13000
    SAYS("needs driver 580 or newer");
#endif
}

/* Memory of device 1, while libcddp works on device 0: the result of a missing cudaSetDevice. */
static CUdeviceptr elsewhere(size_t bytes, bool managed)
{
    CUcontext other;
    CUdeviceptr p;

    CU(cuDevicePrimaryCtxRetain(&other, 1));
    CU(cuCtxPushCurrent(other));
    CU(managed ? cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL) : cuMemAlloc(&p, bytes));
    CU(cuCtxPopCurrent(NULL));
    return p;
}

static void release(CUdeviceptr p)
{
    CU(cuMemFree(p));
    CU(cuDevicePrimaryCtxRelease(1));
}

static void refused(cddp_status status)
{
    cr_assert_eq(status, CDDP_E_INVALID);
    SAYS("belongs to GPU 1 (Stand-in device at 0000:02:00.0), but this rank uses GPU 0 (Stand-in device at "
         "0000:01:00.0)");
    SAYS("cudaSetDevice(0)");
}

Test(copies, rejects_memory_of_another_gpu)
{
    cddp_comm *comm = begin();
    CUdeviceptr theirs = elsewhere(4096, false);
    void *at = (void *)theirs, *mine;
    float host[64] = {0};
    cddp_param param = {.size = sizeof(cddp_param), .name = "w", .data = at, .count = 64, .dtype = CDDP_FLOAT32};
    const cddp_checkpoint_item item = {
        .size = sizeof(cddp_checkpoint_item), .name = "w", .data = at, .bytes = sizeof host};
    cddp_ddp *ddp;

    OK(cddp_alloc(comm, 4096, 0, &mine));
    refused(cddp_copy(comm, at, host, sizeof host));
    refused(cddp_copy(comm, host, at, sizeof host));
    refused(cddp_copy(comm, mine, at, sizeof host));
    refused(cddp_all_reduce(comm, at, at, 64, CDDP_FLOAT32, CDDP_SUM));
    refused(cddp_all_reduce(comm, mine, at, 64, CDDP_FLOAT32, CDDP_SUM));
    refused(cddp_ddp_create(&ddp, comm, &param, 1, NULL));
    SAYS("parameter 0 'w', its data: the memory");
    param = (cddp_param){
        .size = sizeof(cddp_param), .name = "w", .data = mine, .grad = at, .count = 64, .dtype = CDDP_FLOAT32};
    refused(cddp_ddp_create(&ddp, comm, &param, 1, NULL));
    SAYS("parameter 0 'w', its gradient: the memory");
    refused(cddp_checkpoint_save(comm, "nowhere", 1, &item, 1, NULL));
    OK(cddp_all_reduce(comm, host, host, 64, CDDP_FLOAT32, CDDP_SUM)); /* nothing is broken */
    cddp_free(comm, mine);
    release(theirs);
    end(comm);
}

Test(copies, collective_memory_is_on_the_gpu_and_pinned_on_the_host)
{
    cddp_comm *comm = begin();
    float *host, x[64];
    void *shared, *none;

    OK(cddp_alloc(comm, 4096, CDDP_MEM_COLLECTIVE, &shared));
    OK(cddp_alloc(comm, sizeof x, CDDP_MEM_HOST, (void **)&host));
    cr_assert_eq(cddp_alloc(comm, 64, CDDP_MEM_COLLECTIVE | CDDP_MEM_HOST, &none), CDDP_E_UNSUPPORTED);
    SAYS("leave out CDDP_MEM_HOST or CDDP_MEM_COLLECTIVE");
    for (int i = 0; i < 64; i++)
        host[i] = (float)i;
    OK(cddp_copy(comm, shared, host, sizeof x));
    OK(cddp_all_reduce(comm, shared, shared, 64, CDDP_FLOAT32, CDDP_SUM));
    OK(cddp_copy(comm, x, shared, sizeof x));
    cr_assert_eq(x[63], 63.0f);
    cr_assert_eq(cddp_register(comm, x, sizeof x, CDDP_MEM_COLLECTIVE), CDDP_E_INVALID);
    SAYS("this is host memory, but backend nccl reduces in memory of its GPU");
    OK(cddp_alloc(comm, 4096, 0, &none));
    OK(cddp_register(comm, none, 4096, CDDP_MEM_COLLECTIVE));
    OK(cddp_unregister(comm, none));
    cddp_free(comm, none);
    cddp_free(comm, host);
    cddp_free(comm, shared);
    end(comm);
}

/* Like a program, or another library, that has created a context: kernels would use an illegal address. */
Test(copies, rejects_memory_of_another_context)
{
    cddp_comm *comm = begin();
    CUdeviceptr theirs;
    float x = 3;

    CU(cuCtxPushCurrent(standin_second_context(0)));
    CU(cuMemAlloc(&theirs, 4096));
    CU(cuCtxPopCurrent(NULL));
    cr_assert_eq(cddp_all_reduce(comm, (void *)theirs, (void *)theirs, 1, CDDP_FLOAT32, CDDP_SUM), CDDP_E_INVALID);
    SAYS("belongs to another context of GPU 0 (Stand-in device at 0000:01:00.0)");
    SAYS("cuDevicePrimaryCtxRetain");
    cr_assert_eq(cddp_copy(comm, (void *)theirs, &x, sizeof x), CDDP_E_INVALID);
    CU(cuMemFree(theirs));
    end(comm);
}

static void still_mine(CUcontext mine)
{
    CUcontext now;

    CU(cuCtxGetCurrent(&now));
    cr_assert_eq(now, mine);
}

/* Each call that needs the GPU's context leaves that of the program. */
Test(copies, leaves_the_context_of_the_program_current)
{
    cddp_comm *comm = begin(), *part, *group;
    CUcontext mine = standin_second_context(0);
    const int self = 0;
    uint64_t ticket;
    float x = 3;
    cddp_coll_args args = {
        .size = sizeof args, .coll = CDDP_COLL_ALL_REDUCE, .dtype = CDDP_FLOAT32, .in = &x, .out = &x, .count = 1};
    cddp_param param = {.size = sizeof(cddp_param), .name = "w", .count = 64, .dtype = CDDP_FLOAT32};
    cddp_ddp *ddp;
    void *p;

    end(comm);
    CU(cuCtxSetCurrent(mine));
    comm = begin();
    still_mine(mine);
    OK(cddp_alloc(comm, 4096, 0, &p));
    OK(cddp_copy(comm, p, &x, sizeof x));
    OK(cddp_all_reduce(comm, p, p, 1, CDDP_FLOAT32, CDDP_SUM));
    OK(cddp_coll_start(comm, &args, 1, &ticket));
    OK(cddp_coll_wait(comm, ticket));
    OK(cddp_barrier(comm));
    still_mine(mine);
    param.data = p;
    OK(cddp_ddp_create(&ddp, comm, &param, 1, NULL));
    OK(cddp_ddp_grad_ready(ddp, 0));
    OK(cddp_ddp_wait(ddp));
    cddp_ddp_destroy(ddp);
    still_mine(mine);
    OK(cddp_comm_split(&part, comm, 0, 0, NULL));
    OK(cddp_comm_create_group(&group, comm, &self, 1, 0, NULL));
    still_mine(mine);
    OK(cddp_finalize(group));
    OK(cddp_finalize(part));
    cddp_free(comm, p);
    end(comm);
    still_mine(mine);
    CU(cuCtxSetCurrent(NULL));
}

/* A join that fails, too. */
Test(copies, leaves_the_context_of_the_program_after_a_failure)
{
    CUcontext mine;
    cddp_comm *comm = begin();

    mine = standin_second_context(0);
    end(comm);
    CU(cuCtxSetCurrent(mine));
    cr_assert_eq(setenv("CDDP_STANDIN_FAIL", "cuLibraryLoadData:1:222", 1), 0);
    standin_configure();
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_E_SYSTEM);
    still_mine(mine);
    CU(cuCtxSetCurrent(NULL));
}

/* A container without the "utility" capability has none; NCCL does not say what to do. */
Test(copies, says_how_a_container_gets_the_management_library)
{
    cddp_comm *comm;

    cr_assert_eq(setenv("CDDP_STANDIN_NVML", "0", 1), 0);
    cr_assert_eq(cddp_init(&comm, NULL), CDDP_E_SYSTEM);
    SAYS("NCCL reports \"unhandled system error\" (Failed to open libnvidia-ml.so.1)");
    SAYS("NVIDIA_DRIVER_CAPABILITIES=compute,utility");
}

/* The driver reports no context for it. */
Test(copies, memory_of_a_pool_is_the_gpus)
{
    cddp_comm *comm = begin();
    CUstream s = device_stream();
    CUdeviceptr pooled;
    float x = 3, y = 0;

    CU(cuMemAllocAsync(&pooled, 4096, s));
    CU(cuStreamSynchronize(s));
    OK(cddp_copy(comm, (void *)pooled, &x, sizeof x));
    OK(cddp_all_reduce(comm, (void *)pooled, (void *)pooled, 1, CDDP_FLOAT32, CDDP_SUM));
    OK(cddp_copy(comm, &y, (void *)pooled, sizeof y));
    cr_assert_eq(y, 3);
    CU(cuMemFreeAsync(pooled, s));
    CU(cuStreamDestroy(s));
    end(comm);
}

Test(copies, managed_memory_is_every_gpus)
{
    cddp_comm *comm = begin();
    CUdeviceptr managed = elsewhere(sizeof(float), true);
    float x = 3;

    OK(cddp_copy(comm, (void *)managed, &x, sizeof x));
    OK(cddp_all_reduce(comm, (void *)managed, (void *)managed, 1, CDDP_FLOAT32, CDDP_SUM));
    OK(cddp_copy(comm, &x, (void *)managed, sizeof x));
    cr_assert_eq(x, 3);
    release(managed);
    end(comm);
}

/* The singular call has an error for host memory, at which compute-sanitizer would stop. */
Test(copies, recognises_host_memory_without_driver_errors)
{
    cddp_comm *comm;
    void *mine;
    float x = 3, y = 0;

    cr_assert_eq(setenv("CDDP_STANDIN_FAIL", "cuPointerGetAttribute:1+:719", 1), 0);
    standin_configure();
    comm = begin();
    OK(cddp_alloc(comm, sizeof x, 0, &mine));
    OK(cddp_copy(comm, mine, &x, sizeof x));
    OK(cddp_all_reduce(comm, mine, mine, 1, CDDP_FLOAT32, CDDP_SUM));
    OK(cddp_copy(comm, &y, mine, sizeof x));
    cr_assert_eq(y, 3);
    cddp_free(comm, mine);
    end(comm);
}

/* After a fault of the GPU the driver reports nothing about memory: it does not count as host memory. */
Test(copies, leaves_unknown_memory_alone_after_a_fault)
{
    cddp_comm *comm = begin();
    void *mine;
    float x = 3;

    OK(cddp_alloc(comm, sizeof x, 0, &mine));
    cr_assert_eq(setenv("CDDP_STANDIN_FAIL", "cuPointerGetAttributes:1+:700", 1), 0);
    standin_configure();
    cr_assert_eq(cddp_copy(comm, mine, &x, sizeof x), CDDP_E_SYSTEM);
    SAYS("querying the owner of memory: the CUDA driver reports CUDA_ERROR_ILLEGAL_ADDRESS");
    cr_assert_eq(cddp_all_reduce(comm, mine, mine, 1, CDDP_FLOAT32, CDDP_SUM), CDDP_E_SYSTEM);
    cr_assert_eq(unsetenv("CDDP_STANDIN_FAIL"), 0);
    standin_configure();
    cddp_free(comm, mine);
    end(comm);
}

static void fill(uint8_t *p, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(seed = seed * 1103515245u + 12345u, seed >> 16);
}

/* Around the size of a block, through both, and more often than there are blocks. */
Test(copies, copies_every_byte_and_none_beyond)
{
    static const size_t sizes[] = {0, 1, 255, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 5, 5 * BLOCK - 3};
    size_t cap = 5 * BLOCK + 64;
    uint8_t *from = malloc(cap), *to = malloc(cap);
    cddp_comm *comm = begin();
    void *a, *b;

    cr_assert(from != NULL && to != NULL);
    OK(cddp_alloc(comm, cap, 0, &a));
    OK(cddp_alloc(comm, cap, 0, &b));
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i];

        fill(from, cap, (unsigned)i);
        memset(to, 7, cap);
        OK(cddp_copy(comm, a, to, cap));
        OK(cddp_copy(comm, a, from, n));
        OK(cddp_copy(comm, b, a, cap));
        OK(cddp_copy(comm, to, b, n));
        cr_assert_eq(memcmp(to, from, n), 0, "%zu bytes", n);
        cr_assert(to[n] == 7 && to[cap - 1] == 7, "beyond %zu bytes", n);
        OK(cddp_copy(comm, to, b, cap));
        cr_assert(memcmp(to, from, n) == 0 && to[n] == 7 && to[cap - 1] == 7, "%zu bytes, all of it", n);
    }
    cddp_free(comm, a);
    cddp_free(comm, b);
    free(from);
    free(to);
    end(comm);
}

/* Pinned memory and GPU memory are allocated and freed with the communicator, not in its calls. */
Test(copies, calls_allocate_no_memory)
{
    size_t large = 3 * BLOCK + 1;
    uint8_t *host = calloc(1, large);
    float x[16] = {1}, y[16];
    cddp_comm *comm = begin();
    cddp_coll_args work = {.size = sizeof work,
                           .coll = CDDP_COLL_ALL_REDUCE,
                           .in = y,
                           .out = y,
                           .count = 16,
                           .dtype = CDDP_FLOAT32,
                           .op = CDDP_SUM};
    uint64_t tickets[4], before;
    void *mine;

    cr_assert_not_null(host);
    OK(cddp_alloc(comm, large, 0, &mine));
    before = standin_allocations();
    for (int i = 0; i < 3; i++) {
        OK(cddp_copy(comm, mine, host, large));
        OK(cddp_copy(comm, host, mine, large));
        OK(cddp_copy(comm, host, mine, 1));
        OK(cddp_all_reduce(comm, x, y, 16, CDDP_FLOAT32, CDDP_SUM));
        OK(cddp_broadcast(comm, x, 16, CDDP_FLOAT32, 0));
        OK(cddp_barrier(comm));
        for (int k = 0; k < 4; k++) /* as many as there are blocks at once */
            OK(cddp_coll_start(comm, &work, 1, &tickets[k]));
        for (int k = 0; k < 4; k++)
            OK(cddp_coll_wait(comm, tickets[k]));
    }
    cr_assert_eq(standin_allocations(), before, "%d in calls", (int)(standin_allocations() - before));
    cddp_free(comm, mine);
    free(host);
    end(comm);
}

#define LARGE (((size_t)64 << 20) + 1) /* bytes: its block is one of those that are not kept */

/* Rank 1 calls the second collective only when rank 0 has joined the first. */
static int join_the_first(int rank)
{
    uint8_t *x = calloc(LARGE, 1);
    float y = 1, sum = 0;
    const char *key = "joined";
    cddp_coll_args first = {
        .size = sizeof first, .coll = CDDP_COLL_BROADCAST, .in = x, .out = x, .count = LARGE, .dtype = CDDP_UINT8};
    cddp_coll_args second = {.size = sizeof second,
                             .coll = CDDP_COLL_ALL_REDUCE,
                             .in = &y,
                             .out = &sum,
                             .count = 1,
                             .dtype = CDDP_FLOAT32,
                             .op = CDDP_SUM};
    uint64_t a, b = 0;
    cddp_comm *comm;

    (void)setenv("CDDP_BACKEND", "nccl", 1);
    CHECK(x != NULL && cddp_init(&comm, NULL) == CDDP_OK);
    x[LARGE - 1] = rank == 0 ? 5 : 0;
    CHECK(cddp_coll_start(comm, &first, 1, &a) == CDDP_OK);
    if (rank == 0)
        CHECK(cddp_coll_start(comm, &second, 1, &b) == CDDP_OK);
    CHECK(cddp_coll_wait(comm, a) == CDDP_OK && x[LARGE - 1] == 5);
    if (rank == 0) {
        CHECK(cddp_store_set(cddp_comm_store(comm), key, "", 0) == CDDP_OK);
    } else {
        CHECK(cddp_store_wait(cddp_comm_store(comm), &key, 1, 60000) == CDDP_OK);
        CHECK(cddp_coll_start(comm, &second, 1, &b) == CDDP_OK);
    }
    CHECK(cddp_coll_wait(comm, b) == CDDP_OK && sum == 2);
    free(x);
    return cddp_finalize(comm) != CDDP_OK;
}

/* The driver frees memory when all that runs on the GPU is done: not while a collective waits for its peers. */
Test(copies, a_join_does_not_wait_for_later_collectives, .timeout = 120)
{
    cr_assert_eq(run_world(2, join_the_first), 0);
}
