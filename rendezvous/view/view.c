/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/view/view.h"

#include "protocol/bulk.h"
#include "protocol/json_text.h"

#include <stdlib.h>
#include <string.h>

struct view {
    struct session *session;
    struct view_node *nodes;
    size_t n, cap;
    uint32_t asked; /* the id of the last ASK */
};

cddp_status view_create(struct view **out, struct session *s)
{
    struct view *v = calloc(1, sizeof *v);

    if (v == NULL)
        return CDDP_E_NOMEM;
    v->session = s;
    *out = v;
    return CDDP_OK;
}

static void view_clear(struct view *v)
{
    for (size_t i = 0; i < v->n; i++)
        cdi_node_report_release(&v->nodes[i].report);
    v->n = 0;
}

void view_destroy(struct view *v)
{
    if (v == NULL)
        return;
    view_clear(v);
    free(v->nodes);
    free(v);
}

/* Drops the reports of earlier rounds. */
static void drop_old_rounds(struct view *v)
{
    if (v->n > 0 && v->nodes[0].report.round != round_number(session_round(v->session)))
        view_clear(v);
}

static void view_send(struct view *v, uint32_t peer, uint16_t type, json_t *json)
{
    char *text = json == NULL ? NULL : json_dumps(json, JSON_COMPACT);

    if (text != NULL)
        session_send_bulk(v->session, peer, type, text, strlen(text));
    free(text);
}

uint32_t view_ask(struct view *v, const int32_t *stacks_of, size_t n, bool brief)
{
    json_t *ranks = json_array(), *ask;
    struct cdi_msg_assign assign;

    v->asked = v->asked == UINT32_MAX ? 1 : v->asked + 1;
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(ranks, json_integer(stacks_of[i]));
    ask = json_pack("{s:I, s:o?, s:b}", "id", (json_int_t)v->asked, "stacks_of", ranks, "brief", (int)brief);
    for (uint32_t peer = UINT32_MAX; session_next_agent(v->session, &peer, &assign);)
        view_send(v, peer, CDI_BULK_ASK, ask);
    json_decref(ask);
    return v->asked;
}

/* The nodes are in order. */
const struct view_node *view_find(const struct view *v, int32_t node_rank)
{
    size_t low = 0, high = v->n;

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (v->nodes[mid].report.node_rank < node_rank)
            low = mid + 1;
        else
            high = mid;
    }
    return low < v->n && v->nodes[low].report.node_rank == node_rank ? &v->nodes[low] : NULL;
}

size_t view_unanswered(const struct view *v, uint32_t id)
{
    struct cdi_msg_assign assign;
    size_t missing = 0;

    for (uint32_t peer = UINT32_MAX; session_next_agent(v->session, &peer, &assign);) {
        const struct view_node *node = view_find(v, assign.node_rank);

        missing += node == NULL || node->report.round != assign.round || node->report.asked < id;
    }
    return missing;
}

static int by_node_rank(const void *a, const void *b)
{
    const struct view_node *x = a, *y = b;

    return (x->report.node_rank > y->report.node_rank) - (x->report.node_rank < y->report.node_rank);
}

/* Returns the place for the report of this node; NULL: out of memory. */
static struct view_node *node_for(struct view *v, int32_t node_rank)
{
    struct view_node *node = (struct view_node *)(uintptr_t)view_find(v, node_rank);

    if (node != NULL) {
        cdi_node_report_release(&node->report);
        return node;
    }
    if (v->n == v->cap) {
        size_t cap = v->cap == 0 ? 16 : 2 * v->cap;
        struct view_node *nodes = reallocarray(v->nodes, cap, sizeof *nodes);

        if (nodes == NULL)
            return NULL;
        v->nodes = nodes;
        v->cap = cap;
    }
    return &v->nodes[v->n++];
}

/* Takes a report of the running round, whose node rank is the agent's own. */
static const struct view_node *take_report(struct view *v, uint32_t peer, const void *payload, size_t len,
                                           int64_t now_ms)
{
    json_t *root = json_loadb(payload, len, 0, NULL);
    struct cdi_msg_assign assign;
    struct cdi_node_report r;
    struct view_node *node;

    if (root == NULL || !round_assignment(session_round(v->session), peer, &assign) ||
        cdi_node_report_decode(root, &r, NULL) != CDDP_OK) {
        json_decref(root);
        return NULL;
    }
    json_decref(root);
    node = r.round == assign.round && r.node_rank == assign.node_rank ? node_for(v, r.node_rank) : NULL;
    if (node == NULL) {
        cdi_node_report_release(&r);
        return NULL;
    }
    *node = (struct view_node){.peer = peer, .received_ms = now_ms, .report = r};
    if (node > v->nodes && by_node_rank(node - 1, node) > 0)
        qsort(v->nodes, v->n, sizeof *v->nodes, by_node_rank);
    return view_find(v, r.node_rank);
}

const struct view_node *view_on_bulk(struct view *v, uint32_t peer, uint16_t type, const void *payload, size_t len,
                                     int64_t now_ms)
{
    drop_old_rounds(v);
    return type == CDI_BULK_REPORT ? take_report(v, peer, payload, len, now_ms) : NULL;
}

const struct view_node *view_nodes(struct view *v, size_t *n)
{
    drop_old_rounds(v);
    *n = v->n;
    return v->nodes;
}

bool view_notice(struct view *v, const char *text)
{
    json_t *notice = json_pack("{s:o?}", "text", json_text(text));
    struct cdi_msg_assign assign;
    bool sent = false;

    for (uint32_t peer = UINT32_MAX; !sent && session_next_agent(v->session, &peer, &assign);)
        if (assign.node_rank == 0) {
            view_send(v, peer, CDI_BULK_NOTICE, notice);
            sent = true;
        }
    json_decref(notice);
    return sent;
}
