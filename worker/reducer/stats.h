/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The times of a reducer's steps: the parts of the reducer note what happens, with the lock held; the sums of all steps
 * go to the program (cddp_ddp_get_stats), and each step to the flight page. With CDDP_TIMING=off nothing is noted.
 *
 * On a device a step is counted later, when its times are known: in the next step's end, or when the sums are read. All
 * of its times are the device's. It waits where the compute stream does. Not every step is measured
 * (cdi_flight_times_step); the end of the step before one that is, is measured, too.
 */
#ifndef CDI_REDUCER_STATS_H
#define CDI_REDUCER_STATS_H

#include "worker/reducer/state/state.h"

/* Begins to measure, at creation. CDDP_E_NOMEM. */
cddp_status cdi_stats_create(cddp_ddp *d, struct cdi_error *err);
/* Frees; NULL-safe. */
void cdi_stats_release(cddp_ddp *d);
/* The step's first gradient is ready. */
void cdi_stats_first(cddp_ddp *d);
/* On a device: a gradient is made on `stream`, which is not being captured. Only the step's first call counts. */
void cdi_stats_first_on(cddp_ddp *d, void *stream);
/* Gradient i of the plan was counted, and so may have made buckets ready. Returns the time if it has; otherwise 0. */
int64_t cdi_stats_ready(cddp_ddp *d, size_t i);
/* The step has ended; d->step is its number. Also writes it to the flight page. */
void cdi_stats_step(cddp_ddp *d);
/* Reads what cddp_ddp_get_stats() returns; the communicator may be over. */
void cdi_stats_read(cddp_ddp *d, cddp_ddp_stats *found);
/* On a device: waits a moment until the times of the last steps are known, before ddp's end. Without the lock. */
void cdi_stats_settle(cddp_ddp *d);
/* The plan has changed: the buckets have other parameters, and perhaps another number. */
void cdi_stats_planned(cddp_ddp *d);

#endif
