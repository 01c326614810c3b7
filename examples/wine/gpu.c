/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef WINE_GPU

#include <cuda.h>
#include <dlfcn.h>

/* X(function, version of CUDA whose variant is meant): the newest since that one which this program knows. */
#define DRIVER_MAP(X)                   \
    X(cuInit, 2000)                     \
    X(cuGetErrorString, 6000)           \
    X(cuStreamCreateWithPriority, 5050) \
    X(cuStreamDestroy, 4000)            \
    X(cuStreamSynchronize, 2000)        \
    X(cuLibraryLoadData, 12000)         \
    X(cuLibraryUnload, 12000)           \
    X(cuLibraryGetKernel, 12000)        \
    X(cuKernelGetFunction, 12000)       \
    X(cuLaunchKernel, 4000)

struct driver {
#define X(function, version) __typeof__(&(function)) p_##function;
    DRIVER_MAP(X)
#undef X
};

struct gpu {
    void *library;
    struct driver cu;
    CUstream stream;
    CUlibrary image;
    CUfunction function[2][WINE_N_KERNELS];
    char why[256];
};

extern const unsigned char wine_kernel_image[];

static const char *const names[2][WINE_N_KERNELS] = {
#define X(kernel, threads) [WINE_##kernel] = ("wine_kernel_" #kernel "_f32"),
    {WINE_GPU_MAP(X)},
#undef X
#define X(kernel, threads) [WINE_##kernel] = ("wine_kernel_" #kernel "_f64"),
    {WINE_GPU_MAP(X)},
#undef X
};

/* Was it CUDA_SUCCESS? The first failure is kept. */
static bool ok(struct gpu *g, CUresult result, const char *what)
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
#define DO(g, function, ...) ok(g, (g)->cu.p_##function(__VA_ARGS__), #function)

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
    DRIVER_MAP(X)
#undef X
    return true;
}

static bool start(struct gpu *g)
{
    if (!load_driver(g) || !DO(g, cuInit, 0) ||
        !DO(g, cuStreamCreateWithPriority, &g->stream, CU_STREAM_NON_BLOCKING, 0) ||
        !DO(g, cuLibraryLoadData, &g->image, wine_kernel_image, NULL, NULL, 0, NULL, NULL, 0))
        return false;
    for (int type = 0; type < 2; type++)
        for (int k = 0; k < WINE_N_KERNELS; k++) {
            CUkernel kernel;

            if (!DO(g, cuLibraryGetKernel, &kernel, g->image, names[type][k]) ||
                !DO(g, cuKernelGetFunction, &g->function[type][k], kernel))
                return false;
        }
    return true;
}

struct gpu *gpu_open(char *why, size_t cap)
{
    struct gpu *g = calloc(1, sizeof *g);

    if (g == NULL) {
        (void)snprintf(why, cap, "out of memory");
        return NULL;
    }
    if (!start(g)) {
        (void)snprintf(why, cap, "%s", g->why);
        gpu_close(g);
        return NULL;
    }
    return g;
}

void gpu_close(struct gpu *g)
{
    if (g == NULL)
        return;
    if (g->stream != NULL)
        (void)DO(g, cuStreamSynchronize, g->stream);
    if (g->image != NULL)
        (void)DO(g, cuLibraryUnload, g->image);
    if (g->stream != NULL)
        (void)DO(g, cuStreamDestroy, g->stream);
    if (g->library != NULL)
        (void)dlclose(g->library);
    free(g);
}

void *gpu_stream(const struct gpu *g)
{
    return g->stream;
}

const char *gpu_why(const struct gpu *g)
{
    return g->why;
}

static unsigned threads_of(enum wine_kernel kernel, int n)
{
    switch (kernel) {
#define X(kernel, threads) \
    case WINE_##kernel:    \
        return (unsigned)(threads);
        WINE_GPU_MAP(X)
#undef X
    case WINE_N_KERNELS:
        break;
    }
    return 0;
}

bool gpu_launch(struct gpu *g, enum wine_kernel kernel, bool f64, int n, const void *args)
{
    const unsigned blocks = (threads_of(kernel, n) + WINE_GPU_BLOCK - 1) / WINE_GPU_BLOCK;
    void *params[1];

    memcpy(params, &args, sizeof args); /* the driver only reads them */
    return DO(g, cuLaunchKernel, g->function[f64][kernel], blocks, 1, 1, WINE_GPU_BLOCK, 1, 1, 0, g->stream, params,
              NULL);
}

bool gpu_wait(struct gpu *g)
{
    return DO(g, cuStreamSynchronize, g->stream);
}

#else /* built without CUDA */

struct gpu *gpu_open(char *why, size_t cap)
{
    (void)snprintf(why, cap, "this program was built without CUDA (its headers or nvcc were not found)");
    return NULL;
}

/* Without a GPU nothing below is called with one. */
void gpu_close(struct gpu *g)
{
    (void)g;
}

void *gpu_stream(const struct gpu *g)
{
    (void)g;
    return NULL;
}

const char *gpu_why(const struct gpu *g)
{
    (void)g;
    return "";
}

bool gpu_launch(struct gpu *g, enum wine_kernel kernel, bool f64, int n, const void *args)
{
    (void)g, (void)kernel, (void)f64, (void)n, (void)args;
    return false;
}

bool gpu_wait(struct gpu *g)
{
    (void)g;
    return false;
}

#endif
