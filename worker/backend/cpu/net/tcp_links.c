/* SPDX-License-Identifier: Apache-2.0 */
/* All links of this rank, and the nodes of ranks. */
#include "worker/backend/cpu/net/tcp.h"

int cdi_tcp_node_of(const struct cdi_tcp *tcp, int rank)
{
    int lo = 0, hi = tcp->n_nodes - 1;

    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;

        if (tcp->first[mid] <= rank)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

int cdi_tcp_n_links(const struct cdi_tcp *tcp)
{
    return 2 + (tcp->pair != NULL ? tcp->size : 0) + (tcp->mesh != NULL ? tcp->n_nodes : 0);
}

struct cdi_link *cdi_tcp_nth_link(struct cdi_tcp *tcp, int i)
{
    int n_pairs = tcp->pair != NULL ? tcp->size : 0;
    struct cdi_link *l;

    if (i < 2)
        return i == 0 ? &tcp->prev : &tcp->next;
    if (i < 2 + n_pairs)
        return tcp->pair[i - 2];
    l = tcp->mesh[i - 2 - n_pairs];
    return l == &tcp->prev || l == &tcp->next ? NULL : l; /* each link once */
}
