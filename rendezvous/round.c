/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/round.h"

#include "common/natural.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAITING_EVERY_MS 10000
#define PROCS_MAX 65536u /* workers of one node */

enum node_state {
    NODE_ABSENT,
    NODE_WAITING,  /* for the next round */
    NODE_RUNNING,  /* its workers run */
    NODE_DONE,     /* they all ended well */
    NODE_STOPPING, /* was told ROUND_OVER, has not said STOPPED yet */
    NODE_N_STATES,
};

/* Why a round ended. */
enum verdict {
    OVER_FAILED,  /* a failure that counts */
    OVER_CHANGED, /* a node was lost, left or came: the others go on */
    OVER_LEFT,    /* a node left, and the job ends with it */
};

struct node {
    enum node_state state;
    int32_t wanted;     /* node rank that it asked for; -1: any */
    int32_t node_rank;  /* of the last round it was in; -1: none yet */
    int64_t last_round; /* the number of that round; -1: none yet */
    uint32_t rank_base, n_procs;
    uint64_t order; /* of arrival */
    bool away;      /* its connection broke, and its lease runs */
    bool leaving;   /* it goes as soon as its workers have stopped */
    int64_t pid;
    char *host;
    char *topology; /* "": none */
};

struct round {
    struct round_options opt;
    char *run_id;
    enum round_state state;
    uint32_t number, restart_count;
    enum verdict verdict; /* STOPPING and later */
    bool ending;          /* the rendezvous is about to go: no round follows */
    enum cdi_close_status close_status;
    int64_t deadline_ms, next_waiting_ms;
    int64_t enough_ms; /* JOINING: since when min_nodes are there; INT64_MAX: they are not */
    uint64_t arrivals;

    struct node *nodes; /* by peer */
    size_t cap;
    size_t count[NODE_N_STATES];  /* nodes in each state, ABSENT aside */
    size_t away[NODE_N_STATES];   /* those of them that are away */
    size_t n_leaving;             /* nodes that are there, but not for long */
    size_t n_left;                /* nodes that left since the last round began */
    uint64_t procs;               /* workers of all nodes that are there */
    uint32_t n_nodes, world_size; /* of the last round that began */

    uint32_t *by_rank; /* the peer that last asked for a node rank, or NOBODY */
    size_t by_rank_cap;
    uint32_t *slots;              /* 2 * cap long: scratch for assigning ranks */
    struct round_action *actions; /* room for the most that one event can cause */
    size_t n_actions;
    struct cdi_failure failure;
    char text[512]; /* about the last event */
    char why[512];  /* why the round or the job ended */
    char lost[160]; /* hosts that were lost since the last round began, for sentences */
};

#define NOBODY UINT32_MAX

/* ------------------------------------------------------------------------------------------------- mechanics ---- */

static size_t actions_for(size_t cap)
{
    return 2 * cap + 8;
}

/* Room for a peer: everything that later events need is allocated here, so that only a JOIN can fail. */
static bool make_room(struct round *r, uint32_t peer)
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

static void act(struct round *r, enum round_action_kind kind, uint32_t peer)
{
    if (r->n_actions < actions_for(r->cap))
        r->actions[r->n_actions++] = (struct round_action){kind, peer};
}

/* Into r->text (about one event) or r->why (why the job ends). */
#define say(where, ...) ((void)snprintf((where), sizeof(where), __VA_ARGS__))

static void move(struct round *r, struct node *n, enum node_state to)
{
    r->count[n->state]--;
    r->away[n->state] -= n->away;
    n->state = to;
    r->count[to]++;
    r->away[to] += n->away;
}

static void set_away(struct round *r, struct node *n, bool away)
{
    r->away[n->state] -= n->away;
    n->away = away;
    r->away[n->state] += away;
}

static void set_leaving(struct round *r, struct node *n)
{
    r->n_leaving += !n->leaving;
    n->leaving = true;
}

static void remove_node(struct round *r, struct node *n)
{
    uint32_t peer = (uint32_t)(n - r->nodes);

    r->procs -= n->n_procs;
    r->n_leaving -= n->leaving;
    set_away(r, n, false);
    move(r, n, NODE_ABSENT);
    if (n->wanted >= 0 && r->by_rank[n->wanted] == peer)
        r->by_rank[n->wanted] = NOBODY;
    free(n->host);
    free(n->topology);
    *n = (struct node){.state = NODE_ABSENT};
}

/* The nodes that say so may differ from round to round. */
static bool is_elastic(const struct round *r)
{
    return r->opt.min_nodes < r->opt.max_nodes || r->opt.spares > 0;
}

size_t round_present(const struct round *r)
{
    return r->count[NODE_WAITING] + r->count[NODE_RUNNING] + r->count[NODE_DONE] + r->count[NODE_STOPPING];
}

cddp_status round_create(struct round **out, const struct round_options *opt, int64_t now_ms, struct cdi_error *err)
{
    struct round *r;

    if (opt->min_nodes < 1 || opt->min_nodes > opt->max_nodes || opt->max_nodes > ROUND_NODES_MAX ||
        opt->spares > ROUND_NODES_MAX)
        return cdi_fail(err, CDDP_E_INVALID, "a job of %u to %u nodes and %u spares cannot be; %u nodes are the limit",
                        opt->min_nodes, opt->max_nodes, opt->spares, ROUND_NODES_MAX);
    r = calloc(1, sizeof *r);
    if (r == NULL || (r->run_id = strdup(opt->run_id == NULL ? "" : opt->run_id)) == NULL || !make_room(r, 0)) {
        round_destroy(r);
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for a job");
    }
    r->opt = *opt;
    r->opt.run_id = r->run_id;
    r->deadline_ms = now_ms + opt->join_timeout_ms;
    r->enough_ms = INT64_MAX;
    r->next_waiting_ms = now_ms + WAITING_EVERY_MS;
    *out = r;
    return CDDP_OK;
}

void round_destroy(struct round *r)
{
    if (r == NULL)
        return;
    for (size_t i = 0; i < r->cap; i++) {
        free(r->nodes[i].host);
        free(r->nodes[i].topology);
    }
    free(r->nodes);
    free(r->by_rank);
    free(r->slots);
    free(r->actions);
    free(r->run_id);
    free(r);
}

/* --------------------------------------------------------------------------------------------------- closing ---- */

static void close_job(struct round *r, enum cdi_close_status status)
{
    r->state = ROUND_CLOSED;
    r->close_status = status;
    act(r, ROUND_DO_END_KEYS, NOBODY);
    for (size_t i = 0; i < r->cap; i++)
        if (r->nodes[i].state != NODE_ABSENT)
            act(r, ROUND_DO_CLOSED, (uint32_t)i);
}

/* "0, 2-5" : the node ranks that nobody has asked for. Only where all who wait asked for one. */
static void name_missing(const struct round *r, char *buf, size_t cap)
{
    size_t at = 0;
    uint32_t n = r->opt.max_nodes < r->cap ? r->opt.max_nodes : (uint32_t)r->cap;

    buf[0] = '\0';
    for (uint32_t i = 0; i < n; i++)
        r->slots[i] = NOBODY;
    for (size_t i = 0; i < r->cap; i++) {
        if (r->nodes[i].state != NODE_WAITING)
            continue;
        if (r->nodes[i].wanted < 0)
            return;
        if ((uint32_t)r->nodes[i].wanted < n)
            r->slots[r->nodes[i].wanted] = (uint32_t)i;
    }
    for (uint32_t from = 0, to; from < r->opt.max_nodes && at + 32 < cap; from = to + 1) {
        to = from;
        if (from < n && r->slots[from] != NOBODY)
            continue;
        while (to + 1 < r->opt.max_nodes && (to + 1 >= n || r->slots[to + 1] == NOBODY))
            to++;
        at += (size_t)snprintf(buf + at, cap - at, from == to ? "%s%u" : "%s%u-%u", at > 0 ? ", " : "", from, to);
    }
}

/* The hosts that are there, as many as fit. */
static void name_present(const struct round *r, char *buf, size_t cap)
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

static void say_who_is_missing(const struct round *r, const char *what, char text[512])
{
    char missing[128], here[192], need[48];
    size_t have = r->count[NODE_WAITING];

    name_missing(r, missing, sizeof missing);
    name_present(r, here, sizeof here);
    (void)snprintf(need, sizeof need, r->opt.min_nodes == r->opt.max_nodes ? "%u" : "%u to %u", r->opt.min_nodes,
                   r->opt.max_nodes);
    (void)snprintf(text, 512, "%s: %zu of %s nodes are here%s%s%s%s%s%s%s", what, have, need, have > 0 ? " (" : "",
                   here, have > 0 ? ")" : "", missing[0] != '\0' && have > 0 ? "; missing: node rank " : "",
                   have > 0 ? missing : "", r->lost[0] != '\0' ? "; lost: " : "", r->lost);
}

/* For the sentences above. */
static void note_lost(struct round *r, const char *host)
{
    size_t at = strlen(r->lost);

    if (at + strlen(host) + 8 < sizeof r->lost)
        (void)snprintf(r->lost + at, sizeof r->lost - at, "%s%s", at > 0 ? ", " : "", host);
    else if (at > 0 && at + 6 < sizeof r->lost && r->lost[at - 1] != '.')
        (void)snprintf(r->lost + at, sizeof r->lost - at, ", ...");
}

/* -------------------------------------------------------------------------------------------------- starting ---- */

static bool was_in_last_round(const struct round *r, const struct node *n)
{
    return n->last_round >= 0 && n->last_round + 1 == r->number;
}

/* Who is in, if more wait than fit: who is really there, then who was in before, then who came first. */
static int by_merit(const void *a, const void *b, void *arg)
{
    const struct round *r = arg;
    const struct node *x = &r->nodes[*(const uint32_t *)a], *y = &r->nodes[*(const uint32_t *)b];

    if (x->away != y->away)
        return x->away ? 1 : -1;
    if (was_in_last_round(r, x) != was_in_last_round(r, y))
        return was_in_last_round(r, x) ? -1 : 1;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* Who gets the lower rank, of those whom nothing else gives one: neighbours in the network are neighbours in rank. */
static int by_place(const void *a, const void *b, void *arg)
{
    const struct round *r = arg;
    const struct node *x = &r->nodes[*(const uint32_t *)a], *y = &r->nodes[*(const uint32_t *)b];
    int order = cdi_natural_compare(x->topology, y->topology);

    if (order == 0)
        order = cdi_natural_compare(x->host, y->host);
    return order != 0 ? order : x->order < y->order ? -1 : x->order > y->order;
}

/* The peers that will be in the round, at the front of slots. Returns how many. */
static uint32_t choose_nodes(struct round *r)
{
    uint32_t n = 0;

    for (size_t i = 0; i < r->cap; i++)
        if (r->nodes[i].state == NODE_WAITING)
            r->slots[n++] = (uint32_t)i;
    if (n <= r->opt.max_nodes)
        return n;
    qsort_r(r->slots, n, sizeof *r->slots, by_merit, r);
    return r->opt.max_nodes;
}

/* What gives a node a right to a rank, the stronger ones first. */
enum right { RIGHT_WISH_KEPT, RIGHT_WISH, RIGHT_KEPT, RIGHT_N };

static int32_t rank_by_right(const struct round *r, const struct node *n, enum right right)
{
    int32_t kept = was_in_last_round(r, n) ? n->node_rank : -1;

    switch (right) {
    case RIGHT_WISH_KEPT:
        return n->wanted == kept ? kept : -1;
    case RIGHT_WISH:
        return n->wanted;
    case RIGHT_KEPT:
        return kept;
    case RIGHT_N:
        break;
    }
    return -1;
}

/* Those of the n chosen that have a right to a rank which is free: place[rank] is the peer. */
static void place_entitled(struct round *r, uint32_t n, enum right right, uint32_t *place)
{
    for (uint32_t i = 0; i < n; i++) {
        struct node *node = &r->nodes[r->slots[i]];
        int32_t want = rank_by_right(r, node, right);

        if (node->state != NODE_WAITING || want < 0 || (uint32_t)want >= n || place[want] != NOBODY)
            continue;
        place[want] = r->slots[i];
        move(r, node, NODE_RUNNING);
    }
}

/*
 * Give n nodes their ranks: first who asked for one, then who had one in the round before, then the rest. Returns
 * place[rank], the peer.
 */
static const uint32_t *assign_ranks(struct round *r, uint32_t n)
{
    uint32_t rank = 0, n_rest = 0, *place = r->slots + r->cap;

    for (uint32_t i = 0; i < n; i++)
        place[i] = NOBODY;
    for (enum right right = RIGHT_WISH_KEPT; right < RIGHT_N; right++)
        place_entitled(r, n, right, place);
    for (uint32_t i = 0; i < n; i++)
        if (r->nodes[r->slots[i]].state == NODE_WAITING)
            r->slots[n_rest++] = r->slots[i];
    qsort_r(r->slots, n_rest, sizeof *r->slots, by_place, r);
    for (uint32_t i = 0; i < n_rest; i++) {
        while (place[rank] != NOBODY)
            rank++;
        place[rank] = r->slots[i];
        move(r, &r->nodes[r->slots[i]], NODE_RUNNING);
    }
    return place;
}

static void tell_spare(struct round *r, uint32_t peer)
{
    say(r->text, "the job runs with %u node%s; this node waits as a spare, and steps in when the membership changes",
        r->n_nodes, r->n_nodes == 1 ? "" : "s");
    act(r, ROUND_DO_WAITING, peer);
}

static void start_round(struct round *r)
{
    uint32_t n = choose_nodes(r), base = 0;
    const uint32_t *place = assign_ranks(r, n);

    for (uint32_t rank = 0; rank < n; rank++) {
        struct node *node = &r->nodes[place[rank]];

        node->node_rank = (int32_t)rank;
        node->last_round = r->number;
        node->rank_base = base;
        base += node->n_procs;
        act(r, ROUND_DO_ASSIGN, place[rank]);
    }
    r->n_nodes = n;
    r->world_size = base;
    r->state = ROUND_RUNNING;
    r->n_left = 0;
    r->lost[0] = '\0';
    memset(&r->failure, 0, sizeof r->failure);
    for (size_t i = 0; r->count[NODE_WAITING] > 0 && i < r->cap; i++)
        if (r->nodes[i].state == NODE_WAITING)
            tell_spare(r, (uint32_t)i);
}

static void give_up_waiting(struct round *r)
{
    char what[384];

    if (r->number > 0)
        (void)snprintf(what, sizeof what, "%.250s; not enough nodes came within %lld s after that", r->why,
                       (long long)(r->opt.join_timeout_ms / 1000));
    else
        (void)snprintf(what, sizeof what, "not enough nodes came within %lld s",
                       (long long)(r->opt.join_timeout_ms / 1000));
    if (r->number > 0 && r->verdict == OVER_CHANGED) /* the sentence tells it, and it was no failure of the job */
        memset(&r->failure, 0, sizeof r->failure);
    say_who_is_missing(r, what, r->why);
    close_job(r, CDI_CLOSE_TIMEOUT);
}

/* With min_nodes there: how long do more have time to come? */
static int64_t patience(const struct round *r)
{
    if (r->number == 0)
        return r->opt.last_call_ms;
    return r->count[NODE_WAITING] < r->n_nodes ? r->opt.regroup_ms : 0;
}

/* JOINING: is it time? */
static void look(struct round *r, int64_t now_ms)
{
    size_t have = r->count[NODE_WAITING], here = have - r->away[NODE_WAITING];

    if (have < r->opt.min_nodes)
        r->enough_ms = INT64_MAX;
    else if (r->enough_ms == INT64_MAX)
        r->enough_ms = now_ms;
    /* A round that begins without one of its nodes would mostly fail: its lease is short. */
    if (r->away[NODE_WAITING] > 0 && have >= r->opt.min_nodes && here < r->opt.max_nodes && now_ms < r->deadline_ms)
        return;
    if (have >= r->opt.max_nodes ||
        (have >= r->opt.min_nodes && (now_ms >= r->deadline_ms || now_ms - r->enough_ms >= patience(r))))
        start_round(r);
    else if (now_ms >= r->deadline_ms)
        give_up_waiting(r);
}

/* -------------------------------------------------------------------------------------------------- stopping ---- */

bool round_counts(const struct round *r)
{
    return r->verdict == OVER_FAILED && r->restart_count < r->opt.max_restarts;
}

bool round_restarts(const struct round *r)
{
    return r->verdict == OVER_CHANGED || round_counts(r);
}

static void gather(struct round *r, int64_t now_ms)
{
    act(r, ROUND_DO_END_KEYS, NOBODY);
    r->state = ROUND_JOINING;
    r->number++;
    r->deadline_ms = now_ms + r->opt.join_timeout_ms;
    r->enough_ms = INT64_MAX;
    r->next_waiting_ms = now_ms + WAITING_EVERY_MS;
    look(r, now_ms);
}

/* Nodes have left on purpose, and who is there does not suffice: nobody is waited for. */
static bool forsaken(const struct round *r)
{
    return r->n_left > 0 && round_present(r) < r->opt.min_nodes;
}

/* STOPPING: has every node of the round stopped? */
static void look_if_stopped(struct round *r, int64_t now_ms)
{
    if (r->count[NODE_STOPPING] > 0)
        return;
    if (r->verdict == OVER_LEFT || (r->verdict == OVER_CHANGED && forsaken(r))) {
        close_job(r, CDI_CLOSE_LEFT);
    } else if (!round_restarts(r)) {
        close_job(r, CDI_CLOSE_FAILED);
    } else {
        r->restart_count += round_counts(r);
        gather(r, now_ms);
    }
}

static void stop_round(struct round *r, enum verdict verdict, int64_t now_ms)
{
    r->verdict = verdict;
    r->state = ROUND_STOPPING;
    for (size_t i = 0; i < r->cap; i++) {
        if (r->nodes[i].state != NODE_RUNNING && r->nodes[i].state != NODE_DONE)
            continue;
        move(r, &r->nodes[i], NODE_STOPPING);
        act(r, ROUND_DO_ROUND_OVER, (uint32_t)i);
    }
    look_if_stopped(r, now_ms);
}

/* Bytes of a text's first line, as far as they fit into a sentence. */
static int first_line(const char *text)
{
    size_t n = strcspn(text, "\n");

    return n < 470 ? (int)n : 470;
}

/* The first failure of the round ends it. r->failure holds it. */
static void fail_round(struct round *r, int64_t now_ms)
{
    bool lost = r->failure.kind == CDI_END_NODE && is_elastic(r);

    if (!lost && r->restart_count > 0)
        say(r->why, "%.*s (after %u restart%s)", first_line(r->failure.text), r->failure.text, r->restart_count,
            r->restart_count == 1 ? "" : "s");
    else
        say(r->why, "%.*s", first_line(r->failure.text), r->failure.text);
    stop_round(r, lost ? OVER_CHANGED : OVER_FAILED, now_ms);
}

static struct cdi_failure loss_of(const struct node *n, const struct round_event *ev, const char *how)
{
    struct cdi_failure f = {.kind = CDI_END_NODE,
                            .rank = -1,
                            .local_rank = -1,
                            .node_rank = n->node_rank,
                            .pid = n->pid,
                            .time_ms = ev->wall_ms};

    (void)snprintf(f.host, sizeof f.host, "%s", n->host);
    (void)snprintf(f.text, sizeof f.text, "node %d (%s, pid %lld) was lost while its workers ran: %s", n->node_rank,
                   n->host, (long long)n->pid, how);
    return f;
}

static void on_lost(struct round *r, struct node *n, const struct round_event *ev, const char *how, int64_t now_ms)
{
    enum node_state was = n->state;
    bool left = n->leaving;
    struct cdi_failure f;

    if (was == NODE_ABSENT)
        return;
    f = loss_of(n, ev, how);
    if (left)
        r->n_left++;
    else
        note_lost(r, n->host);
    remove_node(r, n);
    if (r->state == ROUND_RUNNING && was == NODE_RUNNING) {
        r->failure = f;
        fail_round(r, now_ms);
    } else if (r->state == ROUND_STOPPING && was == NODE_STOPPING) {
        if (r->verdict == OVER_FAILED && is_elastic(r) && !left && !r->ending) {
            /* What was taken for a failure was the echo of this loss. */
            r->verdict = OVER_CHANGED;
            r->failure = f;
            say(r->why, "%.*s", first_line(f.text), f.text);
        }
        look_if_stopped(r, now_ms);
    } else if (r->state == ROUND_JOINING) {
        look(r, now_ms);
    }
}

/* ---------------------------------------------------------------------------------------------------- events ---- */

/* Whoever asked for that node rank and is there; one that may be gone does not stand in the way of its successor. */
static const struct node *who_has_rank(const struct round *r, int32_t wanted)
{
    const struct node *n;

    if (wanted < 0 || (size_t)wanted >= r->by_rank_cap || r->by_rank[wanted] == NOBODY)
        return NULL;
    n = &r->nodes[r->by_rank[wanted]];
    return (n->away && is_elastic(r)) || n->leaving ? NULL : n;
}

/* Nodes that there is room for. One that is away may never come back, and its place may be taken meanwhile. */
static size_t room(const struct round *r)
{
    size_t limit = (size_t)r->opt.max_nodes + r->opt.spares, gone = r->n_leaving;

    for (size_t i = 0; is_elastic(r) && i < NODE_N_STATES; i++)
        gone += r->away[i];
    if (round_present(r) >= limit + gone || round_present(r) >= 2 * limit)
        return 0;
    return limit + gone - round_present(r);
}

/* May it join? If not, r->text says why. */
static bool may_join(struct round *r, const struct cdi_msg_join *j)
{
    const struct node *other = who_has_rank(r, j->node_rank);

    if (j->version != CDI_CONTROL_VERSION)
        say(r->text,
            "this agent speaks version %u of the control protocol, the rendezvous version %d; use one cddprun on all "
            "nodes",
            j->version, CDI_CONTROL_VERSION);
    else if (strcmp(j->run_id, r->run_id) != 0)
        say(r->text, "this rendezvous serves job '%.100s', not '%.100s'; check --rdzv_id and the port", r->run_id,
            j->run_id);
    else if (j->min_nodes != r->opt.min_nodes || j->max_nodes != r->opt.max_nodes)
        say(r->text, "%.100s was started with --nnodes=%u:%u, the job with %u:%u; use the same on all nodes", j->host,
            j->min_nodes, j->max_nodes, r->opt.min_nodes, r->opt.max_nodes);
    else if (j->max_restarts != r->opt.max_restarts)
        say(r->text, "%.100s was started with --max_restarts=%u, the job with %u; use the same on all nodes", j->host,
            j->max_restarts, r->opt.max_restarts);
    else if (j->spares != r->opt.spares)
        say(r->text, "%.100s was started with --spares=%u, the job with %u; use the same on all nodes", j->host,
            j->spares, r->opt.spares);
    else if (j->n_procs < 1 || j->n_procs > PROCS_MAX || r->procs + j->n_procs > INT32_MAX)
        say(r->text, "%.100s offers %u workers; the limits are %u on a node and %d in the job", j->host, j->n_procs,
            PROCS_MAX, INT32_MAX);
    else if (j->node_rank >= 0 && (uint32_t)j->node_rank >= r->opt.max_nodes + r->opt.spares)
        say(r->text, "%.100s has node rank %d, but the job has %u node%s (0 to %u)", j->host, j->node_rank,
            r->opt.max_nodes + r->opt.spares, r->opt.max_nodes + r->opt.spares == 1 ? "" : "s",
            r->opt.max_nodes + r->opt.spares - 1);
    else if (r->state == ROUND_CLOSED)
        say(r->text, "the job '%.100s' is over", r->run_id);
    else if (other != NULL)
        say(r->text,
            "node rank %d is taken: %.100s (pid %lld) has it%s, %.100s (pid %lld) wants it too; give each node its own "
            "--node_rank",
            j->node_rank, other->host, (long long)other->pid,
            other->away ? " (its connection broke; it may come back until its lease ends)" : "", j->host,
            (long long)j->pid);
    else if (room(r) == 0 && r->opt.spares > 0)
        say(r->text, "the job '%.100s' has all of its %u nodes and %u spares already; %.100s is one too many",
            r->run_id, r->opt.max_nodes, r->opt.spares, j->host);
    else if (room(r) == 0)
        say(r->text,
            "the job '%.100s' has all of its %u nodes already; %.100s is one too many (--spares lets some wait)",
            r->run_id, r->opt.max_nodes, j->host);
    else
        return true;
    return false;
}

/* Room in the index of wishes. */
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
        by_rank[i] = NOBODY;
    r->by_rank = by_rank;
    r->by_rank_cap = cap;
    return true;
}

static bool add_node(struct round *r, uint32_t peer, const struct cdi_msg_join *j)
{
    char *host = strndup(j->host, sizeof j->host - 1), *topology = strndup(j->topology, sizeof j->topology - 1);
    struct node *n;

    if (host == NULL || topology == NULL || !make_room(r, peer) || !make_rank_room(r, j->node_rank)) {
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
                       .pid = j->pid,
                       .host = host,
                       .topology = topology};
    if (n->wanted >= 0)
        r->by_rank[n->wanted] = peer;
    r->procs += n->n_procs;
    move(r, n, NODE_WAITING);
    return true;
}

/* A round runs, and there is one more. */
static void on_newcomer(struct round *r, uint32_t peer, int64_t now_ms)
{
    const struct node *n = &r->nodes[peer];

    if (r->n_nodes >= r->opt.max_nodes || r->count[NODE_DONE] > 0) { /* full, or about to end */
        tell_spare(r, peer);
        return;
    }
    say(r->why, "%.200s (pid %lld) has come: the job goes on with one node more", n->host, (long long)n->pid);
    stop_round(r, OVER_CHANGED, now_ms);
}

static void on_join(struct round *r, uint32_t peer, const struct cdi_msg_join *j, int64_t now_ms)
{
    if (!may_join(r, j)) {
        act(r, ROUND_DO_REFUSE, peer);
        return;
    }
    if (!add_node(r, peer, j)) {
        say(r->text, "the rendezvous has no memory for another node");
        act(r, ROUND_DO_REFUSE, peer);
        return;
    }
    act(r, ROUND_DO_WELCOME, peer);
    if (r->state == ROUND_JOINING)
        look(r, now_ms);
    else if (r->state == ROUND_RUNNING)
        on_newcomer(r, peer, now_ms);
}

static void on_failed(struct round *r, struct node *n, const struct cdi_failure *f, int64_t now_ms)
{
    if (r->state != ROUND_RUNNING)
        return; /* the round has failed already, and the first failure counts */
    r->failure = *f;
    r->failure.host[sizeof r->failure.host - 1] = '\0';
    r->failure.text[sizeof r->failure.text - 1] = '\0';
    r->failure.node_rank = n->node_rank;
    if (r->failure.kind == CDI_END_NONE)
        r->failure.kind = CDI_END_NODE;
    if (r->failure.rank < 0 && f->local_rank >= 0 && (uint32_t)f->local_rank < n->n_procs)
        r->failure.rank = (int32_t)(n->rank_base + (uint32_t)f->local_rank);
    if (r->failure.host[0] == '\0')
        (void)snprintf(r->failure.host, sizeof r->failure.host, "%s", n->host);
    if (r->failure.text[0] == '\0')
        (void)snprintf(r->failure.text, sizeof r->failure.text, "a worker failed on node %d (%s)", n->node_rank,
                       n->host);
    fail_round(r, now_ms);
}

static void let_go(struct round *r, uint32_t peer, struct node *n)
{
    remove_node(r, n);
    act(r, ROUND_DO_BYE, peer);
}

/* An elastic job goes on without it, if enough nodes stay. */
static void on_leave_elastic(struct round *r, uint32_t peer, struct node *n, const char *why, int64_t now_ms)
{
    bool enough = round_present(r) - r->n_leaving > r->opt.min_nodes;

    if (r->state == ROUND_RUNNING || r->state == ROUND_JOINING)
        say(r->why, "node %d (%.100s) left: %.200s", n->node_rank, n->host, why);
    switch (n->state) {
    case NODE_RUNNING:
        set_leaving(r, n);
        stop_round(r, enough ? OVER_CHANGED : OVER_LEFT, now_ms);
        return;
    case NODE_STOPPING:
        set_leaving(r, n);
        return;
    case NODE_WAITING:
    case NODE_DONE:
        r->n_left++;
        let_go(r, peer, n);
        if (r->state == ROUND_JOINING && forsaken(r))
            close_job(r, CDI_CLOSE_LEFT);
        else if (r->state == ROUND_JOINING)
            look(r, now_ms);
        return;
    case NODE_ABSENT:
    case NODE_N_STATES:
        return;
    }
}

static void on_leave(struct round *r, uint32_t peer, struct node *n, const struct round_event *ev, int64_t now_ms)
{
    if (r->state == ROUND_CLOSED)
        return;
    r->ending |= ev->final;
    if (n->node_rank < 0 && !(ev->final && r->n_nodes > 0)) { /* it never was in a round: nobody misses it */
        let_go(r, peer, n);
        if (r->state == ROUND_JOINING)
            look(r, now_ms);
        return;
    }
    if (is_elastic(r) && !ev->final) {
        on_leave_elastic(r, peer, n, ev->text, now_ms);
        return;
    }
    if (r->state == ROUND_STOPPING && !round_restarts(r))
        return; /* the job ends anyway, and why is known */
    if (n->node_rank < 0)
        say(r->why, "%.100s left: %.200s", n->host, ev->text);
    else
        say(r->why, "node %d (%.100s) left: %.200s", n->node_rank, n->host, ev->text);
    if (r->state == ROUND_RUNNING)
        stop_round(r, OVER_LEFT, now_ms);
    else if (r->state == ROUND_STOPPING)
        r->verdict = OVER_LEFT;
    else
        close_job(r, CDI_CLOSE_LEFT);
}

/* The peer broke the protocol: from now on it is lost. */
static void drop(struct round *r, struct node *n, const struct round_event *ev, const char *what, int64_t now_ms)
{
    say(r->text, "%s", what);
    act(r, ROUND_DO_DROP, ev->peer);
    if (n != NULL)
        on_lost(r, n, ev, what, now_ms);
}

/* FAILED, DONE and STOPPED name a round. */
static void on_report(struct round *r, struct node *n, const struct round_event *ev, int64_t now_ms)
{
    bool in_round = n->state == NODE_RUNNING || n->state == NODE_DONE || n->state == NODE_STOPPING;

    if (ev->round < r->number || r->state == ROUND_CLOSED)
        return; /* late */
    if (ev->round > r->number) {
        drop(r, n, ev, "it reports on a round that is not there yet", now_ms);
        return;
    }
    if (!in_round && r->state != ROUND_STOPPING) {
        drop(r, n, ev, "it reports on a round that has not begun", now_ms);
        return;
    }
    if (ev->kind == ROUND_EV_FAILED && in_round) {
        on_failed(r, n, ev->failure, now_ms);
    } else if (ev->kind == ROUND_EV_DONE && n->state == NODE_RUNNING) {
        move(r, n, NODE_DONE);
        if (r->count[NODE_RUNNING] == 0) {
            say(r->why, "all workers ended well");
            close_job(r, CDI_CLOSE_DONE);
        }
    } else if (ev->kind == ROUND_EV_STOPPED) {
        if (n->state == NODE_STOPPING) {
            if (n->leaving) {
                r->n_left++;
                let_go(r, ev->peer, n);
            } else {
                move(r, n, NODE_WAITING);
            }
            look_if_stopped(r, now_ms);
        } else if (r->state == ROUND_RUNNING) {
            drop(r, n, ev, "it says STOPPED while its round runs", now_ms);
        }
    }
}

/* It is back, and its last assignment was of last_round (-1: none). */
static void on_back(struct round *r, struct node *n, const struct round_event *ev, int64_t now_ms)
{
    int64_t last_round = ev->join->round;

    set_away(r, n, false);
    if (last_round > r->number) {
        drop(r, n, ev, "it comes back from a round that is not there yet", now_ms);
        return;
    }
    act(r, ROUND_DO_RESUME, ev->peer);
    if (r->state == ROUND_CLOSED)
        act(r, ROUND_DO_CLOSED, ev->peer);
    else if (n->state == NODE_STOPPING)
        act(r, ROUND_DO_ROUND_OVER, ev->peer);
    else if (n->state == NODE_RUNNING && last_round < r->number)
        act(r, ROUND_DO_ASSIGN, ev->peer);
    else if (r->state == ROUND_JOINING)
        look(r, now_ms);
}

static void on_tick(struct round *r, int64_t now_ms)
{
    if (r->state != ROUND_JOINING)
        return;
    look(r, now_ms);
    if (r->state != ROUND_JOINING || now_ms < r->next_waiting_ms)
        return;
    r->next_waiting_ms = now_ms + WAITING_EVERY_MS;
    say_who_is_missing(r, "waiting", r->text);
    for (size_t i = 0; i < r->cap; i++)
        if (r->nodes[i].state == NODE_WAITING)
            act(r, ROUND_DO_WAITING, (uint32_t)i);
}

const struct round_action *round_step(struct round *r, const struct round_event *ev, int64_t now_ms, size_t *n)
{
    struct node *node = ev->peer < r->cap ? &r->nodes[ev->peer] : NULL;
    bool there = node != NULL && node->state != NODE_ABSENT;

    assert(r->cap == 0 || (r->nodes != NULL && r->slots != NULL));
    r->n_actions = 0;
    switch (ev->kind) {
    case ROUND_EV_JOIN:
        if (there)
            drop(r, node, ev, "it joins twice", now_ms);
        else
            on_join(r, ev->peer, ev->join, now_ms);
        break;
    case ROUND_EV_FAILED:
    case ROUND_EV_DONE:
    case ROUND_EV_STOPPED:
        if (there)
            on_report(r, node, ev, now_ms);
        else
            drop(r, NULL, ev, "it reports before it has joined", now_ms);
        break;
    case ROUND_EV_LEAVE:
        if (there)
            on_leave(r, ev->peer, node, ev, now_ms);
        else
            act(r, ROUND_DO_BYE, ev->peer);
        break;
    case ROUND_EV_LOST:
        if (there)
            on_lost(r, node, ev, ev->text, now_ms);
        break;
    case ROUND_EV_AWAY:
        if (there && node->node_rank < 0)
            on_lost(r, node, ev, ev->text, now_ms);
        else if (there)
            set_away(r, node, true);
        break;
    case ROUND_EV_BACK:
        if (there)
            on_back(r, node, ev, now_ms);
        break;
    case ROUND_EV_TICK:
        on_tick(r, now_ms);
        break;
    }
    *n = r->n_actions;
    return r->actions;
}

/* --------------------------------------------------------------------------------------------------- reading ---- */

enum round_state round_state(const struct round *r)
{
    return r->state;
}

uint32_t round_number(const struct round *r)
{
    return r->number;
}

uint32_t round_nodes(const struct round *r)
{
    return r->n_nodes;
}

uint32_t round_world_size(const struct round *r)
{
    return r->world_size;
}

uint32_t round_restart_count(const struct round *r)
{
    return r->restart_count;
}

const char *round_text(const struct round *r)
{
    return r->text;
}

const char *round_why(const struct round *r)
{
    return r->why;
}

const struct cdi_failure *round_failure(const struct round *r)
{
    return &r->failure;
}

enum cdi_close_status round_close_status(const struct round *r)
{
    return r->close_status;
}

void round_waiting(const struct round *r, uint32_t *have, uint32_t *need)
{
    *have = (uint32_t)r->count[NODE_WAITING];
    *need = r->opt.max_nodes;
}

bool round_keeps(const struct round *r, uint32_t peer)
{
    return peer < r->cap && r->nodes[peer].state != NODE_ABSENT && r->nodes[peer].node_rank >= 0;
}

bool round_assignment(const struct round *r, uint32_t peer, struct cdi_msg_assign *out)
{
    const struct node *n = peer < r->cap ? &r->nodes[peer] : NULL;

    if (n == NULL || (n->state != NODE_RUNNING && n->state != NODE_DONE && n->state != NODE_STOPPING))
        return false;
    *out = (struct cdi_msg_assign){.round = r->number,
                                   .node_rank = n->node_rank,
                                   .n_nodes = r->n_nodes,
                                   .rank_base = n->rank_base,
                                   .world_size = r->world_size,
                                   .restart_count = r->restart_count};
    return true;
}
