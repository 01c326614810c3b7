/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the ranks of a node share, to reduce in it directly. */
#ifndef CDI_COLL_REGION_H
#define CDI_COLL_REGION_H

#include "worker/backend/cpu/coll/step.h"

/*
 * Creates the region that run->w describes, on all ranks or on none. A failure that all ranks agree on goes into
 * run->w->region_err and is CDDP_OK. Other errors as from cdi_cpu_comm_run.
 */
cddp_status cdi_cpu_region_create(struct cdi_run *run, struct cdi_error *err);
/* Creates a region in a world of one. CDDP_OK; a failure goes into w->region_err. */
cddp_status cdi_cpu_region_create_alone(struct cdi_cpu_comm *t, const struct cdi_work *w);
/* Unmaps and frees a region. NULL-safe. */
void cdi_cpu_region_destroy(struct cdi_cpu_comm *t, struct cdi_region *region);

#endif
