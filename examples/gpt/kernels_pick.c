/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels: those of this processor, and OpenBLAS's matrix product, opened by name, where it is installed. */
#include "kernels.h"

#include <dlfcn.h>
#include <string.h>

#define LIBRARY "libopenblas.so.0"

extern const struct kernels kernels_plain;
#ifdef GPT_X86
extern const struct kernels kernels_avx2, kernels_avx512;
#endif

static bool is(const char *name, const struct kernels *k)
{
    return name == NULL || strcmp(name, k->name) == 0;
}

static const struct kernels *of_this_processor(const char *name)
{
#ifdef GPT_X86
    if (is(name, &kernels_avx512) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        return &kernels_avx512;
    if (is(name, &kernels_avx2) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &kernels_avx2;
#endif
    return is(name, &kernels_plain) ? &kernels_plain : NULL;
}

/* As in cblas.h, which need not be installed: 101 is row-major, 111 plain, 112 transposed; int is its default. */
typedef void (*gemm_function)(int order, int ta, int tb, int m, int n, int k, real alpha, const real *a, int lda,
                              const real *b, int ldb, real beta, real *c, int ldc);

static gemm_function blas_gemm;

static void gemm(size_t m, size_t n, size_t k, real alpha, struct view a, struct view b, bool add, real *c, size_t ldc)
{
    blas_gemm(101, a.col == 1 ? 111 : 112, b.col == 1 ? 111 : 112, (int)m, (int)n, (int)k, alpha, a.at,
              (int)(a.col == 1 ? a.row : a.col), b.at, (int)(b.col == 1 ? b.row : b.col), add ? 1 : 0, c, (int)ldc);
}

/* One thread, since each core has a rank, and the sum of two threads is another one than that of one. */
static bool open_blas(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL), *found;
    void (*set_threads)(int);

    if (library == NULL)
        return false;
    found = dlsym(library, sizeof(real) == sizeof(float) ? "cblas_sgemm" : "cblas_dgemm");
    memcpy(&blas_gemm, &found, sizeof found);
    found = dlsym(library, "openblas_set_num_threads");
    memcpy(&set_threads, &found, sizeof found);
    if (blas_gemm == NULL || set_threads == NULL) {
        (void)dlclose(library);
        return false;
    }
    set_threads(1);
    return true;
}

const struct kernels *kernels_pick(const char *name)
{
    static struct kernels with_blas;

    if (name != NULL && strcmp(name, "openblas") != 0)
        return of_this_processor(name);
    if (blas_gemm == NULL && !open_blas())
        return name == NULL ? of_this_processor(NULL) : NULL;
    with_blas = *of_this_processor(NULL);
    with_blas.name = "openblas";
    with_blas.gemm = gemm;
    return &with_blas;
}
