/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/verdict.h"

#include "watch/explain.h"
#include "watch/hang.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *verdict_level_name(enum verdict_level level)
{
    return level == VERDICT_GOOD ? "good" : level == VERDICT_WARN ? "warn" : "bad";
}

static void judge(struct verdict *v, enum verdict_level level, const char *word)
{
    v->level = level;
    v->word = word;
}

/*
 * The group that has waited longest in a collective, of those that are late or not; NULL: none for a third of the time
 * that is an error.
 */
static const struct cdi_place_group *longest_wait(const struct page_job *j, bool late)
{
    const struct cdi_place_group *longest = NULL;

    for (size_t i = 0; i < j->n_groups; i++) {
        const struct cdi_place_group *g = &j->groups[i];

        if (!g->mixed && cdi_place_is_waiting(g->ranks[0].r) && g->for_ms >= j->stuck_ms / 3 &&
            hang_is_late(&j->hang, g->ranks[0].r->rank) == late && (longest == NULL || g->for_ms > longest->for_ms))
            longest = g;
    }
    return longest;
}

/* The group of a rank that the others wait for; NULL: they wait for none. */
static const struct cdi_place_group *late_group(const struct page_job *j, const struct cdi_place_group *wait)
{
    for (size_t i = 0; i < j->n_groups && j->hang.n_late > 0; i++)
        for (size_t k = 0; k < j->groups[i].n; k++)
            if (hang_is_late(&j->hang, j->groups[i].ranks[k].r->rank))
                return &j->groups[i];
    /* The first group is the least advanced. */
    return j->hang.kind == HANG_NONE && &j->groups[0] != wait && j->groups[0].ranks[0].r->place != CDI_PLACE_OUTSIDE
               ? &j->groups[0]
               : NULL;
}

/* "2 ranks wait for each other in messages: rank 0 for rank 1, rank 1 for rank 0, for 31 s." */
static void tell_cycle(const struct page_job *j, const char *span, struct verdict *v)
{
    struct cdi_buf text;

    cdi_buf_init(&text, sizeof v->text);
    if (hang_cycle_text(&j->hang, &text) == CDDP_OK)
        (void)snprintf(v->text, sizeof v->text, "%.*s, for %s.", (int)text.len, (const char *)cdi_buf_data(&text),
                       span);
    cdi_buf_release(&text);
}

/* The ranks that wait where this group waits: groups also differ by what their processes do. */
static size_t count_waiting(const struct page_job *j, const struct cdi_place_group *wait, const char *where)
{
    char text[CDI_PLACES_TEXT];
    size_t n = 0;

    for (size_t i = 0; i < j->n_groups; i++) {
        const struct cdi_place_group *g = &j->groups[i];

        if (g->mixed || !cdi_place_is_waiting(g->ranks[0].r) || g->for_ms < j->stuck_ms / 3 ||
            hang_is_late(&j->hang, g->ranks[0].r->rank) != hang_is_late(&j->hang, wait->ranks[0].r->rank))
            continue;
        cdi_places_where(g, text);
        n += strcmp(text, where) == 0 ? g->n : 0;
    }
    return n;
}

static void judge_wait(const struct page_job *j, const struct cdi_place_group *wait, struct verdict *v)
{
    const struct cdi_place_group *late = late_group(j, wait);
    char where[CDI_PLACES_TEXT], ranks[CDI_PLACES_RANKS], span[CDI_PLACES_SPAN], doing[CDI_PLACES_TEXT] = "";
    bool stuck = wait->for_ms >= j->stuck_ms;
    size_t n;

    judge(v, stuck ? VERDICT_BAD : VERDICT_WARN, stuck ? "Stuck" : "Waiting");
    cdi_places_where(wait, where);
    n = count_waiting(j, wait, where);
    (void)cdi_places_span(span, (double)wait->for_ms * 1e3);
    if (j->hang.kind == HANG_CYCLE) {
        tell_cycle(j, span, v);
        return;
    }
    if (late == NULL) {
        (void)snprintf(v->text, sizeof v->text, "%zu rank%s %s for %s, and no rank is late.", n, plural_of(n), where,
                       span);
        return;
    }
    cdi_places_ranks(late, ranks);
    cdi_places_doing(late, doing);
    (void)snprintf(v->text, sizeof v->text, "Rank%s %s %s late%s%s: %zu rank%s %s %s for %s.", plural_of(late->n),
                   ranks, late->n == 1 ? "is" : "are", doing[0] == '\0' ? "" : ", ", doing, n, plural_of(n),
                   n == 1 ? "has been" : "have been", where, span);
}

static size_t silent_nodes(const struct page_job *j)
{
    size_t n = 0;

    for (size_t i = 0; i < j->n_nodes; i++)
        n += !j->node[i].answered && j->node[i].ms_ago < 0 ? 1 : !j->node[i].answered && j->node[i].ms_ago > 3000;
    return n;
}

static void judge_running(const struct page_job *j, struct verdict *v)
{
    const struct cdi_place_group *wait = longest_wait(j, false);
    const struct cdi_places_sum *s = &j->sum;
    size_t silent = silent_nodes(j);

    if (wait == NULL)
        wait = longest_wait(j, true); /* they wait for each other */
    if (wait != NULL) {
        judge_wait(j, wait, v);
        return;
    }
    if (silent > 0) {
        judge(v, VERDICT_WARN, "Running");
        (void)snprintf(v->text, sizeof v->text,
                       "%zu node%s do%s not answer, so the ranks there may be elsewhere by now.", silent,
                       plural_of(silent), silent == 1 ? "es" : "");
        return;
    }
    judge(v, VERDICT_GOOD, "Running");
    if (s->n == 0)
        (void)snprintf(v->text, sizeof v->text, "%u rank%s; no node has said yet where they are.", j->world_size,
                       plural_of(j->world_size));
    else if (s->by_place[CDI_PLACE_OUTSIDE] == s->n)
        (void)snprintf(v->text, sizeof v->text, "%zu rank%s, which do%s not use libcddp: their steps are not known.",
                       s->n, plural_of(s->n), s->n == 1 ? "es" : "");
    else if (s->min_step == s->max_step)
        (void)snprintf(v->text, sizeof v->text, "%zu rank%s, %" PRIu64 " step%s done.", s->n, plural_of(s->n),
                       s->min_step, plural_of(s->min_step));
    else
        (void)snprintf(v->text, sizeof v->text, "%zu rank%s, %" PRIu64 " to %" PRIu64 " steps done.", s->n,
                       plural_of(s->n), s->min_step, s->max_step);
}

void verdict_of(const struct page_job *j, struct verdict *out)
{
    *out = (struct verdict){.level = VERDICT_WARN, .word = "Joining"};
    if (strcmp(j->state, "running") == 0) {
        judge_running(j, out);
    } else if (strcmp(j->state, "joining") == 0) {
        (void)snprintf(out->text, sizeof out->text, "%u of %u node%s %s here.", j->waiting, j->needed,
                       plural_of(j->needed), j->waiting == 1 ? "is" : "are");
    } else if (strcmp(j->state, "stopping") == 0) {
        out->word = "Stopping";
        (void)snprintf(out->text, sizeof out->text, "%.600s", j->why);
    } else {
        judge(out, j->done ? VERDICT_GOOD : VERDICT_BAD, j->done ? "Done" : "Failed");
        (void)snprintf(out->text, sizeof out->text, "%.600s", j->why);
    }
}
