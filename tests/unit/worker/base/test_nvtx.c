/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges with a stand-in for the library, without it, and switched off. */
#include "worker/base/nvtx.h"

#include "hygiene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

CDI_SUITE(nvtx);

/* Makes some ranges; returns what the library wrote to stderr. */
static const char *ranges(const char *on, const char *library)
{
    static char text[512];
    int fd[2], old = dup(STDERR_FILENO);
    uint64_t id;
    ssize_t n;

    cr_assert_eq(setenv(CDI_NVTX_ENV, on, 1), 0);
    cr_assert_eq(setenv(CDI_NVTX_LIBRARY_ENV, library, 1), 0);
    cr_assert(old >= 0 && pipe(fd) == 0 && dup2(fd[1], STDERR_FILENO) >= 0);
    id = cdi_nvtx_begin("cddp step", 7);
    cdi_nvtx_push("cddp bucket", 0);
    cdi_nvtx_pop();
    cdi_nvtx_end(id);
    cdi_nvtx_end(0);
    (void)fflush(stderr);
    cr_assert(dup2(old, STDERR_FILENO) >= 0);
    (void)close(old);
    (void)close(fd[1]);
    n = read(fd[0], text, sizeof text - 1);
    (void)close(fd[0]);
    cr_assert_geq(n, 0);
    text[n] = '\0';
    return text;
}

Test(nvtx, ranges_have_names_and_ends)
{
    cr_assert_str_eq(ranges("1", CDI_TEST_NVTX), "start cddp step 7\npush cddp bucket 0\npop\nend 1\n");
}

Test(nvtx, off_opens_nothing)
{
    cr_assert_str_eq(ranges("0", CDI_TEST_NVTX), "");
}

Test(nvtx, missing_library_is_silent)
{
    cr_assert_str_eq(ranges("1", "/nonexistent/libnvToolsExt.so.1"), "");
}

/* libc is a library without these functions. */
Test(nvtx, library_without_the_functions_is_not_used)
{
    cr_assert_str_eq(ranges("1", "libc.so.6"), "");
}
