/* SPDX-License-Identifier: Apache-2.0 */
/* The sockets on which a rank listens for those of other nodes: --data_ports. */
#ifndef CDI_BASE_DATA_PORT_H
#define CDI_BASE_DATA_PORT_H

#include "common/address.h"
#include "common/error.h"

#define CDI_DATA_BACKLOG 64 /* connections that wait to be accepted */

/*
 * Listens on any port of *a, or on a free one of CDDP_DATA_PORTS, and sets *out and the port in *a. Ranks begin at
 * different ports, so they rarely collide. CDDP_E_INVALID: the variable; CDDP_E_SYSTEM: no port is free, or the system
 * refuses. Any thread.
 */
cddp_status cdi_data_listen(struct cdi_address *a, int rank, int *out, struct cdi_error *err);

#endif
