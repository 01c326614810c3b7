/* SPDX-License-Identifier: Apache-2.0 */
/* The program py-spy, for Pythons whose memory layout is not known here. */
#ifndef CDI_PY_SPY_H
#define CDI_PY_SPY_H

#include "common/buf.h"

#include <sys/types.h>

/*
 * Runs `py-spy dump --nonblocking`, then `py-spy dump`, if PATH has it, and appends what it prints to out, at most 64
 * KiB. Blocks for at most twice timeout_ms, so call it from a thread that may wait. Another thread may reap the child.
 * CDDP_E_NOT_FOUND: there is no such program, or it fails; CDDP_E_TIMEOUT, CDDP_E_LIMIT, CDDP_E_NOMEM, CDDP_E_SYSTEM.
 */
cddp_status py_spy_dump(pid_t pid, uint32_t timeout_ms, struct cdi_buf *out);

#endif
