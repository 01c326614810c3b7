/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/explain.h"

#include "watch/hang.h"
#include "watch/verdict.h"

#include <stdlib.h>

cddp_status explain_places(struct page_job *j, size_t groups)
{
    size_t n = 0;

    for (size_t i = 0; i < j->n_nodes; i++)
        n += j->node[i].n_ranks;
    j->placed = calloc(n + 1, sizeof *j->placed);
    if (j->placed == NULL)
        return CDDP_E_NOMEM;
    for (size_t i = 0; i < j->n_nodes; i++)
        for (size_t k = 0; k < j->node[i].n_ranks; k++)
            j->placed[j->n_placed++] = (struct cdi_placed){&j->node[i].ranks[k], j->node[i].host, j->node[i].node_rank};
    cdi_places_sum(j->placed, j->n_placed, &j->sum);
    j->n_groups = cdi_places_group(j->placed, j->n_placed, j->groups, groups);
    return CDDP_OK;
}

cddp_status explain_job(struct page_job *j)
{
    cddp_status st = explain_places(j, PAGE_GROUPS);

    if (j->stuck_ms == 0) /* both flags are off, or the agents are too old to have them; a person looks all the same */
        j->stuck_ms = VERDICT_STUCK_MS;
    if (st != CDDP_OK)
        return st;
    return hang_judge(j->reports, j->n_reports, j->world_size, j->now_ms, PAGE_LATE_MS, &j->hang);
}
