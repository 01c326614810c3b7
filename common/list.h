/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intrusive doubly linked lists: the node is a member of the listed struct. The head is a node that points to itself
 * when the list is empty. No allocation; one thread at a time.
 */
#ifndef CDI_LIST_H
#define CDI_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct cdi_list {
    struct cdi_list *next, *prev;
};

/* Returns the struct around a node: cdi_list_of(node, struct conn, link). */
#define cdi_list_of(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

static inline void cdi_list_init(struct cdi_list *l)
{
    l->next = l->prev = l;
}

static inline bool cdi_list_empty(const struct cdi_list *l)
{
    return l->next == l;
}

static inline void cdi_list_push_back(struct cdi_list *head, struct cdi_list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

/* Removes a node from its list. It becomes an empty list, so removing it again is harmless. */
static inline void cdi_list_remove(struct cdi_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    cdi_list_init(node);
}

/* Iterates over the nodes. The body may remove `node`, but no other. */
#define cdi_list_for_each(node, safe, head) \
    for ((node) = (head)->next, (safe) = (node)->next; (node) != (head); (node) = (safe), (safe) = (node)->next)

#endif
