/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const unsigned char gpt_kernel_image[];

static const struct {
    const char *name[2]; /* float32, bfloat16 */
    bool rows;
} kernels[GPU_N_KERNELS] = {
#define X(kernel) [GPU_##kernel] = {{"gpt_" #kernel "_f32", "gpt_" #kernel "_bf16"}, false},
#define Y(kernel) [GPU_##kernel] = {{"gpt_" #kernel "_f32", "gpt_" #kernel "_bf16"}, true},
    GPU_MAP(X, Y)
#undef X
#undef Y
};

bool gpu_ok(struct gpu *g, CUresult result, const char *what)
{
    const char *text = NULL;

    if (result == CUDA_SUCCESS)
        return true;
    if (g->cu.p_cuGetErrorString == NULL || g->cu.p_cuGetErrorString(result, &text) != CUDA_SUCCESS || text == NULL)
        text = "unknown error";
    if (g->why[0] == '\0')
        (void)snprintf(g->why, sizeof g->why, "the GPU failed in %s: %s (CUDA error %d)", what, text, (int)result);
    return false;
}

/* The driver gives all its functions by one, each in the variant of the version that is asked for. */
static bool load_driver(struct gpu *g)
{
    const char *name = getenv("CDDP_CUDA_LIBRARY"); /* as libcddp: both must speak to the same driver */
    __typeof__(&cuGetProcAddress) get = NULL;
    void *symbol;

    name = name != NULL && name[0] != '\0' ? name : "libcuda.so.1";
    g->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (g->library == NULL) {
        (void)snprintf(g->why, sizeof g->why, "there is no CUDA driver: %.200s", dlerror());
        return false;
    }
    symbol = dlsym(g->library, "cuGetProcAddress_v2");
    memcpy(&get, &symbol, sizeof get);
    if (get == NULL) {
        (void)snprintf(g->why, sizeof g->why, "%.150s is not a CUDA driver of version 12 or newer", name);
        return false;
    }
#define X(function, version)                                                                                        \
    if (get(#function, (void **)&g->cu.p_##function, version, CU_GET_PROC_ADDRESS_DEFAULT, NULL) != CUDA_SUCCESS || \
        g->cu.p_##function == NULL) {                                                                               \
        (void)snprintf(g->why, sizeof g->why, "the CUDA driver has no %s; it is older than CUDA 12", #function);    \
        return false;                                                                                               \
    }
    GPU_DRIVER_MAP(X)
#undef X
    return true;
}

bool gpu_open(struct gpu *g, bool bf16)
{
    *g = (struct gpu){.bf16 = bf16};
    if (!load_driver(g) || !GPU_DO(g, cuInit, 0) ||
        !GPU_DO(g, cuStreamCreateWithPriority, &g->stream, CU_STREAM_NON_BLOCKING, 0) ||
        !GPU_DO(g, cuLibraryLoadData, &g->image, gpt_kernel_image, NULL, NULL, 0, NULL, NULL, 0))
        return false;
    for (int k = 0; k < GPU_N_KERNELS; k++) {
        CUkernel kernel;

        if (!GPU_DO(g, cuLibraryGetKernel, &kernel, g->image, kernels[k].name[bf16]) ||
            !GPU_DO(g, cuKernelGetFunction, &g->function[k], kernel))
            return false;
    }
    return true;
}

void gpu_close(struct gpu *g)
{
    if (g->stream != NULL)
        (void)gpu_wait(g);
    if (g->image != NULL)
        (void)GPU_DO(g, cuLibraryUnload, g->image);
    if (g->stream != NULL)
        (void)GPU_DO(g, cuStreamDestroy, g->stream);
    if (g->library != NULL)
        (void)dlclose(g->library);
    *g = (struct gpu){.blas = NULL};
}

bool gpu_launch(struct gpu *g, enum gpu_kernel kernel, const struct gpu_args *a)
{
    const uint64_t threads = a->n * (kernels[kernel].rows ? GPU_LANES : 1);
    const uint64_t blocks = (threads + GPU_BLOCK - 1) / GPU_BLOCK;
    void *params[1];

    if (blocks > INT32_MAX)
        return gpu_ok(g, CUDA_ERROR_INVALID_VALUE, kernels[kernel].name[g->bf16]);
    memcpy(params, &a, sizeof params); /* the driver only reads it */
    return gpu_ok(g,
                  g->cu.p_cuLaunchKernel(g->function[kernel], (unsigned)blocks, 1, 1, GPU_BLOCK, 1, 1, 0, g->stream,
                                         params, NULL),
                  kernels[kernel].name[g->bf16]);
}

bool gpu_wait(struct gpu *g)
{
    return GPU_DO(g, cuStreamSynchronize, g->stream);
}
