/* SPDX-License-Identifier: Apache-2.0 */
/* Finds out which parameters of a reducer are one memory, and rejects memory that overlaps otherwise. */
#ifndef CDI_REDUCER_OVERLAP_H
#define CDI_REDUCER_OVERLAP_H

#include "worker/reducer/state/state.h"

/*
 * Compares the memory of n parameters and n_buffers buffers, all of them valid. Two parameters with the same data,
 * count and type are tied; two buffers may share memory, since both get the same bytes. Fills in out, which
 * cdi_overlap_release frees, also after a failure. Returns CDDP_OK; CDDP_E_INVALID, with both names, if any other two
 * of data, gradients and buffers share a byte; or CDDP_E_NOMEM.
 */
cddp_status cdi_overlap_find(struct cdi_ddp_tied *out, const cddp_param *params, size_t n, const cddp_param *buffers,
                             size_t n_buffers, struct cdi_error *err);
void cdi_overlap_release(struct cdi_ddp_tied *tied);

#endif
