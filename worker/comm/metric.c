/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics over all ranks: gathered once, and merged in rank order on each. */
#include "common/cleanup.h"
#include "common/float_state.h"
#include "worker/comm/comm.h"

#include <math.h>
#include <string.h>

#define WORDS (sizeof(cddp_metric) / sizeof(uint64_t))

_Static_assert(sizeof(cddp_metric) == 5 * sizeof(uint64_t), "it is sent as 64-bit words");

/* Widens the range. A NaN stays: no number is below or above it. */
static void widen(cddp_metric *m, double min, double max)
{
    if (m->n == 0 || min < m->min || isnan(min))
        m->min = min;
    if (m->n == 0 || max > m->max || isnan(max))
        m->max = max;
}

void cddp_metric_add(cddp_metric *m, double value, double weight)
{
    CDI_DEFAULT_FLOAT_STATE;

    CDI_FLOAT_FENCE(value);
    CDI_FLOAT_FENCE(weight);
    if (m == NULL)
        return;
    widen(m, value, value);
    m->sum += value * weight;
    m->weight += weight;
    m->n++;
}

double cddp_metric_mean(const cddp_metric *m)
{
    CDI_DEFAULT_FLOAT_STATE;
    double mean = m != NULL && m->weight != 0 ? m->sum / m->weight : (double)NAN;

    CDI_FLOAT_FENCE(mean);
    return mean;
}

static void metric_merge(cddp_metric *to, const cddp_metric *from)
{
    if (from->n > 0)
        widen(to, from->min, from->max);
    to->sum += from->sum;
    to->weight += from->weight;
    to->n += from->n;
}

static cddp_status metric_reduce(cddp_comm *comm, const cddp_metric *mine, cddp_metric *all, size_t n,
                                 cddp_metric *ranks, struct cdi_error *err)
{
    CDI_AUTOFREE cddp_metric *got = NULL;
    size_t size, bytes;
    cddp_status st;

    if (comm == NULL || (n > 0 && (mine == NULL || all == NULL)))
        return cdi_fail(err, CDDP_E_INVALID, "cddp_metric_reduce: comm, mine and all must not be NULL");
    size = (size_t)cdi_comm_world(comm)->size;
    if (__builtin_mul_overflow(n, size * sizeof *got, &bytes) || bytes > PTRDIFF_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "cddp_metric_reduce: %zu metrics of %zu ranks do not fit into memory", n,
                        size);
    got = malloc(bytes > 0 ? bytes : 1);
    if (got == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for %zu metrics of %zu ranks", n, size);
    st = cdi_comm_all_gather(comm, mine, got, n * WORDS, CDDP_UINT64, err);
    if (st != CDDP_OK)
        return st;
    for (size_t k = 0; k < n; k++) {
        all[k] = (cddp_metric){0};
        for (size_t r = 0; r < size; r++)
            metric_merge(&all[k], &got[r * n + k]);
    }
    if (ranks != NULL)
        memcpy(ranks, got, bytes);
    return CDDP_OK;
}

cddp_status cddp_metric_reduce(cddp_comm *comm, const cddp_metric *mine, cddp_metric *all, size_t n, cddp_metric *ranks)
{
    CDI_DEFAULT_FLOAT_STATE;
    enum cdi_api_call before = cdi_api_enter(CDI_API_METRIC_REDUCE);
    struct cdi_error err;
    cddp_status st = cdi_comm_own("cddp_metric_reduce", comm, &err);

    if (st == CDDP_OK)
        st = metric_reduce(comm, mine, all, n, ranks, &err);
    (void)cdi_api_enter(before);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}
