/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/jobs.h"

#include "protocol/json_text.h"

#include <stdlib.h>
#include <string.h>

const char *top_text(json_t *o, const char *name, const char *otherwise)
{
    const char *text = json_line(json_object_get(o, name));

    return text != NULL ? text : otherwise;
}

int64_t top_number(json_t *o, const char *name, int64_t otherwise)
{
    json_t *v = json_object_get(o, name);

    return json_is_integer(v) ? (int64_t)json_integer_value(v) : otherwise;
}

/* A rank that has not entered a collective is later than one that is in it. */
static int place_order(enum cdi_place p)
{
    return p == CDI_PLACE_IN || p == CDI_PLACE_IN_REPLAY ? 1 : 0;
}

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_ranks(const void *a, const void *b)
{
    const struct cdi_rank_report *x = &((const struct top_rank *)a)->report, *y = &((const struct top_rank *)b)->report;
    int order = compare_u64(y->late, x->late);

    if (order == 0)
        order = compare_u64(x->step, y->step);
    if (order == 0)
        order = compare_u64(x->seq, y->seq);
    if (order == 0)
        order = place_order(x->place) - place_order(y->place);
    return order != 0 ? order : compare_u64((uint64_t)x->rank, (uint64_t)y->rank);
}

static cddp_status add_node(struct top_job *j, json_t *json)
{
    struct cdi_node_report *node = &j->nodes[j->n_nodes];
    struct top_rank *more;

    if (cdi_node_report_decode(json, node, NULL) != CDDP_OK)
        return CDDP_OK; /* as if it had not reported */
    j->n_nodes++;
    more = realloc(j->ranks, (j->n_ranks + node->n_ranks + 1) * sizeof *more);
    if (more == NULL)
        return CDDP_E_NOMEM;
    j->ranks = more;
    for (size_t i = 0; i < node->n_ranks; i++) {
        j->ranks[j->n_ranks++] = (struct top_rank){
            .report = node->ranks[i], .node_rank = node->node_rank, .host = top_text(json, "host", "?")};
        j->gpus |= node->ranks[i].gpu_permille >= 0;
        if (node->ranks[i].step > j->most_step)
            j->most_step = node->ranks[i].step;
    }
    return CDDP_OK;
}

static json_t *find_job(json_t *reply, const char *name)
{
    json_t *jobs = json_object_get(reply, "jobs");

    for (size_t i = 0; i < json_array_size(jobs); i++)
        if (strcmp(top_text(json_array_get(jobs, i), "name", "?"), name) == 0)
            return json_array_get(jobs, i);
    return NULL;
}

static cddp_status read_job(struct top_job *j, json_t *json, json_t *previous, int64_t between_ms)
{
    json_t *nodes = json_object_get(json, "nodes");
    struct cdi_placed *placed;
    cddp_status st = CDDP_OK;
    size_t n;

    *j = (struct top_job){.json = json,
                          .name = top_text(json, "name", "?"),
                          .state = top_text(json, "state", "?"),
                          .round = top_number(json, "round", 0),
                          .restarts = top_number(json, "restarts", 0),
                          .world_size = top_number(json, "world_size", 0),
                          .between_ms = between_ms};
    j->previous = find_job(previous, j->name);
    if (j->previous != NULL && top_number(j->previous, "round", 0) != j->round)
        j->previous = NULL;
    j->nodes = calloc(json_array_size(nodes) + 1, sizeof *j->nodes);
    if (j->nodes == NULL)
        return CDDP_E_NOMEM;
    for (size_t i = 0; st == CDDP_OK && i < json_array_size(nodes); i++)
        st = add_node(j, json_array_get(nodes, i));
    if (j->n_ranks > 0)
        qsort(j->ranks, j->n_ranks, sizeof *j->ranks, compare_ranks);
    placed = cdi_places_of(j->nodes, j->n_nodes, &n);
    if (placed == NULL)
        return CDDP_E_NOMEM;
    cdi_places_sum(placed, n, &j->sum);
    free(placed);
    return st;
}

void top_jobs_release(struct top_jobs *v)
{
    for (size_t i = 0; i < v->n; i++) {
        for (size_t k = 0; k < v->v[i].n_nodes; k++)
            cdi_node_report_release(&v->v[i].nodes[k]);
        free(v->v[i].nodes);
        free(v->v[i].ranks);
    }
    free(v->v);
}

cddp_status top_jobs_read(struct top_jobs *v, json_t *reply, json_t *previous, int64_t between_ms)
{
    json_t *jobs = json_object_get(reply, "jobs");
    cddp_status st = CDDP_OK;

    *v = (struct top_jobs){.v = calloc(json_array_size(jobs) + 1, sizeof *v->v)};
    if (v->v == NULL)
        return CDDP_E_NOMEM;
    for (size_t i = 0; st == CDDP_OK && i < json_array_size(jobs); i++)
        st = read_job(&v->v[v->n++], json_array_get(jobs, i), previous, between_ms);
    return st;
}
