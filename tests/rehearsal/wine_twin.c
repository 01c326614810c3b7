/* SPDX-License-Identifier: Apache-2.0 */
/* Wine's kernels (examples/wine/gpu_kernels.h) as twins for the stand-in, which opens this library. */
#include "gpu_kernels.h"
#include "standin.h"

/* gpu_kernels.h has let go of its type. */
#define WEIGHTS_BYTES (WINE_WEIGHTS * sizeof(REAL))

#define REAL float
#define NAME(x) x##_f32
#include "wine_twin_real.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(x) x##_f64
#include "wine_twin_real.h"

#define TWIN(kernel, type)                                                                                    \
    {                                                                                                         \
        .name = "wine_kernel_" #kernel "_" #type, .n_args = 1, .arg_size = {sizeof(struct wine_args_##type)}, \
        .thread = run_##kernel##_##type, .usable = usable_##type, .ranges = ranges_##kernel##_##type          \
    }
#define X(kernel, threads) TWIN(kernel, f32), TWIN(kernel, f64),

extern const struct standin_kernel standin_kernels[];
STANDIN_API const struct standin_kernel standin_kernels[] = {WINE_GPU_MAP(X){.name = NULL}};
