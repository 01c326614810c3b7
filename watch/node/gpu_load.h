/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load of the ranks' GPUs, for the report of a node. A separate thread reads it, only when somebody asks: a GPU
 * that is lost may hold it for ever, and nothing waits for it.
 */
#ifndef WATCH_NODE_GPU_LOAD_H
#define WATCH_NODE_GPU_LOAD_H

#include "common/gpus.h"
#include "protocol/node_report.h"

#include <sys/types.h>

#define GPU_LOAD_WAIT_MS 100   /* for an answer; a later one is for the next report */
#define GPU_LOAD_VALID_MS 3000 /* an older answer tells nothing */

struct gpu_load;

/* For n ranks. library: its file; the string must outlive the process. CDDP_E_NOMEM. */
cddp_status gpu_load_create(struct gpu_load **out, size_t n, const char *library);
/* The thread may still read; then it frees what is left. NULL-safe. */
void gpu_load_destroy(struct gpu_load *g);
/*
 * Fills in gpu_permille, gpu_used_bytes and gpu_total_bytes of the n ranks, of which pids[i] is the process that may
 * use a GPU (0: none). Starts a reading, and waits GPU_LOAD_WAIT_MS at most. One thread at a time.
 */
void gpu_load_look(struct gpu_load *g, const pid_t *pids, struct cdi_rank_report *ranks, size_t n);

/*
 * Finds the GPU of a worker with this environment (entries that end with NUL, as in /proc/PID/environ), by
 * CUDA_VISIBLE_DEVICES and LOCAL_RANK. Returns its index in all[]; -1: not known, such as an instance (MIG), or a
 * number on a node with GPUs of several models, whose order is CUDA's own. Pure.
 */
int gpu_load_of(const char *environment, size_t len, const struct cdi_gpu *all, size_t n_all);

#endif
