/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An id of the node that a process runs on. Processes with the same id can pass memory to one another: they run on the
 * same kernel and in the same network namespace (memory is passed through an abstract socket).
 */
#ifndef CDI_BASE_HOST_ID_H
#define CDI_BASE_HOST_ID_H

#include <stdint.h>

#define CDI_HOST_ID 24 /* bytes */

/* Sets id to that of this process's node. Never fails: without /proc the host name stands in. */
void cdi_host_id(uint8_t id[CDI_HOST_ID]);

#endif
