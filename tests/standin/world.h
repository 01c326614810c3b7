/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of NCCL's half: ranks are processes, each with a device, a communicator, a stream and some memory. */
#ifndef SI_TEST_WORLD_H
#define SI_TEST_WORLD_H

#include "device.h"
#include "hygiene.h"

#include <nccl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX 4
#define N 40000 /* floats: more than two chunks */

struct board {
    _Atomic int written, go;
    ncclUniqueId id[2];
};

struct rank {
    int rank, size, fds, waited;
    bool closed; /* its descriptors and memory were looked at */
    struct board *board;
    CUcontext ctx;
    CUstream stream;
    ncclComm_t comm;
    CUdeviceptr in, out;
    float *host;
};

#define CHECK(cond)                                                                           \
    do {                                                                                      \
        if (!(cond)) {                                                                        \
            fprintf(stderr, "rank %d: %s:%d: %s (%s)\n", r->rank, __FILE__, __LINE__, #cond,  \
                    standin_faults() > 0 ? standin_last_fault() : ncclGetLastError(r->comm)); \
            return 1;                                                                         \
        }                                                                                     \
    } while (0)

/* Polls a communicator: some calls return "success" while they are in progress. */
static inline ncclResult_t settle(struct rank *r, ncclResult_t rc)
{
    if (rc != ncclSuccess && rc != ncclInProgress)
        return rc;
    while (ncclCommGetAsyncError(r->comm, &rc) == ncclSuccess && rc == ncclInProgress)
        (void)usleep(100);
    return rc;
}

static inline ncclUniqueId share_id(struct rank *r)
{
    if (r->rank == 0 && ncclGetUniqueId(&r->board->id[0]) == ncclSuccess)
        r->board->written = 1;
    while (r->board->written == 0)
        (void)usleep(100);
    return r->board->id[0];
}

static inline void use_device(struct rank *r, int ordinal)
{
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&r->ctx, ordinal));
    CU(cuCtxSetCurrent(r->ctx));
}

static inline ncclResult_t join(struct rank *r, int blocking)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = blocking;
    config.commName = "test";
    return settle(r, ncclCommInitRankConfig(&r->comm, r->size, share_id(r), r->rank, &config));
}

static inline int open_rank(struct rank *r, int blocking)
{
    use_device(r, r->rank);
    CHECK(join(r, blocking) == ncclSuccess);
    r->stream = device_stream();
    CU(cuMemAlloc(&r->in, MAX * N * sizeof(float)));
    CU(cuMemAlloc(&r->out, MAX * N * sizeof(float)));
    CU(cuMemHostAlloc((void **)&r->host, MAX * N * sizeof(float), 0));
    return 0;
}

static inline int close_rank(struct rank *r)
{
    struct standin_live live;

    CU(cuStreamSynchronize(r->stream));
    CHECK(settle(r, ncclCommFinalize(r->comm)) == ncclSuccess);
    CHECK(ncclCommDestroy(r->comm) == ncclSuccess);
    CU(cuStreamDestroy(r->stream));
    CU(cuMemFree(r->in));
    CU(cuMemFree(r->out));
    CU(cuMemFreeHost(r->host));
    standin_live(&live);
    CHECK(live.communicators + live.device_memory + live.pinned_memory + live.streams == 0);
    CHECK(standin_faults() == 0);
    CHECK(hygiene_count_fds() == r->fds); /* before LeakSanitizer opens its log */
#ifdef CDI_TEST_ASAN
    CHECK(!__lsan_do_recoverable_leak_check());
#endif
    r->closed = true;
    return 0;
}

typedef int (*body_fn)(struct rank *r);

/* Runs body as n processes. Returns the number of those that did not end with status 0. */
static inline int world(int n, body_fn body)
{
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[MAX];
    int bad = 0;

    cr_assert_neq(board, MAP_FAILED);
    (void)fflush(NULL);
    for (int i = 0; i < n; i++) {
        struct rank r = {.rank = i, .size = n, .board = board, .fds = hygiene_count_fds()};

        pid[i] = fork();
        if (pid[i] == 0) {
            int rc;

            (void)alarm(40);
            rc = body(&r);
            if (rc == 0 && !r.closed && hygiene_count_fds() != r.fds) {
                fprintf(stderr, "rank %d: descriptors leaked\n", i);
                rc = 1;
            }
            _exit(rc);
        }
    }
    for (int i = 0; i < n; i++) {
        int status = -1;

        (void)waitpid(pid[i], &status, 0);
        bad += status != 0;
    }
    (void)munmap(board, sizeof *board);
    return bad;
}

#endif
