/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/where.h"

#include "common/utf8.h"
#include "watch/explain.h"
#include "watch/reply.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS, WHERE, SPAN, HOST, STEP, DOING, CELLS }; /* of a line */

struct where_row {
    char cells[CELLS][CDI_PLACES_TEXT];
};

/* --------------------------------------------------------------------------------------------------- writing ---- */

/* A line, cut to the width between two characters of UTF-8, without tabs and without spaces at its end. */
static cddp_status put_line(struct cdi_buf *out, char *line, size_t columns)
{
    size_t at = 0, shown = 0, n;

    while (line[at] != '\0' && (columns == 0 || shown < columns)) {
        if (line[at] == '\t')
            line[at] = ' ';
        n = cdi_utf8_char(line + at, strlen(line + at));
        at += n == 0 ? 1 : n;
        shown++;
    }
    while (at > 0 && line[at - 1] == ' ')
        at--;
    line[at] = '\0';
    return cdi_buf_printf(out, "%s\n", line);
}

static cddp_status put_head(const struct page_job *j, struct cdi_buf *out, size_t columns)
{
    char line[1600], quoted[270] = "";

    if (j->run_id[0] != '\0')
        (void)snprintf(quoted, sizeof quoted, " '%.255s'", j->run_id);
    (void)snprintf(line, sizeof line,
                   "job%s: %.32s, round %" PRIu32 ", %" PRIu32 " restart%s, %zu node%s, %" PRIu32 " rank%s%s%.512s",
                   quoted, j->state, j->round, j->restarts, plural_of(j->restarts), j->nodes, plural_of(j->nodes),
                   j->world_size, plural_of(j->world_size), j->why[0] != '\0' ? "; " : "", j->why);
    return put_line(out, line, columns);
}

static void fill_row(const struct cdi_place_group *g, struct where_row *row)
{
    char *host = row->cells[HOST], *step = row->cells[STEP];

    cdi_places_ranks(g, row->cells[RANKS]);
    cdi_places_where(g, row->cells[WHERE]);
    (void)cdi_places_span(row->cells[SPAN], (double)g->for_ms * 1e3);
    cdi_places_doing(g, row->cells[DOING]);
    if (g->n_nodes == 1)
        (void)snprintf(host, CDI_PLACES_TEXT, "%s", g->ranks[0].host);
    else
        (void)snprintf(host, CDI_PLACES_TEXT, "%zu nodes", g->n_nodes);
    (void)snprintf(step, CDI_PLACES_TEXT, g->min_step == g->max_step ? "%" PRIu64 : "%" PRIu64 "-%" PRIu64, g->min_step,
                   g->max_step);
}

/* A table: columns as wide as their widest cell, but no wider than `most`. */
static cddp_status put_rows(const struct where_row *rows, size_t n, struct cdi_buf *out, size_t columns)
{
    static const int most[CELLS] = {32, 60, 14, 24, 14, 60};
    int width[CELLS] = {0};
    cddp_status st = CDDP_OK;

    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < CELLS; k++) {
            int len = (int)strlen(rows[i].cells[k]);

            width[k] = len > most[k] ? most[k] : len > width[k] ? len : width[k];
        }
    for (size_t i = 0; i < n && st == CDDP_OK; i++) {
        char line[512];
        size_t used = 0;

        for (size_t k = 0; k < CELLS && used < sizeof line; k++)
            used += (size_t)snprintf(line + used, sizeof line - used, "%-*.*s  ", width[k], k == RANKS ? 95 : most[k],
                                     rows[i].cells[k]);
        st = put_line(out, line, columns);
    }
    return st;
}

static cddp_status put_groups(const struct page_job *j, struct cdi_buf *out, size_t columns)
{
    struct where_row *rows = calloc(j->n_groups + 1, sizeof *rows);
    cddp_status st;

    if (rows == NULL)
        return CDDP_E_NOMEM;
    rows[0] = (struct where_row){{"RANKS", "WHERE", "FOR", "HOST", "STEP", "DOING"}};
    for (size_t i = 0; i < j->n_groups; i++)
        fill_row(&j->groups[i], &rows[i + 1]);
    st = j->n_groups == 0 ? CDDP_OK : put_rows(rows, j->n_groups + 1, out, columns);
    free(rows);
    return st;
}

/* Appends to a line that has *used bytes. */
__attribute__((format(printf, 3, 4))) static void add(char line[512], size_t *used, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    *used += (size_t)vsnprintf(line + *used, 512 - *used, fmt, args);
    va_end(args);
    *used = *used < 512 ? *used : 511;
}

/* "8 ranks, 20 steps done; a step takes 12.3 ms (81 per second), ..." */
static cddp_status put_totals(const struct page_job *j, struct cdi_buf *out, size_t columns)
{
    const struct cdi_places_sum *s = &j->sum;
    double comm = s->hidden_us + s->exposed_us;
    char line[512], span[CDI_PLACES_SPAN];
    size_t used = 0;

    if (s->n == 0)
        return CDDP_OK;
    add(line, &used, "%zu rank%s, ", s->n, plural_of(s->n));
    if (s->by_place[CDI_PLACE_OUTSIDE] == s->n)
        add(line, &used, "none of which uses libcddp");
    else if (s->min_step == s->max_step)
        add(line, &used, "%" PRIu64 " step%s done", s->min_step, plural_of(s->min_step));
    else
        add(line, &used, "%" PRIu64 " to %" PRIu64 " steps done", s->min_step, s->max_step);
    if (s->step_us > 0)
        add(line, &used,
            "; a step takes %s (%.3g per second), communication %.0f %% (exposed %.0f %%), waiting %.0f %%",
            cdi_places_span(span, s->step_us), s->steps_per_s, 100 * comm / s->step_us,
            100 * s->exposed_us / s->step_us, 100 * s->late_us / s->step_us);
    else if (s->n_timed > 0)
        add(line, &used, "; no step has ended for %s", cdi_places_span(span, (double)s->step_age_ms * 1e3));
    if (s->step_us > 0 && s->slowest >= 0)
        add(line, &used, ", mostly for rank %d", s->slowest);
    if (s->n_gpus > 0)
        add(line, &used, "; GPU load %.0f %%", 100 * s->gpu_load);
    return put_line(out, line, columns);
}

/* Names a node that does not answer, or counts them. */
static cddp_status put_silent(const struct page_job *j, struct cdi_buf *out, size_t columns)
{
    const struct page_node *first = NULL;
    char line[512], span[CDI_PLACES_SPAN];
    size_t silent = 0;

    for (size_t i = 0; i < j->n_nodes; i++)
        if (!j->node[i].answered && silent++ == 0)
            first = &j->node[i];
    if (first == NULL)
        return CDDP_OK;
    if (silent > 1)
        (void)snprintf(line, sizeof line, "%zu nodes, such as %" PRId32 " (%.200s), did not answer", silent,
                       first->node_rank, first->host);
    else if (first->ms_ago < 0)
        (void)snprintf(line, sizeof line, "node %" PRId32 " (%.200s) did not answer; where its ranks are is not known",
                       first->node_rank, first->host);
    else
        (void)snprintf(line, sizeof line, "node %" PRId32 " (%.200s) did not answer; its ranks are shown as %s ago",
                       first->node_rank, first->host, cdi_places_span(span, (double)first->ms_ago * 1e3));
    return put_line(out, line, columns);
}

static cddp_status put_job(const struct page_job *j, size_t columns, struct cdi_buf *out)
{
    cddp_status st = put_head(j, out, columns);

    if (st == CDDP_OK)
        st = put_groups(j, out, columns);
    if (st == CDDP_OK)
        st = put_totals(j, out, columns);
    return st == CDDP_OK ? put_silent(j, out, columns) : st;
}

cddp_status where_text(json_t *reply, size_t rows, size_t columns, struct cdi_buf *out, struct cdi_error *err)
{
    size_t n = json_array_size(json_object_get(reply, "jobs")), each = n == 0 ? rows : rows / n;
    struct reply_jobs jobs;
    cddp_status st, written = CDDP_OK;

    each = each < 2 ? 2 : each > PAGE_GROUPS_MAX ? PAGE_GROUPS_MAX : each;
    st = reply_read(reply, true, each, &jobs, err);
    if (st == CDDP_OK && jobs.n == 0)
        written = cdi_buf_printf(out, "no jobs\n");
    for (size_t i = 0; st == CDDP_OK && written == CDDP_OK && i < jobs.n; i++) {
        if (i > 0)
            written = cdi_buf_put_u8(out, '\n');
        if (written == CDDP_OK)
            written = put_job(&jobs.v[i].facts, columns, out);
    }
    if (written != CDDP_OK)
        st = cdi_fail(err, written, "out of memory for the text");
    reply_release(&jobs);
    return st;
}
