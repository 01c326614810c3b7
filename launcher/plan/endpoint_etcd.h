/* SPDX-License-Identifier: Apache-2.0 */
/* The flags about etcd: which members, which files and which user. Pure. */
#ifndef ENDPOINT_ETCD_H
#define ENDPOINT_ETCD_H

#include "launcher/plan/endpoint.h"

/* Is this the name of a backend by etcd? */
bool endpoint_is_etcd(const char *backend);
/*
 * Sets a key of --rdzv_conf that is about etcd. CDDP_E_NOT_FOUND without an error message: it is none; CDDP_E_INVALID.
 */
cddp_status endpoint_etcd_set(struct endpoint_etcd *e, const char *key, const char *value, struct cdi_error *err);
/* Reads --rdzv_endpoint=HOST[:PORT][,HOST[:PORT]...], and checks all of e. CDDP_E_INVALID. */
cddp_status endpoint_etcd_read(struct endpoint_etcd *e, const char *endpoint, struct cdi_error *err);

#endif
