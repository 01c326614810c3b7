/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/comm/keys.h"

#include "common/crc64.h"
#include "worker/store/client.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KEY_BYTES 320

/*
 * A store may outlive a restart, and also a communicator whose ranks all finalize it and join again: each round and
 * each join has its own keys. A communicator that the program describes may share a store with a launcher's job, and
 * with others of its kind, so its name is part of its keys.
 */
void cdi_comm_set_prefix(struct cdi_world *w, bool given, int joins_before)
{
    char job[24] = "";

    if (given)
        (void)snprintf(job, sizeof job, "x%016" PRIx64 "/", cdi_crc64(0, w->name, strlen(w->name)));
    if (joins_before == 0)
        (void)snprintf(w->prefix, sizeof w->prefix, "cddp/%s%d/", job, w->restart_count);
    else
        (void)snprintf(w->prefix, sizeof w->prefix, "cddp/%s%d.%d/", job, w->restart_count, joins_before);
}

cddp_status cdi_comm_check_name(const char *member, const char *name, struct cdi_error *err)
{
    if (name == NULL || strnlen(name, CDI_COMM_NAME_BYTES) < CDI_COMM_NAME_BYTES)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID, "%s '%.*s...' is longer than %d bytes", member, CDI_COMM_NAME_BYTES, name,
                    CDI_COMM_NAME_BYTES - 1);
}

void cdi_comm_key(const struct cdi_world *w, const char *name, int rank, char key[CDI_COMM_KEY_BYTES])
{
    if (rank < 0)
        (void)snprintf(key, CDI_COMM_KEY_BYTES, "%s%s", w->prefix, name);
    else
        (void)snprintf(key, CDI_COMM_KEY_BYTES, "%s%s/%d", w->prefix, name, rank);
}

static cddp_status keys_set(void *arg, const char *name, const void *value, size_t len, struct cdi_error *err)
{
    const struct cdi_world *w = arg;
    char key[KEY_BYTES];

    (void)snprintf(key, sizeof key, "%s%s", w->prefix, name);
    return cdi_store_set(w->store, key, value, len, err);
}

static cddp_status keys_get(void *arg, const char *name, void *buf, size_t cap, size_t *len, int64_t timeout_ms,
                            struct cdi_error *err)
{
    const struct cdi_world *w = arg;
    char key[KEY_BYTES];
    bool exists = true;
    cddp_status st = CDDP_OK;

    (void)snprintf(key, sizeof key, "%s%s", w->prefix, name);
    if (timeout_ms == 0)
        st = cdi_store_exists(w->store, key, &exists, err);
    if (st == CDDP_OK && !exists)
        return cdi_fail(err, CDDP_E_TIMEOUT, "'%s' is not in the store", key);
    if (st != CDDP_OK)
        return st;
    return (w->shares_store ? cdi_store_get_polling : cdi_store_get)(w->store, key, buf, cap, len, timeout_ms, err);
}

static cddp_status keys_add(void *arg, const char *name, int64_t delta, int64_t *sum, struct cdi_error *err)
{
    const struct cdi_world *w = arg;
    char key[KEY_BYTES];

    (void)snprintf(key, sizeof key, "%s%s", w->prefix, name);
    return cdi_store_add(w->store, key, delta, sum, err);
}

void cdi_comm_set_keys(struct cdi_world *w)
{
    w->keys = (struct cdi_oob){.set = keys_set, .get = keys_get, .add = keys_add, .arg = w};
}
