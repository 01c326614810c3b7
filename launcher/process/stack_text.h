/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks as text: threads in equal stacks are put together. Pure but for looking up names of functions. */
#ifndef STACK_TEXT_H
#define STACK_TEXT_H

#include "common/buf.h"
#include "launcher/process/tasks.h"

#define STACK_CUT "(its outer frames are left out)" /* the last line of a stack that has more */
#define STACK_FROZEN 'F'                            /* not the kernel's letter: frozen by its cgroup */

/* The stack of one thread, as it was read. */
struct stack_thread {
    pid_t tid;
    char name[TASK_NAME];
    char state;
    char why_none[192]; /* in place of frames; "": it has frames */
    int n;
    bool cut;     /* there are more frames */
    uint64_t *pc; /* n addresses, each in the instruction that is executed or that has called */
};

/* Appends " FUNCTION() at FILE:LINE" or the like, without a line's end. */
typedef cddp_status stack_name_fn(void *arg, uint64_t pc, struct cdi_buf *out);

/*
 * Appends a thread's frames: a line for each, or `  #M to #N` for a recursion. CDDP_E_NOMEM, CDDP_E_LIMIT.
 */
cddp_status stack_text_frames(const struct stack_thread *t, stack_name_fn *name, void *arg, struct cdi_buf *out);
/* Appends all n threads, and the number of those that were not read. Reorders nothing. */
cddp_status stack_text(const struct stack_thread *threads, int n, int unread, stack_name_fn *name, void *arg,
                       struct cdi_buf *out);

#endif
