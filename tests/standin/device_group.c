/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups in the order of a stream, as a program that cddprun starts on the stand-in: device_group WHAT. Each round
 * fills a field, exchanges its edges with both neighbours, and adds them to a sum; collectives follow, and one that
 * consists of messages. The stand-in ends the program where no event orders two that use the same memory. stream on a
 * stream of the program's legacy      on CUDA's legacy stream captured    a round is captured, and replayed between
 * rounds that are not refused     host memory is rejected, in a capture and outside, and the job goes on; operations
 * can be tested
 *
 * Exit status: 0 all was right, 3 a wrong result, 4 libcddp gave an error.
 */
#include "device.h"
#include "must.h"

#include <cddp/cddp.h>
#include <stdbool.h>
#include <string.h>

#define EDGE 700
#define INNER 3000
#define FIELD (INNER + 2 * EDGE)
#define ROUNDS 5
#define RANKS 8

struct job {
    cddp_comm *comm;
    struct device device;
    int rank, size;
    CUstream stream;
    CUdeviceptr field, left, right; /* the sums of received values */
    CUdeviceptr small;              /* two that are reduced, one that is broadcast, RANKS that are gathered */
    float want[2];
};

static void *at(CUdeviceptr p, size_t i)
{
    return (void *)(uintptr_t)(p + i * sizeof(float));
}

static void set(CUdeviceptr p, size_t n, float value, CUstream s)
{
    unsigned bits;

    memcpy(&bits, &value, sizeof bits);
    CU(cuMemsetD32Async(p, bits, n, s));
}

static cddp_coll_args message(cddp_coll coll, void *p, int peer)
{
    return (cddp_coll_args){.size = sizeof(cddp_coll_args),
                            .coll = coll,
                            .dtype = CDDP_FLOAT32,
                            .root = peer,
                            .in = coll == CDDP_COLL_SEND ? p : NULL,
                            .out = coll == CDDP_COLL_RECV ? p : NULL,
                            .count = EDGE};
}

/* In this order also two ranks, which are each other's neighbour on both sides, match. */
static cddp_status exchange(struct job *j)
{
    int left = (j->rank + j->size - 1) % j->size, right = (j->rank + 1) % j->size;
    const cddp_coll_args halo[] = {
        message(CDDP_COLL_SEND, at(j->field, EDGE), left), message(CDDP_COLL_RECV, at(j->field, EDGE + INNER), right),
        message(CDDP_COLL_SEND, at(j->field, INNER), right), message(CDDP_COLL_RECV, at(j->field, 0), left)};

    return cddp_coll_enqueue(j->comm, halo, 4, j->stream);
}

static cddp_coll_args collective(struct job *j, cddp_coll coll, size_t first, size_t count, int root)
{
    return (cddp_coll_args){.size = sizeof(cddp_coll_args),
                            .coll = coll,
                            .dtype = CDDP_FLOAT32,
                            .op = CDDP_AVG,
                            .root = root,
                            .in = at(j->small, first),
                            .out = at(j->small, first),
                            .count = count};
}

static void round_of(struct job *j, float value)
{
    const cddp_coll_args two[] = {collective(j, CDDP_COLL_ALL_REDUCE, 0, 2, 0),
                                  collective(j, CDDP_COLL_BROADCAST, 2, 1, j->size - 1)};
    cddp_coll_args gather = collective(j, CDDP_COLL_GATHER, 3, 1, 0);

    set(j->field, FIELD, -1, j->stream);
    set(j->field + EDGE * sizeof(float), INNER, value + (float)(100 * j->rank), j->stream);
    set(j->small, 3 + RANKS, value + (float)j->rank, j->stream);
    DO(exchange(j));
    DO(cddp_coll_enqueue(j->comm, two, 2, j->stream));
    gather.in = at(j->small, 2); /* broadcast values */
    DO(cddp_coll_enqueue(j->comm, &gather, 1, j->stream));
    device_axpy(&j->device, 1, j->field, j->left, EDGE, j->stream);
    device_axpy(&j->device, 1, j->field + (EDGE + INNER) * sizeof(float), j->right, EDGE, j->stream);
    j->want[0] += value + (float)(100 * ((j->rank + j->size - 1) % j->size));
    j->want[1] += value + (float)(100 * ((j->rank + 1) % j->size));
}

static void is(const struct job *j, const char *what, float got, float want)
{
    if (got == want)
        return;
    fprintf(stderr, "rank %d: wrong result: %s: %g, not %g\n", j->rank, what, (double)got, (double)want);
    exit(WRONG);
}

/* value: of the last round. */
static void compare(struct job *j, float value)
{
    float left[EDGE], right[EDGE], small[3 + RANKS];
    float last = value + (float)(j->size - 1);

    CU(cuMemcpyDtoHAsync(left, j->left, sizeof left, j->stream));
    CU(cuMemcpyDtoHAsync(right, j->right, sizeof right, j->stream));
    CU(cuMemcpyDtoHAsync(small, j->small, sizeof small, j->stream));
    CU(cuStreamSynchronize(j->stream));
    for (size_t i = 0; i < EDGE; i++) {
        is(j, "from the left", left[i], j->want[0]);
        is(j, "from the right", right[i], j->want[1]);
    }
    is(j, "the mean", small[1], value + (float)(j->size - 1) / 2);
    is(j, "broadcast value", small[2], last);
    for (int r = 0; r < j->size && j->rank == 0; r++)
        is(j, "gathered value", small[3 + r], last);
    is(j, "value after the gathered ones", small[3 + j->size], value + (float)j->rank);
}

static void rounds(struct job *j)
{
    for (int i = 0; i < ROUNDS; i++) {
        round_of(j, (float)i);
        if (i % 2 == 0)
            compare(j, (float)i);
    }
}

static void captured(struct job *j)
{
    float before[2], once[2];
    CUgraphExec exec;

    round_of(j, 1); /* the first is connected outside */
    memcpy(before, j->want, sizeof before);
    CU(cuStreamBeginCapture(j->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    round_of(j, 8);
    exec = device_end_capture(j->stream);
    for (int k = 0; k < 2; k++) {
        once[k] = j->want[k] - before[k];
        j->want[k] = before[k];
    }
    for (int i = 0; i < ROUNDS; i++) {
        CU(cuGraphLaunch(exec, j->stream));
        for (int k = 0; k < 2; k++)
            j->want[k] += once[k];
        compare(j, 8);
        if (i % 2 == 0)
            round_of(j, (float)i);
    }
    CU(cuStreamSynchronize(j->stream));
    CU(cuGraphExecDestroy(exec));
}

static void refuse(struct job *j, const cddp_coll_args *args, size_t n)
{
    cddp_status st = cddp_coll_enqueue(j->comm, args, n, j->stream);

    if (st == CDDP_E_INVALID && strstr(cddp_last_error(), "host memory") != NULL)
        return;
    fprintf(stderr, "rank %d: memory of the host: %s: %s\n", j->rank, cddp_status_name(st), cddp_last_error());
    exit(WRONG);
}

static void refused(struct job *j)
{
    float x[2] = {0}, y[RANKS] = {0};
    cddp_coll_args host = collective(j, CDDP_COLL_ALL_REDUCE, 0, 2, 0), gather;
    cddp_coll_args mixed[2] = {host, collective(j, CDDP_COLL_GATHER, 3, 1, 0)}; /* two operations of the backend */
    cddp_status st;
    uint64_t ticket;
    CUgraph graph;

    host.in = host.out = x;
    mixed[1].in = x;
    refuse(j, &host, 1);
    refuse(j, mixed, 2);
    CU(cuStreamBeginCapture(j->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    refuse(j, &host, 1);
    refuse(j, mixed, 2);
    DO(exchange(j));
    CU(cuStreamEndCapture(j->stream, &graph)); /* all the same */
    CU(cuGraphDestroy(graph));
    rounds(j);
    /* Without a stream, memory may be anywhere. */
    x[0] = (float)(j->rank + 1);
    gather = collective(j, CDDP_COLL_GATHER, 0, 1, 0);
    gather.in = x;
    gather.out = y;
    DO(cddp_coll_start(j->comm, &gather, 1, &ticket));
    while ((st = cddp_coll_test(j->comm, ticket)) == CDDP_IN_PROGRESS)
        ;
    DO(st);
    for (int r = 0; r < j->size && j->rank == 0; r++)
        is(j, "gathered in memory of the host", y[r], (float)(r + 1));
}

static void open_job(struct job *j, bool legacy)
{
    const cddp_init_options init = {.size = sizeof init, .backend = "nccl"};

    DO(cddp_init(&j->comm, &init));
    device_open(&j->device, cddp_local_rank(j->comm));
    j->rank = cddp_rank(j->comm);
    j->size = cddp_world_size(j->comm);
    j->stream = legacy ? NULL : device_stream();
    j->field = device_floats(FIELD, 0);
    j->left = device_floats(EDGE, 0);
    j->right = device_floats(EDGE, 0);
    j->small = device_floats(3 + RANKS, 0);
}

static void close_job(struct job *j)
{
    CU(cuMemFree(j->field));
    CU(cuMemFree(j->left));
    CU(cuMemFree(j->right));
    CU(cuMemFree(j->small));
    if (j->stream != NULL)
        CU(cuStreamDestroy(j->stream));
    CU(cuLibraryUnload(j->device.library));
    DO(cddp_finalize(j->comm));
}

int main(int argc, char **argv)
{
    static struct job job;
    const char *what = argc > 1 ? argv[1] : "stream";

    open_job(&job, strcmp(what, "legacy") == 0);
    if (strcmp(what, "captured") == 0)
        captured(&job);
    else if (strcmp(what, "refused") == 0)
        refused(&job);
    else
        rounds(&job);
    close_job(&job);
    return 0;
}
