/* SPDX-License-Identifier: Apache-2.0 */
/* cddprun --top: a terminal view of the jobs of a running rendezvous, by ncurses, which is opened by name. */
#ifndef WATCH_TOP_H
#define WATCH_TOP_H

#include "common/error.h"
#include "protocol/auth.h"

#include <stdint.h>

/*
 * Shows the jobs until the user quits or a signal (INT, TERM, HUP, QUIT) comes; the terminal is then as before. secret
 * NULL: none. The calling thread's signal mask changes. Sets *signal to that signal, or 0. CDDP_E_NOT_FOUND: no
 * ncurses; CDDP_E_INVALID: no terminal, or one that ncurses does not know; CDDP_E_SYSTEM, CDDP_E_NOMEM.
 */
cddp_status top_run(const char *endpoint, const struct cdi_secret *secret, int *signal, struct cdi_error *err);

#endif
