/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/stats.h"

#include "common/clock.h"
#include "worker/base/sized.h"
#include "worker/reducer/layout/stats.h"

#include <cddp/experimental/ddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED 2 /* parameters of a bucket that the flight page names */

struct cdi_ddp_stats {
    cddp_ddp_stats sum;
    int64_t begun_ns, first_ns, now_ns; /* the step before has ended; first gradient (0: none yet); the last reading */
    struct cdi_bucket_times *buckets;   /* scratch, as the next two */
    struct cdi_interval *comm;
    int64_t *by_rank;
    size_t room;          /* of buckets and comm */
    int64_t *late_ns;     /* by rank: how long this rank has waited for it */
    uint64_t *late_steps; /* and in how many steps for it the longest */
    int n_ranks;
    int rank; /* of the job; it waits for others only */
};

/* The page of the agent, also for a part's reducer; NULL: none. */
static struct cdi_flight *page_of(const cddp_ddp *d)
{
    return cdi_comm_world(d->comm)->flight;
}

/* Returns the number of ranks of the job, as far as this communicator knows them: late ranks are ranks of the job. */
static int ranks_of_job(const struct cdi_world *w)
{
    int n = w->size;

    for (int r = 0; w->ranks != NULL && r < w->size; r++)
        n = w->ranks[r] >= n ? w->ranks[r] + 1 : n;
    return n;
}

cddp_status cdi_stats_create(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_ddp_stats *s;

    if (page_of(d) == NULL || !cdi_flight_is_timed(page_of(d)))
        return CDDP_OK;
    s = d->stats = calloc(1, sizeof *s);
    if (s == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the times of steps");
    s->sum.slowest_rank = s->sum.last_slowest_rank = -1;
    s->n_ranks = ranks_of_job(cdi_comm_world(d->comm));
    s->rank = cdi_rank_of_job(cdi_comm_world(d->comm), cdi_comm_world(d->comm)->rank);
    s->by_rank = calloc((size_t)s->n_ranks, sizeof *s->by_rank);
    s->late_ns = calloc((size_t)s->n_ranks, sizeof *s->late_ns);
    s->late_steps = calloc((size_t)s->n_ranks, sizeof *s->late_steps);
    if (s->by_rank == NULL || s->late_ns == NULL || s->late_steps == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for the times of %d ranks", s->n_ranks);
    return CDDP_OK;
}

void cdi_stats_release(cddp_ddp *d)
{
    struct cdi_ddp_stats *s = d->stats;

    if (s == NULL)
        return;
    free(s->buckets);
    free(s->comm);
    free(s->by_rank);
    free(s->late_ns);
    free(s->late_steps);
    free(s);
    d->stats = NULL;
}

void cdi_stats_first(cddp_ddp *d)
{
    if (d->stats != NULL)
        d->stats->first_ns = d->stats->now_ns = cdi_now_ticks_ns();
}

int64_t cdi_stats_ready(cddp_ddp *d, size_t i)
{
    const struct cdi_grad *g = &d->plan.grads[i];
    struct cdi_ddp_stats *s = d->stats;
    int64_t now_ns;

    if (s == NULL)
        return 0;
    now_ns = s->now_ns; /* of this call, if this is the step's first gradient */
    s->now_ns = 0;
    for (size_t b = g->bucket; b < g->bucket + g->n_parts; b++) {
        if (d->plan.b[b].state != CDI_BUCKET_READY)
            continue;
        if (now_ns == 0)
            now_ns = cdi_now_ticks_ns();
        d->flight[b].ready_ns = now_ns;
    }
    return now_ns;
}

/* ------------------------------------------------------------------------------------------------ a step's end ---- */

/* Makes room for the buckets of the plan. false: there is no memory, and the step is not counted. */
static bool make_room(struct cdi_ddp_stats *s, size_t n)
{
    if (s->room >= n)
        return true;
    free(s->buckets);
    free(s->comm);
    s->buckets = calloc(n, sizeof *s->buckets);
    s->comm = calloc(n, sizeof *s->comm);
    s->room = s->buckets != NULL && s->comm != NULL ? n : 0;
    return s->room >= n;
}

static uint64_t take_times(cddp_ddp *d)
{
    struct cdi_ddp_stats *s = d->stats;
    uint64_t bytes = 0;

    for (size_t b = 0; b < d->plan.n; b++) {
        struct cdi_ddp_flight *f = &d->flight[b];

        s->buckets[b] = (struct cdi_bucket_times){.ready = f->ready_ns,
                                                  .started = f->times.started_ns,
                                                  .arrived = f->times.arrived_ns,
                                                  .done = f->times.done_ns,
                                                  .thread = f->times.thread_ns,
                                                  .late_rank = f->times.late_rank == s->rank ? -1 : f->times.late_rank};
        bytes += f->skipped ? 0 : d->plan.b[b].bytes;
        f->times = (struct cdi_coll_times){.late_rank = -1};
        f->ready_ns = 0;
    }
    return bytes;
}

static void add_step(struct cdi_ddp_stats *s, const struct cdi_step_shares *step, uint64_t bytes)
{
    cddp_ddp_stats *sum = &s->sum;

    sum->steps++;
    sum->step_ns += sum->last_step_ns = step->step;
    sum->forward_ns += sum->last_forward_ns = step->forward;
    sum->backward_ns += sum->last_backward_ns = step->backward;
    sum->comm_ns += sum->last_comm_ns = step->comm;
    sum->exposed_ns += sum->last_exposed_ns = step->exposed;
    sum->hidden_ns += sum->last_hidden_ns = step->comm - step->exposed;
    sum->thread_ns += sum->last_thread_ns = step->thread;
    sum->late_ns += sum->last_late_ns = step->late;
    sum->bytes += sum->last_bytes = bytes;
    sum->last_slowest_rank = step->late_rank;
    if (step->late_rank < 0)
        return;
    s->late_ns[step->late_rank] += step->late;
    s->late_steps[step->late_rank]++;
    if (sum->slowest_rank < 0 || s->late_ns[step->late_rank] > s->late_ns[sum->slowest_rank])
        sum->slowest_rank = step->late_rank;
    sum->slowest_steps = s->late_steps[sum->slowest_rank];
}

/* Counts a step that has begun with a gradient of this rank. */
static void count_step(cddp_ddp *d)
{
    struct cdi_ddp_stats *s = d->stats;
    struct cdi_flight_step record = {.step = d->step, .n_buckets = (uint32_t)d->plan.n};
    struct cdi_step_times t = {.begun = s->begun_ns,
                               .first = s->first_ns,
                               .end = d->waits.n > 0 ? d->waits.of[d->waits.n - 1].end_ns : cdi_now_ticks_ns(),
                               .buckets = s->buckets,
                               .n_buckets = d->plan.n,
                               .comm = s->comm,
                               .n_waits = d->waits.n,
                               .by_rank = s->by_rank,
                               .n_ranks = s->n_ranks};
    struct cdi_interval waits[CDI_DDP_WAITS];
    struct cdi_step_shares shares;
    uint64_t bytes = take_times(d);

    for (size_t i = 0; i < d->waits.n; i++)
        waits[i] = (struct cdi_interval){.begin = d->waits.of[i].begin_ns, .end = d->waits.of[i].end_ns};
    t.waits = waits;
    shares = cdi_step_shares_of(&t);
    if (t.begun != 0) /* the first step has no beginning */
        add_step(s, &shares, bytes);
    record.begun_ns = t.begun != 0 ? t.begun : t.first;
    record.end_ns = t.end;
    record.comm_ns = shares.comm;
    record.exposed_ns = shares.exposed;
    record.late_ns = shares.late;
    record.late_rank = shares.late_rank;
    cdi_flight_step_done(page_of(d), &record);
    s->begun_ns = t.end;
}

void cdi_stats_step(cddp_ddp *d)
{
    struct cdi_ddp_stats *s = d->stats;

    if (s != NULL && s->first_ns != 0 && make_room(s, d->plan.n)) {
        count_step(d);
    } else {
        if (s != NULL)
            s->begun_ns = 0;
        if (page_of(d) != NULL)
            cdi_flight_step(page_of(d), d->step + 1);
    }
    if (s != NULL)
        s->first_ns = s->now_ns = 0;
    d->waits.n = 0;
}

/* --------------------------------------------------------------------------------------------------- buckets ---- */

/* Writes "layer1.weight, layer1.bias and 3 more". */
static void name_parameters(const cddp_ddp *d, size_t b, char buf[CDI_FLIGHT_NAMES])
{
    size_t n = 0, at = 0;

    buf[0] = '\0';
    for (size_t i = 0; i < d->n_params; i++) {
        const struct cdi_grad *g = &d->plan.grads[i];

        if (b < g->bucket || b >= g->bucket + g->n_parts)
            continue;
        if (n++ < NAMED)
            at += (size_t)snprintf(buf + at, CDI_FLIGHT_NAMES - at, "%s%.48s", n == 1 ? "" : ", ", d->params[i].name);
    }
    if (n > NAMED)
        (void)snprintf(buf + at, CDI_FLIGHT_NAMES - at, " and %zu more", n - NAMED);
}

void cdi_stats_planned(cddp_ddp *d)
{
    char names[CDI_FLIGHT_NAMES];

    for (size_t b = 0; b < CDI_FLIGHT_BUCKETS && page_of(d) != NULL; b++) {
        if (b < d->plan.n)
            name_parameters(d, b, names);
        else
            names[0] = '\0';
        cdi_flight_set_names(page_of(d), (int)b, names);
    }
    if (d->stats != NULL && d->step > 0)
        d->stats->sum.rebuilds++;
}

void cdi_stats_read(cddp_ddp *d, cddp_ddp_stats *found)
{
    *found = (cddp_ddp_stats){.slowest_rank = -1, .last_slowest_rank = -1};
    (void)pthread_mutex_lock(&d->lock);
    if (d->stats != NULL)
        *found = d->stats->sum;
    found->n_buckets = d->plan.n;
    for (size_t b = 0; b < d->plan.n; b++) {
        size_t bytes = d->plan.b[b].bytes;

        found->largest_bucket_bytes = bytes > found->largest_bucket_bytes ? bytes : found->largest_bucket_bytes;
        found->bucket_bytes += bytes;
    }
    found->size = sizeof *found;
    (void)pthread_mutex_unlock(&d->lock);
}

cddp_status cddp_ddp_get_stats(cddp_ddp *ddp, cddp_ddp_stats *stats)
{
    struct cdi_error err;
    cddp_status st = cdi_ddp_check("cddp_ddp_get_stats", ddp, &err);
    cddp_ddp_stats found;

    if (st == CDDP_OK)
        st = cdi_sized_check(stats, "cddp_ddp_stats", &err);
    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    cdi_stats_read(ddp, &found);
    cdi_sized_put(stats, &found, sizeof found);
    return CDDP_OK;
}
