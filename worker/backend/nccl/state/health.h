/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The health of a communicator: its sticky error, and calls into NCCL, which must not outlive the abort that follows
 * that error. Any thread may call these functions, with or without `lock`, unless a comment says otherwise.
 */
#ifndef CDI_NCCL_HEALTH_H
#define CDI_NCCL_HEALTH_H

#include "worker/backend/nccl/state/state.h"

#include <time.h>

/*
 * Sets the sticky error, unless there is one. The watch thread then completes the flight page, aborts the communicator
 * and notifies the peers. Returns the status of the sticky error.
 */
cddp_status cdi_gpu_fail(struct cdi_backend *b, const struct cdi_error *err);
/*
 * Return CDDP_OK or the sticky error, and check whether the agent has reported a death. After a failure _health waits,
 * at most a few seconds, until nothing of this communicator runs on the GPU (never with `lock`); _health_now does not
 * wait.
 */
cddp_status cdi_gpu_health(struct cdi_backend *b, struct cdi_error *err);
cddp_status cdi_gpu_health_now(struct cdi_backend *b, struct cdi_error *err);
/*
 * Returns false if the communicator has failed and the wait for its end has timed out, so that any of its memory may
 * still be in use.
 */
bool cdi_gpu_is_idle(struct cdi_backend *b);
/* Marks the communicator busy: an operation, or a call that all ranks take part in, is under way. With `lock`. */
void cdi_gpu_set_busy(struct cdi_backend *b);
/*
 * Pauses a thread of the communicator for ms, or for as long as nothing is under way; *idle_until_ms (or NULL) is then
 * the end of that idle time. Returns false after a failure and at the communicator's end.
 */
bool cdi_gpu_pause(struct cdi_backend *b, int64_t ms, int64_t *idle_until_ms);

/* Returns the absolute time of CLOCK_MONOTONIC that pthread_cond_timedwait takes. */
static inline struct timespec cdi_timespec_of(int64_t ms)
{
    return (struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
}

/* Enclose calls of NCCL on comm. Enter returns false after a failure: there may be no comm any more. */
bool cdi_nccl_enter(struct cdi_backend *b);
void cdi_nccl_leave(struct cdi_backend *b);
/*
 * Waits, after an error r of NCCL, up to a second for the report of the agent or a peer that names the rank that is
 * gone: NCCL often notices first that a connection is closed (socket.cc), and does not know whose it was. Calls listen
 * between two checks. Returns true if there is now a sticky error, which is the better error message.
 */
bool cdi_nccl_await_word(struct cdi_backend *b, ncclResult_t r, void (*listen)(struct cdi_backend *b));
/* Returns the status for NCCL's error r, with an error message such as "all_reduce: NCCL reports ...". */
cddp_status cdi_nccl_fail(struct cdi_backend *b, ncclResult_t r, const char *what, struct cdi_error *err);
/*
 * Makes a call on b or on b->call that may wait for peers: here on a non-blocking communicator, otherwise in the call
 * thread. Returns the result of the call, or ncclInProgress.
 */
ncclResult_t cdi_nccl_call(struct cdi_backend *b, ncclResult_t (*fn)(void *b));
/*
 * Returns the state of comm (b's, or one made by it) after a call that has returned r. Of r alone only errors are
 * believed.
 */
ncclResult_t cdi_nccl_state(struct cdi_backend *b, ncclComm_t comm, ncclResult_t r);
/*
 * Polls comm after a call that has returned r, until NCCL is done (with `lock`, if comm is b's). Returns CDDP_OK (comm
 * takes the next call), the sticky error, CDDP_E_TIMEOUT, or, if no report of a death follows it, NCCL's error as
 * CDDP_E_SYSTEM or CDDP_E_PEER. what: for the error message.
 */
cddp_status cdi_nccl_wait_ready(struct cdi_backend *b, ncclComm_t comm, ncclResult_t r, const char *what,
                                int64_t deadline_ms, struct cdi_error *err);

#endif
