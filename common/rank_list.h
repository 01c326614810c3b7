/* SPDX-License-Identifier: Apache-2.0 */
/* A list of ranks for a message, such as "1, 3, 4 and 12 more": at most 16. Zero-initialize, add, read text. */
#ifndef CDI_RANK_LIST_H
#define CDI_RANK_LIST_H

#include <stdio.h>

#define CDI_RANK_LIST_SHOWN 16

struct cdi_rank_list {
    int n, first;
    int shown[CDI_RANK_LIST_SHOWN]; /* the ranks of text */
    char text[CDI_RANK_LIST_SHOWN * 12 + 32];
    int used; /* of text, without "and more" */
};

static inline void cdi_rank_list_add(struct cdi_rank_list *l, int rank)
{
    size_t room = sizeof l->text - (size_t)l->used;

    if (l->n++ == 0)
        l->first = rank;
    if (l->n <= CDI_RANK_LIST_SHOWN) {
        l->shown[l->n - 1] = rank;
        l->used += snprintf(l->text + l->used, room, l->n == 1 ? "%d" : ", %d", rank);
    } else {
        (void)snprintf(l->text + l->used, room, " and %d more", l->n - CDI_RANK_LIST_SHOWN);
    }
}

#endif
