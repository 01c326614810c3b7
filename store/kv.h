/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of one round: values, queues, barriers, and the clients that wait for them. The results are those of
 * PyTorch's TCPStore (libuv backend), so that its client sees no difference. Pure: no sockets, no clock. One thread at
 * a time. store/serve.c implements the wire format on top of it.
 */
#ifndef CDI_KV_H
#define CDI_KV_H

#include "common/error.h"
#include "common/list.h"
#include "protocol/c10d.h"

#include <stdbool.h>
#include <stdint.h>

/* The limits of one round's keys. 0: the default. */
struct cdi_kv_limits {
    size_t bytes; /* of keys, values, queues and waits in sum; 1 GiB */
    size_t key;   /* bytes of a key; CDI_C10D_KEY_MAX */
    size_t value; /* bytes of a value in a set; CDI_C10D_VALUE_MAX */
    size_t waits; /* pending at once; a million */
};

struct cdi_kv;

/* A client that can wait; a member of its connection. */
struct cdi_kv_client {
    struct cdi_list waits;
    void (*wake)(struct cdi_kv_client *client); /* one wait has ended; must not call back into the kv */
};

/* Creates an empty store. limits NULL: the defaults. CDDP_OK, CDDP_E_NOMEM. */
cddp_status cdi_kv_create(struct cdi_kv **out, const struct cdi_kv_limits *limits);
/* Frees all keys. Pending waits end without a wake. NULL-safe. */
void cdi_kv_destroy(struct cdi_kv *kv);
/* Return the bytes in use, the pending waits, and the limits. */
size_t cdi_kv_bytes(const struct cdi_kv *kv);
size_t cdi_kv_waits(const struct cdi_kv *kv);
const struct cdi_kv_limits *cdi_kv_limits(const struct cdi_kv *kv);

void cdi_kv_client_init(struct cdi_kv_client *client, void (*wake)(struct cdi_kv_client *client));
/*
 * Gets a key for which a client waits, valid until the next change, and the number of keys that it still lacks. Returns
 * false if it does not wait.
 */
bool cdi_kv_waits_for(const struct cdi_kv_client *client, struct cdi_c10d_bytes *key, size_t *missing);
/* Ends all waits of a client without a wake: it has cancelled them, or disconnected. */
void cdi_kv_cancel(struct cdi_kv *kv, struct cdi_kv_client *client);

/*
 * Functions that store something return CDDP_OK, CDDP_E_LIMIT (a limit is reached) or CDDP_E_NOMEM, and change nothing
 * on failure. They copy the bytes, and wake the clients that wait for the key.
 */
cddp_status cdi_kv_set(struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes value,
                       struct cdi_error *err);
cddp_status cdi_kv_append(struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes value,
                          struct cdi_error *err);
/*
 * Adds to a counter, whose value is decimal text. It is read by strtoll's rules, which ignore blanks before the number
 * and anything after it; a missing key counts as 0; overflow wraps. CDDP_E_INVALID: the value does not start with a
 * number, or the number does not fit an i64.
 */
cddp_status cdi_kv_add(struct cdi_kv *kv, struct cdi_c10d_bytes key, int64_t delta, int64_t *sum,
                       struct cdi_error *err);
/*
 * Replaces a value that is equal to `expected` by `desired`, and sets *now to the value that is there afterwards. If
 * there is no such key, stores `desired` if `expected` is empty; otherwise stores nothing, and sets *now to `expected`.
 * *now is valid until the next change, or as long as `expected`.
 */
cddp_status cdi_kv_compare_set(struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes expected,
                               struct cdi_c10d_bytes desired, struct cdi_c10d_bytes *now, struct cdi_error *err);
/* Gets a value, which is valid until the next change; empty if there is no such key. */
void cdi_kv_get(const struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes *value);
/* Returns whether the key has a value, or a queue that is not empty. */
bool cdi_kv_has(const struct cdi_kv *kv, struct cdi_c10d_bytes key);
bool cdi_kv_delete(struct cdi_kv *kv, struct cdi_c10d_bytes key);
/* Returns the number of keys with a value; queues do not count. */
size_t cdi_kv_count(const struct cdi_kv *kv);
/* Gets the next of them, from *at = 0 on; false: the end. The kv must not change meanwhile. */
bool cdi_kv_next(const struct cdi_kv *kv, size_t *at, struct cdi_c10d_bytes *key);

/* Appends to a queue, and wakes one of the clients that wait for the key, not all. */
cddp_status cdi_kv_push(struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes value,
                        struct cdi_error *err);
size_t cdi_kv_queue_len(const struct cdi_kv *kv, struct cdi_c10d_bytes key);
/* Return the first value of a queue that is not empty, and drop it. */
struct cdi_c10d_bytes cdi_kv_front(const struct cdi_kv *kv, struct cdi_c10d_bytes key);
void cdi_kv_pop(struct cdi_kv *kv, struct cdi_c10d_bytes key);

/*
 * Waits until each key of the list has been created once; a key that is deleted again still counts. Sets *now to true
 * if all exist already; otherwise calls client->wake() when the last one is created. CDDP_E_LIMIT, CDDP_E_NOMEM.
 */
cddp_status cdi_kv_wait(struct cdi_kv *kv, struct cdi_kv_client *client, const struct cdi_c10d_request *keys, bool *now,
                        struct cdi_error *err);
/*
 * Counts the client under the key, a plain counter that is never reset. If it reaches world_size, sets *now to true and
 * wakes all clients that wait at this barrier; otherwise the client waits there. As in PyTorch, that is a plain wait
 * for the key: a set of the key ends it, too, but the count of another client does not. Errors: as add and wait.
 */
cddp_status cdi_kv_barrier(struct cdi_kv *kv, struct cdi_kv_client *client, struct cdi_c10d_bytes key,
                           int64_t world_size, bool *now, struct cdi_error *err);

#endif
