/* SPDX-License-Identifier: Apache-2.0 */
/* Element functions as kernels on the communication stream: the functions of the same names in cdi_backend_ops. */
#ifndef CDI_NCCL_ELEMENT_OPS_H
#define CDI_NCCL_ELEMENT_OPS_H

#include "worker/backend/nccl/state/state.h"

cddp_status cdi_gpu_pack(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                         struct cdi_error *err);
cddp_status cdi_gpu_unpack(struct cdi_backend *b, const struct cdi_slice *to, size_t n, const void *from,
                           struct cdi_error *err);
cddp_status cdi_gpu_pack_scaled(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                                cddp_dtype dtype, double factor, struct cdi_error *err);
cddp_status cdi_gpu_pack_unless(struct cdi_backend *b, void *to, const struct cdi_slice *from, size_t n,
                                const uint8_t *flags, const uint32_t *of, struct cdi_error *err);
cddp_status cdi_gpu_cast(struct cdi_backend *b, void *to, cddp_dtype to_type, const void *from, cddp_dtype from_type,
                         size_t count, float factor, struct cdi_error *err);
cddp_status cdi_gpu_scale(struct cdi_backend *b, void *x, size_t count, cddp_dtype dtype, double factor,
                          struct cdi_error *err);
cddp_status cdi_gpu_find(struct cdi_backend *b, const struct cdi_span *x, const uint64_t *word_of, size_t n,
                         uint64_t limit, uint64_t *word, struct cdi_error *err);
cddp_status cdi_gpu_hash(struct cdi_backend *b, const struct cdi_slice *x, size_t n, uint64_t *sum,
                         struct cdi_error *err);
cddp_status cdi_gpu_tally(struct cdi_backend *b, const struct cdi_span *x, size_t n, bool largest, double *out,
                          struct cdi_error *err);
cddp_status cdi_gpu_fold(struct cdi_backend *b, double *out, struct cdi_error *err);
cddp_status cdi_gpu_clip(struct cdi_backend *b, const struct cdi_span *x, size_t n, const struct cdi_clip *how,
                         const double *sum, struct cdi_error *err);
cddp_status cdi_gpu_store(struct cdi_backend *b, double *to, const double *value, size_t n, void *stream,
                          struct cdi_error *err);
cddp_status cdi_gpu_report(struct cdi_backend *b, uint64_t *words, struct cdi_nan_report *report,
                           struct cdi_error *err);
cddp_status cdi_gpu_clear(struct cdi_backend *b, void *p, size_t bytes, struct cdi_error *err);
cddp_status cdi_gpu_optim_count(struct cdi_backend *b, const struct cdi_optim_step *s, struct cdi_error *err);
cddp_status cdi_gpu_optim_update(struct cdi_backend *b, const struct cdi_optim_step *s,
                                 const struct cdi_optim_piece *piece, size_t n, struct cdi_error *err);
cddp_status cdi_gpu_lowrank(struct cdi_backend *b, enum cdi_lowrank_step step, const struct cdi_lowrank_matrix *m,
                            size_t n, double epsilon, struct cdi_error *err);

/*
 * Enters the device, locks, and starts operations that may begin, so that kernels may be launched. After CDDP_OK,
 * call _end.
 */
cddp_status cdi_gpu_element_begin(struct cdi_backend *b, struct cdi_error *err);
void cdi_gpu_element_end(struct cdi_backend *b);

/*
 * Launches kernels until n elements are taken: `prepare` makes `launch` of those from `at` on, and returns how many it
 * takes. Returns a status.
 */
#define CDI_GPU_LAUNCHES(b, n, prepare, err)                               \
    __extension__({                                                        \
        cddp_status launched_ = cdi_gpu_element_begin(b, err);             \
                                                                           \
        if (launched_ == CDDP_OK) {                                        \
            for (size_t at = 0; at < (n) && launched_ == CDDP_OK;) {       \
                struct cdi_launch launch;                                  \
                                                                           \
                at += (prepare);                                           \
                launched_ = cdi_device_launch(&(b)->device, &launch, err); \
            }                                                              \
            cdi_gpu_element_end(b);                                        \
        }                                                                  \
        launched_;                                                         \
    })

#endif
