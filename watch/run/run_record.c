/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/run/run_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NONE (-1)

struct run_record *run_record_new(int64_t wall_ms)
{
    struct run_record *rr = calloc(1, sizeof *rr);

    if (rr == NULL)
        return NULL;
    rr->began_ms = wall_ms;
    rr->now_ms = wall_ms;
    rr->span_ms = RUN_RECORD_SPAN_MS;
    rr->ranks_each = 1;
    rr->leader = NONE;
    return rr;
}

void run_record_free(struct run_record *rr)
{
    if (rr == NULL)
        return;
    free(rr->rounds);
    free(rr->events);
    free(rr->failures);
    free(rr);
}

void run_record_time(struct run_record *rr, int64_t wall_ms)
{
    if (wall_ms > rr->now_ms)
        rr->now_ms = wall_ms;
}

static int64_t clamp(const struct run_record *rr, int64_t wall_ms)
{
    return wall_ms < rr->began_ms ? rr->began_ms : wall_ms > rr->now_ms ? rr->now_ms : wall_ms;
}

/* ------------------------------------------------------------------------------------------------------ sums ---- */

static int64_t no_less_than_0(int64_t ns)
{
    return ns > 0 ? ns : 0;
}

/* A number from another node may be anything: the sum stops at its maximum. */
static void add_ns(int64_t *sum, int64_t ns)
{
    if (__builtin_add_overflow(*sum, no_less_than_0(ns), sum))
        *sum = INT64_MAX;
}

static void add_step(struct run_record_sums *to, const struct cdi_flight_step *s)
{
    int64_t period;

    if (__builtin_sub_overflow(s->end_ns, s->begun_ns, &period))
        period = 0;
    to->n++;
    add_ns(&to->period_ns, period);
    add_ns(&to->comm_ns, s->comm_ns);
    add_ns(&to->exposed_ns, s->exposed_ns);
    add_ns(&to->late_ns, s->late_ns);
}

static void merge_sums(struct run_record_sums *to, const struct run_record_sums *from)
{
    to->n += from->n;
    add_ns(&to->period_ns, from->period_ns);
    add_ns(&to->comm_ns, from->comm_ns);
    add_ns(&to->exposed_ns, from->exposed_ns);
    add_ns(&to->late_ns, from->late_ns);
}

/* ------------------------------------------------------------------------------------------------------ time ---- */

static void double_spans(struct run_record *rr)
{
    for (size_t i = 0; i < RUN_RECORD_SPANS; i += 2) {
        struct run_record_span both = rr->spans[i];

        both.steps += rr->spans[i + 1].steps;
        merge_sums(&both.sums, &rr->spans[i + 1].sums);
        rr->spans[i / 2] = both;
    }
    memset(&rr->spans[RUN_RECORD_SPANS / 2], 0, RUN_RECORD_SPANS / 2 * sizeof rr->spans[0]);
    rr->span_ms *= 2;
}

static size_t span_at(struct run_record *rr, int64_t wall_ms)
{
    int64_t ms = clamp(rr, wall_ms) - rr->began_ms;

    while (ms / rr->span_ms >= RUN_RECORD_SPANS)
        double_spans(rr);
    return (size_t)(ms / rr->span_ms);
}

/* Spreads n steps evenly over the time from `from_ms` to `to_ms`. */
static void spread_steps(struct run_record *rr, uint64_t n, int64_t from_ms, int64_t to_ms)
{
    size_t last = span_at(rr, to_ms), first; /* the later one first: it may change the length of all */

    from_ms = clamp(rr, from_ms) - rr->began_ms;
    to_ms = clamp(rr, to_ms) - rr->began_ms;
    first = (size_t)(from_ms / rr->span_ms);
    rr->n_steps += n;
    if (first >= last) {
        rr->spans[last].steps += (double)n;
        return;
    }
    for (size_t i = first; i <= last; i++) {
        int64_t low = (int64_t)i * rr->span_ms, high = low + rr->span_ms;
        int64_t part = (high < to_ms ? high : to_ms) - (low > from_ms ? low : from_ms);

        rr->spans[i].steps += (double)n * (double)part / (double)(to_ms - from_ms);
    }
}

/* Notes that this rank has completed n steps in its round; a smaller number than before begins anew. */
static void count_steps(struct run_record *rr, uint32_t rank, uint64_t n, int64_t wall_ms)
{
    if (rr->leader == NONE) {
        rr->leader = rank;
        rr->leader_next = 0; /* in each process the steps begin with 0 */
        rr->leader_end_ms = rr->n_rounds > 0 ? rr->rounds[rr->n_rounds - 1].began_ms : wall_ms;
    }
    if (rr->leader != rank)
        return;
    if (n > rr->leader_next)
        spread_steps(rr, n - rr->leader_next, rr->leader_end_ms, wall_ms);
    rr->leader_next = n;
    rr->leader_end_ms = wall_ms;
}

/* ----------------------------------------------------------------------------------------------------- ranks ---- */

static void share_lines(struct run_record *rr)
{
    for (size_t i = 0; i < RUN_RECORD_RANKS; i += 2) {
        struct run_record_rank both = rr->ranks[i];

        merge_sums(&both.sums, &rr->ranks[i + 1].sums);
        both.n_late += rr->ranks[i + 1].n_late;
        add_ns(&both.caused_ns, rr->ranks[i + 1].caused_ns);
        rr->ranks[i / 2] = both;
    }
    memset(&rr->ranks[RUN_RECORD_RANKS / 2], 0, RUN_RECORD_RANKS / 2 * sizeof rr->ranks[0]);
    rr->n_ranks = (rr->n_ranks + 1) / 2;
    rr->ranks_each *= 2;
}

static struct run_record_rank *line_of(struct run_record *rr, uint32_t rank)
{
    uint32_t i;

    while (rank / rr->ranks_each >= RUN_RECORD_RANKS)
        share_lines(rr);
    i = rank / rr->ranks_each;
    if (i >= rr->n_ranks)
        rr->n_ranks = i + 1;
    return &rr->ranks[i];
}

void run_record_step(struct run_record *rr, uint32_t rank, const struct cdi_flight_step *step, int64_t wall_ms)
{
    uint32_t world = rr->n_rounds > 0 ? rr->rounds[rr->n_rounds - 1].world_size : 0;

    if (rank >= world || step->step == UINT64_MAX)
        return;
    wall_ms = clamp(rr, wall_ms);
    count_steps(rr, rank, step->step + 1, wall_ms);
    add_step(&rr->spans[span_at(rr, wall_ms)].sums, step);
    add_step(&line_of(rr, rank)->sums, step);
    if (step->late_rank >= 0 && (uint32_t)step->late_rank < world) {
        struct run_record_rank *late = line_of(rr, (uint32_t)step->late_rank);

        late->n_late++;
        add_ns(&late->caused_ns, step->late_ns);
    }
}

void run_record_count(struct run_record *rr, uint32_t rank, uint64_t n, int64_t wall_ms)
{
    if (n > 0)
        count_steps(rr, rank, n, clamp(rr, wall_ms));
}

/* ------------------------------------------------------------------------------------------ rounds and events ---- */

/* Returns room for one more element, all zero; NULL: the limit is reached, or out of memory, and it is counted. */
static void *add_one(void **list, size_t *n, size_t *lost, size_t max, size_t size)
{
    size_t room = *n == 0 ? 0 : 1;
    void *more;

    while (room < *n)
        room *= 2;
    if (*n >= max) {
        *lost += 1;
        return NULL;
    }
    if (*n == room) {
        more = realloc(*list, (room == 0 ? 1 : 2 * room) * size);
        if (more == NULL) {
            *lost += 1;
            return NULL;
        }
        *list = more;
    }
    more = (char *)*list + *n * size;
    memset(more, 0, size);
    *n += 1;
    return more;
}

void run_record_round(struct run_record *rr, const struct cdi_msg_assign *assign, int64_t wall_ms)
{
    struct run_record_round *r;
    void *list = rr->rounds;

    run_record_round_over(rr, false, "", wall_ms);
    r = add_one(&list, &rr->n_rounds, &rr->n_rounds_lost, RUN_RECORD_ROUNDS, sizeof *r);
    rr->rounds = list;
    rr->leader = NONE;
    if (r == NULL && rr->n_rounds > 0)
        r = &rr->rounds[rr->n_rounds - 1];
    if (r == NULL)
        return;
    *r = (struct run_record_round){.round = assign->round,
                                   .restart_count = assign->restart_count,
                                   .n_nodes = assign->n_nodes,
                                   .world_size = assign->world_size,
                                   .began_ms = clamp(rr, wall_ms)};
}

void run_record_round_over(struct run_record *rr, bool failed, const char *text, int64_t wall_ms)
{
    struct run_record_round *r = rr->n_rounds > 0 ? &rr->rounds[rr->n_rounds - 1] : NULL;

    if (r == NULL || r->ended_ms != 0)
        return;
    r->ended_ms = clamp(rr, wall_ms);
    r->failed = failed;
    (void)snprintf(r->text, sizeof r->text, "%s", text);
}

void run_record_event(struct run_record *rr, const char *kind, const char *text, int64_t wall_ms)
{
    void *list = rr->events;
    struct run_record_event *e = add_one(&list, &rr->n_events, &rr->n_events_lost, RUN_RECORD_EVENTS, sizeof *e);

    rr->events = list;
    if (e == NULL)
        return;
    e->time_ms = clamp(rr, wall_ms);
    (void)snprintf(e->kind, sizeof e->kind, "%s", kind);
    (void)snprintf(e->text, sizeof e->text, "%s", text);
}

static bool is_same(const struct cdi_failure *a, const struct cdi_failure *b)
{
    return a->kind == b->kind && a->rank == b->rank && a->pid == b->pid && a->time_ms == b->time_ms &&
           a->node_rank == b->node_rank;
}

void run_record_failure(struct run_record *rr, const struct cdi_failure *f)
{
    struct cdi_failure *to;
    void *list = rr->failures;

    if (f->kind == CDI_END_NONE)
        return;
    for (size_t i = 0; i < rr->n_failures; i++)
        if (is_same(&rr->failures[i], f))
            return;
    to = add_one(&list, &rr->n_failures, &rr->n_failures_lost, RUN_RECORD_FAILURES, sizeof *to);
    rr->failures = list;
    if (to != NULL)
        *to = *f;
}
