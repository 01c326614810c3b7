/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash table from byte strings to pointers, which grows and shrinks. Each process has its own seed, so that clients
 * cannot choose keys that collide. The map owns neither keys nor values: the bytes of a key must stay in place while it
 * is in the map (usually they are part of the value). One thread at a time.
 */
#ifndef CDI_MAP_H
#define CDI_MAP_H

#include <cddp/status.h>
#include <stddef.h>
#include <stdint.h>

struct cdi_map_slot {
    uint64_t hash;
    const void *key;
    size_t len;
    void *value; /* NULL: the slot is free */
};

struct cdi_map {
    struct cdi_map_slot *slots;
    size_t cap; /* 0 or a power of two */
    size_t count;
};

/* Initializes m without an allocation. */
void cdi_map_init(struct cdi_map *m);
/* Frees the table, but not the values. The map is empty afterwards. NULL-safe. */
void cdi_map_release(struct cdi_map *m);

/* Returns the value of a key; NULL: there is none. */
void *cdi_map_get(const struct cdi_map *m, const void *key, size_t len);
/* Adds a key that is not in the map yet; value must not be NULL. CDDP_OK or CDDP_E_NOMEM (nothing changed). */
cddp_status cdi_map_add(struct cdi_map *m, const void *key, size_t len, void *value);
/* Removes a key and returns its value; NULL: there is none. */
void *cdi_map_remove(struct cdi_map *m, const void *key, size_t len);
/* Returns the next value, in no particular order; NULL: there is none. Start with *at = 0. The map must not change
 * meanwhile. */
void *cdi_map_next(const struct cdi_map *m, size_t *at);

#endif
