/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/host.h"

#include "common/clock.h"
#include "common/log.h"
#include "launcher/agent/lookup.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RESOLVE_REPORT_MS 60000 /* between two messages that a name does not resolve yet */

/* A name may be registered later than this node starts: it is tried for as long as nodes may join. */
cddp_status host_resolve(const struct endpoint *m, bool remote, struct rdzv_client_options *opt, struct cdi_error *err)
{
    /* ssh may know the host by a name that only its own configuration has. */
    const char *remedy = remote ? "; with --hosts give the address of the first host: --master_addr=IP" : "";
    struct cdi_error why;
    int64_t now_ms = cdi_now_ms(), report_ms = now_ms, give_up_ms = now_ms + (m->n_nodes > 1 ? m->join_timeout_ms : 0);
    cddp_status st;

    while ((st = lookup_addresses(opt->addrs, &opt->n_addrs, m->host, m->port, &why)) == CDDP_E_NOT_FOUND &&
           (now_ms = cdi_now_ms()) < give_up_ms) {
        if (now_ms >= report_ms) {
            cdi_log(CDI_LOG_WARN, "AGENT-RESOLVE", "%s%s; trying again for %lld s", why.msg, remedy,
                    (long long)(give_up_ms - now_ms) / 1000);
            report_ms = now_ms + RESOLVE_REPORT_MS;
        }
        (void)sleep(1);
    }
    if (st != CDDP_OK)
        return cdi_fail(err, st, "%s%s", why.msg, remedy);
    return endpoint_check_address(m, (const struct sockaddr *)&opt->addrs[0], err);
}

/* Starts the server at the first free port of the job. */
static cddp_status host_bind(struct rdzv_server **server, uv_loop_t *loop, const struct endpoint *m,
                             struct rdzv_server_options *opt, struct cdi_error *err)
{
    cddp_status st = CDDP_E_EXISTS;

    for (unsigned i = 0; i < m->n_ports && st == CDDP_E_EXISTS; i++) {
        opt->port = (uint16_t)(m->port + i);
        st = rdzv_server_start(server, loop, opt, err);
    }
    if (st == CDDP_OK && opt->port != m->port)
        cdi_log(CDI_LOG_INFO, "AGENT-PORT", "port %u is in use here; using port %u for the rendezvous", m->port,
                opt->port);
    if (st == CDDP_E_EXISTS && m->n_ports > 1)
        return cdi_fail(
            err, CDDP_E_SYSTEM,
            "ports %u to %u for the rendezvous are all in use on this node; choose another port with --master_port",
            m->port, m->port + m->n_ports - 1u);
    return st;
}

/* Is 127.0.0.1 only the default? */
static bool host_is_default(const struct plan *p)
{
    const struct options *o = p->options;

    return o->standalone || (p->endpoint.n_nodes == 1 && o->rdzv_endpoint == NULL && o->master_addr == NULL);
}

/* Returns the errno if this address is unreachable, or 0. Sends no packet. */
static int host_no_route(const struct sockaddr_storage *to)
{
    int fd = socket(to->ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), error = 0;
    struct sockaddr_storage addr = *to;

    cdi_address_set_port((struct sockaddr *)&addr, 9);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&addr,
                           addr.ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in)) != 0)
        error = errno;
    if (fd >= 0)
        (void)close(fd);
    return error == ENETUNREACH || error == EHOSTUNREACH || error == ENETDOWN ? error : 0;
}

/* Without this check a host would try to reach itself until its timeout. */
static cddp_status host_check_route(const struct rdzv_client_options *client, const char *host, struct cdi_error *err)
{
    int error = 0;

    for (unsigned i = 0; i < client->n_addrs; i++)
        if ((error = host_no_route(&client->addrs[i])) == 0)
            return CDDP_OK;
    return cdi_fail(
        err, CDDP_E_SYSTEM,
        "this node cannot reach its own address %.200s: %s; is its network interface down (ip link set lo up)?", host,
        strerror(error));
}

static struct rdzv_server_options host_options(const struct plan *plan, const struct rdzv_views *views)
{
    const struct endpoint *m = &plan->endpoint;

    return (struct rdzv_server_options){
        .host = m->host,
        .run_id = plan->run_id,
        .min_nodes = plan->min_nodes,
        .max_nodes = plan->max_nodes,
        .spares = m->spares,
        .max_restarts = plan->max_restarts,
        .join_timeout_ms = m->join_timeout_ms,
        .last_call_ms = m->last_call_ms < 0    ? 0
                        : m->last_call_ms == 0 ? 1
                                               : m->last_call_ms,
        .lease_ms = m->lease_ms,
        .secret = plan->secret,
        .store = m->store,
        .max_connections = m->max_connections,
        .max_flag = "--rdzv_conf=max_connections",
        .max_buffered = m->max_buffered,
        .views = views,
    };
}

cddp_status host_start_elected(struct rdzv_server **server, uv_loop_t *loop, const struct plan *plan,
                               const struct rdzv_views *views, int64_t lease_ms, struct cdi_error *err)
{
    struct rdzv_server_options opt = host_options(plan, views);

    opt.host = "*";
    opt.port = plan->endpoint.port;
    opt.lease_ms = lease_ms;
    opt.elected = true;
    return rdzv_server_start(server, loop, &opt, err);
}

cddp_status host_start(struct rdzv_server **server, uv_loop_t *loop, const struct plan *plan,
                       const struct rdzv_views *views, struct rdzv_client_options *client, struct cdi_error *err)
{
    const struct endpoint *m = &plan->endpoint;
    struct rdzv_server_options opt = host_options(plan, views);
    struct cdi_error second;
    cddp_status st;

    if (m->role == ENDPOINT_JOIN)
        return CDDP_OK;
    st = host_bind(server, loop, m, &opt, err);
    if (st == CDDP_E_INVALID && m->everywhere) {
        opt.host = "*";
        st = host_bind(server, loop, m, &opt, err);
    }
    if (st == CDDP_E_INVALID && host_is_default(plan)) { /* lo may have IPv6 only */
        opt.host = "::1";
        st = rdzv_server_start(server, loop, &opt, &second);
        if (st == CDDP_OK)
            st = lookup_addresses(client->addrs, &client->n_addrs, opt.host, 0, err);
    }
    if (st == CDDP_OK) {
        if (strcmp(opt.host, "*") == 0)
            st = lookup_addresses(client->addrs, &client->n_addrs, "*", 0, err);
        if (st == CDDP_OK)
            st = host_check_route(client, opt.host, err);
        for (unsigned i = 0; i < client->n_addrs; i++)
            cdi_address_set_port((struct sockaddr *)&client->addrs[i], rdzv_server_port(*server));
        return st;
    }
    if (m->role == ENDPOINT_HOST || (st != CDDP_E_EXISTS && st != CDDP_E_INVALID))
        return st;
    client->taken = st == CDDP_E_EXISTS;
    if (st == CDDP_E_EXISTS)
        (void)snprintf(client->note, sizeof client->note,
                       "; this agent cannot host it, since port %u was in use here: end the program that uses it, or "
                       "choose another port",
                       m->port);
    else if (m->node_rank == 0)
        (void)snprintf(client->note, sizeof client->note,
                       "; node rank 0 would host it, but %.200s is not an address of this node", m->host);
    return CDDP_OK;
}
