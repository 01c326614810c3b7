/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/charts.h"

#include <stdio.h>

#define WIDE 320.0 /* of the drawing, in its own units */
#define TOP 16.0   /* the curve's highest point */
#define BASE 84.0  /* the axis */
#define SPAN_LEAST_MS 60000
#define GAP_MS 15000 /* more than usual between two samples: no agent has answered, and the curve has a gap */

/* ------------------------------------------------------------------------------------------------- over time ---- */

typedef double (*chart_value)(const struct history_sample *s);

static double rate_of(const struct history_sample *s)
{
    return s->steps_per_s;
}

static double exposed_of(const struct history_sample *s)
{
    return s->exposed_us;
}

static double all_of(const struct history_sample *s)
{
    return s->exposed_us + s->hidden_us;
}

static double highest(const struct history *h, chart_value value)
{
    double most = 0;

    for (size_t i = 0; i < history_count(h); i++)
        most = value(history_at(h, i)) > most ? value(history_at(h, i)) : most;
    return most;
}

static double time_span(const struct page_job *j)
{
    double span = (double)(j->now_ms - history_at(j->history, 0)->at_ms);

    return span < SPAN_LEAST_MS ? SPAN_LEAST_MS : span;
}

/* Appends the points of a run of samples without a gap, which begins at *i; advances *i to its end. */
static void put_run(struct html *h, const struct page_job *j, chart_value value, double most, bool filled, size_t *i)
{
    const struct history *all = j->history;
    int64_t gap_ms = history_every_ms(all) + GAP_MS;
    double span = time_span(j), x = 0, first = 0;
    size_t from = *i, n = history_count(all);

    for (; *i < n && (*i == from || history_at(all, *i)->at_ms - history_at(all, *i - 1)->at_ms <= gap_ms); ++*i) {
        const struct history_sample *s = history_at(all, *i);

        x = WIDE - (double)(j->now_ms - s->at_ms) / span * WIDE;
        if (*i == from && filled)
            html_put(h, "M%.1f,%.1f", first = x, BASE);
        html_put(h, "%s%.1f,%.1f", *i == from && !filled ? "M" : "L", x,
                 BASE - (most > 0 ? value(s) / most : 0) * (BASE - TOP));
    }
    if (filled)
        html_put(h, "L%.1f,%.1fL%.1f,%.1fZ", x, BASE, first, BASE);
}

static void put_curve(struct html *h, const struct page_job *j, const char *class, chart_value value, double most,
                      bool filled)
{
    html_put(h, "<path class=\"%s\" d=\"", class);
    for (size_t i = 0; i < history_count(j->history);)
        put_run(h, j, value, most, filled, &i);
    html_put(h, "\"/>");
}

/* Begins a figure; `label` tells the chart to those who do not see it. */
static void chart_begin(struct html *h, const char *title, const char *label)
{
    html_put(h, "<figure><figcaption>%s</figcaption><svg viewBox=\"0 0 320 100\" role=\"img\" aria-label=\"", title);
    html_text(h, label);
    html_put(h, "\"><path class=\"axis\" d=\"M0,%.1fH320\"/>", BASE);
}

static void chart_end(struct html *h, const char *most, const char *left, const char *right)
{
    html_put(h, "<text x=\"0\" y=\"10\">");
    html_text(h, most);
    html_put(h, "</text><text x=\"0\" y=\"97\">");
    html_text(h, left);
    html_put(h, "</text><text x=\"320\" y=\"97\" class=\"right\">");
    html_text(h, right);
    html_put(h, "</text></svg></figure>\n");
}

static void chart_end_of_time(struct html *h, const struct page_job *j, const char *most)
{
    char ago[CDI_PLACES_SPAN], left[48];

    (void)snprintf(left, sizeof left, "%s ago", cdi_places_span(ago, time_span(j) * 1e3));
    chart_end(h, most, left, "now");
}

void chart_rate(struct html *h, const struct page_job *j)
{
    char label[160], top[64];
    double most, last;

    if (j->history == NULL || history_count(j->history) < 2)
        return;
    most = highest(j->history, rate_of);
    last = history_at(j->history, history_count(j->history) - 1)->steps_per_s;
    (void)snprintf(label, sizeof label, "Steps per second: now %.3g, at most %.3g", last, most);
    (void)snprintf(top, sizeof top, "%.3g per second", most);
    chart_begin(h, "Step rate", label);
    put_curve(h, j, "area", rate_of, most, true);
    put_curve(h, j, "line", rate_of, most, false);
    chart_end_of_time(h, j, top);
}

void chart_communication(struct html *h, const struct page_job *j)
{
    char label[200], hidden[CDI_PLACES_SPAN], exposed[CDI_PLACES_SPAN], top[64], span[CDI_PLACES_SPAN];
    const struct history_sample *last;
    double most;

    if (j->history == NULL || history_count(j->history) < 2 || highest(j->history, all_of) <= 0)
        return;
    most = highest(j->history, all_of);
    last = history_at(j->history, history_count(j->history) - 1);
    (void)snprintf(label, sizeof label, "Communication in a step: now %s hidden by the computation and %s exposed",
                   cdi_places_span(hidden, last->hidden_us), cdi_places_span(exposed, last->exposed_us));
    (void)snprintf(top, sizeof top, "%s per step", cdi_places_span(span, most));
    chart_begin(h,
                "Communication: <span class=\"key hidden\">hidden</span> and <span class=\"key exposed\">exposed"
                "</span>",
                label);
    put_curve(h, j, "hidden", all_of, most, true);
    put_curve(h, j, "exposed", exposed_of, most, true);
    chart_end_of_time(h, j, top);
}

/* -------------------------------------------------------------------------------------------------- per rank ---- */

struct bar {
    int32_t first, last;
    double us;
    bool slowest;
};

/* Makes the bars: each the mean of as many ranks as needed. Returns their number. */
static size_t make_bars(const struct page_job *j, struct bar bars[CHART_BARS])
{
    size_t each = (j->sum.n_timed + CHART_BARS - 1) / CHART_BARS, n = 0, in_bar = 0;

    for (size_t i = 0; i < j->n_nodes; i++)
        for (size_t k = 0; k < j->node[i].n_ranks; k++) {
            const struct cdi_rank_report *r = &j->node[i].ranks[k];

            if (r->step_us == 0)
                continue;
            if (in_bar == 0)
                bars[n++] = (struct bar){.first = r->rank};
            bars[n - 1].last = r->rank;
            bars[n - 1].us += (double)r->late_us / (double)each;
            bars[n - 1].slowest = bars[n - 1].slowest || r->rank == j->sum.slowest;
            in_bar = (in_bar + 1) % each;
        }
    if (in_bar > 0) /* the last one has fewer */
        bars[n - 1].us *= (double)each / (double)in_bar;
    return n;
}

static void put_bar(struct html *h, const struct bar *b, size_t i, size_t n, double most)
{
    char span[CDI_PLACES_SPAN], who[48];
    double width = WIDE / (double)n, high = most > 0 ? b->us / most * (BASE - TOP) : 0;

    (void)cdi_places_span(span, b->us);
    if (b->first == b->last)
        (void)snprintf(who, sizeof who, "rank %d", b->first);
    else
        (void)snprintf(who, sizeof who, "ranks %d to %d", b->first, b->last);
    html_put(h,
             "<rect class=\"bar%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>%s: %s</title></rect>",
             b->slowest ? " slow" : "", (double)i * width, BASE - (high < 1 ? 1 : high), width * (n > 32 ? 0.9 : 0.8),
             high < 1 ? 1 : high, who, span);
    if (b->slowest) /* its bar is low, since the others wait for it */
        html_put(h, "<path class=\"mark\" d=\"M%.1f,%.1fl-4,-7h8z\"/>", (double)i * width + width * 0.4,
                 BASE - (high < 1 ? 1 : high) - 2);
}

void chart_waiting(struct html *h, const struct page_job *j)
{
    struct bar bars[CHART_BARS];
    char label[200], span[CDI_PLACES_SPAN], top[64], left[32] = "", right[32] = "", title[160];
    double most = 0;
    size_t n;

    if (j->sum.n_timed == 0)
        return;
    n = make_bars(j, bars);
    if (n == 0)
        return;
    for (size_t i = 0; i < n; i++)
        most = bars[i].us > most ? bars[i].us : most;
    (void)cdi_places_span(span, most);
    (void)snprintf(top, sizeof top, "%s per step", span);
    if (j->sum.slowest >= 0)
        (void)snprintf(title, sizeof title, "Waiting per rank: mostly for <span class=\"key slow\">rank %d</span>",
                       j->sum.slowest);
    else
        (void)snprintf(title, sizeof title, "Waiting per rank");
    (void)snprintf(label, sizeof label, "Waiting per rank and step: at most %s", span);
    (void)snprintf(left, sizeof left, "rank %d", bars[0].first);
    if (n > 1)
        (void)snprintf(right, sizeof right, "rank %d", bars[n - 1].last);
    chart_begin(h, title, label);
    for (size_t i = 0; i < n; i++)
        put_bar(h, &bars[i], i, n, most);
    chart_end(h, top, left, right);
}
