/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches the Python workers without a flight page (torch_watch.h): looks at their processor time about once a second,
 * and reads their stacks when they stand still, in another thread. One message for each standstill, and one for its
 * end.
 */
#ifndef TORCH_LOOK_H
#define TORCH_LOOK_H

#include "launcher/agent/torch_watch.h"
#include "rendezvous/server.h"

#include <uv.h>

#define TORCH_WAITS_MAX 256
#define TORCH_WORKERS_MAX 1024 /* of a node; further ones are not watched */

/* A worker that runs and does not use libcddp. */
struct torch_worker {
    int32_t rank;
    int pid;
    int64_t started_wall_ms; /* Unix time */
};

struct torch_look_options {
    int64_t warning_ms;
    const char *host;
    /*
     * Lists these workers, at most cap; 0: there is none, or a worker of this node has ended, or all are held. From the
     * loop.
     */
    size_t (*workers)(void *arg, struct torch_worker *out, size_t cap);
    /* Lists clients of the store that wait for keys, at most cap; NULL: it is not known. From the loop. */
    size_t (*waits)(void *arg, struct page_wait *out, size_t cap);
    /* A message of n bytes, without a newline at its end. From the loop. */
    void (*say)(void *arg, const char *text, size_t n);
    void *arg;
};

struct torch_look;

/* Begins. host must stay valid. CDDP_E_NOMEM. */
cddp_status torch_look_start(struct torch_look **out, uv_loop_t *loop, const struct torch_look_options *opt,
                             struct cdi_error *err);
/* Ends and frees it, later, from the loop; no function of the options is called any more. NULL-safe. */
void torch_look_stop(struct torch_look *l);

#endif
