/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Python stacks of a live process, read from outside: its memory by process_vm_readv, by the facts of CPython's
 * layout. The process does not stop, and nothing runs in it. Works for the caller's own descendants without privileges,
 * unless the kernel forbids it (ptrace_scope above 1, another user, a process that is not dumpable).
 */
#ifndef CDI_PYTHON_STACK_H
#define CDI_PYTHON_STACK_H

#include "common/buf.h"
#include "common/error.h"
#include "launcher/process/python_decode.h"

#include <stdbool.h>
#include <sys/types.h>

/* Returns whether the process has mapped CPython: its program, or libpython3. Reads /proc/PID/maps only. */
bool python_stack_is_python(pid_t pid);

/*
 * Reads the stacks of all Python threads, the main thread first. limits NULL: the defaults. Blocks for at most
 * limits->timeout_ms, so call it from a thread that may wait. Release *out with python_stacks_release() in any case.
 * CDDP_E_NOT_FOUND: no Python, or its threads have no frames; CDDP_E_UNSUPPORTED: a Python whose layout is not known;
 * CDDP_E_DENIED: its memory may not be read; CDDP_E_TIMEOUT, CDDP_E_NOMEM; CDDP_E_PROTOCOL: the contents make no sense.
 */
cddp_status python_stack_collect(pid_t pid, const struct python_stack_limits *limits, struct python_stacks *out,
                                 struct cdi_error *err);

/*
 * Appends the stacks as text to out: for each thread a line with its number and, if it differs from the process', its
 * name, then a line per frame, "    function (file.py:12)", innermost first. Threads with equal stacks share them. If
 * the layout is not known, takes the text of `py-spy dump` if PATH has that program, unless limits->no_py_spy. Blocks
 * and fails like python_stack_collect(); CDDP_E_LIMIT: out is full.
 */
cddp_status python_stack_read(pid_t pid, const struct python_stack_limits *limits, struct cdi_buf *out,
                              struct cdi_error *err);

/* Appends stacks that were collected, as python_stack_read() does. CDDP_E_LIMIT, CDDP_E_NOMEM. */
cddp_status python_stack_text(const struct python_stacks *stacks, struct cdi_buf *out);

#endif
