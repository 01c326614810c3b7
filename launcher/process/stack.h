/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The native stacks of another process, for reports about a rank that hangs or crashes. elfutils' libdw reads them; it
 * is opened by name, so that cddprun runs without it. Function names come from the program's own symbols, lines from
 * its own debugging information; separate files of debugging information are not looked up.
 *
 * A function here blocks for its time limit at most, even if the process cannot be stopped or its memory cannot be
 * read: call it in a separate thread, such as libuv's workers, and never on a loop. Several calls at once need
 * different pids. The kernel may restrict tracing (Yama) to ancestors of the process.
 */
#ifndef STACK_H
#define STACK_H

#include "common/buf.h"
#include "common/error.h"

#include <stdint.h>
#include <sys/types.h>

#define STACK_TIMEOUT_MS 5000
#define STACK_REGISTERS 33 /* the most that a machine has here */

struct stack_limits {
    int threads;    /* at most this many threads, in the order of their ids; the rest is counted; at most 1024 */
    int frames;     /* at most this many frames of each, from the innermost on; at most 256 */
    int timeout_ms; /* of the whole call; 0: STACK_TIMEOUT_MS */
};

/* A thread's registers: those that DWARF numbers from 0 on, and its program counter. n 0: not known on this machine. */
struct stack_registers {
    uint32_t n;
    uint64_t pc;
    uint64_t value[STACK_REGISTERS];
};

/*
 * Appends the stacks of the threads of pid to *out, as text: for each thread a line `thread TID (NAME), STATE:`, and
 * for each of its frames a line `  #N FUNCTION() at FILE:LINE`, `  #N FUNCTION() in MODULE` or `  #N ADDRESS in
 * MODULE+OFFSET`. Threads in equal stacks and states share a text: `threads 77 (a), 78 (b) and 5 more, sleeping:`.
 * Where a function is inlined, the line is `  #N FUNCTION() at FILE:LINE, inlined INNERMOST() at FILE:LINE`.
 *
 * A thread that cannot be stopped, since it is frozen by its cgroup or in uninterruptible sleep, has one line in place
 * of its frames: `  no stack: it cannot be stopped, in CALL (KERNEL_FUNCTION)`, as far as the kernel tells.
 *
 * Each thread is stopped while its frames are read, for some milliseconds, and then goes on; a stopped process stays
 * stopped. A wait of this process for its children may return these stops, whatever its flags: ignore them.
 *
 * Returns CDDP_OK; CDDP_E_UNSUPPORTED (this build or this machine lacks libdw); CDDP_E_DENIED (the process may not be
 * traced: a debugger has it, or ptrace_scope or a container forbids it); CDDP_E_NOT_FOUND (it is gone); CDDP_E_TIMEOUT;
 * CDDP_E_SYSTEM; CDDP_E_NOMEM. Each error message is one line for a report. On failure *out is as before.
 */
cddp_status stack_read(pid_t pid, const struct stack_limits *limits, struct cdi_buf *out, struct cdi_error *err);

/*
 * Appends the frames of one thread that itself waits and has passed its registers: that of a crash. Nothing is stopped,
 * and only the frames' lines are written, after a line `thread 'NAME':`. Otherwise as stack_read().
 */
cddp_status stack_read_waiting(pid_t pid, pid_t tid, const struct stack_registers *regs,
                               const struct stack_limits *limits, struct cdi_buf *out, struct cdi_error *err);

#endif
