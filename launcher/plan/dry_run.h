/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of this node as JSON, for --dry_run. Pure. */
#ifndef DRY_RUN_H
#define DRY_RUN_H

#include "launcher/plan/plan.h"

/*
 * Returns the plan as indented JSON: nodes, ranks, devices, cores, the command, and each worker's variables that differ
 * from base (NULL-terminated). Values that are known only after the start are null. With several nodes, ranks are those
 * of nodes of equal size. The text is malloc'd; NULL: out of memory.
 */
char *dry_run_text(const struct plan *p, const struct machine *m, char *const *base);

#endif
