/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node's processors and NUMA nodes, by hwloc, which is loaded only when needed: its start takes 10 to 120 ms.
 * Blocks on reading /sys.
 */
#ifndef TOPOLOGY_H
#define TOPOLOGY_H

#include "launcher/plan/binding.h"

#include <stdbool.h>

/* Returns whether more than one NUMA node has processors. Reads one file; root is a prefix for its path. */
bool topology_is_numa(const char *root);

/*
 * Reads the processors in this process's affinity mask. HWLOC_SYNTHETIC and hwloc's other variables apply; the mask is
 * ignored for a topology that is not this system's. Free out->cpus. CDDP_E_UNSUPPORTED: built without hwloc.
 * CDDP_E_NOT_FOUND: its library cannot be loaded. CDDP_E_SYSTEM, CDDP_E_NOMEM.
 */
cddp_status topology_read(struct bind_topology *out, struct cdi_error *err);

#endif
