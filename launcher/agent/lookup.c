/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/lookup.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lookup {
    atomic_int holders; /* the thread and its owner: the last one frees it */
    atomic_bool answered;
    char host[256];
    uint16_t port;
    struct sockaddr_storage addrs[RDZV_CLIENT_ADDRS_MAX];
    unsigned n; /* 0: the name is not known */
};

static void let_go(struct lookup *l)
{
    if (atomic_fetch_sub(&l->holders, 1) == 1)
        free(l);
}

static void *ask(void *arg)
{
    struct lookup *l = arg;

    if (rdzv_client_resolve(l->addrs, &l->n, l->host, l->port, NULL) != CDDP_OK)
        l->n = 0;
    atomic_store(&l->answered, true);
    let_go(l);
    return NULL;
}

/* The thread gets no signals: they are the loop's. */
static int start_thread(struct lookup *l)
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
    rc = pthread_create(&thread, &attr, ask, l);
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
    if (start_thread(l) == 0)
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
    let_go(*l);
    *l = NULL;
    return found;
}

void lookup_drop(struct lookup *l)
{
    if (l != NULL)
        let_go(l);
}
