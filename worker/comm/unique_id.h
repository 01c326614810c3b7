/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The addresses of a store and the auth token that it demands, as plain bytes. The bytes, integers in little-endian:
 * "CDDU" | u8 format (1) | u8 addresses | u16 port | 32 bytes auth token | 24 bytes host id | per address u8 family (4
 * or 6) and 16 bytes, of which IPv4 has the first four; the rest is zero.
 */
#ifndef CDI_COMM_UNIQUE_ID_H
#define CDI_COMM_UNIQUE_ID_H

#include "worker/store/client.h"
#include "worker/store/host.h"

#include <cddp/cddp.h>

/*
 * Reads id. If this host has the store, its loopback address is the first one. CDDP_E_INVALID: the bytes are not an id,
 * or one of another version. Pure, except that it reads this host's id.
 */
cddp_status cdi_unique_id_read(struct cdi_store_endpoint *out, const cddp_unique_id *id, struct cdi_error *err);
/* Returns the store that this process has started for id, which the caller owns from then on; NULL: none. Any thread.
 */
struct cdi_store_host *cdi_unique_id_take(const cddp_unique_id *id);

#endif
