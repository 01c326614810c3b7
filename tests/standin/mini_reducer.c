/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small data-parallel loop on the stand-in, each rank a process: buckets are filled on a compute stream, reduced on a
 * communication stream and added up on the compute stream again. It is correct; its argument plants one fault, which
 * the stand-in (or ThreadSanitizer) must report. A test of the tests.
 *
 *   mini_reducer none|comm_wait|compute_wait|reuse|order|order_equal|in_progress|missing_rank
 *
 * Exit status: 0 all was right, 3 a wrong result, 4 aborted because a rank was missing, STANDIN_EXIT a fault; of the
 * ranks' the largest.
 */
#include "device.h"
#include "fill_kernel.h"

#include <nccl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS 2
#define STEPS 3
#define BUCKETS 4
#define LARGE 6000 /* elements of an even bucket; an odd one has fewer */
#define SMALL 5000
#define DEADLINE_MS 1000
#define WRONG 3
#define STUCK 4

enum fault { NONE, COMM_WAIT, COMPUTE_WAIT, REUSE, ORDER, ORDER_EQUAL, IN_PROGRESS, MISSING_RANK, N_FAULTS };
static const char *const faults[] = {"none",  "comm_wait",   "compute_wait", "reuse",
                                     "order", "order_equal", "in_progress",  "missing_rank"};

/*
 * Two bucket buffers, used alternately, and the results of each bucket: in one window, with the same layout everywhere.
 */
struct arena {
    float bucket[2][LARGE];
    float result[BUCKETS][LARGE];
};

struct job {
    enum fault fault;
    int rank;
    struct device device;
    CUkernel fill;
    CUstream compute, communication;
    CUevent ready[BUCKETS], done[BUCKETS];
    CUdeviceptr total[BUCKETS];
    struct arena *arena; /* on the device: only for addresses */
    ncclComm_t comm;
    ncclWindow_t window;
};

/* The data that rank 0 gives to the others. */
struct board {
    _Atomic int written;
    ncclUniqueId id;
};

static size_t bucket_size(const struct job *j, int b)
{
    return j->fault == ORDER_EQUAL || b % 2 == 0 ? LARGE : SMALL;
}

static float gradient(int rank, int step, int b)
{
    return (float)((rank + 1) * (step + 1) + 100 * b);
}

/*
 * Polls until the communicator is idle, which it may not be after a call that returns "success". Aborts and ends the
 * process at the deadline.
 */
static void settle(struct job *j, ncclResult_t rc, const char *what)
{
    struct timespec ms = {.tv_nsec = 200000};

    if (rc == ncclSuccess && ncclCommGetAsyncError(j->comm, &rc) != ncclSuccess)
        exit(WRONG);
    for (int i = 0; rc == ncclInProgress && i < DEADLINE_MS * 5; i++) {
        (void)nanosleep(&ms, NULL);
        if (ncclCommGetAsyncError(j->comm, &rc) != ncclSuccess)
            exit(WRONG);
    }
    if (rc == ncclSuccess)
        return;
    fprintf(stderr, "rank %d: %s: %s\n", j->rank, what, ncclGetErrorString(rc));
    exit(rc == ncclInProgress ? STUCK : WRONG);
}

static void open_job(struct job *j, struct board *board)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;

    config.blocking = 0;
    device_open(&j->device, j->rank);
    j->fill = device_kernel(&j->device, &fill_kernel);
    j->compute = device_stream();
    j->communication = device_stream();
    for (int b = 0; b < BUCKETS; b++) {
        j->ready[b] = device_event();
        j->done[b] = device_event();
        j->total[b] = device_floats(LARGE, 0);
    }
    if (j->rank == 0) {
        if (ncclGetUniqueId(&board->id) != ncclSuccess)
            exit(WRONG);
        board->written = 1;
    }
    while (board->written == 0)
        (void)usleep(100);
    id = board->id;
    settle(j, ncclCommInitRankConfig(&j->comm, RANKS, id, j->rank, &config), "init");
    if (ncclMemAlloc((void **)&j->arena, sizeof *j->arena) != ncclSuccess)
        exit(WRONG);
    settle(j, ncclCommWindowRegister(j->comm, j->arena, sizeof *j->arena, &j->window, NCCL_WIN_COLL_SYMMETRIC),
           "window");
}

static void close_job(struct job *j)
{
    CU(cuCtxSynchronize());
    settle(j, ncclCommWindowDeregister(j->comm, j->window), "deregister");
    settle(j, ncclCommFinalize(j->comm), "finalize");
    if (ncclCommDestroy(j->comm) != ncclSuccess || ncclMemFree(j->arena) != ncclSuccess)
        exit(WRONG);
    for (int b = 0; b < BUCKETS; b++) {
        CU(cuEventDestroy(j->ready[b]));
        CU(cuEventDestroy(j->done[b]));
        CU(cuMemFree(j->total[b]));
    }
    CU(cuStreamDestroy(j->compute));
    CU(cuStreamDestroy(j->communication));
    device_close(&j->device, j->rank);
}

static void write_bucket(struct job *j, int step, int b)
{
    float *at = j->arena->bucket[b % 2], value = gradient(j->rank, step, b);
    size_t n = bucket_size(j, b);
    void *args[] = {&at, &n, &value};
    int before = (b + BUCKETS - 2) % BUCKETS; /* the last one in this buffer */

    if (j->fault != REUSE)
        CU(cuStreamWaitEvent(j->compute, j->done[before], 0));
    CU(cuLaunchKernel((CUfunction)j->fill, (LARGE + 63) / 64, 1, 1, 64, 1, 1, 0, j->compute, args, NULL));
    CU(cuEventRecord(j->ready[b], j->compute));
}

static void reduce_bucket(struct job *j, int step, int b)
{
    ncclResult_t rc;

    if (j->fault == MISSING_RANK && j->rank == RANKS - 1 && step == STEPS - 1)
        return;
    if (j->fault != COMM_WAIT)
        CU(cuStreamWaitEvent(j->communication, j->ready[b], 0));
    rc = ncclAllReduce(j->arena->bucket[b % 2], j->arena->result[b], bucket_size(j, b), ncclFloat32, ncclSum, j->comm,
                       j->communication);
    if (j->fault != IN_PROGRESS)
        settle(j, rc, "all-reduce");
    CU(cuEventRecord(j->done[b], j->communication));
    if (j->fault == IN_PROGRESS)
        settle(j, rc, "all-reduce");
}

static void add_result(struct job *j, int b)
{
    if (j->fault != COMPUTE_WAIT)
        CU(cuStreamWaitEvent(j->compute, j->done[b], 0));
    device_axpy(&j->device, 1, (CUdeviceptr)j->arena->result[b], j->total[b], bucket_size(j, b), j->compute);
}

/* Wait for the stream; if it does not end in time a rank is missing: abort, and see that the stream ends then. */
static void finish(struct job *j)
{
    struct timespec ms = {.tv_nsec = 1000000};

    for (int i = 0; i < DEADLINE_MS; i++) {
        if (cuStreamQuery(j->compute) == CUDA_SUCCESS) {
            CU(cuStreamSynchronize(j->compute)); /* a query may be set to order nothing */
            return;
        }
        (void)nanosleep(&ms, NULL);
    }
    if (ncclCommAbort(j->comm) != ncclSuccess)
        exit(WRONG);
    CU(cuCtxSynchronize());
    fprintf(stderr, "rank %d: aborted: a rank did not come\n", j->rank);
    exit(STUCK);
}

static int check(struct job *j)
{
    static float total[LARGE];

    for (int b = 0; b < BUCKETS; b++) {
        float want = 0;

        for (int step = 0; step < STEPS; step++)
            for (int r = 0; r < RANKS; r++)
                want += gradient(r, step, b);
        CU(cuMemcpyDtoH(total, j->total[b], sizeof total));
        for (size_t i = 0; i < bucket_size(j, b); i++) {
            if (total[i] == want)
                continue;
            fprintf(stderr, "rank %d: wrong result: bucket %d, element %zu is %g, not %g\n", j->rank, b, i,
                    (double)total[i], (double)want);
            return WRONG;
        }
    }
    return 0;
}

static int rank_main(enum fault fault, int rank, struct board *board)
{
    static struct job j;
    bool swap = (fault == ORDER || fault == ORDER_EQUAL) && rank == 1;
    int rc;

    j.fault = fault;
    j.rank = rank;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)alarm(60);
    open_job(&j, board);
    for (int step = 0; step < STEPS; step++) {
        for (int b = 0; b < BUCKETS; b += 2) {
            write_bucket(&j, step, b);
            if (!swap)
                reduce_bucket(&j, step, b);
            write_bucket(&j, step, b + 1);
            reduce_bucket(&j, step, b + 1);
            if (swap)
                reduce_bucket(&j, step, b);
        }
        for (int b = 0; b < BUCKETS; b++)
            add_result(&j, b);
    }
    if (fault == MISSING_RANK && rank == RANKS - 1) {
        (void)usleep(2 * DEADLINE_MS * 1000); /* it does not end: the others must not notice its end instead */
        return 0;
    }
    finish(&j);
    rc = check(&j);
    close_job(&j);
    return rc;
}

int main(int argc, char **argv)
{
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid[RANKS];
    int fault = 0, worst = 0;

    while (argc == 2 && fault < N_FAULTS && strcmp(argv[1], faults[fault]) != 0)
        fault++;
    if (argc != 2 || fault == N_FAULTS || board == MAP_FAILED) {
        fprintf(stderr, "usage: mini_reducer FAULT\n");
        return 2;
    }
    for (int r = 0; r < RANKS; r++) {
        pid[r] = fork();
        if (pid[r] == 0)
            exit(rank_main((enum fault)fault, r, board));
    }
    /* One rank's failure ends the other, as a launcher would do it; where a rank is missing it has to end by itself. */
    for (int n = 0; n < RANKS; n++) {
        int status = 0, rc;
        pid_t p = wait(&status);

        rc = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        worst = rc > worst && rc != 128 + SIGKILL ? rc : worst;
        for (int r = 0; r < RANKS; r++) {
            pid[r] = pid[r] == p ? 0 : pid[r];
            if (pid[r] > 0 && rc != 0 && fault != MISSING_RANK)
                (void)kill(pid[r], SIGKILL);
        }
    }
    return worst;
}
