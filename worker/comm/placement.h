/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks share a host: found out where nobody says it (ranks started by hand or by mpirun), or where what is said
 * is not enough. Two ranks are on one host if memory can be handed over between them: same kernel, same network
 * namespace (the hand-over goes through an abstract socket).
 */
#ifndef CDI_COMM_PLACEMENT_H
#define CDI_COMM_PLACEMENT_H

#include "worker/comm/launch_env.h"

#include <stdint.h>

/*
 * From the host ids of all ranks, one after the other. *hosts: by host, in the order of their lowest ranks. *runs: by
 * stretch of consecutive ranks on one host, which is what a backend can treat as a node. Pure.
 */
void cdi_node_layout_of(const uint8_t *ids, int size, int rank, struct cdi_node_layout *hosts,
                        struct cdi_node_layout *runs);

#endif
