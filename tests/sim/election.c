/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulator of elections: nodes with the real launcher/etcd/elect.c and launcher/agent/lease.c; a model of etcd,
 * which now and then has no leader; a network that delays and loses; clocks of different speed; nodes that crash, are
 * cut off, are frozen, or whose agent alone is stopped, so that only its guard acts. The oracle: workers of two hosts
 * never run at the same time; and after the last fault, there is a world again. To be hard on them, a host starts a
 * node's workers as soon as the node has joined. A seed determines a run.
 *
 *   election [--seed=S] [--runs=N]    seeds 1 to N, or one
 *   election --must-break ...         succeeds if the oracle finds two worlds, and again with the same seed
 */
#include "common/clock.h"
#include "launcher/agent/lease.h"
#include "launcher/etcd/elect.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_MS 5
#define NODES_MAX 5
#define TTL_MS 3000
#define FAULTS_UNTIL_MS 60000
#define CALM_MS 30000
#define WIRE_MAX 512
#define RETURN_MS 250
#define ETCD NODES_MAX /* as an end of the wire */

enum wire_kind { ASK, ANSWER, JOIN, WELCOME, BEAT, BEAT_ANSWER };

struct wire {
    int64_t at;
    enum wire_kind kind;
    unsigned from, to, life; /* life: of the node; its earlier requests and answers are lost */
    uint64_t number;         /* of the request, the connection or the heartbeat */
    int64_t epoch;
    enum elect_ask ask;
    struct elect request; /* the elector's state when it asked */
    struct elect_answer answer;
};

struct node {
    struct elect elect;
    struct lease lease;
    double rate;
    int64_t offset;
    unsigned life;
    int64_t frozen_until, stopped_until, cut_etcd_until, cut_until; /* true time; stopped: the agent only */
    uint64_t asked, joined;
    int64_t ask_by_ms, join_at_ms, look_ms; /* its clock */
    int target;                             /* the host that it joins; -1 */
    int64_t target_epoch;
    bool linked;
    int64_t workers; /* of the host with this epoch; 0: none */
};

struct sim {
    uint64_t rng;
    int64_t t;
    unsigned n;
    struct node nodes[NODES_MAX];
    struct wire wires[WIRE_MAX];
    unsigned n_wires;
    /* etcd */
    int64_t revision, epoch, key_lease, no_leader_until;
    unsigned owner;
    struct {
        int64_t id, ends;
    } leases[64];
    int64_t next_lease;
    uint64_t worlds;
    char why[200];
};

static uint64_t rnd64(struct sim *w)
{
    uint64_t z = w->rng += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t rnd(struct sim *w, uint32_t below)
{
    return (uint32_t)((rnd64(w) >> 32) * below >> 32);
}

static int64_t clock_of(const struct sim *w, const struct node *m)
{
    return m->offset + (int64_t)((double)w->t * m->rate);
}

/* ----------------------------------------------------------------------------------------------------- network ---- */

static void carry(struct sim *w, struct wire m)
{
    bool etcd = m.from == ETCD || m.to == ETCD;
    const struct node *node = &w->nodes[m.from == ETCD ? m.to : m.from];

    if (w->n_wires == WIRE_MAX || (w->t < FAULTS_UNTIL_MS && rnd(w, 100) == 0))
        return;
    if (etcd ? node->cut_etcd_until > w->t
             : m.from != m.to && (node->cut_until > w->t || w->nodes[m.to].cut_until > w->t))
        return;
    m.at = w->t + 1 + rnd(w, 10) + (w->t < FAULTS_UNTIL_MS && rnd(w, 20) == 0 ? rnd(w, 1500) : 0);
    w->wires[w->n_wires++] = m;
}

static void carry_out(struct sim *w, unsigned i, const struct elect_actions *todo);

static void handle(struct sim *w, unsigned i, struct elect_event ev)
{
    struct elect_actions todo;

    elect_handle(&w->nodes[i].elect, &ev, clock_of(w, &w->nodes[i]), &todo);
    carry_out(w, i, &todo);
}

static void set_linked(struct sim *w, unsigned i, bool linked)
{
    w->nodes[i].linked = linked;
    handle(w, i, (struct elect_event){.kind = ELECT_EV_LINK, .linked = linked});
}

static void join(struct sim *w, unsigned i, int target, int64_t epoch)
{
    struct node *m = &w->nodes[i];

    m->target = target;
    m->target_epoch = epoch;
    m->joined = 0;
    m->join_at_ms = clock_of(w, m) + 20;
    lease_broken(&m->lease);
}

static void carry_out(struct sim *w, unsigned i, const struct elect_actions *todo)
{
    struct node *m = &w->nodes[i];

    for (unsigned k = 0; k < todo->n; k++) {
        if (todo->v[k].what == ELECT_DO_ASK) {
            m->asked = rnd64(w);
            m->ask_by_ms = clock_of(w, m) + (m->elect.state == ELECT_HOSTING ? TTL_MS / 4 : 2000);
            carry(w, (struct wire){.kind = ASK,
                                   .from = i,
                                   .to = ETCD,
                                   .life = m->life,
                                   .number = m->asked,
                                   .ask = todo->v[k].ask,
                                   .request = m->elect});
        } else if (todo->v[k].what == ELECT_DO_HOST) {
            join(w, i, (int)i, m->elect.epoch);
        } else if (todo->v[k].what == ELECT_DO_JOIN) {
            join(w, i, m->elect.host.port - 1, m->elect.host.epoch);
        } else if (todo->v[k].what == ELECT_DO_FAIL || todo->v[k].what == ELECT_DO_OVER) {
            (void)snprintf(w->why, sizeof w->why, "node %u gives up: %.150s", i, todo->text);
        }
    }
}

/* -------------------------------------------------------------------------------------------------------- etcd ---- */

static int64_t *lease_end(struct sim *w, int64_t id)
{
    for (unsigned k = 0; k < 64; k++)
        if (id != 0 && w->leases[k].id == id && w->leases[k].ends > w->t)
            return &w->leases[k].ends;
    return NULL;
}

static void etcd_tick(struct sim *w)
{
    if (w->no_leader_until == w->t) /* a new leader prolongs all leases: lessor.Promote() of etcd */
        for (unsigned k = 0; k < 64; k++)
            if (w->leases[k].ends > 0)
                w->leases[k].ends = w->t + TTL_MS;
    if (w->no_leader_until < w->t && w->epoch != 0 && lease_end(w, w->key_lease) == NULL) {
        w->epoch = 0;
        w->revision++;
        for (unsigned k = 0; k < 64; k++)
            if (w->leases[k].ends <= w->t)
                w->leases[k].ends = 0;
    }
}

static void keys(const struct sim *w, struct elect_answer *a)
{
    if (w->epoch == 0)
        return;
    a->host =
        (struct elect_host){.is = true, .epoch = w->epoch, .lease = w->key_lease, .port = (uint16_t)(w->owner + 1)};
}

static void etcd_answer(struct sim *w, const struct wire *q)
{
    struct wire r = {.kind = ANSWER, .from = ETCD, .to = q->from, .life = q->life, .number = q->number, .ask = q->ask};
    int64_t *ends = lease_end(w, q->request.lease);

    if (w->no_leader_until >= w->t) {
        r.answer.failed = true;
    } else if (q->ask == ELECT_ASK_GRANT) {
        w->leases[w->next_lease % 64].id = w->next_lease + 1;
        w->leases[w->next_lease % 64].ends = w->t + TTL_MS;
        r.answer.lease = ++w->next_lease;
        r.answer.ttl_ms = TTL_MS;
    } else if (q->ask == ELECT_ASK_KEEP) {
        r.answer.ttl_ms = ends == NULL ? 0 : TTL_MS;
        if (ends != NULL)
            *ends = w->t + TTL_MS;
    } else if (q->ask == ELECT_ASK_CAMPAIGN && w->epoch == 0) {
        r.answer.failed = r.answer.lease_gone = ends == NULL;
        r.answer.won = ends != NULL;
        if (ends != NULL) {
            r.answer.epoch = w->epoch = ++w->revision;
            w->key_lease = q->request.lease;
            w->owner = q->from;
        }
    } else {
        keys(w, &r.answer);
    }
    carry(w, r);
}

/* ------------------------------------------------------------------------------------------------------- nodes ---- */

static bool runs(const struct sim *w, const struct node *m)
{
    return m->frozen_until <= w->t && m->stopped_until <= w->t;
}

static bool hosts(const struct node *m, int64_t epoch)
{
    return m->elect.state == ELECT_HOSTING && m->elect.epoch == epoch;
}

static void arrive(struct sim *w, const struct wire *m)
{
    struct node *to = &w->nodes[m->to];
    int64_t now = clock_of(w, to);
    bool answers = hosts(to, m->epoch) && now <= elect_answers_until_ms(&to->elect);

    if (m->kind == ANSWER && m->life == to->life && m->number == to->asked) {
        to->asked = 0;
        handle(w, m->to, (struct elect_event){.kind = ELECT_EV_ANSWER, .answer = &m->answer});
    } else if (m->kind == JOIN && answers) {
        carry(w, (struct wire){.kind = WELCOME,
                               .from = m->to,
                               .to = m->from,
                               .life = m->life,
                               .number = m->number,
                               .epoch = m->epoch});
    } else if (m->kind == BEAT && answers) {
        carry(w, (struct wire){.kind = BEAT_ANSWER,
                               .from = m->to,
                               .to = m->from,
                               .life = m->life,
                               .number = m->number,
                               .epoch = m->epoch});
    } else if (m->kind == WELCOME && m->life == to->life && m->number == to->joined && to->target_epoch == m->epoch) {
        lease_welcome(&to->lease, (uint32_t)ELECT_AGENT_LEASE_MS(TTL_MS), now);
        to->joined = 0;
        to->join_at_ms = CDI_NEVER_MS;
        if (to->workers != m->epoch)
            w->worlds++;
        to->workers = m->epoch; /* those of another host were killed before */
        set_linked(w, m->to, true);
        handle(w, m->to, (struct elect_event){.kind = ELECT_EV_ROUND});
    } else if (m->kind == BEAT_ANSWER && m->life == to->life && to->target_epoch == m->epoch && to->linked) {
        lease_answer(&to->lease, (uint32_t)m->number);
    }
}

static void check_lease(struct sim *w, unsigned i)
{
    struct node *m = &w->nodes[i];
    int64_t now = clock_of(w, m), next;
    enum lease_action due;

    while ((due = lease_look(&m->lease, now, &next)) != LEASE_NOTHING) {
        if (due == LEASE_BEAT) {
            carry(w, (struct wire){.kind = BEAT,
                                   .from = i,
                                   .to = (unsigned)m->target,
                                   .life = m->life,
                                   .number = lease_beat(&m->lease, now),
                                   .epoch = m->target_epoch});
        } else if (due == LEASE_RECONNECT || due == LEASE_FENCE) {
            if (due == LEASE_FENCE) {
                m->workers = 0;
                lease_init(&m->lease, false, false);
            }
            m->join_at_ms = now + RETURN_MS;
            set_linked(w, i, false);
        }
        if (due == LEASE_HOLD)
            break;
    }
}

static void node_tick(struct sim *w, unsigned i)
{
    struct node *m = &w->nodes[i];
    int64_t now = clock_of(w, m);

    if (m->asked != 0 && now >= m->ask_by_ms) {
        struct elect_answer none = {.failed = true, .text = "no answer"};

        m->asked = 0;
        handle(w, i, (struct elect_event){.kind = ELECT_EV_ANSWER, .answer = &none});
    }
    if (now >= elect_next_ms(&m->elect))
        handle(w, i, (struct elect_event){.kind = ELECT_EV_TICK});
    (void)lease_was_stopped(&m->lease, now);
    if (m->linked && m->workers == 0) { /* its guard has killed them: the round has failed, and another follows */
        m->join_at_ms = now + RETURN_MS;
        lease_init(&m->lease, false, false);
        set_linked(w, i, false);
    }
    check_lease(w, i);
    if (m->target < 0 || now < m->join_at_ms)
        return;
    if (m->workers != 0 && m->workers != m->target_epoch)
        m->workers = 0; /* the new host does not know this agent, which kills its workers, and joins as a new one */
    m->joined = rnd64(w) | 1;
    m->join_at_ms = now + RETURN_MS;
    lease_joining(&m->lease, now);
    carry(w, (struct wire){.kind = JOIN,
                           .from = i,
                           .to = (unsigned)m->target,
                           .life = m->life,
                           .number = m->joined,
                           .epoch = m->target_epoch});
}

static void begin(struct sim *w, unsigned i)
{
    struct node *m = &w->nodes[i];

    m->life++;
    m->target = -1;
    m->workers = 0;
    m->asked = m->joined = 0;
    m->linked = false;
    m->join_at_ms = CDI_NEVER_MS;
    m->offset = rnd(w, 1000000);
    m->rate = 0.999 + rnd(w, 200) / 100000.0;
    lease_init(&m->lease, false, false);
    elect_init(&m->elect, TTL_MS, CDI_NEVER_MS, "etcd", "key");
    handle(w, i, (struct elect_event){.kind = ELECT_EV_START});
}

static void fault(struct sim *w)
{
    struct node *m = &w->nodes[rnd(w, 2) == 0 && w->epoch != 0 ? w->owner : rnd(w, w->n)];
    int64_t until = w->t + rnd(w, rnd(w, 3) == 0 ? 3 * TTL_MS : TTL_MS);

    switch (rnd(w, 7)) {
    case 0:
        m->frozen_until = until;
        return;
    case 1:
        m->stopped_until = until;
        return;
    case 2:
        m->cut_etcd_until = until;
        return;
    case 3:
        m->cut_until = until;
        return;
    case 4:
        m->cut_until = m->cut_etcd_until = until;
        return;
    case 5:
        begin(w, (unsigned)(m - w->nodes)); /* it crashed, and starts anew */
        return;
    default:
        w->no_leader_until = (w->t + 500 + rnd(w, TTL_MS)) / STEP_MS * STEP_MS;
    }
}

/* Which host's workers run now? Held, frozen and dead ones do not. Returns false if they are of two. */
static bool one_world(struct sim *w, bool *any)
{
    int64_t epoch = 0;

    *any = false;
    for (unsigned i = 0; i < w->n; i++) {
        struct node *m = &w->nodes[i];

        if (m->stopped_until > w->t && clock_of(w, m) >= lease_act_by_ms(&m->lease))
            m->workers = 0; /* by the guard */
        if (m->workers == 0 || m->frozen_until > w->t || m->lease.held)
            continue;
        *any = true;
        if (epoch != 0 && m->workers != epoch) {
            (void)snprintf(w->why, sizeof w->why, "at %" PRId64 " ms workers of hosts %" PRId64 " and %" PRId64 " run",
                           w->t, epoch, m->workers);
            return false;
        }
        epoch = m->workers;
    }
    return true;
}

static bool run(struct sim *w, uint64_t seed)
{
    bool any = false;

    memset(w, 0, sizeof *w);
    w->rng = seed;
    w->revision = 1;
    w->no_leader_until = -1;
    w->n = 2 + rnd(w, NODES_MAX - 1);
    for (unsigned i = 0; i < w->n; i++)
        begin(w, i);
    for (; w->t < FAULTS_UNTIL_MS + CALM_MS; w->t += STEP_MS) {
        if (w->t < FAULTS_UNTIL_MS && rnd(w, 200) == 0)
            fault(w);
        etcd_tick(w);
        for (unsigned k = 0; k < w->n_wires;) {
            struct wire m = w->wires[k];

            if (m.at > w->t || (m.to != ETCD && !runs(w, &w->nodes[m.to]))) {
                k++;
                continue;
            }
            w->wires[k] = w->wires[--w->n_wires];
            if (m.to == ETCD)
                etcd_answer(w, &m);
            else
                arrive(w, &m);
        }
        for (unsigned i = 0; i < w->n; i++)
            if (runs(w, &w->nodes[i]))
                node_tick(w, i);
        if (!one_world(w, &any) || w->why[0] != '\0')
            return false;
    }
    for (unsigned i = 0; i < w->n && w->why[0] == '\0'; i++)
        if (w->nodes[i].workers == 0 || w->nodes[i].workers != w->nodes[0].workers)
            (void)snprintf(w->why, sizeof w->why, "%d ms after the last fault, node %u is in no world with node 0",
                           CALM_MS, i);
    return w->why[0] == '\0';
}

int main(int argc, char **argv)
{
    uint64_t seed = 1, runs_wanted = 300, one = 0, worlds = 0;
    bool must_break = false;
    static struct sim w;
    char why[sizeof w.why];

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--must-break") == 0)
            must_break = true;
        else if (sscanf(argv[i], "--seed=%" SCNu64, &one) != 1 && sscanf(argv[i], "--runs=%" SCNu64, &runs_wanted) != 1)
            return 2;
    }
    if (one != 0) {
        seed = one;
        runs_wanted = one;
    }
    for (; seed <= runs_wanted; seed++) {
        if (run(&w, seed)) {
            worlds += w.worlds;
            continue;
        }
        printf("seed %" PRIu64 ": %s\nreproduce: election --seed=%" PRIu64 "\n", seed, w.why, seed);
        memcpy(why, w.why, sizeof why);
        return must_break && strstr(why, "workers of hosts") != NULL && !run(&w, seed) && strcmp(why, w.why) == 0 ? 0
                                                                                                                  : 1;
    }
    printf("%" PRIu64 " runs, %" PRIu64 " times a node's workers began: never two worlds\n", one != 0 ? 1 : runs_wanted,
           worlds);
    return must_break;
}
