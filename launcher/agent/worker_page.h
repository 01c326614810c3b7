/* SPDX-License-Identifier: Apache-2.0 */
/* The flight page of a worker of this node, for those that read it: --trace, --report. */
#ifndef WORKER_PAGE_H
#define WORKER_PAGE_H

#include "protocol/flight.h"

/* Valid during the call that passes it. */
struct worker_page {
    uint32_t local_rank;
    int32_t rank;
    bool ended;
    const struct cdi_flight *page; /* NULL: it has none */
};

#endif
