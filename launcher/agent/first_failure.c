/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/first_failure.h"

#include "common/clock.h"
#include "launcher/agent/worker_end.h"

#include <sys/stat.h>
#include <time.h>

#define FILE_CLOCK_MS 20     /* the most by which the time of a file is early: the kernel takes it from its last tick */
#define FOLLOWS_WAIT_MS 2000 /* wait this long for the cause of a failure that follows from another */
#define ENDS_WAIT_MS 5000    /* wait this long for the end of a worker that crashes or has noted a failure */

static int32_t missed_by(const struct worker *w)
{
    struct cdi_flight_view view = {.missed_rank = -1};

    if (w->flight != NULL)
        cdi_flight_read(w->flight, &view);
    return view.missed_rank;
}

static bool is_here(const struct worker_group *c, int32_t rank)
{
    return rank >= 0 && (uint32_t)rank >= c->opt.assign.rank_base && (uint32_t)rank - c->opt.assign.rank_base < c->n;
}

struct worker *first_failure_succeeded(struct worker_group *c, int32_t rank)
{
    struct worker *w = is_here(c, rank) ? &c->workers[(uint32_t)rank - c->opt.assign.rank_base] : NULL;

    return w != NULL && w->reported && w->pid > 0 && w->exec_errno == 0 && worker_end_succeeded(w) ? w : NULL;
}

struct worker *first_failure_find_missed(struct worker_group *c)
{
    struct worker *found = NULL;

    for (uint32_t i = 0; i < c->n && found == NULL; i++)
        found = first_failure_succeeded(c, missed_by(&c->workers[i]));
    return found;
}

uint32_t first_failure_missed_elsewhere(const struct worker_group *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        int32_t rank = missed_by(&c->workers[i]);

        if (rank >= 0 && (uint32_t)rank < c->opt.assign.world_size && !is_here(c, rank))
            return (uint32_t)rank + 1;
    }
    return 0;
}

/* Gets the time at which the worker wrote its error file. */
static bool noted_at(struct worker_group *c, const struct worker *w, struct timespec *at)
{
    struct stat sb;

    logs_error_file(c->opt.logs, w->local_rank, c->error_file);
    if (stat(c->error_file, &sb) != 0 || sb.st_size == 0)
        return false;
    *at = sb.st_mtim;
    return true;
}

struct suspect first_failure_suspect(struct worker_group *c, struct worker *w)
{
    const int64_t now_ms = cdi_now_ms();
    struct suspect s = {.w = w, .cause = {.kind = CDI_END_EXIT, .code = w->exit_code, .rank = w->rank}};
    struct cdi_flight_error e;
    struct timespec at;
    int64_t noted_ms;

    (void)worker_end_error(w, WORKER_END_ERROR_MS, &e);
    s.cause.error = e.status;
    s.cause.blamed = missed_by(w) >= 0 ? missed_by(w) : e.blamed;
    s.cause.at_ms = w->exited ? w->ended_ms : now_ms;
    if (w->exited && c->end_signal != 0 && w->ended_ms >= c->end_ms)
        s.cause.ordered = c->end_signal;
    if (w->exec_errno != 0)
        s.cause.kind = CDI_END_SPAWN;
    else if (w->exit_signal != 0) {
        s.cause.kind = CDI_END_SIGNAL;
        s.cause.code = w->exit_signal;
    }
    s.noted = !worker_end_succeeded(w) && noted_at(c, w, &at);
    if (!s.noted)
        return s;
    noted_ms = now_ms - cdi_wall_ms() + (int64_t)at.tv_sec * 1000 + at.tv_nsec / 1000000 + FILE_CLOCK_MS;
    s.cause.recorded = true;
    if (noted_ms < s.cause.at_ms)
        s.cause.at_ms = noted_ms;
    return s;
}

static void keep_preceding_suspect(struct suspect *best, const struct suspect *s)
{
    if (best->w == NULL || cdi_cause_precedes(&s->cause, &best->cause))
        *best = *s;
}

/*
 * Returns whether w, which still runs, has crashed, and fills in *s if so. A process with many threads, or one that
 * dumps a core, takes long to end.
 */
static bool is_crashing(struct worker_group *c, struct worker *w, struct suspect *s)
{
    struct output *o = &c->outputs[w->local_rank];
    struct cdi_flight_crash note;
    enum cdi_crash_state state;

    if (w->flight == NULL)
        return false;
    state = cdi_crash_look(cdi_flight_crash(w->flight), &note);
    if ((state != CDI_CRASH_WAITS && state != CDI_CRASH_UNREACHED) || note.pid != w->pid)
        return false;
    if (o->crash_ms == 0)
        o->crash_ms = cdi_now_ms();
    *s = first_failure_suspect(c, w);
    s->cause.kind = CDI_END_SIGNAL;
    s->cause.code = note.signal;
    s->cause.at_ms = o->crash_ms;
    return true;
}

void first_failure_suspect_running(struct worker_group *c, const struct cdi_cause *because, bool noted,
                                   struct suspect *best)
{
    const bool follows = cdi_cause_class_of(because) == CDI_CAUSE_FOLLOWS;
    struct cdi_flight_error e;
    struct suspect s;

    for (uint32_t i = 0; i < c->n; i++) {
        struct worker *w = &c->workers[i];

        if (w->exited || w->pid <= 0)
            continue;
        if (is_crashing(c, w, &s)) {
            keep_preceding_suspect(best, &s);
            continue;
        }
        s = first_failure_suspect(c, w);
        if ((s.noted && (noted || follows)) ||
            (follows && because->blamed == w->rank && worker_end_error(w, WORKER_END_LATE_ERROR_MS, &e)))
            keep_preceding_suspect(best, &s);
    }
}

struct suspect first_failure_find(struct worker_group *c, struct worker **by)
{
    struct suspect best = {.w = NULL}, s;
    struct worker *missed;

    for (uint32_t i = 0; i < c->n; i++) {
        struct worker *w = &c->workers[i];

        if (!w->exited || w->reported || worker_end_succeeded(w))
            continue;
        s = first_failure_suspect(c, w);
        keep_preceding_suspect(&best, &s);
    }
    *by = best.w;
    if (best.w == NULL)
        return best;
    s = best;
    missed = best.cause.kind == CDI_END_EXIT ? first_failure_find_missed(c) : NULL;
    if (missed != NULL) {
        const struct suspect m = first_failure_suspect(c, missed);

        keep_preceding_suspect(&best, &m);
    }
    first_failure_suspect_running(c, &s.cause, s.noted, &best);
    return best;
}

bool first_failure_waits(struct worker_group *c, const struct suspect *s)
{
    const bool follows = cdi_cause_class_of(&s->cause) == CDI_CAUSE_FOLLOWS;
    const int64_t now_ms = cdi_now_ms();
    bool others = c->opt.assign.world_size > c->n;

    for (uint32_t i = 0; i < c->n; i++)
        others = others || (c->workers[i].pid > 0 && !c->workers[i].exited);
    if (c->end_signal != 0 || (follows ? !others : s->w->exited || (s->noted && s->cause.kind == CDI_END_EXIT)))
        return false;
    if (c->wait_until_ms == 0)
        c->wait_until_ms = now_ms + (s->w->exited ? FOLLOWS_WAIT_MS : ENDS_WAIT_MS);
    return now_ms < c->wait_until_ms;
}
