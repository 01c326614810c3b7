/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/layout/shard.h"

size_t cdi_shard_state_size(cddp_dtype dtype)
{
    return dtype == CDDP_FLOAT64 ? sizeof(double) : sizeof(float);
}

bool cdi_shard_has_master(cddp_dtype dtype)
{
    return dtype == CDDP_FLOAT16 || dtype == CDDP_BFLOAT16;
}

static size_t shard_align(size_t bytes)
{
    return (bytes + CDI_GRAD_ALIGN - 1) / CDI_GRAD_ALIGN * CDI_GRAD_ALIGN;
}

struct cdi_shard cdi_shard_one(const struct cdi_bucket_plan *p, size_t i, int rank)
{
    const struct cdi_grad *g = &p->grads[i];
    const struct cdi_bucket *b = &p->b[g->bucket];
    size_t part = b->room / p->parts, size = cddp_dtype_size(g->dtype);
    size_t from = b->offset + part * (size_t)rank, to = from + part;
    size_t lo = g->offset > from ? g->offset : from, hi = g->offset + g->bytes < to ? g->offset + g->bytes : to;

    if (lo >= hi)
        return (struct cdi_shard){0};
    return (struct cdi_shard){.lo = (lo - g->offset) / size, .count = (hi - lo) / size};
}

struct cdi_shard_sizes cdi_shard_all(struct cdi_shard *out, const struct cdi_bucket_plan *p, const cddp_param *params,
                                     const size_t *first, size_t n, int rank)
{
    struct cdi_shard_sizes sum = {0, 0};

    for (size_t i = 0; i < n; i++) {
        cddp_dtype dtype = params != NULL ? params[i].dtype : p->grads[i].dtype;

        bool has = (first == NULL || first[i] == i) && !p->grads[i].frozen;

        out[i] = has ? cdi_shard_one(p, i, rank) : (struct cdi_shard){0};
        out[i].state_at = sum.state;
        out[i].master_at = sum.master;
        sum.state += shard_align(out[i].count * cdi_shard_state_size(dtype));
        if (cdi_shard_has_master(dtype))
            sum.master += shard_align(out[i].count * sizeof(float));
    }
    return sum;
}
