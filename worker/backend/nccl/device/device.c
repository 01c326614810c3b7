/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/device/device.h"

#include "common/gpus.h"

#include <stdio.h>
#include <string.h>

cddp_status cdi_device_choose(const struct cdi_world *world, int n_visible, bool share, int *device,
                              struct cdi_error *err)
{
    int wanted = world->device;

    if (wanted >= n_visible)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_init_options.device is \"cuda:%d\", but rank %d sees only %d GPU%s (CUDA_VISIBLE_DEVICES "
                        "chooses them)",
                        wanted, world->rank, n_visible, n_visible == 1 ? "" : "s");
    if (wanted < 0)
        wanted = n_visible == 1 ? 0 : share ? world->device_rank % n_visible : world->device_rank;
    if (wanted >= n_visible)
        return cdi_fail(err, CDDP_E_INVALID,
                        "rank %d has local rank %d, but this node shows only %d GPUs: start at most one rank per GPU, "
                        "set CDDP_SHARE_GPU=1 to share them, or CDDP_BACKEND=cpu",
                        world->rank, world->device_rank, n_visible);
    *device = wanted;
    return CDDP_OK;
}

static cddp_status device_describe(struct cdi_device *d, int ordinal, struct cdi_error *err)
{
    cddp_device_info *info = &d->info;
    char pci[16];
    size_t bytes = 0;
    int n_sm = 0, major = 0, minor = 0;
    cddp_status st = cdi_cuda_check(cdi_cuda.device_name(info->name, sizeof info->name, d->id), "naming the GPU", err);

    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.device_pci(info->pci, sizeof info->pci, d->id), "querying the GPU's address", err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.device_uuid(&d->uuid, d->id), "querying the GPU's UUID", err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.device_memory(&bytes, d->id), "querying the GPU's memory", err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.device_attribute(&n_sm, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d->id),
                            "querying the GPU's multiprocessors", err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d->id),
                            "querying the GPU's compute capability", err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, d->id),
                            "querying the GPU's compute capability", err);
    if (st != CDDP_OK)
        return st;
    info->name[sizeof info->name - 1] = '\0';
    if (cdi_gpu_pci(pci, info->pci)) /* in the format of the kernel */
        memcpy(info->pci, pci, sizeof pci);
    info->size = sizeof *info;
    info->device = ordinal;
    info->memory_bytes = bytes;
    info->numa_node = cdi_gpu_numa_node("", info->pci);
    d->n_sm = (uint32_t)n_sm;
    d->capability = major * 10 + minor;
    return CDDP_OK;
}

/*
 * Loads the kernels before the first collective runs. CUDA loads lazily, and a load at the first launch may wait for
 * all work on the device, such as a collective that waits for a peer (CUDA C++ Programming Guide, Lazy Loading,
 * Concurrent Execution).
 */
static cddp_status load_kernels(struct cdi_device *d, struct cdi_error *err)
{
    cddp_status st =
        cdi_image_check(cdi_cuda.library_load(&d->library, cdi_kernel_image, NULL, NULL, 0, NULL, NULL, 0), err);

    for (int i = 0; i < CDI_N_KERNELS && st == CDDP_OK; i++) {
        const char *name = cdi_kernel_name((enum cdi_kernel)i);
        CUkernel kernel;

        st = cdi_cuda_check(cdi_cuda.library_kernel(&kernel, d->library, name), name, err);
        if (st == CDDP_OK)
            st = cdi_cuda_check(cdi_cuda.kernel_function(&d->kernel[i], kernel), name, err);
        if (st == CDDP_OK && cdi_cuda.function_load != NULL)
            st = cdi_cuda_check(cdi_cuda.function_load(d->kernel[i]), name, err);
    }
    return st;
}

/* Creates streams, blocks and kernels in the current context. */
static cddp_status device_create_resources(struct cdi_device *d, struct cdi_error *err)
{
    int least = 0, greatest = 0;
    cddp_status st = cdi_cuda_check(cdi_cuda.stream_priorities(&least, &greatest), "querying stream priorities", err);

    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.stream_create(&d->stream, CU_STREAM_NON_BLOCKING, greatest),
                            "creating the communication stream", err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.stream_create(&d->side, CU_STREAM_NON_BLOCKING, least), "creating a stream", err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.stream_create(&d->captured, CU_STREAM_NON_BLOCKING, greatest), "creating a stream",
                            err);
    if (st == CDDP_OK)
        st = cdi_blocks_create(&d->blocks, err);
    return st == CDDP_OK ? load_kernels(d, err) : st;
}

cddp_status cdi_device_open(struct cdi_device *d, const struct cdi_world *world, bool share, struct cdi_error *err)
{
    int n = 0, ordinal = 0;
    cddp_status st;

    *d = (struct cdi_device){.info = {.size = sizeof d->info}};
    st = cdi_cuda_check(cdi_cuda.device_count(&n), "counting GPUs", err);
    if (st == CDDP_OK)
        st = cdi_device_choose(world, n, share, &ordinal, err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.device_get(&d->id, ordinal), "choosing the GPU", err);
    if (st == CDDP_OK)
        st = device_describe(d, ordinal, err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.context_retain(&d->context, d->id), "opening the GPU", err);
    if (st != CDDP_OK)
        return st;
    d->retained = true;
    st = cdi_cuda_check(cdi_cuda.context_set(d->context), "opening the GPU", err);
    return st == CDDP_OK ? device_create_resources(d, err) : st;
}

cddp_status cdi_device_open_same(struct cdi_device *d, const struct cdi_device *of, struct cdi_error *err)
{
    *d = (struct cdi_device){.info = of->info, .id = of->id, .uuid = of->uuid, .n_sm = of->n_sm};
    if (cdi_cuda_check(cdi_cuda.context_retain(&d->context, d->id), "opening the GPU again", err) != CDDP_OK)
        return err != NULL ? err->status : CDDP_E_SYSTEM;
    d->retained = true;
    return device_create_resources(d, err);
}

void cdi_device_close(struct cdi_device *d)
{
    if (d->context == NULL)
        return;
    (void)cdi_device_enter(d, NULL);
    if (d->library != NULL)
        (void)cdi_cuda.library_unload(d->library);
    cdi_blocks_destroy(d->blocks);
    if (d->side != NULL)
        (void)cdi_cuda.stream_destroy(d->side);
    if (d->captured != NULL)
        (void)cdi_cuda.stream_destroy(d->captured);
    if (d->stream != NULL)
        (void)cdi_cuda.stream_destroy(d->stream);
    cdi_device_leave(d);
    if (d->retained)
        (void)cdi_cuda.context_release(d->id);
    *d = (struct cdi_device){.info = d->info};
}

/* The enters of this thread that have pushed the context, the last one in the lowest bit. */
static _Thread_local uint32_t pushed;

/*
 * The context that is current in this thread until cdi_device_let_go, while no code of the program runs; NULL: the
 * driver has to be wanted.
 */
static _Thread_local CUcontext held;

/* The depth of enters, and the capture mode of the thread before the outermost one. */
static _Thread_local unsigned depth;
static _Thread_local CUstreamCaptureMode mode_before;

cddp_status cdi_device_enter(const struct cdi_device *d, struct cdi_error *err)
{
    cddp_status st = cdi_device_enter_briefly(d, err);

    if (depth++ > 0)
        return st;
    mode_before = CU_STREAM_CAPTURE_MODE_RELAXED;
    (void)cdi_cuda.capture_mode(&mode_before);
    return st;
}

void cdi_device_leave(const struct cdi_device *d)
{
    if (--depth == 0)
        (void)cdi_cuda.capture_mode(&mode_before);
    cdi_device_leave_briefly(d);
}

static _Thread_local const struct cdi_device *captures;

void cdi_device_capture(const struct cdi_device *d, bool begins)
{
    captures = begins ? d : NULL;
}

CUstream cdi_device_stream(const struct cdi_device *d)
{
    return captures == d ? d->captured : d->stream;
}

cddp_status cdi_device_enter_briefly(const struct cdi_device *d, struct cdi_error *err)
{
    CUresult r = CUDA_SUCCESS;
    CUcontext now = held;

    /* A thread of the program nearly always has this context current, since it is cudaSetDevice's primary context: one
     * query replaces a push and a pop. The result is not cached, as the program may change it between two calls. */
    if (now == NULL && cdi_cuda.context_current(&now) != CUDA_SUCCESS)
        now = NULL;
    if (now != d->context)
        r = cdi_cuda.context_push(d->context);
    pushed = pushed << 1 | (now != d->context && r == CUDA_SUCCESS);
    return cdi_cuda_check(r, "making the GPU's context current", err);
}

void cdi_device_leave_briefly(const struct cdi_device *d)
{
    CUcontext was;

    (void)d;
    if ((pushed & 1) != 0) /* otherwise this would pop the program's */
        (void)cdi_cuda.context_pop(&was);
    pushed >>= 1;
}

cddp_status cdi_device_hold(const struct cdi_device *d, struct cdi_error *err)
{
    cddp_status st = cdi_device_enter_briefly(d, err);

    if (st == CDDP_OK)
        held = d->context;
    else
        cdi_device_leave_briefly(d);
    return st;
}

void cdi_device_let_go(const struct cdi_device *d)
{
    held = NULL;
    cdi_device_leave_briefly(d);
}

cddp_status cdi_device_launch_on(const struct cdi_device *d, CUstream stream, struct cdi_launch *launch,
                                 struct cdi_error *err)
{
    void *params[] = {&launch->args};

    if (launch->grid == 0)
        return CDDP_OK;
    return cdi_cuda_check(cdi_cuda.launch(d->kernel[launch->kernel], launch->grid, 1, 1, CDI_KERNEL_THREADS, 1, 1, 0,
                                          stream, params, NULL),
                          cdi_kernel_name(launch->kernel), err);
}

cddp_status cdi_device_launch(const struct cdi_device *d, struct cdi_launch *launch, struct cdi_error *err)
{
    return cdi_device_launch_on(d, cdi_device_stream(d), launch, err);
}

/* "GPU 3 (NVIDIA H100 at 0000:65:00.0)". */
static void name_gpu(char *buf, size_t cap, int ordinal)
{
    char name[96] = "?", pci[32] = "?";
    CUdevice id;

    if (cdi_cuda.device_get(&id, ordinal) == CUDA_SUCCESS) {
        (void)cdi_cuda.device_name(name, sizeof name, id);
        (void)cdi_cuda.device_pci(pci, sizeof pci, id);
    }
    (void)snprintf(buf, cap, "GPU %d (%s at %s)", ordinal, name, pci);
}

static cddp_status fail_of_another(const struct cdi_device *d, const void *p, int ordinal, struct cdi_error *err)
{
    char theirs[160], ours[160];

    name_gpu(theirs, sizeof theirs, ordinal);
    name_gpu(ours, sizeof ours, d->info.device);
    return cdi_fail(err, CDDP_E_INVALID,
                    "the memory at %p belongs to %s, but this rank uses %s: was cudaSetDevice(%d) missing, in this "
                    "thread, before it was allocated?",
                    p, theirs, ours, d->info.device);
}

/*
 * Returns whether kernels of the current context can use the memory. Only for memory of another context: most of it is
 * out of reach, but not that of a green context, which is a part of the primary one (cuda.h, cuCtxFromGreenCtx).
 */
static bool is_within_reach(const void *p)
{
    CUpointer_attribute which = CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
    CUdeviceptr here = 0;
    void *answer = &here;

    return cdi_cuda.pointer_attributes(1, &which, &answer, cdi_device_ptr(p)) == CUDA_SUCCESS && here != 0;
}

static cddp_status fail_of_another_context(const struct cdi_device *d, const void *p, struct cdi_error *err)
{
    char name[160];

    name_gpu(name, sizeof name, d->info.device);
    return cdi_fail(err, CDDP_E_INVALID,
                    "the memory at %p belongs to another context of %s and is out of reach of the primary one, which "
                    "this rank uses "
                    "like the CUDA runtime: allocate it with cudaMalloc, or with the context of "
                    "cuDevicePrimaryCtxRetain current",
                    p, name);
}

/*
 * One call for all attributes: unlike cuPointerGetAttribute, it does not fail for memory that CUDA does not know, but
 * returns zeros. Memory of malloc belongs to this case, too, even if the GPU could reach it (HMM, ATS): NCCL accepts
 * none of it, so it counts as host memory on every node. Managed memory belongs to every GPU. Memory of a pool, and
 * memory mapped by cuMemMap, as NCCL's is, has no context (UCX uses the same query: cuda_copy_md.c).
 */
cddp_status cdi_device_owns(const struct cdi_device *d, const void *p, bool *on_device, struct cdi_error *err)
{
    CUpointer_attribute which[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_CONTEXT};
    unsigned type = 0, managed = 0;
    int ordinal = -1;
    CUcontext context = NULL;
    void *answers[] = {&type, &managed, &ordinal, &context};
    cddp_status st = CDDP_OK;

    if (p != NULL)
        st = cdi_cuda_check(
            cdi_cuda.pointer_attributes(sizeof which / sizeof which[0], which, answers, cdi_device_ptr(p)),
            "querying the owner of memory", err);
    *on_device = st != CDDP_OK || type == CU_MEMORYTYPE_DEVICE || managed != 0;
    if (st != CDDP_OK || type != CU_MEMORYTYPE_DEVICE || managed != 0)
        return st;
    if (ordinal != d->info.device)
        return fail_of_another(d, p, ordinal, err);
    return context == NULL || context == d->context || is_within_reach(p) ? CDDP_OK
                                                                          : fail_of_another_context(d, p, err);
}
