/* SPDX-License-Identifier: Apache-2.0 */
/* Items of checkpoints in one line each. */
#ifndef CDI_TEST_ITEMS_H
#define CDI_TEST_ITEMS_H

#include <cddp/cddp.h>

static inline cddp_checkpoint_item item_memory(const char *name, void *data, size_t bytes)
{
    return (cddp_checkpoint_item){.size = sizeof(cddp_checkpoint_item), .name = name, .data = data, .bytes = bytes};
}

static inline cddp_checkpoint_item item_own(const char *name, void *data, size_t bytes)
{
    return (cddp_checkpoint_item){
        .size = sizeof(cddp_checkpoint_item), .name = name, .data = data, .bytes = bytes, .flags = CDDP_ITEM_PER_RANK};
}

static inline cddp_checkpoint_item item_of(cddp_item_kind kind, const char *name, void *object)
{
    return (cddp_checkpoint_item){.size = sizeof(cddp_checkpoint_item), .name = name, .data = object, .kind = kind};
}

#endif
