/* SPDX-License-Identifier: Apache-2.0 */
#include "store/kv.h"
#include "common/map.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The rough cost of an allocation besides its bytes, so that a million empty values are not free. */
#define OVERHEAD 32
#define DEFAULT_BYTES ((size_t)1 << 30)
#define DEFAULT_WAITS ((size_t)1 << 20)

/* A name that has a value, a queue, or waiting clients; a record with none of them is freed. */
struct key {
    struct cdi_list waiting; /* struct entry: waits for the key, or at its barrier */
    struct cdi_list queue;   /* struct item */
    size_t queue_len;
    uint8_t *value; /* NULL: none */
    size_t len, cap;
    size_t key_len;
    uint8_t name[];
};

struct item {
    struct cdi_list link;
    size_t len;
    uint8_t bytes[];
};

/* One waiting request, with an entry for each occurrence of a key that does not exist yet. */
struct entry {
    struct cdi_list link; /* in key->waiting */
    struct wait *wait;
    struct key *key; /* NULL: it was created */
};

struct wait {
    struct cdi_list link; /* in client->waits */
    struct cdi_list all;  /* in kv->waits */
    struct cdi_kv_client *client;
    size_t missing, n;
    struct entry entries[];
};

struct cdi_kv {
    struct cdi_map keys;
    struct cdi_list waits;
    size_t n_values, n_waits;
    size_t bytes;
    struct cdi_kv_limits limits;
};

/* ---------------------------------------------------------------------------------------------- memory, keys ---- */

static cddp_status kv_fail_full(const struct cdi_kv *kv, struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_LIMIT, "the store is full: the limit of its keys, values and waits is %zu bytes",
                    kv->limits.bytes);
}

static cddp_status kv_fail_memory(struct cdi_error *err)
{
    return cdi_fail(err, CDDP_E_NOMEM, "out of memory in the store");
}

/* Allocates within the limit; NULL and *st otherwise. */
static void *kv_alloc(struct cdi_kv *kv, size_t n, cddp_status *st, struct cdi_error *err)
{
    void *p;

    if (n > kv->limits.bytes - kv->bytes || OVERHEAD > kv->limits.bytes - kv->bytes - n) {
        *st = kv_fail_full(kv, err);
        return NULL;
    }
    p = malloc(n > 0 ? n : 1);
    if (p == NULL) {
        *st = kv_fail_memory(err);
        return NULL;
    }
    kv->bytes += n + OVERHEAD;
    *st = CDDP_OK;
    return p;
}

static void kv_free(struct cdi_kv *kv, void *p, size_t n)
{
    if (p == NULL)
        return;
    kv->bytes -= n + OVERHEAD;
    free(p);
}

static size_t key_size(size_t len)
{
    return sizeof(struct key) + len + sizeof(struct cdi_map_slot) * 2;
}

static size_t wait_size(size_t n)
{
    return sizeof(struct wait) + n * sizeof(struct entry);
}

static struct key *kv_find(const struct cdi_kv *kv, struct cdi_c10d_bytes name)
{
    return cdi_map_get(&kv->keys, name.data, name.len);
}

static struct key *kv_find_or_add(struct cdi_kv *kv, struct cdi_c10d_bytes name, cddp_status *st, struct cdi_error *err)
{
    struct key *k = kv_find(kv, name);

    *st = CDDP_OK;
    if (k != NULL)
        return k;
    if (name.len > kv->limits.key) {
        *st = cdi_fail(err, CDDP_E_LIMIT, "a key of %zu bytes; the limit is %zu", name.len, kv->limits.key);
        return NULL;
    }
    k = kv_alloc(kv, key_size(name.len), st, err);
    if (k == NULL)
        return NULL;
    *k = (struct key){.key_len = name.len};
    cdi_list_init(&k->waiting);
    cdi_list_init(&k->queue);
    memcpy(k->name, name.data, name.len);
    if (cdi_map_add(&kv->keys, k->name, k->key_len, k) != CDDP_OK) {
        kv_free(kv, k, key_size(name.len));
        *st = kv_fail_memory(err);
        return NULL;
    }
    return k;
}

/* Frees a key's record if nothing uses it any more. */
static void kv_tidy(struct cdi_kv *kv, struct key *k)
{
    if (k->value != NULL || k->queue_len > 0 || !cdi_list_empty(&k->waiting))
        return;
    (void)cdi_map_remove(&kv->keys, k->name, k->key_len);
    kv_free(kv, k, key_size(k->key_len));
}

static void drop_value(struct cdi_kv *kv, struct key *k)
{
    if (k->value == NULL)
        return;
    kv_free(kv, k->value, k->cap);
    k->value = NULL;
    k->len = k->cap = 0;
    kv->n_values--;
}

static size_t or_else(size_t limit, size_t otherwise)
{
    return limit == 0 ? otherwise : limit;
}

cddp_status cdi_kv_create(struct cdi_kv **out, const struct cdi_kv_limits *limits)
{
    struct cdi_kv *kv = calloc(1, sizeof *kv);

    if (kv == NULL)
        return CDDP_E_NOMEM;
    cdi_map_init(&kv->keys);
    cdi_list_init(&kv->waits);
    if (limits != NULL)
        kv->limits = *limits;
    kv->limits.bytes = or_else(kv->limits.bytes, DEFAULT_BYTES);
    kv->limits.key = or_else(kv->limits.key, CDI_C10D_KEY_MAX);
    kv->limits.value = or_else(kv->limits.value, CDI_C10D_VALUE_MAX);
    kv->limits.waits = or_else(kv->limits.waits, DEFAULT_WAITS);
    *out = kv;
    return CDDP_OK;
}

size_t cdi_kv_bytes(const struct cdi_kv *kv)
{
    return kv->bytes;
}

size_t cdi_kv_waits(const struct cdi_kv *kv)
{
    return kv->n_waits;
}

const struct cdi_kv_limits *cdi_kv_limits(const struct cdi_kv *kv)
{
    return &kv->limits;
}

/* ----------------------------------------------------------------------------------------------------- waits ---- */

void cdi_kv_client_init(struct cdi_kv_client *client, void (*wake)(struct cdi_kv_client *client))
{
    cdi_list_init(&client->waits);
    client->wake = wake;
}

/* Removes a wait from all lists and frees it. */
static void kv_end_wait(struct cdi_kv *kv, struct wait *w)
{
    for (size_t i = 0; w->missing > 0 && i < w->n; i++) {
        struct key *k = w->entries[i].key;

        if (k == NULL)
            continue;
        cdi_list_remove(&w->entries[i].link);
        kv_tidy(kv, k);
    }
    cdi_list_remove(&w->link);
    cdi_list_remove(&w->all);
    kv->n_waits--;
    kv_free(kv, w, wait_size(w->n));
}

/* Counts an entry whose key was created; ends the wait with the last one, and returns whether it was that. */
static bool kv_entry_created(struct cdi_kv *kv, struct entry *e)
{
    struct wait *w = e->wait;

    cdi_list_remove(&e->link);
    e->key = NULL;
    if (--w->missing == 0) {
        struct cdi_kv_client *client = w->client;

        kv_end_wait(kv, w);
        client->wake(client);
        return true;
    }
    return false;
}

static void kv_wake_all(struct cdi_kv *kv, struct key *k)
{
    while (!cdi_list_empty(&k->waiting))
        (void)kv_entry_created(kv, cdi_list_of(k->waiting.next, struct entry, link));
}

bool cdi_kv_waits_for(const struct cdi_kv_client *client, struct cdi_c10d_bytes *key, size_t *missing)
{
    const struct wait *w;

    if (cdi_list_empty(&client->waits))
        return false;
    w = cdi_list_of(client->waits.next, struct wait, link);
    for (size_t i = 0; i < w->n; i++) {
        const struct key *k = w->entries[i].key;

        if (k == NULL)
            continue;
        *key = (struct cdi_c10d_bytes){.data = k->name, .len = k->key_len};
        *missing = w->missing;
        return true;
    }
    return false;
}

void cdi_kv_cancel(struct cdi_kv *kv, struct cdi_kv_client *client)
{
    while (!cdi_list_empty(&client->waits))
        kv_end_wait(kv, cdi_list_of(client->waits.next, struct wait, link));
}

static struct wait *new_wait(struct cdi_kv *kv, struct cdi_kv_client *client, size_t n, cddp_status *st,
                             struct cdi_error *err)
{
    struct wait *w;

    if (kv->n_waits >= kv->limits.waits) {
        *st = cdi_fail(err, CDDP_E_LIMIT, "%zu waits are pending already, which is the store's limit", kv->n_waits);
        return NULL;
    }
    w = kv_alloc(kv, wait_size(n), st, err);
    if (w == NULL)
        return NULL;
    kv->n_waits++;
    w->client = client;
    w->missing = 0;
    w->n = n;
    cdi_list_push_back(&client->waits, &w->link);
    cdi_list_push_back(&kv->waits, &w->all);
    return w;
}

static void add_entry(struct wait *w, struct key *k)
{
    struct entry *e = &w->entries[w->missing++];

    e->wait = w;
    e->key = k;
    cdi_list_push_back(&k->waiting, &e->link);
}

static bool key_is_present(const struct key *k)
{
    return k != NULL && (k->value != NULL || k->queue_len > 0);
}

cddp_status cdi_kv_wait(struct cdi_kv *kv, struct cdi_kv_client *client, const struct cdi_c10d_request *keys, bool *now,
                        struct cdi_error *err)
{
    struct cdi_c10d_bytes name;
    size_t at = 0, missing = 0;
    struct wait *w;
    cddp_status st;

    while (cdi_c10d_next_item(keys, &at, &name))
        missing += !key_is_present(kv_find(kv, name));
    *now = missing == 0;
    if (*now)
        return CDDP_OK;
    w = new_wait(kv, client, missing, &st, err);
    if (w == NULL)
        return st;
    for (at = 0; cdi_c10d_next_item(keys, &at, &name);) {
        struct key *k;

        if (key_is_present(kv_find(kv, name)))
            continue;
        k = kv_find_or_add(kv, name, &st, err);
        if (k == NULL) {
            w->n = w->missing; /* those that were added */
            kv->bytes -= (missing - w->n) * sizeof(struct entry);
            kv_end_wait(kv, w);
            return st;
        }
        add_entry(w, k);
    }
    return CDDP_OK;
}

void cdi_kv_destroy(struct cdi_kv *kv)
{
    struct cdi_list *node, *safe;
    size_t at = 0;
    struct key *k;

    if (kv == NULL)
        return;
    while (!cdi_list_empty(&kv->waits))
        kv_end_wait(kv, cdi_list_of(kv->waits.next, struct wait, all));
    while ((k = cdi_map_next(&kv->keys, &at)) != NULL) {
        cdi_list_for_each (node, safe, &k->queue)
            free(cdi_list_of(node, struct item, link));
        free(k->value);
        free(k);
    }
    cdi_map_release(&kv->keys);
    free(kv);
}

/* ---------------------------------------------------------------------------------------------------- values ---- */

/* Sets the key's value to a and b joined; a may be its old value. */
static cddp_status kv_store(struct cdi_kv *kv, struct key *k, struct cdi_c10d_bytes a, struct cdi_c10d_bytes b,
                            size_t cap, struct cdi_error *err)
{
    cddp_status st;
    uint8_t *p = kv_alloc(kv, cap, &st, err);

    if (p == NULL)
        return st;
    assert((a.len == 0 || a.data != NULL) && (b.len == 0 || b.data != NULL));
    if (a.len > 0)
        memcpy(p, a.data, a.len);
    if (b.len > 0)
        memcpy(p + a.len, b.data, b.len);
    drop_value(kv, k);
    k->value = p;
    k->len = a.len + b.len;
    k->cap = cap;
    kv->n_values++;
    return CDDP_OK;
}

static cddp_status kv_check_value(const struct cdi_kv *kv, struct cdi_c10d_bytes value, struct cdi_error *err)
{
    if (value.len <= kv->limits.value)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_LIMIT, "a value of %zu bytes; the limit is %zu", value.len, kv->limits.value);
}

/* Sets a key's value without waking a client; NULL and *st on failure. */
static struct key *kv_put(struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes value, cddp_status *st,
                          struct cdi_error *err)
{
    struct key *k = NULL;

    *st = kv_check_value(kv, value, err);
    if (*st == CDDP_OK)
        k = kv_find_or_add(kv, key, st, err);
    if (k == NULL)
        return NULL;
    if (k->value != NULL && k->cap == value.len && value.len > 0) {
        memcpy(k->value, value.data, value.len);
        k->len = value.len;
        return k;
    }
    *st = kv_store(kv, k, value, (struct cdi_c10d_bytes){0}, value.len, err);
    if (*st == CDDP_OK)
        return k;
    kv_tidy(kv, k);
    return NULL;
}

cddp_status cdi_kv_set(struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes value, struct cdi_error *err)
{
    cddp_status st;
    struct key *k = kv_put(kv, key, value, &st, err);

    if (k != NULL)
        kv_wake_all(kv, k);
    return st;
}

cddp_status cdi_kv_append(struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes value,
                          struct cdi_error *err)
{
    cddp_status st = kv_check_value(kv, value, err);
    struct key *k = st == CDDP_OK ? kv_find_or_add(kv, key, &st, err) : NULL;

    if (k == NULL)
        return st;
    if (k->len + value.len > CDI_C10D_REQUEST_MAX) {
        st = cdi_fail(err, CDDP_E_LIMIT, "a value grew beyond %u bytes", CDI_C10D_REQUEST_MAX);
    } else if (k->value != NULL && k->len + value.len <= k->cap) {
        memcpy(k->value + k->len, value.data, value.len);
        k->len += value.len;
    } else {
        size_t need = k->len + value.len;

        /* Room to grow, so that many small pieces take linear time. */
        st = kv_store(kv, k, (struct cdi_c10d_bytes){k->value, k->len}, value, k->value == NULL ? need : need * 2, err);
    }
    if (st == CDDP_OK)
        kv_wake_all(kv, k);
    kv_tidy(kv, k);
    return st;
}

/* Reads a number as strtoll does from a value, which has no NUL at its end. */
static cddp_status kv_read_number(const struct key *k, int64_t *n, struct cdi_error *err)
{
    const uint8_t *p = k->value, *end = k->value + k->len, *digits;
    bool negative = false, fits = true;

    while (p < end && (*p == ' ' || (*p >= '\t' && *p <= '\r')))
        p++;
    if (p < end && (*p == '-' || *p == '+'))
        negative = *p++ == '-';
    *n = 0;
    for (digits = p; p < end && *p >= '0' && *p <= '9'; p++) {
        int digit = *p - '0';

        fits = fits && !__builtin_mul_overflow(*n, 10, n) && !__builtin_add_overflow(*n, negative ? -digit : digit, n);
    }
    if (p > digits && fits)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID, "cannot add to key '%.*s': its value %s",
                    (int)(k->key_len < 200 ? k->key_len : 200), (const char *)k->name,
                    fits ? "is not a number" : "does not fit a 64-bit number");
}

/* Adds to a counter without waking a client; NULL and *st on failure. */
static struct key *kv_count(struct cdi_kv *kv, struct cdi_c10d_bytes key, int64_t delta, int64_t *sum, cddp_status *st,
                            struct cdi_error *err)
{
    struct key *k = kv_find(kv, key);
    int64_t n = 0;
    char text[24];
    int len;

    *st = k == NULL || k->value == NULL ? CDDP_OK : kv_read_number(k, &n, err);
    if (*st != CDDP_OK)
        return NULL;
    n = (int64_t)((uint64_t)n + (uint64_t)delta);
    len = snprintf(text, sizeof text, "%" PRId64, n);
    k = kv_put(kv, key, (struct cdi_c10d_bytes){(const uint8_t *)text, (size_t)len}, st, err);
    if (k != NULL)
        *sum = n;
    return k;
}

cddp_status cdi_kv_add(struct cdi_kv *kv, struct cdi_c10d_bytes key, int64_t delta, int64_t *sum, struct cdi_error *err)
{
    cddp_status st;
    struct key *k = kv_count(kv, key, delta, sum, &st, err);

    if (k != NULL)
        kv_wake_all(kv, k);
    return st;
}

cddp_status cdi_kv_compare_set(struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes expected,
                               struct cdi_c10d_bytes desired, struct cdi_c10d_bytes *now, struct cdi_error *err)
{
    const struct key *k = kv_find(kv, key);
    bool there = k != NULL && k->value != NULL;
    bool equal = there && k->len == expected.len && memcmp(k->value, expected.data, expected.len) == 0;
    cddp_status st = CDDP_OK;

    if (!there && expected.len > 0) {
        *now = expected;
        return CDDP_OK;
    }
    if (!there || equal)
        st = cdi_kv_set(kv, key, desired, err);
    if (st == CDDP_OK)
        cdi_kv_get(kv, key, now);
    return st;
}

void cdi_kv_get(const struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes *value)
{
    const struct key *k = kv_find(kv, key);

    if (k == NULL || k->value == NULL)
        *value = (struct cdi_c10d_bytes){(const uint8_t *)"", 0};
    else
        *value = (struct cdi_c10d_bytes){k->value, k->len};
}

bool cdi_kv_has(const struct cdi_kv *kv, struct cdi_c10d_bytes key)
{
    return key_is_present(kv_find(kv, key));
}

bool cdi_kv_delete(struct cdi_kv *kv, struct cdi_c10d_bytes key)
{
    struct key *k = kv_find(kv, key);

    if (k == NULL || k->value == NULL)
        return false;
    drop_value(kv, k);
    kv_tidy(kv, k);
    return true;
}

size_t cdi_kv_count(const struct cdi_kv *kv)
{
    return kv->n_values;
}

bool cdi_kv_next(const struct cdi_kv *kv, size_t *at, struct cdi_c10d_bytes *key)
{
    const struct key *k;

    while ((k = cdi_map_next(&kv->keys, at)) != NULL) {
        if (k->value == NULL)
            continue;
        *key = (struct cdi_c10d_bytes){k->name, k->key_len};
        return true;
    }
    return false;
}

/* ------------------------------------------------------------------------------------------ queues, barriers ---- */

cddp_status cdi_kv_push(struct cdi_kv *kv, struct cdi_c10d_bytes key, struct cdi_c10d_bytes value,
                        struct cdi_error *err)
{
    cddp_status st = kv_check_value(kv, value, err);
    struct key *k = st == CDDP_OK ? kv_find_or_add(kv, key, &st, err) : NULL;
    struct item *item;

    if (k == NULL)
        return st;
    item = kv_alloc(kv, sizeof *item + value.len, &st, err);
    if (item == NULL) {
        kv_tidy(kv, k);
        return st;
    }
    item->len = value.len;
    memcpy(item->bytes, value.data, value.len);
    cdi_list_push_back(&k->queue, &item->link);
    k->queue_len++;
    /* One client takes it. Those that wait for other keys, too, do not wake yet. */
    while (!cdi_list_empty(&k->waiting) && !kv_entry_created(kv, cdi_list_of(k->waiting.next, struct entry, link)))
        ;
    return CDDP_OK;
}

size_t cdi_kv_queue_len(const struct cdi_kv *kv, struct cdi_c10d_bytes key)
{
    const struct key *k = kv_find(kv, key);

    return k == NULL ? 0 : k->queue_len;
}

struct cdi_c10d_bytes cdi_kv_front(const struct cdi_kv *kv, struct cdi_c10d_bytes key)
{
    const struct item *item = cdi_list_of(kv_find(kv, key)->queue.next, struct item, link);

    return (struct cdi_c10d_bytes){item->bytes, item->len};
}

void cdi_kv_pop(struct cdi_kv *kv, struct cdi_c10d_bytes key)
{
    struct key *k = kv_find(kv, key);
    struct item *item = cdi_list_of(k->queue.next, struct item, link);

    cdi_list_remove(&item->link);
    k->queue_len--;
    kv_free(kv, item, sizeof *item + item->len);
    kv_tidy(kv, k);
}

cddp_status cdi_kv_barrier(struct cdi_kv *kv, struct cdi_kv_client *client, struct cdi_c10d_bytes key,
                           int64_t world_size, bool *now, struct cdi_error *err)
{
    int64_t here = 0;
    struct wait *w;
    cddp_status st;
    struct key *k = kv_count(kv, key, 1, &here, &st, err);

    if (k == NULL)
        return st;
    *now = here >= world_size;
    if (*now) {
        kv_wake_all(kv, k);
        return CDDP_OK;
    }
    w = new_wait(kv, client, 1, &st, err);
    if (w != NULL)
        add_entry(w, k); /* it has a value, so it is not freed */
    return st;
}
