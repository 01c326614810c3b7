/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's management library, opened by name: the load and memory of this node's GPUs. Its calls may block for
 * seconds, and for ever if a GPU is lost: no function here is for a thread that somebody waits for.
 */
#ifndef NVML_H
#define NVML_H

#include "common/gpus.h"

#include <stdbool.h>
#include <stdint.h>

#define NVML_LIBRARY "libnvidia-ml.so.1"

struct nvml; /* the library, initialised, and its GPUs */

/* The GPU, with everything that runs on it. */
struct nvml_load {
    int32_t permille;                 /* of the time in which it worked, of the last second or less; -1: not known */
    uint64_t used_bytes, total_bytes; /* of its memory; total_bytes 0: not known */
};
/* Whether a GPU is fit for work. */
struct nvml_health {
    uint64_t uncorrected; /* memory errors since the driver was loaded that ECC could not correct */
    bool slowed;          /* its clocks are lowered because of heat, or by its power supply */
};

/*
 * Opens the library of this name, once per process: it stays open, and later calls return the same, whatever their
 * name. NULL: there is none, or no driver, or no GPU. Any thread.
 */
const struct nvml *nvml_open(const char *library);
/* Returns the GPUs, in the order of their PCI addresses, as cdi_gpus_visible() takes them; uuid and model are set. */
const struct cdi_gpu *nvml_gpus(const struct nvml *n, size_t *count);
/* Reads one of them. Nothing is known of a GPU that is divided into instances (MIG). Any thread. */
struct nvml_load nvml_read(const struct nvml *n, size_t gpu);
/* Reads the health of one of them; an older library or GPU that does not know counts as healthy. Any thread. */
struct nvml_health nvml_health(const struct nvml *n, size_t gpu);

#endif
