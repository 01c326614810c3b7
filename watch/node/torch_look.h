/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches the Python workers without a flight page (torch_watch.h): looks at their processor time about once a second,
 * and reads their stacks when they stand still, in another thread. One message for each standstill, and one for its
 * end.
 */
#ifndef WATCH_NODE_TORCH_LOOK_H
#define WATCH_NODE_TORCH_LOOK_H

#include "launcher/agent/facts.h"
#include "watch/node/torch_watch.h"

#include <uv.h>

#define TORCH_WAITS_MAX 256
struct torch_look_options {
    uv_loop_t *loop;
    int64_t warning_ms;
    const char *host;
    const struct facts *facts;
};

struct torch_look;

/* Begins. host and facts must stay valid. CDDP_E_NOMEM. */
cddp_status torch_look_start(struct torch_look **out, const struct torch_look_options *opt, struct cdi_error *err);
/* Looks at the workers. Returns when to look again; CDI_NEVER_MS: never. NULL-safe. */
int64_t torch_look_again(struct torch_look *l, int64_t now_ms);
/* Ends and frees it, later, from the loop; no fact is asked for any more. NULL-safe. */
void torch_look_stop(struct torch_look *l);

#endif
