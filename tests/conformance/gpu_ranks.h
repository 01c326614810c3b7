/* SPDX-License-Identifier: Apache-2.0 */
/* The common part of tests of the GPU backend on the stand-in, in two ranks of a node. */
#ifndef GPU_RANKS_H
#define GPU_RANKS_H

#include "ranks.h"
#include "standin.h"
#include "within.h"

#include <cuda.h>
#include <nccl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 5000u
#define CHILD_S 60
#define KNOWN_MS 1000

static const struct ranks_layout pair = {.node_size = {2}, .module = "nccl"};

/* Sets a variable of the stand-in for this rank. */
static inline void configure(const char *name, const char *value)
{
    (void)setenv(name, value, 1);
    standin_configure();
}

/* The NCCL that the stand-in is. */
static inline int nccl_version(void)
{
    const char *code = getenv("CDDP_STANDIN_NCCL_VERSION");

    return code != NULL ? (int)strtol(code, NULL, 10) : NCCL_VERSION_CODE;
}

/* The device of this rank, current in the calling thread, as a program would have it. */
static inline int use_device(struct rank *r)
{
    CUcontext ctx;

    RANK_CHECK(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&ctx, r->rank) == CUDA_SUCCESS);
    RANK_CHECK(cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
    return 0;
}

/* And a stream of it. */
static inline int use_stream(struct rank *r, CUstream *s)
{
    if (use_device(r) != 0)
        return 1;
    RANK_CHECK(cuStreamCreateWithPriority(s, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
    return 0;
}

static inline struct cdi_coll all_reduce(float *x)
{
    return (struct cdi_coll){
        .kind = CDI_ALL_REDUCE, .in = x, .out = x, .count = COUNT, .dtype = CDDP_FLOAT32, .bucket = -1};
}

/* Captures one all-reduce, as a bucket (known) or a program has it. */
static inline cddp_status capture(struct rank *r, CUstream s, void *there, bool known, CUgraph *graph)
{
    struct cdi_coll op = all_reduce(there);
    cddp_status st;
    uint64_t id = 0, ticket;

    op.known = known;
    RANK_CHECK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    st = r->ops->capture_of(r->b, s, &id, &r->err);
    if (st == CDDP_OK)
        st = r->ops->capture_enter(r->b, s, id, &r->err);
    if (st != CDDP_OK)
        return st;
    st = r->ops->enqueue(r->b, &op, &ticket, &r->err);
    if (st == CDDP_OK)
        st = r->ops->stream_wait(r->b, 0, s, &r->err);
    r->ops->capture_leave(r->b);
    (void)cuStreamEndCapture(s, graph);
    return st;
}

/* Ends rank 1, which notes in flag[1] when. */
static inline _Noreturn void rank_dies(struct rank *r)
{
    atomic_store(&r->board->flag[1], rank_now());
    (void)raise(SIGKILL);
    _exit(1);
}

/* The error names rank 1, soon after its death. */
static inline int is_named(struct rank *r, cddp_status st)
{
    int died = atomic_load(&r->board->flag[1]), took = rank_now() - died;

    RANK_CHECK(st == CDDP_E_PEER && strstr(r->err.msg, "rank 1 (") != NULL, "status %d", (int)st);
    RANK_CHECK(died != 0 && took < cdi_within_ms(KNOWN_MS), "%d ms after the death", took);
    return 0;
}

#endif
