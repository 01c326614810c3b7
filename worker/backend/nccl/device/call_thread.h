/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread for calls into NCCL that may wait for peers: the calls of a blocking communicator that connect ranks
 * (joining, splitting, windows), and operations of a new shape, whose connections NCCL makes at first use. One call at
 * a time. A call that never returns is abandoned, with its thread and with all that it uses.
 */
#ifndef CDI_NCCL_CALL_THREAD_H
#define CDI_NCCL_CALL_THREAD_H

#include "worker/backend/nccl/device/library.h"

struct cdi_call_thread;

/* Starts the thread, with this context current in it. CDDP_E_NOMEM, CDDP_E_SYSTEM. */
cddp_status cdi_call_thread_create(struct cdi_call_thread **out, CUcontext context, struct cdi_error *err);
/* Has the thread call fn(arg), and returns at once. No other call is under way. */
void cdi_call_thread_run(struct cdi_call_thread *a, ncclResult_t (*fn)(void *arg), void *arg);
/*
 * Returns ncclInProgress while the call is under way, then its result; before the first call ncclSuccess. Any thread.
 */
ncclResult_t cdi_call_thread_state(const struct cdi_call_thread *a);
/* Waits until no call is under way. Returns false at the timeout. */
bool cdi_call_thread_await(struct cdi_call_thread *a, int64_t timeout_ms);
/*
 * Ends the thread and frees a. Returns false if a call is still under way after timeout_ms: the thread is abandoned,
 * and the memory that the call uses must never be freed. NULL-safe (true).
 */
bool cdi_call_thread_destroy(struct cdi_call_thread *a, int64_t timeout_ms);

#endif
