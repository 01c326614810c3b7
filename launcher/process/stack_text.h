/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks as text: threads in equal stacks are put together. Pure but for looking up names of functions. */
#ifndef STACK_TEXT_H
#define STACK_TEXT_H

#include "common/buf.h"
#include "launcher/process/tasks.h"

#define STACK_CUT "(its outer frames are left out)" /* the last line of a stack that has more */
#define STACK_FOUND " (found on the stack)"         /* the end of an uncertain frame's line */
#define STACK_LOST "(its outer frames are not known)"
#define STACK_FROZEN 'F' /* not the kernel's letter: frozen by its cgroup */

/* The stack of one thread, as it was read. */
struct stack_thread {
    pid_t tid;
    char name[TASK_NAME];
    char state;
    const char *why_none; /* in place of frames; NULL: it has frames */
    int n;
    bool cut;     /* there are more frames */
    bool blocked; /* it could not be stopped, and was read without that */
    bool lost;    /* the outermost frame has a caller that could not be found */
    int found;    /* the first frame that was found on the stack, without a table: it and those after it are uncertain;
                     0: none */
    uint64_t *pc; /* n addresses, each in the instruction that is executed or that has called */
};

/* Appends " FUNCTION() at FILE:LINE" or the like, without a line's end. */
typedef cddp_status stack_name_fn(void *arg, uint64_t pc, struct cdi_buf *out);

/*
 * Appends a thread's frames: a line for each, or `  #M to #N` for a recursion; uncertain ones end with STACK_FOUND.
 * CDDP_E_NOMEM, CDDP_E_LIMIT.
 */
cddp_status stack_text_frames(const struct stack_thread *t, stack_name_fn *name, void *arg, struct cdi_buf *out);
/* Appends all n threads, and the number of those that were not read. Reorders nothing. */
cddp_status stack_text(const struct stack_thread *threads, int n, int unread, stack_name_fn *name, void *arg,
                       struct cdi_buf *out);

#endif
