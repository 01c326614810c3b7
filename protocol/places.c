/* SPDX-License-Identifier: Apache-2.0 */
#include "protocol/places.h"

#include "common/rank_ranges.h"
#include "common/size_text.h"

#include <cddp/types.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A rank stands still if its last step is older than STILL_FACTOR steps plus STILL_US, which a checkpoint may take. */
#define STILL_FACTOR 3
#define STILL_US 2e6
#define PEERS_SHOWN 4 /* in the text of a group */

/* ---------------------------------------------------------------------------------------------------- groups ---- */

/* Within one collective: before it, in it, after it. */
static int phase_of(enum cdi_place place)
{
    switch (place) {
    case CDI_PLACE_BEFORE:
        return 0;
    case CDI_PLACE_IN:
    case CDI_PLACE_IN_REPLAY:
        return 1;
    case CDI_PLACE_AFTER:
    case CDI_PLACE_AFTER_REPLAY:
    case CDI_PLACE_OUTSIDE:
    case CDI_PLACE_START:
    case CDI_PLACE_EXITED:
        break;
    }
    return 2;
}

/* Ranks that have ended, then those before their first collective, then the others; ranks without libcddp are last. */
static int class_of(const struct cdi_rank_report *r)
{
    switch (r->place) {
    case CDI_PLACE_EXITED:
        return 0;
    case CDI_PLACE_START:
        return 1;
    case CDI_PLACE_OUTSIDE:
        return 3;
    case CDI_PLACE_BEFORE:
    case CDI_PLACE_IN:
    case CDI_PLACE_AFTER:
    case CDI_PLACE_IN_REPLAY:
    case CDI_PLACE_AFTER_REPLAY:
        break;
    }
    return 2;
}

static int order(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* "running, 99 % of a core": the part after the comma differs from rank to rank. */
static size_t doing_kind(const char *doing)
{
    return strcspn(doing, ",");
}

static int compare_doing(const char *a, const char *b)
{
    size_t n = doing_kind(a), m = doing_kind(b);
    int by = strncmp(a, b, n < m ? n : m);

    return by != 0 ? by : order(n, m);
}

/* Compares the places of two ranks; 0: they share a line. coarse: the collective does not count. */
static int places_compare(const struct cdi_rank_report *a, const struct cdi_rank_report *b, bool coarse)
{
    int by = order((uint64_t)class_of(a), (uint64_t)class_of(b));

    if (by == 0 && coarse)
        by = order(a->step, b->step);
    if (by == 0 && !coarse)
        by = order(a->seq, b->seq);
    if (by == 0 && !coarse)
        by = order(a->replay, b->replay);
    if (by == 0 && !coarse)
        by = strcmp(a->part, b->part);
    if (by == 0)
        by = phase_of(a->place) - phase_of(b->place);
    if (by == 0)
        by = (int)a->place - (int)b->place;
    if (by == 0 && !coarse)
        by = order(a->op, b->op);
    if (by == 0 && !coarse)
        by = order((uint32_t)a->bucket, (uint32_t)b->bucket);
    if (by == 0 && !coarse)
        by = order(a->count, b->count);
    if (by == 0)
        by = order(a->step, b->step);
    return by != 0 ? by : compare_doing(a->doing, b->doing);
}

static int by_rank(const struct cdi_placed *a, const struct cdi_placed *b)
{
    return (a->r->rank > b->r->rank) - (a->r->rank < b->r->rank);
}

static int by_place(const void *p, const void *q)
{
    const struct cdi_placed *a = p, *b = q;
    int by = places_compare(a->r, b->r, false);

    return by != 0 ? by : by_rank(a, b);
}

static int by_coarse_place(const void *p, const void *q)
{
    const struct cdi_placed *a = p, *b = q;
    int by = places_compare(a->r, b->r, true);

    return by != 0 ? by : by_rank(a, b);
}

static int only_by_rank(const void *p, const void *q)
{
    return by_rank(p, q);
}

/* Describes the ranks from first to last, which are in the order of their numbers. */
static void describe_group(const struct cdi_placed *ranks, size_t n, struct cdi_place_group *g)
{
    *g = (struct cdi_place_group){.ranks = ranks, .n = n, .for_ms = INT64_MAX, .min_step = UINT64_MAX};
    for (size_t i = 0; i < n; i++) {
        const struct cdi_rank_report *r = ranks[i].r;

        g->n_nodes += i == 0 || ranks[i].node_rank != ranks[i - 1].node_rank;
        g->for_ms = r->for_ms < g->for_ms ? r->for_ms : g->for_ms;
        g->min_step = r->step < g->min_step ? r->step : g->min_step;
        g->max_step = r->step > g->max_step ? r->step : g->max_step;
        g->mixed = g->mixed || places_compare(r, ranks[0].r, false) != 0;
    }
}

/* Groups sorted ranks. Returns the number of groups; after cap - 1 of them, the rest is the last one. */
static size_t take_groups(struct cdi_placed *ranks, size_t n, bool coarse, struct cdi_place_group *out, size_t cap,
                          bool *fits)
{
    size_t groups = 0;

    *fits = true;
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && places_compare(ranks[i].r, ranks[end].r, coarse) == 0;)
            end++;
        if (groups + 1 == cap && end < n) {
            qsort(ranks + i, n - i, sizeof *ranks, only_by_rank);
            *fits = false;
            end = n;
        }
        describe_group(ranks + i, end - i, &out[groups++]);
    }
    return groups;
}

size_t cdi_places_group(struct cdi_placed *ranks, size_t n, struct cdi_place_group *out, size_t cap)
{
    size_t groups;
    bool fits;

    if (n == 0)
        return 0;
    qsort(ranks, n, sizeof *ranks, by_place);
    groups = take_groups(ranks, n, false, out, cap, &fits);
    if (fits)
        return groups;
    qsort(ranks, n, sizeof *ranks, by_coarse_place);
    return take_groups(ranks, n, true, out, cap, &fits);
}

bool cdi_place_is_waiting(const struct cdi_rank_report *r)
{
    return r->place == CDI_PLACE_IN || r->place == CDI_PLACE_BEFORE || r->place == CDI_PLACE_IN_REPLAY;
}

/* ----------------------------------------------------------------------------------------------------- texts ---- */

void cdi_places_ranks(const struct cdi_place_group *g, char text[CDI_PLACES_RANKS])
{
    struct cdi_rank_ranges ranges;

    cdi_rank_ranges_begin(&ranges, text, CDI_PLACES_RANKS, UINT_MAX);
    for (size_t i = 0; i < g->n; i++)
        cdi_rank_ranges_add(&ranges, (uint32_t)g->ranks[i].r->rank);
    (void)cdi_rank_ranges_end(&ranges);
}

static void where_steps(const struct cdi_place_group *g, char text[CDI_PLACES_TEXT])
{
    if (g->min_step == g->max_step)
        (void)snprintf(text, CDI_PLACES_TEXT, "in several collectives of step %" PRIu64, g->min_step);
    else
        (void)snprintf(text, CDI_PLACES_TEXT, "in several places, steps %" PRIu64 " to %" PRIu64, g->min_step,
                       g->max_step);
}

static const struct {
    const char *name;
    unsigned size;
} dtypes[] = {
    [CDDP_INT8] = {"int8", 1},
    [CDDP_UINT8] = {"uint8", 1},
    [CDDP_INT32] = {"int32", 4},
    [CDDP_UINT32] = {"uint32", 4},
    [CDDP_INT64] = {"int64", 8},
    [CDDP_UINT64] = {"uint64", 8},
    [CDDP_FLOAT16] = {"float16", 2},
    [CDDP_FLOAT32] = {"float32", 4},
    [CDDP_FLOAT64] = {"float64", 8},
    [CDDP_BFLOAT16] = {"bfloat16", 2},
    [CDDP_FLOAT8_E4M3] = {"float8_e4m3", 1},
    [CDDP_FLOAT8_E5M2] = {"float8_e5m2", 1},
    [CDDP_INT16] = {"int16", 2},
    [CDDP_UINT16] = {"uint16", 2},
};

/* Appends to a text that has `at` bytes; returns the new number. A text that is too long is cut. */
__attribute__((format(printf, 3, 4))) static size_t put(char text[CDI_PLACES_TEXT], size_t at, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text + at, CDI_PLACES_TEXT - at, fmt, ap);
    va_end(ap);
    return n < 0 ? at : at + (size_t)n < CDI_PLACES_TEXT ? at + (size_t)n : CDI_PLACES_TEXT - 1;
}

static size_t put_size(const struct cdi_rank_report *r, char text[CDI_PLACES_TEXT], size_t at)
{
    bool known = r->dtype < sizeof dtypes / sizeof dtypes[0] && dtypes[r->dtype].name != NULL;
    char size[CDI_SIZE_TEXT];

    if (r->count == 0 || !known || r->op == CDI_FLIGHT_BARRIER)
        return at;
    return put(text, at, "%s %s %s", r->part[0] != '\0' ? "," : " of",
               cdi_size_text(size, (double)r->count * dtypes[r->dtype].size), dtypes[r->dtype].name);
}

/* Appends the collective, such as "send #9 of part 'tp' (ranks 0, 2), 4.0 MiB float32 to rank 3 (step 39)". */
static size_t put_call(const struct cdi_rank_report *r, const char *peer, unsigned with, char text[CDI_PLACES_TEXT],
                       size_t at)
{
    bool replay = r->place == CDI_PLACE_IN_REPLAY || r->place == CDI_PLACE_AFTER_REPLAY;
    bool bucket = (with & CDI_CALL_BUCKET) != 0 && r->bucket >= 0;
    bool step = (with & CDI_CALL_STEP) != 0 && (r->bucket >= 0 || r->step > 0);

    at = put(text, at, replay ? "captured %s" : "%s", cdi_flight_op_name(r->op));
    if (!replay) {
        at = put(text, at, " #%" PRIu64, r->seq);
        at = r->part[0] != '\0' ? put(text, at, " of part %.*s", (int)sizeof r->part, r->part) : at;
        at = (with & CDI_CALL_SIZE) != 0 ? put_size(r, text, at) : at;
        at = put(text, at, "%s", peer);
    }
    at = bucket ? put(text, at, " (bucket %" PRId32, r->bucket) : at;
    if (bucket && (with & CDI_CALL_NAMES) != 0 && r->names[0] != '\0')
        at = put(text, at, ": %.*s", (int)sizeof r->names, r->names);
    at = step ? put(text, at, "%sstep %" PRIu64, bucket ? ", " : " (", r->step) : at;
    at = bucket || step ? put(text, at, ")") : at;
    return replay ? put(text, at, ", replay %" PRIu64, r->replay) : at;
}

static const char *word_of(enum cdi_place place)
{
    return place == CDI_PLACE_BEFORE   ? "before "
           : place == CDI_PLACE_EXITED ? "exited after "
           : phase_of(place) == 1      ? "in "
                                       : "after ";
}

static const char *peer_word(const struct cdi_rank_report *r)
{
    return r->op == CDI_FLIGHT_SEND ? "to" : "from";
}

static bool is_message(const struct cdi_rank_report *r)
{
    return r->op == CDI_FLIGHT_SEND || r->op == CDI_FLIGHT_RECV;
}

void cdi_place_text(const struct cdi_rank_report *r, int64_t for_ms, int32_t peer, unsigned with,
                    char text[CDI_PLACES_TEXT])
{
    bool named = r->place != CDI_PLACE_OUTSIDE && r->place != CDI_PLACE_START && r->seq != 0;
    long long s = for_ms / 1000;
    char other[32] = "";
    size_t at = 0;

    if (peer >= 0 && is_message(r))
        (void)snprintf(other, sizeof other, " %s rank %" PRId32, peer_word(r), peer);
    if (named)
        at = put_call(r, other, with, text, put(text, 0, "%s", word_of(r->place)));
    else
        at = put(text, 0, "%s",
                 r->place == CDI_PLACE_OUTSIDE  ? "outside libcddp"
                 : r->place == CDI_PLACE_EXITED ? "exited"
                                                : "before the first collective");
    if (named && r->place == CDI_PLACE_BEFORE)
        at = put(text, at, ", queued");
    if (r->place != CDI_PLACE_OUTSIDE && r->place != CDI_PLACE_EXITED && s > 0)
        (void)put(text, at,
                  r->place == CDI_PLACE_BEFORE ? " for %lld s"
                  : phase_of(r->place) == 1    ? ", for %lld s"
                                               : ", %lld s ago",
                  s);
}

/* " from rank 3", if that is true for all ranks of the group, or " from ranks 3, 0", of each in turn, if they are few.
 */
static void where_peer(const struct cdi_place_group *g, char *text, size_t cap)
{
    const struct cdi_rank_report *r = g->ranks[0].r;
    bool same = true, known = is_message(r);
    size_t used;

    text[0] = '\0';
    for (size_t i = 0; i < g->n; i++) {
        known = known && g->ranks[i].r->peer >= 0;
        same = same && g->ranks[i].r->peer == r->peer;
    }
    if (!known || (!same && g->n > PEERS_SHOWN))
        return;
    used = (size_t)snprintf(text, cap, " %s rank%s %d", peer_word(r), same ? "" : "s", r->peer);
    for (size_t i = 1; i < g->n && !same; i++)
        used += (size_t)snprintf(text + used, cap - used, ", %d", g->ranks[i].r->peer);
}

static void where_collective(const struct cdi_place_group *g, char text[CDI_PLACES_TEXT])
{
    const struct cdi_rank_report *r = g->ranks[0].r;
    char peer[128];
    size_t at;

    where_peer(g, peer, sizeof peer);
    at = put_call(r, peer, CDI_CALL_BUCKET | CDI_CALL_NAMES, text, put(text, 0, "%s", word_of(r->place)));
    if (r->place == CDI_PLACE_BEFORE)
        (void)put(text, at, ", queued");
}

void cdi_places_where(const struct cdi_place_group *g, char text[CDI_PLACES_TEXT])
{
    const struct cdi_rank_report *r = g->ranks[0].r;

    if (g->mixed) {
        where_steps(g, text);
        return;
    }
    switch (r->place) {
    case CDI_PLACE_OUTSIDE:
        (void)snprintf(text, CDI_PLACES_TEXT, "without libcddp");
        break;
    case CDI_PLACE_START:
        (void)snprintf(text, CDI_PLACES_TEXT, "before the first collective");
        break;
    case CDI_PLACE_EXITED:
        (void)snprintf(text, CDI_PLACES_TEXT, "ended");
        break;
    case CDI_PLACE_BEFORE:
    case CDI_PLACE_IN:
    case CDI_PLACE_AFTER:
    case CDI_PLACE_IN_REPLAY:
    case CDI_PLACE_AFTER_REPLAY:
        where_collective(g, text);
        break;
    }
}

void cdi_places_doing(const struct cdi_place_group *g, char text[CDI_PLACES_TEXT])
{
    const char *doing = g->ranks[0].r->doing;
    size_t n = g->n == 1 ? strlen(doing) : doing_kind(doing);

    for (size_t i = 1; i < g->n; i++)
        if (compare_doing(doing, g->ranks[i].r->doing) != 0)
            n = 0;
    (void)snprintf(text, CDI_PLACES_TEXT, "%.*s", (int)n, doing);
}

static void two_units(char text[CDI_PLACES_SPAN], long long n, const char *unit, long long rest, const char *smaller)
{
    if (rest == 0)
        (void)snprintf(text, CDI_PLACES_SPAN, "%lld %s", n, unit);
    else
        (void)snprintf(text, CDI_PLACES_SPAN, "%lld %s %lld %s", n, unit, rest, smaller);
}

const char *cdi_places_span(char text[CDI_PLACES_SPAN], double us)
{
    double s = us / 1e6;
    long long whole = s < 1e15 ? (long long)s : 1000000000000000;

    if (us < 999.5)
        (void)snprintf(text, CDI_PLACES_SPAN, "%.0f us", us < 0 ? 0 : us);
    else if (us < 999500)
        (void)snprintf(text, CDI_PLACES_SPAN, us < 99950 ? "%.1f ms" : "%.0f ms", us / 1e3);
    else if (s < 59.5)
        (void)snprintf(text, CDI_PLACES_SPAN, s < 9.95 ? "%.1f s" : "%.0f s", s);
    else if (whole < 3600)
        two_units(text, (whole + (whole < 60)) / 60, "min", whole < 60 ? 0 : whole % 60, "s");
    else if (whole < 86400)
        two_units(text, whole / 3600, "h", whole / 60 % 60, "min");
    else
        two_units(text, whole / 86400, "d", whole / 3600 % 24, "h");
    return text;
}

/* --------------------------------------------------------------------------------------------------- summary ---- */

struct vote {
    int32_t rank;
    uint64_t count;
};

static int by_voted_rank(const void *p, const void *q)
{
    const struct vote *a = p, *b = q;

    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* Each rank names the peer that it most often waited for, with the number of steps. */
static void find_slowest(const struct cdi_placed *ranks, size_t n, struct cdi_places_sum *out)
{
    struct vote *votes = calloc(n + 1, sizeof *votes);
    uint64_t most = 0, steps = 0;
    size_t n_votes = 0;

    out->slowest = -1;
    for (size_t i = 0; i < n && votes != NULL; i++) {
        const struct cdi_rank_report *r = ranks[i].r;

        if (r->late_rank >= 0 && r->late_rank != r->rank && r->late_count > 0) {
            votes[n_votes++] = (struct vote){r->late_rank, r->late_count};
            steps += r->n_steps;
        }
    }
    if (n_votes > 0)
        qsort(votes, n_votes, sizeof *votes, by_voted_rank);
    for (size_t i = 0, end; i < n_votes; i = end) {
        uint64_t sum = 0;

        for (end = i; end < n_votes && votes[end].rank == votes[i].rank; end++)
            sum += votes[end].count;
        if (sum > most) {
            most = sum;
            out->slowest = votes[i].rank;
        }
    }
    out->slowest_share = steps > 0 && most <= steps ? (double)most / (double)steps : most > 0 ? 1 : 0;
    free(votes);
}

static double pace_us(const struct cdi_rank_report *r)
{
    double age_us = (double)r->step_age_ms * 1e3, step_us = (double)r->step_us;

    return age_us > step_us ? age_us : step_us;
}

double cdi_places_rate(const struct cdi_rank_report *r)
{
    return r->step_us == 0 ? -1 : 1e6 / pace_us(r);
}

bool cdi_places_stands_still(const struct cdi_rank_report *r)
{
    return r->step_us > 0 && pace_us(r) > STILL_FACTOR * (double)r->step_us + STILL_US;
}

static void sum_steps(const struct cdi_rank_report *r, struct cdi_places_sum *out)
{
    if (r->step_us == 0)
        return;
    out->step_age_ms = out->n_timed == 0 || r->step_age_ms < out->step_age_ms ? r->step_age_ms : out->step_age_ms;
    out->n_timed++;
    out->steps_per_s += pace_us(r);
    if (cdi_places_stands_still(r))
        return;
    out->n_fresh++;
    out->step_us += (double)r->step_us;
    out->exposed_us += (double)r->exposed_us;
    out->hidden_us += r->comm_us > r->exposed_us ? (double)(r->comm_us - r->exposed_us) : 0;
    out->late_us += (double)r->late_us;
    out->transfer_us += (double)r->transfer_us;
}

static void sum_gpu(const struct cdi_rank_report *r, struct cdi_places_sum *out)
{
    double load = r->gpu_permille > 1000 ? 1 : r->gpu_permille / 1000.0;
    double memory = r->gpu_total_bytes > 0 ? (double)r->gpu_used_bytes / (double)r->gpu_total_bytes : -1;

    if (r->gpu_permille < 0)
        return;
    out->gpu_least_load = out->n_gpus == 0 || load < out->gpu_least_load ? load : out->gpu_least_load;
    out->gpu_memory = memory > out->gpu_memory ? memory : out->gpu_memory;
    out->gpu_load += load;
    out->n_gpus++;
}

/* From sums to means. */
static void divide(struct cdi_places_sum *out)
{
    double fresh = out->n_fresh > 0 ? (double)out->n_fresh : 1;

    if (out->n_timed > 0)
        out->steps_per_s = 1e6 * (double)out->n_timed / out->steps_per_s;
    if (out->n_gpus > 0)
        out->gpu_load /= (double)out->n_gpus;
    out->step_us /= fresh;
    out->hidden_us /= fresh;
    out->exposed_us /= fresh;
    out->late_us /= fresh;
    out->transfer_us /= fresh;
}

void cdi_places_sum(const struct cdi_placed *ranks, size_t n, struct cdi_places_sum *out)
{
    *out = (struct cdi_places_sum){.n = n, .min_step = UINT64_MAX, .gpu_memory = -1};
    for (size_t i = 0; i < n; i++) {
        const struct cdi_rank_report *r = ranks[i].r;

        out->by_place[r->place]++;
        if (r->place != CDI_PLACE_OUTSIDE && r->place != CDI_PLACE_EXITED) {
            out->min_step = r->step < out->min_step ? r->step : out->min_step;
            out->max_step = r->step > out->max_step ? r->step : out->max_step;
        }
        sum_steps(r, out);
        sum_gpu(r, out);
    }
    if (out->min_step == UINT64_MAX)
        out->min_step = out->max_step;
    divide(out);
    find_slowest(ranks, n, out);
}

int cdi_places_hidden(const struct cdi_places_sum *s)
{
    double comm = s->hidden_us + s->exposed_us;

    return comm > 0 ? (int)(100 * s->hidden_us / comm + 0.5) : -1;
}
