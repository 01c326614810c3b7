/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/output/progress_line.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HUNDRED 100

/* The steps that all ranks have completed; 0 if one has not begun. */
static uint64_t least_step(const struct cdi_node_report *r)
{
    uint64_t least = r->n_ranks > 0 ? r->ranks[0].step : 0;

    for (size_t i = 1; i < r->n_ranks; i++)
        if (r->ranks[i].step < least)
            least = r->ranks[i].step;
    return least;
}

/* The share of communication that no rank waited for; -1: there was none. */
static int hidden_of(const struct cdi_node_report *r)
{
    uint64_t comm = 0, exposed = 0;

    for (size_t i = 0; i < r->n_ranks; i++) {
        comm += r->ranks[i].comm_us;
        exposed += r->ranks[i].exposed_us;
    }
    if (comm == 0)
        return -1;
    return exposed >= comm ? 0 : (int)((comm - exposed) * HUNDRED / comm);
}

/* The rank that was named most often. */
static int32_t late_of(const struct cdi_node_report *r)
{
    uint64_t most = 0;
    int32_t late = -1;

    for (size_t i = 0; i < r->n_ranks; i++) {
        uint64_t n = 0;

        for (size_t k = 0; r->ranks[i].late_rank >= 0 && k < r->n_ranks; k++)
            if (r->ranks[k].late_rank == r->ranks[i].late_rank)
                n += r->ranks[k].late_count;
        if (n > most) {
            most = n;
            late = r->ranks[i].late_rank;
        }
    }
    return late;
}

/* The rate since the oldest point that is not too old. */
static double rate_of(struct progress_line *p, uint64_t step, int64_t now_ms)
{
    size_t newest = (p->n_points + PROGRESS_LINE_POINTS - 1) % PROGRESS_LINE_POINTS, n;
    double rate = -1;

    if (p->n_points > 0 && step < p->points[newest].step)
        p->n_points = 0; /* a new round */
    n = p->n_points < PROGRESS_LINE_POINTS ? p->n_points : PROGRESS_LINE_POINTS;
    for (size_t i = n; i > 0 && rate < 0; i--) {
        size_t at = (p->n_points - i) % PROGRESS_LINE_POINTS;
        int64_t ms = now_ms - p->points[at].ms;

        if (ms > 0 && (ms <= PROGRESS_LINE_RATE_MS || i == 1))
            rate = (double)(step - p->points[at].step) * 1000 / (double)ms;
    }
    p->points[p->n_points % PROGRESS_LINE_POINTS].ms = now_ms;
    p->points[p->n_points % PROGRESS_LINE_POINTS].step = step;
    p->n_points++;
    return rate;
}

struct progress_facts progress_line_note(struct progress_line *p, const struct cdi_node_report *r, int64_t now_ms)
{
    struct progress_facts f = {.n_ranks = (uint32_t)r->n_ranks, .step = least_step(r)};

    f.rate = rate_of(p, f.step, now_ms);
    f.hidden_percent = hidden_of(r);
    f.late_rank = late_of(r);
    return f;
}

enum part { STEP, RATE, HIDDEN, SLOWEST, RESTARTS, ELAPSED, N_PARTS };

static void write_part(const struct progress_facts *f, enum part part, char *to, size_t cap)
{
    int64_t s = f->elapsed_ms > 0 ? f->elapsed_ms / 1000 : 0;

    to[0] = '\0';
    if (part == STEP && f->step > 0)
        (void)snprintf(to, cap, "step %" PRIu64, f->step);
    else if (part == STEP)
        (void)snprintf(to, cap, "%" PRIu32 " rank%s", f->n_ranks, f->n_ranks == 1 ? "" : "s");
    else if (part == RATE && f->step > 0 && f->rate >= 0)
        (void)snprintf(to, cap, f->rate < HUNDRED ? "%.1f steps/s" : "%.0f steps/s", f->rate);
    else if (part == HIDDEN && f->hidden_percent >= 0)
        (void)snprintf(to, cap, "%d %% of communication hidden", f->hidden_percent);
    else if (part == SLOWEST && f->late_rank >= 0)
        (void)snprintf(to, cap, "slowest rank %" PRId32, f->late_rank);
    else if (part == RESTARTS && f->restarts > 0)
        (void)snprintf(to, cap, "%" PRIu32 " restart%s", f->restarts, f->restarts == 1 ? "" : "s");
    else if (part == ELAPSED)
        (void)snprintf(to, cap, "%02" PRId64 ":%02d:%02d", s / 3600, (int)(s / 60 % 60), (int)(s % 60));
}

const char *progress_line_text(const struct progress_facts *f, unsigned columns, char buf[PROGRESS_LINE_MAX])
{
    static const enum part first_to_go[] = {SLOWEST, HIDDEN, RESTARTS, ELAPSED, RATE, STEP};
    char parts[N_PARTS][40];
    size_t len = 0, room = columns < PROGRESS_LINE_MAX ? columns : PROGRESS_LINE_MAX, total = 0;

    for (int i = 0; i < N_PARTS; i++) {
        write_part(f, (enum part)i, parts[i], sizeof parts[i]);
        total += parts[i][0] != '\0' ? strlen(parts[i]) + 2 : 0;
    }
    for (int i = 0; i < N_PARTS && total > room + 1; i++) {
        total -= parts[first_to_go[i]][0] != '\0' ? strlen(parts[first_to_go[i]]) + 2 : 0;
        parts[first_to_go[i]][0] = '\0';
    }
    buf[0] = '\0';
    for (int i = 0; i < N_PARTS; i++)
        if (parts[i][0] != '\0')
            len += (size_t)snprintf(buf + len, PROGRESS_LINE_MAX - len, "%s%s", len > 0 ? ", " : "", parts[i]);
    return buf;
}
