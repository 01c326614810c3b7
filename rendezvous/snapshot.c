/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous/snapshot.h"
#include "common/address.h"
#include "rendezvous/round/session.h"
#include "rendezvous/view/hang_watch.h"
#include "rendezvous/view/view.h"
#include "rendezvous/views.h"

#include <cddp/version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MEASURE_MS 1000

static size_t resident_bytes(void)
{
    unsigned long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");

    if (f == NULL)
        return 0;
    if (fscanf(f, "%lu %lu", &size, &resident) != 2)
        resident = 0;
    (void)fclose(f);
    return (size_t)resident * (size_t)sysconf(_SC_PAGESIZE);
}

/* Returns the limit of connections: as configured, but at most the number of descriptors. */
static size_t connections_limit(const struct conn_ctx *ctx)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur > ctx->max_connections)
        return ctx->max_connections;
    return (size_t)files.rlim_cur;
}

static void fill_job(struct page_job *out, struct conn_job *job)
{
    static const char *const states[] = PAGE_JOB_STATES;
    const struct round *round = session_round(job->session);
    const struct cdi_kv *kv = round_state(round) == ROUND_CLOSED ? NULL : session_keys(job->session);

    *out = (struct page_job){.run_id = job->run_id,
                             .state = states[round_state(round)],
                             .why = round_why(round),
                             .port = job->port,
                             .round = round_number(round),
                             .restarts = round_restart_count(round),
                             .nodes = round_present(round),
                             .done = round_close_status(round) == CDI_CLOSE_DONE,
                             .operations_per_s = job->operations_per_s};
    if (round_state(round) == ROUND_RUNNING || round_state(round) == ROUND_STOPPING)
        out->world_size = round_world_size(round);
    round_waiting(round, &out->waiting, &out->needed);
    round_limits(round, &out->min_nodes, &out->max_nodes);
    memcpy(out->operations, job->operations, sizeof out->operations);
    if (kv == NULL)
        return;
    out->keys = cdi_kv_count(kv);
    out->bytes = cdi_kv_bytes(kv);
    out->bytes_limit = cdi_kv_limits(kv)->bytes;
    out->waits = cdi_kv_waits(kv);
    out->waits_limit = cdi_kv_limits(kv)->waits;
}

static void fill_agent(struct page_agent *a, const struct conn *c)
{
    struct cdi_msg_assign assign;

    *a = (struct page_agent){.node_rank = -1, .host = round_host(session_round(c->job->session), c->peer)};
    cdi_address_text((const struct sockaddr *)&c->addr, a->address);
    if (!round_assignment(session_round(c->job->session), c->peer, &assign))
        return;
    a->node_rank = assign.node_rank;
    a->first_rank = assign.rank_base;
}

static int by_rank(const void *a, const void *b)
{
    const struct page_agent *x = a, *y = b;

    return (x->node_rank > y->node_rank) - (x->node_rank < y->node_rank);
}

/* Sorts the agents, and sets their numbers of ranks: up to the first rank of the next one. */
static void number_ranks(struct page_job *j)
{
    qsort(j->agents, j->n_agents, sizeof *j->agents, by_rank);
    for (size_t i = 0; i < j->n_agents; i++) {
        struct page_agent *a = &j->agents[i];

        if (a->node_rank >= 0)
            a->n_ranks = (i + 1 < j->n_agents ? j->agents[i + 1].first_rank : j->world_size) - a->first_rank;
    }
}

/* Counts the connections of each job, for the arrays that fill_agents() then fills. */
static void count_conns(struct conn_ctx *ctx, struct page_data *out)
{
    struct cdi_list *node, *safe;

    cdi_list_for_each (node, safe, &ctx->conns) {
        const struct conn *c = cdi_list_of(node, struct conn, link);

        if (c->job == NULL || c->job->number >= out->n_jobs)
            continue;
        out->jobs[c->job->number].n_agents += c->state == CONN_CONTROL;
        out->jobs[c->job->number].store_connections += c->state == CONN_STORE;
    }
}

static cddp_status fill_agents(struct conn_ctx *ctx, struct page_data *out)
{
    struct cdi_list *node, *safe;

    for (size_t i = 0; i < out->n_jobs; i++) {
        struct page_job *j = &out->jobs[i];

        j->agents = calloc(j->n_agents + 1, sizeof *j->agents);
        if (j->agents == NULL)
            return CDDP_E_NOMEM;
        j->n_agents = 0;
    }
    cdi_list_for_each (node, safe, &ctx->conns) {
        const struct conn *c = cdi_list_of(node, struct conn, link);

        if (c->job != NULL && c->job->number < out->n_jobs && c->state == CONN_CONTROL) {
            struct page_job *j = &out->jobs[c->job->number];

            fill_agent(&j->agents[j->n_agents++], c);
        }
    }
    for (size_t i = 0; i < out->n_jobs; i++)
        number_ranks(&out->jobs[i]);
    return CDDP_OK;
}

static int by_time(const void *a, const void *b)
{
    const struct page_wait *x = a, *y = b;

    return (x->for_ms < y->for_ms) - (x->for_ms > y->for_ms);
}

static bool fill_wait(struct page_wait *out, struct conn_ctx *ctx, const struct conn *c)
{
    struct sockaddr_storage own = {.ss_family = AF_UNSPEC};
    int len = sizeof own;
    struct cdi_c10d_bytes key;
    size_t n;

    if (c->state != CONN_STORE || !cdi_kv_waits_for(&c->serve.client, &key, &out->missing))
        return false;
    cdi_address_text((const struct sockaddr *)&c->addr, out->address);
    (void)uv_tcp_getsockname(&c->tcp, (struct sockaddr *)&own, &len); /* fails if the client has reset it */
    cdi_address_text((const struct sockaddr *)&own, out->server);
    n = key.len < sizeof out->key - 1 ? key.len : sizeof out->key - 1;
    for (size_t i = 0; i < n; i++)
        out->key[i] = key.data[i] >= 0x20 && key.data[i] < 0x7F ? (char)key.data[i] : '?';
    out->key[n] = '\0';
    out->for_ms = (int64_t)uv_now(ctx->loop) - c->begun_ms;
    return true;
}

size_t snapshot_waits(struct conn_ctx *ctx, const struct conn_job *job, struct page_wait *out, size_t cap)
{
    struct cdi_list *node, *safe;
    size_t n = 0;

    cdi_list_for_each (node, safe, &ctx->conns) {
        const struct conn *c = cdi_list_of(node, struct conn, link);
        struct page_wait wait;

        if ((job != NULL && c->job != job) || !fill_wait(&wait, ctx, c))
            continue;
        if (n == cap && (cap == 0 || out[cap - 1].for_ms >= wait.for_ms))
            continue;
        out[n < cap ? n++ : cap - 1] = wait;
        if (n == cap)
            qsort(out, n, sizeof *out, by_time);
    }
    qsort(out, n, sizeof *out, by_time);
    return n;
}

static cddp_status fill_waits(struct conn_ctx *ctx, struct page_data *out)
{
    for (struct conn_job *job = NULL; (job = conn_next_job(ctx, job)) != NULL;) {
        struct page_job *j = &out->jobs[job->number];
        size_t cap = j->waits < PAGE_WAITS_MAX ? j->waits : PAGE_WAITS_MAX;

        j->clients = calloc(cap + 1, sizeof *j->clients);
        if (j->clients == NULL)
            return CDDP_E_NOMEM;
        if (cap > 0)
            j->n_clients = snapshot_waits(ctx, job, j->clients, cap);
    }
    return CDDP_OK;
}

/* ---------------------------------------------------------------------------------------- where the ranks are ---- */

static int by_node(const void *a, const void *b)
{
    const struct page_node *x = a, *y = b;

    return (x->node_rank > y->node_rank) - (x->node_rank < y->node_rank);
}

/* Lists the nodes of the running round, with their newest reports. */
static cddp_status fill_nodes(struct page_job *out, const struct conn_job *job, int64_t now_ms)
{
    struct cdi_msg_assign assign;
    size_t cap = 0;

    out->reports = view_nodes(job->view, &out->n_reports);
    for (uint32_t peer = UINT32_MAX; session_next_agent(job->session, &peer, &assign);)
        cap++;
    out->node = calloc(cap + 1, sizeof *out->node);
    if (out->node == NULL)
        return CDDP_E_NOMEM;
    for (uint32_t peer = UINT32_MAX; out->n_nodes < cap && session_next_agent(job->session, &peer, &assign);) {
        const struct view_node *v = view_find(job->view, assign.node_rank);
        const char *host = round_host(session_round(job->session), peer);
        struct page_node *node = &out->node[out->n_nodes++];

        *node = (struct page_node){.node_rank = assign.node_rank, .host = host == NULL ? "" : host, .ms_ago = -1};
        if (v == NULL)
            continue;
        node->ms_ago = now_ms - v->received_ms;
        node->answered = v->report.asked >= job->asked;
        node->ranks = v->report.ranks;
        node->n_ranks = v->report.n_ranks;
    }
    qsort(out->node, out->n_nodes, sizeof *out->node, by_node);
    return CDDP_OK;
}

/* Where the ranks are, and what that means. */
static cddp_status fill_view(const struct conn_ctx *ctx, struct page_job *out, const struct conn_job *job,
                             int64_t now_ms)
{
    const struct session_hang opt = session_hang(job->session);
    cddp_status st = fill_nodes(out, job, now_ms);

    out->now_ms = now_ms;
    out->history = &job->history;
    out->stuck_ms = hang_watch_long_wait_ms(&opt);
    return st == CDDP_OK ? ctx->views->explain(out) : st;
}

static void release_job(struct page_job *j)
{
    free(j->agents);
    free(j->clients);
    free(j->node);
    free(j->placed);
    hang_release(&j->hang);
}

void snapshot_sample(const struct conn_ctx *ctx, struct conn_job *job, int64_t now_ms)
{
    struct page_job j = {.n_nodes = 0};
    uint32_t round = round_number(session_round(job->session));

    if (fill_view(ctx, &j, job, now_ms) == CDDP_OK && j.n_placed > 0)
        history_add(&job->history, round, &j.sum, now_ms);
    release_job(&j);
}

void snapshot_release(struct page_data *s)
{
    for (size_t i = 0; i < s->n_jobs; i++)
        release_job(&s->jobs[i]);
    free(s->jobs);
    *s = (struct page_data){0};
}

cddp_status snapshot_take(struct conn_ctx *ctx, struct page_data *out)
{
    double uptime_s = (double)(uv_now(ctx->loop) - (uint64_t)ctx->started_ms) / 1e3;
    cddp_status st = CDDP_OK;
    size_t n = 0;

    *out = (struct page_data){.version = CDDP_VERSION,
                              .started_s = (double)ctx->started_wall_ms / 1e3,
                              .uptime_s = uptime_s,
                              .draining = ctx->draining,
                              .connections = ctx->n_open,
                              .connections_limit = connections_limit(ctx),
                              .accepted = ctx->n_accepted,
                              .dropped = ctx->n_dropped,
                              .resident_bytes = resident_bytes()};
    for (struct conn_job *job = NULL; (job = conn_next_job(ctx, job)) != NULL;)
        job->number = n++;
    out->jobs = calloc(n + 1, sizeof *out->jobs);
    if (out->jobs == NULL)
        return CDDP_E_NOMEM;
    out->n_jobs = n;
    for (struct conn_job *job = NULL; (job = conn_next_job(ctx, job)) != NULL;) {
        fill_job(&out->jobs[job->number], job);
        if (st == CDDP_OK)
            st = fill_view(ctx, &out->jobs[job->number], job, (int64_t)uv_now(ctx->loop));
    }
    count_conns(ctx, out);
    if (st == CDDP_OK && fill_agents(ctx, out) == CDDP_OK && fill_waits(ctx, out) == CDDP_OK)
        return CDDP_OK;
    snapshot_release(out);
    return CDDP_E_NOMEM;
}

void snapshot_measure(struct conn_ctx *ctx)
{
    int64_t now_ms = (int64_t)uv_now(ctx->loop);

    for (struct conn_job *job = NULL; (job = conn_next_job(ctx, job)) != NULL;) {
        uint64_t n = 0;

        if (now_ms - job->measured_ms < MEASURE_MS)
            continue;
        for (size_t i = 0; i < CDI_C10D_N_OPS; i++)
            n += job->operations[i];
        job->operations_per_s = (double)(n - job->measured) * 1e3 / (double)(now_ms - job->measured_ms);
        job->measured = n;
        job->measured_ms = now_ms;
    }
}
