/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shows the agent the stack of a crash. From the first cddp_init on, if an agent has given this process a flight page
 * and CDDP_CRASH_STACK is not "off", a handler waits for SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT: each only if
 * nobody else handles it, and never while a debugger has the process. It notes the crash on the page, lets the agent
 * read the stack for at most two seconds, and raises the signal again with its default action: exit status and core
 * file are the same as without it. A child of fork() just dies. The handlers stay until the process ends, also after
 * cddp_finalize or a cddp_init that failed: a program that does not look at such an error crashes next.
 */
#ifndef CDI_COMM_CRASH_H
#define CDI_COMM_CRASH_H

#include "protocol/flight.h"

/*
 * Installs the handlers, unless they are there; for a page without an agent it does nothing. The page stays mapped.
 * Gives the calling thread a stack for signals if it has none, so that the handler can run when the thread's own stack
 * is full. Any thread. CDDP_E_INVALID: the variable's value is wrong.
 */
cddp_status cdi_crash_arm(struct cdi_flight *f, struct cdi_error *err);

#endif
