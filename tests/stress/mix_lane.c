/* SPDX-License-Identifier: Apache-2.0 */
/* Random operations on one communicator, compared with what this rank computes alone. */
#include "mix.h"
#include "mix_value.h"
#include "types.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define BEGUN_MAX 24
#define JOINERS 3
#define GROUP_MAX 20
#define GARBAGE 0x5a

size_t mix_dice(const struct mix_lane *l, uint64_t what, size_t n)
{
    return (size_t)(mix_hash(l->seed, l->nr, what) >> 16) % n;
}

size_t mix_own_dice(const struct mix_lane *l, uint64_t what, size_t n)
{
    return (size_t)(mix_hash(l->seed + 1 + (uint64_t)l->rank, l->nr, what) >> 16) % n;
}

bool mix_failed(const struct mix_lane *l, const char *format, ...)
{
    char text[1200];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "mix: rank %d: operation %llu on a communicator of %d: %s\n", l->mix->rank,
            (unsigned long long)l->nr, l->size, text);
    return false;
}

/* ------------------------------------------------------------------------------------------------ one operation ----
 */

struct call {
    cddp_coll_args work;
    struct mix_source source;
    size_t counts[MIX_RANKS];
    char *in, *out; /* allocated; work may point into them */
    size_t out_bytes;
    uint64_t ticket;
};

static const char *const names[] = {"",       "all_reduce",  "broadcast",      "all_gather",  "barrier",
                                    "reduce", "all_gatherv", "reduce_scatter", "all_to_all",  "send",
                                    "recv",   "gather",      "scatter",        "all_to_allv", "reduce_scatterv"};

/* Mostly small; now and then several pieces of everything. */
static size_t some_count(const struct mix_lane *l, uint64_t what)
{
    size_t kind = mix_dice(l, what, 40);

    if (kind < 24)
        return mix_dice(l, what + 1, 20);
    if (kind < 36)
        return mix_dice(l, what + 1, 3000);
    return mix_dice(l, what + 1, kind < 39 ? 40000 : 300000);
}

static void choose_type(const struct mix_lane *l, struct call *c, bool reduces)
{
    static const cddp_dtype floats[] = {CDDP_FLOAT16, CDDP_FLOAT32, CDDP_FLOAT64, CDDP_BFLOAT16};
    static const cddp_dtype integers[] = {CDDP_INT8,  CDDP_UINT8, CDDP_INT32, CDDP_UINT32,
                                          CDDP_INT64, CDDP_INT16, CDDP_UINT64};

    c->work.dtype = all_types[mix_dice(l, 11, N_ALL_TYPES)];
    c->work.op = reduces ? all_ops[mix_dice(l, 12, N_ALL_OPS)] : CDDP_SUM;
    if (reduces && type_is_small(c->work.dtype)) /* which the host only moves */
        c->work.dtype = CDDP_UINT16;
    if (c->work.op == CDDP_AVG)
        c->work.dtype = floats[mix_dice(l, 13, 4)];
    else if (!type_takes(c->work.dtype, c->work.op))
        c->work.dtype = integers[mix_dice(l, 13, 7)];
    c->source = (struct mix_source){.seed = l->seed, .nr = l->nr, .dtype = c->work.dtype, .op = c->work.op};
}

static bool room(struct call *c, size_t in, size_t out)
{
    size_t size = cddp_dtype_size(c->work.dtype);

    c->out_bytes = out * size;
    c->in = malloc(in * size + 1);
    c->out = malloc(out * size + 1);
    if (c->in == NULL || c->out == NULL)
        return false;
    memset(c->out, GARBAGE, out * size);
    c->work.in = c->in;
    c->work.out = c->out;
    return true;
}

/* Elements that go in and come out, by operation. */
static void extents(const struct mix_lane *l, struct call *c, size_t *in, size_t *out)
{
    size_t n = c->work.count, size = (size_t)l->size;

    *in = *out = n;
    if (c->work.coll == CDDP_COLL_ALL_GATHER || c->work.coll == CDDP_COLL_GATHER)
        *out = n * size;
    else if (c->work.coll == CDDP_COLL_REDUCE_SCATTER || c->work.coll == CDDP_COLL_SCATTER)
        *in = n * size;
    else if (c->work.coll == CDDP_COLL_ALL_TO_ALL)
        *in = *out = n * size;
    if (c->work.coll != CDDP_COLL_ALL_GATHERV)
        return;
    for (*out = 0, size = 0; size < (size_t)l->size; size++) {
        c->counts[size] = mix_dice(l, 20 + size, n + 1);
        *out += c->counts[size];
    }
    c->work.out_counts = c->counts;
    *in = c->counts[l->rank];
}

static size_t before_mine(const struct mix_lane *l, const struct call *c)
{
    size_t n = 0;

    for (int r = 0; r < l->rank; r++)
        n += c->work.coll == CDDP_COLL_ALL_GATHERV ? c->counts[r] : c->work.count;
    return n;
}

/* Makes the operation in place, on all ranks or on some. */
static void share_memory(const struct mix_lane *l, struct call *c, size_t in)
{
    size_t size = cddp_dtype_size(c->work.dtype), at = before_mine(l, c) * size;
    char *place = c->out;

    if (mix_own_dice(l, 15, 3) != 0 || c->work.coll == CDDP_COLL_ALL_TO_ALL)
        return;
    if (c->work.coll == CDDP_COLL_ALL_GATHER || c->work.coll == CDDP_COLL_ALL_GATHERV ||
        c->work.coll == CDDP_COLL_GATHER)
        place = c->out + at;
    if (c->work.coll == CDDP_COLL_REDUCE_SCATTER || c->work.coll == CDDP_COLL_SCATTER) {
        c->work.out = c->in + at;
        return;
    }
    memcpy(place, c->in, in * size);
    c->work.in = place;
}

static bool make_collective(struct mix_lane *l, struct call *c)
{
    static const cddp_coll all[] = {CDDP_COLL_ALL_REDUCE,  CDDP_COLL_ALL_REDUCE,     CDDP_COLL_BROADCAST,
                                    CDDP_COLL_ALL_GATHER,  CDDP_COLL_BARRIER,        CDDP_COLL_REDUCE,
                                    CDDP_COLL_ALL_GATHERV, CDDP_COLL_REDUCE_SCATTER, CDDP_COLL_ALL_TO_ALL,
                                    CDDP_COLL_GATHER,      CDDP_COLL_SCATTER};
    size_t in, out;

    *c = (struct call){.work = {.size = sizeof c->work, .coll = all[mix_dice(l, 10, sizeof all / sizeof all[0])]}};
    choose_type(l, c,
                c->work.coll == CDDP_COLL_ALL_REDUCE || c->work.coll == CDDP_COLL_REDUCE ||
                    c->work.coll == CDDP_COLL_REDUCE_SCATTER);
    if (c->work.coll != CDDP_COLL_BARRIER)
        c->work.count = some_count(l, 16);
    c->work.root = (int)mix_dice(l, 14, (size_t)l->size);
    extents(l, c, &in, &out);
    if (!room(c, in, out))
        return mix_failed(l, "out of memory");
    if (c->work.coll == CDDP_COLL_ALL_TO_ALL)
        for (size_t r = 0; r < (size_t)l->size; r++)
            mix_fill(&c->source, l->rank, r * c->work.count, c->in + r * c->work.count * cddp_dtype_size(c->work.dtype),
                     c->work.count);
    else
        mix_fill(&c->source, l->rank, 0, c->in, in);
    if (c->work.coll == CDDP_COLL_BROADCAST && l->rank == c->work.root)
        memcpy(c->out, c->in, c->out_bytes);
    else if (c->work.coll != CDDP_COLL_BROADCAST && c->work.coll != CDDP_COLL_BARRIER)
        share_memory(l, c, in);
    return true;
}

static bool make_message(struct mix_lane *l, struct call *c, int from, int to, size_t count)
{
    *c = (struct call){.work = {.size = sizeof c->work, .coll = l->rank == from ? CDDP_COLL_SEND : CDDP_COLL_RECV}};
    choose_type(l, c, false);
    c->work.count = count;
    c->work.root = l->rank == from ? to : from;
    if (!room(c, count, count))
        return mix_failed(l, "out of memory");
    mix_fill(&c->source, from, 0, c->in, count);
    return true;
}

static bool wrong(const struct mix_lane *l, const struct call *c, size_t at)
{
    return mix_failed(l, "%s (op %d) of %zu elements of type %d, root %d: element %zu is wrong: %g",
                      names[c->work.coll], (int)c->work.op, c->work.count, (int)c->work.dtype, c->work.root, at,
                      mix_get(c->work.dtype, c->work.out, at));
}

static bool is_right(const struct mix_lane *l, const struct call *c)
{
    const struct mix_source *s = &c->source;
    const char *out = c->work.out;
    size_t n = c->work.count, size = cddp_dtype_size(s->dtype), at = 0, from = 0;
    bool ok = true;

    switch (c->work.coll) {
    case CDDP_COLL_REDUCE:
    case CDDP_COLL_ALL_REDUCE:
        if (c->work.coll == CDDP_COLL_ALL_REDUCE || l->rank == c->work.root)
            ok = mix_is(s, -1, l->size, 0, out, n, &at);
        break;
    case CDDP_COLL_REDUCE_SCATTER:
        ok = mix_is(s, -1, l->size, (size_t)l->rank * n, out, n, &at);
        break;
    case CDDP_COLL_BROADCAST:
    case CDDP_COLL_RECV:
        ok = mix_is(s, c->work.root, 1, 0, out, n, &at);
        break;
    case CDDP_COLL_SCATTER:
        ok = mix_is(s, c->work.root, 1, (size_t)l->rank * n, out, n, &at);
        break;
    case CDDP_COLL_GATHER:
        if (l->rank != c->work.root)
            break;
        __attribute__((fallthrough));
    case CDDP_COLL_ALL_GATHER:
    case CDDP_COLL_ALL_GATHERV:
    case CDDP_COLL_ALL_TO_ALL:
        for (int r = 0; r < l->size && ok; r++) {
            size_t part = c->work.coll == CDDP_COLL_ALL_GATHERV ? c->counts[r] : n;

            ok = mix_is(s, r, 1, c->work.coll == CDDP_COLL_ALL_TO_ALL ? (size_t)l->rank * n : 0, out + from * size,
                        part, &at);
            at += from;
            from += part;
        }
        break;
    case CDDP_COLL_SEND:
    case CDDP_COLL_BARRIER:
    case CDDP_COLL_ALL_TO_ALLV:
    case CDDP_COLL_REDUCE_SCATTERV:
    case CDDP_COLL_FORCE_INT_:
        break;
    }
    return ok || wrong(l, c, at);
}

static cddp_status do_it(cddp_comm *comm, const cddp_coll_args *w)
{
    switch (w->coll) {
    case CDDP_COLL_ALL_REDUCE:
        return cddp_all_reduce(comm, w->in, w->out, w->count, w->dtype, w->op);
    case CDDP_COLL_BROADCAST:
        return cddp_broadcast(comm, w->out, w->count, w->dtype, w->root);
    case CDDP_COLL_ALL_GATHER:
        return cddp_all_gather(comm, w->in, w->out, w->count, w->dtype);
    case CDDP_COLL_BARRIER:
        return cddp_barrier(comm);
    case CDDP_COLL_REDUCE:
        return cddp_reduce(comm, w->in, w->out, w->count, w->dtype, w->op, w->root);
    case CDDP_COLL_ALL_GATHERV:
        return cddp_all_gatherv(comm, w->in, w->out, w->out_counts, w->dtype);
    case CDDP_COLL_REDUCE_SCATTER:
        return cddp_reduce_scatter(comm, w->in, w->out, w->count, w->dtype, w->op);
    case CDDP_COLL_ALL_TO_ALL:
        return cddp_all_to_all(comm, w->in, w->out, w->count, w->dtype);
    case CDDP_COLL_SEND:
        return cddp_send(comm, w->in, w->count, w->dtype, w->root);
    case CDDP_COLL_RECV:
        return cddp_recv(comm, w->out, w->count, w->dtype, w->root);
    default:
        return cddp_coll_run(comm, w, 1);
    }
}

static void release(struct call *c)
{
    free(c->in);
    free(c->out);
}

/* Runs it now, and compares. */
static bool complete(struct mix_lane *l, struct call *c)
{
    cddp_status status = do_it(l->comm, &c->work);
    bool ok = status == CDDP_OK ? is_right(l, c)
                                : mix_failed(l, "%s of %zu elements: %s: %s", names[c->work.coll], c->work.count,
                                             cddp_status_name(status), cddp_last_error());

    release(c);
    return ok;
}

bool mix_collective(struct mix_lane *l)
{
    struct call c;

    return make_collective(l, &c) && complete(l, &c);
}

bool mix_message(struct mix_lane *l, int from, int to, size_t count)
{
    struct call c;

    if (l->rank != from && l->rank != to)
        return true;
    return make_message(l, &c, from, to, count) && complete(l, &c);
}

/* The two ranks of the next message. */
static void choose_pair(const struct mix_lane *l, int *from, int *to)
{
    *from = (int)mix_dice(l, 30, (size_t)l->size);
    *to = (*from + 1 + (int)mix_dice(l, 31, (size_t)l->size - 1)) % l->size;
}

/*
 * Messages one after another: chains, exchanges, several to one rank. Each rank runs its own ones in the common order.
 */
bool mix_messages(struct mix_lane *l)
{
    size_t n = 1 + mix_dice(l, 32, 30);
    bool ok = true;

    for (; l->size > 1 && n > 0 && ok; n--, l->nr++) {
        int from, to;

        choose_pair(l, &from, &to);
        ok = mix_message(l, from, to, mix_dice(l, 33, 3) != 0 ? mix_dice(l, 34, 8) : some_count(l, 16) / 4);
    }
    return ok;
}

/* Shuffles them for this rank; those from one rank to another stay in order. */
static void list_group(const struct mix_lane *l, const struct call *calls, size_t n, size_t order[])
{
    bool listed[GROUP_MAX] = {false};

    for (size_t i = 0; i < n; i++) {
        size_t at = mix_own_dice(l, 60 + i, n);

        while (listed[at])
            at = (at + 1) % n;
        for (size_t k = 0; k < at; k++)
            if (!listed[k] && calls[k].work.coll == calls[at].work.coll && calls[k].work.root == calls[at].work.root)
                at = k;
        listed[at] = true;
        order[i] = at;
    }
}

static bool run_group(struct mix_lane *l, const struct call *calls, size_t n)
{
    cddp_coll_args args[GROUP_MAX];
    size_t order[GROUP_MAX];
    uint64_t ticket;
    cddp_status status;

    list_group(l, calls, n, order);
    for (size_t i = 0; i < n; i++)
        args[i] = calls[order[i]].work;
    if (mix_own_dice(l, 59, 2) == 0) {
        status = cddp_coll_run(l->comm, args, n);
    } else {
        status = cddp_coll_start(l->comm, args, n, &ticket);
        memset(args, GARBAGE, sizeof args);
        if (status == CDDP_OK)
            status = cddp_coll_wait(l->comm, ticket);
    }
    return status == CDDP_OK ||
           mix_failed(l, "a group of %zu messages: %s: %s", n, cddp_status_name(status), cddp_last_error());
}

/* Messages in one group on all ranks. */
bool mix_group(struct mix_lane *l)
{
    struct call calls[GROUP_MAX];
    size_t n = 1 + mix_dice(l, 32, GROUP_MAX), made = 0;
    bool ok = true;

    for (; l->size > 1 && n > 0 && ok; n--, l->nr++) {
        int from, to;

        choose_pair(l, &from, &to);
        if (l->rank != from && l->rank != to)
            continue;
        ok = make_message(l, &calls[made], from, to, mix_dice(l, 33, 3) != 0 ? mix_dice(l, 34, 8) : some_count(l, 16));
        made += ok;
    }
    ok = ok && run_group(l, calls, made);
    for (size_t i = 0; i < made && ok; i++)
        ok = is_right(l, &calls[i]);
    for (size_t i = 0; i < made && ok; i++)
        release(&calls[i]);
    return ok;
}

/* ------------------------------------------------------------------------------------------- begun, then joined ----
 */

struct joiner {
    struct mix_lane lane;
    struct call *calls;
    size_t n;
    bool ok;
};

static bool join(const struct mix_lane *l, struct call *c)
{
    cddp_status status = cddp_coll_wait(l->comm, c->ticket);

    if (status != CDDP_OK)
        return mix_failed(l, "cddp_coll_wait of %s of %zu elements: %s: %s", names[c->work.coll], c->work.count,
                          cddp_status_name(status), cddp_last_error());
    return is_right(l, c);
}

static bool have_common_factor(size_t a, size_t b)
{
    while (b != 0) {
        size_t rest = a % b;

        a = b;
        b = rest;
    }
    return a > 1;
}

/* Joins all of them, each thread in a different order. */
static void *join_all(void *arg)
{
    struct joiner *j = arg;
    size_t stride = j->n == 1 ? 1 : 1 + mix_own_dice(&j->lane, 50, j->n - 1), at = mix_own_dice(&j->lane, 51, j->n);

    while (have_common_factor(j->n, stride))
        stride--;
    j->ok = true;
    for (size_t i = 0; i < j->n && j->ok; i++, at = (at + stride) % j->n)
        j->ok = join(&j->lane, &j->calls[at]);
    return NULL;
}

static bool join_by_threads(struct mix_lane *l, struct call *calls, size_t n, int threads)
{
    struct joiner j[JOINERS];
    pthread_t thread[JOINERS];
    bool ok = true;

    for (int t = 0; t < threads; t++) {
        j[t] = (struct joiner){.lane = *l, .calls = calls, .n = n};
        j[t].lane.seed += (uint64_t)t * 1000;
        if (t > 0 && pthread_create(&thread[t], NULL, join_all, &j[t]) != 0)
            return mix_failed(l, "no thread");
    }
    (void)join_all(&j[0]);
    for (int t = 1; t < threads; t++)
        (void)pthread_join(thread[t], NULL);
    for (int t = 0; t < threads; t++)
        ok = ok && j[t].ok;
    return ok;
}

static bool begin(struct mix_lane *l, struct call *c, bool *mine)
{
    int from, to;

    *mine = true;
    if (l->size == 1 || mix_dice(l, 40, 3) != 0) {
        if (!make_collective(l, c))
            return false;
    } else {
        choose_pair(l, &from, &to);
        *mine = l->rank == from || l->rank == to;
        if (*mine && !make_message(l, c, from, to, some_count(l, 16)))
            return false;
    }
    if (!*mine || cddp_coll_start(l->comm, &c->work, 1, &c->ticket) == CDDP_OK)
        return true;
    return mix_failed(l, "cddp_coll_start of %s: %s", names[c->work.coll], cddp_last_error());
}

/* Several at once, sometimes with blocking ones in between. */
bool mix_begun(struct mix_lane *l, bool by_threads)
{
    size_t n = 1 + mix_dice(l, 41, BEGUN_MAX), made = 0;
    int threads = by_threads ? 1 + (int)mix_dice(l, 42, JOINERS) : 1;
    struct call calls[BEGUN_MAX];
    bool ok = true, mine;

    for (size_t i = 0; i < n && ok; i++, l->nr++) {
        ok = begin(l, &calls[made], &mine);
        made += ok && mine;
        if (ok && mix_dice(l, 43, 6) == 0) {
            l->nr++;
            ok = mix_collective(l);
        }
    }
    if (ok && made > 0)
        ok = join_by_threads(l, calls, made, threads);
    if (!ok)
        return false; /* they may still run, so their memory stays */
    for (size_t i = 0; i < made; i++)
        release(&calls[i]);
    return true;
}
