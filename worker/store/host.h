/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's store, which rank 0 hosts if no agent does (under mpirun, srun, or with variables set by hand): one thread,
 * poll(2), and the engine of store/. No client can make it block.
 */
#ifndef CDI_STORE_HOST_H
#define CDI_STORE_HOST_H

#include "common/error.h"
#include "protocol/auth.h"

#include <stdbool.h>
#include <stdint.h>

struct cdi_store_host;

struct cdi_store_host_options {
    const char *host;                /* that the others connect to; NULL: any address of this host */
    const char *host_source;         /* the setting that host is from, for error messages; NULL: "MASTER_ADDR" */
    int port;                        /* 0: any */
    const char *run_id;              /* NULL: any. Compared with that of clients that send one */
    const struct cdi_secret *secret; /* the auth token, which every client must prove; NULL: none. Copied */
};

/*
 * Listens and starts the thread. Listens on opt->host if that is an address of this host. Otherwise (other hosts
 * resolve the name differently, or an address is translated on the way) it listens on all addresses. Blocks on name
 * resolution only. CDDP_OK; CDDP_E_NOT_FOUND (no such name), CDDP_E_EXISTS (the port is taken), CDDP_E_SYSTEM,
 * CDDP_E_NOMEM.
 */
cddp_status cdi_store_host_start(struct cdi_store_host **out, const struct cdi_store_host_options *opt,
                                 struct cdi_error *err);
/* Return the address by which this process itself reaches it, valid until stop, and its port. Any thread. */
const char *cdi_store_host_address(const struct cdi_store_host *h);
int cdi_store_host_port(const struct cdi_store_host *h);
/* Returns whether opt->host is not an address of this host. Any thread. */
bool cdi_store_host_is_foreign(const struct cdi_store_host *h);
/* Returns the number of open connections, this process's own included. Any thread. */
int cdi_store_host_clients(const struct cdi_store_host *h);
/* Closes all connections and frees h. Waits for the thread, which does not block. NULL-safe. */
void cdi_store_host_stop(struct cdi_store_host *h);

#endif
