/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that sum. */
#ifndef CDI_COLL_REDUCTION_H
#define CDI_COLL_REDUCTION_H

#include "worker/backend/cpu/coll/step.h"

/* Runs all_reduce, reduce or reduce_scatter. Errors as from cdi_cpu_comm_run. */
cddp_status cdi_run_reduction(struct cdi_run *run, struct cdi_error *err);

#endif
