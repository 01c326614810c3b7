/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives in a CUDA graph of the program. While a thread is between capture_enter and capture_leave, its operations
 * and element functions go on a stream that is used for nothing else, and which an event has made part of the capture;
 * stream_wait joins it again by another event. So nothing of a capture is on the communication stream, which other
 * threads use and query meanwhile.
 *
 * A replay makes no call of libcddp. The graph itself informs the host: before and after each group of collectives a
 * small kernel counts, in pinned memory, how often they have begun and ended. A write of a value by the stream, as
 * operations outside of graphs use it, would write the same value each time.
 */
#ifndef CDI_NCCL_GRAPH_CAPTURE_H
#define CDI_NCCL_GRAPH_CAPTURE_H

#include "worker/backend/nccl/state/state.h"

#define CDI_REPLAYS (UINT64_C(1) << 62) /* added to the number of a captured collective, which is not a ticket */

cddp_status cdi_capture_open(struct cdi_backend *b, struct cdi_error *err);
/* Frees everything. None of it runs any more. */
void cdi_capture_close(struct cdi_backend *b);

/* The functions of the same names in struct cdi_backend_ops. */
cddp_status cdi_gpu_capture_of(struct cdi_backend *b, void *stream, uint64_t *id, struct cdi_error *err);
bool cdi_gpu_capture_lives(struct cdi_backend *b);
cddp_status cdi_gpu_capture_enter(struct cdi_backend *b, void *stream, uint64_t id, struct cdi_error *err);
void cdi_gpu_capture_leave(struct cdi_backend *b);

/* Returns whether this thread is between enter and leave. Then these replace the functions without "capture". */
bool cdi_gpu_captures(const struct cdi_backend *b);
cddp_status cdi_capture_enqueue(struct cdi_backend *b, const struct cdi_coll *op, uint64_t *ticket,
                                struct cdi_error *err);
cddp_status cdi_capture_enqueue_group(struct cdi_backend *b, const struct cdi_coll *ops, size_t n,
                                      struct cdi_error *err);
cddp_status cdi_capture_wait_stream(struct cdi_backend *b, CUstream stream, struct cdi_error *err);
cddp_status cdi_capture_stream_wait(struct cdi_backend *b, uint64_t ticket, CUstream stream, struct cdi_error *err);
cddp_status cdi_capture_element_begin(struct cdi_backend *b, struct cdi_error *err);

/*
 * Updates the flight page with the counts of graphs. Returns true if no replay is in a collective. Makes no call of
 * CUDA.
 */
bool cdi_capture_poll(struct cdi_backend *b);
/* Describes the captured collective that a replay is in, if there is one. */
void cdi_capture_current(struct cdi_backend *b, struct cdi_op_info *out);
/* Gives replays ms more: see cdi_ring_add_time. */
void cdi_capture_add_time(struct cdi_backend *b, int64_t ms);

#endif
