/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals that ask a rank to stop. From its first cddp_should_stop on, a program whose action for them is the default
 * one goes on after such a signal, and all ranks agree to stop instead. A batch system sends them to the ranks, too.
 */
#ifndef CDI_STOP_SIGNAL_H
#define CDI_STOP_SIGNAL_H

#include "protocol/flight.h"

/*
 * Takes the signals of CDDP_STOP_SIGNALS (default: TERM) whose action is the default one. f is the page of this
 * process. After a report of the agent that ends the round, and in a child of fork(), such a signal still ends the
 * process. Each success needs one cdi_stop_signal_leave(). Any thread. CDDP_OK, CDDP_E_INVALID (the variable's value).
 */
cddp_status cdi_stop_signal_watch(struct cdi_flight *f, struct cdi_error *err);
/* Restores the default actions after the last call, unless `stay`: the process is about to end. Any thread. */
void cdi_stop_signal_leave(bool stay);
/* Returns whether this process got one of them. Any thread. */
bool cdi_stop_signal_heard(void);

#endif
