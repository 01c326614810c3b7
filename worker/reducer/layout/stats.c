/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/layout/stats.h"

#include <stdbool.h>
#include <stdlib.h>

static int interval_before(const void *a, const void *b)
{
    const struct cdi_interval *x = a, *y = b;

    return (x->begin > y->begin) - (x->begin < y->begin);
}

size_t cdi_intervals_join(struct cdi_interval *v, size_t n)
{
    size_t full = 0, kept = 0;
    bool sorted = true;

    for (size_t i = 0; i < n; i++)
        if (v[i].end > v[i].begin) {
            sorted &= full == 0 || v[full - 1].begin <= v[i].begin;
            v[full++] = v[i];
        }
    if (!sorted) /* mostly buckets end in the order in which they are listed */
        qsort(v, full, sizeof *v, interval_before);
    for (size_t i = 0; i < full; i++) {
        if (kept > 0 && v[i].begin <= v[kept - 1].end)
            v[kept - 1].end = v[i].end > v[kept - 1].end ? v[i].end : v[kept - 1].end;
        else
            v[kept++] = v[i];
    }
    return kept;
}

int64_t cdi_intervals_length(const struct cdi_interval *v, size_t n)
{
    int64_t sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += v[i].end - v[i].begin;
    return sum;
}

int64_t cdi_intervals_common(const struct cdi_interval *a, size_t n_a, const struct cdi_interval *b, size_t n_b)
{
    int64_t sum = 0;

    for (size_t i = 0, k = 0; i < n_a && k < n_b;) {
        int64_t begin = a[i].begin > b[k].begin ? a[i].begin : b[k].begin;
        int64_t end = a[i].end < b[k].end ? a[i].end : b[k].end;

        sum += end > begin ? end - begin : 0;
        if (a[i].end < b[k].end)
            i++;
        else
            k++;
    }
    return sum;
}

/* Sets late and late_rank of *s. The waits are joined. */
static void share_late(const struct cdi_step_times *t, size_t n_waits, struct cdi_step_shares *s)
{
    int64_t most = 0;

    for (size_t b = 0; b < t->n_buckets; b++) {
        const struct cdi_bucket_times *one = &t->buckets[b];
        const struct cdi_interval wait = {.begin = one->started, .end = one->arrived};
        int64_t ns = 0;

        if (one->late_rank >= 0 && one->late_rank < t->n_ranks && wait.end > wait.begin)
            ns = cdi_intervals_common(&wait, 1, t->waits, n_waits);
        if (ns == 0)
            continue;
        s->late += ns;
        t->by_rank[one->late_rank] += ns;
        if (t->by_rank[one->late_rank] > most) {
            most = t->by_rank[one->late_rank];
            s->late_rank = one->late_rank;
        }
    }
    for (size_t b = 0; b < t->n_buckets; b++)
        if (t->buckets[b].late_rank >= 0 && t->buckets[b].late_rank < t->n_ranks)
            t->by_rank[t->buckets[b].late_rank] = 0;
}

/* Returns the processor time in the part of each bucket that the program did not wait for. The waits are joined. */
static int64_t hidden_thread_time(const struct cdi_step_times *t, size_t n_waits)
{
    int64_t sum = 0;

    for (size_t b = 0; b < t->n_buckets; b++) {
        const struct cdi_bucket_times *one = &t->buckets[b];
        const struct cdi_interval run = {.begin = one->started, .end = one->done};
        int64_t length = run.end - run.begin;

        if (one->thread > 0 && one->started > 0 && length > 0)
            sum += (int64_t)((double)one->thread * (double)(length - cdi_intervals_common(&run, 1, t->waits, n_waits)) /
                             (double)length);
    }
    return sum;
}

/* A bucket moves from when its last rank has arrived, or from its start if that is not known. Uses t->comm. */
static int64_t transfer_time(const struct cdi_step_times *t)
{
    for (size_t b = 0; b < t->n_buckets; b++) {
        const struct cdi_bucket_times *one = &t->buckets[b];

        t->comm[b] = (struct cdi_interval){.begin = one->arrived > one->started ? one->arrived : one->started,
                                           .end = one->started > 0 ? one->done : 0};
    }
    return cdi_intervals_length(t->comm, cdi_intervals_join(t->comm, t->n_buckets));
}

struct cdi_step_shares cdi_step_shares_of(const struct cdi_step_times *t)
{
    struct cdi_step_shares s = {.late_rank = -1};
    int64_t ready = t->first;
    size_t n_comm, n_waits = cdi_intervals_join(t->waits, t->n_waits);

    for (size_t b = 0; b < t->n_buckets; b++) {
        t->comm[b] = (struct cdi_interval){.begin = t->buckets[b].started, .end = t->buckets[b].done};
        if (t->buckets[b].started == 0)
            t->comm[b].end = 0;
        ready = t->buckets[b].ready > ready ? t->buckets[b].ready : ready;
    }
    n_comm = cdi_intervals_join(t->comm, t->n_buckets);
    s.comm = cdi_intervals_length(t->comm, n_comm);
    s.exposed = cdi_intervals_common(t->comm, n_comm, t->waits, n_waits);
    s.transfer = transfer_time(t);
    s.thread = hidden_thread_time(t, n_waits);
    share_late(t, n_waits, &s);
    s.backward = ready - t->first;
    if (t->begun > 0 && t->begun <= t->first)
        s.forward = t->first - t->begun;
    s.step = t->end > t->first ? s.forward + t->end - t->first : s.forward;
    return s;
}
