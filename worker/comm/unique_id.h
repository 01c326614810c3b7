/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's meeting point as plain bytes: where a store is, and the secret that it asks for. The bytes, integers in
 * little-endian: "CDDU" | u8 format (1) | u8 addresses | u16 port | 32 bytes secret | 24 bytes host id | per address u8
 * family (4 or 6) and 16 bytes, of which IPv4 has the first four; the rest is zero.
 */
#ifndef CDI_COMM_UNIQUE_ID_H
#define CDI_COMM_UNIQUE_ID_H

#include "worker/store/client.h"
#include "worker/store/host.h"

#include <cddp/cddp.h>

/*
 * What id says, for this host: its loopback address comes first where the store is on it. CDDP_E_INVALID: it is none,
 * or one of a later version. Pure, but for the look at which host this is.
 */
cddp_status cdi_unique_id_read(struct cdi_store_endpoint *out, const cddp_unique_id *id, struct cdi_error *err);
/* The store that this process has started for id, which is the caller's from now on; NULL: it has not. Any thread. */
struct cdi_store_host *cdi_unique_id_take(const cddp_unique_id *id);

#endif
