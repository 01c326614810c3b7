/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's part of the facts, and the JSON; for the purpose see facts.h. Exit status 77: there is no GPU. */
#include "facts.h"

#include "worker/backend/nccl/kernels/kernel.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NO_GPU 77
#define PINNED_BYTES ((size_t)1 << 20)
#define SMALL 4096 /* bytes of the queried memory: managed memory has no other allocation of this size */

/* ------------------------------------------------------------------------------------------------------- JSON ---- */

static bool comma;

double facts_now_us(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec * 1e-3;
}

void facts_name(const char *name)
{
    printf("%s\"%s\":", comma ? "," : "", name);
    comma = true;
}

void facts_begin(const char *name)
{
    if (name != NULL)
        facts_name(name);
    printf("{");
    comma = false;
}

void facts_end(void)
{
    printf("}");
    comma = true;
}

void facts_int(const char *name, long long value)
{
    facts_name(name);
    printf("%lld", value);
}

void facts_text(const char *name, const char *value)
{
    facts_name(name);
    printf("\"");
    for (; *value != '\0'; value++)
        if ((unsigned char)*value >= ' ' && *value != '"' && *value != '\\')
            printf("%c", *value);
    printf("\"");
}

void facts_us(const char *name, double us)
{
    facts_name(name);
    printf("%.3f", us);
}

void facts_timed(const char *name, int code, double us)
{
    if (code == 0) {
        facts_us(name, us);
        return;
    }
    facts_begin(name);
    facts_int("failed", code);
    facts_end();
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double facts_median(double *us, int n)
{
    qsort(us, (size_t)n, sizeof *us, ascending);
    return us[n / 2];
}

/* --------------------------------------------------------------------------------------------------- the start ---- */

static void no_gpu(const char *what, const char *why)
{
    (void)fprintf(stderr, "facts: %s: %s\n", what, why);
    exit(NO_GPU);
}

/* Functions that the driver does not have are NULL. */
static void load(struct facts_cuda *cuda)
{
    const char *path = getenv("CDDP_CUDA_LIBRARY");
    void *library, *symbol;
    __typeof__(&cuGetProcAddress) get;

    path = path != NULL && path[0] != '\0' ? path : "libcuda.so.1";
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    symbol = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (symbol == NULL)
        no_gpu(path, dlerror());
    memcpy(&get, &symbol, sizeof get);
#define X(function, version)                                                                                   \
    symbol = NULL;                                                                                             \
    if (get(#function, &symbol, version, CU_GET_PROC_ADDRESS_DEFAULT, NULL) == CUDA_SUCCESS && symbol != NULL) \
        memcpy(&cuda->p_##function, &symbol, sizeof symbol);
    FACTS_CUDA(X)
#undef X
    if (get("cuCtxCreate", &symbol, 3020, CU_GET_PROC_ADDRESS_DEFAULT, NULL) == CUDA_SUCCESS)
        memcpy(&cuda->create_context, &symbol, sizeof symbol);
    if (get("cuCtxDestroy", &symbol, 4000, CU_GET_PROC_ADDRESS_DEFAULT, NULL) == CUDA_SUCCESS)
        memcpy(&cuda->destroy_context, &symbol, sizeof symbol);
}

/* Returns whether the functions that the rest needs exist. */
static bool usable(const struct facts_cuda *c)
{
    return c->p_cuInit != NULL && c->p_cuDeviceGetCount != NULL && c->p_cuDeviceGet != NULL &&
           c->p_cuDevicePrimaryCtxRetain != NULL && c->p_cuCtxSetCurrent != NULL && c->p_cuEventCreate != NULL &&
           c->p_cuStreamCreateWithPriority != NULL && c->p_cuStreamSynchronize != NULL && c->p_cuMemAlloc != NULL &&
           c->p_cuMemHostAlloc != NULL && c->p_cuDeviceGetAttribute != NULL && c->p_cuMemFree != NULL &&
           c->p_cuMemFreeHost != NULL;
}

/* Missing functions are named: they are the first clue if the library rejects a driver. */
static void tell_missing(const struct facts_cuda *c)
{
    const char *before = "";

    facts_name("driver_lacks");
    printf("[");
#define X(function, version)                   \
    if (c->p_##function == NULL) {             \
        printf("%s\"%s\"", before, #function); \
        before = ",";                          \
    }
    FACTS_CUDA(X)
#undef X
    printf("]");
}

static void start(struct facts *f)
{
    const struct facts_cuda *c = &f->cuda;
    double from = facts_now_us();
    CUresult r = c->p_cuInit(0);
    int n = 0;

    if (r != CUDA_SUCCESS)
        no_gpu("cuInit", r == CUDA_ERROR_NO_DEVICE ? "no device" : "it failed");
    facts_us("cuInit_us", facts_now_us() - from);
    if (c->p_cuDeviceGetCount(&n) != CUDA_SUCCESS || n == 0 || c->p_cuDeviceGet(&f->device, 0) != CUDA_SUCCESS)
        no_gpu("cuDeviceGetCount", "no device");
    facts_int("devices", n);
    if (c->p_cuDriverGetVersion != NULL && c->p_cuDriverGetVersion(&n) == CUDA_SUCCESS)
        facts_int("driver_cuda", n);
    from = facts_now_us();
    r = c->p_cuDevicePrimaryCtxRetain(&f->context, f->device);
    if (r == CUDA_SUCCESS)
        r = c->p_cuCtxSetCurrent(f->context);
    facts_timed("context_us", (int)r, facts_now_us() - from);
    if (r == CUDA_SUCCESS)
        r = c->p_cuStreamCreateWithPriority(&f->stream, CU_STREAM_NON_BLOCKING, 0);
    if (r != CUDA_SUCCESS) {
        facts_end();
        printf("\n");
        (void)fprintf(stderr, "facts: there is no context to go on with (CUDA error %d)\n", (int)r);
        exit(1);
    }
}

/* -------------------------------------------------------------------------------------------------- the device ---- */

/* By number: older headers lack some of the names. */
#define ATTRIBUTES(X)                                    \
    X(compute_capability_major, 75)                      \
    X(compute_capability_minor, 76)                      \
    X(multiprocessor_count, 16)                          \
    X(compute_mode, 20)                                  \
    X(integrated, 18)                                    \
    X(async_engine_count, 40)                            \
    X(compute_preemption_supported, 90)                  \
    X(virtual_memory_management_supported, 102)          \
    X(multicast_supported, 132)                          \
    X(memory_pools_supported, 115)                       \
    X(gpu_direct_rdma_supported, 116)                    \
    X(dma_buf_supported, 124)                            \
    X(handle_type_posix_file_descriptor_supported, 103)  \
    X(handle_type_fabric_supported, 128)                 \
    X(managed_memory, 83)                                \
    X(concurrent_managed_access, 89)                     \
    X(pageable_memory_access, 88)                        \
    X(pageable_memory_access_uses_host_page_tables, 100) \
    X(can_use_64_bit_stream_mem_ops, 122)                \
    X(stream_priorities_supported, 78)

static void tell_device(const struct facts *f)
{
    const struct facts_cuda *c = &f->cuda;
    char name[96] = "";
    size_t bytes = 0;
    int value = 0, least = 0, greatest = 0;

    facts_begin("device");
    if (c->p_cuDeviceGetName != NULL && c->p_cuDeviceGetName(name, (int)sizeof name - 1, f->device) == CUDA_SUCCESS)
        facts_text("name", name);
    if (c->p_cuDeviceTotalMem != NULL && c->p_cuDeviceTotalMem(&bytes, f->device) == CUDA_SUCCESS)
        facts_int("memory_bytes", (long long)bytes);
    if (c->p_cuCtxGetStreamPriorityRange != NULL && c->p_cuCtxGetStreamPriorityRange(&least, &greatest) == CUDA_SUCCESS)
        facts_int("greatest_stream_priority", greatest);
#define X(attribute, number)                                                                        \
    if (c->p_cuDeviceGetAttribute(&value, (CUdevice_attribute)(number), f->device) == CUDA_SUCCESS) \
        facts_int(#attribute, value);
    ATTRIBUTES(X)
#undef X
    facts_end();
}

/* ------------------------------------------------------------------------------------------------- addresses ---- */

void facts_pointer(const struct facts *f, const char *name, const void *p)
{
    const struct facts_cuda *c = &f->cuda;
    const CUdeviceptr at = (CUdeviceptr)(uintptr_t)p;
    unsigned kind = 0, all_kind = 0, managed = 0;
    int ordinal = -2;
    CUcontext context = NULL;
    CUdeviceptr here = 0;
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_CONTEXT},
                        reach[] = {CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void *values[] = {&all_kind, &managed, &ordinal, &context}, *reached[] = {&here};

    facts_begin(name);
    if (c->p_cuPointerGetAttribute != NULL) {
        facts_int("one_code", c->p_cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at));
        facts_int("one_type", kind);
    }
    if (c->p_cuPointerGetAttributes != NULL) {
        facts_int("all_code", c->p_cuPointerGetAttributes(4, which, values, at));
        facts_int("all_type", all_kind);
        facts_int("managed", managed);
        facts_int("ordinal", ordinal);
        facts_text("context", context == NULL ? "none" : context == f->context ? "the primary one" : "another");
        facts_int("reach_code", c->p_cuPointerGetAttributes(1, reach, reached, at));
        facts_int("reached", here != 0);
    }
    facts_end();
}

/* Memory of a context that is not the primary one: does the driver report that it is out of reach? */
static void tell_second_context(const struct facts *f)
{
    const struct facts_cuda *c = &f->cuda;
    CUcontext second = NULL, was;
    CUdeviceptr theirs = 0;

    if (c->create_context == NULL || c->destroy_context == NULL || c->p_cuCtxPopCurrent == NULL ||
        c->create_context(&second, 0, f->device) != CUDA_SUCCESS)
        return;
    if (c->p_cuMemAlloc(&theirs, SMALL) != CUDA_SUCCESS)
        theirs = 0;
    (void)c->p_cuCtxPopCurrent(&was);
    if (theirs != 0)
        facts_pointer(f, "of_a_second_context", (void *)(uintptr_t)theirs);
    (void)c->destroy_context(second);
}

static void tell_pointers(const struct facts *f)
{
    const struct facts_cuda *c = &f->cuda;
    void *plain = malloc(SMALL), *pinned = NULL;
    CUdeviceptr device = 0, managed = 0;
    int on_stack = 0;

    facts_begin("pointers");
    facts_pointer(f, "malloc", plain);
    facts_pointer(f, "stack", &on_stack);
    facts_pointer(f, "null", NULL);
    if (c->p_cuMemHostAlloc(&pinned, SMALL, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS) {
        facts_pointer(f, "pinned", pinned);
        (void)c->p_cuMemFreeHost(pinned);
    }
    if (c->p_cuMemAlloc(&device, SMALL) == CUDA_SUCCESS) {
        facts_pointer(f, "device", (void *)(uintptr_t)device);
        facts_pointer(f, "inside_device", (void *)(uintptr_t)(device + SMALL / 2));
        (void)c->p_cuMemFree(device);
    }
    if (c->p_cuMemAllocManaged != NULL &&
        c->p_cuMemAllocManaged(&managed, SMALL, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS) {
        facts_pointer(f, "managed", (void *)(uintptr_t)managed);
        (void)c->p_cuMemFree(managed);
    }
    if (c->p_cuMemAllocAsync != NULL && c->p_cuMemFreeAsync != NULL &&
        c->p_cuMemAllocAsync(&device, SMALL, f->stream) == CUDA_SUCCESS) {
        facts_pointer(f, "of_a_pool", (void *)(uintptr_t)device);
        (void)c->p_cuMemFreeAsync(device, f->stream);
    }
    tell_second_context(f);
    facts_end();
    free(plain);
}

/* ----------------------------------------------------------------------------------------------------- times ---- */

static void measure_launch(const struct facts *f, CUdeviceptr memory)
{
    const struct facts_cuda *c = &f->cuda;
    struct cdi_launch l;
    void *params[] = {&l.args};
    CUlibrary image;
    CUkernel kernel;
    CUfunction function;
    double from = facts_now_us();
    CUresult r;

    if (c->p_cuLibraryLoadData == NULL || c->p_cuLibraryGetKernel == NULL || c->p_cuKernelGetFunction == NULL ||
        c->p_cuLibraryUnload == NULL || c->p_cuLaunchKernel == NULL)
        return;
    r = c->p_cuLibraryLoadData(&image, cdi_kernel_image, NULL, NULL, 0, NULL, NULL, 0);
    facts_timed("cuLibraryLoadData", (int)r, facts_now_us() - from);
    if (r != CUDA_SUCCESS)
        return;
    if (c->p_cuLibraryGetKernel(&kernel, image, cdi_kernel_name(CDI_KERNEL_SCALE)) == CUDA_SUCCESS &&
        c->p_cuKernelGetFunction(&function, kernel) == CUDA_SUCCESS &&
        cdi_launch_scale(&l, 1, (void *)(uintptr_t)memory, SMALL / sizeof(float), CDDP_FLOAT32, 1, NULL) == CDDP_OK)
        FACTS_MEASURE("cuLaunchKernel",
                      c->p_cuLaunchKernel(function, l.grid, 1, 1, CDI_KERNEL_THREADS, 1, 1, 0, f->stream, params, NULL),
                      (void)c->p_cuStreamSynchronize(f->stream));
    (void)c->p_cuLibraryUnload(image);
}

static void measure_events(const struct facts *f)
{
    const struct facts_cuda *c = &f->cuda;
    CUevent event = NULL;

    if (c->p_cuEventRecord == NULL || c->p_cuEventQuery == NULL || c->p_cuStreamWaitEvent == NULL ||
        c->p_cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
        return;
    FACTS_MEASURE("cuEventRecord", c->p_cuEventRecord(event, f->stream), (void)0);
    FACTS_MEASURE("cuStreamWaitEvent", c->p_cuStreamWaitEvent(f->stream, event, 0), (void)0);
    (void)c->p_cuStreamSynchronize(f->stream);
    FACTS_MEASURE("cuEventQuery", c->p_cuEventQuery(event), (void)0);
    if (c->p_cuEventDestroy != NULL)
        (void)c->p_cuEventDestroy(event);
}

static void measure_pinned(const struct facts *f)
{
    const struct facts_cuda *c = &f->cuda;
    double get[8], give[8], from;
    const int n = (int)(sizeof get / sizeof get[0]);
    CUresult r = CUDA_SUCCESS;
    void *p = NULL;

    for (int i = 0; i < n && r == CUDA_SUCCESS; i++) {
        from = facts_now_us();
        r = c->p_cuMemHostAlloc(&p, PINNED_BYTES, CU_MEMHOSTALLOC_PORTABLE);
        get[i] = facts_now_us() - from;
        from = facts_now_us();
        if (r == CUDA_SUCCESS)
            (void)c->p_cuMemFreeHost(p);
        give[i] = facts_now_us() - from;
    }
    facts_timed("cuMemHostAlloc_1MiB", (int)r, r == CUDA_SUCCESS ? facts_median(get, n) : 0);
    facts_timed("cuMemFreeHost_1MiB", (int)r, r == CUDA_SUCCESS ? facts_median(give, n) : 0);
}

static void measure(const struct facts *f)
{
    const struct facts_cuda *c = &f->cuda;
    CUdeviceptr memory = 0;
    CUcontext old;
    void *word = NULL;

    facts_begin("host_us");
    measure_events(f);
    if (c->p_cuCtxPushCurrent != NULL && c->p_cuCtxPopCurrent != NULL)
        FACTS_MEASURE("cuCtxPushPop", (c->p_cuCtxPushCurrent(f->context) || c->p_cuCtxPopCurrent(&old)), (void)0);
    if (c->p_cuStreamWriteValue32 != NULL &&
        c->p_cuMemHostAlloc(&word, SMALL, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS) {
        FACTS_MEASURE("cuStreamWriteValue32", c->p_cuStreamWriteValue32(f->stream, (CUdeviceptr)(uintptr_t)word, 1, 0),
                      (void)c->p_cuStreamSynchronize(f->stream));
        (void)c->p_cuMemFreeHost(word);
    }
    if (c->p_cuMemAlloc(&memory, SMALL) == CUDA_SUCCESS) {
        if (c->p_cuMemsetD8Async != NULL)
            FACTS_MEASURE("cuMemsetD8Async", c->p_cuMemsetD8Async(memory, 0, SMALL, f->stream),
                          (void)c->p_cuStreamSynchronize(f->stream));
        measure_launch(f, memory);
        (void)c->p_cuMemFree(memory);
    }
    measure_pinned(f);
    facts_end();
}

int main(void)
{
    struct facts f = {0};

    (void)setvbuf(stdout, NULL, _IONBF, 0); /* keeps the output, if a call does not return */
    facts_begin(NULL);
    load(&f.cuda);
    tell_missing(&f.cuda);
    if (!usable(&f.cuda))
        no_gpu("libcuda", "it lacks functions of CUDA 7");
    start(&f);
    tell_device(&f);
    tell_pointers(&f);
    measure(&f);
    facts_nccl(&f);
    facts_end();
    printf("\n");
    (void)f.cuda.p_cuStreamSynchronize(f.stream);
    if (f.cuda.p_cuStreamDestroy != NULL)
        (void)f.cuda.p_cuStreamDestroy(f.stream);
    if (f.cuda.p_cuDevicePrimaryCtxRelease != NULL)
        (void)f.cuda.p_cuDevicePrimaryCtxRelease(f.device);
    return 0;
}
