/* SPDX-License-Identifier: Apache-2.0 */
/* Where one head of one sequence lies in a layer's memory; for both passes. */
#ifndef GPT_ATTENTION_H
#define GPT_ATTENTION_H

#include "model.h"

#include <math.h>

/* Rows of the attention matrix are computed so many at a time, up to the last column that any of them sees. */
#define ATT_ROWS ((size_t)64)

static inline size_t att_rows(size_t first, size_t time)
{
    return time - first < ATT_ROWS ? time - first : ATT_ROWS;
}

struct head {
    size_t size;              /* numbers per token */
    const real *q, *k, *v;    /* [time], `ld` apart */
    real *att;                /* [time][time] */
    real *mixed;              /* [time], `width` apart */
    size_t ld, width, in_qkv; /* in_qkv: where q begins in the layer's qkv */
    size_t in_mixed;
    real scale;
};

/* Head h of all sequences' heads. */
static inline struct head head_of(const struct gpt *m, const struct gpt_layer_acts *a, size_t h, size_t time)
{
    const size_t width = m->config.width, size = width / m->config.heads;
    const size_t seq = h / m->config.heads, at = h % m->config.heads * size;
    const size_t in_qkv = seq * time * 3 * width + at, in_mixed = seq * time * width + at;

    return (struct head){
        .size = size,
        .q = a->qkv + in_qkv,
        .k = a->qkv + in_qkv + width,
        .v = a->qkv + in_qkv + 2 * width,
        .att = a->att + h * time * time,
        .mixed = a->mixed + in_mixed,
        .ld = 3 * width,
        .width = width,
        .in_qkv = in_qkv,
        .in_mixed = in_mixed,
        .scale = (real)(1 / sqrt((double)size)),
    };
}

#endif
