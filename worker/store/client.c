/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations of the store client, over conn.c. Each client has a mutex, so that requests and replies of several
 * threads do not mix. A connection that has failed is closed at once, since replies may be missing.
 */
#include "worker/store/client.h"

#include "common/address.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/env.h"
#include "common/time_limits.h"
#include "protocol/c10d.h"
#include "worker/base/last_error.h"
#include "worker/base/sized.h"
#include "worker/store/conn.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define FIRST_NAP_US 100 /* between two polls; grows by half each time, up to the next line */
#define LAST_NAP_US 20000
#define KEY_MAX (CDI_C10D_KEY_MAX - 1)

/* ------------------------------------------------------------------------------------------------ operations ---- */

int64_t cdi_store_cancel_ms = 10000;

/* A key as it is sent: prefix and name one after the other. */
struct key {
    const char *prefix, *name;
};

static struct key verbatim(const char *name)
{
    return (struct key){"", name};
}

static struct key public_key(const char *name)
{
    return (struct key){"/", name};
}

static cddp_status check_key(const char *name, struct cdi_error *err)
{
    if (name == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "the key is NULL");
    if (strnlen(name, KEY_MAX + 1) > KEY_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "the key '%.32s...' is longer than %u bytes", name, KEY_MAX);
    return CDDP_OK;
}

static cddp_status check_value(const void *value, size_t len, struct cdi_error *err)
{
    if (value == NULL && len > 0)
        return cdi_fail(err, CDDP_E_INVALID, "the value is NULL");
    if (len > CDI_C10D_VALUE_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "the value has %zu bytes, more than the %u that a store accepts", len,
                        CDI_C10D_VALUE_MAX);
    return CDDP_OK;
}

static cddp_status put_key(cddp_store *s, struct key k)
{
    size_t a = strlen(k.prefix), b = strlen(k.name);
    cddp_status st = cdi_buf_put_u64(&s->io.out, a + b);

    if (st == CDDP_OK)
        st = cdi_buf_append(&s->io.out, k.prefix, a);
    return st == CDDP_OK ? cdi_buf_append(&s->io.out, k.name, b) : st;
}

static cddp_status put_value(cddp_store *s, const void *value, size_t len)
{
    return cdi_c10d_put_string(&s->io.out, len > 0 ? value : "", len);
}

static int64_t deadline_of(const cddp_store *s, int64_t timeout_ms)
{
    return cdi_deadline_ms(cdi_now_ms(), timeout_ms == 0 ? s->timeout_ms : timeout_ms);
}

/* Reads what is still to come of the answers to a cancelled wait. */
static cddp_status client_settle(cddp_store *s, int64_t deadline_ms, struct cdi_error *err)
{
    cddp_status st = s->settling ? cdi_store_flush(s, deadline_ms, err) : CDDP_OK;
    unsigned answer;

    while (st == CDDP_OK && s->settling) {
        st = cdi_store_read_u8(s, deadline_ms, &answer, err);
        if (st == CDDP_OK && answer != CDI_C10D_WAIT_CANCELED && (answer != CDI_C10D_STOP_WAITING || s->woken))
            return cdi_store_nonsense(s, err);
        s->woken = s->woken || (st == CDDP_OK && answer == CDI_C10D_STOP_WAITING);
        s->settling = st != CDDP_OK || answer != CDI_C10D_WAIT_CANCELED;
    }
    return st;
}

/* An operation: client_begin locks, requests and replies follow, client_end unlocks. */
static cddp_status client_begin(cddp_store *s, int64_t timeout_ms, struct cdi_error *err)
{
    cddp_status st;

    (void)pthread_mutex_lock(&s->lock);
    s->in_order = false;
    if (s->io.fd < 0)
        return cdi_fail(err, CDDP_E_CLOSED, "the connection to the store at %s was closed after an earlier error%s%s",
                        s->where, s->why[0] != '\0' ? ": " : "", s->why);
    st = client_settle(s, deadline_of(s, timeout_ms), err);
    s->in_order = st == CDDP_E_TIMEOUT || (st != CDDP_OK && s->flight != NULL && cdi_flight_is_interrupted(s->flight));
    return st;
}

static cddp_status client_end(cddp_store *s, cddp_status st, const struct cdi_error *err)
{
    if (st != CDDP_OK && st != CDDP_E_LIMIT && !s->in_order) {
        if (s->io.fd >= 0 && err != NULL)
            (void)snprintf(s->why, sizeof s->why, "%.290s", err->msg);
        cdi_store_drop(s);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return st;
}

/* Sends the request that was put, unless that failed: no partial request may stay. */
static cddp_status client_submit(cddp_store *s, cddp_status put, int64_t deadline_ms, struct cdi_error *err)
{
    if (put != CDDP_OK)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a request to the store");
    return cdi_store_flush(s, deadline_ms, err);
}

/*
 * Cancels a wait that has timed out. If a wake-up has crossed the request, the wait has succeeded. While the network is
 * cut, no answer comes: then the next operation reads it, since the job may outlive a cut as long as the lease.
 */
static cddp_status client_cancel_wait(cddp_store *s, struct cdi_error *err)
{
    int64_t deadline_ms = cdi_deadline_ms(cdi_now_ms(), cdi_store_cancel_ms);
    cddp_status st;

    s->settling = true;
    s->woken = false;
    st = client_submit(s, cdi_c10d_put_op(&s->io.out, CDI_C10D_CANCEL_WAIT), deadline_ms, err);
    if (st == CDDP_OK)
        st = client_settle(s, deadline_ms, err);
    return st == CDDP_E_TIMEOUT || (st == CDDP_OK && !s->woken) ? CDDP_IN_PROGRESS : st;
}

/* Cancels a wait that the program has interrupted: the store must stay usable, to notify the others. */
static void client_cancel_interrupted(cddp_store *s)
{
    const struct cdi_flight *flight = s->flight;
    cddp_status st;

    cdi_store_follow(s, NULL); /* it would interrupt this wait, too */
    st = client_cancel_wait(s, NULL);
    cdi_store_follow(s, flight);
    s->in_order = st == CDDP_OK || st == CDDP_IN_PROGRESS;
}

/* Waits for the keys. Returns CDDP_IN_PROGRESS if that timed out, and the connection is as before. */
static cddp_status wait_keys(cddp_store *s, const struct key *keys, size_t n, int64_t timeout_ms, struct cdi_error *err)
{
    int64_t deadline_ms = deadline_of(s, timeout_ms);
    struct cdi_error why;
    unsigned answer;
    cddp_status st = cdi_c10d_put_op(&s->io.out, CDI_C10D_WAIT);

    if (st == CDDP_OK)
        st = cdi_buf_put_u64(&s->io.out, n);
    for (size_t i = 0; i < n && st == CDDP_OK; i++)
        st = put_key(s, keys[i]);
    st = client_submit(s, st, deadline_ms, err);
    if (st != CDDP_OK)
        return st;
    st = cdi_store_read_u8(s, deadline_ms, &answer, &why);
    if (st == CDDP_E_TIMEOUT)
        return client_cancel_wait(s, err);
    if (st != CDDP_OK) {
        if (s->flight != NULL && cdi_flight_is_interrupted(s->flight))
            client_cancel_interrupted(s);
        if (err != NULL)
            *err = why;
        return st;
    }
    return answer == CDI_C10D_STOP_WAITING ? CDDP_OK : cdi_store_nonsense(s, err);
}

/* Ends an operation that may have been a wait that timed out. */
static cddp_status client_end_wait(cddp_store *s, cddp_status st, const char *name, int64_t timeout_ms,
                                   struct cdi_error *err)
{
    double seconds = (double)(timeout_ms == 0 ? s->timeout_ms : timeout_ms) / 1000;

    if (st != CDDP_IN_PROGRESS)
        return client_end(s, st, err);
    (void)client_end(s, CDDP_OK, NULL);
    return cdi_fail(err, CDDP_E_TIMEOUT, "key '%.128s' did not appear in the store within %.4g s", name, seconds);
}

static cddp_status client_set(cddp_store *s, struct key k, const void *value, size_t len, struct cdi_error *err)
{
    cddp_status st = check_key(k.name, err);

    if (st == CDDP_OK)
        st = check_value(value, len, err);
    if (st != CDDP_OK)
        return st;
    st = client_begin(s, 0, err);
    if (st == CDDP_OK) {
        cddp_status put = cdi_c10d_put_op(&s->io.out, CDI_C10D_SET);

        if (put == CDDP_OK)
            put = put_key(s, k);
        if (put == CDDP_OK)
            put = put_value(s, value, len);
        st = client_submit(s, put, deadline_of(s, 0), err);
    }
    return client_end(s, st, err);
}

static cddp_status client_get(cddp_store *s, struct key k, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                              struct cdi_error *err)
{
    cddp_status st = check_key(k.name, err);

    if (st != CDDP_OK)
        return st;
    st = client_begin(s, timeout_ms, err);
    if (st == CDDP_OK)
        st = wait_keys(s, &k, 1, timeout_ms, err);
    if (st == CDDP_OK) {
        int64_t deadline_ms = deadline_of(s, 0);
        cddp_status put = cdi_c10d_put_op(&s->io.out, CDI_C10D_GET);

        if (put == CDDP_OK)
            put = put_key(s, k);
        st = client_submit(s, put, deadline_ms, err);
        if (st == CDDP_OK)
            st = cdi_store_read_string(s, deadline_ms, buf, cap, len, err);
    }
    return client_end_wait(s, st, k.name, timeout_ms, err);
}

static cddp_status client_add(cddp_store *s, struct key k, int64_t delta, int64_t *sum, struct cdi_error *err)
{
    cddp_status st = check_key(k.name, err);
    uint64_t v = 0;

    if (st != CDDP_OK)
        return st;
    st = client_begin(s, 0, err);
    if (st == CDDP_OK) {
        int64_t deadline_ms = deadline_of(s, 0);
        cddp_status put = cdi_c10d_put_op(&s->io.out, CDI_C10D_ADD);

        if (put == CDDP_OK)
            put = put_key(s, k);
        if (put == CDDP_OK)
            put = cdi_c10d_put_i64(&s->io.out, delta);
        st = client_submit(s, put, deadline_ms, err);
        if (st == CDDP_OK)
            st = cdi_store_read_u64(s, deadline_ms, &v, err);
        /* Servers have no answer for it, and end the connection, as PyTorch's does (TCPStoreBackend.cpp, addHandler).
         */
        if (st == CDDP_E_CLOSED)
            st = cdi_error_wrap(err, "adding to key '%.128s', whose value may not be a number", k.name);
    }
    if (st == CDDP_OK && sum != NULL)
        *sum = (int64_t)v;
    return client_end(s, st, err);
}

static cddp_status client_compare_set(cddp_store *s, struct key k, const void *expected, size_t expected_len,
                                      const void *desired, size_t desired_len, void *buf, size_t cap, size_t *len,
                                      struct cdi_error *err)
{
    cddp_status st = check_key(k.name, err);

    if (st == CDDP_OK)
        st = check_value(expected, expected_len, err);
    if (st == CDDP_OK)
        st = check_value(desired, desired_len, err);
    if (st != CDDP_OK)
        return st;
    st = client_begin(s, 0, err);
    if (st == CDDP_OK) {
        int64_t deadline_ms = deadline_of(s, 0);
        cddp_status put = cdi_c10d_put_op(&s->io.out, CDI_C10D_COMPARE_SET);

        if (put == CDDP_OK)
            put = put_key(s, k);
        if (put == CDDP_OK)
            put = put_value(s, expected, expected_len);
        if (put == CDDP_OK)
            put = put_value(s, desired, desired_len);
        st = client_submit(s, put, deadline_ms, err);
        if (st == CDDP_OK)
            st = cdi_store_read_string(s, deadline_ms, buf, cap, len, err);
    }
    return client_end(s, st, err);
}

static cddp_status client_delete(cddp_store *s, struct key k, uint64_t *n, struct cdi_error *err)
{
    cddp_status st = check_key(k.name, err);

    if (st != CDDP_OK)
        return st;
    st = client_begin(s, 0, err);
    if (st == CDDP_OK) {
        int64_t deadline_ms = deadline_of(s, 0);
        cddp_status put = cdi_c10d_put_op(&s->io.out, CDI_C10D_DELETE_KEY);

        if (put == CDDP_OK)
            put = put_key(s, k);
        st = client_submit(s, put, deadline_ms, err);
        if (st == CDDP_OK)
            st = cdi_store_read_u64(s, deadline_ms, n, err);
    }
    return client_end(s, st, err);
}

static cddp_status client_check_keys(cddp_store *s, const struct key *keys, size_t n, bool *all, struct cdi_error *err)
{
    unsigned answer = CDI_C10D_NOT_READY;
    cddp_status st = client_begin(s, 0, err);

    if (st == CDDP_OK) {
        int64_t deadline_ms = deadline_of(s, 0);
        cddp_status put = cdi_c10d_put_op(&s->io.out, CDI_C10D_CHECK);

        if (put == CDDP_OK)
            put = cdi_buf_put_u64(&s->io.out, n);
        for (size_t i = 0; i < n && put == CDDP_OK; i++)
            put = put_key(s, keys[i]);
        st = client_submit(s, put, deadline_ms, err);
        if (st == CDDP_OK)
            st = cdi_store_read_u8(s, deadline_ms, &answer, err);
        if (st == CDDP_OK && answer != CDI_C10D_READY && answer != CDI_C10D_NOT_READY)
            st = cdi_store_nonsense(s, err);
    }
    *all = answer == CDI_C10D_READY;
    return client_end(s, st, err);
}

void cdi_store_local_address(const cddp_store *store, struct sockaddr_storage *address, socklen_t *len)
{
    *len = sizeof *address;
    if (getsockname(store->io.fd, (struct sockaddr *)address, len) != 0)
        *len = 0;
}

cddp_status cdi_store_set(cddp_store *store, const char *key, const void *value, size_t len, struct cdi_error *err)
{
    return client_set(store, verbatim(key), value, len, err);
}

cddp_status cdi_store_get(cddp_store *store, const char *key, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                          struct cdi_error *err)
{
    return client_get(store, verbatim(key), buf, cap, len, timeout_ms, err);
}

cddp_status cdi_store_add(cddp_store *store, const char *key, int64_t delta, int64_t *sum, struct cdi_error *err)
{
    return client_add(store, verbatim(key), delta, sum, err);
}

cddp_status cdi_store_compare_set(cddp_store *store, const char *key, const void *expected, size_t expected_len,
                                  const void *desired, size_t desired_len, void *buf, size_t cap, size_t *len,
                                  struct cdi_error *err)
{
    return client_compare_set(store, verbatim(key), expected, expected_len, desired, desired_len, buf, cap, len, err);
}

cddp_status cdi_store_delete(cddp_store *store, const char *key, struct cdi_error *err)
{
    uint64_t n;

    return client_delete(store, verbatim(key), &n, err);
}

cddp_status cdi_store_exists(cddp_store *store, const char *key, bool *exists, struct cdi_error *err)
{
    struct key k = verbatim(key);

    return client_check_keys(store, &k, 1, exists, err);
}

cddp_status cdi_store_get_polling(cddp_store *store, const char *key, void *buf, size_t cap, size_t *len,
                                  int64_t timeout_ms, struct cdi_error *err)
{
    int64_t deadline_ms = deadline_of(store, timeout_ms), nap_us = FIRST_NAP_US;

    for (;;) {
        const struct timespec nap = {.tv_nsec = nap_us * 1000};
        bool there = false;
        cddp_status st = cdi_store_exists(store, key, &there, err);

        if (st == CDDP_OK && there)
            return client_get(store, verbatim(key), buf, cap, len, timeout_ms, err);
        if (st == CDDP_OK && store->flight != NULL)
            st = cdi_flight_check(store->flight, err);
        if (st == CDDP_OK && cdi_now_ms() >= deadline_ms)
            st = cdi_fail(err, CDDP_E_TIMEOUT, "key '%.128s' did not appear in the store within %.4g s", key,
                          (double)(timeout_ms == 0 ? store->timeout_ms : timeout_ms) / 1000);
        if (st != CDDP_OK)
            return st;
        (void)nanosleep(&nap, NULL);
        nap_us = nap_us * 3 / 2 > LAST_NAP_US ? LAST_NAP_US : nap_us * 3 / 2;
    }
}

/* ---------------------------------------------------------------------------------------------- public names ---- */

/* Checks that store is not NULL, and that this process has opened it. */
static cddp_status client_check(const char *function, const cddp_store *store)
{
    struct cdi_error err;

    if (store == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "store is NULL"), &err);
    if (cdi_owner_is_here(&store->owner))
        return CDDP_OK;
    return cdi_last_error_return(cdi_owner_refuse(&store->owner, function, "connection to the store", &err), &err);
}

static cddp_status open_checked(cddp_store **store, const cddp_store_options *opt, struct cdi_error *err)
{
    const char *host = opt->host != NULL ? opt->host : cdi_env_str("MASTER_ADDR");
    int64_t port = opt->port;
    cddp_status st = CDDP_OK;

    if (host == NULL)
        return cdi_fail(err, CDDP_E_INVALID, "MASTER_ADDR is not set: pass the store's host, or start with cddprun");
    if (port == 0)
        st = cdi_env_int("MASTER_PORT", 1, 65535, &port, err);
    if (st == CDDP_E_NOT_FOUND)
        return cdi_fail(err, CDDP_E_INVALID, "MASTER_PORT is not set: pass the store's port, or start with cddprun");
    if (st != CDDP_OK)
        return st;
    st = opt->host != NULL ? cdi_address_without_port(host, "cddp_store_options.host", "port", err)
                           : cdi_address_without_port(host, "MASTER_ADDR", "MASTER_PORT", err);
    if (st != CDDP_OK)
        return st;
    if (port < 1 || port > 65535 || opt->timeout_ms < 0)
        return cdi_fail(err, CDDP_E_INVALID, "the store's port must be from 1 to 65535, and its timeout not negative");
    return cdi_store_open(store, host, (int)port, opt->timeout_ms == 0 ? 1000 * CDI_LIMIT_STORE_S : opt->timeout_ms,
                          err);
}

cddp_status cddp_store_open(cddp_store **store, const cddp_store_options *opt)
{
    cddp_store_options known = {.size = sizeof known};
    struct cdi_error err;

    if (store == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "out is NULL"), &err);
    if (opt != NULL) {
        cddp_status st = cdi_sized_get(&known, sizeof known, opt, "cddp_store_options", &err);

        if (st != CDDP_OK)
            return cdi_last_error_return(st, &err);
    }
    return cdi_last_error_return(open_checked(store, &known, &err), &err);
}

cddp_status cddp_store_set(cddp_store *store, const char *key, const void *value, size_t len)
{
    cddp_status st = client_check("cddp_store_set", store);
    struct cdi_error err;

    return st != CDDP_OK ? st : cdi_last_error_return(client_set(store, public_key(key), value, len, &err), &err);
}

cddp_status cddp_store_get(cddp_store *store, const char *key, void *buf, size_t cap, size_t *len, int timeout_ms)
{
    cddp_status st = client_check("cddp_store_get", store);
    struct cdi_error err;
    size_t n;

    if (st != CDDP_OK)
        return st;
    if (buf == NULL && cap > 0)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "buf is NULL"), &err);
    return cdi_last_error_return(client_get(store, public_key(key), buf, cap, len != NULL ? len : &n, timeout_ms, &err),
                                 &err);
}

cddp_status cddp_store_add(cddp_store *store, const char *key, int64_t delta, int64_t *sum)
{
    cddp_status st = client_check("cddp_store_add", store);
    struct cdi_error err;

    return st != CDDP_OK ? st : cdi_last_error_return(client_add(store, public_key(key), delta, sum, &err), &err);
}

cddp_status cddp_store_compare_set(cddp_store *store, const char *key, const void *expected, size_t expected_len,
                                   const void *desired, size_t desired_len, void *buf, size_t cap, size_t *len)
{
    cddp_status st = client_check("cddp_store_compare_set", store);
    struct cdi_error err;
    size_t n;

    if (st != CDDP_OK)
        return st;
    if (buf == NULL && cap > 0)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "buf is NULL"), &err);
    return cdi_last_error_return(client_compare_set(store, public_key(key), expected, expected_len, desired,
                                                    desired_len, buf, cap, len != NULL ? len : &n, &err),
                                 &err);
}

/* Makes keys of the list. The caller frees *list. */
static cddp_status key_list(const char *const *keys, size_t n, struct key **list, struct cdi_error *err)
{
    if (n == 0 || keys == NULL || n > CDI_C10D_LIST_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "a list of keys has 1 to %u entries", CDI_C10D_LIST_MAX);
    *list = calloc(n, sizeof **list);
    if (*list == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory for a list of %zu keys", n);
    for (size_t i = 0; i < n; i++) {
        cddp_status st = check_key(keys[i], err);

        if (st != CDDP_OK)
            return st;
        (*list)[i] = public_key(keys[i]);
    }
    return CDDP_OK;
}

cddp_status cddp_store_wait(cddp_store *store, const char *const *keys, size_t n_keys, int timeout_ms)
{
    CDI_AUTOFREE struct key *list = NULL;
    struct cdi_error err;
    cddp_status st = client_check("cddp_store_wait", store);

    if (st != CDDP_OK)
        return st;
    st = key_list(keys, n_keys, &list, &err);
    if (st != CDDP_OK)
        return cdi_last_error_return(st, &err);
    st = client_begin(store, timeout_ms, &err);
    if (st == CDDP_OK)
        st = wait_keys(store, list, n_keys, timeout_ms, &err);
    if (st != CDDP_IN_PROGRESS || n_keys == 1)
        return cdi_last_error_return(client_end_wait(store, st, keys[0], timeout_ms, &err), &err);
    (void)client_end(store, CDDP_OK, NULL);
    return cdi_last_error_return(cdi_fail(&err, CDDP_E_TIMEOUT,
                                          "not all of %zu keys ('%.64s', ...) appeared in the store in time", n_keys,
                                          keys[0]),
                                 &err);
}

cddp_status cddp_store_check(cddp_store *store, const char *const *keys, size_t n_keys, int *all_exist)
{
    CDI_AUTOFREE struct key *list = NULL;
    struct cdi_error err;
    bool all = false;
    cddp_status st = client_check("cddp_store_check", store);

    if (st != CDDP_OK)
        return st;
    if (all_exist == NULL)
        return cdi_last_error_return(cdi_fail(&err, CDDP_E_INVALID, "all_exist is NULL"), &err);
    st = key_list(keys, n_keys, &list, &err);
    if (st == CDDP_OK)
        st = client_check_keys(store, list, n_keys, &all, &err);
    if (st == CDDP_OK)
        *all_exist = all;
    return cdi_last_error_return(st, &err);
}

cddp_status cddp_store_delete(cddp_store *store, const char *key, int *deleted)
{
    struct cdi_error err;
    uint64_t n = 0;
    cddp_status st = client_check("cddp_store_delete", store);

    if (st != CDDP_OK)
        return st;
    st = client_delete(store, public_key(key), &n, &err);
    if (st == CDDP_OK && deleted != NULL)
        *deleted = n > 0;
    return cdi_last_error_return(st, &err);
}
