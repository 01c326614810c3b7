/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the GPU reached points of its streams, in ns of CLOCK_MONOTONIC, by events with times. No call waits for one:
 * the progress thread reads an event some milliseconds after the GPU has reached it, and keeps its time for a while.
 *
 * A bucket costs one event more, after it. What it follows has an event anyway (wait_stream), which here has a time: a
 * bucket starts when the GPU has reached that event, and is done with the bucket before it. So work of libcddp between
 * two buckets, such as copies of gradients, counts as part of the later one.
 *
 * The alternative is a kernel that reads %globaltimer: it needs no event, but the PTX ISA calls the register "intended
 * for use by NVIDIA tools", with behavior that "may change or be removed in future GPUs". A write by the stream
 * (cuStreamWriteValue32) has no time.
 *
 * Nothing here is used within a capture. With CDDP_TIMING=off there are no stamps, and so no call of the driver.
 */
#ifndef CDI_GPU_TIMESTAMPS_H
#define CDI_GPU_TIMESTAMPS_H

#include "worker/backend/nccl/state/state.h"

/* Begins, unless CDDP_TIMING is off, and waits for one event. The context is current. CDDP_E_NOMEM, CDDP_E_SYSTEM. */
cddp_status cdi_gpu_timestamps_open(struct cdi_backend *b, struct cdi_error *err);
/* Ends; no other thread uses b. The context is current. */
void cdi_gpu_timestamps_close(struct cdi_backend *b);

/*
 * Makes the communication stream follow the work that is now on `stream`. timed: the next bucket's times need this one.
 * With `lock`. CDDP_E_SYSTEM.
 */
cddp_status cdi_gpu_timestamps_follow(struct cdi_backend *b, CUstream stream, bool timed, struct cdi_error *err);
/* The host is about to begin operations. With `lock`. */
void cdi_gpu_timestamps_begin(struct cdi_backend *b);
/* The work of tickets first to last is on the stream. Records its end if some of it is timed. With `lock`.
 * CDDP_E_SYSTEM. */
cddp_status cdi_gpu_timestamps_end(struct cdi_backend *b, uint64_t first, uint64_t last, struct cdi_error *err);
/*
 * Records a point of a stream that is not being captured. Returns its number; 0: there are no stamps, or too many that
 * the GPU has not reached. The context is current. Without `lock`.
 */
uint64_t cdi_gpu_timestamps_point(struct cdi_backend *b, CUstream stream);

/*
 * Reads what the GPU has reached, and writes the times of buckets to the flight page. The progress thread alone,
 * without `lock`, in the device.
 */
void cdi_gpu_timestamps_read(struct cdi_backend *b);

/* The functions of the same names in struct cdi_backend_ops. Without `lock`. */
bool cdi_gpu_stamp_time(struct cdi_backend *b, uint64_t stamp, int64_t *ns);
void cdi_gpu_coll_times(struct cdi_backend *b, uint64_t ticket, struct cdi_coll_times *times, int64_t *ready_ns);
uint64_t cdi_gpu_stamp(struct cdi_backend *b, void *stream);

#endif
