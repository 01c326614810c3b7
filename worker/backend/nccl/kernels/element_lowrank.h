/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PowerSGD's kernels, in the style of element.h. Sums are those of lowrank_real.h, in its order, so that the bits are
 * the CPU's: a scalar product has eight sums side by side, which eight threads compute here.
 */
#ifndef CDI_KERNELS_ELEMENT_LOWRANK_H
#define CDI_KERNELS_ELEMENT_LOWRANK_H

#include "worker/backend/nccl/kernels/element_optim.h"

#include <math.h>

/* Shared by the block. */
struct cdi_lowrank_room {
    double of_thread[CDI_KERNEL_THREADS];
    double lane[CDI_LOWRANK_LANES];
};

CDI_INLINE const struct cdi_lowrank_piece *cdi_lowrank_piece_of(const struct cdi_lowrank_args *a, uint32_t c)
{
    return &a->piece[cdi_entry_of_chunk(&a->piece[0].first_chunk, sizeof a->piece[0], a->n, c)];
}

#define REAL float
#define NAME(x) x##_f32
#include "worker/backend/nccl/kernels/element_lowrank_real.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(x) x##_f64
#include "worker/backend/nccl/kernels/element_lowrank_real.h"
#undef REAL
#undef NAME

/* The same for 16 bits: the sum in float32, rounded once. */
CDI_INLINE void cdi_feed_narrow(const struct cdi_kernel_thread *t, const struct cdi_lowrank_piece *p, uint64_t from)
{
    const uint64_t n = p->rows * p->cols, to = n - from < CDI_PIECE_CHUNK ? n : from + CDI_PIECE_CHUNK;
    uint16_t *m = (uint16_t *)p->m, *e = (uint16_t *)p->error;

    for (uint64_t i = from + t->thread; i < to; i += t->n_threads) {
        const uint16_t sum = cdi_round(cdi_widen(m[i], p->dtype) + cdi_widen(e[i], p->dtype), p->dtype);

        m[i] = sum;
        e[i] = sum;
    }
}

CDI_INLINE void cdi_feed_body(const struct cdi_kernel_thread *t, const struct cdi_lowrank_args *a)
{
    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const struct cdi_lowrank_piece *p = cdi_lowrank_piece_of(a, c);
        const uint64_t from = (uint64_t)(c - p->first_chunk) * CDI_PIECE_CHUNK;

        if (p->dtype == CDDP_FLOAT64)
            cdi_feed_f64(t, p, from);
        else if (p->dtype == CDDP_FLOAT32)
            cdi_feed_f32(t, p, from);
        else
            cdi_feed_narrow(t, p, from);
    }
}

CDI_INLINE void cdi_right_body(const struct cdi_kernel_thread *t, const struct cdi_lowrank_args *a)
{
    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const struct cdi_lowrank_piece *p = cdi_lowrank_piece_of(a, c);
        const uint64_t at = (uint64_t)(c - p->first_chunk) * CDI_KERNEL_THREADS + t->thread;

        if (p->dtype == CDDP_FLOAT64)
            cdi_right_f64(p, at);
        else
            cdi_right_f32(p, at);
    }
}

CDI_INLINE void cdi_product_body(const struct cdi_kernel_thread *t, const struct cdi_lowrank_args *a)
{
    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const struct cdi_lowrank_piece *p = cdi_lowrank_piece_of(a, c);
        const uint64_t from = (uint64_t)(c - p->first_chunk) * CDI_PIECE_CHUNK;

        if (p->dtype == CDDP_FLOAT64)
            cdi_product_f64(t, p, from);
        else
            cdi_product_f32(t, p, from);
    }
}

/* For the whole block. */
CDI_INLINE void cdi_left_body(const struct cdi_kernel_thread *t, const struct cdi_lowrank_args *a,
                              struct cdi_lowrank_room *room)
{
    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const struct cdi_lowrank_piece *p = cdi_lowrank_piece_of(a, c);
        const uint64_t from = (uint64_t)(c - p->first_chunk) * CDI_LEFT_CHUNK;

        if (p->dtype == CDDP_FLOAT64)
            cdi_left_f64(t, p, from, room);
        else
            cdi_left_f32(t, p, from, room);
    }
}

/* For the whole block: each block takes whole matrices. */
CDI_INLINE void cdi_basis_body(const struct cdi_kernel_thread *t, const struct cdi_lowrank_args *a,
                               struct cdi_lowrank_room *room)
{
    for (uint32_t c = t->block; c < a->n_chunks; c += t->n_blocks) {
        const struct cdi_lowrank_piece *p = cdi_lowrank_piece_of(a, c);

        if (p->dtype == CDDP_FLOAT64)
            cdi_basis_f64(t, p, a->of_q, a->epsilon, room);
        else
            cdi_basis_f32(t, p, a->of_q, a->epsilon, room);
    }
}

#endif
