/* SPDX-License-Identifier: Apache-2.0 */
/* Differences between versions of NCCL (version.h), seen from outside. Run with CDDP_STANDIN_REPORT=count. */
#include "worker/math/float16.h"
#include "world.h"

#include <pthread.h>

CDI_SUITE(versions);

static const int all[] = {21903, 22304, 22403, 22707, 22809, 22907, 23007};
#define N_ALL (sizeof all / sizeof all[0])

static int code; /* of the version under test */

static void pretend(int version)
{
    char text[16];

    code = version;
    (void)snprintf(text, sizeof text, "%d", version);
    cr_assert_eq(setenv("CDDP_STANDIN_NCCL_VERSION", text, 1), 0);
}

/* The body passes in worlds of n ranks of each version from `first` on. */
static void each(int n, int first, body_fn body)
{
    for (size_t i = 0; i < N_ALL; i++) {
        if (all[i] < first)
            continue;
        pretend(all[i]);
        cr_assert_eq(world(n, body), 0, "NCCL %d", all[i]);
    }
}

/*
 * Ranks other than 0 wait here for a signal of rank 0: until then the calls that it has begun with all of them are in
 * progress. They get here once for each signal.
 */
static void await(struct rank *r)
{
    while (r->rank != 0 && r->board->go == r->waited)
        (void)usleep(100);
    r->waited = r->board->go;
}

static void go_on(struct rank *r)
{
    r->board->go++;
}

static ncclResult_t state(struct rank *r)
{
    ncclResult_t rc = ncclInternalError;

    (void)ncclCommGetAsyncError(r->comm, &rc);
    return rc;
}

static ncclResult_t sum(struct rank *r)
{
    return ncclAllReduce((void *)r->in, (void *)r->in, 8, ncclFloat32, ncclSum, r->comm, r->stream);
}

static int give_up(struct rank *r)
{
    CHECK(ncclCommAbort(r->comm) == ncclSuccess);
    CU(cuStreamSynchronize(r->stream));
    return 0;
}

/* ------------------------------------------------------------------------------------------------ in progress ---- */

/* Rank 0 begins; rank 1, if it is in a part, is in a separate one. */
static int split_to(struct rank *r, int color, bool in_a_part)
{
    ncclComm_t part = NULL;

    await(r);
    CHECK(ncclCommSplit(r->comm, color, 0, &part, NULL) == ncclSuccess);
    if (r->rank == 0) {
        CHECK(part == NULL && state(r) == ncclInProgress);
        part = in_a_part ? NULL : (ncclComm_t)8;
        go_on(r);
    }
    CHECK(settle(r, ncclInProgress) == ncclSuccess);
    CHECK((part != NULL) == in_a_part);
    if (part != NULL)
        CHECK(ncclCommAbort(part) == ncclSuccess);
    return 0;
}

static int split(struct rank *r)
{
    if (open_rank(r, 0) != 0 || split_to(r, r->rank, true) != 0)
        return 1;
    /* No part, but the pointer is written. */
    if (split_to(r, NCCL_SPLIT_NOCOLOR, false) != 0)
        return 1;
    return close_rank(r);
}

Test(versions, split_returns_success_before_its_pointer)
{
    each(2, 0, split);
}

static int window(struct rank *r)
{
    ncclWindow_t w = NULL;
    void *arena;
    ncclResult_t rc;

    if (open_rank(r, 0) != 0)
        return 1;
    CHECK(ncclMemAlloc(&arena, 8192) == ncclSuccess);
    await(r);
    rc = ncclCommWindowRegister(r->comm, arena, 8192, &w, NCCL_WIN_COLL_SYMMETRIC);
    CHECK(rc == (code < 22800 ? ncclInProgress : ncclSuccess));
    if (r->rank == 0) {
        CHECK(state(r) == ncclInProgress && (w != NULL) == (code < 22800));
        go_on(r);
    }
    CHECK(settle(r, ncclInProgress) == ncclSuccess && w != NULL);
    CHECK(ncclCommWindowDeregister(r->comm, w) == ncclSuccess);
    CHECK(ncclMemFree(arena) == ncclSuccess);
    return close_rank(r);
}

Test(versions, window_returns_success_before_it_exists_since_2_28)
{
    each(2, 22703, window);
}

static int operations(struct rank *r)
{
    if (open_rank(r, 0) != 0)
        return 1;
    CU(cuMemsetD32Async(r->in, 0, N, r->stream));
    CHECK(sum(r) == (code < 22300 || (code >= 22100 && code < 22400) ? ncclSuccess : ncclInProgress));
    CHECK(settle(r, ncclInProgress) == ncclSuccess);
    /* The first message to a rank is launched by a thread in every version. */
    CHECK((r->rank == 0 ? ncclSend((void *)r->in, 8, ncclFloat32, 1, r->comm, r->stream)
                        : ncclRecv((void *)r->in, 8, ncclFloat32, 0, r->comm, r->stream)) ==
          (code < 22400 ? ncclSuccess : ncclInProgress));
    CHECK(settle(r, ncclInProgress) == ncclSuccess);
    return close_rank(r);
}

Test(versions, operations_return_success_too_early_until_2_23)
{
    cr_assert_eq(setenv("CDDP_STANDIN_PROGRESS", "100", 1), 0);
    each(2, 0, operations);
}

static int refused(struct rank *r)
{
    ncclComm_t part = NULL;
    int count;

    if (open_rank(r, 0) != 0)
        return 1;
    CU(cuMemsetD32Async(r->in, 0, N, r->stream));
    await(r);
    CHECK(ncclCommSplit(r->comm, NCCL_SPLIT_NOCOLOR, 0, &part, NULL) == ncclSuccess);
    if (r->rank == 0) {
        CHECK(ncclCommCount(r->comm, &count) == ncclInvalidArgument && state(r) == ncclInProgress);
        CHECK(sum(r) == ncclInvalidArgument && state(r) == ncclInvalidArgument);
        go_on(r);
        while (state(r) == ncclInvalidArgument) /* the thread overwrites it with its result */
            (void)usleep(100);
    }
    CHECK(settle(r, ncclInProgress) == ncclSuccess);
    return close_rank(r);
}

Test(versions, operation_during_another_is_rejected_and_lost)
{
    each(2, 0, refused);
}

static int registering(struct rank *r)
{
    ncclComm_t part = NULL;
    void *arena, *handle;

    if (open_rank(r, 0) != 0)
        return 1;
    CHECK(ncclMemAlloc(&arena, 8192) == ncclSuccess);
    await(r);
    CHECK(ncclCommSplit(r->comm, NCCL_SPLIT_NOCOLOR, 0, &part, NULL) == ncclSuccess);
    if (r->rank == 0) {
        CHECK(ncclCommRegister(r->comm, arena, 8192, &handle) == ncclSuccess);
        CHECK(standin_faults() == 1 && strstr(standin_last_fault(), "still in progress") != NULL);
        go_on(r);
    }
    CHECK(settle(r, ncclInProgress) == ncclSuccess);
    return 0;
}

Test(versions, registering_beside_nccls_thread_is_a_fault)
{
    pretend(23007);
    cr_assert_eq(world(2, registering), 0);
}

/* ---------------------------------------------------------------------------------------------- errors that stay ----
 */

static int failed_window(struct rank *r)
{
    ncclWindow_t w = NULL;
    ncclResult_t rc;
    void *handle;

    if (open_rank(r, 0) != 0)
        return 1;
    CU(cuMemsetD32Async(r->in, 0, N, r->stream));
    CHECK(ncclCommWindowRegister(r->comm, (void *)r->in, 8192, &w, NCCL_WIN_COLL_SYMMETRIC) == ncclSuccess);
    rc = settle(r, ncclInProgress);
    CHECK(w == NULL && rc == (code < 22800 ? ncclSuccess : ncclUnhandledCudaError));
    if (rc == ncclSuccess)
        return close_rank(r);
    CHECK(sum(r) == rc && state(r) == rc);
    CHECK(ncclCommRegister(r->comm, (void *)r->in, 8192, &handle) == ncclSuccess); /* does not check the state */
    CHECK(ncclCommDeregister(r->comm, handle) == ncclSuccess);
    return give_up(r);
}

Test(versions, failed_window_ends_the_communicator_since_2_28)
{
    each(2, 22703, failed_window);
}

/* ------------------------------------------------------------------------------------------- windows and devices ----
 */

static int without_symmetry(struct rank *r)
{
    ncclWindow_t w = NULL;
    void *arena;

    if (open_rank(r, 0) != 0)
        return 1;
    CHECK(ncclMemAlloc(&arena, 8192) == ncclSuccess);
    CHECK(settle(r, ncclCommWindowRegister(r->comm, arena, 8192, &w, NCCL_WIN_COLL_SYMMETRIC)) == ncclSuccess);
    CHECK((w != NULL) == (code < 22900));
    CHECK(ncclCommWindowDeregister(r->comm, w) == ncclSuccess);
    CHECK(ncclMemFree(arena) == ncclSuccess);
    return close_rank(r);
}

Test(versions, local_window_without_symmetric_memory_until_2_28)
{
    cr_assert_eq(setenv("CDDP_STANDIN_WINDOWS", "0", 1), 0);
    each(2, 22703, without_symmetry);
}

/* The mean of three sevens in bfloat16 is 7 only if the division follows the sum. */
static int mean(struct rank *r)
{
    const char *host = getenv("NCCL_HOSTID");
    const float third = cdi_float_of_bf16(cdi_bf16_of_float(1.0f / 3));
    const uint16_t seven = cdi_bf16_of_float(7), sevens[] = {seven, seven, seven},
                   before = cdi_bf16_of_float(3 * cdi_float_of_bf16(cdi_bf16_of_float(7 * third)));
    uint16_t got;
    ncclWindow_t w = NULL;
    char *arena;

    if (host != NULL && r->rank == 2)
        CHECK(setenv("NCCL_HOSTID", "another", 1) == 0);
    if (open_rank(r, 0) != 0)
        return 1;
    CHECK(ncclMemAlloc((void **)&arena, 8192) == ncclSuccess);
    CHECK(settle(r, ncclCommWindowRegister(r->comm, arena, 8192, &w, NCCL_WIN_COLL_SYMMETRIC)) == ncclSuccess);
    CU(cuMemcpyHtoD((CUdeviceptr)arena, sevens, sizeof sevens));
    CHECK(settle(r, ncclReduceScatter(arena, arena + 4096, 1, ncclBfloat16, ncclAvg, r->comm, r->stream)) ==
          ncclSuccess);
    CU(cuStreamSynchronize(r->stream));
    CU(cuMemcpyDtoH(&got, (CUdeviceptr)(arena + 4096), sizeof got));
    CHECK(got == (code >= 23003 && host == NULL ? seven : before) && seven != before);
    CHECK(ncclCommWindowDeregister(r->comm, w) == ncclSuccess);
    CHECK(ncclMemFree(arena) == ncclSuccess);
    return close_rank(r);
}

Test(versions, mean_in_a_window_divides_after_the_sum_since_2_30_3)
{
    each(3, 22703, mean);
    cr_assert_eq(setenv("NCCL_HOSTID", "one", 1), 0);
    each(3, 22907, mean);
}

static void *let_it_go(void *board)
{
    (void)usleep(50000); /* the other way round it would not be noticed */
    ((struct board *)board)->go = 1;
    return NULL;
}

/* 0 destroys or aborts; 1 does so only at the signal `go`, or exits. */
static bool aborts, dies;

static int end_first(struct rank *r)
{
    const bool waits = !aborts || code < 22400;
    pthread_t thread;
    ncclResult_t rc;
    bool waited;

    if (open_rank(r, 1) != 0)
        return 1;
    if (r->rank == 1) {
        r->board->written++;
        while (r->board->go == 0)
            (void)usleep(100);
        return dies ? 0 : close_rank(r);
    }
    while (r->board->written < 2)
        (void)usleep(100);
    if (waits)
        CHECK(pthread_create(&thread, NULL, let_it_go, r->board) == 0);
    rc = aborts ? ncclCommAbort(r->comm) : ncclCommDestroy(r->comm);
    waited = r->board->go == 1;
    r->board->go = 1;
    CHECK((waits ? pthread_join(thread, NULL) : 0) == 0 && rc == ncclSuccess && waited == waits);
    return 0;
}

Test(versions, ncclCommDestroy_waits_for_the_peers_of_its_host)
{
    each(2, 0, end_first);
}

Test(versions, ncclCommDestroy_waits_for_no_process_that_has_ended)
{
    dies = true;
    each(2, 0, end_first);
}

Test(versions, ncclCommAbort_waits_for_the_peers_of_its_host_until_2_23)
{
    aborts = true;
    each(2, 0, end_first);
}
