/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/nan_word.h"

#include "common/rank_list.h"
#include "worker/base/dtype.h"
#include "worker/math/nonfinite.h"

#include <inttypes.h>
#include <stdio.h>

/* A word, from the highest bit: the parameter plus 1, since a backward pass makes the last one first; the highest rank
 * minus the rank; the kind. */
#define PARAM_SHIFT 32
#define RANK_SHIFT 8

uint64_t cdi_nan_word(size_t param, int rank, int kind)
{
    return ((uint64_t)param + 1) << PARAM_SHIFT | (uint64_t)(CDI_NAN_RANK_MAX - rank) << RANK_SHIFT | (uint64_t)kind;
}

static size_t param_of(uint64_t word)
{
    return (size_t)(word >> PARAM_SHIFT) - 1;
}

int cdi_nan_rank(uint64_t word)
{
    return CDI_NAN_RANK_MAX - (int)(word >> RANK_SHIFT & CDI_NAN_RANK_MAX);
}

int cdi_nan_describe_one(const cddp_ddp *d, uint64_t word, char *buf, size_t cap)
{
    enum cdi_nonfinite kind = (enum cdi_nonfinite)(word & 0xff);
    size_t i = param_of(word);
    char large[64];

    (void)snprintf(large, sizeof large, "a number that %s cannot hold", cdi_dtype_name(d->comm_dtype));
    (void)snprintf(buf, cap, "the gradient of '%.200s' (bucket %zu) has %s", d->params[i].name, d->plan.grads[i].bucket,
                   kind == CDI_NAN   ? "NaN"
                   : kind == CDI_INF ? "an infinity"
                                     : large);
    return cdi_nan_rank(word);
}

void cdi_nan_describe(const cddp_ddp *d, uint64_t step, const uint64_t *words, int n, struct cdi_error *err)
{
    struct cdi_rank_list same = {.n = 0}, others = {.n = 0};
    uint64_t first = 0, kind = 0;
    char what[320], also[CDI_RANK_LIST_SHOWN * 12 + 96] = "";

    for (int r = 0; r < n; r++)
        first = words[r] > first ? words[r] : first;
    for (int r = 0; r < n; r++) {
        bool has = words[r] != 0, it = has && param_of(words[r]) == param_of(first);

        if (has)
            cdi_rank_list_add(it ? &same : &others, r);
        if (it && (words[r] & 0xff) > kind)
            kind = words[r] & 0xff;
    }
    (void)cdi_nan_describe_one(d, (first & ~(uint64_t)0xff) | kind, what, sizeof what);
    if (others.n > 0)
        (void)snprintf(also, sizeof also, "; such numbers in other gradients come from rank%s %s",
                       others.n == 1 ? "" : "s", others.text);
    (void)cdi_fail_by(err, cdi_rank_of_job(cdi_comm_world(d->comm), same.first), CDDP_E_NONFINITE,
                      "step %" PRIu64 ": %s; rank%s %s brought it%s", step, what, same.n == 1 ? "" : "s", same.text,
                      also);
    if (d->name != NULL)
        (void)cdi_error_wrap(err, "model '%.64s'", d->name);
}
