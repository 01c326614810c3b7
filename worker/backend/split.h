/* SPDX-License-Identifier: Apache-2.0 */
/* The order of ranks in a part that a split creates. Pure. */
#ifndef CDI_BACKEND_SPLIT_H
#define CDI_BACKEND_SPLIT_H

#include <stddef.h>
#include <stdint.h>

/* What a rank passes to a split, as all ranks receive it. */
struct cdi_split_choice {
    int32_t color, key;
};

/* Returns the choice of rank r: each of all[] begins with one, and is `stride` bytes long. */
static inline const struct cdi_split_choice *cdi_split_choice_of(const void *all, size_t stride, int r)
{
    return (const void *)((const char *)all + (size_t)r * stride);
}

/* Sets who[] to the ranks with this color, in the order of their keys, then of their ranks. Returns their number. */
static inline int cdi_split_members(const void *all, size_t stride, int size, int32_t color, int *who)
{
    int n = 0;

    for (int r = 0; r < size; r++) {
        const struct cdi_split_choice *c = cdi_split_choice_of(all, stride, r);
        int at = n;

        if (c->color != color)
            continue;
        for (; at > 0 && c->key < cdi_split_choice_of(all, stride, who[at - 1])->key; at--)
            who[at] = who[at - 1];
        who[at] = r;
        n++;
    }
    return n;
}

#endif
