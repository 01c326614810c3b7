/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of one round: values, queues, barriers, and who waits for what. The answers are those of PyTorch's TCPStore
 * (libuv backend), so that its client cannot tell the difference. Pure: no sockets, no clock. One thread at a time.
 * Used by store/serve.c, which speaks the wire format.
 */
#ifndef CDI_KV_H
#define CDI_KV_H

#include "common/error.h"
#include "common/list.h"
#include "protocol/c10d.h"

#include <stdbool.h>
#include <stdint.h>

/* What the keys of one round may take. 0: the default. */
struct cdi_kv_limits {
    size_t bytes; /* of keys, values, queues and waits in sum; 1 GiB */
    size_t key;   /* bytes of a key; CDI_C10D_KEY_MAX */
    size_t value; /* bytes of a value that is set; CDI_C10D_VALUE_MAX */
    size_t waits; /* pending at once; a million */
};

struct cdi_kv;

/* Somebody who can wait; lives inside its connection. */
struct cdi_kv_client {
    struct cdi_list waits;
    void (*wake)(struct cdi_kv_client *client); /* one wait has ended; must not call back into the kv */
};

/* limits NULL: the defaults. CDDP_OK, CDDP_E_NOMEM. */
cddp_status cdi_kv_create(struct cdi_kv **out, const struct cdi_kv_limits *limits);
/* Free all keys. Waits that are pending end without a wake. NULL-safe. */
void cdi_kv_destroy(struct cdi_kv *kv);
/* Bytes in use, and waits that are pending, of the limits. */
size_t cdi_kv_bytes(const struct cdi_kv *kv);
size_t cdi_kv_waits(const struct cdi_kv *kv);
const struct cdi_kv_limits *cdi_kv_limits(const struct cdi_kv *kv);

void cdi_kv_client_init(struct cdi_kv_client *client, void (*wake)(struct cdi_kv_client *client));
/* End all of a client's waits without a wake: it cancelled, or it is gone. */
void cdi_kv_cancel(struct cdi_kv *kv, struct cdi_kv_client *client);

/*
 * All that store something: CDDP_OK, CDDP_E_LIMIT (a limit is reached), CDDP_E_NOMEM; on failure nothing changed. They
 * wake those who wait for the key. The bytes are copied.
 */
cddp_status cdi_kv_set(struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes value,
                       struct cdi_error *err);
cddp_status cdi_kv_append(struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes value,
                          struct cdi_error *err);
/*
 * Values of counters are decimal text, read by strtoll's rules (blanks in front and anything behind the number are
 * ignored); a missing key counts as 0; overflow wraps. CDDP_E_INVALID: the value does not start with a number, or with
 * one that an i64 cannot hold.
 */
cddp_status cdi_kv_add(struct cdi_kv *kv, struct cdi_c10d_bytes key, int64_t delta, int64_t *sum,
                       struct cdi_error *err);
/*
 * No such key: `desired` is stored if `expected` is empty, and *now is the value stored; else nothing is, and *now is
 * `expected`. Otherwise: replaced if equal to `expected`, *now is what is there afterwards. *now is valid until the
 * next change, or as long as `expected`.
 */
cddp_status cdi_kv_compare_set(struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes expected,
                               struct cdi_c10d_bytes desired, struct cdi_c10d_bytes *now, struct cdi_error *err);
/* *value is valid until the next change; empty where there is no such key. */
void cdi_kv_get(const struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes *value);
/* Is there a value, or a queue that is not empty? */
bool cdi_kv_has(const struct cdi_kv *kv, struct cdi_c10d_bytes key);
bool cdi_kv_delete(struct cdi_kv *kv, struct cdi_c10d_bytes key);
/* Keys with a value; queues do not count. */
size_t cdi_kv_count(const struct cdi_kv *kv);
/* Walk them: *at = 0 first, false at the end. The kv must not change meanwhile. */
bool cdi_kv_next(const struct cdi_kv *kv, size_t *at, struct cdi_c10d_bytes *key);

/* A push wakes one of those who wait for the key, not all. */
cddp_status cdi_kv_push(struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes value,
                        struct cdi_error *err);
size_t cdi_kv_queue_len(const struct cdi_kv *kv, struct cdi_c10d_bytes key);
/* The first value of a queue that is not empty; then drop it. */
struct cdi_c10d_bytes cdi_kv_front(const struct cdi_kv *kv, struct cdi_c10d_bytes key);
void cdi_kv_pop(struct cdi_kv *kv, struct cdi_c10d_bytes key);

/*
 * Wait until each key of the list has come into being once (a key that is deleted again still counts). *now is true if
 * all are there already; else client->wake() is called when the last one comes. CDDP_E_LIMIT, CDDP_E_NOMEM.
 */
cddp_status cdi_kv_wait(struct cdi_kv *kv, struct cdi_kv_client *client, const struct cdi_c10d_request *keys, bool *now,
                        struct cdi_error *err);
/*
 * Count the caller in under the key (a counter like any other, which is never reset). *now is true if it is world_size
 * or more; then all who are parked at this barrier are woken. Else the client is parked. As in PyTorch, being parked is
 * a wait for the key like any other: what sets the key wakes the parked too, but counting somebody in wakes nobody.
 * Errors: as add and wait.
 */
cddp_status cdi_kv_barrier(struct cdi_kv *kv, struct cdi_kv_client *client, struct cdi_c10d_bytes key,
                           int64_t world_size, bool *now, struct cdi_error *err);

#endif
