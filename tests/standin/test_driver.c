/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's half of the stand-in. Run with CDDP_STANDIN_REPORT=count: faults are counted and checked. */
#include "gate_kernel.h"
#include "hygiene.h"
#include "pair.h"
#include "worker/backend/nccl/kernels/kernel.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

CDI_SUITE(driver);

#define N 1000

Test(driver, a_kernel_runs_over_the_whole_grid)
{
    struct pair p;
    float y[N];

    pair_open(&p, N);
    device_axpy(&p.device, 3, p.x, p.y, N, p.a);
    CU(cuMemcpyDtoHAsync(y, p.y, sizeof y, p.a));
    for (size_t i = 0; i < N; i++)
        cr_assert_eq(y[i], 5, "element %zu is %f", i, (double)y[i]);
    cr_assert_eq(standin_faults(), 0);
    pair_close(&p);
}

Test(driver, read_without_event_wait_is_a_fault)
{
    struct pair p;

    pair_open(&p, N);
    device_axpy(&p.device, 1, p.x, p.y, N, p.a);
    device_axpy(&p.device, 1, p.y, p.x, N, p.b);
    cr_assert_geq(standin_faults(), 1);
    cr_assert(strstr(standin_last_fault(), "unordered access: 'axpy'") != NULL, "%s", standin_last_fault());
    CU(cuCtxSynchronize());
    pair_close(&p);
}

Test(driver, unordered_write_after_read_is_a_fault)
{
    struct pair p;

    pair_open(&p, N);
    device_axpy(&p.device, 1, p.x, p.y, N, p.a);
    CU(cuMemsetD32Async(p.x, 0, N, p.b));
    cr_assert_eq(standin_faults(), 1);
    CU(cuCtxSynchronize());
    pair_close(&p);
}

Test(driver, an_event_wait_orders_two_streams)
{
    struct pair p;

    pair_open(&p, N);
    for (int i = 0; i < 20; i++) {
        device_axpy(&p.device, 1, p.x, p.y, N, p.a);
        CU(cuEventRecord(p.event, p.a));
        CU(cuStreamWaitEvent(p.b, p.event, 0));
        device_axpy(&p.device, 1, p.x, p.y, N, p.b);
        CU(cuEventRecord(p.event, p.b));
        CU(cuStreamWaitEvent(p.a, p.event, 0));
    }
    CU(cuStreamSynchronize(p.a));
    cr_assert_eq(first(p.y), 42);
    cr_assert_eq(standin_faults(), 0);
    pair_close(&p);
}

Test(driver, two_parts_of_one_buffer_need_no_order)
{
    struct pair p;

    pair_open(&p, N);
    device_axpy(&p.device, 1, p.x, p.y, N / 2, p.a);
    device_axpy(&p.device, 1, p.x + N / 2 * sizeof(float), p.y + N / 2 * sizeof(float), N / 2, p.b);
    cr_assert_eq(standin_faults(), 0);
    CU(cuCtxSynchronize());
    pair_close(&p);
}

Test(driver, wait_covers_the_last_recording_only)
{
    struct pair p;

    pair_open(&p, N);
    CU(cuStreamWaitEvent(p.b, p.event, 0)); /* never recorded: nothing to wait for */
    CU(cuEventRecord(p.event, p.a));
    CU(cuStreamWaitEvent(p.b, p.event, 0));
    device_axpy(&p.device, 1, p.x, p.y, N, p.a);
    CU(cuEventRecord(p.event, p.a)); /* is too late for the wait above */
    device_axpy(&p.device, 1, p.x, p.y, N, p.b);
    cr_assert_eq(standin_faults(), 1);
    CU(cuCtxSynchronize());
    pair_close(&p);
}

static void *query(void *arg)
{
    struct pair *p = arg;

    CU(cuCtxSetCurrent(p->device.ctx));
    while (cuEventQuery(p->event) == CUDA_ERROR_NOT_READY) {
    }
    return NULL;
}

Test(driver, another_threads_query_does_not_hide_a_missing_wait)
{
    struct pair p;
    pthread_t thread;

    pair_open(&p, N);
    device_axpy(&p.device, 1, p.x, p.y, N, p.a);
    CU(cuEventRecord(p.event, p.a));
    cr_assert_eq(pthread_create(&thread, NULL, query, &p), 0);
    cr_assert_eq(pthread_join(thread, NULL), 0);
    device_axpy(&p.device, 1, p.x, p.y, N, p.b);
    cr_assert_eq(standin_faults(), 1);
    (void)query(&p);
    device_axpy(&p.device, 1, p.x, p.y, N, p.a); /* for its own thread a query counts */
    CU(cuCtxSynchronize());
    pair_close(&p);
}

Test(driver, host_wait_orders_later_work)
{
    struct pair p;

    pair_open(&p, N);
    device_axpy(&p.device, 1, p.x, p.y, N, p.a);
    CU(cuEventRecord(p.event, p.a));
    CU(cuEventSynchronize(p.event));
    device_axpy(&p.device, 1, p.x, p.y, N, p.b);
    CU(cuStreamSynchronize(p.b));
    device_axpy(&p.device, 1, p.x, p.y, N, p.a);
    CU(cuStreamSynchronize(p.a));
    cr_assert_eq(first(p.y), 5);
    cr_assert_eq(standin_faults(), 0);
    pair_close(&p);
}

Test(driver, the_legacy_stream_and_blocking_ones_wait_for_each_other)
{
    struct pair p;
    CUstream blocking;

    pair_open(&p, N);
    CU(cuStreamCreateWithPriority(&blocking, CU_STREAM_DEFAULT, 0));
    for (int i = 0; i < 10; i++) {
        device_axpy(&p.device, 1, p.x, p.y, N, NULL);
        device_axpy(&p.device, 1, p.x, p.y, N, blocking);
    }
    cr_assert_eq(first(p.y), 22);
    cr_assert_eq(standin_faults(), 0);
    device_axpy(&p.device, 1, p.x, p.y, N, p.a); /* not a blocking one; the copy above was waited for */
    device_axpy(&p.device, 1, p.x, p.y, N, NULL);
    cr_assert_eq(standin_faults(), 1);
    CU(cuStreamDestroy(blocking));
    CU(cuCtxSynchronize());
    pair_close(&p);
}

Test(driver, timing_and_queries_of_events)
{
    struct pair p;
    CUevent begin, end;
    float ms = -1;

    pair_open(&p, N);
    CU(cuEventCreate(&begin, 0));
    CU(cuEventCreate(&end, 0));
    cr_assert_eq(cuEventElapsedTime(&ms, begin, end), CUDA_ERROR_INVALID_HANDLE);
    CU(cuEventRecord(begin, p.a));
    device_axpy(&p.device, 1, p.x, p.y, N, p.a);
    CU(cuEventRecord(end, p.a));
    CU(cuEventSynchronize(end));
    CU(cuEventElapsedTime(&ms, begin, end));
    cr_assert(ms >= 0 && ms < 10000);
    cr_assert_eq(cuEventElapsedTime(&ms, begin, p.event), CUDA_ERROR_INVALID_HANDLE, "it has no timing");
    cr_assert_eq(cuEventQuery(end), CUDA_SUCCESS);
    CU(cuEventDestroy(begin));
    CU(cuEventDestroy(end));
    pair_close(&p);
}

Test(driver, times_of_events_are_not_ready_before_the_events)
{
    CUevent begin, end;
    struct pair p;
    CUkernel gate;
    float ms;

    pair_open(&p, N);
    gate = device_kernel(&p.device, &gate_kernel);
    CU(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    CU(cuEventCreate(&end, CU_EVENT_DEFAULT));
    CU(cuEventRecord(begin, p.a));
    CU(cuEventSynchronize(begin));
    device_run(gate, p.a, NULL);
    CU(cuEventRecord(end, p.a));
    cr_assert_eq(cuEventElapsedTime(&ms, begin, end), CUDA_ERROR_NOT_READY);
    atomic_store(&gate_is_open, true);
    CU(cuEventSynchronize(end));
    CU(cuEventElapsedTime(&ms, begin, end));
    cr_assert_geq(ms, 0);
    CU(cuEventDestroy(begin));
    CU(cuEventDestroy(end));
    pair_close(&p);
}

Test(driver, copies_are_checked)
{
    struct pair p;
    float host[N];
    void *pinned;

    pair_open(&p, N);
    CU(cuMemHostAlloc(&pinned, sizeof host, 0));
    cr_assert_eq(cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)host, host, 4, p.a), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cuMemcpyDtoHAsync((void *)p.y, p.x, 4, p.a), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cuMemcpyDtoDAsync(p.x, p.y, N * sizeof(float) + 1, p.a), CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cuMemcpyHtoDAsync(p.x, host, 4, (CUstream)(uintptr_t)0x1234560), CUDA_ERROR_INVALID_HANDLE);
    for (size_t i = 0; i < N; i++)
        host[i] = 7;
    CU(cuMemcpyHtoDAsync(p.x, host, sizeof host, p.a));
    host[0] = 8; /* pageable memory was read before the call returned */
    CU(cuMemcpyDtoHAsync(pinned, p.x, sizeof host, p.a));
    CU(cuStreamSynchronize(p.a));
    cr_assert_eq(*(float *)pinned, 7);
    CU(cuMemFreeHost(pinned));
    cr_assert_eq(standin_faults(), 0);
    pair_close(&p);
}

Test(driver, fresh_memory_is_full_of_nans)
{
    struct pair p;
    CUdeviceptr fresh;
    size_t before, after, total;

    pair_open(&p, N);
    CU(cuMemGetInfo(&before, &total));
    CU(cuMemAlloc(&fresh, 4096));
    CU(cuMemGetInfo(&after, &total));
    cr_assert_eq(before - after, 4096);
    cr_assert(isnan(first(fresh)));
    cr_assert_eq(cuMemFree(fresh + 4), CUDA_ERROR_INVALID_VALUE);
    CU(cuMemFree(fresh));
    cr_assert_eq(cuMemFree(fresh), CUDA_ERROR_INVALID_VALUE, "freed before");
    cr_assert_eq(cuMemAlloc(&fresh, total + 1), CUDA_ERROR_OUT_OF_MEMORY);
    pair_close(&p);
}

Test(driver, returns_many_attributes_of_any_memory_at_once)
{
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    unsigned type = 9, managed = 9;
    int ordinal = 9;
    void *answers[] = {&type, &managed, &ordinal};
    CUdeviceptr shared;
    struct pair p;
    void *pinned;

    pair_open(&p, N);
    cr_assert_eq(cuPointerGetAttribute(&type, which[0], (CUdeviceptr)(uintptr_t)&p), CUDA_ERROR_INVALID_VALUE);
    CU(cuPointerGetAttributes(3, which, answers, (CUdeviceptr)(uintptr_t)&p));
    cr_assert(type == 0 && managed == 0 && ordinal == CU_DEVICE_INVALID, "memory that CUDA does not know");
    CU(cuPointerGetAttributes(3, which, answers, p.x + 4));
    cr_assert(type == CU_MEMORYTYPE_DEVICE && managed == 0 && ordinal == 0);
    CU(cuMemHostAlloc(&pinned, 64, 0));
    CU(cuPointerGetAttributes(3, which, answers, (CUdeviceptr)(uintptr_t)pinned));
    cr_assert(type == CU_MEMORYTYPE_HOST && managed == 0 && ordinal == 0);
    CU(cuMemFreeHost(pinned));
    CU(cuMemAllocManaged(&shared, 64, CU_MEM_ATTACH_GLOBAL));
    CU(cuPointerGetAttributes(3, which, answers, shared));
    cr_assert(type == CU_MEMORYTYPE_DEVICE && managed == 1 && ordinal == 0);
    CU(cuMemsetD32Async(shared, 7, 16, p.a));
    CU(cuStreamSynchronize(p.a));
    cr_assert_eq(*(const int *)shared, 7, "the host reads it, too"); // NOLINT(performance-no-int-to-ptr)
    CU(cuMemFree(shared));
    pair_close(&p);
}

Test(driver, the_host_cannot_use_device_memory, .signal = SIGSEGV)
{
    struct pair p;

    pair_open(&p, N);
    (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer would turn it into an exit */
    cr_assert_eq(*(volatile float *)p.x, 1);
}

static void call_cuda(void *arg)
{
    *(CUresult *)arg = cuEventQuery(NULL);
}

Test(driver, host_function_runs_in_order_without_cuda)
{
    struct pair p;
    CUresult seen = CUDA_SUCCESS;

    pair_open(&p, N);
    CU(cuLaunchHostFunc(p.a, call_cuda, &seen));
    CU(cuStreamSynchronize(p.a));
    cr_assert_eq(seen, CUDA_ERROR_NOT_PERMITTED);
    pair_close(&p);
}

Test(driver, rejects_work_for_a_stream_of_another_device)
{
    struct pair p;
    CUcontext other;

    pair_open(&p, N);
    CU(cuDevicePrimaryCtxRetain(&other, 1));
    CU(cuCtxPushCurrent(other));
    cr_assert_eq(cuMemsetD8Async(p.x, 0, 4, p.a), CUDA_ERROR_INVALID_HANDLE);
    CU(cuCtxPopCurrent(NULL));
    CU(cuMemsetD8Async(p.x, 0, 4, p.a));
    CU(cuDevicePrimaryCtxRelease(1));
    pair_close(&p);
}

/* Drivers before CUDA 12.1 take 4096 bytes of arguments. */
Test(driver, too_many_bytes_of_arguments_fail)
{
    static struct standin_kernel large;
    static char bytes[4097];
    void *args[] = {bytes};
    CUfunction function;
    CUkernel kernel;
    struct pair p;

    large = gate_kernel;
    large.name = "large";
    large.n_args = 1;
    large.arg_size[0] = sizeof bytes;
    standin_kernel_register(&large);
    atomic_store(&gate_is_open, true);
    pair_open(&p, N);
    CU(cuLibraryGetKernel(&kernel, p.device.library, "large"));
    CU(cuKernelGetFunction(&function, kernel));
    cr_assert_eq(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, p.a, args, NULL), CUDA_ERROR_INVALID_VALUE);
    large.arg_size[0] = 4096;
    CU(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, p.a, args, NULL));
    pair_close(&p);
}

Test(driver, bad_launch_fails_and_out_of_bounds_is_a_fault)
{
    struct pair p;
    float a = 1;
    size_t n = N;

    pair_open(&p, N);
    void *args[] = {&a, &p.x, &p.y, &n};
    cr_assert_eq(cuLaunchKernel((CUfunction)p.device.axpy, 0, 1, 1, 64, 1, 1, 0, p.a, args, NULL),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(cuLaunchKernel((CUfunction)p.device.axpy, 1, 1, 1, 2048, 1, 1, 0, p.a, args, NULL),
                 CUDA_ERROR_INVALID_VALUE);
    cr_assert_eq(standin_faults(), 0);
    n = N + 1; /* the grid has no thread for it, so that nothing is really touched */
    CU(cuLaunchKernel((CUfunction)p.device.axpy, 1, 1, 1, 64, 1, 1, 0, p.a, args, NULL));
    cr_assert_geq(standin_faults(), 1);
    cr_assert(strstr(standin_last_fault(), "not within one piece of memory") != NULL, "%s", standin_last_fault());
    CU(cuStreamSynchronize(p.a));
    pair_close(&p);
}

Test(driver, the_projects_kernels_have_their_twins)
{
    struct pair p;
    struct cdi_scale_args args = {.x = NULL, .count = N, .factor = 0.5, .dtype = CDDP_FLOAT32};
    void *params[] = {&args};
    CUkernel kernel;

    pair_open(&p, N);
    args.x = (void *)p.y;
    CU(cuLibraryGetKernel(&kernel, p.device.library, "cdi_scale"));
    CU(cuLaunchKernel((CUfunction)kernel, 4, 1, 1, CDI_KERNEL_THREADS, 1, 1, 0, p.a, params, NULL));
    CU(cuStreamSynchronize(p.a));
    cr_assert_eq(first(p.y), 1);
    cr_assert_eq(cuLibraryGetKernel(&kernel, p.device.library, "no_such"), CUDA_ERROR_NOT_FOUND);
    cr_assert_eq(standin_faults(), 0);
    pair_close(&p);
}

Test(driver, functions_are_found_by_name_and_version)
{
    CUdriverProcAddressQueryResult status;
    void *fn;

    cr_assert_eq(cuGetProcAddress("cuMemAlloc", &fn, 12000, 0, &status), CUDA_SUCCESS);
    cr_assert_eq((uintptr_t)fn, (uintptr_t)cuMemAlloc);
    cr_assert_eq(cuGetProcAddress("cuLibraryLoadData", &fn, 11000, 0, &status), CUDA_ERROR_NOT_FOUND);
    cr_assert_eq(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    cr_assert_eq(cuGetProcAddress("cuNoSuch", &fn, 12000, 0, &status), CUDA_ERROR_NOT_FOUND);
    cr_assert_eq(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    cr_assert_null(fn);
}

Test(driver, lists_the_visible_devices)
{
    CUuuid uuid;
    char pci[16];
    int n;

    cr_assert_eq(setenv("CUDA_VISIBLE_DEVICES", "3,1,9,0", 1), 0);
    cr_assert_eq(cuDeviceGetCount(&n), CUDA_ERROR_NOT_INITIALIZED);
    CU(cuInit(0));
    CU(cuDeviceGetCount(&n));
    cr_assert_eq(n, 2, "there is no device 9");
    CU(cuDeviceGetUuid(&uuid, 0));
    cr_assert_eq(uuid.bytes[15], 3);
    CU(cuDeviceGetPCIBusId(pci, sizeof pci, 1));
    cr_assert_str_eq(pci, "0000:02:00.0");
    cr_assert_eq(cuDeviceGetName(pci, sizeof pci, 2), CUDA_ERROR_INVALID_DEVICE);
}

Test(driver, fails_without_a_context)
{
    CUdeviceptr p;
    CUstream s;

    CU(cuInit(0));
    cr_assert_eq(cuMemAlloc(&p, 4), CUDA_ERROR_INVALID_CONTEXT);
    cr_assert_eq(cuStreamCreateWithPriority(&s, 0, 0), CUDA_ERROR_INVALID_CONTEXT);
}
