/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA runtime below NCCL's host code, on the stand-in's driver (tests/standin/library): the parts that its files
 * share. Memory that NCCL allocates for itself lies in one anonymous file per process, which other processes can map
 * (memory.c); that of the program is the stand-in's.
 */
#ifndef NCCL_HOST_RUNTIME_H
#define NCCL_HOST_RUNTIME_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "tests/standin/library/standin.h"

/* Makes the primary context of the thread's device current, if the thread has none. */
void host_context(void);

/* Returns memory of the arena, zeroed, or NULL; and whether an address is in the arena. */
void *host_alloc(size_t bytes);
void host_free(void *at);
bool host_owns(const void *at);

/* The largest parameter block of a kernel of NCCL. */
#define HOST_ARGS 4096

/* Puts the kernel with this handle on the stream; args has HOST_ARGS bytes. */
CUresult host_launch(const void *kernel, const void *args, CUstream stream);
/* The same for copying and filling memory in the order of the stream. */
CUresult host_copy(void *to, const void *from, size_t bytes, CUstream stream);
CUresult host_fill(void *to, int value, size_t bytes, CUstream stream);

/* The entry point of a function of the driver that the stand-in lacks, or NULL. */
void *host_driver_function(const char *name);

/* Runs a kernel of NCCL with these arguments, on the thread of its stream; and: reports the program's memory that it
 * uses. */
void host_kernel_run(const void *kernel, const void *args);
void host_kernel_ranges(const void *kernel, const void *args, struct standin_ranges *r);

#ifdef __cplusplus
}
#endif
#endif
