/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/cpu/coll/choose.h"

#include "worker/backend/cpu/node/shm.h"

#include <math.h>

#define KIB UINT64_C(1024)
#define ANY INT64_MAX

#define PIECES 8 /* at least so many, so that both directions of a link are busy at the same time */
#define PIECE_LEAST_BYTES ((size_t)16 * 1024)
#define HOP_BYTES ((size_t)64 * 1024) /* what a link moves in the time that a hop costs: 10 GbE, and loopback */

/* Two rounds of shards cost fewer bytes than log2(nodes) rounds of everything, but more messages. */
static const struct cdi_choice_row defaults[] = {
    {CDI_ALL_REDUCE, 2, 64 * KIB, 0},    {CDI_ALL_REDUCE, 3, 8 * KIB, 1024 * KIB},
    {CDI_REDUCE, 2, 8 * KIB, 256 * KIB}, {CDI_REDUCE_SCATTER, 2, 8 * KIB, 256 * KIB},
    {CDI_BROADCAST, 2, 16 * KIB, 0},     {CDI_ALL_GATHER, 2, 8 * KIB, ANY},
    {CDI_ALL_GATHERV, 2, 8 * KIB, ANY},  {CDI_ALL_TO_ALL, 2, 1 * KIB, ANY},
};

void cdi_choose_defaults(struct cdi_choice_table *out)
{
    *out = (struct cdi_choice_table){.n = sizeof defaults / sizeof defaults[0]};
    for (uint32_t i = 0; i < out->n; i++)
        out->row[i] = defaults[i];
}

enum cdi_algorithm cdi_choose(const struct cdi_choice_table *table, const struct cdi_choice_of *of)
{
    const struct cdi_choice_row *best = NULL;

    if (of->kind == CDI_BARRIER || of->total == 0)
        return CDI_BY_ROUNDS;
    for (uint32_t i = 0; i < table->n; i++) {
        const struct cdi_choice_row *row = &table->row[i];

        if (row->kind == of->kind && row->nodes <= of->nodes && (best == NULL || row->nodes > best->nodes))
            best = row;
    }
    if (best == NULL)
        return CDI_BY_CHAIN;
    if (of->bytes <= best->small_max && of->total <= CDI_SHM_PIECE_BYTES) /* all of them fit the slot of one rank */
        return CDI_BY_ROUNDS;
    return of->bytes <= best->direct_max ? CDI_BY_SHARDS : CDI_BY_CHAIN;
}

/*
 * A piece needs 2 (nodes - 1) hops, and each further one follows a piece's time later. With m bytes in a piece, b the
 * time of a byte and a that of a hop, 2 (nodes - 1) (a + m b) + bytes / m (a + m b) is least at the root below.
 */
size_t cdi_choose_piece(size_t bytes, int nodes)
{
    double best = sqrt((double)bytes * (double)HOP_BYTES / (2.0 * (double)(nodes - 1)));
    size_t part = bytes / PIECES;

    if (best < (double)part)
        part = (size_t)best;
    part = part / 64 * 64;
    if (part > CDI_SHM_PIECE_BYTES)
        return CDI_SHM_PIECE_BYTES;
    return part < PIECE_LEAST_BYTES ? PIECE_LEAST_BYTES : part;
}
