/* SPDX-License-Identifier: Apache-2.0 */
#include "card.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_GPU 77

_Noreturn void card_die(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
    exit(1);
}

void *card_library(const char *variable, const char *name, int status)
{
    const char *path = getenv(variable);
    void *library;

    path = path != NULL && path[0] != '\0' ? path : name;
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        (void)fprintf(stderr, "cannot open %s: %s\n", path, dlerror());
        exit(status);
    }
    return library;
}

void *card_symbol(void *library, const char *name)
{
    void *symbol = dlsym(library, name);

    if (symbol == NULL)
        card_die("the library has no %s", name);
    return symbol;
}

void card_check(const struct card *c, CUresult r, const char *what)
{
    const char *text = NULL;

    if (r == CUDA_SUCCESS)
        return;
    if (c->p_cuGetErrorString == NULL || c->p_cuGetErrorString(r, &text) != CUDA_SUCCESS || text == NULL)
        text = "unknown error";
    (void)fprintf(stderr, "%s: %s (CUDA error %d)\n", what, text, (int)r);
    exit(r == CUDA_ERROR_NO_DEVICE ? NO_GPU : 1);
}

static void load(struct card *c)
{
    __typeof__(&cuGetProcAddress) get;
    void *symbol;

    c->library = card_library("CDDP_CUDA_LIBRARY", "libcuda.so.1", NO_GPU);
    symbol = card_symbol(c->library, "cuGetProcAddress_v2");
    memcpy(&get, &symbol, sizeof get);
#define X(function, version)                                                                                   \
    symbol = NULL;                                                                                             \
    if (get(#function, &symbol, version, CU_GET_PROC_ADDRESS_DEFAULT, NULL) != CUDA_SUCCESS || symbol == NULL) \
        card_die("the CUDA driver has no %s", #function);                                                      \
    memcpy(&c->p_##function, &symbol, sizeof symbol);
    CARD_MAP(X)
#undef X
}

void card_open(struct card *c, int device)
{
    CUcontext context;
    CUkernel kernel;
    int n = 0;

    memset(c, 0, sizeof *c);
    load(c);
    CARD(c, cuInit, 0);
    CARD(c, cuDriverGetVersion, &c->driver_version);
    CARD(c, cuDeviceGetCount, &n);
    if (n == 0)
        card_check(c, CUDA_ERROR_NO_DEVICE, "cuDeviceGetCount");
    CARD(c, cuDeviceGet, &c->device, device);
    CARD(c, cuDevicePrimaryCtxRetain, &context, c->device);
    CARD(c, cuCtxSetCurrent, context);
    CARD(c, cuDeviceGetName, c->name, (int)sizeof c->name - 1, c->device);
    CARD(c, cuDeviceGetAttribute, &n, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, c->device);
    c->n_sm = (uint32_t)n;
    CARD(c, cuStreamCreateWithPriority, &c->stream, CU_STREAM_NON_BLOCKING, 0);
    CARD(c, cuLibraryLoadData, &c->image, cdi_kernel_image, NULL, NULL, 0, NULL, NULL, 0);
    for (int k = 0; k < CDI_N_KERNELS; k++) {
        CARD(c, cuLibraryGetKernel, &kernel, c->image, cdi_kernel_name((enum cdi_kernel)k));
        CARD(c, cuKernelGetFunction, &c->function[k], kernel);
    }
}

void card_close(struct card *c)
{
    CARD(c, cuStreamSynchronize, c->stream);
    CARD(c, cuLibraryUnload, c->image);
    CARD(c, cuStreamDestroy, c->stream);
    CARD(c, cuDevicePrimaryCtxRelease, c->device);
    (void)dlclose(c->library);
}

void card_launch(const struct card *c, CUstream stream, const struct cdi_launch *launch)
{
    struct cdi_launch copy = *launch;
    void *params[] = {&copy.args};

    if (launch->grid > 0)
        CARD(c, cuLaunchKernel, c->function[launch->kernel], launch->grid, 1, 1, CDI_KERNEL_THREADS, 1, 1, 0, stream,
             params, NULL);
}
