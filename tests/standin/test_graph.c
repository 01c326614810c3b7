/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in's graphs: captured work, launched any number of times, including NCCL's operations. */
#include "hygiene.h"
#include "pair.h"
#include "world.h"

#include <pthread.h>

CDI_SUITE(graph);

#define COUNT 64
#define REPLAYS 5

/* y += x on one stream, then again on another one that is forked and joined; joined: the event that is left out. */
static CUgraph capture_both(struct pair *p, bool forks, bool joins)
{
    CUevent back = device_event();
    CUgraph graph;
    CUresult rc;

    CU(cuStreamBeginCapture(p->a, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    if (!forks)
        CU(cuEventRecord(p->event, p->a));
    device_axpy(&p->device, 1, p->x, p->y, COUNT, p->a);
    if (forks)
        CU(cuEventRecord(p->event, p->a));
    CU(cuStreamWaitEvent(p->b, p->event, 0));
    device_axpy(&p->device, 1, p->x, p->y, COUNT, p->b);
    CU(cuEventRecord(back, p->b));
    if (joins)
        CU(cuStreamWaitEvent(p->a, back, 0));
    rc = cuStreamEndCapture(p->a, &graph);
    cr_assert_eq(rc, joins ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    CU(cuEventDestroy(back));
    return graph;
}

Test(graph, each_launch_runs_all_of_it_in_order)
{
    struct pair p;
    CUgraphExec exec;

    pair_open(&p, COUNT);
    exec = device_instantiate(capture_both(&p, true, true));
    for (int i = 0; i < REPLAYS; i++) {
        device_axpy(&p.device, 1, p.x, p.y, COUNT, p.a); /* before it, */
        CU(cuGraphLaunch(exec, p.a));
        device_axpy(&p.device, 1, p.x, p.y, COUNT, p.a); /* and after it */
    }
    CU(cuStreamSynchronize(p.a));
    cr_assert_eq(first(p.y), 2 + 4 * REPLAYS);
    CU(cuGraphLaunch(exec, p.a));
    CU(cuGraphExecDestroy(exec)); /* while it runs */
    CU(cuStreamSynchronize(p.a));
    cr_assert_eq(first(p.y), 4 + 4 * REPLAYS);
    cr_assert_eq(cuGraphLaunch(NULL, p.a), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(standin_faults(), 0);
    pair_close(&p);
}

Test(graph, launches_of_one_graph_on_two_streams_are_ordered)
{
    struct pair p;
    CUgraphExec exec;

    pair_open(&p, COUNT);
    exec = device_instantiate(capture_both(&p, true, true));
    for (int i = 0; i < REPLAYS; i++)
        CU(cuGraphLaunch(exec, i % 2 == 0 ? p.a : p.b));
    CU(cuStreamSynchronize(p.a));
    CU(cuStreamSynchronize(p.b));
    cr_assert_eq(first(p.y), 2 + 2 * REPLAYS);
    cr_assert_eq(standin_faults(), 0);
    CU(cuGraphExecDestroy(exec));
    pair_close(&p);
}

Test(graph, missing_event_is_a_fault)
{
    struct pair p;
    CUgraphExec exec;

    cr_assert_eq(setenv("CDDP_STANDIN_REPORT", "count", 1), 0);
    standin_configure();
    pair_open(&p, COUNT);
    exec = device_instantiate(capture_both(&p, false, true));
    cr_assert_eq(standin_faults(), 0, "nothing has run yet");
    CU(cuGraphLaunch(exec, p.a));
    CU(cuStreamSynchronize(p.a));
    cr_assert_gt(standin_faults(), 0);
    CU(cuGraphExecDestroy(exec));
    pair_close(&p);
}

Test(graph, unjoined_stream_makes_no_graph)
{
    struct pair p;

    pair_open(&p, COUNT);
    cr_assert_null(capture_both(&p, true, false));
    device_axpy(&p.device, 1, p.x, p.y, COUNT, p.b);
    CU(cuStreamSynchronize(p.b));
    cr_assert_eq(first(p.y), 3, "the stream is as it was");
    pair_close(&p);
}

/* ------------------------------------------------------------------------------------------- NCCL's operations ---- */

static int capture_sums(struct rank *r, CUgraphExec *exec)
{
    CU(cuStreamBeginCapture(r->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(settle(r, ncclAllReduce((void *)r->in, (void *)r->in, N, ncclFloat32, ncclSum, r->comm, r->stream)) ==
          ncclSuccess);
    *exec = device_end_capture(r->stream);
    return 0;
}

struct later {
    CUgraphExec exec;
    _Atomic int begun;
};

static void *destroy_later(void *arg)
{
    struct later *l = arg;

    (void)usleep(20000);
    l->begun = 1;
    CU(cuGraphExecDestroy(l->exec));
    return NULL;
}

/* An abort ends a launch that waits for a peer, and returns when the graph is gone. */
static int abort_beside_a_graph(struct rank *r)
{
    struct later later = {.begun = 0};
    pthread_t thread;

    if (open_rank(r, true) != 0 || capture_sums(r, &later.exec) != 0)
        return 1;
    if (r->rank == 0) /* alone */
        CU(cuGraphLaunch(later.exec, r->stream));
    CHECK(pthread_create(&thread, NULL, destroy_later, &later) == 0);
    CHECK(ncclCommAbort(r->comm) == ncclSuccess && later.begun == 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CU(cuStreamSynchronize(r->stream));
    r->closed = true; /* the rest goes with the process */
    return 0;
}

Test(graph, a_communicator_does_not_end_before_its_graphs)
{
    cr_assert_eq(world(2, abort_beside_a_graph), 0);
}
