/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of a thread of another process, and names for their addresses, by libdw. Blocks; one thread at a time. */
#ifndef UNWIND_H
#define UNWIND_H

#include "launcher/process/libdw.h"
#include "launcher/process/stack.h"
#include "launcher/process/stack_text.h"

/* The caller zeroes it, and keeps it at its place until unwind_close(). */
struct unwind {
    struct libdw dw; /* opened */
    Dwfl_Callbacks callbacks;
    Dwfl *dwfl;
    bool opened; /* its memory: */
    int mem;
    pid_t pid;
    bool is_waiting; /* its one thread waits, and has passed its registers: */
    struct stack_registers regs;
    struct stack_thread *thread; /* that is unwound */
    int frames;                  /* the most */
    int64_t deadline_ns;         /* frames and lines of sources are not looked for after it */
};

/*
 * Opens the memory and the modules of u->pid. CDDP_E_NOT_FOUND: it is gone; CDDP_E_DENIED: it may not be traced;
 * CDDP_E_SYSTEM, CDDP_E_NOMEM. Call unwind_close() in any case.
 */
cddp_status unwind_open(struct unwind *u, struct cdi_error *err);
/* Fills t->pc (room for u->frames) with the frames of a thread that waits, or that the caller has stopped. */
void unwind_thread(struct unwind *u, struct stack_thread *t);
/* Is a stack_name_fn; arg is the struct unwind. The process may run meanwhile. */
cddp_status unwind_name(void *arg, uint64_t pc, struct cdi_buf *out);
void unwind_close(struct unwind *u);
/* Writes the message for a process that may not be traced; returns CDDP_E_DENIED. */
cddp_status unwind_denied(pid_t pid, struct cdi_error *err);

#endif
