/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread for calls into NCCL that may wait for peers: those of a blocking communicator by which ranks meet (joining,
 * splitting, windows), and an operation of a shape that was not seen before, whose connections NCCL makes at first use.
 * One call at a time. A call that never comes back is abandoned, with its thread and with all that it uses.
 */
#ifndef CDI_NCCL_ASIDE_H
#define CDI_NCCL_ASIDE_H

#include "worker/backend/nccl/library.h"

struct cdi_aside;

/* The thread starts, with this context current in it. CDDP_E_NOMEM, CDDP_E_SYSTEM. */
cddp_status cdi_aside_create(struct cdi_aside **out, CUcontext context, struct cdi_error *err);
/* Have it call fn(arg), and return at once. Nothing else is under way. */
void cdi_aside_call(struct cdi_aside *a, ncclResult_t (*fn)(void *arg), void *arg);
/* ncclInProgress while the call is under way, then what it has returned; before the first one ncclSuccess. Any thread.
 */
ncclResult_t cdi_aside_state(const struct cdi_aside *a);
/* Wait until nothing is under way, at most so long: is it so? */
bool cdi_aside_await(struct cdi_aside *a, int64_t timeout_ms);
/*
 * End the thread and free a. False: a call is still under way after timeout_ms; the thread is abandoned, and what the
 * call uses must stay for ever. NULL-safe (true).
 */
bool cdi_aside_destroy(struct cdi_aside *a, int64_t timeout_ms);

#endif
