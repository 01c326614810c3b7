/* SPDX-License-Identifier: Apache-2.0 */
#include "cublas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As in cublas_api.h and library_types.h, which need not be installed. */
enum { CUDA_R_32F = 0, CUDA_R_16BF = 14 };
enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum { CUBLAS_COMPUTE_32F = 68, CUBLAS_GEMM_DEFAULT = -1 };
enum { CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16 };

typedef void *cublasHandle_t;

struct cublas {
    void *library;
    char name[200];
    cublasHandle_t handle;
    int (*create)(cublasHandle_t *handle);
    int (*destroy)(cublasHandle_t handle);
    int (*set_stream)(cublasHandle_t handle, CUstream stream);
    int (*set_workspace)(cublasHandle_t handle, void *workspace, size_t bytes);
    int (*set_math_mode)(cublasHandle_t handle, int mode);
    int (*gemm)(cublasHandle_t handle, int opa, int opb, int m, int n, int k, const void *alpha, const void *a, int ta,
                int lda, const void *b, int tb, int ldb, const void *beta, void *c, int tc, int ldc, int compute,
                int algorithm);
    int (*gemm_batch)(cublasHandle_t handle, int opa, int opb, int m, int n, int k, const void *alpha, const void *a,
                      int ta, int lda, long long stride_a, const void *b, int tb, int ldb, long long stride_b,
                      const void *beta, void *c, int tc, int ldc, long long stride_c, int batch, int compute,
                      int algorithm);
};

static bool failed(struct gpu *g, const char *what, int status)
{
    if (g->why[0] == '\0')
        (void)snprintf(g->why, sizeof g->why, "%.150s failed in %s: cuBLAS status %d", g->blas->name, what, status);
    return false;
}

static bool good(struct gpu *g, const char *what, int status)
{
    return status == 0 || failed(g, what, status);
}

/* As libcddp does with NCCL: the name in the environment, else the libraries of CUDA 13, 12 and 11. */
static bool open_library(struct gpu *g)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11"};
    const char *given = getenv("CDDP_CUBLAS_LIBRARY");
    struct cublas *b = g->blas;

    if (given != NULL && given[0] != '\0') {
        b->library = dlopen(given, RTLD_NOW | RTLD_LOCAL);
        (void)snprintf(b->name, sizeof b->name, "%s", given);
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0] && b->library == NULL && b->name[0] == '\0'; i++) {
        b->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (b->library != NULL)
            (void)snprintf(b->name, sizeof b->name, "%s", names[i]);
    }
    if (b->library != NULL)
        return true;
    (void)snprintf(g->why, sizeof g->why,
                   "cannot open cuBLAS (%s%.150s): install it, add its folder to LD_LIBRARY_PATH, name it in "
                   "CDDP_CUBLAS_LIBRARY, or use --device cpu",
                   b->name[0] == '\0' ? "libcublas.so.13, .12 or .11" : "", b->name);
    return false;
}

static bool load(struct gpu *g)
{
    struct cublas *b = g->blas;
    const struct {
        const char *name;
        void *to;
    } all[] = {{"cublasCreate_v2", &b->create},
               {"cublasDestroy_v2", &b->destroy},
               {"cublasSetStream_v2", &b->set_stream},
               {"cublasSetWorkspace_v2", &b->set_workspace},
               {"cublasSetMathMode", &b->set_math_mode},
               {"cublasGemmEx", &b->gemm},
               {"cublasGemmStridedBatchedEx", &b->gemm_batch}};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        void *symbol = dlsym(b->library, all[i].name);

        if (symbol == NULL) {
            (void)snprintf(g->why, sizeof g->why, "%.150s has no %s: it is older than CUDA 11, or not cuBLAS", b->name,
                           all[i].name);
            return false;
        }
        memcpy(all[i].to, &symbol, sizeof symbol);
    }
    return true;
}

bool cublas_open(struct gpu *g, void *workspace)
{
    struct cublas *b = g->blas = calloc(1, sizeof *g->blas);

    if (b == NULL) {
        (void)snprintf(g->why, sizeof g->why, "out of memory");
        return false;
    }
    /* The stream first: setting it takes the workspace away. */
    return open_library(g) && load(g) && good(g, "cublasCreate", b->create(&b->handle)) &&
           good(g, "cublasSetStream", b->set_stream(b->handle, g->stream)) &&
           good(g, "cublasSetWorkspace", b->set_workspace(b->handle, workspace, CUBLAS_WORKSPACE_BYTES)) &&
           good(g, "cublasSetMathMode", b->set_math_mode(b->handle, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
}

void cublas_close(struct gpu *g)
{
    if (g->blas == NULL)
        return;
    if (g->blas->handle != NULL)
        (void)g->blas->destroy(g->blas->handle);
    if (g->blas->library != NULL)
        (void)dlclose(g->blas->library);
    free(g->blas);
    g->blas = NULL;
}

/* cuBLAS's matrices are column-major: it computes the transposed c, of the transposed b and a. */
bool cublas_gemm(struct gpu *g, const struct product *p)
{
    const struct cublas *x = g->blas;
    const float beta = p->add ? 1 : 0;
    const int type = g->bf16 ? CUDA_R_16BF : CUDA_R_32F, wide = p->wide ? CUDA_R_32F : type;
    const int op_a = p->a.turned ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = p->b.turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int m = (int)p->m, n = (int)p->n, k = (int)p->k;

    if (p->batch == 1)
        return good(g, "cublasGemmEx",
                    x->gemm(x->handle, op_b, op_a, n, m, k, &p->alpha, p->b.at, type, (int)p->b.ld, p->a.at, type,
                            (int)p->a.ld, &beta, (void *)(uintptr_t)p->c.at, wide, (int)p->c.ld, CUBLAS_COMPUTE_32F,
                            CUBLAS_GEMM_DEFAULT));
    return good(g, "cublasGemmStridedBatchedEx",
                x->gemm_batch(x->handle, op_b, op_a, n, m, k, &p->alpha, p->b.at, type, (int)p->b.ld,
                              (long long)p->b.stride, p->a.at, type, (int)p->a.ld, (long long)p->a.stride, &beta,
                              (void *)(uintptr_t)p->c.at, wide, (int)p->c.ld, (long long)p->c.stride, (int)p->batch,
                              CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}
