/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/agent/progress.h"

#include "common/rank_list.h"

#include <inttypes.h>
#include <stdlib.h>

#define GROUPS_SHOWN 4
#define SECOND_NS 1000000000

static bool is_inside(const struct cdi_flight_view *v)
{
    return v->oldest_unfinished.seq != 0;
}

/* The collective that a rank is in, otherwise its last one; seq 0: none yet. */
static const struct cdi_flight_entry *progress_at(const struct cdi_flight_view *v)
{
    return is_inside(v) ? &v->oldest_unfinished : &v->last;
}

/* Is it in a collective of a graph? */
static bool is_in_replay(const struct cdi_flight_view *v)
{
    return !is_inside(v) && v->replay.begun > v->replay.ended;
}

/* Was that its last? */
static bool is_after_replay(const struct cdi_flight_view *v)
{
    return !is_inside(v) && v->replay.begun > 0 && v->replay.since_ns > v->last.done_ns;
}

/* Is it in the rank's queue, and not running yet? */
static bool is_queued(const struct cdi_flight_view *v)
{
    return is_inside(v) && v->oldest_unfinished.started_ns == 0;
}

static int progress_order(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* Compares two ranks' progress; 0: the same. */
static int compare_places(const struct cdi_flight_view *a, const struct cdi_flight_view *b)
{
    const struct cdi_flight_entry *x = progress_at(a), *y = progress_at(b);
    int by = progress_order(x->seq, y->seq);

    if (by == 0)
        by = progress_order(a->replay.begun, b->replay.begun);
    if (by == 0)
        by = progress_order(a->replay.ended, b->replay.ended);
    if (by == 0)
        by = progress_order(is_queued(b), is_queued(a)); /* before it, in it, after it */
    if (by == 0)
        by = progress_order(is_inside(b), is_inside(a));
    if (by == 0)
        by = progress_order(a->step, b->step);
    if (by == 0)
        by = progress_order(x->op, y->op);
    return by != 0 ? by : progress_order((uint32_t)x->bucket, (uint32_t)y->bucket);
}

static int progress_compare_ranks(const void *p, const void *q)
{
    const struct progress_rank *a = p, *b = q;
    int by = progress_order(a->view.claimed_pid == 0, b->view.claimed_pid == 0); /* after those that use libcddp */

    if (by == 0)
        by = compare_places(&a->view, &b->view);
    return by != 0 ? by : (a->rank > b->rank) - (a->rank < b->rank);
}

static size_t progress_add_place(const struct cdi_flight_view *v, char *buf, size_t cap)
{
    const struct cdi_flight_entry *e = progress_at(v);
    char bucket[32] = "", step[40] = "";

    if (is_in_replay(v) || is_after_replay(v)) {
        if (v->replay.bucket >= 0)
            (void)snprintf(bucket, sizeof bucket, " (bucket %d)", v->replay.bucket);
        return (size_t)snprintf(buf, cap, " %s captured %s%s, replay %" PRIu64, is_in_replay(v) ? "in" : "after",
                                cdi_flight_op_name(v->replay.op), bucket, v->replay.number);
    }
    if (e->seq == 0)
        return (size_t)snprintf(buf, cap, " before the first collective");
    if (e->bucket >= 0)
        (void)snprintf(bucket, sizeof bucket, "bucket %d", e->bucket);
    if (e->bucket >= 0 || v->step > 0)
        (void)snprintf(step, sizeof step, "%sstep %" PRIu64, *bucket != '\0' ? ", " : "", v->step);
    return (size_t)snprintf(buf, cap, " %s %s #%" PRIu64 "%s%s%s%s%s",
                            is_queued(v)   ? "before"
                            : is_inside(v) ? "in"
                                           : "after",
                            cdi_flight_op_name(e->op), e->seq, *step != '\0' ? " (" : "", bucket, step,
                            *step != '\0' ? ")" : "", is_queued(v) ? ", queued" : "");
}

/* Adds the time, if it is long enough to matter: the shortest of the group, so that it is true for all. */
static size_t add_time(const struct progress_rank *v, size_t n, int64_t now_ns, char *buf, size_t cap)
{
    int64_t shortest = INT64_MAX;

    for (size_t i = 0; i < n; i++) {
        const struct cdi_flight_entry *e = progress_at(&v[i].view);
        bool replay = is_in_replay(&v[i].view) || is_after_replay(&v[i].view);
        int64_t since = replay                   ? v[i].view.replay.since_ns
                        : !is_inside(&v[i].view) ? e->done_ns
                        : e->started_ns != 0     ? e->started_ns
                                                 : e->enqueued_ns;

        if (since > 0 && since <= now_ns && now_ns - since < shortest)
            shortest = now_ns - since;
    }
    if (shortest == INT64_MAX || shortest < SECOND_NS)
        return 0;
    return (size_t)snprintf(buf, cap,
                            is_queued(&v->view)                             ? " for %lld s"
                            : is_inside(&v->view) || is_in_replay(&v->view) ? ", for %lld s"
                                                                            : ", %lld s ago",
                            (long long)(shortest / SECOND_NS));
}

void progress_text(struct progress_rank *v, size_t n, int64_t now_ns, char *buf, size_t cap)
{
    size_t used = 0, groups = 0;

    buf[0] = '\0';
    qsort(v, n, sizeof *v, progress_compare_ranks);
    while (n > 0 && v[n - 1].view.claimed_pid == 0)
        n--;
    for (size_t i = 0, end; i < n && used < cap; i = end) {
        struct cdi_rank_list ranks = {0};

        for (end = i; end < n && compare_places(&v[i].view, &v[end].view) == 0; end++)
            cdi_rank_list_add(&ranks, v[end].rank);
        if (++groups > GROUPS_SHOWN) {
            (void)snprintf(buf + used, cap - used, "; %zu more elsewhere", n - i);
            return;
        }
        used += (size_t)snprintf(buf + used, cap - used, "%srank%s %s", groups > 1 ? "; " : "", ranks.n > 1 ? "s" : "",
                                 ranks.text);
        if (used < cap)
            used += progress_add_place(&v[i].view, buf + used, cap - used);
        if (used < cap)
            used += add_time(&v[i], end - i, now_ns, buf + used, cap - used);
    }
}
