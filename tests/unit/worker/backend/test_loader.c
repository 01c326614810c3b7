/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the NCCL module on nodes with a missing part: each error message names it. */
#include "worker/backend/loader.h"

#include "hygiene.h"

#include <string.h>
#include <unistd.h>

CDI_SUITE(module);

#define NEED(what) cr_assert(strstr(err.msg, what) != NULL, "%s", err.msg)

static cddp_status open_from(const char *dir, bool *is_there, struct cdi_error *err)
{
    const struct cdi_backend_ops *ops = NULL;
    cddp_status st;

    (void)setenv("CDDP_MODULE_DIR", dir, 1);
    err->msg[0] = '\0';
    st = cdi_module_open("nccl", &ops, is_there, err);
    if (st == CDDP_OK)
        cr_assert_str_eq(ops->name, "nccl");
    return st;
}

Test(module, names_folder_without_module)
{
    struct cdi_error err;
    bool is_there = true;

    cr_assert_eq(open_from("/nowhere", &is_there, &err), CDDP_E_NOT_FOUND);
    cr_assert_not(is_there);
    cr_assert_str_eq(err.msg, "there is no cddp_nccl.so in CDDP_MODULE_DIR='/nowhere'");
}

Test(module, names_searched_folders_without_variable)
{
    const struct cdi_backend_ops *ops;
    struct cdi_error err;
    bool is_there = true;

    (void)unsetenv("CDDP_MODULE_DIR");
    cr_assert_eq(cdi_module_open("such_as_this", &ops, &is_there, &err), CDDP_E_NOT_FOUND);
    cr_assert_not(is_there);
    NEED("its module cddp_such_as_this.so, which is neither in /");
    NEED("(CDDP_MODULE_DIR names another folder)");
}

Test(module, reports_file_that_is_not_a_library)
{
    char dir[] = "cdi-module-XXXXXX", path[64];
    struct cdi_error err;
    bool is_there = false;
    FILE *f;

    cr_assert_not_null(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/cddp_nccl.so", dir);
    f = fopen(path, "w");
    cr_assert_not_null(f);
    (void)fputs("no library\n", f);
    (void)fclose(f);
    cr_assert_eq(open_from(dir, &is_there, &err), CDDP_E_SYSTEM);
    cr_assert(is_there);
    NEED("cannot load the module cdi-module-");
    (void)remove(path);
    (void)rmdir(dir);
}

Test(module, rejects_module_of_another_build)
{
    struct cdi_error err;
    bool is_there;

    cr_assert_eq(open_from(CDI_TEST_OLD_MODULE, &is_there, &err), CDDP_E_VERSION);
    NEED("cddp_nccl.so is of libcddp of another kind (ABI 99), this is libcddp " CDDP_VERSION);
    NEED("install both from one build");
}

#ifdef CDI_TEST_NCCL_MODULE /* built with CUDA's headers: the module itself, over the stand-in for the libraries */

static cddp_status open_with(const char *cuda, const char *nccl, struct cdi_error *err)
{
    bool is_there = false;
    cddp_status st;

    (void)setenv("CDDP_CUDA_LIBRARY", cuda, 1);
    (void)setenv("CDDP_NCCL_LIBRARY", nccl, 1);
    st = open_from(CDI_TEST_NCCL_MODULE, &is_there, err);
    cr_assert(is_there);
    return st;
}

Test(module, no_driver_means_no_gpu)
{
    struct cdi_error err;

    cr_assert_eq(open_with("/nowhere/libcuda.so.1", "/nowhere/libnccl.so.2", &err), CDDP_E_NOT_FOUND);
    NEED("there is no NVIDIA driver on this node: /nowhere/libcuda.so.1");
}

Test(module, driver_without_devices_counts_as_no_gpu)
{
    struct cdi_error err;

    (void)setenv("CDDP_STANDIN_DEVICES", "0", 1);
    cr_assert_eq(open_with(CDI_TEST_STANDIN, CDI_TEST_STANDIN, &err), CDDP_E_NOT_FOUND);
    NEED("the NVIDIA driver finds no GPU");
}

Test(module, library_without_driver_symbols_is_too_old)
{
    struct cdi_error err;

    cr_assert_eq(open_with("libm.so.6", "/nowhere/libnccl.so.2", &err), CDDP_E_VERSION);
    NEED("older than CUDA 12");
}

Test(module, gpu_without_nccl_error_has_remedy)
{
    struct cdi_error err;

    cr_assert_eq(open_with(CDI_TEST_STANDIN, "/nowhere/libnccl.so.2", &err), CDDP_E_SYSTEM);
    NEED("there is a GPU, but NCCL cannot be loaded: /nowhere/libnccl.so.2");
    NEED("CDDP_BACKEND=cpu");
}

Test(module, reports_library_that_is_not_nccl)
{
    struct cdi_error err;

    cr_assert_eq(open_with(CDI_TEST_STANDIN, "libm.so.6", &err), CDDP_E_SYSTEM);
    NEED("libm.so.6 is not NCCL: it does not report a version");
}
#endif
