/* SPDX-License-Identifier: Apache-2.0 */
/* Open addressing with linear probing; removal shifts back, so there are no tombstones. The hash is SipHash-1-3. */
#include "common/map.h"
#include "common/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define MAP_MIN 16

static uint64_t seed[2];
static pthread_once_t seeded = PTHREAD_ONCE_INIT;

static void make_seed(void)
{
    if (getrandom(seed, sizeof seed, GRND_NONBLOCK) == (ssize_t)sizeof seed)
        return;
    /* Early at boot: weaker, but different in each process. */
    seed[0] = (uint64_t)cdi_now_ns() * 0x9e3779b97f4a7c15u;
    seed[1] = ((uint64_t)getpid() << 32) ^ (uint64_t)(uintptr_t)&seed;
}

static inline uint64_t rotl(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = rotl(v[1], 13) ^ v[0];
    v[3] = rotl(v[3], 16) ^ v[2];
    v[0] = rotl(v[0], 32);
    v[2] += v[1];
    v[0] += v[3];
    v[1] = rotl(v[1], 17) ^ v[2];
    v[3] = rotl(v[3], 21) ^ v[0];
    v[2] = rotl(v[2], 32);
}

static uint64_t hash_of(const void *key, size_t len)
{
    const uint8_t *p = key;
    uint64_t v[4] = {seed[0] ^ 0x736f6d6570736575u, seed[1] ^ 0x646f72616e646f6du, seed[0] ^ 0x6c7967656e657261u,
                     seed[1] ^ 0x7465646279746573u};
    uint64_t last = (uint64_t)len << 56, word;
    size_t i = 0;

    for (; i + 8 <= len; i += 8) {
        memcpy(&word, p + i, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    for (int shift = 0; i < len; i++, shift += 8)
        last |= (uint64_t)p[i] << shift;
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int r = 0; r < 3; r++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void cdi_map_init(struct cdi_map *m)
{
    (void)pthread_once(&seeded, make_seed);
    *m = (struct cdi_map){0};
}

void cdi_map_release(struct cdi_map *m)
{
    if (m == NULL)
        return;
    free(m->slots);
    *m = (struct cdi_map){0};
}

/* Returns the slot of a key, or the free slot for it. The table must have a free slot. */
static struct cdi_map_slot *map_find(const struct cdi_map *m, uint64_t hash, const void *key, size_t len)
{
    for (size_t i = hash & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
        struct cdi_map_slot *s = &m->slots[i];

        if (s->value == NULL || (s->hash == hash && s->len == len && (len == 0 || memcmp(s->key, key, len) == 0)))
            return s;
    }
}

static cddp_status map_resize(struct cdi_map *m, size_t cap)
{
    struct cdi_map bigger = {.slots = calloc(cap, sizeof *bigger.slots), .cap = cap, .count = m->count};

    if (bigger.slots == NULL)
        return CDDP_E_NOMEM;
    for (size_t i = 0; i < m->cap; i++) {
        const struct cdi_map_slot *s = &m->slots[i];

        if (s->value != NULL)
            *map_find(&bigger, s->hash, s->key, s->len) = *s;
    }
    free(m->slots);
    *m = bigger;
    return CDDP_OK;
}

void *cdi_map_get(const struct cdi_map *m, const void *key, size_t len)
{
    return m->count == 0 ? NULL : map_find(m, hash_of(key, len), key, len)->value;
}

cddp_status cdi_map_add(struct cdi_map *m, const void *key, size_t len, void *value)
{
    uint64_t hash = hash_of(key, len);

    if (m->count + 1 > m->cap / 4 * 3 && map_resize(m, m->cap == 0 ? MAP_MIN : m->cap * 2) != CDDP_OK)
        return CDDP_E_NOMEM;
    *map_find(m, hash, key, len) = (struct cdi_map_slot){.hash = hash, .key = key, .len = len, .value = value};
    m->count++;
    return CDDP_OK;
}

void *cdi_map_remove(struct cdi_map *m, const void *key, size_t len)
{
    struct cdi_map_slot *s;
    size_t hole, i, mask = m->cap - 1;
    void *value;

    if (m->count == 0)
        return NULL;
    s = map_find(m, hash_of(key, len), key, len);
    value = s->value;
    if (value == NULL)
        return NULL;
    hole = (size_t)(s - m->slots);
    for (i = (hole + 1) & mask; m->slots[i].value != NULL; i = (i + 1) & mask) {
        /* Move it into the hole, unless its own place is after the hole. */
        if (((i - (m->slots[i].hash & mask)) & mask) >= ((i - hole) & mask)) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    m->slots[hole] = (struct cdi_map_slot){0};
    m->count--;
    if (m->cap > MAP_MIN && m->count < m->cap / 8)
        (void)map_resize(m, m->cap / 2); /* without memory it keeps its size */
    return value;
}

void *cdi_map_next(const struct cdi_map *m, size_t *at)
{
    while (*at < m->cap) {
        void *value = m->slots[(*at)++].value;

        if (value != NULL)
            return value;
    }
    return NULL;
}
