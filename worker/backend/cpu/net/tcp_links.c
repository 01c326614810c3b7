/* SPDX-License-Identifier: Apache-2.0 */
/* All links of this rank, the nodes of ranks, and how far away they are. */
#include "worker/backend/cpu/net/tcp.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

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

/* The least time so far is that of a packet which no busy process has delayed. */
static uint32_t delay_of(const struct cdi_link *l)
{
    struct tcp_info info = {.tcpi_min_rtt = 0};
    socklen_t len = sizeof info;

    if (l->rank < 0 || getsockopt(l->data, IPPROTO_TCP, TCP_INFO, &info, &len) != 0)
        return 0;
    return info.tcpi_min_rtt == UINT32_MAX ? 0 : info.tcpi_min_rtt / 2;
}

uint32_t cdi_tcp_delay_us(const struct cdi_tcp *tcp)
{
    uint32_t prev = delay_of(&tcp->prev), next = delay_of(&tcp->next);

    return prev > next ? prev : next;
}
