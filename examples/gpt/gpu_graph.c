/* SPDX-License-Identifier: Apache-2.0 */
/* A step as a CUDA graph: one call begins it, another one ends it, and later calls launch it. */
#include "gpu.h"

bool gpu_graph_begin(struct gpu *g)
{
    gpu_graph_drop(g);
    return GPU_DO(g, cuStreamBeginCapture, g->stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

bool gpu_graph_end(struct gpu *g, bool keep)
{
    CUgraph graph = NULL;
    bool good;

    if (!keep) { /* a failed capture must end, too; its error message is kept already */
        if (g->cu.p_cuStreamEndCapture(g->stream, &graph) == CUDA_SUCCESS)
            (void)g->cu.p_cuGraphDestroy(graph);
        return false;
    }
    if (!GPU_DO(g, cuStreamEndCapture, g->stream, &graph))
        return false;
    good = GPU_DO(g, cuGraphInstantiateWithFlags, &g->graph, graph, 0);
    return GPU_DO(g, cuGraphDestroy, graph) && good;
}

bool gpu_graph_launch(struct gpu *g)
{
    return GPU_DO(g, cuGraphLaunch, g->graph, g->stream);
}

void gpu_graph_drop(struct gpu *g)
{
    if (g->graph != NULL)
        (void)GPU_DO(g, cuGraphExecDestroy, g->graph);
    g->graph = NULL;
}
