/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captured graphs, and their launches. Each stream of the capture becomes a separate stream that the program does not
 * see, so operations that no event orders run concurrently, and are reported if they use the same memory.
 *
 * "Each launch is ordered behind both any previous work in this stream and any previous launches of this graph" (CUDA
 * Driver API, cuGraphLaunch), and later work on the stream is ordered after all of it. An executable graph outlives the
 * graph from which it was made, and running work outlives both.
 */
#include "stream.h"

#include <stdlib.h>

#define MAGIC_GRAPH 0x5e4e7003u
#define MAGIC_EXEC 0x5e4e7004u

struct CUgraph_st {
    uint32_t magic;
    struct si_graph *graph;
};

struct CUgraphExec_st {
    uint32_t magic;
    struct si_graph *graph;
    struct CUstream_st *lane[];
};

/* An operation of a graph during one launch. */
struct replayed {
    struct si_graph *graph;
    struct si_op *op;
};

void si_nodes_destroy(struct si_node *node)
{
    while (node != NULL) {
        struct si_node *next = node->next;

        si_op_destroy(node->op);
        free(node);
        node = next;
    }
}

static void unref(struct si_graph *g)
{
    bool last;

    si_edge_from(g); /* this thread's reads come before the last one's free(): the lock does not declare that */
    si_lock();
    last = --g->refs == 0;
    si_unlock();
    if (!last)
        return;
    si_edge_to(g);
    si_nodes_destroy(g->first);
    free(g);
}

CUgraph si_graph_create(const struct si_graph *of)
{
    CUgraph handle = calloc(1, sizeof *handle);

    if (handle == NULL)
        return NULL;
    handle->magic = MAGIC_GRAPH;
    handle->graph = malloc(sizeof *handle->graph);
    if (handle->graph == NULL) {
        free(handle);
        return NULL;
    }
    *handle->graph = *of;
    handle->graph->refs = 1;
    return handle;
}

/* ------------------------------------------------------------------------------------------------------- launches --
 */

static void run_replayed(struct si_op *op)
{
    const struct replayed *r = op->data;

    r->op->stream = op->stream;
    r->op->number = op->number;
    r->op->run(r->op);
}

static void drop_replayed(struct si_op *op)
{
    unref(((struct replayed *)op->data)->graph);
}

static void push_operation(struct si_graph *g, struct si_node *node, struct CUstream_st *s)
{
    struct si_op *op = si_op_create(node->op->name, run_replayed, sizeof(struct replayed));
    struct standin_ranges r = {.n = 0};

    if (op == NULL) {
        si_fault("out of memory for a graph's launch");
        return;
    }
    *(struct replayed *)op->data = (struct replayed){.graph = g, .op = node->op};
    op->drop = drop_replayed;
    op->always = node->op->always;
    g->refs++;
    for (size_t i = 0; i < node->n_ranges; i++)
        si_range_add(&r, node->range[i].at, node->range[i].bytes, node->range[i].write);
    if (node->op->before != NULL)
        node->op->before(node->op, s);
    si_push_for_locked(s, op, &r, &s->clock);
    if (node->op->after != NULL)
        node->op->after(node->op, s);
}

/* Adds all lanes in their present state; each lane of `of` for which one stream waits. */
static void order_behind_lanes(struct CUstream_st *s, CUgraphExec of)
{
    for (unsigned i = 0; i < of->graph->n_lanes; i++) {
        struct si_stop *end = of->lane[i] != s ? si_stop_create_locked(of->lane[i]) : NULL;

        if (end != NULL)
            si_order_locked(s, end);
        si_stop_release_locked(end);
    }
}

static void launch_locked(CUgraphExec exec, struct CUstream_st *s, struct si_stop **point)
{
    struct si_graph *g = exec->graph;
    struct si_stop *begin;

    si_stream_begin_locked(s);
    order_behind_lanes(exec->lane[0], exec); /* the launch before */
    begin = si_stop_create_locked(s);
    if (begin != NULL)
        si_order_locked(exec->lane[0], begin);
    si_stop_release_locked(begin);
    for (struct si_node *node = g->first; node != NULL; node = node->next) {
        struct CUstream_st *lane = exec->lane[node->lane];

        if (node->kind == SI_NODE_OPERATION)
            push_operation(g, node, lane);
        else if (node->kind == SI_NODE_RECORD)
            point[node->point] = si_stop_create_locked(lane);
        else if (point[node->point] != NULL)
            si_order_locked(lane, point[node->point]);
    }
    for (uint64_t i = 0; i < g->n_points; i++)
        si_stop_release_locked(point[i]);
    order_behind_lanes(s, exec);
}

SI_EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
    CUresult rc = si_enter_alloc("cuGraphInstantiateWithFlags");
    bool whole = true;
    CUgraphExec e;

    (void)flags;
    if (rc != CUDA_SUCCESS)
        return rc;
    if (phGraphExec == NULL || hGraph == NULL || hGraph->magic != MAGIC_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    e = calloc(1, sizeof *e + hGraph->graph->n_lanes * sizeof e->lane[0]);
    if (e == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->magic = MAGIC_EXEC;
    e->graph = hGraph->graph;
    si_lock();
    e->graph->refs++;
    for (unsigned i = 0; i < e->graph->n_lanes; i++) {
        e->lane[i] = si_stream_hidden_locked(e->graph->ctx);
        whole = whole && e->lane[i] != NULL;
    }
    si_unlock();
    if (!whole)
        si_fault("too many streams and graphs");
    *phGraphExec = e;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuGraphLaunch(CUgraphExec hGraph, CUstream hStream)
{
    CUresult rc = si_enter("cuGraphLaunch");
    struct si_stop **point;
    struct CUstream_st *s;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (hGraph == NULL || hGraph->magic != MAGIC_EXEC)
        return CUDA_ERROR_INVALID_VALUE;
    point = calloc(hGraph->graph->n_points + 1, sizeof(struct si_stop *));
    if (point == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    si_lock();
    rc = si_stream_here_locked(hStream, "cuGraphLaunch", &s);
    if (rc == CUDA_SUCCESS && s->capture != NULL) {
        si_refused("cuGraphLaunch: the stand-in has no graphs within graphs");
        rc = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (rc == CUDA_SUCCESS)
        rc = si_context_fault(s->ctx);
    if (rc == CUDA_SUCCESS)
        launch_locked(hGraph, s, point);
    si_unlock();
    free(point);
    return rc;
}

/* -------------------------------------------------------------------------------------------------------- the end --
 */

SI_EXPORT CUresult cuGraphExecDestroy(CUgraphExec hGraphExec)
{
    CUresult rc = si_enter("cuGraphExecDestroy");

    if (rc != CUDA_SUCCESS)
        return rc;
    if (hGraphExec == NULL || hGraphExec->magic != MAGIC_EXEC)
        return CUDA_ERROR_INVALID_VALUE;
    hGraphExec->magic = 0;
    si_lock();
    for (unsigned i = 0; i < hGraphExec->graph->n_lanes; i++)
        if (hGraphExec->lane[i] != NULL)
            si_stream_end_locked(hGraphExec->lane[i]);
    si_unlock();
    unref(hGraphExec->graph);
    free(hGraphExec);
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuGraphDestroy(CUgraph hGraph)
{
    CUresult rc = si_enter("cuGraphDestroy");

    if (rc != CUDA_SUCCESS)
        return rc;
    if (hGraph == NULL || hGraph->magic != MAGIC_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    hGraph->magic = 0;
    unref(hGraph->graph);
    free(hGraph);
    return CUDA_SUCCESS;
}
