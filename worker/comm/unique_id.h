/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's meeting point as plain bytes: where a store is, and the secret that it asks for. The bytes, integers in
 * little-endian: "CDDU" | u8 format (1) | u8 addresses | u16 port | 32 bytes secret | 24 bytes host id | per address u8
 * family (4 or 6) and 16 bytes, of which IPv4 has the first four; the rest is zero.
 */
#ifndef CDI_COMM_UNIQUE_ID_H
#define CDI_COMM_UNIQUE_ID_H

#include "protocol/auth.h"
#include "worker/base/interfaces.h"
#include "worker/store/host.h"

#include <cddp/cddp.h>

struct cdi_unique_id {
    struct cdi_secret secret;                          /* the reader wipes it */
    struct cdi_address address[CDI_NET_ADDRESSES + 1]; /* with the port, in the order in which they are to be tried */
    int n;
    int port;
};

/*
 * What id says, for this host: its loopback address comes first where the store is on it. CDDP_E_INVALID: it is none,
 * or one of a later version. Pure, but for the look at which host this is.
 */
cddp_status cdi_unique_id_read(struct cdi_unique_id *out, const cddp_unique_id *id, struct cdi_error *err);
/* The store that this process has started for id, which is the caller's from now on; NULL: it has not. Any thread. */
struct cdi_store_host *cdi_unique_id_take(const cddp_unique_id *id);

#endif
