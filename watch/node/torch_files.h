/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of PyTorch's flight recorder, where a worker has switched it on: TORCH_FR_DUMP_TEMP_FILE or
 * TORCH_NCCL_DEBUG_INFO_TEMP_FILE name them, and TORCH_NCCL_DEBUG_INFO_PIPE_FILE a pipe that asks for a dump (struct
 * DumpPipe in torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp).
 */
#ifndef WATCH_NODE_TORCH_FILES_H
#define WATCH_NODE_TORCH_FILES_H

#include "watch/node/torch_watch.h"

#include <stdatomic.h>

/*
 * Asks all workers for a dump that can be asked, waits for it for at most wait_ms, and sets `dump` of each rank whose
 * dump has changed since the question, or is not older than the worker. Blocks, so call it from a
 * thread that may wait; it returns early after *stopping has become true. Returns whether a worker was asked.
 */
bool torch_files_find(struct torch_rank *v, size_t n, int64_t wait_ms, const atomic_bool *stopping);

#endif
