/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver and NCCL, resolved by name at run time: two tables of function pointers, with the types of the real
 * headers. libcuda provides each function in the version below; newer functions of NCCL are NULL if the library does
 * not have them. CDDP_CUDA_LIBRARY and CDDP_NCCL_LIBRARY name other files than libcuda.so.1 and libnccl.so.2.
 */
#ifndef CDI_NCCL_LIBRARY_H
#define CDI_NCCL_LIBRARY_H

#include "worker/backend/loader.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <nccl.h>

#if NCCL_VERSION_CODE < 22703
#error "nccl.h of NCCL 2.27.3 or newer is needed to build the module; it then runs with NCCL 2.19 and newer"
#endif

#define CDI_CUDA_DRIVER_FLOOR 12000 /* cuLibrary*: kernels without the runtime library */
#define CDI_NCCL_FLOOR 21900

/*
 * The first version whose non-blocking communicators start a thread for each launch (group.cc, ncclGroupEndInternal).
 */
#define CDI_NCCL_THREAD_PER_LAUNCH 22300

/*
 * The first version whose symmetric kernels check the abort flag where they wait for peers (nccl_device/impl,
 * lsa_barrier__funcs.h, testAbort). In older versions, a rank whose peer has died in such a kernel can only be killed.
 */
#define CDI_NCCL_WINDOW_ABORTS 22907

/* By its number, as nccl.h has it since 2.30.3: it is newer than the oldest header that builds. */
#define CDI_NCCL_TIMEOUT 8

/* X(member, function of the driver, its version) */
#define CDI_CUDA_MAP(X)                                       \
    X(init, cuInit, 2000)                                     \
    X(driver_version, cuDriverGetVersion, 2020)               \
    X(device_count, cuDeviceGetCount, 2000)                   \
    X(device_get, cuDeviceGet, 2000)                          \
    X(device_name, cuDeviceGetName, 2000)                     \
    X(device_pci, cuDeviceGetPCIBusId, 4010)                  \
    X(device_uuid, cuDeviceGetUuid, 11040)                    \
    X(device_attribute, cuDeviceGetAttribute, 2000)           \
    X(device_memory, cuDeviceTotalMem, 3020)                  \
    X(context_retain, cuDevicePrimaryCtxRetain, 7000)         \
    X(context_release, cuDevicePrimaryCtxRelease, 11000)      \
    X(context_set, cuCtxSetCurrent, 4000)                     \
    X(context_current, cuCtxGetCurrent, 4000)                 \
    X(context_push, cuCtxPushCurrent, 4000)                   \
    X(context_pop, cuCtxPopCurrent, 4000)                     \
    X(stream_priorities, cuCtxGetStreamPriorityRange, 5050)   \
    X(stream_create, cuStreamCreateWithPriority, 5050)        \
    X(stream_destroy, cuStreamDestroy, 4000)                  \
    X(stream_wait, cuStreamWaitEvent, 3020)                   \
    X(stream_synchronize, cuStreamSynchronize, 2000)          \
    X(stream_query, cuStreamQuery, 2000)                      \
    X(stream_write, cuStreamWriteValue32, 11070)              \
    X(stream_capturing, cuStreamIsCapturing, 10000)           \
    X(stream_capture, cuStreamGetCaptureInfo, 10010)          \
    X(capture_mode, cuThreadExchangeStreamCaptureMode, 10010) \
    X(event_create, cuEventCreate, 2000)                      \
    X(event_destroy, cuEventDestroy, 4000)                    \
    X(event_record, cuEventRecord, 2000)                      \
    X(event_query, cuEventQuery, 2000)                        \
    X(event_synchronize, cuEventSynchronize, 2000)            \
    X(event_elapsed, cuEventElapsedTime, 2000)                \
    X(memory_alloc, cuMemAlloc, 3020)                         \
    X(memory_free, cuMemFree, 3020)                           \
    X(memory_info, cuMemGetInfo, 3020)                        \
    X(memory_alloc_async, cuMemAllocAsync, 11020)             \
    X(memory_free_async, cuMemFreeAsync, 11020)               \
    X(pinned_alloc, cuMemHostAlloc, 2020)                     \
    X(pinned_free, cuMemFreeHost, 2000)                       \
    X(to_device, cuMemcpyHtoDAsync, 3020)                     \
    X(to_host, cuMemcpyDtoHAsync, 3020)                       \
    X(on_device, cuMemcpyDtoDAsync, 3020)                     \
    X(set_bytes, cuMemsetD8Async, 3020)                       \
    X(pointer_attributes, cuPointerGetAttributes, 7000)       \
    X(library_load, cuLibraryLoadData, 12000)                 \
    X(library_unload, cuLibraryUnload, 12000)                 \
    X(library_kernel, cuLibraryGetKernel, 12000)              \
    X(kernel_function, cuKernelGetFunction, 12000)            \
    X(launch, cuLaunchKernel, 4000)                           \
    X(error_name, cuGetErrorName, 6000)                       \
    X(error_text, cuGetErrorString, 6000)

struct cdi_cuda {
#define X(member, function, version) PFN_##function##_v##version member; /* NOLINT(bugprone-macro-parentheses) */
    CDI_CUDA_MAP(X)
#undef X
    CUresult (*function_load)(CUfunction f); /* cuFuncLoad of CUDA 12.4; NULL: an older driver */
};

#if NCCL_VERSION_CODE < 22809
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags); /* a library may be newer than the header */
#endif

/* X(member, function of NCCL, whether it is required) */
#define CDI_NCCL_MAP(X)                                    \
    X(version, ncclGetVersion, true)                       \
    X(unique_id, ncclGetUniqueId, true)                    \
    X(comm_init, ncclCommInitRankConfig, true)             \
    X(comm_init_scalable, ncclCommInitRankScalable, false) \
    X(comm_error, ncclCommGetAsyncError, true)             \
    X(comm_abort, ncclCommAbort, true)                     \
    X(comm_revoke, ncclCommRevoke, false)                  \
    X(comm_finalize, ncclCommFinalize, true)               \
    X(comm_destroy, ncclCommDestroy, true)                 \
    X(comm_split, ncclCommSplit, true)                     \
    X(comm_count, ncclCommCount, true)                     \
    X(comm_rank, ncclCommUserRank, true)                   \
    X(memory_alloc, ncclMemAlloc, true)                    \
    X(memory_free, ncclMemFree, true)                      \
    X(comm_register, ncclCommRegister, true)               \
    X(comm_deregister, ncclCommDeregister, true)           \
    X(window_register, ncclCommWindowRegister, false)      \
    X(window_deregister, ncclCommWindowDeregister, false)  \
    X(all_reduce, ncclAllReduce, true)                     \
    X(broadcast, ncclBroadcast, true)                      \
    X(reduce, ncclReduce, true)                            \
    X(all_gather, ncclAllGather, true)                     \
    X(reduce_scatter, ncclReduceScatter, true)             \
    X(send, ncclSend, true)                                \
    X(recv, ncclRecv, true)                                \
    X(group_start, ncclGroupStart, true)                   \
    X(group_end, ncclGroupEnd, true)                       \
    X(error_text, ncclGetErrorString, true)                \
    X(last_error, ncclGetLastError, true)

struct cdi_nccl {
#define X(member, function, needed) __typeof__ (&(function))(member);
    CDI_NCCL_MAP(X)
#undef X
    int code; /* of its version: 23007 */
};

extern const struct cdi_host *cdi_host; /* libcddp's functions */
extern struct cdi_cuda cdi_cuda;
extern struct cdi_nccl cdi_nccl;

/*
 * Opens both libraries, once, and checks whether there is a device. CDDP_E_NOT_FOUND: no driver or no device;
 * CDDP_E_VERSION: the driver or NCCL is too old; CDDP_E_SYSTEM: NCCL is missing, or the driver does not work. Each
 * error message has the cause.
 */
cddp_status cdi_libraries_open(const struct cdi_host *host, struct cdi_error *err);

/* Returns CDDP_OK, or CDDP_E_SYSTEM (CDDP_E_NOMEM) with "what: the driver's error". */
cddp_status cdi_cuda_check(CUresult r, const char *what, struct cdi_error *err);
/* Returns the driver version that the kernels' image needs, such as "580": it depends on the nvcc that built them. */
const char *cdi_driver_needed(void);
/*
 * Does cdi_cuda_check for the loading of the image; if the driver is too old, the error message has the version that is
 * needed.
 */
cddp_status cdi_image_check(CUresult r, struct cdi_error *err);
/* Writes a version such as "2.30.7". */
void cdi_nccl_version_text(int code, char *buf, size_t cap);

#endif
