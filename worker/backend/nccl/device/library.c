/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/device/library.h"

#include <dlfcn.h>
#include <stdio.h>

#define CUDA_LIBRARY_ENV "CDDP_CUDA_LIBRARY"
#define NCCL_LIBRARY_ENV "CDDP_NCCL_LIBRARY"

const struct cdi_host *cdi_host;
struct cdi_cuda cdi_cuda;
struct cdi_nccl cdi_nccl;

cddp_status cdi_cuda_check(CUresult r, const char *what, struct cdi_error *err)
{
    const char *name = NULL, *text = NULL;
    cddp_status st;

    if (r == CUDA_SUCCESS)
        return CDDP_OK;
    if (cdi_cuda.error_name == NULL || cdi_cuda.error_name(r, &name) != CUDA_SUCCESS)
        name = "an error without a name";
    if (cdi_cuda.error_text == NULL || cdi_cuda.error_text(r, &text) != CUDA_SUCCESS)
        text = "unknown";
    st = cdi_fail(err, r == CUDA_ERROR_OUT_OF_MEMORY ? CDDP_E_NOMEM : CDDP_E_SYSTEM,
                  "%s: the CUDA driver reports %s (%d): %s", what, name, (int)r, text);
    if (err != NULL)
        err->device_error = (int)r;
    return st;
}

void cdi_nccl_version_text(int code, char *buf, size_t cap)
{
    (void)snprintf(buf, cap, "%d.%d.%d", code / 10000, code / 100 % 100, code % 100);
}

/*
 * NVIDIA's "CUDA Compatibility": the drivers of a major version of CUDA, from its first one on, accept all code of that
 * version.
 */
const char *cdi_driver_needed(void)
{
    return CDI_NVCC_CUDA / 1000 == 12 ? "525" : CDI_NVCC_CUDA / 1000 == 13 ? "580" : "of this CUDA";
}

cddp_status cdi_image_check(CUresult r, struct cdi_error *err)
{
    cddp_status st = cdi_cuda_check(r, "loading libcddp's kernels", err);
    int version = 0;

    if (st == CDDP_OK || err == NULL || cdi_cuda.driver_version(&version) != CUDA_SUCCESS ||
        version / 1000 >= CDI_NVCC_CUDA / 1000)
        return st;
    return cdi_error_wrap(
        err,
        "the GPU code of libcddp needs CUDA %d.%d, but the NVIDIA driver supports CUDA %d.%d: install driver "
        "%s or newer, or build with the nvcc of CUDA %d",
        CDI_NVCC_CUDA / 1000, CDI_NVCC_CUDA % 1000 / 10, version / 1000, version % 1000 / 10, cdi_driver_needed(),
        version / 1000);
}

/* Resolves one symbol of libcuda, and through it all others, each in the version that cuda.h has. */
static cddp_status resolve_cuda(void *lib, struct cdi_error *err)
{
    PFN_cuGetProcAddress_v12000 get;
    CUdriverProcAddressQueryResult found;
    void *at = dlsym(lib, "cuGetProcAddress_v2");

    if (at == NULL)
        return cdi_fail(err, CDDP_E_VERSION,
                        "the NVIDIA driver of this node is older than CUDA 12: this build of the nccl backend needs "
                        "driver %s or newer",
                        cdi_driver_needed());
    *(void **)&get = at;
#define X(member, function, version)                                                                            \
    if (get(#function, &at, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) != CUDA_SUCCESS || at == NULL)  \
        return cdi_fail(err, CDDP_E_VERSION, "the NVIDIA driver has no %s: install a newer driver", #function); \
    *(void **)&cdi_cuda.member = at;
    CDI_CUDA_MAP(X)
#undef X
    if (get("cuFuncLoad", &at, 12040, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found) != CUDA_SUCCESS)
        at = NULL;
    *(void **)&cdi_cuda.function_load = at;
    return CDDP_OK;
}

static cddp_status resolve_nccl(void *lib, const char *path, struct cdi_error *err)
{
    void *at;

#define X(member, function, needed)                                                                              \
    at = dlsym(lib, #function);                                                                                  \
    if ((needed) && at == NULL)                                                                                  \
        return cdi_fail(err, CDDP_E_VERSION, "%.300s has no %s: NCCL 2.19 or newer is needed", path, #function); \
    *(void **)&cdi_nccl.member = at;
    CDI_NCCL_MAP(X)
#undef X
    return CDDP_OK;
}

/* Opens the driver. CDDP_E_NOT_FOUND: there is no driver or no GPU. */
static cddp_status open_driver(struct cdi_error *err)
{
    const char *value = cdi_host->env(CUDA_LIBRARY_ENV), *path = value != NULL ? value : "libcuda.so.1";
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    int version = 0, n = 0;
    cddp_status st;
    CUresult r;

    if (lib == NULL)
        return cdi_fail(err, CDDP_E_NOT_FOUND, "there is no NVIDIA driver on this node: %.400s", dlerror());
    st = resolve_cuda(lib, err);
    if (st != CDDP_OK)
        return st;
    r = cdi_cuda.init(0);
    if (r == CUDA_ERROR_NO_DEVICE || (r == CUDA_SUCCESS && cdi_cuda.device_count(&n) == CUDA_SUCCESS && n == 0))
        return cdi_fail(err, CDDP_E_NOT_FOUND, "the NVIDIA driver finds no GPU%s%.64s%s",
                        cdi_host->env("CUDA_VISIBLE_DEVICES") != NULL ? " (CUDA_VISIBLE_DEVICES='" : "",
                        cdi_host->env("CUDA_VISIBLE_DEVICES") != NULL ? cdi_host->env("CUDA_VISIBLE_DEVICES") : "",
                        cdi_host->env("CUDA_VISIBLE_DEVICES") != NULL ? "')" : "");
    st = cdi_cuda_check(r, "starting CUDA", err);
    if (st == CDDP_OK)
        st = cdi_cuda_check(cdi_cuda.driver_version(&version), "querying the driver's version", err);
    if (st == CDDP_OK && version < CDI_CUDA_DRIVER_FLOOR)
        return cdi_fail(
            err, CDDP_E_VERSION,
            "the NVIDIA driver supports CUDA %d.%d: this build of the nccl backend needs driver %s or newer",
            version / 1000, version % 1000 / 10, cdi_driver_needed());
    return st;
}

static cddp_status open_nccl(struct cdi_error *err)
{
    const char *value = cdi_host->env(NCCL_LIBRARY_ENV), *path = value != NULL ? value : "libnccl.so.2";
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    char have[32];
    cddp_status st;

    if (lib == NULL)
        return cdi_fail(err, CDDP_E_SYSTEM,
                        "there is a GPU, but NCCL cannot be loaded: %.300s; install NCCL (libnccl2, or pip's "
                        "nvidia-nccl-cu13 with its folder in LD_LIBRARY_PATH, or name the file in %s), or train on the "
                        "CPU with CDDP_BACKEND=cpu",
                        dlerror(), NCCL_LIBRARY_ENV);
    /* The version before the functions: "too old" is a better error message than the name of a missing function. */
    *(void **)&cdi_nccl.version = dlsym(lib, "ncclGetVersion");
    if (cdi_nccl.version == NULL || cdi_nccl.version(&cdi_nccl.code) != ncclSuccess)
        return cdi_fail(err, CDDP_E_SYSTEM, "%.300s is not NCCL: it does not report a version", path);
    cdi_nccl_version_text(cdi_nccl.code, have, sizeof have);
    if (cdi_nccl.code < CDI_NCCL_FLOOR)
        return cdi_fail(err, CDDP_E_VERSION, "%.300s is NCCL %s: the nccl backend needs 2.19 or newer", path, have);
    st = resolve_nccl(lib, path, err);
    if (st == CDDP_OK)
        cdi_host->debug("NCCL-VERSION", have);
    return st;
}

cddp_status cdi_libraries_open(const struct cdi_host *host, struct cdi_error *err)
{
    static bool opened;
    cddp_status st;

    if (opened)
        return CDDP_OK;
    cdi_host = host;
    st = open_driver(err);
    if (st == CDDP_OK)
        st = open_nccl(err);
    opened = st == CDDP_OK;
    return st;
}
