/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte strings -> pointers: a hash table that grows and shrinks, with a seed of its own per process, so that nobody
 * outside can choose keys that collide. The map owns neither keys nor values: a key's bytes must stay where they are as
 * long as it is in the map (usually they lie inside the value). One thread at a time.
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

/* No allocation. */
void cdi_map_init(struct cdi_map *m);
/* Free the table (not the values); the map is empty afterwards. NULL-safe. */
void cdi_map_release(struct cdi_map *m);

/* The value under a key, or NULL. */
void *cdi_map_get(const struct cdi_map *m, const void *key, size_t len);
/* Add a key that is not in the map yet; value must not be NULL. CDDP_OK or CDDP_E_NOMEM (nothing changed). */
cddp_status cdi_map_add(struct cdi_map *m, const void *key, size_t len, void *value);
/* Take a key out and return its value; NULL if it is not there. */
void *cdi_map_remove(struct cdi_map *m, const void *key, size_t len);
/* Walk all values in no particular order: start with *at = 0, until NULL. The map must not change meanwhile. */
void *cdi_map_next(const struct cdi_map *m, size_t *at);

#endif
