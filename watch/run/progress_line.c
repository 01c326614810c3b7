/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/run/progress_line.h"

#include "protocol/places.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HUNDRED 100

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
    struct progress_facts f = {.n_ranks = (uint32_t)r->n_ranks, .hidden_percent = -1, .late_rank = -1};
    struct cdi_places_sum sum;
    struct cdi_placed *ranks = calloc(r->n_ranks + 1, sizeof *ranks);

    if (ranks != NULL) {
        for (size_t i = 0; i < r->n_ranks; i++)
            ranks[i].r = &r->ranks[i];
        cdi_places_sum(ranks, r->n_ranks, &sum);
        f.step = sum.by_place[CDI_PLACE_OUTSIDE] > 0 ? 0 : sum.min_step; /* 0: one has not begun */
        f.hidden_percent = cdi_places_hidden(&sum);
        f.late_rank = sum.slowest;
    }
    free(ranks);
    f.rate = rate_of(p, f.step, now_ms);
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
