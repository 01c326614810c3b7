/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/stats.h"

#include "common/clock.h"
#include "common/float_state.h"
#include "worker/base/sized.h"
#include "worker/reducer/layout/stats.h"

#include <cddp/experimental/ddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED 2        /* parameters of a bucket that the flight page names */
#define STEPS_AHEAD 16 /* of a device, that the host has ended */
#define SETTLE_MS 30   /* for the times of the last ones */

/* A step of a device whose times are not known yet: stamps, and tickets of operations. */
struct device_step {
    uint64_t step, bytes, first;
    size_t n_buckets, n_ops, room, n_waits;
    struct {
        uint64_t first, last;
    } * op, wait[CDI_DDP_WAITS];
};

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
    /* On a device: */
    bool stamped;                          /* the first gradient of this step has come */
    uint64_t first;                        /* its stamp; 0: none */
    struct device_step ahead[STEPS_AHEAD]; /* the oldest one in place `oldest` */
    size_t oldest, n_ahead;
    uint64_t next_step; /* the one that begins at begun_ns */
};

/* Returns the agent's page; NULL for the reducer of a part, whose communicator has none. */
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
    for (size_t i = 0; i < STEPS_AHEAD; i++)
        free(s->ahead[i].op);
    free(s);
    d->stats = NULL;
}

void cdi_stats_first(cddp_ddp *d)
{
    if (d->stats != NULL)
        d->stats->first_ns = d->stats->now_ns = cdi_now_ticks_ns();
}

void cdi_stats_first_on(cddp_ddp *d, void *stream)
{
    struct cdi_ddp_stats *s = d->stats;

    if (!cdi_ddp_times_step(d, d->step) || s->stamped)
        return;
    s->stamped = true; /* if there is none, a stamp of a later gradient must not pass for it */
    s->first = d->ops->stamp(d->b, stream);
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

static struct cdi_bucket_times times_of(const struct cdi_ddp_stats *s, const struct cdi_coll_times *t, int64_t ready_ns)
{
    return (struct cdi_bucket_times){.ready = ready_ns,
                                     .started = t->started_ns,
                                     .arrived = t->arrived_ns,
                                     .done = t->done_ns,
                                     .thread = t->thread_ns,
                                     .late_rank = t->late_rank == s->rank ? -1 : t->late_rank};
}

/* How many operations have times: those of all buckets, and after them those of the exchange of parameters. */
static size_t n_timed(const cddp_ddp *d)
{
    return d->sharded ? 2 * d->plan.n : d->plan.n;
}

/* Takes the times of these operations. */
static uint64_t take_times(cddp_ddp *d)
{
    struct cdi_ddp_stats *s = d->stats;
    uint64_t bytes = 0;

    for (size_t b = 0; b < d->plan.n; b++) {
        struct cdi_ddp_flight *f = &d->flight[b];

        s->buckets[b] = times_of(s, &f->times, f->ready_ns);
        if (d->sharded)
            s->buckets[d->plan.n + b] = times_of(s, &f->exchange, 0);
        bytes += f->skipped ? 0 : d->plan.b[b].bytes;
        f->times = f->exchange = (struct cdi_coll_times){.late_rank = -1};
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
    sum->waiting_ns += sum->last_waiting_ns = step->comm - step->transfer;
    sum->transfer_ns += sum->last_transfer_ns = step->transfer;
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
                               .n_buckets = n_timed(d),
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
    record.transfer_ns = shares.transfer;
    record.late_ns = shares.late;
    record.late_rank = shares.late_rank;
    cdi_flight_step_done(page_of(d), &record);
    s->begun_ns = t.end;
}

/* ---------------------------------------------------------------------------------------- a step of a device ---- */

/* Adds an operation, or several in a row, to a step of a device. */
static void add_op(struct device_step *p, uint64_t first, uint64_t last)
{
    if (first == 0)
        return;
    p->op[p->n_ops].first = first;
    p->op[p->n_ops++].last = last;
}

/*
 * Moves the tickets and stamps of the step that has ended to *p; of one that is not measured only the last stamp, where
 * the next step begins. Returns false if some of them are missing, or without memory for them.
 */
static bool take_step(cddp_ddp *d, struct device_step *p)
{
    const struct cdi_ddp_stats *s = d->stats;
    bool timed = cdi_ddp_times_step(d, d->step), known = (s->first != 0 || !timed) && d->waits.n > 0;

    if (p->room < n_timed(d)) {
        free(p->op);
        p->op = calloc(n_timed(d), sizeof *p->op);
        p->room = p->op != NULL ? n_timed(d) : 0;
    }
    if (p->op == NULL)
        return false;
    p->step = d->step;
    p->first = s->first;
    p->n_buckets = d->plan.n;
    p->n_ops = p->bytes = 0;
    for (size_t b = 0; b < d->plan.n && timed; b++) {
        const struct cdi_ddp_flight *f = &d->flight[b];

        add_op(p, f->sent[0], f->sent[1]);
        add_op(p, f->exchanged, f->exchanged);
        p->bytes += f->skipped ? 0 : d->plan.b[b].bytes;
    }
    p->n_waits = d->waits.n;
    for (size_t i = 0; i < p->n_waits; i++) {
        p->wait[i].first = d->waits.of[i].begin;
        p->wait[i].last = d->waits.of[i].end;
        known &= (p->wait[i].first != 0 || !timed) && p->wait[i].last != 0;
    }
    return known;
}

/* Reads the times of an operation, or of several in a row. false: the backend does not know them. */
static bool op_times(cddp_ddp *d, uint64_t first, uint64_t last, struct cdi_bucket_times *found)
{
    struct cdi_coll_times begin, end;
    int64_t ready_ns, last_ready_ns;

    d->ops->coll_times(d->b, first, &begin, &ready_ns);
    d->ops->coll_times(d->b, last, &end, &last_ready_ns);
    *found = (struct cdi_bucket_times){.ready = ready_ns > last_ready_ns ? ready_ns : last_ready_ns,
                                       .started = begin.started_ns,
                                       .done = end.done_ns,
                                       .late_rank = -1};
    return begin.started_ns != 0 && end.done_ns != 0;
}

/* Counts a step of a device whose last stamp was read. A step of which anything was not measured is left out. */
static void count_device_step(cddp_ddp *d, const struct device_step *p)
{
    struct cdi_ddp_stats *s = d->stats;
    struct cdi_interval waits[CDI_DDP_WAITS];
    struct cdi_flight_step record = {.step = p->step, .n_buckets = (uint32_t)p->n_buckets, .late_rank = -1};
    struct cdi_step_times t = {.begun = p->step == s->next_step ? s->begun_ns : 0, .waits = waits};
    struct cdi_step_shares shares;
    bool known =
        p->first != 0 && make_room(s, p->n_ops) && d->ops->stamp_time(d->b, p->first, &t.first) && t.first != 0;

    for (size_t i = 0; i < p->n_ops && known; i++)
        known = op_times(d, p->op[i].first, p->op[i].last, &s->buckets[i]);
    for (size_t i = 0; i < p->n_waits && known; i++)
        known = d->ops->stamp_time(d->b, p->wait[i].first, &waits[i].begin) && waits[i].begin != 0 &&
                d->ops->stamp_time(d->b, p->wait[i].last, &waits[i].end) && waits[i].end != 0;
    s->begun_ns = 0;
    (void)d->ops->stamp_time(d->b, p->wait[p->n_waits - 1].last, &s->begun_ns);
    s->next_step = p->step + 1;
    if (!known)
        return;
    t.end = s->begun_ns;
    t.buckets = s->buckets;
    t.n_buckets = p->n_ops;
    t.comm = s->comm;
    t.n_waits = p->n_waits;
    t.by_rank = s->by_rank;
    t.n_ranks = s->n_ranks;
    shares = cdi_step_shares_of(&t);
    if (t.begun != 0)
        add_step(s, &shares, p->bytes);
    record.begun_ns = t.begun != 0 ? t.begun : t.first;
    record.end_ns = t.end;
    record.comm_ns = shares.comm;
    record.exposed_ns = shares.exposed;
    record.transfer_ns = shares.transfer;
    cdi_flight_step_times(page_of(d), &record);
}

/* Counts the steps whose times are known by now. */
static void count_known(cddp_ddp *d)
{
    struct cdi_ddp_stats *s = d->stats;
    int64_t end_ns;

    for (; s->n_ahead > 0; s->n_ahead--, s->oldest = (s->oldest + 1) % STEPS_AHEAD) {
        const struct device_step *p = &s->ahead[s->oldest];

        if (!d->ops->stamp_time(d->b, p->wait[p->n_waits - 1].last, &end_ns))
            return;
        count_device_step(d, p);
    }
}

static void end_device_step(cddp_ddp *d)
{
    struct cdi_ddp_stats *s = d->stats;

    cdi_flight_step(page_of(d), d->step + 1);
    count_known(d);
    if (s->n_ahead < STEPS_AHEAD && take_step(d, &s->ahead[(s->oldest + s->n_ahead) % STEPS_AHEAD]))
        s->n_ahead++;
    for (size_t b = 0; b < d->plan.n; b++)
        d->flight[b].sent[0] = d->flight[b].sent[1] = d->flight[b].exchanged = 0;
    s->stamped = false;
    s->first = 0;
}

void cdi_stats_settle(cddp_ddp *d)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    bool waits = d->stats != NULL && d->ops->stamp != NULL && !cdi_comm_is_over(d->comm);

    for (int i = 0; i < SETTLE_MS && waits; i++) {
        (void)pthread_mutex_lock(&d->lock);
        count_known(d);
        waits = d->stats->n_ahead > 0 && d->sticky.status == CDDP_OK;
        (void)pthread_mutex_unlock(&d->lock);
        if (waits)
            (void)nanosleep(&nap, NULL);
    }
}

void cdi_stats_step(cddp_ddp *d)
{
    struct cdi_ddp_stats *s = d->stats;

    if (s != NULL && d->ops->stamp != NULL) {
        end_device_step(d);
    } else if (s != NULL && s->first_ns != 0 && make_room(s, n_timed(d))) {
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
    d->waits.ticket = 0;
}

/* --------------------------------------------------------------------------------------------------- buckets ---- */

/* Writes "layer1.weight, layer1.bias and 3 more". */
static void name_parameters(const cddp_ddp *d, size_t b, char buf[CDI_FLIGHT_NAMES])
{
    size_t n = 0, at = 0;

    buf[0] = '\0';
    for (size_t k = d->plan.b[b].n_grads; k-- > 0;) {
        size_t i = cdi_bucket_grad(&d->plan, b, k);

        if (i < d->n_params && n++ < NAMED)
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
    if (d->stats != NULL && d->ops->stamp != NULL)
        count_known(d);
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
    CDI_DEFAULT_FLOAT_STATE;
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
