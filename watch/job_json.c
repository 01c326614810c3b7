/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/job_json.h"

#include "protocol/json_text.h"
#include "watch/hang.h"
#include "watch/verdict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *page_json_add(json_t *array, json_t *value)
{
    if (array != NULL && json_array_append_new(array, value) == 0)
        return array;
    if (array == NULL)
        json_decref(value);
    json_decref(array);
    return NULL;
}

json_t *page_job_head(const struct page_job *j)
{
    return json_pack("{s:o, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:I}", "name", json_text(j->run_id), "state", j->state,
                     "why", json_text(j->why), "round", (json_int_t)j->round, "restarts", (json_int_t)j->restarts,
                     "world_size", (json_int_t)j->world_size, "nodes_present", (json_int_t)j->nodes, "min_nodes",
                     (json_int_t)j->min_nodes, "max_nodes", (json_int_t)j->max_nodes);
}

json_t *page_node_json(const struct page_job *j, const struct page_node *n)
{
    struct cdi_node_report r = {.node_rank = n->node_rank, .n_ranks = n->n_ranks};
    struct cdi_rank_report *ranks = calloc(n->n_ranks + 1, sizeof *ranks);
    json_t *node;

    if (ranks == NULL)
        return NULL;
    if (n->n_ranks > 0)
        memcpy(ranks, n->ranks, n->n_ranks * sizeof *ranks);
    for (size_t i = 0; i < n->n_ranks; i++) {
        ranks[i].stack = NULL; /* a stack is for the report of a hang */
        ranks[i].late = hang_is_late(&j->hang, ranks[i].rank);
    }
    r.ranks = ranks;
    (void)snprintf(r.host, sizeof r.host, "%s", n->host);
    node = cdi_node_report_encode(&r);
    free(ranks);
    if (node == NULL || json_object_set_new(node, "answered", json_boolean(n->answered)) != 0 ||
        json_object_set_new(node, "answered_ms_ago", json_integer((json_int_t)n->ms_ago)) != 0) {
        json_decref(node);
        return NULL;
    }
    (void)json_object_del(node, "round");
    (void)json_object_del(node, "asked");
    return node;
}

/* The columns of "rows" below. */
static const char columns[] = "rank pid place op seq bucket for_ms step step_us comm_us exposed_us late_us late_rank "
                              "doing cpu_permille resident_bytes "
                              "step_age_ms late peer gpu_permille gpu_used_bytes gpu_total_bytes part transfer_us";

static json_t *row_of(const struct cdi_rank_report *r, bool late)
{
    return json_pack(
        "[i, I, s, o, I, i, I, I, I, I, I, I, i, o, I, I, I, b, i, i, I, I, o, I]", (int)r->rank, (json_int_t)r->pid,
        cdi_place_name(r->place), r->op == CDI_FLIGHT_NONE ? json_null() : json_string(cdi_flight_op_name(r->op)),
        (json_int_t)r->seq, (int)r->bucket, (json_int_t)r->for_ms, (json_int_t)r->step, (json_int_t)r->step_us,
        (json_int_t)r->comm_us, (json_int_t)r->exposed_us, (json_int_t)r->late_us, (int)r->late_rank,
        json_text(r->doing), (json_int_t)r->cpu_permille, (json_int_t)r->resident_bytes, (json_int_t)r->step_age_ms,
        (int)late, (int)r->peer, (int)r->gpu_permille, (json_int_t)r->gpu_used_bytes, (json_int_t)r->gpu_total_bytes,
        json_text(r->part), (json_int_t)r->transfer_us);
}

static json_t *rows_of(const struct page_job *j, const struct page_node *n)
{
    json_t *rows = json_array();

    for (size_t i = 0; rows != NULL && i < n->n_ranks; i++)
        rows = page_json_add(rows, row_of(&n->ranks[i], hang_is_late(&j->hang, n->ranks[i].rank)));
    return rows;
}

static json_t *where_of(const struct page_job *j)
{
    json_t *names = json_array(), *nodes = json_array();

    for (size_t at = 0, n; names != NULL && at < sizeof columns; at += n + 1) {
        n = strcspn(columns + at, " ");
        names = page_json_add(names, json_stringn(columns + at, n));
    }
    for (size_t i = 0; nodes != NULL && i < j->n_nodes; i++)
        nodes = page_json_add(nodes, json_pack("{s:i, s:o, s:b, s:I, s:o}", "node_rank", (int)j->node[i].node_rank,
                                               "host", json_text(j->node[i].host), "answered", (int)j->node[i].answered,
                                               "answered_ms_ago", (json_int_t)j->node[i].ms_ago, "rows",
                                               rows_of(j, &j->node[i])));
    return json_pack("{s:o, s:o}", "columns", names, "nodes", nodes);
}

static json_t *group_of(const struct cdi_place_group *g)
{
    char ranks[CDI_PLACES_RANKS], where[CDI_PLACES_TEXT], doing[CDI_PLACES_TEXT];

    cdi_places_ranks(g, ranks);
    cdi_places_where(g, where);
    cdi_places_doing(g, doing);
    return json_pack("{s:s, s:I, s:I, s:o, s:I, s:I, s:I, s:o}", "ranks", ranks, "n", (json_int_t)g->n, "nodes",
                     (json_int_t)g->n_nodes, "where", json_text(where), "for_ms", (json_int_t)g->for_ms, "min_step",
                     (json_int_t)g->min_step, "max_step", (json_int_t)g->max_step, "doing", json_text(doing));
}

static json_t *groups_of(const struct page_job *j)
{
    json_t *all = json_array();

    for (size_t i = 0; all != NULL && i < j->n_groups; i++)
        all = page_json_add(all, group_of(&j->groups[i]));
    return all;
}

static json_t *timing_of(const struct cdi_places_sum *s)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:i, s:f, s:f, s:I, s:I, s:f, s:f, s:f}", "ranks",
                     (json_int_t)s->n, "timed", (json_int_t)s->n_timed, "min_step", (json_int_t)s->min_step, "max_step",
                     (json_int_t)s->max_step, "step_us", s->step_us, "hidden_us", s->hidden_us, "exposed_us",
                     s->exposed_us, "waiting_us", s->late_us, "transfer_us", s->transfer_us, "slowest_rank",
                     (int)s->slowest, "slowest_share", s->slowest_share, "steps_per_s", s->steps_per_s,
                     "last_step_age_ms", (json_int_t)s->step_age_ms, "gpus", (json_int_t)s->n_gpus, "gpu_load",
                     s->gpu_load, "gpu_least_load", s->gpu_least_load, "gpu_memory", s->gpu_memory);
}

static json_t *history_of(const struct page_job *j)
{
    json_t *all = json_array();

    for (size_t i = 0; all != NULL && j->history != NULL && i < history_count(j->history); i++) {
        const struct history_sample *h = history_at(j->history, i);

        all = page_json_add(all, json_pack("{s:f, s:I, s:f, s:f, s:f, s:f, s:f}", "ago_s",
                                           (double)(j->now_ms - h->at_ms) / 1e3, "step", (json_int_t)h->step,
                                           "steps_per_s", h->steps_per_s, "step_us", h->step_us, "hidden_us",
                                           h->hidden_us, "exposed_us", h->exposed_us, "waiting_us", h->waiting_us));
    }
    return all;
}

json_t *page_job_view(const struct page_job *j)
{
    struct verdict v;

    verdict_of(j, &v);
    return json_pack("{s:{s:s, s:s, s:o}, s:o, s:o, s:o, s:o}", "verdict", "level", verdict_level_name(v.level), "word",
                     v.word, "text", json_text(v.text), "places", groups_of(j), "timing", timing_of(&j->sum), "history",
                     history_of(j), "where", where_of(j));
}
