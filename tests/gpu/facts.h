/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The properties of a GPU that scripts/gpu-check reports before the tests: one JSON object on stdout. Each call may be
 * missing or may fail; then its code replaces its result. facts.c queries the driver, facts_nccl.c NCCL.
 */
#ifndef CDI_TEST_FACTS_H
#define CDI_TEST_FACTS_H

#include <cuda.h>
#include <cudaTypedefs.h>
#include <stdbool.h>
#include <stddef.h>

/* X(function, the version of CUDA of the variant) */
#define FACTS_CUDA(X)                    \
    X(cuInit, 2000)                      \
    X(cuDriverGetVersion, 2020)          \
    X(cuDeviceGetCount, 2000)            \
    X(cuDeviceGet, 2000)                 \
    X(cuDeviceGetName, 2000)             \
    X(cuDeviceGetAttribute, 2000)        \
    X(cuDeviceTotalMem, 3020)            \
    X(cuDevicePrimaryCtxRetain, 7000)    \
    X(cuDevicePrimaryCtxRelease, 11000)  \
    X(cuCtxSetCurrent, 4000)             \
    X(cuCtxPushCurrent, 4000)            \
    X(cuCtxPopCurrent, 4000)             \
    X(cuCtxGetStreamPriorityRange, 5050) \
    X(cuStreamCreateWithPriority, 5050)  \
    X(cuStreamDestroy, 4000)             \
    X(cuStreamSynchronize, 2000)         \
    X(cuStreamWaitEvent, 3020)           \
    X(cuStreamWriteValue32, 11070)       \
    X(cuEventCreate, 2000)               \
    X(cuEventDestroy, 4000)              \
    X(cuEventRecord, 2000)               \
    X(cuEventQuery, 2000)                \
    X(cuMemAlloc, 3020)                  \
    X(cuMemFree, 3020)                   \
    X(cuMemAllocManaged, 6000)           \
    X(cuMemAllocAsync, 11020)            \
    X(cuMemFreeAsync, 11020)             \
    X(cuMemHostAlloc, 2020)              \
    X(cuMemFreeHost, 2000)               \
    X(cuMemsetD8Async, 3020)             \
    X(cuPointerGetAttribute, 4000)       \
    X(cuPointerGetAttributes, 7000)      \
    X(cuLibraryLoadData, 12000)          \
    X(cuLibraryUnload, 12000)            \
    X(cuLibraryGetKernel, 12000)         \
    X(cuKernelGetFunction, 12000)        \
    X(cuLaunchKernel, 4000)

struct facts_cuda {
#define X(function, version) __typeof__(&(function)) p_##function;
    FACTS_CUDA(X)
#undef X
    PFN_cuCtxCreate_v3020 create_context; /* of this form, whatever the header has */
    PFN_cuCtxDestroy_v4000 destroy_context;
};

struct facts {
    struct facts_cuda cuda;
    CUdevice device;
    CUcontext context;
    CUstream stream;
};

double facts_now_us(void);
/* Prints `"name":`, after a comma unless it is the first member of the object. */
void facts_name(const char *name);
void facts_begin(const char *name); /* an object, or the outermost one for NULL */
void facts_end(void);
void facts_int(const char *name, long long value);
void facts_text(const char *name, const char *value);
void facts_us(const char *name, double us);
/* Prints a time, or the code of the call that failed: {"failed":code}. */
void facts_timed(const char *name, int code, double us);
/* Returns the median of n values, which it sorts. */
double facts_median(double *us, int n);

/* Prints the driver's attributes of an address, under this name. */
void facts_pointer(const struct facts *f, const char *name, const void *p);

/* Prints version, start, one-rank collectives, and the results of a non-blocking communicator. */
void facts_nccl(const struct facts *f);

#define FACTS_TIMES 200
#define FACTS_WARM 20

/*
 * Prints "name": the median of FACTS_TIMES calls on the host, in microseconds; after each call `between`, which is not
 * timed.
 */
#define FACTS_MEASURE(name, call, between)                                         \
    do {                                                                           \
        double us_[FACTS_TIMES], from_;                                            \
        int code_ = 0;                                                             \
        for (int i_ = -FACTS_WARM; i_ < FACTS_TIMES && code_ == 0; i_++) {         \
            from_ = facts_now_us();                                                \
            code_ = (int)(call);                                                   \
            us_[i_ < 0 ? 0 : i_] = facts_now_us() - from_;                         \
            between;                                                               \
        }                                                                          \
        facts_timed(name, code_, code_ == 0 ? facts_median(us_, FACTS_TIMES) : 0); \
    } while (0)

#endif
