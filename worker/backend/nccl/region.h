/* SPDX-License-Identifier: Apache-2.0 */
/* Regions: the memory of a reducer's buckets on the GPU. */
#ifndef CDI_NCCL_REGION_H
#define CDI_NCCL_REGION_H

#include "worker/backend/nccl/state/state.h"

/* The functions of the same names in struct cdi_backend_ops. */
cddp_status cdi_gpu_region_create(struct cdi_backend *b, size_t bytes, struct cdi_region **out, struct cdi_error *err);
void cdi_gpu_region_destroy(struct cdi_backend *b, struct cdi_region *r);
/*
 * Detaches all regions from the communicator, after its threads have ended: frees the destroyed ones in b->windows, and
 * leaves nothing but memory of the others.
 */
void cdi_gpu_regions_detach(struct cdi_backend *b);

#endif
