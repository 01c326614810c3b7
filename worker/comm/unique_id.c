/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/unique_id.h"

#include "common/env.h"
#include "worker/base/host_id.h"
#include "worker/base/last_error.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC "CDDU"
#define FORMAT 1

enum {
    AT_FORMAT = 4,
    AT_COUNT = 5,
    AT_PORT = 6,
    AT_SECRET = 8,
    AT_HOST = AT_SECRET + CDI_AUTH_HASH,
    AT_ADDRESSES = AT_HOST + CDI_HOST_ID,
    ADDRESS_BYTES = 17
};

_Static_assert(AT_ADDRESSES + CDI_NET_ADDRESSES * ADDRESS_BYTES <= sizeof(cddp_unique_id), "all addresses fit");

/* The stores that no rank of this process has joined yet. */
static struct waiting {
    struct waiting *next;
    struct cdi_store_host *host;
    pid_t pid; /* a child of fork() does not own them */
    cddp_unique_id id;
} * stores;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void id_put_address(uint8_t to[ADDRESS_BYTES], const struct cdi_address *a)
{
    bool v6 = a->u.any.sa_family == AF_INET6;

    to[0] = v6 ? 6 : 4;
    if (v6)
        memcpy(to + 1, &a->u.v6.sin6_addr, 16);
    else
        memcpy(to + 1, &a->u.v4.sin_addr, 4);
}

static bool id_get_address(struct cdi_address *a, const uint8_t from[ADDRESS_BYTES], int port)
{
    memset(a, 0, sizeof *a);
    if (from[0] == 6) {
        a->len = sizeof a->u.v6;
        a->u.v6.sin6_family = AF_INET6;
        a->u.v6.sin6_port = htons((uint16_t)port);
        memcpy(&a->u.v6.sin6_addr, from + 1, 16);
    } else if (from[0] == 4) {
        a->len = sizeof a->u.v4;
        a->u.v4.sin_family = AF_INET;
        a->u.v4.sin_port = htons((uint16_t)port);
        memcpy(&a->u.v4.sin_addr, from + 1, 4);
    }
    return a->len != 0;
}

cddp_status cdi_unique_id_read(struct cdi_store_endpoint *out, const cddp_unique_id *id, struct cdi_error *err)
{
    static const uint8_t loopback[ADDRESS_BYTES] = {4, 127, 0, 0, 1};
    const uint8_t *b = id->bytes;
    uint8_t here[CDI_HOST_ID];
    int n = b[AT_COUNT];

    if (memcmp(b, MAGIC, sizeof MAGIC - 1) != 0)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_init_options.id: these bytes were not made by cddp_unique_id_create");
    if (b[AT_FORMAT] != FORMAT || n > CDI_NET_ADDRESSES)
        return cdi_fail(err, CDDP_E_INVALID,
                        "cddp_init_options.id: another version of libcddp made it, or its bytes have changed");
    memset(out, 0, sizeof *out);
    out->port = b[AT_PORT] | b[AT_PORT + 1] << 8;
    memcpy(out->secret.key, b + AT_SECRET, sizeof out->secret.key);
    cdi_host_id(here);
    if (memcmp(b + AT_HOST, here, sizeof here) == 0)
        (void)id_get_address(&out->address[out->n++], loopback, out->port);
    for (int i = 0; i < n; i++)
        if (id_get_address(&out->address[out->n], b + AT_ADDRESSES + (size_t)i * ADDRESS_BYTES, out->port))
            out->n++;
    if (out->n == 0 || out->port == 0)
        return cdi_fail(
            err, CDDP_E_INVALID,
            "cddp_init_options.id: it has no address that this host can reach: the process that made it runs on "
            "a host without a network");
    return CDDP_OK;
}

/* Starts a store on all addresses of this host, with a new auth token, and writes the id of it to w. */
static cddp_status unique_id_start(struct waiting *w, struct cdi_error *err)
{
    const struct cdi_address nowhere = {.len = 0};
    struct cdi_address at[CDI_NET_ADDRESSES];
    const char *spec = cdi_env_str(CDI_NET_IFNAME_ENV);
    struct cdi_secret secret;
    const struct cdi_store_host_options opt = {.secret = &secret};
    uint8_t *b = w->id.bytes;
    int n = 0, port;
    cddp_status st = cdi_auth_nonce(secret.key, err);

    if (st == CDDP_OK)
        st = cdi_net_choose(spec, &nowhere, at, &n, err);
    if (st == CDDP_E_SYSTEM && spec == NULL) /* without a network: loopback, for ranks of this host */
        st = CDDP_OK;
    if (st == CDDP_OK)
        st = cdi_store_host_start(&w->host, &opt, err);
    if (st == CDDP_OK) {
        port = cdi_store_host_port(w->host);
        memcpy(b, MAGIC, sizeof MAGIC - 1);
        b[AT_FORMAT] = FORMAT;
        b[AT_COUNT] = (uint8_t)n;
        b[AT_PORT] = (uint8_t)(port & 0xff);
        b[AT_PORT + 1] = (uint8_t)(port >> 8);
        memcpy(b + AT_SECRET, secret.key, sizeof secret.key);
        cdi_host_id(b + AT_HOST);
        for (int i = 0; i < n; i++)
            id_put_address(b + AT_ADDRESSES + (size_t)i * ADDRESS_BYTES, &at[i]);
    }
    cdi_secret_release(&secret);
    return st;
}

struct cdi_store_host *cdi_unique_id_take(const cddp_unique_id *id)
{
    struct cdi_store_host *host = NULL;

    (void)pthread_mutex_lock(&lock);
    for (struct waiting **at = &stores; *at != NULL; at = &(*at)->next) {
        struct waiting *w = *at;

        if (w->pid != getpid() || memcmp(&w->id, id, sizeof *id) != 0)
            continue;
        host = w->host;
        *at = w->next;
        free(w);
        break;
    }
    (void)pthread_mutex_unlock(&lock);
    return host;
}

cddp_status cddp_unique_id_create(cddp_unique_id *id)
{
    struct cdi_error err;
    struct waiting *w;
    cddp_status st;

    if (id == NULL) {
        err.status = cdi_fail(&err, CDDP_E_INVALID, "cddp_unique_id_create: id is NULL");
        return cdi_last_error_set(&err);
    }
    w = calloc(1, sizeof *w);
    st = w != NULL ? unique_id_start(w, &err) : cdi_fail(&err, CDDP_E_NOMEM, "out of memory");
    if (st != CDDP_OK) {
        free(w);
        err.status = st;
        return cdi_last_error_set(&err);
    }
    w->pid = getpid();
    *id = w->id;
    (void)pthread_mutex_lock(&lock);
    w->next = stores;
    stores = w;
    (void)pthread_mutex_unlock(&lock);
    return CDDP_OK;
}
