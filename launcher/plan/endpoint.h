/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the nodes of a job meet, and who hosts the rendezvous there. Pure: options in, a decision out; whether an
 * address is this machine's is found out later, by trying to bind it. Names are never compared.
 */
#ifndef ENDPOINT_H
#define ENDPOINT_H

#include "launcher/cluster/cluster.h"
#include "store/kv.h"

#include <sys/socket.h>

#define ENDPOINT_MASTER_PORT 29500  /* of --master_addr, where several nodes meet */
#define ENDPOINT_DEFAULT_PORT 29400 /* of --rdzv_endpoint */

enum endpoint_role {
    ENDPOINT_HOST, /* this agent hosts, or ends with an error */
    ENDPOINT_TRY,  /* it hosts if it can bind the address; else somebody else does, and it joins */
    ENDPOINT_JOIN, /* somebody else hosts */
};

struct endpoint {
    enum endpoint_role role;
    uint32_t min_nodes, max_nodes, spares;
    uint32_t n_nodes;  /* that may come: max_nodes and spares */
    int32_t node_rank; /* -1: any */
    char host[256];
    char run_id[96];         /* "": none known here */
    char detected[512];      /* one line about what was taken from the environment; "": nothing */
    uint16_t port;           /* 0: any free one; only of one node */
    uint16_t n_ports;        /* from `port` on: the host takes the first that is free, and the others ask them all */
    bool everywhere;         /* ENDPOINT_HOST: if host is no address of this machine, listen on every address */
    int64_t lease_ms;        /* of a host: a silent node counts as there for so long; 0: the server's default */
    int64_t join_timeout_ms; /* to reach the rendezvous, and for enough nodes to be there */
    int64_t last_call_ms, close_timeout_ms; /* -1: the rendezvous' defaults */
    struct cdi_kv_limits store;             /* this and the rest: of a host; 0: the server's defaults */
    size_t max_connections, max_buffered;   /* as in struct rdzv_server_options */
};

/*
 * Flags (with their variables) first, then MASTER_ADDR and MASTER_PORT, then the job's environment; s may be all zero.
 * *out is written on success only. CDDP_E_INVALID or CDDP_E_UNSUPPORTED with a sentence that names the flag and, where
 * nothing says where several nodes meet, the ways to say it.
 */
cddp_status endpoint_decide(struct endpoint *out, const struct options *o, const struct cluster_env *s,
                            struct cdi_error *err);

/*
 * "host", "host:port", "[v6]", "[v6]:port" or a bare IPv6 address; *port keeps its value where the text has none. from
 * names the flag for sentences. host holds 256 bytes. CDDP_E_INVALID.
 */
cddp_status endpoint_parse(const char *text, const char *from, char *host, uint16_t *port, struct cdi_error *err);

/*
 * May several nodes meet at what the name has resolved to here? A name of another machine that resolves to the loopback
 * (as 127.0.1.1 in Debian's /etc/hosts) leads each node to itself: CDDP_E_INVALID with a sentence.
 */
cddp_status endpoint_check_address(const struct endpoint *m, const struct sockaddr *addr, struct cdi_error *err);

#endif
