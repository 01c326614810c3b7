/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The element functions of the table (worker/backend/backend.h) on host memory. Pure; any thread; b is not used.
 */
#ifndef CDI_BACKEND_HOST_ELEMENTWISE_H
#define CDI_BACKEND_HOST_ELEMENTWISE_H

#include "worker/backend/backend.h"

cddp_status cdi_element_pack(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                             struct cdi_error *err);
cddp_status cdi_element_unpack(struct cdi_backend *b, const struct cdi_slice *to, size_t n, const void *from,
                               struct cdi_error *err);
cddp_status cdi_element_pack_scaled(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                                    cddp_dtype dtype, double factor, struct cdi_error *err);
cddp_status cdi_element_cast(struct cdi_backend *b, void *to, cddp_dtype to_type, const void *from,
                             cddp_dtype from_type, size_t count, float factor, struct cdi_error *err);
cddp_status cdi_element_scale(struct cdi_backend *b, void *x, size_t count, cddp_dtype dtype, double factor,
                              struct cdi_error *err);

cddp_status cdi_element_norm(struct cdi_backend *b, const struct cdi_span *x, size_t n, bool largest, double *out,
                             struct cdi_error *err);
cddp_status cdi_element_norm_round(struct cdi_backend *b, double *out, struct cdi_error *err);
cddp_status cdi_element_clip(struct cdi_backend *b, const struct cdi_span *x, size_t n, const struct cdi_clip *how,
                             const double *sum, struct cdi_error *err);

/* alloc, release and copy of a backend on the host. */
cddp_status cdi_host_memory_alloc(struct cdi_backend *b, size_t bytes, void **out, struct cdi_error *err);
void cdi_host_memory_release(struct cdi_backend *b, void *p);
cddp_status cdi_host_memory_copy(struct cdi_backend *b, void *to, const void *from, size_t bytes,
                                 struct cdi_error *err);
/* Is check_reduction of a backend on the host: accepts what reduce.h supports. */
cddp_status cdi_element_check_reduction(struct cdi_backend *b, cddp_dtype dtype, cddp_redop op, struct cdi_error *err);

#endif
