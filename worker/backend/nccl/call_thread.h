/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread for calls into NCCL that may wait for peers: those of a blocking communicator by which ranks meet (joining,
 * splitting, windows), and an operation of a shape that was not seen before, whose connections NCCL makes at first use.
 * One call at a time. A call that never comes back is abandoned, with its thread and with all that it uses.
 */
#ifndef CDI_NCCL_CALL_THREAD_H
#define CDI_NCCL_CALL_THREAD_H

#include "worker/backend/nccl/library.h"

struct cdi_call_thread;

/* The thread starts, with this context current in it. CDDP_E_NOMEM, CDDP_E_SYSTEM. */
cddp_status cdi_call_thread_create(struct cdi_call_thread **out, CUcontext context, struct cdi_error *err);
/* Have it call fn(arg), and return at once. Nothing else is under way. */
void cdi_call_thread_run(struct cdi_call_thread *a, ncclResult_t (*fn)(void *arg), void *arg);
/* ncclInProgress while the call is under way, then what it has returned; before the first one ncclSuccess. Any thread.
 */
ncclResult_t cdi_call_thread_state(const struct cdi_call_thread *a);
/* Wait until nothing is under way, at most so long: is it so? */
bool cdi_call_thread_await(struct cdi_call_thread *a, int64_t timeout_ms);
/*
 * End the thread and free a. False: a call is still under way after timeout_ms; the thread is abandoned, and what the
 * call uses must stay for ever. NULL-safe (true).
 */
bool cdi_call_thread_destroy(struct cdi_call_thread *a, int64_t timeout_ms);

#endif
