/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this machine has: usable cores, GPUs, its name. Read from files, without CUDA and without DNS, so that a machine
 * without either answers as fast. Blocks only on reading /proc, /sys and /dev.
 */
#ifndef MACHINE_H
#define MACHINE_H

#include "common/error.h"
#include "common/gpus.h"

#include <stdint.h>

struct machine {
    uint32_t n_cores;                  /* that this process may use: affinity and cgroup quota; at least 1 */
    uint32_t n_gpus;                   /* that CUDA would show */
    struct cdi_gpu gpus[CDI_GPUS_MAX]; /* these, in CUDA's order; all zero but numa_node -1 where it cannot be told */
    char host[256];
};

/*
 * root is put in front of the paths of GPUs ("" in production, a directory in tests). cuda_visible_devices: the
 * variable, NULL if it is not set. What cannot be read counts as not limiting, or as no GPU.
 */
void machine_read(struct machine *m, const char *root, const char *cuda_visible_devices);

#endif
