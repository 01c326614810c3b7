/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page for people. All of it is written here, charts too, so that it is the same with and without scripts: the
 * script only gets the page again and puts its <main> in place of the old one.
 */
#include "common/size_text.h"
#include "watch/charts.h"
#include "watch/explain.h"
#include "watch/html_text.h"
#include "watch/page_style.h"
#include "watch/pages.h"
#include "watch/verdict.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* --------------------------------------------------------------------------------------------------- the job ---- */

/* Shapes, so that colour is not the only sign of the state: a tick, an exclamation mark, a cross. */
static const char *const icons[] = {
    [VERDICT_GOOD] = "M6,13l4,4l8,-9",
    [VERDICT_WARN] = "M12,6v7M12,17v1",
    [VERDICT_BAD] = "M7,7l10,10M17,7l-10,10",
};

static const char *name_of(const struct page_job *j)
{
    return j->run_id[0] == '\0' ? "(a job without a name)" : j->run_id;
}

static void put_banner(struct html *h, const struct page_job *j, const struct verdict *v)
{
    html_put(
        h,
        "<div class=\"state %s\" role=\"status\"><svg viewBox=\"0 0 24 24\" aria-hidden=\"true\"><circle cx=\"12\" "
        "cy=\"12\" r=\"11\"/><path d=\"%s\"/></svg><div><h2><span class=\"word\">%s</span> <span class=\"job\">",
        verdict_level_name(v->level), icons[v->level], v->word);
    html_text(h, name_of(j));
    html_put(h, "</span></h2><p>");
    html_text(h, v->text);
    html_put(h, "</p></div></div>\n");
}

/* more: a remark; "": none. */
__attribute__((format(printf, 4, 5))) static void put_tile(struct html *h, const char *name, const char *more,
                                                           const char *fmt, ...)
{
    char value[64];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(value, sizeof value, fmt, args);
    va_end(args);
    html_put(h, "<div class=\"tile\"><dt>%s</dt><dd>", name);
    html_text(h, value);
    if (more[0] != '\0') {
        html_put(h, " <small>");
        html_text(h, more);
        html_put(h, "</small>");
    }
    html_put(h, "</dd></div>");
}

static void put_step_tiles(struct html *h, const struct page_job *j)
{
    const struct cdi_places_sum *s = &j->sum;
    char more[96], span[CDI_PLACES_SPAN];
    double comm = s->hidden_us + s->exposed_us;

    if (s->n_timed > 0 && s->n_fresh == 0)
        put_tile(h, "Last step", "", "%s ago", cdi_places_span(span, (double)s->step_age_ms * 1e3));
    if (s->n_fresh == 0)
        return;
    (void)snprintf(more, sizeof more, "%.3g per second", s->steps_per_s);
    put_tile(h, "A step takes", more, "%s", cdi_places_span(span, s->step_us));
    (void)snprintf(more, sizeof more, "%.0f %% hidden", comm > 0 ? 100 * s->hidden_us / comm : 0);
    put_tile(h, "Communication", more, "%.0f %%", 100 * comm / s->step_us);
    more[0] = '\0';
    if (s->slowest >= 0)
        (void)snprintf(more, sizeof more, "for rank %d in %.0f %% of the steps", s->slowest, 100 * s->slowest_share);
    put_tile(h, "Waiting", more, "%.0f %%", 100 * s->late_us / s->step_us);
}

static void put_gpu_tile(struct html *h, const struct cdi_places_sum *s)
{
    char memory[48] = "", more[96];

    if (s->n_gpus == 0)
        return;
    if (s->gpu_memory >= 0)
        (void)snprintf(memory, sizeof memory, ", memory %.0f %% used", 100 * s->gpu_memory);
    (void)snprintf(more, sizeof more, "at least %.0f %%%s", 100 * s->gpu_least_load, memory);
    put_tile(h, s->n_gpus == 1 ? "GPU" : "GPUs", more, "%.0f %%", 100 * s->gpu_load);
}

static void put_tiles(struct html *h, const struct page_job *j)
{
    char more[64] = "";
    bool open = strcmp(j->state, "closed") != 0;

    html_put(h, "<dl class=\"tiles\">");
    if (j->waiting > 0)
        (void)snprintf(more, sizeof more, "%u waiting", j->waiting);
    else if (j->min_nodes != j->max_nodes)
        (void)snprintf(more, sizeof more, "of %u to %u", j->min_nodes, j->max_nodes);
    if (open) {
        put_tile(h, "Ranks", "", "%u", j->world_size);
        put_tile(h, "Nodes", more, "%zu", j->nodes);
    }
    (void)snprintf(more, sizeof more, "round %u", j->round);
    put_tile(h, "Restarts", more, "%u", j->restarts);
    if (j->n_placed > 0 && j->sum.n > j->sum.by_place[CDI_PLACE_OUTSIDE])
        put_tile(h, "Steps", "", "%" PRIu64, j->sum.max_step);
    put_step_tiles(h, j);
    put_gpu_tile(h, &j->sum);
    html_put(h, "</dl>\n");
}

static void put_group(struct html *h, const struct cdi_place_group *g)
{
    char ranks[CDI_PLACES_RANKS], where[CDI_PLACES_TEXT], doing[CDI_PLACES_TEXT], span[CDI_PLACES_SPAN];

    cdi_places_ranks(g, ranks);
    cdi_places_where(g, where);
    cdi_places_doing(g, doing);
    html_put(h, "<tr><td data-of=\"Ranks\"><b>%s</b><td data-of=\"Where\">", ranks);
    html_text(h, where);
    html_put(h, "<td data-of=\"For\">%s<td data-of=\"Host\">", cdi_places_span(span, (double)g->for_ms * 1e3));
    if (g->n_nodes == 1)
        html_text(h, g->ranks[0].host);
    else
        html_put(h, "%zu nodes", g->n_nodes);
    html_put(h, "<td data-of=\"Step\">%" PRIu64, g->min_step);
    if (g->max_step != g->min_step)
        html_put(h, " to %" PRIu64, g->max_step);
    html_put(h, "<td data-of=\"Doing\">");
    html_text(h, doing[0] == '\0' ? "-" : doing);
    html_put(h, "\n");
}

static void put_places(struct html *h, const struct page_job *j)
{
    if (j->n_groups == 0)
        return;
    html_put(h, "<h3>Who is where</h3><table class=\"where\"><thead><tr><th>ranks<th>where<th>for<th>host<th>step<th>"
                "doing<tbody>\n");
    for (size_t i = 0; i < j->n_groups; i++)
        put_group(h, &j->groups[i]);
    html_put(h, "</table>\n");
}

/* ------------------------------------------------------------------------------------------- nodes and store ---- */

static void put_agent(struct html *h, const struct page_agent *a)
{
    if (a->node_rank < 0)
        html_put(h, "<tr><td data-of=\"Node\">-<td data-of=\"Host\">");
    else
        html_put(h, "<tr><td data-of=\"Node\">%d<td data-of=\"Host\">", (int)a->node_rank);
    html_text(h, a->host == NULL ? "" : a->host);
    html_put(h, "<td data-of=\"Address\">%s<td data-of=\"Ranks\">", a->address);
    if (a->node_rank < 0)
        html_put(h, "not in the round\n");
    else if (a->n_ranks == 1)
        html_put(h, "%u\n", a->first_rank);
    else
        html_put(h, "%u to %u\n", a->first_rank, a->first_rank + a->n_ranks - 1);
}

static void put_agents(struct html *h, const struct page_job *j)
{
    if (j->n_agents == 0)
        return;
    html_put(h, "<details data-key=\"nodes:");
    html_text(h, j->run_id);
    html_put(h, "\"%s><summary>%zu node%s</summary><table><thead><tr><th>node<th>host<th>address<th>ranks<tbody>\n",
             j->n_agents <= 8 ? " open" : "", j->n_agents, plural_of(j->n_agents));
    for (size_t i = 0; i < j->n_agents; i++)
        put_agent(h, &j->agents[i]);
    html_put(h, "</table></details>\n");
}

/* A closed job has no store any more. */
static void put_store(struct html *h, const struct page_job *j)
{
    char used[CDI_SIZE_TEXT], limit[CDI_SIZE_TEXT];
    uint64_t operations = 0;

    for (size_t i = 0; i < CDI_C10D_N_OPS; i++)
        operations += j->operations[i];
    html_put(h, "<p class=\"more\">Port %u. Store: ", j->port);
    if (j->bytes_limit > 0)
        html_put(h, "%zu key%s, %s of %s, %zu wait%s, %zu connection%s, ", j->keys, plural_of(j->keys),
                 cdi_size_text(used, (double)j->bytes), cdi_size_text(limit, (double)j->bytes_limit), j->waits,
                 plural_of(j->waits), j->store_connections, plural_of(j->store_connections));
    html_put(h, "%" PRIu64 " request%s", operations, plural_of(operations));
    if (j->bytes_limit > 0)
        html_put(h, ", %.0f per second", j->operations_per_s);
    html_put(h, ".</p>\n");
}

static void put_job(struct html *h, const struct page_job *j)
{
    struct verdict v;

    verdict_of(j, &v);
    html_put(h, "<section aria-label=\"job ");
    html_text(h, name_of(j));
    html_put(h, "\">\n");
    put_banner(h, j, &v);
    put_tiles(h, j);
    if (v.level != VERDICT_GOOD)
        put_places(h, j); /* first what is wrong */
    html_put(h, "<div class=\"charts\">");
    chart_rate(h, j);
    chart_communication(h, j);
    chart_waiting(h, j);
    html_put(h, "</div>\n");
    if (v.level == VERDICT_GOOD)
        put_places(h, j);
    put_agents(h, j);
    put_store(h, j);
    html_put(h, "</section>\n");
}

/* -------------------------------------------------------------------------------------------------- the page ---- */

/* The title is what a tab shows: the worst state of all jobs. */
static void put_title(struct html *h, const struct page_data *s)
{
    struct verdict worst = {.level = VERDICT_GOOD}, v;
    const char *name = "no jobs";

    for (size_t i = 0; i < s->n_jobs; i++) {
        verdict_of(&s->jobs[i], &v);
        if (i == 0 || v.level > worst.level) {
            worst = v;
            name = name_of(&s->jobs[i]);
        }
    }
    html_put(h, "<title>%s%s", worst.word == NULL ? "" : worst.word, worst.word == NULL ? "" : ": ");
    html_text(h, name);
    html_put(h, "</title>\n");
}

/* In whole seconds. */
static const char *uptime_text(char text[CDI_PLACES_SPAN], double seconds)
{
    if (seconds >= 60)
        return cdi_places_span(text, seconds * 1e6);
    (void)snprintf(text, CDI_PLACES_SPAN, "%d s", seconds < 0 ? 0 : (int)seconds);
    return text;
}

static void put_footer(struct html *h, const struct page_data *s)
{
    char up_for[CDI_PLACES_SPAN], memory[CDI_SIZE_TEXT];

    html_put(h,
             "<footer>cddp rendezvous %s, up for %s%s, %zu of at most %zu connections (%" PRIu64 " accepted, %" PRIu64
             " dropped), %s of memory, %zu job%s. The same data as <a href=\"/status\">JSON</a> and <a "
             "href=\"/metrics\">for Prometheus</a>.</footer>\n",
             s->version, uptime_text(up_for, s->uptime_s), s->draining ? ", draining" : "", s->connections,
             s->connections_limit, s->accepted, s->dropped, cdi_size_text(memory, (double)s->resident_bytes), s->n_jobs,
             plural_of(s->n_jobs));
}

cddp_status page_html(const struct page_data *s, struct cdi_buf *out)
{
    struct html h = {.out = out};

    html_put(&h,
             "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
             "content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">"
             "<link rel=\"icon\" href=\"data:,\"><noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>\n");
    put_title(&h, s);
    for (size_t i = 0; i < page_style_parts; i++)
        html_put(&h, "%s", page_style[i]);
    html_put(&h, "</head><body><p id=\"lost\" role=\"alert\" hidden>The rendezvous server does not answer: the job has "
                 "ended, or the network is down. This is its last answer.</p>\n<main>\n");
    if (s->n_jobs == 0)
        html_put(&h, "<div class=\"state good\" role=\"status\"><div><h2><span class=\"word\">Idle</span></h2><p>No "
                     "jobs.</p></div></div>\n");
    for (size_t i = 0; i < s->n_jobs; i++)
        put_job(&h, &s->jobs[i]);
    put_footer(&h, s);
    html_put(&h, "</main>\n%s</body></html>\n", page_script);
    return h.st;
}
