/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent exports about its node to those who watch it (watcher.h). All are called from the loop. */
#ifndef FACTS_H
#define FACTS_H

#include "protocol/flight.h"
#include "protocol/node_report.h"
#include "rendezvous/server.h"

/* The flight page of a worker of this node; valid during the call that passes it. */
struct worker_page {
    uint32_t local_rank;
    int32_t rank;
    bool ended;
    const struct cdi_flight *page; /* NULL: it has none */
};

/* A worker that runs and does not use libcddp. */
struct foreign_worker {
    int32_t rank;
    int pid;
    int64_t started_wall_ms; /* Unix time */
};

#define FOREIGN_WORKERS_MAX 1024 /* of a node; further ones are not watched */

struct facts {
    /*
     * Fills in where this node's ranks are; cdi_node_report_release() frees it. CDDP_E_NOT_FOUND: no round has begun;
     * CDDP_E_NOMEM.
     */
    cddp_status (*ranks)(void *arg, struct cdi_node_report *r);
    /* Calls take(take_arg, page) for each worker of the running round, ended ones included. */
    void (*pages)(void *arg, void (*take)(void *take_arg, const struct worker_page *page), void *take_arg);
    /* Lists the foreign workers, at most cap; 0: there is none, or a worker of this node has ended, or all are held. */
    size_t (*foreign)(void *arg, struct foreign_worker *out, size_t cap);
    /* Lists clients of the store that wait for keys, at most cap; 0 as well if it is not known. */
    size_t (*waits)(void *arg, struct page_wait *out, size_t cap);
    /* Sends a frame of bulk.h to the server. Returns false if it was dropped. */
    bool (*send)(void *arg, uint16_t type, const void *payload, size_t len);
    /* Prints a message of n bytes, without a newline at its end. */
    void (*say)(void *arg, const char *text, size_t n);
    void *arg;
};

#endif
