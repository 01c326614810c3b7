/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This node's usable cores, GPUs and host name. Reads files only, without CUDA and DNS, so that it is fast on a node
 * without either. Blocks only on reading /proc, /sys and /dev.
 */
#ifndef MACHINE_H
#define MACHINE_H

#include "common/error.h"
#include "common/gpus.h"

#include <stdint.h>

struct machine {
    uint32_t n_cores;                  /* usable by this process: affinity and cgroup quota; at least 1 */
    uint32_t n_gpus;                   /* visible to CUDA */
    struct cdi_gpu gpus[CDI_GPUS_MAX]; /* in CUDA's order; all zero but numa_node -1 if not known */
    char host[256];
};

/*
 * Reads this node. root is a prefix for the paths of GPUs ("" in production, a directory in tests).
 * cuda_visible_devices: the variable, NULL if it is not set. An unreadable file counts as no limit, or as no GPU.
 */
void machine_read(struct machine *m, const char *root, const char *cuda_visible_devices);

#endif
