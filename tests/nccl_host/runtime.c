/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA runtime's devices, streams, events and launches, by the stand-in's driver. */
#include "runtime.h"

#include <stdio.h>
#include <string.h>

static _Thread_local int chosen; /* cudaSetDevice, while the thread has no context */

static cudaError_t result(CUresult rc)
{
    return (cudaError_t)rc; /* the same numbers */
}

void host_context(void)
{
    CUcontext now = NULL;

    (void)cuInit(0);
    if (cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == NULL && cuDevicePrimaryCtxRetain(&now, chosen) == CUDA_SUCCESS)
        (void)cuCtxSetCurrent(now);
}

/* ------------------------------------------------------------------------------------------------------------- devices
 */

cudaError_t cudaSetDevice(int device)
{
    CUcontext ctx;
    CUdevice now;
    CUresult rc = cuInit(0);

    if (rc == CUDA_SUCCESS && cuCtxGetDevice(&now) == CUDA_SUCCESS && now == device)
        return cudaSuccess;
    if (rc == CUDA_SUCCESS)
        rc = cuDevicePrimaryCtxRetain(&ctx, device);
    if (rc == CUDA_SUCCESS)
        rc = cuCtxSetCurrent(ctx);
    chosen = device;
    return result(rc);
}

cudaError_t cudaGetDevice(int *device)
{
    if (cuCtxGetDevice(device) != CUDA_SUCCESS)
        *device = chosen;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    (void)cuInit(0);
    return result(cuDeviceGetCount(count));
}

cudaError_t cudaDriverGetVersion(int *version)
{
    return result(cuDriverGetVersion(version));
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* What NCCL asks and the stand-in does not tell: a GPU without the hardware's own paths to networks and other hosts. */
static const struct {
    CUdevice_attribute which;
    int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, 0},
    {CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED, 0},
    {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 0},
};

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device)
{
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        if ((int)attributes[i].which != (int)which)
            continue;
        *value = attributes[i].value;
        return cudaSuccess;
    }
    return result(cuDeviceGetAttribute(value, (CUdevice_attribute)which, device));
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    size_t bytes = 0;

    (void)memset(p, 0, sizeof *p);
    (void)snprintf(p->name, sizeof p->name, "Stand-in device");
    (void)cuDeviceGetUuid((CUuuid *)&p->uuid, device);
    (void)cuDeviceTotalMem(&bytes, device);
    p->totalGlobalMem = bytes;
    p->multiProcessorCount = 132;
    p->sharedMemPerBlockOptin = 232448;
    p->unifiedAddressing = 1;
    (void)cudaDeviceGetAttribute(&p->major, cudaDevAttrComputeCapabilityMajor, device);
    (void)cudaDeviceGetAttribute(&p->minor, cudaDevAttrComputeCapabilityMinor, device);
    return result(cuDeviceGetAttribute(&p->pciBusID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device));
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device)
{
    return result(cuDeviceGetPCIBusId(out, bytes, device));
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = device != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    (void)peer, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit which, size_t value)
{
    (void)which, (void)value;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    host_context();
    return result(cuCtxSynchronize());
}

const char *cudaGetErrorString(cudaError_t code)
{
    const char *text = NULL;

    return cuGetErrorString((CUresult)code, &text) == CUDA_SUCCESS && text != NULL ? text : "unknown error";
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

cudaError_t cudaPeekAtLastError(void)
{
    return cudaSuccess;
}

/* --------------------------------------------------------------------------------------------------- streams and
 * events */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    host_context();
    return result(cuStreamCreateWithPriority(stream, flags, 0));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
    host_context();
    return result(cuStreamCreateWithPriority(stream, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return result(cuStreamDestroy(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    return result(cuStreamSynchronize(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return result(cuStreamQuery(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    /* A wait for work outside of a graph: see graph.c. */
    return flags == cudaEventWaitExternal ? cudaSuccess : result(cuStreamWaitEvent(stream, event, flags));
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id)
{
    *id = (unsigned long long)(size_t)stream;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    host_context();
    return result(cuEventCreate(event, flags & CU_EVENT_DISABLE_TIMING));
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return result(cuEventDestroy(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return result(cuEventRecord(event, stream));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return result(cuEventQuery(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    return result(cuEventSynchronize(event));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    return result(cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}

/* ------------------------------------------------------------------------------------------------------------ launches
 */

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *kernel)
{
    (void)kernel;
    (void)memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->binaryVersion = a->ptxVersion = 90;
    a->numRegs = 96;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute which, int value)
{
    (void)kernel, (void)which, (void)value;
    return cudaSuccess;
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *kernel)
{
    *function = (cudaFunction_t)(size_t)kernel;
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data)
{
    return result(cuLaunchHostFunc(stream, fn, data));
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **fn, unsigned int version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *status)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;

    (void)version, (void)flags;
    *fn = host_driver_function(name);
    if (*fn == NULL)
        (void)cuGetProcAddress(name, fn, CUDART_VERSION, 0, &found);
    if (status != NULL)
        *status = *fn != NULL ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return *fn != NULL ? cudaSuccess : cudaErrorSymbolNotFound;
}

cudaError_t cudaGetDriverEntryPoint(const char *name, void **fn, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status)
{
    return cudaGetDriverEntryPointByVersion(name, fn, CUDART_VERSION, flags, status);
}
