/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/progress.h"

#include "common/rank_list.h"
#include "protocol/places.h"

#include <stdio.h>
#include <stdlib.h>

#define GROUPS_SHOWN 4

static void write_groups(const struct cdi_place_group *groups, size_t n_groups, size_t n_ranks, char *buf, size_t cap)
{
    char place[CDI_PLACES_TEXT];
    size_t used = 0;

    for (size_t i = 0; i < n_groups && used < cap; i++) {
        const struct cdi_place_group *g = &groups[i];
        struct cdi_rank_list ranks = {0};

        if (i == GROUPS_SHOWN) {
            (void)snprintf(buf + used, cap - used, "; %zu more elsewhere", n_ranks);
            return;
        }
        for (size_t k = 0; k < g->n; k++)
            cdi_rank_list_add(&ranks, g->ranks[k].r->rank);
        cdi_place_text(g->ranks[0].r, g->for_ms, -1, CDI_CALL_BUCKET | CDI_CALL_STEP, place);
        used += (size_t)snprintf(buf + used, cap - used, "%srank%s %s %s", i > 0 ? "; " : "", ranks.n > 1 ? "s" : "",
                                 ranks.text, place);
        n_ranks -= g->n;
    }
}

void progress_text(const struct cdi_rank_report *ranks, size_t n, char *buf, size_t cap)
{
    struct cdi_placed *placed = calloc(n + 1, sizeof *placed);
    struct cdi_place_group *groups = calloc(n + 2, sizeof *groups);
    size_t m = 0;

    buf[0] = '\0';
    for (size_t i = 0; i < n && placed != NULL; i++)
        if (ranks[i].place != CDI_PLACE_OUTSIDE)
            placed[m++] = (struct cdi_placed){.r = &ranks[i], .host = ""};
    if (groups != NULL)
        write_groups(groups, cdi_places_group(placed, m, groups, n + 2), m, buf, cap);
    free(groups);
    free(placed);
}
