/* SPDX-License-Identifier: Apache-2.0 */
#include "common/rank_ranges.h"
#include "protocol/places.h"
#include "watch/hang.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define GROUPS_MAX 5 /* lines about ranks in equal places; the last one has all others */
#define RANGES_MAX 8
#define RANGES_TEXT (RANGES_MAX * 24 + 32)
#define LINE_MAX_BYTES 400 /* of a stack's line */
#define INDENT "    "

/* ------------------------------------------------------------------------------------------------- one rank ---- */

/* Where it is, since when; peer: the other rank of a message, or -1; whole: with size and names. */
static cddp_status put_place(struct cdi_buf *out, const struct hang_rank *rank, int32_t peer, bool whole)
{
    unsigned with = CDI_CALL_BUCKET | CDI_CALL_STEP | (whole ? CDI_CALL_SIZE | CDI_CALL_NAMES : 0);
    char text[CDI_PLACES_TEXT];

    cdi_place_text(rank->report, rank->for_ms, peer, with, text);
    return cdi_buf_append(out, text, strlen(text));
}

static cddp_status put_doing(struct cdi_buf *out, const struct hang_rank *rank)
{
    const char *doing = rank->report->doing;
    cddp_status st = doing[0] == '\0' ? CDDP_OK : cdi_buf_append(out, ", ", 2);

    return st == CDDP_OK ? cdi_buf_append(out, doing, strnlen(doing, sizeof rank->report->doing)) : st;
}

static cddp_status put_who(struct cdi_buf *out, const struct hang_rank *rank)
{
    cddp_status st = cdi_buf_printf(out, "rank %d (pid %" PRId64 " on ", rank->report->rank, rank->report->pid);

    if (st == CDDP_OK)
        st = cdi_buf_append(out, rank->node->host, strnlen(rank->node->host, sizeof rank->node->host));
    return st == CDDP_OK ? cdi_buf_append(out, ")", 1) : st;
}

/* ------------------------------------------------------------------------------------- ranks in equal places ---- */

/* The n ranks of a group; 0: those without a report. */
static cddp_status put_group(struct cdi_buf *out, const struct hang *h, uint8_t group, size_t n)
{
    struct cdi_rank_ranges ranges;
    char text[RANGES_TEXT];
    size_t at = 0;

    cdi_rank_ranges_begin(&ranges, text, sizeof text, RANGES_MAX);
    for (uint32_t rank = 0; rank < h->world_size; rank++) {
        bool known;

        while (at < h->n && h->ranks[at].report->rank < (int32_t)rank)
            at++;
        known = at < h->n && h->ranks[at].report->rank == (int32_t)rank;
        if (known ? h->ranks[at].group == group && group > 0 : group == 0)
            cdi_rank_ranges_add(&ranges, rank);
    }
    (void)cdi_rank_ranges_end(&ranges);
    return cdi_buf_printf(out, n == 1 ? "rank %s" : "ranks %s", text);
}

static bool same_place(const struct hang_rank *a, const struct hang_rank *b)
{
    const struct cdi_rank_report *x = a->report, *y = b->report;

    return a->late == b->late && x->place == y->place && x->op == y->op && x->seq == y->seq && x->count == y->count &&
           x->dtype == y->dtype && x->bucket == y->bucket && x->replay == y->replay && x->step == y->step &&
           strcmp(x->part, y->part) == 0 && (!a->late || (strcmp(x->doing, y->doing) == 0 && x->peer == y->peer));
}

/* Numbers the groups from 1: of the late ranks, or of the others. The last number is for all that are left. */
static unsigned group_ranks(const struct hang *h, bool late)
{
    const struct hang_rank *first[GROUPS_MAX];
    unsigned n = 0;

    for (size_t i = 0; i < h->n; i++) {
        struct hang_rank *r = &h->ranks[i];
        unsigned g = 0;

        r->group = 0;
        if (r->late != late)
            continue;
        while (g < n && !same_place(first[g], r))
            g++;
        if (g == n && n < GROUPS_MAX)
            first[n++] = r;
        r->group = (uint8_t)(g < GROUPS_MAX - 1 ? g + 1 : GROUPS_MAX);
    }
    return n;
}

/* Sets *n to the size of a group, and *least to its rank with the shortest time: the text is true for all ranks. */
static void measure_group(const struct hang *h, uint8_t group, size_t *n, const struct hang_rank **least)
{
    *n = 0;
    *least = NULL;
    for (size_t i = 0; i < h->n; i++) {
        if (h->ranks[i].group != group)
            continue;
        ++*n;
        if (*least == NULL || h->ranks[i].for_ms < (*least)->for_ms)
            *least = &h->ranks[i];
    }
}

/* The rank that all of a group wait for; -1: they wait for several, or it is not known. */
static int32_t peer_of_group(const struct hang *h, uint8_t group, const struct hang_rank *like)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->ranks[i].group == group && h->ranks[i].report->peer != like->report->peer)
            return -1;
    return like->report->peer;
}

static bool is_mixed(const struct hang *h, uint8_t group, const struct hang_rank *like)
{
    for (size_t i = 0; i < h->n; i++)
        if (h->ranks[i].group == group && !same_place(&h->ranks[i], like))
            return true;
    return false;
}

static cddp_status put_line_of_group(struct cdi_buf *out, const struct hang *h, uint8_t group)
{
    const struct hang_rank *r;
    cddp_status st;
    size_t n;

    measure_group(h, group, &n, &r);
    if (r == NULL)
        return CDDP_OK;
    st = cdi_buf_printf(out, "\n" INDENT);
    if (st == CDDP_OK)
        st = n == 1 && r->late ? put_who(out, r) : put_group(out, h, group, n);
    if (st == CDDP_OK && is_mixed(h, group, r))
        return cdi_buf_printf(out, r->late ? ": elsewhere" : " are elsewhere");
    if (st == CDDP_OK)
        st = cdi_buf_printf(out, r->late    ? ": "
                                 : r->waits ? (n == 1 ? " waits " : " wait ")
                                            : (n == 1 ? " is " : " are "));
    if (st == CDDP_OK)
        st = put_place(out, r, peer_of_group(h, group, r), r->waits);
    return st == CDDP_OK && r->late ? put_doing(out, r) : st;
}

static cddp_status put_groups(struct cdi_buf *out, const struct hang *h, bool late)
{
    unsigned n = group_ranks(h, late);
    cddp_status st = CDDP_OK;

    for (unsigned g = 1; g <= n && st == CDDP_OK; g++)
        st = put_line_of_group(out, h, (uint8_t)g);
    return st;
}

/* -------------------------------------------------------------------------------------------------- stacks ---- */

static int count_rows(const struct cdi_buf *b, size_t from)
{
    const uint8_t *bytes = cdi_buf_data(b);
    int rows = 1;

    for (size_t i = from; i < b->len; i++)
        rows += bytes[i] == '\n';
    return rows;
}

/* Appends at most `rows` lines of a stack. */
static cddp_status put_stack(struct cdi_buf *out, const struct hang_rank *r, int rows)
{
    const char *line = r->report->stack;
    cddp_status st;

    if (rows < 2)
        return CDDP_OK;
    st = cdi_buf_printf(out, "\n" INDENT "rank %d's stack:", r->report->rank);
    for (int i = 1; i < rows && *line != '\0' && st == CDDP_OK; i++) {
        size_t n = strcspn(line, "\n");

        if (i == rows - 1 && line[n] == '\n' && line[n + 1] != '\0')
            return cdi_buf_printf(out, "\n" INDENT INDENT "...");
        st = cdi_buf_printf(out, "\n" INDENT INDENT);
        if (st == CDDP_OK)
            st = cdi_buf_append(out, line, n < LINE_MAX_BYTES ? n : LINE_MAX_BYTES);
        line += n + (line[n] == '\n');
    }
    return st;
}

cddp_status hang_stacks(const struct hang *h, int rows, struct cdi_buf *out)
{
    cddp_status st = CDDP_OK;
    int n = 0;

    for (size_t i = 0; i < h->n; i++)
        n += h->ranks[i].late && h->ranks[i].report->stack != NULL;
    for (size_t i = 0; i < h->n && n > 0 && rows >= 2 && st == CDDP_OK; i++) {
        size_t from = out->len;

        if (!h->ranks[i].late || h->ranks[i].report->stack == NULL)
            continue;
        st = put_stack(out, &h->ranks[i], rows / n > 4 ? rows / n : 4 < rows ? 4 : rows);
        rows -= count_rows(out, from) - 1;
        n--;
    }
    return st;
}

/* ----------------------------------------------------------------------------------------------- the message ---- */

cddp_status hang_cycle_text(const struct hang *h, struct cdi_buf *out)
{
    cddp_status st = cdi_buf_printf(out, "%zu ranks wait for each other in messages: ", h->n_late);
    size_t shown = 0;

    for (size_t i = 0; i < h->n; i++)
        h->ranks[i].group = 0;
    for (size_t i = 0; i < h->n && st == CDDP_OK; i++) /* one circle after the other, from its lowest rank */
        for (struct hang_rank *r = &h->ranks[i]; r != NULL && r->late && r->group == 0 && st == CDDP_OK;
             r = (struct hang_rank *)(uintptr_t)hang_find(h, r->report->peer)) {
            r->group = 1;
            if (shown++ < RANGES_MAX)
                st = cdi_buf_printf(out, "%srank %d for rank %d", shown > 1 ? ", " : "", r->report->rank,
                                    r->report->peer);
        }
    return st == CDDP_OK && shown > RANGES_MAX ? cdi_buf_printf(out, " and %zu more", shown - RANGES_MAX) : st;
}

/* Whether the ranks are in messages: then they are not in one collective, though their calls look the same. */
static bool in_messages(const struct hang *h)
{
    return h->n > 0 && (h->ranks[0].report->op == CDI_FLIGHT_SEND || h->ranks[0].report->op == CDI_FLIGHT_RECV);
}

static cddp_status put_headline(struct cdi_buf *out, const struct hang *h)
{
    static const char *const one[] = {
        [HANG_BEHIND] = " is behind: ", [HANG_HALTED] = " cannot go on: ", [HANG_ELSEWHERE] = " is elsewhere: "};
    static const char *const many[] = {[HANG_BEHIND] = "are behind",
                                       [HANG_HALTED] = "are in a collective and cannot go on",
                                       [HANG_ELSEWHERE] = "are in other collectives than most"};
    cddp_status st = cdi_buf_printf(out, "no progress for %lld s: ", (long long)(h->waited_ms + HANG_SLACK_MS) / 1000);

    if (st != CDDP_OK)
        return st;
    if (h->kind == HANG_CYCLE)
        return hang_cycle_text(h, out);
    if (h->kind == HANG_ALL && in_messages(h))
        return cdi_buf_printf(out, "all %zu ranks wait in messages", h->n);
    if (h->kind == HANG_ALL)
        return cdi_buf_printf(out, "all %zu ranks wait in one collective", h->n);
    if (h->kind == HANG_SPLIT)
        return cdi_buf_printf(out, "the ranks wait in different collectives");
    if (h->kind == HANG_SILENT || h->kind == HANG_NONE) {
        st = put_group(out, h, 0, h->n_silent);
        return st == CDDP_OK ? cdi_buf_printf(out, " cannot be seen: their node does not answer") : st;
    }
    if (h->n_late > 1)
        return cdi_buf_printf(out, "%zu ranks %s", h->n_late, many[h->kind]);
    st = put_who(out, hang_first(h));
    if (st == CDDP_OK)
        st = cdi_buf_append(out, one[h->kind], strlen(one[h->kind]));
    if (st == CDDP_OK)
        st = put_place(out, hang_first(h), hang_first(h)->report->peer, h->kind == HANG_ELSEWHERE);
    return st == CDDP_OK ? put_doing(out, hang_first(h)) : st;
}

cddp_status hang_text(const struct hang *h, struct cdi_buf *out)
{
    size_t from = out->len;
    cddp_status st = put_headline(out, h);

    if (st == CDDP_OK && h->n_late > 1)
        st = put_groups(out, h, true);
    if (st == CDDP_OK)
        st = put_groups(out, h, false);
    if (st == CDDP_OK && h->n_silent > 0 && h->kind != HANG_SILENT) {
        st = cdi_buf_printf(out, "\n" INDENT);
        if (st == CDDP_OK)
            st = put_group(out, h, 0, h->n_silent);
        if (st == CDDP_OK)
            st = cdi_buf_printf(out, ": no answer from their node");
    }
    return st == CDDP_OK ? hang_stacks(h, HANG_ROWS - count_rows(out, from), out) : st;
}
