/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of this node as JSON, for --dry_run. Pure. */
#ifndef DRY_RUN_H
#define DRY_RUN_H

#include "launcher/plan/plan.h"

/*
 * What would run here: nodes, ranks, devices, cores, the command, and of each worker's environment what differs from
 * base (NULL-terminated). What only the start or the other nodes will tell is null. Where several nodes meet, ranks are
 * those of nodes of equal size. An indented text, malloc'd; NULL: no memory.
 */
char *dry_run_text(const struct plan *p, const struct machine *m, char *const *base);

#endif
