/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program py-spy, which reads Python stacks from outside: the process does not stop, and nothing runs in it. It
 * reads the memory of another process, for which Yama wants a declaration of that process: shim.c makes it.
 */
#ifndef CDI_PY_SPY_H
#define CDI_PY_SPY_H

#include "launcher/process/python_stack.h"

/*
 * Reads the stacks of all Python threads by py-spy, which is beside cddprun or on PATH. limits NULL: the defaults.
 * Blocks for at most limits->timeout_ms, so call it from a thread that may wait. Another thread may reap the child.
 * Release *out with python_stacks_release() in any case. CDDP_E_UNSUPPORTED: py-spy is missing; CDDP_E_DENIED: the
 * memory may not be read; CDDP_E_PROTOCOL: py-spy fails, such as for a process that is gone or not Python;
 * CDDP_E_NOT_FOUND: no thread runs Python code; CDDP_E_TIMEOUT, CDDP_E_NOMEM, CDDP_E_SYSTEM.
 */
cddp_status py_spy_collect(pid_t pid, const struct python_stack_limits *limits, struct python_stacks *out,
                           struct cdi_error *err);

#endif
