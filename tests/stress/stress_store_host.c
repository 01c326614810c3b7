/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store that rank 0 hosts, under ThreadSanitizer: its thread serves clients in other threads, which count, wait for
 * each other's keys, connect and disconnect while another thread reads the number of clients; it is stopped while a
 * client uses it.
 */
#include "worker/store/client.h"
#include "worker/store/host.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define CLIENTS 6
#define ROUNDS 60

static struct cdi_store_host *host;

static cddp_store *connect_to_host(struct cdi_error *err)
{
    cddp_store *s = NULL;

    (void)cdi_store_open(&s, cdi_store_host_address(host), cdi_store_host_port(host), 20000, err);
    return s;
}

/* One round: each client counts, the last one sets the key that all wait for; then all read the values of all. */
static cddp_status meet(cddp_store *s, int round, int me, struct cdi_error *err)
{
    char key[64], value[64];
    int64_t n;
    size_t len;
    cddp_status st;

    (void)snprintf(key, sizeof key, "from/%d/%d", round, me);
    st = cdi_store_set(s, key, key, strlen(key), err);
    (void)snprintf(key, sizeof key, "n/%d", round);
    if (st == CDDP_OK)
        st = cdi_store_add(s, key, 1, &n, err);
    (void)snprintf(key, sizeof key, "go/%d", round);
    if (st == CDDP_OK && n == CLIENTS)
        st = cdi_store_set(s, key, "1", 1, err);
    if (st == CDDP_OK)
        st = cdi_store_get(s, key, value, sizeof value, &len, 20000, err);
    for (int other = 0; other < CLIENTS && st == CDDP_OK; other++) {
        (void)snprintf(key, sizeof key, "from/%d/%d", round, other);
        st = cdi_store_get(s, key, value, sizeof value, &len, 20000, err);
        if (st == CDDP_OK && (len != strlen(key) || memcmp(value, key, len) != 0))
            st = cdi_fail(err, CDDP_E_PROTOCOL, "%s holds something else", key);
    }
    return st;
}

static void *client(void *arg)
{
    const int me = (int)(intptr_t)arg;
    struct cdi_error err = {.msg = ""};
    cddp_store *s = connect_to_host(&err);
    cddp_status st = s != NULL ? CDDP_OK : CDDP_E_IO;

    for (int round = 0; round < ROUNDS && st == CDDP_OK; round++) {
        st = meet(s, round, me, &err);
        if (st == CDDP_OK && round % 16 == me) { /* disconnect, and connect again */
            cddp_store_close(s);
            s = connect_to_host(&err);
            st = s != NULL ? CDDP_OK : CDDP_E_IO;
        }
        if (cdi_store_host_clients(host) > 2 * CLIENTS + 1)
            st = cdi_fail(&err, CDDP_E_PROTOCOL, "%d clients", cdi_store_host_clients(host));
    }
    if (st != CDDP_OK)
        fprintf(stderr, "client %d: %s\n", me, err.msg);
    cddp_store_close(s);
    return st == CDDP_OK ? NULL : &host;
}

/* Waits for a key that is never set, until the host stops. */
static void *left_behind(void *arg)
{
    struct cdi_error err;
    size_t len;
    char value;

    return cdi_store_get(arg, "never", &value, 1, &len, 20000, &err) == CDDP_E_CLOSED ? NULL : arg;
}

int main(void)
{
    const struct cdi_store_host_options opt = {.host = "127.0.0.1"};
    struct cdi_error err;
    pthread_t threads[CLIENTS], last;
    cddp_store *s;
    void *bad;
    int n_bad = 0;

    if (cdi_store_host_start(&host, &opt, &err) != CDDP_OK || (s = connect_to_host(&err)) == NULL) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    for (int i = 0; i < CLIENTS; i++)
        if (pthread_create(&threads[i], NULL, client, (void *)(intptr_t)i) != 0)
            return 1;
    for (int i = 0; i < CLIENTS; i++) {
        (void)pthread_join(threads[i], &bad);
        n_bad += bad != NULL;
    }
    if (pthread_create(&last, NULL, left_behind, s) != 0)
        return 1;
    cdi_store_host_stop(host);
    (void)pthread_join(last, &bad);
    n_bad += bad != NULL;
    cddp_store_close(s);
    return n_bad == 0 ? 0 : 1;
}
