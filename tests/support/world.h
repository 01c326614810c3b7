/* SPDX-License-Identifier: Apache-2.0 */
/* A whole world of ranks (comm_ranks.h) around a new rendezvous server (rdzv_child.h). */
#ifndef CDI_TEST_WORLD_H
#define CDI_TEST_WORLD_H

#include "comm_ranks.h"
#include "rdzv_child.h"

/* Run body as n ranks; the number of them that did not return 0. */
static inline int run_world(int n, int (*body)(int rank))
{
    struct rdzv_child server;
    int bad;

    rdzv_child_start(&server);
    bad = run_ranks(server.port, n, n, body);
    rdzv_child_stop(&server);
    return bad;
}

#endif
