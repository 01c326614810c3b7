/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CDDP_METRICS_FILE: a file with the times of this rank's steps, for the textfile collector of Prometheus' node
 * exporter. A thread writes it, so that no step waits for a file system; each time in whole, by a rename.
 */
#ifndef CDI_REDUCER_METRICS_H
#define CDI_REDUCER_METRICS_H

#include "worker/reducer/state/state.h"

/*
 * Starts the thread, if the variable is set. CDDP_E_INVALID: it is not a file's name; CDDP_E_NOMEM, CDDP_E_SYSTEM:
 * there is no thread. A file that cannot be written is not an error.
 */
cddp_status cdi_metrics_start(cddp_ddp *d, struct cdi_error *err);
/* Writes the file once more, and ends the thread. The lock is not held. Does nothing the second time. */
void cdi_metrics_stop(cddp_ddp *d);

#endif
