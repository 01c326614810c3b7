/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that are sent in another data type (comm_dtype). Without comm_dtype these functions do nothing. */
#ifndef CDI_REDUCER_COMPRESS_H
#define CDI_REDUCER_COMPRESS_H

#include "worker/reducer/state/state.h"

/*
 * Places each bucket of a new plan in the communication region. The region's size is what the largest of all plans
 * needs.
 */
void cdi_compress_place(cddp_ddp *d);
/* Creates the communication region. */
cddp_status cdi_compress_init(cddp_ddp *d, struct cdi_error *err);
/* Casts a complete bucket into the communication region and makes op reduce it there. The cast looks as op says. */
cddp_status cdi_compress_pack(cddp_ddp *d, size_t bucket, struct cdi_coll *op, struct cdi_error *err);
/* Casts a reduced bucket back into the arena, once per step. */
cddp_status cdi_compress_unpack(cddp_ddp *d, size_t bucket, struct cdi_error *err);
/* Returns the narrower of dtype and the type in which a gradient of dtype is sent. */
cddp_dtype cdi_compress_narrowest(const cddp_ddp *d, cddp_dtype dtype);

#endif
