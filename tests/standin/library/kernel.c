/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries, kernels and their twins. Only the kind of a library's image is checked; twins are found by name. */
#include "core.h"

#include "common/env.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KERNELS 256
#define MAGIC_LIBRARY 0x5e4e7002u
#define MAX_BLOCK 1024u
#define MAX_ARGS 4096 /* bytes: of drivers before CUDA 12.1, which libcddp supports (CUDA C++ Programming Guide) */

struct CUlib_st {
    uint32_t magic;
    CUcontext ctx;
};

static const struct standin_kernel *kernels[KERNELS];
static uint64_t n_launched[KERNELS];
static unsigned n_kernels, n_libraries;

struct launch {
    const struct standin_kernel *kernel;
    struct standin_thread grid;
    void *arg[STANDIN_ARGS];
};

void standin_kernel_register(const struct standin_kernel *k)
{
    si_lock();
    if (n_kernels == KERNELS || k->n_args > STANDIN_ARGS || (k->thread == NULL) == (k->block == NULL) ||
        k->ranges == NULL)
        si_fault("the twin '%s' cannot be registered: it needs one body, ranges, and at most %d arguments", k->name,
                 STANDIN_ARGS);
    else
        kernels[n_kernels++] = k;
    si_unlock();
}

static void open_kernels(const char *path)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct standin_kernel *k = lib != NULL ? dlsym(lib, "standin_kernels") : NULL;

    if (k == NULL) {
        si_fault("CDDP_STANDIN_KERNELS: %s", dlerror());
        return;
    }
    for (; k->name != NULL; k++)
        standin_kernel_register(k);
}

/* Twins of other libraries are opened with the first library of kernels, not while this one is being loaded. */
static void kernel_open_all(void)
{
    static bool opened;
    const char *list = cdi_env_str("CDDP_STANDIN_KERNELS");
    char path[4096];

    if (__atomic_exchange_n(&opened, true, __ATOMIC_ACQ_REL) || list == NULL)
        return;
    while (*list != '\0') {
        size_t len = strcspn(list, ":");

        (void)snprintf(path, sizeof path, "%.*s", (int)len, list);
        open_kernels(path);
        list += len + (list[len] == ':');
    }
}

static const struct standin_kernel *find(const char *name)
{
    const struct standin_kernel *k = NULL;

    si_lock();
    for (unsigned i = 0; i < n_kernels && k == NULL; i++)
        if (strcmp(kernels[i]->name, name) == 0)
            k = kernels[i];
    si_unlock();
    return k;
}

static void count_locked(const struct standin_kernel *k)
{
    for (unsigned i = 0; i < n_kernels; i++)
        n_launched[i] += kernels[i] == k;
}

uint64_t standin_launched(const char *kernel)
{
    uint64_t n = 0;

    si_lock();
    for (unsigned i = 0; i < n_kernels; i++)
        n += strcmp(kernels[i]->name, kernel) == 0 ? n_launched[i] : 0;
    si_unlock();
    return n;
}

unsigned si_libraries_locked(void)
{
    return n_libraries;
}

/* A fatbin, its wrapper, an ELF or PTX; or the word "standin", if there is no compiler for the device. */
static bool is_image(const char *code)
{
    uint32_t word = 0;

    si_copy(&word, code, sizeof word);
    return word == 0xba55ed50u || word == 0x466243b1u || strncmp(code, "\177ELF", 4) == 0 || code[0] == '.' ||
           strncmp(code, "//", 2) == 0 || strncmp(code, "standin", 7) == 0;
}

SI_EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                     void **jitOptionsValues, unsigned int numJitOptions,
                                     CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                     unsigned int numLibraryOptions)
{
    CUresult rc = si_enter_alloc("cuLibraryLoadData");
    CUlibrary lib;

    (void)jitOptions, (void)jitOptionsValues, (void)numJitOptions;
    (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
    if (rc == CUDA_SUCCESS)
        rc = si_capture_unsafe("cuLibraryLoadData");
    if (rc != CUDA_SUCCESS)
        return rc;
    if (library == NULL || code == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!is_image(code))
        return CUDA_ERROR_INVALID_IMAGE;
    kernel_open_all();
    lib = calloc(1, sizeof *lib);
    if (lib == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    lib->magic = MAGIC_LIBRARY;
    si_lock();
    n_libraries++;
    si_unlock();
    *library = lib;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    CUresult rc = si_enter("cuLibraryUnload");

    if (rc != CUDA_SUCCESS)
        return rc;
    if (library == NULL || library->magic != MAGIC_LIBRARY)
        return CUDA_ERROR_INVALID_HANDLE;
    si_lock();
    n_libraries--;
    library->magic = 0;
    si_unlock();
    free(library);
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    CUresult rc = si_enter("cuLibraryGetKernel");
    const struct standin_kernel *k;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (pKernel == NULL || name == NULL || library == NULL || library->magic != MAGIC_LIBRARY)
        return CUDA_ERROR_INVALID_VALUE;
    k = find(name);
    if (k == NULL) {
        si_refused("cuLibraryGetKernel: no twin of kernel '%s' is registered", name);
        return CUDA_ERROR_NOT_FOUND;
    }
    *pKernel = (CUkernel)(uintptr_t)k;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    CUresult rc = si_enter("cuKernelGetFunction");

    if (rc != CUDA_SUCCESS)
        return rc;
    if (si_current() == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    *pFunc = (CUfunction)(uintptr_t)kernel;
    return CUDA_SUCCESS;
}

SI_EXPORT CUresult cuFuncLoad(CUfunction function)
{
    CUresult rc = si_enter("cuFuncLoad");

    if (rc == CUDA_SUCCESS)
        rc = si_capture_unsafe("cuFuncLoad");
    if (rc == CUDA_SUCCESS && function == NULL)
        rc = CUDA_ERROR_INVALID_HANDLE;
    return rc;
}

/* --------------------------------------------------------------------------------------------------------- launch --
 */

static void run_launch(struct si_op *op)
{
    struct launch *l = op->data;
    int fault = si_planted_kernel();

    if (fault != 0) {
        si_op_fault(op, (CUresult)fault);
        return;
    }
    si_touch_kernel(l->kernel, &l->grid, l->arg);
}

/* Returns the twin of a function or kernel handle, or NULL. */
static const struct standin_kernel *twin(CUfunction f)
{
    const struct standin_kernel *k = NULL;

    si_lock();
    for (unsigned i = 0; i < n_kernels && k == NULL; i++)
        if ((uintptr_t)kernels[i] == (uintptr_t)f)
            k = kernels[i];
    si_unlock();
    return k;
}

static bool args_fit(const struct standin_kernel *k)
{
    size_t bytes = 0;

    for (size_t i = 0; i < k->n_args; i++)
        bytes += k->arg_size[i];
    if (bytes > MAX_ARGS)
        si_refused("cuLaunchKernel: '%s' has %zu bytes of arguments, more than every driver takes", k->name, bytes);
    return bytes <= MAX_ARGS;
}

static bool kernel_fits(const struct standin_kernel *k, const struct standin_dim *grid, const struct standin_dim *block)
{
    bool good = grid->x > 0 && grid->y > 0 && grid->z > 0 && grid->x <= INT32_MAX && grid->y <= 65535 &&
                grid->z <= 65535 && block->x > 0 && block->y > 0 && block->z > 0 && block->x <= MAX_BLOCK &&
                block->y <= MAX_BLOCK && block->z <= 64 && (uint64_t)block->x * block->y * block->z <= MAX_BLOCK;

    if (!good)
        si_refused("cuLaunchKernel: '%s' with a grid of %u x %u x %u and blocks of %u x %u x %u: no device can do that",
                   k->name, grid->x, grid->y, grid->z, block->x, block->y, block->z);
    return good;
}

/* An operation with copies of the arguments. */
static struct si_op *launch_op(const struct standin_kernel *k, const struct standin_thread *grid, void **params)
{
    size_t bytes = 0;
    struct launch *l;
    struct si_op *op;
    char *at;

    for (size_t i = 0; i < k->n_args; i++)
        bytes += (k->arg_size[i] + 15) / 16 * 16;
    op = si_op_create(k->name, run_launch, (sizeof *l + 15) / 16 * 16 + bytes);
    if (op == NULL)
        return NULL;
    l = op->data;
    l->kernel = k;
    l->grid = *grid;
    at = (char *)l + (sizeof *l + 15) / 16 * 16;
    for (size_t i = 0; i < k->n_args; i++) {
        l->arg[i] = at;
        si_touch_copy(at, params[i], k->arg_size[i]);
        at += (k->arg_size[i] + 15) / 16 * 16;
    }
    return op;
}

SI_EXPORT CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                                  unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                                  unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra)
{
    const struct standin_thread grid = {.grid = {gridDimX, gridDimY, gridDimZ},
                                        .block = {blockDimX, blockDimY, blockDimZ}};
    CUresult rc = si_enter("cuLaunchKernel");
    const struct standin_kernel *k = twin(f);
    struct standin_ranges r = {.n = 0};
    struct CUstream_st *s;
    struct si_op *op;

    if (rc != CUDA_SUCCESS)
        return rc;
    if (k == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (extra != NULL || (kernelParams == NULL && k->n_args > 0) || sharedMemBytes > 48 * 1024 ||
        !kernel_fits(k, &grid.grid, &grid.block) || !args_fit(k))
        return CUDA_ERROR_INVALID_VALUE;
    op = launch_op(k, &grid, kernelParams);
    if (op == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    k->ranges(&grid, ((struct launch *)op->data)->arg, &r);
    si_capture_plant(hStream);
    si_lock();
    rc = si_stream_here_locked(hStream, "cuLaunchKernel", &s);
    if (rc == CUDA_SUCCESS) {
        si_push_locked(s, op, &r);
        count_locked(k);
    }
    si_unlock();
    if (rc != CUDA_SUCCESS)
        si_op_destroy(op);
    return rc;
}
