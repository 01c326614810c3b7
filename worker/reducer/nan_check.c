/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/reducer/nan_check.h"

#include "common/env.h"
#include "worker/base/dtype.h"
#include "worker/math/nonfinite.h"
#include "worker/reducer/nan_replay.h"
#include "worker/reducer/nan_word.h"
#include "worker/reducer/state/arena.h"
#include "worker/reducer/state/weight.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define MODE_ENV "CDDP_NAN_CHECK"
#define LINES 8 /* warnings in one step, before one that says that there are more */

/* One step's exchange. */
struct round {
    uint64_t word;   /* of all ranks, once ticket is complete */
    uint64_t ticket; /* 0: none */
    uint64_t step;
};

struct cdi_nan_check {
    enum cdi_nan_mode mode;
    uint64_t limit;         /* for float32 */
    _Atomic uint64_t found; /* on the host: this rank's first finding in this step */
    _Atomic int n_lines;    /* warnings in this step */
    uint64_t mine;          /* `found`, while it is being reduced */
    uint64_t *there;        /* on a device: two words, of even and of odd steps. NULL: on the host */
    struct cdi_look copies; /* for gradients that are copied into the arena */
    struct cdi_look *looks; /* for the others: of this step's operations, with their parts */
    struct cdi_look_part *parts;
    size_t n_looks, n_parts, room;
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
    void *words = NULL;
    cddp_status st;

    st = cdi_backend_zeros(d->ops, d->b, 2 * sizeof *n->there, &words, err);
    n->there = words;
    return st;
}

cddp_status cdi_nan_init(cddp_ddp *d, struct cdi_error *err)
{
    enum cdi_nan_mode mode;
    cddp_status st = read_mode(&mode, err);
    double factor = 1;

    if (st != CDDP_OK || mode == CDI_NAN_OFF)
        return st;
    if (d->n_params >= UINT32_MAX || cdi_comm_world(d->comm)->size > CDI_NAN_RANK_MAX)
        return cdi_fail(err, CDDP_E_LIMIT, MODE_ENV " is possible for %u parameters and %d ranks", UINT32_MAX - 1,
                        CDI_NAN_RANK_MAX);
    d->nan = calloc(1, sizeof *d->nan);
    if (d->nan == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for " MODE_ENV);
    d->nan->mode = mode;
    if (d->ops->on_device && d->comm_dtype == CDDP_FLOAT16 && (d->flags & CDDP_DDP_SUM) == 0)
        factor = 1.0 / cdi_comm_world(d->comm)->size; /* see compress.c */
    d->nan->limit = cdi_nonfinite_limit(CDDP_FLOAT32, d->comm_dtype, factor);
    st = d->ops->on_device ? init_there(d, d->nan, err) : CDDP_OK;
    return st == CDDP_OK && d->ops->on_device ? cdi_nan_replay_init(d, mode == CDI_NAN_ERROR, err) : st;
}

enum cdi_nan_mode cdi_nan_mode(const cddp_ddp *d)
{
    return d->nan != NULL ? d->nan->mode : CDI_NAN_OFF;
}

/* ------------------------------------------------------------------------------------------------- the messages -- */

/* Logs a finding of this rank. */
static void warn(cddp_ddp *d, uint64_t word, uint64_t step)
{
    char what[320], text[480];
    int line = atomic_fetch_add(&d->nan->n_lines, 1);

    if (line > LINES)
        return;
    (void)cdi_nan_describe_one(d, word, what, sizeof what);
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

void cdi_nan_begin(cddp_ddp *d)
{
    if (d->nan != NULL) /* a captured step may have been given up */
        d->nan->n_looks = d->nan->n_parts = 0;
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
    word = cdi_nan_word(i, cdi_comm_world(d->comm)->rank, (int)kind);
    before = atomic_load(&d->nan->found);
    while (before < word && !atomic_compare_exchange_weak(&d->nan->found, &before, word))
        ;
    if (d->nan->mode == CDI_NAN_WARN)
        warn(d, word, d->step);
}

/* ------------------------------------------------------------------------------------------------- on a device ---- */

/* Returns whether a separate kernel looks at each bucket: what a hook or PowerSGD does there is not known. */
static bool looks_alone(const cddp_ddp *d)
{
    return d->hook.begin != NULL || d->powersgd != NULL;
}

static struct cdi_look look_of(const cddp_ddp *d, size_t b)
{
    return (struct cdi_look){.word = d->captured.id != 0 ? cdi_nan_replay_word(d) : &d->nan->there[d->step % 2],
                             .limit = limit_of(d, d->plan.b[b].dtype),
                             .low = (uint32_t)cdi_nan_word(0, cdi_comm_world(d->comm)->rank, CDI_FINITE)};
}

const struct cdi_look *cdi_nan_look_in_copies(cddp_ddp *d, size_t b)
{
    if (d->nan == NULL || d->nan->there == NULL || cdi_weight_is_none(d) || d->flight[b].compressed)
        return NULL;
    d->nan->copies = look_of(d, b);
    return &d->nan->copies;
}

/*
 * Makes room for the looks of a step, before the first one: operations hold pointers to them until they begin. Each
 * part of a gradient is in one operation of a step.
 */
static cddp_status reserve(cddp_ddp *d, struct cdi_error *err)
{
    struct cdi_nan_check *n = d->nan;
    struct cdi_look_part *parts;
    struct cdi_look *looks;
    size_t most = 0;

    for (size_t i = 0; n->n_looks == 0 && i < d->n_params; i++)
        most += d->plan.grads[i].n_parts;
    if (most <= n->room)
        return CDDP_OK;
    parts = realloc(n->parts, most * sizeof *parts);
    n->parts = parts != NULL ? parts : n->parts;
    looks = realloc(n->looks, most * sizeof *looks);
    n->looks = looks != NULL ? looks : n->looks;
    if (parts == NULL || looks == NULL)
        return cdi_fail(err, CDDP_E_NOMEM, "no memory for " MODE_ENV);
    n->room = most;
    return CDDP_OK;
}

static int by_begin(const void *a, const void *b)
{
    const struct cdi_look_part *x = a, *y = b;

    return (x->begin > y->begin) - (x->begin < y->begin);
}

/*
 * Adds the part of gradient i that bucket b holds, if stretch s has it and no other kernel looks at it. Nor does this
 * one if the rank has not made the gradient: it has zeros.
 */
static void add_part(cddp_ddp *d, size_t i, size_t b, const struct cdi_ddp_stretch *s)
{
    const struct cdi_grad *g = &d->plan.grads[i];
    const size_t size = cddp_dtype_size(g->dtype), skip = (b - g->bucket) * g->piece;
    const uintptr_t at = (uintptr_t)cdi_arena_grad(d, i) + skip, base = (uintptr_t)s->at;
    size_t bytes = g->bytes - skip;

    if ((d->unused.missing != NULL && d->unused.missing[i]) || at < base || at >= base + s->bytes ||
        (d->params[i].grad != NULL && !d->flight[b].compressed))
        return;
    if (b + 1 < g->bucket + g->n_parts)
        bytes = g->piece;
    if (bytes > 0 && d->nan->n_parts < d->nan->room)
        d->nan->parts[d->nan->n_parts++] = (struct cdi_look_part){
            .begin = (at - base) / size, .end = (at - base + bytes) / size, .key = cdi_ddp_look_key(i)};
}

/* Sets *out to a look at the gradients of bucket b in stretch s. NULL: there are none. */
static cddp_status look_at(cddp_ddp *d, size_t b, const struct cdi_ddp_stretch *s, const struct cdi_look **out,
                           struct cdi_error *err)
{
    struct cdi_nan_check *n = d->nan;
    cddp_status st = reserve(d, err);
    const size_t first = n->n_parts;
    bool sorted = true;

    *out = NULL;
    for (size_t k = 0; k < d->plan.b[b].n_grads && st == CDDP_OK; k++)
        if (cdi_bucket_grad(&d->plan, b, k) < d->n_params)
            add_part(d, cdi_bucket_grad(&d->plan, b, k), b, s);
    if (st != CDDP_OK || n->n_parts == first)
        return st;
    for (size_t k = first + 1; k < n->n_parts; k++)
        sorted &= n->parts[k - 1].begin < n->parts[k].begin;
    if (!sorted)
        qsort(n->parts + first, n->n_parts - first, sizeof *n->parts, by_begin);
    n->looks[n->n_looks] = look_of(d, b);
    n->looks[n->n_looks].part = n->parts + first;
    n->looks[n->n_looks].n = n->n_parts - first;
    *out = &n->looks[n->n_looks++];
    return CDDP_OK;
}

cddp_status cdi_nan_look_on_way(cddp_ddp *d, size_t b, const struct cdi_ddp_stretch *s, const struct cdi_look **out,
                                struct cdi_error *err)
{
    *out = NULL;
    if (d->nan == NULL || d->nan->there == NULL || cdi_weight_is_none(d) || looks_alone(d))
        return CDDP_OK;
    return look_at(d, b, s, out, err);
}

cddp_status cdi_nan_look_there(cddp_ddp *d, size_t b, struct cdi_error *err)
{
    const struct cdi_look *look = NULL;
    struct cdi_ddp_stretch s;
    cddp_status st;

    if (d->nan == NULL || d->nan->there == NULL || cdi_weight_is_none(d) || !looks_alone(d))
        return CDDP_OK;
    s = cdi_arena_stretch(d, b, 0); /* the only one: such buckets are in one piece */
    st = look_at(d, b, &s, &look, err);
    return st == CDDP_OK && look != NULL ? d->ops->find_nonfinite(d->b, s.at, d->plan.b[b].dtype, look, err) : st;
}

/* ---------------------------------------------------------------------------------------- the end of a step ------ */

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
    op = (struct cdi_coll){.kind = CDI_ALL_REDUCE,
                           .in = n->there != NULL ? &n->there[d->step % 2] : &n->mine,
                           .out = &r->word,
                           .count = 1,
                           .dtype = CDDP_UINT64,
                           .op = CDDP_MAX,
                           .bucket = -1,
                           .asked = CDI_API_NAN_CHECK,
                           .lazy = true};
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
    st = cdi_comm_all_gather(d->comm, mine, words, 1, CDDP_UINT64, &err);
    (void)pthread_mutex_lock(&d->lock);
    (void)cdi_api_enter(before);
    if (st == CDDP_OK)
        cdi_nan_describe(d, d->step, words, size, bad);
    else
        st = cdi_ddp_set_error(d, &err);
    free(words);
    return st;
}

/* Logs a finding on the rank that brought it, on a device, once its round is complete. */
static void report_late(cddp_ddp *d, struct round *r)
{
    if (r->word != 0 && cdi_nan_rank(r->word) == cdi_comm_world(d->comm)->rank)
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
    n->n_looks = n->n_parts = 0;
    n->sent = false;
    return st;
}

void cdi_nan_release(cddp_ddp *d)
{
    struct cdi_nan_check *n = d->nan;

    if (n == NULL)
        return;
    for (int k = 0; k < 2 && n->mode == CDI_NAN_WARN && n->there != NULL; k++)
        if (n->round[k].ticket > 0 && n->round[k].ticket <= d->joined)
            report_late(d, &n->round[k]);
    cdi_nan_replay_release(d);
    if (n->there != NULL)
        d->ops->release(d->b, n->there);
    n->there = NULL;
}

void cdi_nan_free(cddp_ddp *d)
{
    if (d->nan == NULL)
        return;
    free(d->nan->looks);
    free(d->nan->parts);
    free(d->nan);
}
