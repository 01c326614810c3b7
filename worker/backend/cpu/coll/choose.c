/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/coll/choose.h"

#include "worker/backend/cpu/node/shm.h"

#define KIB ((size_t)1024)

static const struct cdi_choice_row defaults[] = {
    {CDI_ALL_REDUCE, 2, 16 * KIB, 0},
    {CDI_ALL_REDUCE, 3, 8 * KIB, 0},
    {CDI_REDUCE, 2, 8 * KIB, 0},
    {CDI_REDUCE_SCATTER, 2, 8 * KIB, 256 * KIB},
    {CDI_BROADCAST, 2, 8 * KIB, 0},
    {CDI_ALL_GATHER, 2, 8 * KIB, SIZE_MAX},
    {CDI_ALL_GATHERV, 2, 8 * KIB, SIZE_MAX},
    {CDI_ALL_TO_ALL, 2, 1 * KIB, SIZE_MAX},
};

const struct cdi_choice_row *cdi_choose_defaults(size_t *n)
{
    *n = sizeof defaults / sizeof defaults[0];
    return defaults;
}

enum cdi_algorithm cdi_choose(const struct cdi_choice_row *rows, size_t n, const struct cdi_choice_of *of)
{
    const struct cdi_choice_row *best = NULL;

    if (of->kind == CDI_BARRIER || of->total == 0)
        return CDI_BY_ROUNDS;
    for (size_t i = 0; i < n; i++)
        if (rows[i].kind == of->kind && rows[i].nodes <= of->nodes && (best == NULL || rows[i].nodes >= best->nodes))
            best = &rows[i];
    if (best == NULL)
        return CDI_BY_CHAIN;
    if (of->bytes <= best->small_max && of->total <= CDI_SHM_PIECE_BYTES)
        return CDI_BY_ROUNDS;
    return of->bytes <= best->direct_max ? CDI_BY_SHARDS : CDI_BY_CHAIN;
}
