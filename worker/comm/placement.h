/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the ranks that share a node, if the launcher has not set the layout (ranks started by hand or by mpirun), or
 * not all of it. Two ranks share a node if they have the same host id.
 */
#ifndef CDI_COMM_PLACEMENT_H
#define CDI_COMM_PLACEMENT_H

#include "worker/backend/backend.h"
#include "worker/comm/launch_env.h"

#include <stdint.h>

/*
 * Computes this rank's place from the host ids of all ranks, in rank order. *hosts: by host, in the order of their
 * lowest ranks. *runs: by run of consecutive ranks on one host, which a backend can treat as a node. Pure.
 */
void cdi_node_layout_of(const uint8_t *ids, int size, int rank, struct cdi_node_layout *hosts,
                        struct cdi_node_layout *runs);
/* Sets w's node layout from the nodes of its ranks: each run of consecutive ranks on one node counts as a node. */
void cdi_node_layout_set_runs(struct cdi_world *w, const int *nodes);

#endif
