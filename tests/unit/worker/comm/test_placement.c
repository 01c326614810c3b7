/* SPDX-License-Identifier: Apache-2.0 */
#include "hygiene.h"
#include "worker/base/host_id.h"
#include "worker/comm/placement.h"

#include <string.h>

CDI_SUITE(place);

/* Ranks on hosts named by one letter each. */
static void place_of(const char *hosts, int rank, struct cdi_node_layout *by_host, struct cdi_node_layout *by_run)
{
    uint8_t ids[16 * CDI_HOST_ID] = {0};
    int size = (int)strlen(hosts);

    for (int r = 0; r < size; r++)
        ids[(r + 1) * CDI_HOST_ID - 1] = (uint8_t)hosts[r];
    cdi_node_layout_of(ids, size, rank, by_host, by_run);
}

static void want(const char *hosts, int rank, struct cdi_node_layout by_host, struct cdi_node_layout by_run)
{
    struct cdi_node_layout h, r;

    place_of(hosts, rank, &h, &r);
    cr_assert_eq(memcmp(&h, &by_host, sizeof h), 0, "%s, rank %d by host: %d/%d on %d/%d", hosts, rank, h.local_rank,
                 h.local_size, h.node_rank, h.n_nodes);
    cr_assert_eq(memcmp(&r, &by_run, sizeof r), 0, "%s, rank %d by run: %d/%d on %d/%d", hosts, rank, r.local_rank,
                 r.local_size, r.node_rank, r.n_nodes);
}

Test(place, counts_ranks_of_one_host_together)
{
    want("a", 0, (struct cdi_node_layout){0, 1, 0, 1}, (struct cdi_node_layout){0, 1, 0, 1});
    want("aaaa", 2, (struct cdi_node_layout){2, 4, 0, 1}, (struct cdi_node_layout){2, 4, 0, 1});
    want("aaabb", 3, (struct cdi_node_layout){0, 2, 1, 2}, (struct cdi_node_layout){0, 2, 1, 2});
    want("aaabb", 1, (struct cdi_node_layout){1, 3, 0, 2}, (struct cdi_node_layout){1, 3, 0, 2});
    want("cab", 2, (struct cdi_node_layout){0, 1, 2, 3}, (struct cdi_node_layout){0, 1, 2, 3});
}

Test(place, interleaved_ranks_share_a_host_but_not_a_run)
{
    want("abab", 2, (struct cdi_node_layout){1, 2, 0, 2}, (struct cdi_node_layout){0, 1, 2, 4});
    want("abab", 1, (struct cdi_node_layout){0, 2, 1, 2}, (struct cdi_node_layout){0, 1, 1, 4});
    want("abba", 2, (struct cdi_node_layout){1, 2, 1, 2}, (struct cdi_node_layout){1, 2, 1, 3});
    want("abba", 3, (struct cdi_node_layout){1, 2, 0, 2}, (struct cdi_node_layout){0, 1, 2, 3});
}
