/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NCCL asks of a graph that is being captured. The stand-in has streams that join a capture and no nodes; a node
 * here is the stream whose work it ends. Ordering between launches of a graph and other work (external events) is left
 * out.
 */
#include "runtime.h"

#include <stdlib.h>

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    return (cudaError_t)cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status);
}

typedef CUresult (*capture_info)(CUstream, CUstreamCaptureStatus *, cuuint64_t *);

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *n)
{
    static _Thread_local cudaGraphNode_t node;
    cuuint64_t number = 0;
    void *fn = NULL;
    CUresult rc = cuGetProcAddress("cuStreamGetCaptureInfo", &fn, 10010, 0, NULL);

    if (rc == CUDA_SUCCESS)
        rc = ((capture_info)fn)(stream, (CUstreamCaptureStatus *)status, &number);
    if (rc != CUDA_SUCCESS)
        return (cudaError_t)rc;
    node = (cudaGraphNode_t)stream;
    if (id != NULL)
        *id = number;
    if (graph != NULL)
        *graph = (cudaGraph_t)stream;
    if (nodes != NULL)
        *nodes = &node;
    if (edges != NULL)
        *edges = NULL;
    if (n != NULL)
        *n = *status == cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes,
                                                const cudaGraphEdgeData *edges, size_t n, unsigned int flags)
{
    cudaError_t rc = cudaSuccess;
    cudaEvent_t done;

    (void)edges, (void)flags;
    if (n > 0 && nodes[0] != NULL && (cudaStream_t)nodes[0] != stream) {
        rc = cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
        if (rc != cudaSuccess)
            return rc;
        rc = cudaEventRecord(done, (cudaStream_t)nodes[0]);
        if (rc == cudaSuccess)
            rc = cudaStreamWaitEvent(stream, done, 0);
        (void)cudaEventDestroy(done);
    } /* otherwise it keeps what it depends on: more order than NCCL asks for */
    standin_graph_joins((CUstream)stream);
    return rc;
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t *node, cudaGraph_t graph, const cudaGraphNode_t *after,
                                        size_t n, cudaEvent_t event)
{
    (void)graph, (void)after, (void)n, (void)event;
    *node = NULL;
    return cudaSuccess;
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t *from, const cudaGraphNode_t *to,
                                     const cudaGraphEdgeData *edges, size_t n)
{
    (void)graph, (void)from, (void)to, (void)edges, (void)n;
    return cudaSuccess;
}

/* One reference, which goes to one graph. */
struct user_object {
    cudaHostFn_t destroy;
    void *data;
};

static void drop_object(void *object)
{
    struct user_object *o = object;

    o->destroy(o->data);
    free(o);
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *data, cudaHostFn_t destroy, unsigned int references,
                                 unsigned int flags)
{
    struct user_object *o = malloc(sizeof *o);

    (void)flags;
    if (o == NULL || references != 1) {
        free(o);
        return cudaErrorNotSupported;
    }
    *o = (struct user_object){destroy, data};
    *object = (cudaUserObject_t)(void *)o;
    return cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned int count,
                                      unsigned int flags)
{
    if (count != 1 || flags != cudaGraphUserObjectMove)
        return cudaErrorNotSupported;
    standin_graph_keeps((CUstream)graph, drop_object, object);
    return cudaSuccess;
}
