/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/device/mean.h"

static bool reduces(const struct cdi_coll *op)
{
    return op->kind == CDI_ALL_REDUCE || op->kind == CDI_REDUCE || op->kind == CDI_REDUCE_SCATTER;
}

enum cdi_mean cdi_mean_of(const struct cdi_coll *op, const struct cdi_mean_facts *facts)
{
    bool takes = facts->nccl_code >= CDI_NCCL_SYMMETRIC_MEAN && facts->n_nodes == 1, symmetric = takes && facts->window;

    if (!reduces(op) || op->op != CDDP_AVG || facts->n_ranks == 1)
        return CDI_MEAN_NONE;
    if (op->dtype == CDDP_FLOAT64) /* no symmetric kernel supports it */
        return CDI_MEAN_AFTER;
    if (op->dtype == CDDP_FLOAT32 || op->dtype == CDDP_BFLOAT16)
        return symmetric && op->kind == CDI_REDUCE_SCATTER ? CDI_MEAN_BY_NCCL : CDI_MEAN_AFTER;
    /* Its sum can overflow. Ranks may differ in whether a collective of the program is in place; that of a bucket
     * always is. */
    if (op->dtype == CDDP_FLOAT16 && op->kind == CDI_ALL_REDUCE && ((op->bucket >= 0 && op->in == op->out) || takes))
        return CDI_MEAN_BEFORE;
    if (op->dtype == CDDP_FLOAT16 && op->kind == CDI_REDUCE_SCATTER && op->bucket >= 0 && symmetric)
        return CDI_MEAN_BEFORE;
    return CDI_MEAN_BY_NCCL; /* which divides the sums of integers */
}
