/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/hang.h"

#include <stdlib.h>
#include <string.h>

static bool is_in_collective(const struct cdi_rank_report *r)
{
    return r->place == CDI_PLACE_IN || r->place == CDI_PLACE_BEFORE || r->place == CDI_PLACE_IN_REPLAY;
}

/* Does its program run, outside collectives? */
static bool is_between(const struct cdi_rank_report *r)
{
    return r->place == CDI_PLACE_START || r->place == CDI_PLACE_AFTER || r->place == CDI_PLACE_AFTER_REPLAY;
}

static cddp_status take_ranks(const struct view_node *nodes, size_t n, int64_t now_ms, struct hang *h)
{
    size_t total = 0;

    for (size_t i = 0; i < n; i++)
        total += nodes[i].report.n_ranks;
    h->ranks = calloc(total + 1, sizeof *h->ranks);
    if (h->ranks == NULL)
        return CDDP_E_NOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct cdi_node_report *node = &nodes[i].report;
        int64_t age_ms = now_ms > nodes[i].received_ms ? now_ms - nodes[i].received_ms : 0;

        for (size_t k = 0; k < node->n_ranks; k++) {
            const struct cdi_rank_report *r = &node->ranks[k];

            if (r->rank < 0 || (uint32_t)r->rank >= h->world_size)
                continue;
            h->ranks[h->n++] = (struct hang_rank){
                .report = r, .node = node, .for_ms = r->for_ms + age_ms, .waits = is_in_collective(r)};
        }
    }
    h->n_silent = h->n < h->world_size ? h->world_size - h->n : 0;
    return CDDP_OK;
}

/* ------------------------------------------------------------------------------------------ who is behind ---- */

static size_t mark_late(struct hang *h, bool (*is)(const struct hang *h, const struct hang_rank *r))
{
    size_t n = 0;

    for (size_t i = 0; i < h->n; i++) {
        if (h->ranks[i].late || !is(h, &h->ranks[i]))
            continue;
        h->ranks[i].late = true;
        n++;
    }
    h->n_late += n;
    return n;
}

/* Reads a number. Returns the text after it, or NULL without a number. */
static const char *skip_number(const char *at, long *value)
{
    char *end = NULL;

    if (*at < '0' || *at > '9')
        return NULL;
    *value = strtol(at, &end, 10);
    return end;
}

/*
 * May the rank be one that a wait in `part` is about? False only if the part names all of its ranks, and this one is
 * not among them: "'tp' (ranks 0, 2-5)".
 */
static bool may_belong(const char *part, int32_t rank)
{
    const char *at = part, *next;
    bool belongs = false;

    while ((next = strstr(at, CDI_PART_RANKS)) != NULL) /* the last one: a name may have it, too */
        at = next + sizeof CDI_PART_RANKS - 1;
    if (at == part)
        return true;
    for (;;) {
        long first = 0, last = 0;

        at = skip_number(at, &first);
        last = first;
        if (at != NULL && *at == '-')
            at = skip_number(at + 1, &last);
        if (at == NULL)
            return true;
        belongs = belongs || (rank >= first && rank <= last);
        if (strcmp(at, ")") == 0)
            return belongs;
        if (strncmp(at, ", ", 2) != 0)
            return true;
        at += 2;
    }
}

/*
 * The ones that the longest wait is about have been outside collectives for about as long. One that came out of a
 * collective lately belongs to another communicator, which goes on.
 */
static bool has_stood_still(const struct hang *h, const struct hang_rank *r)
{
    return is_between(r->report) && (r->report->place == CDI_PLACE_START || r->for_ms >= h->waited_ms / 2);
}

/* May the longest wait be about the rank? */
static bool is_concerned(const struct hang *h, const struct hang_rank *r)
{
    return may_belong(h->longest->part, r->report->rank);
}

static bool has_stood_still_there(const struct hang *h, const struct hang_rank *r)
{
    return has_stood_still(h, r) && is_concerned(h, r);
}

static bool is_halted(const struct hang *h, const struct hang_rank *r)
{
    (void)h;
    return r->report->halted != 0 && r->report->place != CDI_PLACE_OUTSIDE;
}

static bool goes_on_there(const struct hang *h, const struct hang_rank *r)
{
    return is_between(r->report) && is_concerned(h, r);
}

static bool goes_on(const struct hang *h, const struct hang_rank *r)
{
    (void)h;
    return is_between(r->report);
}

/* Came it lately into a collective of another part than the longest wait is in? Then it goes on there. */
static bool works_elsewhere(const struct hang *h, const struct hang_rank *r)
{
    return is_in_collective(r->report) && r->for_ms < h->waited_ms / 2 &&
           strcmp(r->report->part, h->longest->part) != 0 && is_concerned(h, r);
}

static bool has_exited(const struct hang *h, const struct hang_rank *r)
{
    (void)h;
    return r->report->place == CDI_PLACE_EXITED;
}

static bool is_outside(const struct hang *h, const struct hang_rank *r)
{
    (void)h;
    return r->report->place == CDI_PLACE_OUTSIDE;
}

static bool same_call(const struct cdi_rank_report *a, const struct cdi_rank_report *b)
{
    return a->place == b->place && a->op == b->op && a->seq == b->seq && a->count == b->count && a->dtype == b->dtype &&
           a->bucket == b->bucket && a->replay == b->replay && strcmp(a->part, b->part) == 0;
}

static size_t count_same(const struct hang *h, const struct hang_rank *r)
{
    size_t n = 0;

    for (size_t i = 0; i < h->n; i++)
        n += same_call(h->ranks[i].report, r->report);
    return n;
}

/*
 * Returns the rank whose message this one waits for; NULL: none. A rank that cannot run is the cause itself and not a
 * link of a circle, and one that came into its message lately may go on.
 */
static struct hang_rank *awaited(const struct hang *h, const struct hang_rank *r)
{
    bool message = r->report->op == CDI_FLIGHT_SEND || r->report->op == CDI_FLIGHT_RECV;

    if (!message || r->report->place != CDI_PLACE_IN || r->report->peer < 0 || r->report->halted != 0 ||
        r->for_ms < h->waited_ms / 2)
        return NULL;
    return (struct hang_rank *)(uintptr_t)hang_find(h, r->report->peer);
}

/* Marks the ranks that wait for messages of each other as late. Returns their number. */
static size_t mark_cycles(struct hang *h)
{
    for (size_t i = 0; i < h->n; i++) {
        struct hang_rank *r = &h->ranks[i];

        for (; r != NULL && r->walk == 0; r = awaited(h, r))
            r->walk = i + 1;
        /* A walk that meets itself has closed a circle. */
        for (; r != NULL && r->walk == i + 1 && !r->late; r = awaited(h, r)) {
            r->late = true;
            h->n_late++;
        }
    }
    return h->n_late;
}

/* Returns a rank of the collective in which more than half of the ranks are; NULL: there is none. */
static const struct hang_rank *find_majority(const struct hang *h)
{
    const struct hang_rank *candidate = NULL;
    size_t votes = 0;

    for (size_t i = 0; i < h->n; i++) {
        if (votes == 0)
            candidate = &h->ranks[i];
        votes += votes == 0 || same_call(candidate->report, h->ranks[i].report) ? 1 : (size_t)-1;
    }
    return candidate != NULL && count_same(h, candidate) > h->n / 2 ? candidate : NULL;
}

static bool is_below(const struct hang_rank *r, uint64_t seq)
{
    return r->report->place != CDI_PLACE_IN_REPLAY && r->report->seq < seq;
}

/* Do the numbers of the collectives count the same ones? */
static bool is_one_communicator(const struct hang *h)
{
    for (size_t i = 1; i < h->n; i++)
        if (strcmp(h->ranks[i].report->part, h->ranks[0].report->part) != 0)
            return false;
    return true;
}

/* All ranks are in collectives: finds those in another one than most, or in an earlier one. */
static enum hang_kind judge_calls(struct hang *h)
{
    const struct hang_rank *most = find_majority(h);
    bool counts = is_one_communicator(h);
    uint64_t highest = 0;
    size_t n_below = 0;

    for (size_t i = 0; i < h->n; i++)
        if (h->ranks[i].report->seq > highest)
            highest = h->ranks[i].report->seq;
    for (size_t i = 0; i < h->n; i++)
        n_below += is_below(&h->ranks[i], highest);
    for (size_t i = 0; i < h->n; i++)
        h->ranks[i].late = most != NULL ? !same_call(h->ranks[i].report, most->report)
                                        : counts && n_below * 2 <= h->n && is_below(&h->ranks[i], highest);
    for (size_t i = 0; i < h->n; i++)
        h->n_late += h->ranks[i].late;
    if (h->n_late > 0)
        return HANG_ELSEWHERE;
    return most != NULL ? HANG_ALL : HANG_SPLIT;
}

static enum hang_kind judge_ranks(struct hang *h)
{
    size_t n_behind;

    if (mark_cycles(h) > 0)
        return HANG_CYCLE;
    n_behind = mark_late(h, has_stood_still_there);
    if (n_behind == 0) /* its ranks may wait for others */
        n_behind = mark_late(h, has_stood_still);
    (void)mark_late(h, is_halted);
    if (h->n_late > 0)
        return n_behind > 0 ? HANG_BEHIND : HANG_HALTED;
    if (h->n_silent > 0)
        return HANG_SILENT;
    if (mark_late(h, goes_on_there) > 0 || mark_late(h, goes_on) > 0 || mark_late(h, has_exited) > 0 ||
        mark_late(h, is_outside) > 0 || mark_late(h, works_elsewhere) > 0)
        return HANG_BEHIND;
    return judge_calls(h);
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * 0x100000001b3U;
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 0;

    for (; *text != '\0'; text++)
        hash = mix(hash, (uint8_t)*text);
    return hash;
}

cddp_status hang_judge(const struct view_node *nodes, size_t n, uint32_t world_size, int64_t now_ms, int64_t warning_ms,
                       struct hang *out)
{
    struct hang h = {.world_size = world_size};
    cddp_status st = take_ranks(nodes, n, now_ms, &h);

    if (st != CDDP_OK)
        return st;
    for (size_t i = 0; i < h.n; i++)
        if (h.ranks[i].waits && h.ranks[i].for_ms > h.waited_ms) {
            h.waited_ms = h.ranks[i].for_ms;
            h.longest = h.ranks[i].report;
        }
    if (h.waited_ms > 0 && h.waited_ms >= warning_ms - HANG_SLACK_MS)
        h.kind = judge_ranks(&h);
    h.mark = mix(0xcbf29ce484222325U, h.kind);
    for (size_t i = 0; i < h.n; i++)
        if (h.ranks[i].late)
            h.mark = mix(mix(mix(mix(h.mark, hash_of(h.ranks[i].report->part)), (uint64_t)h.ranks[i].report->rank),
                             h.ranks[i].report->place),
                         h.ranks[i].report->seq);
    *out = h;
    return CDDP_OK;
}

const struct hang_rank *hang_find(const struct hang *h, int32_t rank)
{
    size_t low = 0, high = h->n;

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (h->ranks[mid].report->rank < rank)
            low = mid + 1;
        else
            high = mid;
    }
    return low < h->n && h->ranks[low].report->rank == rank ? &h->ranks[low] : NULL;
}

bool hang_is_late(const struct hang *h, int32_t rank)
{
    const struct hang_rank *r = h->n_late > 0 ? hang_find(h, rank) : NULL;

    return r != NULL && r->late;
}

const struct hang_rank *hang_first(const struct hang *h)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->ranks[i].late)
            return &h->ranks[i];
    return NULL;
}
