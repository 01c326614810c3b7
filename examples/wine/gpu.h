/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training step's kernels on the GPU that libcddp works on: one stream, and the kernels of gpu_kernels.cu, by
 * CUDA's driver interface, which is opened at run time so that the program also runs where there is none. (A program
 * that needs a GPU anyway would use the runtime interface and <<<>>>: libcddp has made the device's primary context
 * current, which is all that they need to share.) Memory comes from cddp_alloc().
 *
 * One thread. Functions that can fail return false and keep the error message of the first failure (gpu_why).
 */
#ifndef WINE_GPU_H
#define WINE_GPU_H

#include "gpu_kernels.h"

#include <stdbool.h>
#include <stddef.h>

struct gpu;

/* A stream and the kernels, in the context that is current. NULL: `why` says what is missing or what failed. */
struct gpu *gpu_open(char *why, size_t cap);
/* Wait for the stream, free everything. NULL is allowed. */
void gpu_close(struct gpu *g);

/* The stream that all of this runs on, for libcddp: a cudaStream_t. */
void *gpu_stream(const struct gpu *g);
/* "" as long as nothing failed. */
const char *gpu_why(const struct gpu *g);

/* Launch a kernel with its argument struct (wine_args_f64 if f64), for a step on n samples. Does not wait. */
bool gpu_launch(struct gpu *g, enum wine_kernel kernel, bool f64, int n, const void *args);
/* Until all that was launched is done. */
bool gpu_wait(struct gpu *g);

#endif
