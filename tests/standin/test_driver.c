/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's half of the stand-in. Run with CDDP_STANDIN_REPORT=count: faults are counted and checked. */
#include "gate_kernel.h"
#include "hygiene.h"
#include "pair.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

CDI_SUITE(driver);

#define N 1000

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
