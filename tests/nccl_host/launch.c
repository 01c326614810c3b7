/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's kernels, copies and fills as kernels of the stand-in, so that it orders them and checks the memory they use.
 */
#include "runtime.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------- the kernels' bodies */

/* The parameters as NCCL's types want them aligned. */
struct block {
    char bytes[HOST_ARGS] __attribute__((aligned(16)));
};

static void run_nccl(const struct standin_thread *t, void *const *args)
{
    struct block b;

    (void)t;
    (void)memcpy(b.bytes, args[1], HOST_ARGS - sizeof(void *));
    host_kernel_run(*(const void *const *)args[0], b.bytes);
}

static void ranges_nccl(const struct standin_thread *grid, void *const *args, struct standin_ranges *r)
{
    struct block b;

    (void)grid;
    (void)memcpy(b.bytes, args[1], HOST_ARGS - sizeof(void *));
    host_kernel_ranges(*(const void *const *)args[0], b.bytes, r);
}

static bool is_program_memory(const void *at)
{
    return standin_host(at) != at;
}

struct copy {
    void *to;
    const void *from;
    void *staged; /* a copy of pageable memory, which the caller may change at once */
    size_t bytes;
    int value;
};

static void run_copy(const struct standin_thread *t, void *const *args)
{
    const struct copy *c = args[0];

    (void)t;
    (void)memmove(standin_host(c->to), c->staged != NULL ? c->staged : standin_host(c->from), c->bytes);
}

static void run_fill(const struct standin_thread *t, void *const *args)
{
    const struct copy *c = args[0];

    (void)t;
    (void)memset(standin_host(c->to), c->value, c->bytes);
}

static void ranges_copy(const struct standin_thread *grid, void *const *args, struct standin_ranges *r)
{
    const struct copy *c = args[0];

    (void)grid;
    if (is_program_memory(c->to))
        standin_writes(r, c->to, c->bytes);
    if (c->from != NULL && is_program_memory(c->from))
        standin_reads(r, c->from, c->bytes);
}

/* The driver takes 4096 bytes of arguments: the kernel's handle stands in the last of them, which NCCL leaves free. */
static const struct standin_kernel twins[] = {
    {.name = "nccl_host_kernel",
     .n_args = 2,
     .arg_size = {sizeof(void *), HOST_ARGS - sizeof(void *)},
     .block = run_nccl,
     .ranges = ranges_nccl},
    {.name = "nccl_host_copy",
     .n_args = 1,
     .arg_size = {sizeof(struct copy)},
     .block = run_copy,
     .ranges = ranges_copy},
    {.name = "nccl_host_fill",
     .n_args = 1,
     .arg_size = {sizeof(struct copy)},
     .block = run_fill,
     .ranges = ranges_copy},
};
enum { TWIN_KERNEL, TWIN_COPY, TWIN_FILL, TWINS };

static void register_twins(void)
{
    for (int i = 0; i < TWINS; i++)
        standin_kernel_register(&twins[i]);
}

static CUresult launch(int which, void **args, CUstream stream)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, register_twins);
    host_context();
    return cuLaunchKernel((CUfunction)(uintptr_t)&twins[which], 1, 1, 1, 1, 1, 1, 0, stream, args, NULL);
}

CUresult host_launch(const void *kernel, const void *args, CUstream stream)
{
    void *both[] = {(void *)&kernel, (void *)args};

    return launch(TWIN_KERNEL, both, stream);
}

CUresult host_copy(void *to, const void *from, size_t bytes, CUstream stream)
{
    struct copy c = {.to = to, .from = from, .bytes = bytes};
    void *args[] = {&c};
    CUresult rc;

    if (bytes == 0)
        return CUDA_SUCCESS;
    if (!is_program_memory(from) && !host_owns(from)) {
        c.staged = malloc(bytes);
        if (c.staged == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        (void)memcpy(c.staged, from, bytes);
    }
    rc = launch(TWIN_COPY, args, stream);
    if (c.staged != NULL && (rc != CUDA_SUCCESS || cuLaunchHostFunc(stream, free, c.staged) != CUDA_SUCCESS))
        free(c.staged);
    return rc;
}

CUresult host_fill(void *to, int value, size_t bytes, CUstream stream)
{
    struct copy c = {.to = to, .bytes = bytes, .value = value};
    void *args[] = {&c};

    return bytes == 0 ? CUDA_SUCCESS : launch(TWIN_FILL, args, stream);
}

/* ------------------------------------------------------------------------- functions of the driver that NCCL launches
 * by */

/* NCCL passes one block of parameters (CU_LAUNCH_PARAM_BUFFER_POINTER); its size is the fourth word. */
static CUresult launch_block(CUfunction f, CUstream stream, void **extra)
{
    struct block b = {.bytes = {0}};
    size_t bytes = extra != NULL && extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER ? *(const size_t *)extra[3] : HOST_ARGS;

    if (bytes > HOST_ARGS - sizeof(void *))
        return CUDA_ERROR_INVALID_VALUE;
    (void)memcpy(b.bytes, extra[1], bytes);
    return host_launch((const void *)f, b.bytes, stream);
}

static CUresult launch_kernel_ex(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    (void)params;
    /* The event of NCCL's implicit launch order: the kernel begins after what is on the stream now. */
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
            (void)cuEventRecord(config->attrs[i].value.launchCompletionEvent.event, config->hStream);
    return launch_block(f, config->hStream, extra);
}

static CUresult launch_kernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, CUstream stream, void **params, void **extra)
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)params;
    return launch_block(f, stream, extra);
}

static CUresult address_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr at)
{
    CUresult rc = cuPointerGetAttribute(base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at);

    return rc != CUDA_SUCCESS ? rc : cuPointerGetAttribute(bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at);
}

/* NCCL asks it of every driver, though it maps no memory by itself without cuMemCreate. */
static CUresult granularity(size_t *bytes, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags which)
{
    (void)prop, (void)which;
    *bytes = (size_t)2 << 20;
    return CUDA_SUCCESS;
}

static CUresult device_attribute(int *value, CUdevice_attribute which, CUdevice device)
{
    return (CUresult)cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)which, device);
}

void *host_driver_function(const char *name)
{
    static const struct {
        const char *name;
        void *fn;
    } table[] = {
        {"cuLaunchKernelEx", (void *)launch_kernel_ex},         {"cuLaunchKernel", (void *)launch_kernel},
        {"cuMemGetAllocationGranularity", (void *)granularity}, {"cuMemGetAddressRange", (void *)address_range},
        {"cuDeviceGetAttribute", (void *)device_attribute},
    };

    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].name, name) == 0)
            return table[i].fn;
    return NULL;
}
