/* SPDX-License-Identifier: Apache-2.0 */
#include "common/rank_ranges.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define MORE_MAX sizeof " and 4294967296 more"

void cdi_rank_ranges_begin(struct cdi_rank_ranges *g, char *text, size_t cap, unsigned most)
{
    *g = (struct cdi_rank_ranges){.text = text, .cap = cap, .first = -1, .last = -1, .room = most};
    text[0] = '\0';
}

static void close_range(struct cdi_rank_ranges *g)
{
    const char *comma = g->used > 0 ? ", " : "", *to = g->last == g->first + 1 ? ", " : "-";
    char one[48];
    size_t n;

    if (g->first < 0)
        return;
    n = (size_t)(g->first == g->last
                     ? snprintf(one, sizeof one, "%s%" PRId64, comma, g->first)
                     : snprintf(one, sizeof one, "%s%" PRId64 "%s%" PRId64, comma, g->first, to, g->last));
    if (g->more > 0 || g->room == 0 || g->used + n + MORE_MAX > g->cap) {
        g->more += (uint64_t)(g->last - g->first) + 1;
        return;
    }
    memcpy(g->text + g->used, one, n + 1);
    g->used += n;
    g->room--;
}

void cdi_rank_ranges_add(struct cdi_rank_ranges *g, uint32_t rank)
{
    if (g->first < 0 || (rank != g->last && rank != g->last + 1)) {
        close_range(g);
        g->first = rank;
    }
    g->last = rank;
}

size_t cdi_rank_ranges_end(struct cdi_rank_ranges *g)
{
    close_range(g);
    g->first = -1;
    if (g->more > 0)
        g->used += (size_t)snprintf(g->text + g->used, g->cap - g->used, " and %" PRIu64 " more", g->more);
    return g->used;
}
