/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The endpoint of the job's rendezvous, and which node hosts it. Pure: options in, a decision out. Whether an address
 * belongs to this node is found out later, by trying to bind it; names are never compared.
 */
#ifndef ENDPOINT_H
#define ENDPOINT_H

#include "launcher/cluster/cluster.h"
#include "store/kv.h"

#include <sys/socket.h>

#define ENDPOINT_MASTER_PORT 29500  /* of --master_addr with several nodes */
#define ENDPOINT_DEFAULT_PORT 29400 /* of --rdzv_endpoint */

enum endpoint_role {
    ENDPOINT_HOST,  /* this agent hosts, or ends with an error */
    ENDPOINT_TRY,   /* it hosts if it can bind the address; otherwise another process does, and it joins */
    ENDPOINT_JOIN,  /* another process hosts */
    ENDPOINT_ELECT, /* the nodes elect the host by etcd */
};

#define ENDPOINT_ETCD_PORT 2379
#define ENDPOINT_ETCD_PREFIX "/cddp"
#define ENDPOINT_MEMBERS_MAX 16

/* Where etcd is, and how to speak to it; of ENDPOINT_ELECT. */
struct endpoint_etcd {
    unsigned n_members;
    char members[ENDPOINT_MEMBERS_MAX][270]; /* "host:port" or "[v6]:port" */
    char prefix[256];                        /* of the keys */
    char cacert[256], cert[256], key[256];   /* PEM files; "": none */
    char user[128], password_file[256];      /* "": none */
    bool https;
};

struct endpoint {
    enum endpoint_role role;
    uint32_t min_nodes, max_nodes, spares;
    uint32_t n_nodes;  /* max_nodes and spares */
    int32_t node_rank; /* -1: any */
    char host[256];
    char run_id[96];         /* "": not known here */
    char detected[512];      /* one line about the values taken from the environment; "": none */
    uint16_t port;           /* 0: any free one, for one node only */
    uint16_t n_ports;        /* from `port` on: the host uses the first free one, and the other nodes try them all */
    bool everywhere;         /* ENDPOINT_HOST: if host is not an address of this node, listen on every address */
    int64_t lease_ms;        /* of a host: how long a silent node counts as present; 0: the server's default */
    int64_t join_timeout_ms; /* to reach the rendezvous, and for enough nodes to join */
    int64_t last_call_ms, close_timeout_ms; /* -1: the rendezvous' defaults */
    struct cdi_kv_limits store;             /* this and the rest: of a host; 0: the server's defaults */
    size_t max_connections, max_buffered;   /* as in struct rdzv_server_options */
    struct endpoint_etcd etcd;              /* of ENDPOINT_ELECT; port is then that of the server, 0: any free one */
};

/*
 * Decides by flags (with their variables) first, then by MASTER_ADDR and MASTER_PORT, then by the job's environment; s
 * may be all zero. *out is written on success only. CDDP_E_INVALID or CDDP_E_UNSUPPORTED with an error message that
 * names the flag; without an endpoint for several nodes it lists the ways to give one.
 */
cddp_status endpoint_decide(struct endpoint *out, const struct options *o, const struct cluster_env *s,
                            struct cdi_error *err);

/*
 * Parses "host", "host:port", "[v6]", "[v6]:port" or a bare IPv6 address; *port keeps its value if the text has none.
 * from names the flag in error messages. host holds 256 bytes. CDDP_E_INVALID.
 */
cddp_status endpoint_parse(const char *text, const char *from, char *host, uint16_t *port, struct cdi_error *err);

/*
 * Returns whether text can be a host: neither a URL nor a list nor a whole line. A name that does not resolve now may
 * do so soon, and is accepted.
 */
bool endpoint_can_be_host(const char *text);

/*
 * Checks the address that the endpoint's name has resolved to. A name that resolves to the loopback (such as 127.0.1.1
 * in Debian's /etc/hosts) leads each of several nodes to itself: CDDP_E_INVALID with an error message.
 */
cddp_status endpoint_check_address(const struct endpoint *m, const struct sockaddr *addr, struct cdi_error *err);

#endif
