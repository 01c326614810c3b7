/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/endpoint_etcd.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define MEMBER(m) offsetof(struct endpoint_etcd, m), sizeof(((struct endpoint_etcd *)0)->m)

/*
 * torchrun has two sets of names: those of etcd (etcd_rendezvous.py, _create_etcd_client and create_rdzv_handler) and
 * of etcd-v2 (etcd_rendezvous_backend.py, _create_etcd_client). Both work with both backends.
 */
static const struct {
    const char *key;
    size_t offset, size;
} texts[] = {
    {"prefix", MEMBER(prefix)}, {"etcd_prefix", MEMBER(prefix)},
    {"cacert", MEMBER(cacert)}, {"ca_cert", MEMBER(cacert)},
    {"cert", MEMBER(cert)},     {"ssl_cert", MEMBER(cert)},
    {"key", MEMBER(key)},       {"ssl_cert_key", MEMBER(key)},
    {"user", MEMBER(user)},     {"password_file", MEMBER(password_file)},
};

bool endpoint_is_etcd(const char *backend)
{
    return backend != NULL && (strcmp(backend, "etcd") == 0 || strcmp(backend, "etcd-v2") == 0);
}

cddp_status endpoint_etcd_set(struct endpoint_etcd *e, const char *key, const char *value, struct cdi_error *err)
{
    if (strcmp(key, "protocol") == 0) {
        e->https = strcasecmp(value, "https") == 0;
        return e->https || strcasecmp(value, "http") == 0
                   ? CDDP_OK
                   : cdi_fail(err, CDDP_E_INVALID, "--rdzv_conf: protocol cannot be '%.64s'; give http or https",
                              value);
    }
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (strcmp(texts[i].key, key) != 0)
            continue;
        if (value[0] == '\0' || strlen(value) >= texts[i].size)
            return cdi_fail(err, CDDP_E_INVALID, "--rdzv_conf: %s cannot be empty, or longer than %zu bytes", key,
                            texts[i].size - 1);
        memcpy((char *)e + texts[i].offset, value, strlen(value) + 1);
        return CDDP_OK;
    }
    return CDDP_E_NOT_FOUND;
}

static cddp_status add_member(struct endpoint_etcd *e, const char *text, struct cdi_error *err)
{
    uint16_t port = ENDPOINT_ETCD_PORT;
    char host[256];
    cddp_status st;

    if (e->n_members == ENDPOINT_MEMBERS_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "--rdzv_endpoint has more than %d members of etcd", ENDPOINT_MEMBERS_MAX);
    st = endpoint_parse(text, "--rdzv_endpoint", host, &port, err);
    if (st == CDDP_OK && port == 0)
        st = cdi_fail(err, CDDP_E_INVALID, "--rdzv_endpoint: port 0 is not the port of a member of etcd");
    if (st == CDDP_OK)
        (void)snprintf(e->members[e->n_members++], sizeof e->members[0],
                       strchr(host, ':') == NULL ? "%s:%u" : "[%s]:%u", host, port);
    return st;
}

/* Keys begin with the prefix, and the run id follows after a slash. */
static void trim_prefix(struct endpoint_etcd *e)
{
    size_t n = strlen(e->prefix);

    while (n > 0 && e->prefix[n - 1] == '/')
        e->prefix[--n] = '\0';
}

cddp_status endpoint_etcd_read(struct endpoint_etcd *e, const char *endpoint, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    char one[320];

    if (endpoint == NULL || endpoint[0] == '\0')
        return cdi_fail(err, CDDP_E_INVALID,
                        "--rdzv_backend=etcd needs the members of etcd: --rdzv_endpoint=HOST:PORT[,HOST:PORT...]");
    while (st == CDDP_OK && *endpoint != '\0') {
        size_t n = strcspn(endpoint, ",");

        (void)snprintf(one, sizeof one, "%.*s", (int)n, endpoint);
        st = n < sizeof one ? add_member(e, one, err)
                            : cdi_fail(err, CDDP_E_INVALID, "--rdzv_endpoint: '%.64s...' is too long for a host", one);
        endpoint += endpoint[n] == ',' ? n + 1 : n;
    }
    if (st != CDDP_OK)
        return st;
    if (e->prefix[0] == '\0')
        (void)snprintf(e->prefix, sizeof e->prefix, "%s", ENDPOINT_ETCD_PREFIX);
    trim_prefix(e);
    if ((e->user[0] == '\0') != (e->password_file[0] == '\0'))
        return cdi_fail(err, CDDP_E_INVALID, "--rdzv_conf: give user and password_file, or neither of them");
    if (e->key[0] != '\0' && e->cert[0] == '\0')
        return cdi_fail(err, CDDP_E_INVALID, "--rdzv_conf: key is the key of a certificate; give cert, too");
    if (!e->https && (e->cacert[0] != '\0' || e->cert[0] != '\0'))
        return cdi_fail(err, CDDP_E_INVALID,
                        "--rdzv_conf: cacert and cert are for TLS; give protocol=https, too, or remove them");
    return CDDP_OK;
}
