/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/screen.h"

#include "common/size_text.h"
#include "watch/explain.h"
#include "watch/reply.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HUNDRED 100
#define SMALL 6 /* lines, below which only the most important ones have room */

/* ----------------------------------------------------------------------------------------------------- lines ---- */

static struct screen_line *add_line(struct screen *s, unsigned height, enum screen_look look)
{
    struct screen_line *l;

    if (s->n >= height)
        return NULL;
    l = &s->lines[s->n++];
    l->look = look;
    l->text[0] = '\0';
    return l;
}

/* Appends text, printable and cut to the width. */
static void add_text(struct screen_line *l, unsigned width, const char *text)
{
    size_t at = l == NULL ? 0 : strlen(l->text);

    for (; l != NULL && *text != '\0' && at < width; text++)
        l->text[at++] = (unsigned char)*text >= ' ' && (unsigned char)*text < 0x7f ? *text : '?';
    if (l != NULL)
        l->text[at] = '\0';
}

__attribute__((format(printf, 3, 4))) static void add_format(struct screen_line *l, unsigned width, const char *fmt,
                                                             ...)
{
    char text[400];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    add_text(l, width, text);
}

/* Writes text to the end of the line's right side, if there is room after what it has. */
static void add_right(struct screen_line *l, unsigned width, const char *text)
{
    size_t at = l == NULL ? 0 : strlen(l->text), n = strlen(text);

    if (l == NULL || n == 0 || at + n + 2 > width)
        return;
    memset(l->text + at, ' ', width - n - at);
    l->text[width - n] = '\0';
    add_text(l, width, text);
}

/* ------------------------------------------------------------------------------------------------ text of a job ----
 */

/* A job that is shown. */
struct screen_job {
    struct page_job *j;              /* its ranks in the order of rows: the late ones first */
    const struct page_job *previous; /* NULL: not known */
    int64_t between_ms;
    uint64_t most_step;
};

/* The number of steps that a rank had completed in the reply before; -1: not known. */
static int64_t previous_step(const struct page_job *j, int32_t rank)
{
    for (size_t i = 0; j != NULL && i < j->n_placed; i++)
        if (j->placed[i].r->rank == rank)
            return (int64_t)j->placed[i].r->step;
    return -1;
}

/* Steps per second: of the last steps' times, otherwise of the two replies; negative: not known. */
static double rate_of(const struct screen_job *j, const struct cdi_rank_report *r)
{
    int64_t before;

    if (r->place == CDI_PLACE_EXITED)
        return -1;
    if (r->step_us > 0)
        return cdi_places_rate(r);
    before = j->between_ms > 0 ? previous_step(j->previous, r->rank) : -1;
    return before < 0 || (uint64_t)before > r->step
               ? -1
               : (double)(r->step - (uint64_t)before) * 1000 / (double)j->between_ms;
}

static int percent(uint64_t part, uint64_t whole)
{
    return whole == 0 ? -1 : part >= whole ? HUNDRED : (int)((double)part * HUNDRED / (double)whole);
}

static void job_line(const struct screen_job *s, struct screen_line *l, unsigned width)
{
    const struct page_job *j = s->j;
    double rate = j->n_placed > 0 ? rate_of(s, j->placed[0].r) : -1;

    add_format(l, width, "%.60s: %.16s, round %" PRIu32 ", %" PRIu32 " restart%s, %" PRIu32 " rank%s, %zu node%s",
               j->run_id, j->state, j->round, j->restarts, plural_of(j->restarts), j->world_size,
               plural_of(j->world_size), j->n_nodes, plural_of(j->n_nodes));
    if (s->most_step > 0)
        add_format(l, width, ", step %" PRIu64, j->placed[0].r->step);
    if (rate >= 0)
        add_format(l, width, rate < HUNDRED ? ", %.1f steps/s" : ", %.0f steps/s", rate);
}

/* It has fewer steps than others, or they wait for it. */
static bool is_late(const struct screen_job *j, const struct cdi_placed *r)
{
    return r->r->step < j->most_step || r->r->late != 0;
}

/* The ranks that are named as late, and how much of communication is hidden. */
static void facts_line(const struct screen_job *s, struct screen_line *l, unsigned width)
{
    const struct page_job *j = s->j;
    int hidden = cdi_places_hidden(&j->sum);
    uint64_t n_late = 0;

    for (size_t i = 0; i < j->n_placed; i++)
        n_late += is_late(s, &j->placed[i]);
    add_format(l, width, "%" PRIu64 " late rank%s", n_late, plural_of(n_late));
    if (hidden >= 0)
        add_format(l, width, ", %d %% of communication hidden", hidden);
    if (j->sum.slowest >= 0)
        add_format(l, width, ", slowest rank %" PRId32, j->sum.slowest);
    if (j->n_placed < j->world_size)
        add_format(l, width, ", %zu rank%s of %" PRIu32 " have reported", j->n_placed, plural_of(j->n_placed),
                   j->world_size);
}

static void percent_text(int value, char *to, size_t cap)
{
    if (value < 0)
        (void)snprintf(to, cap, "-");
    else
        (void)snprintf(to, cap, "%d %%", value);
}

/* Where a rank is, such as "in all_reduce #812, for 4 s"; then what its process does. */
static void where_of(const struct cdi_rank_report *r, char *to, size_t cap)
{
    char place[CDI_PLACES_TEXT];

    cdi_place_text(r, r->for_ms, r->peer, 0, place);
    (void)snprintf(to, cap, "%s%s%s", place, r->doing[0] != '\0' ? "; " : "", r->doing);
}

/* The columns, in their order; a narrow terminal has the first ones, and the place. */
enum column { RANK, NODE, STEP, LATE, RATE, WAIT, HIDDEN, MEMORY, CORES, GPU, N_COLUMNS };
static const struct {
    const char *name;
    unsigned width;
    unsigned from; /* the least width of the terminal that has it */
} columns[] = {[RANK] = {"RANK", 6, 0},       [NODE] = {"NODE", 16, 100},   [STEP] = {"STEP", 9, 18},
               [LATE] = {"LATE", 7, 40},      [RATE] = {"STEPS/S", 8, 50},  [WAIT] = {"WAITS", 6, 60},
               [HIDDEN] = {"HIDDEN", 7, 110}, [MEMORY] = {"MEMORY", 9, 72}, [CORES] = {"CORES", 6, 72},
               [GPU] = {"GPU", 6, 80}};

static void cell(const struct screen_job *j, const struct cdi_placed *k, enum column c, char *to, size_t cap)
{
    const struct cdi_rank_report *r = k->r;
    bool still = cdi_places_stands_still(r);
    char size[CDI_SIZE_TEXT];
    double rate;

    switch (c) {
    case RANK:
        (void)snprintf(to, cap, "%" PRId32, r->rank);
        return;
    case NODE:
        (void)snprintf(to, cap, "%" PRId32 " %.12s", k->node_rank, k->host);
        return;
    case STEP:
        (void)snprintf(to, cap, "%" PRIu64, r->step);
        return;
    case LATE:
        (void)snprintf(to, cap,
                       r->step < j->most_step ? "%" PRIu64
                       : r->late != 0         ? "yes"
                                              : "-",
                       j->most_step - r->step);
        return;
    case RATE:
        rate = rate_of(j, r);
        (void)snprintf(to, cap, rate < 0 ? "-" : rate < HUNDRED ? "%.1f" : "%.0f", rate);
        return;
    case WAIT:
        percent_text(still ? -1 : percent(r->late_us, r->step_us), to, cap);
        return;
    case HIDDEN:
        percent_text(still || r->comm_us == 0 ? -1 : HUNDRED - percent(r->exposed_us, r->comm_us), to, cap);
        return;
    case MEMORY:
        (void)snprintf(to, cap, "%s", r->resident_bytes == 0 ? "-" : cdi_size_text(size, (double)r->resident_bytes));
        return;
    case CORES:
        (void)snprintf(to, cap, r->resident_bytes == 0 && r->cpu_permille == 0 ? "-" : "%.2f",
                       r->cpu_permille / 1000.0);
        return;
    case GPU:
        percent_text(r->gpu_permille < 0 ? -1 : r->gpu_permille > 1000 ? HUNDRED : r->gpu_permille / 10, to, cap);
        return;
    case N_COLUMNS:
        return;
    }
}

/* Writes the row of a rank; NULL: the names of the columns. */
static void rank_line(const struct screen_job *j, const struct cdi_placed *r, struct screen_line *l, unsigned width)
{
    char text[CDI_PLACES_TEXT + sizeof "; " + sizeof r->r->doing], padded[64];

    for (int c = 0; c < N_COLUMNS; c++) {
        if (width < columns[c].from || (c == GPU && j->j->sum.n_gpus == 0))
            continue;
        if (r != NULL)
            cell(j, r, (enum column)c, text, sizeof text);
        else
            (void)snprintf(text, sizeof text, "%s", columns[c].name);
        (void)snprintf(padded, sizeof padded, c == NODE ? " %-*.*s" : "%*.*s", (int)columns[c].width - (c == NODE),
                       (int)columns[c].width - 1, text);
        add_text(l, width, padded);
    }
    if (r != NULL)
        where_of(r->r, text, sizeof text);
    add_text(l, width, "  ");
    add_text(l, width, r != NULL ? text : "WHERE");
}

/* ------------------------------------------------------------------------------------------------------ jobs ---- */

struct screen_jobs {
    struct reply_jobs now, before;
    struct screen_job *v;
    size_t n;
};

/* A rank that has not entered a collective is later than one that is in it. */
static int place_order(enum cdi_place p)
{
    return p == CDI_PLACE_IN || p == CDI_PLACE_IN_REPLAY ? 1 : 0;
}

static int compare_u64(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int compare_ranks(const void *a, const void *b)
{
    const struct cdi_rank_report *x = ((const struct cdi_placed *)a)->r, *y = ((const struct cdi_placed *)b)->r;
    int order = compare_u64(y->late, x->late);

    if (order == 0)
        order = compare_u64(x->step, y->step);
    if (order == 0)
        order = compare_u64(x->seq, y->seq);
    if (order == 0)
        order = place_order(x->place) - place_order(y->place);
    return order != 0 ? order : compare_u64((uint64_t)x->rank, (uint64_t)y->rank);
}

static const struct page_job *find_job(const struct reply_jobs *r, const struct page_job *like)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->v[i].facts.run_id, like->run_id) == 0 && r->v[i].facts.round == like->round)
            return &r->v[i].facts;
    return NULL;
}

static cddp_status read_jobs(struct screen_jobs *v, const struct screen_input *in)
{
    cddp_status st = reply_read(in->reply, false, PAGE_GROUPS_MAX, &v->now, NULL);

    v->before = (struct reply_jobs){.n = 0};
    if (st == CDDP_OK)
        st = reply_read(in->previous, false, PAGE_GROUPS_MAX, &v->before, NULL);
    v->n = st == CDDP_OK ? v->now.n : 0;
    v->v = calloc(v->n + 1, sizeof *v->v);
    if (v->v == NULL)
        return CDDP_E_NOMEM;
    for (size_t i = 0; i < v->n; i++) {
        struct page_job *j = &v->now.v[i].facts;

        v->v[i] = (struct screen_job){.j = j, .previous = find_job(&v->before, j), .between_ms = in->between_ms};
        qsort(j->placed, j->n_placed, sizeof *j->placed, compare_ranks);
        for (size_t k = 0; k < j->n_placed; k++)
            if (j->placed[k].r->step > v->v[i].most_step)
                v->v[i].most_step = j->placed[k].r->step;
    }
    return st;
}

static void release_jobs(struct screen_jobs *v)
{
    reply_release(&v->now);
    reply_release(&v->before);
    free(v->v);
}

/* ---------------------------------------------------------------------------------------------------- screen ---- */

/* The rows below the head: the ranks of the only job; or of each job its line, the names of columns and its ranks. */
static size_t rows_of(const struct screen_jobs *v)
{
    size_t n = 0;

    for (size_t i = 0; i < v->n; i++)
        n += v->v[i].j->n_placed + (v->n > 1 ? 2 : 0);
    return n;
}

static void add_row(const struct screen_jobs *v, size_t row, struct screen *s, unsigned width, unsigned height)
{
    for (size_t i = 0; i < v->n; i++) {
        const struct screen_job *j = &v->v[i];
        size_t head = v->n > 1 ? 2 : 0;
        struct screen_line *l;

        if (row >= j->j->n_placed + head) {
            row -= j->j->n_placed + head;
            continue;
        }
        l = add_line(s, height, row < head ? row == 0 ? SCREEN_TITLE : SCREEN_HEAD : SCREEN_PLAIN);
        if (l == NULL)
            return;
        if (row < head && row == 0)
            job_line(j, l, width);
        else if (row < head)
            rank_line(j, NULL, l, width);
        else
            rank_line(j, &j->j->placed[row - head], l, width);
        if (row >= head && is_late(j, &j->j->placed[row - head]))
            l->look = SCREEN_LATE;
        return;
    }
}

static void add_title(const struct screen_input *in, struct screen *s, unsigned width, unsigned height)
{
    struct screen_line *l = add_line(s, height, SCREEN_TITLE);

    if (l == NULL)
        return;
    if (in->trouble[0] != '\0' && width < strlen(in->trouble) + strlen(in->endpoint) + 18) {
        add_text(l, width, in->trouble); /* what matters most has the room */
        return;
    }
    add_text(l, width, width < 40 ? "" : "cddprun --top ");
    add_text(l, width, in->endpoint);
    add_right(l, width, in->trouble);
}

static void add_head(const struct screen_jobs *v, const struct screen_input *in, struct screen *s, unsigned width,
                     unsigned height)
{
    struct screen_line *l;

    add_title(in, s, width, height);
    if (v->n != 1) {
        l = height > SMALL || v->n == 0 ? add_line(s, height, SCREEN_PLAIN) : NULL;
        if (l != NULL)
            add_text(l, width, in->reply == NULL ? "waiting for the first answer" : v->n == 0 ? "no jobs" : "");
        return;
    }
    if ((l = add_line(s, height, SCREEN_PLAIN)) != NULL)
        job_line(&v->v[0], l, width);
    if (height > SMALL && (l = add_line(s, height, SCREEN_PLAIN)) != NULL)
        facts_line(&v->v[0], l, width);
    if (height >= 4 && (l = add_line(s, height, SCREEN_HEAD)) != NULL)
        rank_line(&v->v[0], NULL, l, width);
}

static void add_foot(const struct screen *s, struct screen_line *l, size_t rows, unsigned width)
{
    char text[100];

    (void)snprintf(text, sizeof text, "rows %u to %zu of %zu", rows > 0 ? s->scroll + 1 : 0,
                   rows < s->scroll + s->page ? rows : s->scroll + s->page, rows);
    add_text(l, width, width < 60 ? "q quits" : "q quits, arrows and PgUp/PgDn scroll");
    add_right(l, width, text);
}

cddp_status screen_compose(const struct screen_input *in, struct screen *out)
{
    unsigned width = in->width > SCREEN_WIDTH ? SCREEN_WIDTH : in->width;
    unsigned height = in->height > SCREEN_HEIGHT ? SCREEN_HEIGHT : in->height;
    bool foot = height > SMALL;
    struct screen_jobs v;
    cddp_status st = read_jobs(&v, in);
    size_t rows = st == CDDP_OK ? rows_of(&v) : 0;

    out->n = 0;
    if (st == CDDP_OK)
        add_head(&v, in, out, width, height - foot);
    out->page = out->n + foot < height ? height - foot - out->n : 0;
    out->max_scroll = rows > out->page ? (unsigned)(rows - out->page) : 0;
    out->scroll = in->scroll < out->max_scroll ? in->scroll : out->max_scroll;
    for (size_t i = 0; i < out->page && out->scroll + i < rows; i++)
        add_row(&v, out->scroll + i, out, width, height);
    while (foot && out->n + 1 < height && st == CDDP_OK)
        (void)add_line(out, height, SCREEN_PLAIN);
    if (foot && st == CDDP_OK)
        add_foot(out, add_line(out, height, SCREEN_HEAD), rows, width);
    release_jobs(&v);
    return st;
}
