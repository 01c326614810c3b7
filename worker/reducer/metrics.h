/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CDDP_METRICS_FILE: a file with the times of this rank's steps, for the textfile collector of Prometheus' node
 * exporter. A thread writes it, so that no step waits for a file system; each time in whole, by a rename.
 */
#ifndef CDI_REDUCER_METRICS_H
#define CDI_REDUCER_METRICS_H

#include "worker/reducer/state/state.h"

/*
 * Prepares the file, if the variable is set. CDDP_E_INVALID: it is not a file's name; CDDP_E_NOMEM. A file that cannot
 * be written is not an error.
 */
cddp_status cdi_metrics_create(cddp_ddp *d, struct cdi_error *err);
/* Starts the thread, if there is a file for it. Without a thread there is a warning: the other ranks train already. */
void cdi_metrics_start(cddp_ddp *d);
/* Writes the file once more if the thread runs, and ends it. The lock is not held. Does nothing the second time. */
void cdi_metrics_stop(cddp_ddp *d);

#endif
