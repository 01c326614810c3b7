/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's processors and NUMA nodes, by hwloc, which is opened only when it is needed: its start takes 10 to 120
 * ms. Blocks on reading /sys.
 */
#ifndef TOPOLOGY_H
#define TOPOLOGY_H

#include "launcher/plan/binding.h"

#include <stdbool.h>

/* Has the machine more than one NUMA node with processors? By one file; root is put in front of its path. */
bool topology_is_numa(const char *root);

/*
 * The processors in this process's affinity mask. HWLOC_SYNTHETIC and hwloc's other variables count, as everywhere; of
 * a machine that is not this one all processors are taken. Free out->cpus. CDDP_E_UNSUPPORTED: built without hwloc.
 * CDDP_E_NOT_FOUND: its library cannot be opened. CDDP_E_SYSTEM, CDDP_E_NOMEM.
 */
cddp_status topology_read(struct bind_topology *out, struct cdi_error *err);

#endif
