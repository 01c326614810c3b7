/* SPDX-License-Identifier: Apache-2.0 */
/* Present nodes, the conditions for joining, and missing nodes. */
#include "rendezvous/round/state.h"

#include "common/rank_ranges.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define PROCS_MAX 65536u /* workers of one node */

/* ------------------------------------------------------------------------------------------------- the nodes ---- */

static size_t actions_for(size_t cap)
{
    return 2 * cap + 8;
}

bool members_make_room(struct round *r, uint32_t peer)
{
    size_t cap = r->cap == 0 ? 16 : r->cap;
    struct node *nodes;
    uint32_t *slots;
    struct round_action *actions;

    if (peer < r->cap)
        return true;
    while (cap <= peer)
        cap *= 2;
    nodes = calloc(cap, sizeof *nodes);
    slots = calloc(cap, 2 * sizeof *slots);
    actions = calloc(actions_for(cap), sizeof *actions);
    if (nodes == NULL || slots == NULL || actions == NULL) {
        free(nodes);
        free(slots);
        free(actions);
        return false;
    }
    if (r->cap > 0)
        memcpy(nodes, r->nodes, r->cap * sizeof *nodes);
    free(r->nodes);
    free(r->slots);
    free(r->actions);
    r->nodes = nodes;
    r->slots = slots;
    r->actions = actions;
    r->cap = cap;
    return true;
}

size_t members_actions(const struct round *r)
{
    return actions_for(r->cap);
}

void members_move(struct round *r, struct node *n, enum node_state to)
{
    r->count[n->state]--;
    r->away[n->state] -= n->away;
    n->state = to;
    r->count[to]++;
    r->away[to] += n->away;
}

void members_set_away(struct round *r, struct node *n, bool away)
{
    r->away[n->state] -= n->away;
    n->away = away;
    r->away[n->state] += away;
}

void members_set_leaving(struct round *r, struct node *n)
{
    r->n_leaving += !n->leaving;
    n->leaving = true;
}

void members_remove(struct round *r, struct node *n)
{
    uint32_t peer = (uint32_t)(n - r->nodes);

    r->procs -= n->n_procs;
    r->n_leaving -= n->leaving;
    members_set_away(r, n, false);
    members_move(r, n, NODE_ABSENT);
    if (n->wanted >= 0 && r->by_rank[n->wanted] == peer)
        r->by_rank[n->wanted] = NO_PEER;
    free(n->host);
    free(n->topology);
    *n = (struct node){.state = NODE_ABSENT};
}

size_t round_present(const struct round *r)
{
    return r->count[NODE_WAITING] + r->count[NODE_RUNNING] + r->count[NODE_DONE] + r->count[NODE_STOPPING];
}

/* --------------------------------------------------------------------------------------------- missing nodes ---- */

/* Writes the node ranks that no node requested, such as "0, 2-5"; nothing if a waiting node did not request one. */
static void members_list_missing(const struct round *r, char *buf, size_t cap)
{
    struct cdi_rank_ranges missing;
    uint32_t n = r->opt.max_nodes < r->cap ? r->opt.max_nodes : (uint32_t)r->cap;

    buf[0] = '\0';
    for (uint32_t i = 0; i < n; i++)
        r->slots[i] = NO_PEER;
    for (size_t i = 0; i < r->cap; i++) {
        if (r->nodes[i].state != NODE_WAITING)
            continue;
        if (r->nodes[i].wanted < 0)
            return;
        if ((uint32_t)r->nodes[i].wanted < n)
            r->slots[r->nodes[i].wanted] = (uint32_t)i;
    }
    cdi_rank_ranges_begin(&missing, buf, cap, UINT_MAX);
    for (uint32_t i = 0; i < r->opt.max_nodes; i++)
        if (i >= n || r->slots[i] == NO_PEER)
            cdi_rank_ranges_add(&missing, i);
    (void)cdi_rank_ranges_end(&missing);
}

/* Writes the names of the waiting hosts, as many as fit. */
static void members_list_present(const struct round *r, char *buf, size_t cap)
{
    size_t at = 0;

    buf[0] = '\0';
    for (size_t i = 0; i < r->cap; i++) {
        const char *note = r->nodes[i].away ? " (connection broken)" : "";

        if (r->nodes[i].state != NODE_WAITING)
            continue;
        if (at + strlen(r->nodes[i].host) + strlen(note) + 8 > cap) {
            (void)snprintf(buf + at, cap - at, ", ...");
            return;
        }
        at += (size_t)snprintf(buf + at, cap - at, "%s%s%s", at > 0 ? ", " : "", r->nodes[i].host, note);
    }
}

void members_say_missing(const struct round *r, const char *what, char text[512])
{
    char missing[128], here[192], need[48];
    size_t have = r->count[NODE_WAITING];

    members_list_missing(r, missing, sizeof missing);
    members_list_present(r, here, sizeof here);
    (void)snprintf(need, sizeof need, r->opt.min_nodes == r->opt.max_nodes ? "%u" : "%u to %u", r->opt.min_nodes,
                   r->opt.max_nodes);
    (void)snprintf(text, 512, "%s: %zu of %s nodes have joined%s%s%s%s%s%s%s", what, have, need, have > 0 ? " (" : "",
                   here, have > 0 ? ")" : "", missing[0] != '\0' && have > 0 ? "; missing: node rank " : "",
                   have > 0 ? missing : "", r->lost[0] != '\0' ? "; lost: " : "", r->lost);
}

void members_note_lost(struct round *r, const char *host)
{
    size_t at = strlen(r->lost);

    if (at + strlen(host) + 8 < sizeof r->lost)
        (void)snprintf(r->lost + at, sizeof r->lost - at, "%s%s", at > 0 ? ", " : "", host);
    else if (at > 0 && at + 6 < sizeof r->lost && r->lost[at - 1] != '.')
        (void)snprintf(r->lost + at, sizeof r->lost - at, ", ...");
}

/* --------------------------------------------------------------------------------------------------- joining ---- */

/*
 * Returns the present node that requested this node rank, or NULL. One that may be gone does not block its successor.
 */
static const struct node *members_with_rank(const struct round *r, int32_t wanted)
{
    const struct node *n;

    if (wanted < 0 || (size_t)wanted >= r->by_rank_cap || r->by_rank[wanted] == NO_PEER)
        return NULL;
    n = &r->nodes[r->by_rank[wanted]];
    return (n->away && is_elastic(r)) || n->leaving ? NULL : n;
}

/* Returns the number of nodes that may still join. A node that is away may not return, so its place counts as free. */
static size_t members_room(const struct round *r)
{
    size_t limit = (size_t)r->opt.max_nodes + r->opt.spares, gone = r->n_leaving;

    for (size_t i = 0; is_elastic(r) && i < NODE_N_STATES; i++)
        gone += r->away[i];
    if (round_present(r) >= limit + gone || round_present(r) >= 2 * limit)
        return 0;
    return limit + gone - round_present(r);
}

bool round_has_place(const struct round *r, const struct cdi_msg_join *join)
{
    return members_with_rank(r, join->node_rank) == NULL && members_room(r) > 0;
}

bool members_may_join(struct round *r, const struct cdi_msg_join *j, bool stale)
{
    const struct node *other = members_with_rank(r, j->node_rank);

    if (j->version != CDI_CONTROL_VERSION)
        round_printf(
            r->text,
            "this agent uses version %u of the control protocol, the rendezvous server version %d; use one cddprun on "
            "all nodes",
            j->version, CDI_CONTROL_VERSION);
    else if (strcmp(j->run_id, r->run_id) != 0)
        round_printf(r->text, "this rendezvous server serves job '%.100s', not '%.100s'; check --rdzv_id and the port",
                     r->run_id, j->run_id);
    else if (j->min_nodes != r->opt.min_nodes || j->max_nodes != r->opt.max_nodes)
        round_printf(r->text,
                     "%.100s was started with --nnodes=%u:%u, but the job with %u:%u; use the same on all nodes",
                     j->host, j->min_nodes, j->max_nodes, r->opt.min_nodes, r->opt.max_nodes);
    else if (j->max_restarts != r->opt.max_restarts)
        round_printf(r->text,
                     "%.100s was started with --max_restarts=%u, but the job with %u; use the same on all nodes",
                     j->host, j->max_restarts, r->opt.max_restarts);
    else if (j->restart_count > r->opt.max_restarts)
        round_printf(r->text, "%.100s counts %u restarts of this job, but --max_restarts allows %u", j->host,
                     j->restart_count, r->opt.max_restarts);
    else if (j->spares != r->opt.spares)
        round_printf(r->text, "%.100s was started with --spares=%u, but the job with %u; use the same on all nodes",
                     j->host, j->spares, r->opt.spares);
    else if (j->n_procs < 1 || j->n_procs > PROCS_MAX || r->procs + j->n_procs > INT32_MAX)
        round_printf(r->text, "%.100s has %u workers; the limits are %u per node and %d per job", j->host, j->n_procs,
                     PROCS_MAX, INT32_MAX);
    else if (j->node_rank >= 0 && (uint32_t)j->node_rank >= r->opt.max_nodes + r->opt.spares)
        round_printf(r->text, "%.100s requests node rank %d, but the job has %u node%s (0 to %u)", j->host,
                     j->node_rank, r->opt.max_nodes + r->opt.spares, r->opt.max_nodes + r->opt.spares == 1 ? "" : "s",
                     r->opt.max_nodes + r->opt.spares - 1);
    else if (r->state == ROUND_CLOSED)
        round_printf(r->text, "job '%.100s' is over", r->run_id);
    else if ((stale && (other != NULL || members_room(r) == 0)) || (other != NULL && other->away)) {
        round_printf(
            r->text,
            "%.100s (pid %lld) has to wait for its place: the node that has it is silent, and may return until "
            "its lease ends",
            j->host, (long long)j->pid);
        r->for_now = true;
    } else if (other != NULL)
        round_printf(r->text,
                     "node rank %d is taken: %.100s (pid %lld) has it, and %.100s (pid %lld) requests it; give each "
                     "node its own --node_rank",
                     j->node_rank, other->host, (long long)other->pid, j->host, (long long)j->pid);
    else if (members_room(r) == 0 && r->opt.spares > 0)
        round_printf(r->text, "job '%.100s' already has all of its %u nodes and %u spares; %.100s is one too many",
                     r->run_id, r->opt.max_nodes, r->opt.spares, j->host);
    else if (members_room(r) == 0)
        round_printf(
            r->text,
            "job '%.100s' already has all of its %u nodes; %.100s is one too many (--spares allows standby nodes)",
            r->run_id, r->opt.max_nodes, j->host);
    else
        return true;
    return false;
}

/* Enlarges r->by_rank if needed. */
static bool make_rank_room(struct round *r, int32_t wanted)
{
    size_t cap = r->by_rank_cap == 0 ? 16 : r->by_rank_cap;
    uint32_t *by_rank;

    if (wanted < 0 || (size_t)wanted < r->by_rank_cap)
        return true;
    while (cap <= (size_t)wanted)
        cap *= 2;
    by_rank = realloc(r->by_rank, cap * sizeof *by_rank);
    if (by_rank == NULL)
        return false;
    for (size_t i = r->by_rank_cap; i < cap; i++)
        by_rank[i] = NO_PEER;
    r->by_rank = by_rank;
    r->by_rank_cap = cap;
    return true;
}

bool members_add(struct round *r, uint32_t peer, const struct cdi_msg_join *j)
{
    char *host = strndup(j->host, sizeof j->host - 1), *topology = strndup(j->topology, sizeof j->topology - 1);
    struct node *n;

    if (host == NULL || topology == NULL || !members_make_room(r, peer) || !make_rank_room(r, j->node_rank)) {
        free(host);
        free(topology);
        return false;
    }
    n = &r->nodes[peer];
    *n = (struct node){.state = NODE_ABSENT,
                       .wanted = j->node_rank,
                       .node_rank = -1,
                       .last_round = -1,
                       .n_procs = j->n_procs,
                       .order = r->arrivals++,
                       .restarts = j->restart_count,
                       .pid = j->pid,
                       .host = host,
                       .topology = topology};
    if (n->wanted >= 0)
        r->by_rank[n->wanted] = peer;
    r->procs += n->n_procs;
    members_move(r, n, NODE_WAITING);
    return true;
}
