/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, contexts, error names, and the table of cuGetProcAddress. */
#include "core.h"

#include "common/gpus.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct CUctx_st contexts[2 * SI_DEVICES]; /* the primary ones, then a second one of each device */
static unsigned n_devices;
static bool initialised;

CUresult si_context_fault(const struct CUctx_st *ctx)
{
    return (CUresult)__atomic_load_n(&ctx->fault, __ATOMIC_ACQUIRE);
}

CUcontext si_current(void)
{
    return si_thread.depth > 0 ? si_thread.stack[si_thread.depth - 1] : NULL;
}

/* Fill contexts[] with those that CUDA_VISIBLE_DEVICES shows. Locked. */
static void choose_devices(void)
{
    struct cdi_gpu all[SI_DEVICES] = {0};
    int shown[SI_DEVICES];

    for (unsigned i = 0; i < si_settings.n_devices; i++)
        (void)snprintf(all[i].uuid, sizeof all[i].uuid, "GPU-5d5d5d5d-5d5d-5d5d-5d5d-5d5d5d5d5d%02x", i);
    /* Not by cdi_env_str: an empty value shows no device, none shows all. */
    n_devices =
        (unsigned)cdi_gpus_visible(getenv("CUDA_VISIBLE_DEVICES"), all, si_settings.n_devices, shown, SI_DEVICES);
    for (unsigned i = 0; i < n_devices; i++) {
        contexts[i].device = i;
        contexts[i].physical = (unsigned)shown[i];
        contexts[SI_DEVICES + i] = contexts[i];
    }
}

static CUresult enter_ready(const char *function, CUdevice dev)
{
    CUresult rc = si_enter(function);

    if (rc != CUDA_SUCCESS)
        return rc;
    if (!__atomic_load_n(&initialised, __ATOMIC_ACQUIRE))
        return CUDA_ERROR_NOT_INITIALIZED;
    return dev < 0 || (unsigned)dev >= n_devices ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

SI_EXPORT CUresult cuInit(unsigned int Flags)
{
    CUresult rc = si_enter("cuInit");

    if (rc != CUDA_SUCCESS)
        return rc;
    if (Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    si_lock();
    if (!initialised) {
        (void)pthread_atfork(NULL, NULL, si_forked);
        choose_devices();
    }
    if (n_devices > 0)
        __atomic_store_n(&initialised, true, __ATOMIC_RELEASE);
    si_unlock();
    return n_devices > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

SI_EXPORT CUresult cuDriverGetVersion(int *driverVersion)
{
    CUresult rc = si_enter("cuDriverGetVersion");

    if (rc == CUDA_SUCCESS)
        *driverVersion = si_settings.driver;
    return rc;
}

SI_EXPORT CUresult cuDeviceGetCount(int *count)
{
    CUresult rc = si_enter("cuDeviceGetCount");

    if (rc == CUDA_SUCCESS && !__atomic_load_n(&initialised, __ATOMIC_ACQUIRE))
        rc = CUDA_ERROR_NOT_INITIALIZED;
    if (rc == CUDA_SUCCESS)
        *count = (int)n_devices;
    return rc;
}

SI_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult rc = enter_ready("cuDeviceGet", ordinal);

    if (rc == CUDA_SUCCESS)
        *device = ordinal;
    return rc;
}

SI_EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    CUresult rc = enter_ready("cuDeviceGetName", dev);

    if (rc == CUDA_SUCCESS && len > 0)
        (void)snprintf(name, (size_t)len, "Stand-in device");
    return rc;
}

SI_EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    CUresult rc = enter_ready("cuDeviceGetUuid", dev);

    for (size_t i = 0; rc == CUDA_SUCCESS && i < sizeof uuid->bytes; i++)
        uuid->bytes[i] = (char)(i == 15 ? contexts[dev].physical : 0x5d);
    return rc;
}

SI_EXPORT CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    CUresult rc = enter_ready("cuDeviceGetPCIBusId", dev);

    if (rc == CUDA_SUCCESS && len < 13)
        rc = CUDA_ERROR_INVALID_VALUE;
    if (rc == CUDA_SUCCESS)
        (void)snprintf(pciBusId, (size_t)len, "0000:%02X:00.0", contexts[dev].physical / si_settings.instances + 1);
    return rc;
}

static const struct {
    CUdevice_attribute which;
    int value;
} attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, INT32_MAX},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 * 1024},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
    {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
    {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
};

SI_EXPORT CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    CUresult rc = enter_ready("cuDeviceGetAttribute", dev);

    if (rc != CUDA_SUCCESS)
        return rc;
    if (attrib == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) {
        *pi = (int)(contexts[dev].physical / si_settings.instances) + 1;
        return CUDA_SUCCESS;
    }
    if (attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ||
        attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR) {
        *pi = attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? si_settings.capability / 10
                                                                     : si_settings.capability % 10;
        return CUDA_SUCCESS;
    }
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        if (attributes[i].which != attrib)
            continue;
        *pi = attributes[i].value;
        return CUDA_SUCCESS;
    }
    si_refused("cuDeviceGetAttribute: attribute %d is not in the table", (int)attrib);
    return CUDA_ERROR_INVALID_VALUE;
}

SI_EXPORT CUresult cuDeviceTotalMem(size_t *bytes, CUdevice dev)
{
    CUresult rc = enter_ready("cuDeviceTotalMem", dev);

    if (rc == CUDA_SUCCESS)
        *bytes = si_settings.device_memory;
    return rc;
}

/* ------------------------------------------------------------------------------------------------------- contexts --
 */

SI_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
    CUresult rc = enter_ready("cuDevicePrimaryCtxRetain", dev);

    if (rc != CUDA_SUCCESS)
        return rc;
    si_lock();
    contexts[dev].retained++;
    si_unlock();
    *pctx = &contexts[dev];
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
    CUresult rc = enter_ready("cuDevicePrimaryCtxRelease", dev);

    if (rc != CUDA_SUCCESS)
        return rc;
    si_lock();
    if (contexts[dev].retained == 0)
        rc = CUDA_ERROR_INVALID_CONTEXT;
    else if (--contexts[dev].retained == 0)
        si_streams_end_locked(&contexts[dev]);
    si_unlock();
    return rc;
}

static bool is_context(CUcontext ctx)
{
    return ctx >= contexts && ctx < contexts + 2 * SI_DEVICES && (unsigned)(ctx - contexts) % SI_DEVICES < n_devices;
}

CUcontext standin_second_context(int device)
{
    return &contexts[SI_DEVICES + device];
}

SI_EXPORT CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    CUresult rc = si_enter("cuCtxGetCurrent");

    if (rc == CUDA_SUCCESS)
        *pctx = si_current();
    return rc;
}

SI_EXPORT CUresult cuCtxSetCurrent(CUcontext ctx)
{
    CUresult rc = si_enter("cuCtxSetCurrent");

    if (rc != CUDA_SUCCESS)
        return rc;
    if (ctx != NULL && !is_context(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (si_thread.depth > 0)
        si_thread.depth--;
    if (ctx != NULL)
        si_thread.stack[si_thread.depth++] = ctx;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuCtxPushCurrent(CUcontext ctx)
{
    CUresult rc = si_enter("cuCtxPushCurrent");

    if (rc != CUDA_SUCCESS)
        return rc;
    if (!is_context(ctx))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (si_thread.depth == SI_CONTEXT_DEPTH) {
        si_refused("cuCtxPushCurrent: more than %d contexts on the stack of one thread: is a pop missing?",
                   SI_CONTEXT_DEPTH);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    si_thread.stack[si_thread.depth++] = ctx;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuCtxPopCurrent(CUcontext *pctx)
{
    CUresult rc = si_enter("cuCtxPopCurrent");

    if (rc != CUDA_SUCCESS)
        return rc;
    if (si_thread.depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    si_thread.depth--;
    if (pctx != NULL)
        *pctx = si_thread.stack[si_thread.depth];
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    CUresult rc = si_enter("cuCtxGetDevice");
    CUcontext ctx = si_current();

    if (rc != CUDA_SUCCESS)
        return rc;
    if (ctx == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device = (CUdevice)ctx->device;
    return CUDA_SUCCESS;
}

/* --------------------------------------------------------------------------------------------------------- errors --
 */

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult error_text(CUresult error, bool name, const char **out)
{
    *out = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (errors[i].code == error)
            *out = name ? errors[i].name : errors[i].text;
    return *out != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SI_EXPORT CUresult cuGetErrorName(CUresult error, const char **pStr)
{
    return error_text(error, true, pStr);
}

SI_EXPORT CUresult cuGetErrorString(CUresult error, const char **pStr)
{
    return error_text(error, false, pStr);
}

/* -------------------------------------------------------------------------------------------------- entry points -- */

/* clang-format off */
#define ENTRY(name, since) {#name, (void *)(uintptr_t)(name), since}
/* Each under its name without _v2, and with the version of CUDA that introduced this form. */
static const struct {
    const char *name;
    void *fn;
    int since;
} entries[] = {
    ENTRY(cuInit, 2000), ENTRY(cuDriverGetVersion, 2020), ENTRY(cuDeviceGetCount, 2000), ENTRY(cuDeviceGet, 2000),
    ENTRY(cuDeviceGetName, 2000), ENTRY(cuDeviceGetUuid, 11040), ENTRY(cuDeviceGetPCIBusId, 4010),
    ENTRY(cuDeviceGetAttribute, 2000), ENTRY(cuDeviceTotalMem, 3020), ENTRY(cuDevicePrimaryCtxRetain, 7000),
    ENTRY(cuDevicePrimaryCtxRelease, 11000), ENTRY(cuCtxGetCurrent, 4000), ENTRY(cuCtxSetCurrent, 4000),
    ENTRY(cuCtxPushCurrent, 4000), ENTRY(cuCtxPopCurrent, 4000), ENTRY(cuCtxGetDevice, 2000),
    ENTRY(cuCtxSynchronize, 2000), ENTRY(cuCtxGetStreamPriorityRange, 5050), ENTRY(cuStreamCreateWithPriority, 5050),
    ENTRY(cuStreamDestroy, 4000), ENTRY(cuStreamQuery, 2000), ENTRY(cuStreamSynchronize, 2000),
    ENTRY(cuStreamWaitEvent, 3020), ENTRY(cuStreamIsCapturing, 10000), ENTRY(cuStreamBeginCapture, 10010),
    ENTRY(cuStreamEndCapture, 10000), ENTRY(cuThreadExchangeStreamCaptureMode, 10010), ENTRY(cuGraphDestroy, 10000),
    {"cuStreamGetCaptureInfo", (void *)(uintptr_t)(si_stream_capture_info), 10010},
    ENTRY(cuGraphInstantiateWithFlags, 11040), ENTRY(cuGraphLaunch, 10000), ENTRY(cuGraphExecDestroy, 10000),
    ENTRY(cuStreamWriteValue32, 11070), ENTRY(cuEventCreate, 2000),
    ENTRY(cuEventDestroy, 4000), ENTRY(cuEventRecord, 2000), ENTRY(cuEventQuery, 2000),
    ENTRY(cuEventSynchronize, 2000), ENTRY(cuEventElapsedTime, 2000), ENTRY(cuMemAlloc, 3020), ENTRY(cuMemFree, 3020),
    ENTRY(cuMemHostAlloc, 2020), ENTRY(cuMemFreeHost, 2000),
    ENTRY(cuMemcpyHtoD, 3020), ENTRY(cuMemcpyDtoH, 3020), ENTRY(cuMemcpyHtoDAsync, 3020),
    ENTRY(cuMemcpyDtoHAsync, 3020), ENTRY(cuMemcpyDtoDAsync, 3020), ENTRY(cuMemsetD8Async, 3020),
    ENTRY(cuMemsetD32Async, 3020), ENTRY(cuMemGetInfo, 3020), ENTRY(cuPointerGetAttribute, 4000),
    ENTRY(cuPointerGetAttributes, 7000), ENTRY(cuMemAllocManaged, 6000),
    ENTRY(cuMemAllocAsync, 11020), ENTRY(cuMemFreeAsync, 11020),
    ENTRY(cuLibraryLoadData, 12000), ENTRY(cuLibraryUnload, 12000), ENTRY(cuLibraryGetKernel, 12000),
    ENTRY(cuKernelGetFunction, 12000), ENTRY(cuFuncLoad, 12040), ENTRY(cuLaunchKernel, 4000), ENTRY(cuLaunchHostFunc, 10000),
    ENTRY(cuGetErrorName, 6000), ENTRY(cuGetErrorString, 6000), ENTRY(cuGetProcAddress, 12000),
};
/* clang-format on */

SI_EXPORT CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *symbolStatus)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int failure = si_enter(symbol != NULL ? "cuGetProcAddress" : "") != CUDA_SUCCESS;

    if (symbol == NULL || pfn == NULL || failure || (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    *pfn = NULL;
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (strcmp(entries[i].name, symbol) != 0)
            continue;
        status =
            cudaVersion >= entries[i].since ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        if (status == CU_GET_PROC_ADDRESS_SUCCESS)
            *pfn = entries[i].fn;
    }
    if (symbolStatus != NULL)
        *symbolStatus = status;
    return status == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
