/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's store, hosted by rank 0 where nobody else does (under mpirun, srun, or with variables set by hand): one
 * thread, poll(2), and the engine of store/. Nothing that a client does or leaves undone can make it block.
 */
#ifndef CDI_STORE_HOST_H
#define CDI_STORE_HOST_H

#include "common/error.h"
#include "protocol/auth.h"

#include <stdbool.h>
#include <stdint.h>

struct cdi_store_host;

struct cdi_store_host_options {
    const char *host;                /* where the others come to; NULL: to any address of this host */
    const char *said_by;             /* who says so, for error messages; NULL: "MASTER_ADDR" */
    int port;                        /* 0: any */
    const char *run_id;              /* NULL: any. Checked of clients that name one */
    const struct cdi_secret *secret; /* NULL: none. Else every client has to prove it. Copied */
};

/*
 * Listen and start the thread. It listens on opt->host if that is an address of this host, else (a name that means
 * something else to others, an address translated on the way) on all of them. Blocks on name resolution only.
 * CDDP_OK; CDDP_E_NOT_FOUND (no such name), CDDP_E_EXISTS (the port is taken), CDDP_E_SYSTEM, CDDP_E_NOMEM.
 */
cddp_status cdi_store_host_start(struct cdi_store_host **out, const struct cdi_store_host_options *opt,
                                 struct cdi_error *err);
/* The address under which this process itself reaches it, valid until stop; and its port. Any thread. */
const char *cdi_store_host_address(const struct cdi_store_host *h);
int cdi_store_host_port(const struct cdi_store_host *h);
/* opt->host is no address of this host. Any thread. */
bool cdi_store_host_is_foreign(const struct cdi_store_host *h);
/* Connections that are open now, this process's own included. Any thread. */
int cdi_store_host_clients(const struct cdi_store_host *h);
/* Close everything and free; waits for the thread, which waits for nobody. NULL-safe. */
void cdi_store_host_stop(struct cdi_store_host *h);

#endif
