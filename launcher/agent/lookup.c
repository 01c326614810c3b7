/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/lookup.h"

#include "common/address.h"
#include "common/resolve.h"

#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

cddp_status lookup_addresses(struct sockaddr_storage *addrs, unsigned *n, const char *host, uint16_t port,
                             struct cdi_error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int rc;

    addrs[0] = (struct sockaddr_storage){0};
    *n = 1;
    if (strcmp(host, "*") == 0)
        host = "127.0.0.1";
    if (uv_ip4_addr(host, port, (struct sockaddr_in *)addrs) == 0 ||
        uv_ip6_addr(host, port, (struct sockaddr_in6 *)addrs) == 0)
        return CDDP_OK;
    rc = cdi_resolve(host, NULL, &hints, &found);
    *n = 0;
    for (const struct addrinfo *a = found; rc == 0 && a != NULL && *n < LOOKUP_ADDRS_MAX; a = a->ai_next) {
        if ((a->ai_family != AF_INET && a->ai_family != AF_INET6) || cdi_is_repeated(found, a))
            continue;
        addrs[*n] = (struct sockaddr_storage){0};
        memcpy(&addrs[*n], a->ai_addr, a->ai_addrlen);
        cdi_address_set_port((struct sockaddr *)&addrs[(*n)++], port);
    }
    if (rc == 0)
        freeaddrinfo(found);
    if (*n > 0)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_NOT_FOUND,
                    "the address '%.200s' (--master_addr, --rdzv_endpoint) does not resolve on this node: %s", host,
                    rc != 0 ? gai_strerror(rc) : "no address");
}

/* ------------------------------------------------------------------------------------------------- in a thread ---- */

struct lookup {
    atomic_int holders; /* the thread and its owner; the last one frees it */
    atomic_bool answered;
    char host[256];
    uint16_t port;
    struct sockaddr_storage addrs[LOOKUP_ADDRS_MAX];
    unsigned n; /* 0: the name does not resolve */
};

static void lookup_release(struct lookup *l)
{
    if (atomic_fetch_sub(&l->holders, 1) == 1)
        free(l);
}

static void *lookup_run(void *arg)
{
    struct lookup *l = arg;

    if (lookup_addresses(l->addrs, &l->n, l->host, l->port, NULL) != CDDP_OK)
        l->n = 0;
    atomic_store(&l->answered, true);
    lookup_release(l);
    return NULL;
}

/* The loop receives the signals, and not this thread. */
static int lookup_start_thread(struct lookup *l)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    int rc = pthread_attr_init(&attr);

    if (rc != 0)
        return rc;
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&thread, &attr, lookup_run, l);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    (void)pthread_attr_destroy(&attr);
    return rc;
}

struct lookup *lookup_start(const char *host, uint16_t port)
{
    struct lookup *l = calloc(1, sizeof *l);

    if (l == NULL)
        return NULL;
    atomic_init(&l->holders, 2);
    atomic_init(&l->answered, false);
    (void)snprintf(l->host, sizeof l->host, "%s", host);
    l->port = port;
    if (lookup_start_thread(l) == 0)
        return l;
    free(l);
    return NULL;
}

bool lookup_fetch(struct lookup **l, struct sockaddr_storage *addrs, unsigned *n)
{
    bool found;

    if (*l == NULL || !atomic_load(&(*l)->answered))
        return false;
    found = (*l)->n > 0;
    if (found) {
        memcpy(addrs, (*l)->addrs, sizeof(*l)->addrs);
        *n = (*l)->n;
    }
    lookup_release(*l);
    *l = NULL;
    return found;
}

void lookup_drop(struct lookup *l)
{
    if (l != NULL)
        lookup_release(l);
}
