/* SPDX-License-Identifier: Apache-2.0 */
#include "watch/node/torch_watch.h"

#include "common/rank_list.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define GROUPS_SHOWN 8
#define QUIET_MS 30 /* less says nothing: a tick of the kernel's clock is 10 ms */
#define QUIET_PERCENT 1
#define MEASURE_MS 10000
#define FEW_PART 8

/* --------------------------------------------------------------------------------------------------- deciding ---- */

void torch_pulse_note(struct torch_pulse *p, uint64_t cpu_ms, bool runs, int64_t now_ms)
{
    uint64_t used = cpu_ms - p->cpu_ms;
    bool first = p->since_ms == 0 || cpu_ms < p->cpu_ms;
    bool quiet = !first && !runs && (used <= QUIET_MS || used * 100 <= (uint64_t)(now_ms - p->base_ms) * QUIET_PERCENT);

    if (!quiet)
        p->since_ms = now_ms;
    /* Measured over a short time, so that work after a long standstill counts at once. */
    if (!quiet || now_ms - p->base_ms >= MEASURE_MS) {
        p->base_ms = now_ms;
        p->cpu_ms = cpu_ms;
    }
}

void torch_pulse_skip(struct torch_pulse *p, uint64_t cpu_ms, int64_t now_ms)
{
    p->base_ms = now_ms;
    p->cpu_ms = cpu_ms;
}

int64_t torch_pulse_quiet_ms(const struct torch_pulse *p, int64_t now_ms)
{
    return p->since_ms == 0 ? 0 : now_ms - p->since_ms;
}

enum torch_standstill torch_decide(const struct torch_pulse *v, size_t n, int64_t warning_ms, int64_t now_ms)
{
    size_t n_busy = 0, few = n / FEW_PART > 1 ? n / FEW_PART : 1;

    for (size_t i = 0; i < n; i++) {
        int64_t quiet_ms = torch_pulse_quiet_ms(&v[i], now_ms);

        if (quiet_ms >= warning_ms)
            continue;
        /* It may be on the way to stand still, too: then it is too early to say who burns. */
        if (v[i].since_ms == 0 || quiet_ms > warning_ms / 4)
            return TORCH_RUNS;
        n_busy++;
    }
    if (n == 0 || n_busy == n || n_busy > few)
        return TORCH_RUNS;
    return n_busy == 0 ? TORCH_IDLE : TORCH_BURNS;
}

void torch_note_told(struct torch_pulse *v, size_t n, int64_t warning_ms, int64_t now_ms)
{
    for (size_t i = 0; i < n; i++)
        v[i].told_ms = torch_pulse_quiet_ms(&v[i], now_ms) >= warning_ms ? now_ms : 0;
}

bool torch_has_moved(const struct torch_pulse *v, size_t n)
{
    size_t n_quiet = 0, n_moved = 0;

    for (size_t i = 0; i < n; i++) {
        n_quiet += v[i].told_ms != 0;
        n_moved += v[i].told_ms != 0 && v[i].since_ms > v[i].told_ms;
    }
    return 2 * n_moved >= n_quiet;
}

void torch_note_again(struct torch_pulse *v, size_t n, int64_t now_ms)
{
    for (size_t i = 0; i < n; i++)
        if (v[i].told_ms != 0 && v[i].since_ms <= v[i].told_ms)
            v[i].since_ms = now_ms;
}

/* ----------------------------------------------------------------------------------------------------- places ---- */

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* Code of PyTorch, in which a rank waits for others: communication, or a backward pass, which communicates. */
static bool is_waiting_frame(const struct python_frame *f)
{
    return starts_with(f->file, "torch/distributed/") || starts_with(f->file, "torch/autograd/") ||
           strcmp(f->file, "torch/nn/parallel/distributed.py") == 0 || strcmp(f->file, "torch/_tensor.py") == 0;
}

/* The innermost frame decides: a function that a backward pass or a hook calls is not PyTorch's. */
static bool is_waiting(const struct torch_rank *r)
{
    return r->key[0] != '\0' || (r->n_frames > 0 && is_waiting_frame(&r->frames[0]));
}

/* The innermost frame of the program itself, outside of PyTorch; NULL: none is known. */
static const struct python_frame *own_frame(const struct torch_rank *r)
{
    for (uint32_t i = 1; i < r->n_frames; i++)
        if (!starts_with(r->frames[i].file, "torch/"))
            return &r->frames[i];
    return NULL;
}

static int compare_frames(const struct python_frame *a, const struct python_frame *b)
{
    int by = (b == NULL) - (a == NULL);

    if (a == NULL || b == NULL)
        return by;
    by = strcmp(a->file, b->file);
    if (by == 0)
        by = strcmp(a->function, b->function);
    return by != 0 ? by : (a->line > b->line) - (a->line < b->line);
}

/* 0: the ranks stand at one place. */
static int compare_places(const struct torch_rank *a, const struct torch_rank *b)
{
    int by = (a->n_frames == 0) - (b->n_frames == 0);

    if (by != 0)
        return by;
    by = a->n_frames == 0 ? strcmp(a->why, b->why) : compare_frames(&a->frames[0], &b->frames[0]);
    if (by == 0)
        by = compare_frames(own_frame(a), own_frame(b));
    if (by == 0)
        by = strcmp(a->key, b->key);
    return by;
}

static int compare_suspects(const void *p, const void *q)
{
    const struct torch_rank *a = p, *b = q;
    int by = b->suspect - a->suspect;

    if (by == 0)
        by = compare_places(a, b);
    return by != 0 ? by : (a->rank > b->rank) - (a->rank < b->rank);
}

/* Marks those that are elsewhere than more than half of all. */
static void suspect_minority(struct torch_rank *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t same = 0;

        for (size_t k = 0; k < n; k++)
            same += compare_places(&v[i], &v[k]) == 0;
        if (2 * same <= n)
            continue;
        for (size_t k = 0; k < n; k++)
            v[k].suspect = compare_places(&v[i], &v[k]) != 0;
        return;
    }
}

static void find_suspects(struct torch_rank *v, size_t n)
{
    size_t n_waiting = 0;

    for (size_t i = 0; i < n; i++)
        n_waiting += is_waiting(&v[i]);
    for (size_t i = 0; i < n; i++)
        v[i].suspect = n_waiting > 0 && !is_waiting(&v[i]);
    if (n_waiting == 0 || n_waiting == n)
        suspect_minority(v, n);
}

/* ------------------------------------------------------------------------------------------------------- text ---- */

#define SECONDS_TEXT 32
#define TENTHS_BELOW_MS 10000

static const char *seconds_text(int64_t ms, char buf[SECONDS_TEXT])
{
    if (ms < TENTHS_BELOW_MS)
        (void)snprintf(buf, SECONDS_TEXT, "%" PRId64 ".%d s", ms / 1000, (int)(ms / 100 % 10));
    else
        (void)snprintf(buf, SECONDS_TEXT, "%" PRId64 " s", ms / 1000);
    return buf;
}

static const char *state_text(const struct torch_rank *r)
{
    switch (r->state) {
    case 'T':
        return "stopped by a signal";
    case 't':
        return "stopped by a debugger";
    case 'D':
        return "in the kernel (state D)";
    case 'Z':
    case 'X':
        return "ended";
    default:
        return r->quiet ? "asleep" : "burning its processor";
    }
}

static cddp_status put_frame(const struct python_frame *f, struct cdi_buf *out)
{
    return f->line > 0 ? cdi_buf_printf(out, "%s (%s:%d)", f->function, f->file, f->line)
                       : cdi_buf_printf(out, "%s (%s)", f->function, f->file);
}

/* Of a suspect all frames, of others the innermost one of PyTorch and of the program. */
static cddp_status put_place(const struct torch_rank *r, struct cdi_buf *out)
{
    const struct python_frame *own = own_frame(r);
    cddp_status st;

    if (r->n_frames == 0)
        return cdi_buf_printf(out, "%s", r->why[0] != '\0' ? r->why : "not in Python code");
    st = cdi_buf_printf(out, "in ");
    if (st == CDDP_OK)
        st = put_frame(&r->frames[0], out);
    if (!r->suspect && own != NULL) {
        st = st == CDDP_OK ? cdi_buf_printf(out, ", called from ") : st;
        return st == CDDP_OK ? put_frame(own, out) : st;
    }
    for (uint32_t i = 1; st == CDDP_OK && r->suspect && i < r->n_frames; i++) {
        st = cdi_buf_printf(out, i == 1 ? ", called from " : ", ");
        if (st == CDDP_OK)
            st = put_frame(&r->frames[i], out);
    }
    return st == CDDP_OK && r->suspect && r->cut ? cdi_buf_printf(out, ", ...") : st;
}

static cddp_status put_names(const struct torch_rank *v, size_t n, const char *host, struct cdi_buf *out)
{
    struct cdi_rank_list ranks = {0};

    if (n == 1)
        return cdi_buf_printf(out, "\n    rank %d (pid %d on %s, %s): ", v->rank, v->pid, host, state_text(v));
    for (size_t i = 0; i < n; i++)
        cdi_rank_list_add(&ranks, v[i].rank);
    return cdi_buf_printf(out, "\n    ranks %s: ", ranks.text);
}

/* Of ranks that wait for the same key: the shortest time is true for all. */
static cddp_status put_key(const struct torch_rank *v, size_t n, struct cdi_buf *out)
{
    int64_t shortest_ms = v->key_ms;
    char seconds[SECONDS_TEXT];

    for (size_t i = 1; i < n; i++)
        if (v[i].key_ms < shortest_ms)
            shortest_ms = v[i].key_ms;
    return cdi_buf_printf(out, "; waiting for the store's key '%s' for %s", v->key, seconds_text(shortest_ms, seconds));
}

/* Writes one line for ranks at one place. */
static cddp_status put_group(const struct torch_rank *v, size_t n, const char *host, struct cdi_buf *out)
{
    cddp_status st = put_names(v, n, host, out);

    if (st == CDDP_OK)
        st = put_place(v, out);
    return st == CDDP_OK && v->key[0] != '\0' ? put_key(v, n, out) : st;
}

static int by_rank(const void *p, const void *q)
{
    const struct torch_rank *a = p, *b = q;

    return (a->rank > b->rank) - (a->rank < b->rank);
}

/* The ranks share a path up to the rank, unless they have set different ones. */
static cddp_status put_dumps(struct torch_rank *v, size_t n, struct cdi_buf *out)
{
    cddp_status st = CDDP_OK;

    qsort(v, n, sizeof *v, by_rank);
    for (size_t i = 0, k; st == CDDP_OK && i < n; i++) {
        struct cdi_rank_list ranks = {0};

        for (k = 0; k < i && strcmp(v[k].dump, v[i].dump) != 0; k++)
            ;
        if (v[i].dump[0] == '\0' || k < i)
            continue;
        for (size_t j = i; j < n; j++)
            if (strcmp(v[j].dump, v[i].dump) == 0)
                cdi_rank_list_add(&ranks, v[j].rank);
        st = cdi_buf_printf(out, "\n    dumps of PyTorch's flight recorder: %sRANK, RANK is %s", v[i].dump, ranks.text);
    }
    return st;
}

static cddp_status put_groups(const struct torch_rank *v, size_t n, const char *host, struct cdi_buf *out)
{
    cddp_status st = CDDP_OK;
    size_t groups = 0;

    for (size_t i = 0, end; st == CDDP_OK && i < n; i = end) {
        for (end = i; end < n && v[end].suspect == v[i].suspect && compare_places(&v[i], &v[end]) == 0; end++)
            ;
        if (++groups > GROUPS_SHOWN)
            return cdi_buf_printf(out, "\n    and %zu more ranks elsewhere", n - i);
        st = put_group(v + i, end - i, host, out);
    }
    return st;
}

cddp_status torch_watch_text(struct torch_rank *v, size_t n, enum torch_standstill kind, int64_t quiet_ms,
                             const char *host, struct cdi_buf *out)
{
    size_t n_quiet = 0;
    char seconds[SECONDS_TEXT];
    cddp_status st;

    for (size_t i = 0; i < n; i++)
        n_quiet += v[i].quiet;
    find_suspects(v, n);
    qsort(v, n, sizeof *v, compare_suspects);
    (void)seconds_text(quiet_ms, seconds);
    if (kind == TORCH_BURNS)
        st = cdi_buf_printf(out, "%zu of the %zu workers of this node %s used %s for %s, and none has ended:", n_quiet,
                            n, n_quiet == 1 ? "has not" : "have not",
                            n_quiet == 1 ? "its processor" : "their processors", seconds);
    else
        st = cdi_buf_printf(out, "no worker of this node has used its processor for %s, and none has ended:", seconds);
    st = st == CDDP_OK ? put_groups(v, n, host, out) : st;
    return st == CDDP_OK ? put_dumps(v, n, out) : st;
}

void torch_again_text(size_t n, int64_t after_ms, char buf[TORCH_NOTE])
{
    char seconds[SECONDS_TEXT];

    (void)snprintf(buf, TORCH_NOTE, "the %s of this node %s again, after %s", n == 1 ? "worker" : "workers",
                   n == 1 ? "uses its processor" : "use their processors", seconds_text(after_ms, seconds));
}
