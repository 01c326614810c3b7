/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/nan_check.h"

#include "common/env.h"
#include "common/float_state.h"
#include "common/rank_list.h"
#include "worker/backend/who.h"
#include "worker/base/dtype.h"
#include "worker/math/nonfinite.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/weight.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define MODE_ENV "CDDP_NAN_CHECK"
#define LINES 8           /* warnings in one step, before one that says that there are more */
#define RANK_MAX 0xffffff /* of a word */

/*
 * Words on a device: what this rank has found in even and in odd steps; and of captured steps what it has found, what
 * all have, and how many have run.
 */
enum { EVEN, ODD, MINE, ALL, COUNT, N_WORDS };

/* One step's exchange. */
struct round {
    uint64_t word;   /* of all ranks, once ticket is complete */
    uint64_t ticket; /* 0: none */
    uint64_t step;
};

struct cdi_nan_check {
    enum cdi_nan_mode mode;
    uint64_t limit;                /* for float32 */
    _Atomic uint64_t found;        /* on the host: this rank's first finding in this step */
    _Atomic int n_lines;           /* warnings in this step */
    uint64_t mine;                 /* `found`, while it is being reduced */
    uint64_t *there;               /* on a device: N_WORDS. NULL: on the host */
    struct cdi_nan_report *report; /* on a device: pinned; kernels of captured steps write it */
    uint64_t told;                 /* the number of the last report that was read */
    struct cdi_span *span;         /* on a device: buffer for the gradients of one bucket, and the word of each */
    uint64_t *words;
    struct round round[2]; /* of even and of odd steps */
    bool sent;             /* in this step */
};

/* ---------------------------------------------------------------------------------------------------- creation -- */

static cddp_status read_mode(enum cdi_nan_mode *mode, struct cdi_error *err)
{
    static const char *const names[] = {[CDI_NAN_OFF] = "off", [CDI_NAN_WARN] = "warn", [CDI_NAN_ERROR] = "error"};
    const char *text = cdi_env_str(MODE_ENV);

    *mode = CDI_NAN_OFF;
    for (size_t k = 0; text != NULL && k < sizeof names / sizeof names[0]; k++)
        if (strcasecmp(text, names[k]) == 0) {
            *mode = (enum cdi_nan_mode)k;
            text = NULL;
        }
    if (text == NULL)
        return CDDP_OK;
    return cdi_fail(err, CDDP_E_INVALID, MODE_ENV "='%.64s' is not off, warn or error", text);
}

static cddp_status init_there(cddp_ddp *d, struct cdi_nan_check *n, struct cdi_error *err)
{
    void *words = NULL, *report = NULL;
    cddp_status st;

    n->span = calloc(d->n_params, sizeof *n->span);
    n->words = calloc(d->n_params, sizeof *n->words);
    if (n->span == NULL || n->words == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for " MODE_ENV);
    st = cdi_backend_zeros(d->ops, d->b, N_WORDS * sizeof *n->there, &words, err);
    n->there = words;
    if (st == CDDP_OK)
        st = d->ops->alloc_host(d->b, sizeof *n->report, &report, err);
    n->report = report;
    if (st == CDDP_OK)
        *n->report = (struct cdi_nan_report){0};
    return st;
}

cddp_status cdi_nan_init(cddp_ddp *d, struct cdi_error *err)
{
    enum cdi_nan_mode mode;
    cddp_status st = read_mode(&mode, err);
    double factor = 1;

    if (st != CDDP_OK || mode == CDI_NAN_OFF)
        return st;
    if (d->n_params >= UINT32_MAX || cdi_comm_world(d->comm)->size > RANK_MAX)
        return cdi_fail(err, CDDP_E_LIMIT, MODE_ENV " is possible for %u parameters and %d ranks", UINT32_MAX - 1,
                        RANK_MAX);
    d->nan = calloc(1, sizeof *d->nan);
    if (d->nan == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for " MODE_ENV);
    d->nan->mode = mode;
    if (d->ops->on_device && d->comm_dtype == CDDP_FLOAT16 && (d->flags & CDDP_DDP_SUM) == 0)
        factor = 1.0 / cdi_comm_world(d->comm)->size; /* see compress.c */
    d->nan->limit = cdi_nonfinite_limit(CDDP_FLOAT32, d->comm_dtype, factor);
    return d->ops->on_device ? init_there(d, d->nan, err) : CDDP_OK;
}

enum cdi_nan_mode cdi_nan_mode(const cddp_ddp *d)
{
    return d->nan != NULL ? d->nan->mode : CDI_NAN_OFF;
}

/* ------------------------------------------------------------------------------------------------- the messages -- */

/* A word, from the highest bit: the parameter plus 1, since a backward pass makes the last one first; the highest rank
 * minus the rank; the kind. */
#define PARAM_SHIFT 32
#define RANK_SHIFT 8

/* Returns a finding as a number: of several the largest one counts. 0: none. */
static uint64_t word_of(size_t param, int rank, int kind)
{
    return ((uint64_t)param + 1) << PARAM_SHIFT | (uint64_t)(RANK_MAX - rank) << RANK_SHIFT | (uint64_t)kind;
}

static size_t param_of(uint64_t word)
{
    return (size_t)(word >> PARAM_SHIFT) - 1;
}

/* Returns the rank that brought it. */
static int rank_of(uint64_t word)
{
    return RANK_MAX - (int)(word >> RANK_SHIFT & RANK_MAX);
}

/* Writes "the gradient of 'x' (bucket 1) has NaN", and returns the rank that brought it. */
static int describe_one(const cddp_ddp *d, uint64_t word, char *buf, size_t cap)
{
    enum cdi_nonfinite kind = (enum cdi_nonfinite)(word & 0xff);
    size_t i = param_of(word);
    char large[64];

    (void)snprintf(large, sizeof large, "a number that %s cannot hold", cdi_dtype_name(d->comm_dtype));
    (void)snprintf(buf, cap, "the gradient of '%.200s' (bucket %zu) has %s", d->params[i].name, d->plan.grads[i].bucket,
                   kind == CDI_NAN   ? "NaN"
                   : kind == CDI_INF ? "an infinity"
                                     : large);
    return rank_of(word);
}

/* Describes, in err, what the ranks found: n words, one of them not 0. */
static void describe_all(const cddp_ddp *d, uint64_t step, const uint64_t *words, int n, struct cdi_error *err)
{
    const int *ranks = cdi_comm_world(d->comm)->ranks;
    struct cdi_rank_list same = {.n = 0}, others = {.n = 0};
    uint64_t first = 0, kind = 0;
    char what[320], also[sizeof(struct cdi_who_all) + 64] = "";

    for (int r = 0; r < n; r++)
        first = words[r] > first ? words[r] : first;
    for (int r = 0; r < n; r++) {
        bool has = words[r] != 0, it = has && param_of(words[r]) == param_of(first);

        if (has)
            cdi_rank_list_add(it ? &same : &others, r);
        if (it && (words[r] & 0xff) > kind)
            kind = words[r] & 0xff;
    }
    (void)describe_one(d, (first & ~(uint64_t)0xff) | kind, what, sizeof what);
    if (others.n > 0)
        (void)snprintf(also, sizeof also, "; such numbers in other gradients come from %s",
                       cdi_who_list(ranks, &others).text);
    (void)cdi_fail_by(err, cdi_rank_of_job(cdi_comm_world(d->comm), same.first), CDDP_E_NONFINITE,
                      "step %" PRIu64 ": %s; %s brought it%s", step, what, cdi_who_list(ranks, &same).text, also);
    if (d->name != NULL)
        (void)cdi_error_wrap(err, "model '%.64s'", d->name);
}

/* Logs a finding of this rank. */
static void warn(cddp_ddp *d, uint64_t word, uint64_t step)
{
    char what[320], text[480];
    int line = atomic_fetch_add(&d->nan->n_lines, 1);

    if (line > LINES)
        return;
    (void)describe_one(d, word, what, sizeof what);
    if (line == LINES)
        (void)snprintf(text, sizeof text, "more gradients of step %" PRIu64 " have NaN or an infinity", step);
    else
        (void)snprintf(text, sizeof text, "%s%.64s%sstep %" PRIu64 ": %s", d->name != NULL ? "model '" : "",
                       d->name != NULL ? d->name : "", d->name != NULL ? "': " : "", step, what);
    cddp_log(d->comm, CDDP_LOG_ALL, CDDP_LOG_WARN, text);
}

/* ------------------------------------------------------------------------------------------------- the search ---- */

static uint64_t limit_of(const cddp_ddp *d, cddp_dtype dtype)
{
    return dtype == CDDP_FLOAT32 ? d->nan->limit : cdi_nonfinite_inf(dtype);
}

void cdi_nan_look(cddp_ddp *d, size_t i)
{
    const void *x;
    uint64_t word, before;
    cddp_dtype dtype;
    enum cdi_nonfinite kind;

    if (d->nan == NULL || d->ops->on_device || i >= d->n_params || cdi_weight_is_none(d))
        return;
    x = cdi_arena_grad(d, i);
    dtype = d->params[i].grad_dtype;
    kind = cdi_nonfinite_worst(x, d->params[i].count, dtype, limit_of(d, dtype));
    if (kind == CDI_FINITE)
        return;
    word = word_of(i, cdi_comm_world(d->comm)->rank, (int)kind);
    before = atomic_load(&d->nan->found);
    while (before < word && !atomic_compare_exchange_weak(&d->nan->found, &before, word))
        ;
    if (d->nan->mode == CDI_NAN_WARN)
        warn(d, word, d->step);
}

/* ------------------------------------------------------------------------------------------------- on a device ---- */

/* Sets span k to the part of gradient i that bucket b holds. False: there is none, or this rank has not made it. */
static bool set_span(const cddp_ddp *d, size_t k, size_t i, size_t b)
{
    const struct cdi_grad *g = &d->plan.grads[i];
    const size_t skip = (b - g->bucket) * g->piece;
    const size_t bytes = b + 1 < g->bucket + g->n_parts ? g->piece : g->bytes - skip;

    if (bytes == 0 || (d->unused.missing != NULL && d->unused.missing[i]))
        return false;
    d->nan->span[k] =
        (struct cdi_span){(char *)cdi_arena_grad(d, i) + skip, bytes / cddp_dtype_size(g->dtype), g->dtype};
    d->nan->words[k] = word_of(i, cdi_comm_world(d->comm)->rank, CDI_FINITE);
    return true;
}

cddp_status cdi_nan_look_there(cddp_ddp *d, size_t b, struct cdi_error *err)
{
    uint64_t *word;
    size_t n = 0;

    if (d->nan == NULL || d->nan->there == NULL || cdi_weight_is_none(d))
        return CDDP_OK;
    for (size_t k = 0; k < d->plan.b[b].n_grads; k++)
        if (cdi_bucket_grad(&d->plan, b, k) < d->n_params)
            n += set_span(d, n, cdi_bucket_grad(&d->plan, b, k), b);
    word = &d->nan->there[d->captured.id != 0 ? MINE : d->step % 2];
    return n == 0 ? CDDP_OK
                  : d->ops->find_nonfinite(d->b, d->nan->span, d->nan->words, n, limit_of(d, d->plan.b[b].dtype), word,
                                           err);
}

/* ---------------------------------------------------------------------------------------- the end of a step ------ */

/* Returns the reduction of a word over all ranks. */
static struct cdi_coll reduction(const uint64_t *in, uint64_t *out)
{
    return (struct cdi_coll){.kind = CDI_ALL_REDUCE,
                             .in = in,
                             .out = out,
                             .count = 1,
                             .dtype = CDDP_UINT64,
                             .op = CDDP_MAX,
                             .bucket = -1,
                             .asked = CDI_API_NAN_CHECK,
                             .lazy = true};
}

cddp_status cdi_nan_send(cddp_ddp *d)
{
    struct cdi_nan_check *n = d->nan;
    struct cdi_error err;
    struct cdi_coll op;
    struct round *r;
    cddp_status st;

    if (n == NULL || n->sent || (n->mode == CDI_NAN_WARN && n->there == NULL))
        return CDDP_OK;
    r = &n->round[d->step % 2];
    n->mine = atomic_load(&n->found);
    *r = (struct round){.step = d->step};
    op = reduction(n->there != NULL ? &n->there[d->step % 2] : &n->mine, &r->word);
    st = cdi_ddp_enqueue(d, &op, &r->ticket);
    n->sent = st == CDDP_OK;
    if (st == CDDP_OK && n->there != NULL && /* that of the next step */
        d->ops->clear(d->b, &n->there[(d->step + 1) % 2], sizeof *n->there, &err) != CDDP_OK)
        st = cdi_ddp_set_error(d, &err);
    return st;
}

/* Exchanges what each rank has found, after all ranks have learned that there is something. */
static cddp_status ask_all(cddp_ddp *d, struct cdi_error *bad)
{
    int size = cdi_comm_world(d->comm)->size;
    uint64_t *words = calloc((size_t)size, sizeof *words);
    const void *mine = d->nan->there != NULL ? &d->nan->there[d->step % 2] : &d->nan->mine;
    enum cdi_api_call before;
    struct cdi_error err;
    cddp_status st;

    if (words == NULL) {
        (void)cdi_fail(&err, CDDP_E_NOMEM, "out of memory for %d ranks", size);
        return cdi_ddp_fail_misuse(d, &err); /* the others wait for this rank */
    }
    before = cdi_api_enter(CDI_API_NAN_CHECK);
    (void)pthread_mutex_unlock(&d->lock);
    st = cdi_ddp_all_gather(d, d->comm, mine, words, 1, CDDP_UINT64, &err);
    (void)pthread_mutex_lock(&d->lock);
    (void)cdi_api_enter(before);
    if (st == CDDP_OK)
        describe_all(d, d->step, words, size, bad);
    else
        st = cdi_ddp_set_error(d, &err);
    free(words);
    return st;
}

/* Logs a finding on the rank that brought it, on a device, once its round is complete. */
static void report_late(cddp_ddp *d, struct round *r)
{
    if (r->word != 0 && rank_of(r->word) == cdi_comm_world(d->comm)->rank)
        warn(d, r->word, r->step);
    *r = (struct round){.ticket = 0};
}

cddp_status cdi_nan_verdict(cddp_ddp *d, struct cdi_error *bad)
{
    struct cdi_nan_check *n = d->nan;
    cddp_status st = CDDP_OK;
    struct round *r;

    if (n == NULL)
        return CDDP_OK;
    r = &n->round[(d->step + (n->mode == CDI_NAN_WARN)) % 2]; /* "warn": the previous step's */
    if (r->ticket > 0)
        st = cdi_ddp_join_ticket(d, r->ticket);
    if (st == CDDP_OK && n->mode == CDI_NAN_WARN)
        report_late(d, r);
    else if (st == CDDP_OK && r->word != 0)
        st = ask_all(d, bad);
    atomic_store(&n->found, 0);
    atomic_store(&n->n_lines, 0);
    n->sent = false;
    return st;
}

/* --------------------------------------------------------------------------------------------- captured steps ---- */

const uint64_t *cdi_nan_bad(const cddp_ddp *d)
{
    return d->nan != NULL && d->nan->mode == CDI_NAN_ERROR ? &d->nan->there[ALL] : NULL;
}

cddp_status cdi_nan_send_captured(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_nan_check *n = d->nan;
    struct cdi_coll op;
    uint64_t ticket;
    cddp_status st;

    if (n == NULL)
        return CDDP_OK;
    op = reduction(&n->there[MINE], &n->there[ALL]);
    st = cdi_ddp_begin(d, &op, &ticket, err);
    return st == CDDP_OK ? d->ops->report(d->b, &n->there[MINE], n->report, err) : st;
}

/* Copies the report. false: there is none that is new, or a kernel is writing it: the next call finds that one. */
static bool read_report(struct cdi_nan_check *n, struct cdi_nan_report *out)
{
    out->number = atomic_load_explicit((_Atomic uint64_t *)&n->report->number, memory_order_acquire);
    if (out->number == 0 || out->number == n->told)
        return false;
    out->all = atomic_load_explicit((_Atomic uint64_t *)&n->report->all, memory_order_acquire);
    if (atomic_load_explicit((_Atomic uint64_t *)&n->report->number, memory_order_relaxed) != out->number)
        return false;
    n->told = out->number;
    return true;
}

/*
 * Reads a report of launches: with "error" CDDP_E_NONFINITE, with "warn" the rank that brought the number logs it.
 * Waits for nothing.
 */
static cddp_status take_report(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_nan_report report;
    char what[320], text[480];
    int rank;

    if (d->nan == NULL || d->nan->report == NULL || !read_report(d->nan, &report))
        return CDDP_OK;
    rank = describe_one(d, report.all, what, sizeof what);
    (void)snprintf(text, sizeof text, "captured step, launch %" PRIu64 ": %s", report.number, what);
    if (d->nan->mode == CDI_NAN_ERROR)
        return cdi_fail_by(err, cdi_rank_of_job(cdi_comm_world(d->comm), rank), CDDP_E_NONFINITE, "%s; %s brought it",
                           text, cdi_comm_who(d->comm, rank).text);
    if (rank == cdi_comm_world(d->comm)->rank)
        cddp_log(d->comm, CDDP_LOG_ALL, CDDP_LOG_WARN, text);
    return CDDP_OK;
}

cddp_status cddp_ddp_replay_status(cddp_ddp *ddp)
{
    CDI_DEFAULT_FLOAT_STATE;
    struct cdi_error err;
    cddp_status st = cdi_ddp_check("cddp_ddp_replay_status", ddp, &err);

    if (st != CDDP_OK)
        return cdi_last_error_set(&err);
    (void)pthread_mutex_lock(&ddp->lock);
    st = ddp->sticky.status;
    if (st != CDDP_OK)
        err = ddp->sticky;
    else
        st = ddp->ops->peek(ddp->b, &err);
    if (st == CDDP_OK)
        st = take_report(ddp, &err);
    (void)pthread_mutex_unlock(&ddp->lock);
    return st == CDDP_OK ? st : cdi_last_error_set(&err);
}

/* ------------------------------------------------------------------------------------------------------ the end ----
 */

void cdi_nan_release(cddp_ddp *d)
{
    struct cdi_nan_check *n = d->nan;
    struct cdi_error err;

    if (n == NULL)
        return;
    for (int k = 0; k < 2 && n->mode == CDI_NAN_WARN && n->there != NULL; k++)
        if (n->round[k].ticket > 0 && n->round[k].ticket <= d->joined)
            report_late(d, &n->round[k]);
    if (take_report(d, &err) != CDDP_OK)
        cddp_log(d->comm, CDDP_LOG_ALL, CDDP_LOG_WARN, err.msg);
    if (n->there != NULL)
        d->ops->release(d->b, n->there);
    if (n->report != NULL)
        d->ops->release_host(d->b, n->report);
    n->there = NULL;
    n->report = NULL;
}

void cdi_nan_free(cddp_ddp *d)
{
    if (d->nan == NULL)
        return;
    free(d->nan->span);
    free(d->nan->words);
    free(d->nan);
}
