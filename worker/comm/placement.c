/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/placement.h"

#include "worker/base/host_id.h"

#include <stdbool.h>
#include <string.h>

static bool placement_same_host(const uint8_t *ids, int a, int b)
{
    return memcmp(ids + (size_t)a * CDI_HOST_ID, ids + (size_t)b * CDI_HOST_ID, CDI_HOST_ID) == 0;
}

static void find_hosts(const uint8_t *ids, int size, int rank, struct cdi_node_layout *p)
{
    *p = (struct cdi_node_layout){0};
    for (int r = 0; r < size; r++) {
        bool first = true;

        if (placement_same_host(ids, r, rank)) {
            p->local_size++;
            p->local_rank += r < rank;
        }
        for (int q = r - 1; q >= 0 && first; q--) /* neighbours mostly share a host: this ends at once */
            first = !placement_same_host(ids, q, r);
        if (first && placement_same_host(ids, r, rank))
            p->node_rank = p->n_nodes;
        p->n_nodes += first;
    }
}

static void find_runs(const uint8_t *ids, int size, int rank, struct cdi_node_layout *p)
{
    *p = (struct cdi_node_layout){0};
    for (int r = 0, start = 0; r < size; r++) {
        if (r + 1 < size && placement_same_host(ids, r, r + 1))
            continue;
        if (start <= rank && rank <= r)
            *p = (struct cdi_node_layout){rank - start, r + 1 - start, p->n_nodes, p->n_nodes};
        start = r + 1;
        p->n_nodes++;
    }
}

void cdi_node_layout_of(const uint8_t *ids, int size, int rank, struct cdi_node_layout *hosts,
                        struct cdi_node_layout *runs)
{
    find_hosts(ids, size, rank, hosts);
    find_runs(ids, size, rank, runs);
}

void cdi_node_layout_set_runs(struct cdi_world *w, const int *nodes)
{
    int first = 0, mine = -1;

    w->n_nodes = 0;
    for (int i = 0; i < w->size; i++) {
        if (i == 0 || nodes[i] != nodes[i - 1]) {
            first = i;
            w->n_nodes++;
        }
        if (i == w->rank) {
            w->node_rank = mine = w->n_nodes - 1;
            w->local_rank = i - first;
        }
        if (mine == w->n_nodes - 1)
            w->local_size = i - first + 1;
    }
}
