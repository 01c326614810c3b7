/* SPDX-License-Identifier: Apache-2.0 */
#include "preflight/meet.h"

#include "common/cleanup.h"
#include "common/clock.h"
#include "preflight/judge.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define MEET_MS 20000 /* for all phases: a node that is slower than the others */
#define LATE_MS 3000  /* for a text whose writer is known to be here, or past all phases */
#define REACH_MS 2000 /* to connect to a node */
#define WINDOW_MS 100 /* of sending, for a link's rate */
#define PAIR_ROUNDS 3 /* in each, every node measures one link */
#define AGAIN_MAX 8   /* slow links that are measured a second time */
#define AGAIN_MS 40   /* of sending, then; the best of some tries counts: a busy machine is not a slow link */
#define AGAIN_TRIES 3
#define AGAIN_TEXT (AGAIN_MAX * 24 + 2)
#define FACTS_MAX 32768

static void meet_key(char key[64], const char *name, uint32_t i)
{
    (void)snprintf(key, 64, "cddp/preflight/%s/%u", name, i);
}

cddp_status meet_put(const struct meet *m, const char *name, uint32_t i, const char *text, struct cdi_error *err)
{
    char key[64];

    meet_key(key, name, i);
    return cdi_store_set(m->store, key, text, strlen(text), err);
}

bool meet_get(const struct meet *m, const char *name, uint32_t i, char *text, size_t cap, int64_t timeout_ms)
{
    char key[64];
    size_t len = 0;

    meet_key(key, name, i);
    if (cdi_store_get(m->store, key, text, cap - 1, &len, timeout_ms > 0 ? timeout_ms : 1, NULL) != CDDP_OK)
        return false;
    text[len] = '\0';
    return true;
}

bool meet_has(const struct meet *m, const char *name, uint32_t i)
{
    char key[64];
    bool exists = false;

    meet_key(key, name, i);
    return cdi_store_exists(m->store, key, &exists, NULL) == CDDP_OK && exists;
}

/* Waits until all nodes have come here, but not for ever: the one that is missing is named at the end. */
static cddp_status meet_all(const struct meet *m, uint32_t phase, struct cdi_error *err)
{
    char key[64], text[8];
    int64_t sum = 0;
    cddp_status st;

    meet_key(key, "count", phase);
    st = cdi_store_add(m->store, key, 1, &sum, err);
    if (st == CDDP_OK && sum == (int64_t)m->n_nodes)
        st = meet_put(m, "all", phase, "1", err);
    if (st == CDDP_OK)
        (void)meet_get(m, "all", phase, text, sizeof text, m->until_ms - cdi_now_ms());
    return st;
}

/* ----------------------------------------------------------------------------------------------------- measure ---- */

/* Node 0 draws the token; the store gives it to the members of this job only. */
static cddp_status share_token(struct meet *m, struct cdi_error *err)
{
    char hex[2 * CDI_AUTH_HASH + 1];

    if (m->node == 0) {
        cddp_status st = cdi_auth_nonce(m->token.key, err);

        if (st != CDDP_OK)
            return st;
        for (int i = 0; i < CDI_AUTH_HASH; i++)
            (void)snprintf(hex + 2 * (size_t)i, 3, "%02x", m->token.key[i]);
        return meet_put(m, "token", 0, hex, err);
    }
    if (!meet_get(m, "token", 0, hex, sizeof hex, MEET_MS))
        return cdi_fail(err, CDDP_E_TIMEOUT, "node 0 has not begun the checks within %d s", MEET_MS / 1000);
    for (int i = 0; i < CDI_AUTH_HASH; i++) {
        unsigned byte = 0;

        if (sscanf(hex + 2 * (size_t)i, "%2x", &byte) != 1)
            return cdi_fail(err, CDDP_E_PROTOCOL, "the store's token of the checks is damaged");
        m->token.key[i] = (uint8_t)byte;
    }
    return CDDP_OK;
}

static cddp_status meet_serve(const struct meet *m, struct cdi_error *err)
{
    struct sockaddr_storage local;
    struct cdi_address reached = {.len = 0};
    char text[LINKS_TEXT] = "";
    cddp_status st;

    cdi_store_local_address(m->store, &local, &reached.len);
    memcpy(&reached.u, &local, reached.len);
    st = links_serve(&reached, m->rank, &m->token, text, err);
    return st == CDDP_OK ? meet_put(m, "address", m->node, text, err) : st;
}

static void meet_target(const struct meet *m, uint32_t node, int64_t until_ms, struct links_target *t)
{
    memset(t, 0, sizeof *t);
    t->node = node;
    t->token = m->token;
    if (!meet_get(m, "address", node, t->text, sizeof t->text, until_ms - cdi_now_ms()))
        t->text[0] = '\0';
}

/* Node 0, whose clock counts, and the nodes at distances 1, 2, 4, ...: together they are paths between all nodes. */
static void meet_reach(const struct meet *m, struct preflight_facts *f)
{
    struct links_target t[PREFLIGHT_LINKS_MAX];
    size_t n;

    if (m->node != 0)
        (void)preflight_link_to(f, 0);
    for (uint64_t d = 1; d < m->n_nodes; d *= 2)
        (void)preflight_link_to(f, (uint32_t)((m->node + d) % m->n_nodes));
    n = f->n_links;
    for (size_t i = 0; i < n; i++)
        meet_target(m, f->link[i].to, m->until_ms, &t[i]);
    links_reach(t, n, REACH_MS);
    for (size_t i = 0; i < n; i++) {
        f->link[i].reached = t[i].reached;
        (void)snprintf(f->link[i].why, sizeof f->link[i].why, "%s", t[i].why);
        if (t[i].node == 0 && t[i].reached) {
            f->clock_known = true;
            f->clock_us = t[i].clock_ns / 1000;
            f->clock_error = t[i].error_ns / 1000;
        }
    }
    if (m->node == 0)
        f->clock_known = true;
}

/* A rate of 0 is a link that is not known; the other end, or the first phase, has reported it then. */
static void meet_rate(const struct meet *m, struct preflight_facts *f, uint32_t to)
{
    struct links_target t;
    struct preflight_link *l = preflight_link_to(f, to);

    if (l == NULL || (!l->reached && l->why[0] != '\0'))
        return;
    meet_target(m, to, cdi_now_ms() + REACH_MS, &t);
    l->mib_s = links_rate(&t, WINDOW_MS, REACH_MS);
    l->reached = true; /* or this round's other end has the reason */
}

static cddp_status meet_publish(const struct meet *m, const struct preflight_facts *f, struct cdi_error *err)
{
    CDI_AUTOFREE char *text = preflight_facts_text(f);

    return text != NULL ? meet_put(m, "facts", m->node, text, err)
                        : cdi_fail(err, CDDP_E_NOMEM, "out of memory for the facts of this node");
}

cddp_status meet_measure(struct meet *m, struct cdi_error *err)
{
    CDI_AUTOFREE struct preflight_facts *f = calloc(1, sizeof *f);
    uint32_t rounds = links_rounds(m->n_nodes), used = rounds < PAIR_ROUNDS ? rounds : PAIR_ROUNDS;
    cddp_status st;

    if (f == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    preflight_facts_read(f, m->host,
                         m->workers); /* before the time counts: the drivers of GPUs may need seconds to begin */
    st = share_token(m, err);
    m->until_ms = cdi_now_ms() + MEET_MS;
    if (st == CDDP_OK && m->n_nodes > 1)
        st = meet_serve(m, err);
    if (st == CDDP_OK)
        meet_reach(m, f);
    for (uint32_t i = 0; i < used && st == CDDP_OK; i++) {
        uint32_t to = links_partner(m->node, m->n_nodes, i * (rounds / used));

        st = meet_all(m, i, err);
        if (st == CDDP_OK && to != UINT32_MAX)
            meet_rate(m, f, to);
    }
    return st == CDDP_OK ? meet_publish(m, f, err) : st;
}

/* --------------------------------------------------------------------------------------- a second measurement ---- */

/* Returns the slowest link below a rate that is not listed yet; NULL: none. Forgotten ones have the rate 0. */
static struct preflight_link *slowest(struct preflight_facts *nodes, uint32_t n, double below, uint32_t *from)
{
    struct preflight_link *found = NULL;

    for (uint32_t i = 0; i < n; i++)
        for (size_t k = 0; k < nodes[i].n_links; k++) {
            struct preflight_link *l = &nodes[i].link[k];

            if (l->to >= n || l->mib_s <= 0 || l->mib_s >= below || (found != NULL && l->mib_s >= found->mib_s))
                continue;
            found = l;
            *from = i;
        }
    return found;
}

/*
 * Lists the slowest links. All pairs were measured at the same time, on machines that may be busy, so only a link that
 * is slow alone counts. The rates of the others that seemed slow are forgotten.
 */
static void again_list(struct preflight_facts *nodes, uint32_t n, char text[AGAIN_TEXT])
{
    double below = 1.5 * preflight_slow_below(nodes, n); /* the median rises when slow rates are forgotten */
    size_t used = 1;
    uint32_t from = 0;
    struct preflight_link *l;

    (void)snprintf(text, AGAIN_TEXT, " ");
    for (unsigned i = 0; (l = slowest(nodes, n, below, &from)) != NULL; i++) {
        if (i < AGAIN_MAX)
            used += (size_t)snprintf(text + used, AGAIN_TEXT - used, "%u>%u ", from, l->to);
        l->mib_s = 0;
    }
}

static double again_rate(const struct meet *m, uint32_t to)
{
    struct links_target t;
    double best = 0;

    meet_target(m, to, cdi_now_ms() + REACH_MS, &t);
    for (int i = 0; i < AGAIN_TRIES; i++) {
        double rate = links_rate(&t, AGAIN_MS, REACH_MS / AGAIN_TRIES);

        best = rate > best ? rate : best;
    }
    return best;
}

/* Reads the list, measures this node's links when it is their turn, and, in node 0, takes all results. */
static cddp_status again_run(const struct meet *m, const char *text, struct preflight_facts *nodes,
                             struct cdi_error *err)
{
    cddp_status st = CDDP_OK;
    unsigned from, to;
    int read = 0;

    for (uint32_t turn = 0; st == CDDP_OK && sscanf(text, " %u>%u%n", &from, &to, &read) == 2; turn++, text += read) {
        char rate[32];

        if (from == m->node) {
            if (turn > 0)
                (void)meet_get(m, "rate", turn - 1, rate, sizeof rate, LATE_MS);
            (void)snprintf(rate, sizeof rate, "%.6g", again_rate(m, to));
            st = meet_put(m, "rate", turn, rate, err);
        }
        if (nodes != NULL && st == CDDP_OK && from < m->n_nodes &&
            meet_get(m, "rate", turn, rate, sizeof rate, LATE_MS)) {
            struct preflight_link *l = preflight_link_to(&nodes[from], to);

            if (l != NULL)
                l->mib_s = strtod(rate, NULL);
        }
    }
    return st;
}

cddp_status meet_again(const struct meet *m, struct cdi_error *err)
{
    char text[AGAIN_TEXT];
    int64_t left_ms = m->until_ms - cdi_now_ms();

    if (meet_get(m, "again", 0, text, sizeof text, (left_ms > 0 ? left_ms : 0) + 3 * LATE_MS))
        return again_run(m, text, NULL, err);
    return cdi_fail(err, CDDP_E_TIMEOUT,
                    "node 0 takes part no longer; look at its host, on which a disk may not answer");
}

cddp_status meet_collect(const struct meet *m, struct preflight_facts *nodes, struct cdi_error *err)
{
    CDI_AUTOFREE char *text = malloc(FACTS_MAX);
    char again[AGAIN_TEXT];
    int64_t until_ms = (m->until_ms > cdi_now_ms() ? m->until_ms : cdi_now_ms()) + LATE_MS;
    cddp_status st;

    if (text == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < m->n_nodes; i++)
        if (meet_get(m, "facts", i, text, FACTS_MAX, until_ms - cdi_now_ms()))
            (void)preflight_facts_parse(&nodes[i], text, strlen(text), NULL); /* else it stays unknown */
    again_list(nodes, m->n_nodes, again);
    st = meet_put(m, "again", 0, again, err);
    return st == CDDP_OK ? again_run(m, again, nodes, err) : st;
}
