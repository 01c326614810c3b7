/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that are enqueued as one, and collectives that are made of others. */
#include "conformance_group.h"

#include "common/clock.h"
#include "within.h"
#include "worker/comm/coll_args.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LETTERS 16 /* messages of a group, at most, of all ranks */

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 11;
}

static bool has_groups(const struct rank *r)
{
    return r->ops->enqueue_group != NULL;
}

static cddp_status run(struct rank *r, const struct cdi_coll *ops, size_t n)
{
    uint64_t ticket = 0;
    cddp_status st = n == 0 ? CDDP_OK : r->ops->enqueue_group(r->b, ops, n, &ticket, &r->err);

    return st == CDDP_OK ? r->ops->join(r->b, ticket, &r->err) : st;
}

/* Returns memory of the backend; on a device every other time host memory. */
static uint32_t *room(struct rank *r, const uint32_t *from, size_t count)
{
    uint32_t *p;

    if (r->on_device && r->n_done % 2 == 0)
        return rank_lend(r, from, count * sizeof *p);
    p = malloc(count * sizeof *p + 1);
    memcpy(p, from, count * sizeof *p);
    return p;
}

static void give_back(struct rank *r, uint32_t *to, uint32_t *p, size_t count)
{
    if (r->on_device && r->n_done % 2 == 0) {
        rank_return(r, to, p, count * sizeof *p);
        return;
    }
    if (to != NULL)
        memcpy(to, p, count * sizeof *p);
    free(p);
}

/* ------------------------------------------------------------------------------------------------- messages ---- */

struct letter {
    int from, to;
    size_t count;
    uint32_t salt;
    uint32_t *p; /* where it lies */
    bool listed;
};

static void write_letter(const struct letter *x, uint32_t *to)
{
    for (size_t i = 0; i < x->count; i++)
        to[i] = x->salt + (uint32_t)i;
}

/* The messages, equal on all ranks: sender, receiver and length; those of one pair are in order. */
static size_t draw(uint64_t *state, int size, struct letter *all, size_t most)
{
    size_t n = 1 + (size_t)(next(state) % most);

    for (size_t i = 0; i < n; i++) {
        uint64_t kind = next(state) % 8;

        all[i] =
            (struct letter){.from = (int)(next(state) % (uint64_t)size), .to = (int)(next(state) % (uint64_t)size)};
        all[i].count = (size_t)(next(state) % (kind == 0 ? 40000 : kind < 3 ? 3000 : 9));
        all[i].salt = (uint32_t)next(state) & 0xffffff;
    }
    return n;
}

static struct cdi_coll op_of(const struct letter *x, bool sends)
{
    return (struct cdi_coll){.kind = sends ? CDI_SEND : CDI_RECV,
                             .in = sends ? x->p : NULL,
                             .out = sends ? NULL : x->p,
                             .count = x->count,
                             .dtype = CDDP_UINT32,
                             .root = sends ? x->to : x->from,
                             .bucket = -1,
                             .lazy = x->salt % 2 == 0};
}

/* Shuffles them, except those from one rank to another. own: random state of this rank. */
static bool list(struct letter *x, size_t n, int rank, bool sends, uint64_t *own, struct cdi_coll *to)
{
    size_t left = 0, at;

    for (size_t i = 0; i < n; i++)
        left += !x[i].listed && (sends ? x[i].from : x[i].to) == rank;
    if (left == 0)
        return false;
    for (at = (size_t)(next(own) % n); x[at].listed || (sends ? x[at].from : x[at].to) != rank; at = (at + 1) % n)
        ;
    for (size_t i = 0; i < at; i++) /* the first of its pair comes first */
        if (!x[i].listed && x[i].from == x[at].from && x[i].to == x[at].to)
            at = i;
    x[at].listed = true;
    *to = op_of(&x[at], sends);
    return true;
}

int group_exchange(struct rank *r, uint64_t seed, uint64_t *own, size_t most)
{
    uint64_t state = seed * 7919 + 1;
    struct letter *out = calloc(most, sizeof *out), *in = calloc(most, sizeof *in);
    struct cdi_coll *ops = calloc(2 * most, sizeof *ops);
    size_t n = draw(&state, r->size, out, most), n_ops = 0, longest = 1;
    uint32_t *x;

    memcpy(in, out, n * sizeof *in);
    for (size_t i = 0; i < n; i++)
        longest = out[i].count > longest ? out[i].count : longest;
    x = calloc(longest, sizeof *x);
    for (size_t i = 0; i < n; i++) {
        write_letter(&out[i], x);
        if (out[i].from == r->rank)
            out[i].p = room(r, x, out[i].count);
        memset(x, 0x5a, longest * sizeof *x);
        if (in[i].to == r->rank)
            in[i].p = room(r, x, in[i].count);
    }
    for (bool more = true; more;) {
        bool sends = next(own) % 2 == 0;

        more = list(sends ? out : in, n, r->rank, sends, own, &ops[n_ops]) ||
               list(sends ? in : out, n, r->rank, !sends, own, &ops[n_ops]);
        n_ops += more;
    }
    RANK_CHECK(run(r, ops, n_ops) == CDDP_OK, "seed %llu", (unsigned long long)seed);
    for (size_t i = 0; i < n; i++) {
        if (out[i].from == r->rank)
            give_back(r, NULL, out[i].p, out[i].count);
        if (in[i].to != r->rank)
            continue;
        give_back(r, x, in[i].p, in[i].count);
        for (size_t k = 0; k < in[i].count; k++)
            RANK_CHECK(x[k] == in[i].salt + (uint32_t)k, "seed %llu: message %zu, from %d: element %zu",
                       (unsigned long long)seed, i, in[i].from, k);
    }
    r->n_done++;
    free(x);
    free(ops);
    free(in);
    free(out);
    return 0;
}

int group_of_messages(struct rank *r)
{
    uint64_t own = 12345 + 77 * (uint64_t)r->rank;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (uint64_t seed = 1; seed <= 40 && has_groups(r); seed++)
        if (group_exchange(r, seed, &own, LETTERS) != 0)
            return 1;
    return 0;
}

/* --------------------------------------------------------------------------------------------------- collectives ----
 */

static cddp_coll_args args_of(cddp_coll coll, const uint32_t *in, uint32_t *out, size_t count, int root)
{
    return (cddp_coll_args){.size = sizeof(cddp_coll_args),
                            .coll = coll,
                            .dtype = CDDP_UINT32,
                            .op = CDDP_SUM,
                            .root = root,
                            .in = in,
                            .out = out,
                            .count = count};
}

/* The collectives of the program, as collectives.c enqueues them. */
static cddp_status run_args(struct rank *r, const cddp_coll_args *a, size_t n)
{
    struct cdi_coll_ops ops = {0};
    cddp_status st = cdi_coll_ops(&r->world, a, n, &ops, &r->err);

    for (size_t at = 0, k; at < ops.n && st == CDDP_OK; at += k) {
        k = cdi_coll_part(ops.ops + at, ops.n - at);
        st = run(r, ops.ops + at, k);
    }
    cdi_coll_release(&ops);
    return st;
}

/* Returns how much rank `from` sends to rank `to`. */
static size_t share(int from, int to, size_t count)
{
    return (from + to) % 3 == 1 ? 0 : count + (size_t)(5 * from + 3 * to);
}

static uint32_t element(int from, int to, size_t k)
{
    return (uint32_t)(100000 * (from + 1) + 10000 * (to + 1)) + (uint32_t)k;
}

struct uneven {
    size_t counts[RANKS_MAX], begin[RANKS_MAX], end;
};

/* apart: the parts are in another order, with gaps. */
static struct uneven uneven_of(const struct rank *r, size_t count, bool gives, bool apart)
{
    struct uneven u = {.end = 0};

    for (int i = 0; i < r->size; i++) {
        int k = apart ? r->size - 1 - i : i;

        u.counts[k] = gives ? share(r->rank, k, count) : share(k, r->rank, count);
        u.begin[k] = u.end + (apart ? 3 : 0);
        u.end = u.begin[k] + u.counts[k];
    }
    return u;
}

static int all_to_allv(struct rank *r, size_t count, bool apart)
{
    struct uneven give = uneven_of(r, count, true, apart), take = uneven_of(r, count, false, apart);
    uint32_t *x = calloc(give.end + 1, sizeof *x), *y = malloc((take.end + 1) * sizeof *y), *in, *out;
    cddp_coll_args a;

    memset(y, 0x5a, (take.end + 1) * sizeof *y);
    for (int s = 0; s < r->size; s++)
        for (size_t k = 0; k < give.counts[s]; k++)
            x[give.begin[s] + k] = element(r->rank, s, k);
    in = room(r, x, give.end + 1);
    out = room(r, y, take.end + 1);
    a = args_of(CDDP_COLL_ALL_TO_ALLV, in, out, 0, 0);
    a.in_counts = give.counts;
    a.out_counts = take.counts;
    a.in_offsets = apart ? give.begin : NULL;
    a.out_offsets = apart ? take.begin : NULL;
    RANK_CHECK(run_args(r, &a, 1) == CDDP_OK);
    give_back(r, NULL, in, give.end + 1);
    give_back(r, y, out, take.end + 1);
    for (int s = 0; s < r->size; s++)
        for (size_t k = 0; k < take.counts[s]; k++)
            RANK_CHECK(y[take.begin[s] + k] == element(s, r->rank, k), "%zu from %d", k, s);
    RANK_CHECK(y[take.end] == 0x5a5a5a5a && (!apart || y[0] == 0x5a5a5a5a));
    free(x);
    free(y);
    return 0;
}

/* Block r of the root's memory is rank r's. */
static int blocks(struct rank *r, cddp_coll coll, size_t count, int root)
{
    size_t all = count * (size_t)r->size;
    bool gathers = coll == CDDP_COLL_GATHER, is_root = r->rank == root;
    uint32_t *x = malloc((all + 1) * sizeof *x), *whole, *own;

    for (size_t i = 0; i < all; i++)
        x[i] = gathers ? 0x5a5a5a5a : element(root, (int)(i / count), i % count);
    whole = room(r, x, all);
    for (size_t k = 0; k < count; k++)
        x[k] = gathers ? element(root, r->rank, k) : 0x5a5a5a5a;
    own = room(r, x, count);
    {
        const uint32_t *in = gathers ? own : is_root ? whole : NULL;
        const cddp_coll_args a = args_of(coll, in, !gathers ? own : is_root ? whole : NULL, count, root);

        RANK_CHECK(run_args(r, &a, 1) == CDDP_OK);
    }
    give_back(r, x, gathers ? whole : own, gathers ? all : count);
    give_back(r, NULL, gathers ? own : whole, gathers ? count : all);
    for (size_t i = 0; gathers && is_root && i < all; i++)
        RANK_CHECK(x[i] == element(root, (int)(i / count), i % count), "%zu", i);
    for (size_t k = 0; !gathers && k < count; k++)
        RANK_CHECK(x[k] == element(root, r->rank, k), "%zu", k);
    free(x);
    return 0;
}

static int reduce_scatterv(struct rank *r, size_t count)
{
    size_t counts[RANKS_MAX], begin[RANKS_MAX], n = 0, mine;
    uint32_t *x, *in, *out;
    cddp_coll_args a;

    for (int s = 0; s < r->size; s++) {
        counts[s] = share(s, 1, count);
        begin[s] = n;
        n += counts[s];
    }
    x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (uint32_t)(1000 * r->rank) + (uint32_t)i;
    mine = counts[r->rank];
    in = room(r, x, n);
    out = room(r, x, mine);
    a = args_of(CDDP_COLL_REDUCE_SCATTERV, in, out, 0, 0);
    a.in_counts = counts;
    RANK_CHECK(run_args(r, &a, 1) == CDDP_OK);
    give_back(r, NULL, in, n);
    give_back(r, x, out, mine);
    for (size_t k = 0; k < mine; k++)
        RANK_CHECK(x[k] ==
                       (uint32_t)(500 * r->size * (r->size - 1)) + (uint32_t)r->size * (uint32_t)(begin[r->rank] + k),
                   "%zu", k);
    free(x);
    return 0;
}

int group_made(struct rank *r)
{
    static const size_t lens[] = {0, 1, 700, 20000};

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (size_t c = 0; c < sizeof lens / sizeof lens[0] && has_groups(r); c++, r->n_done++) {
        if (all_to_allv(r, lens[c], false) != 0 || all_to_allv(r, lens[c], true) != 0 ||
            reduce_scatterv(r, lens[c]) != 0)
            return 1;
        for (int root = 0; root < r->size; root++)
            if (blocks(r, CDDP_COLL_GATHER, lens[c], root) != 0 || blocks(r, CDDP_COLL_SCATTER, lens[c], root) != 0)
                return 1;
    }
    return 0;
}

/* Their counts are freed before they run. */
int group_of_collectives(struct rank *r)
{
    size_t counts[RANKS_MAX] = {0}, at = 0;
    uint32_t x[4 + 2 * RANKS_MAX] = {1, 2, 3, (uint32_t)r->rank + 1}, *p;
    struct cdi_coll ops[3] = {{.kind = CDI_ALL_REDUCE, .count = 2, .op = CDDP_SUM},
                              {.kind = CDI_ALL_GATHERV, .counts = counts},
                              {.kind = CDI_BROADCAST, .count = 1, .root = r->size - 1}};
    uint64_t ticket;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (int k = 0; k < r->size; k++)
        counts[k] = 1 + (size_t)k % 2;
    for (int k = 0; k < r->rank; k++)
        at += counts[k];
    for (size_t k = 0; k < counts[r->rank]; k++)
        x[4 + at + k] = (uint32_t)(10 * r->rank) + (uint32_t)k;
    for (int round = 0; round < 2 && has_groups(r); round++, r->n_done++) {
        p = room(r, x, sizeof x / sizeof x[0]);
        for (int i = 0; i < 3; i++) {
            ops[i].dtype = CDDP_UINT32;
            ops[i].bucket = -1;
            ops[i].in = ops[i].out = i == 0 ? p : i == 1 ? p + 4 : p + 3;
        }
        ops[1].in = p + 4 + at;
        RANK_CHECK(r->ops->enqueue_group(r->b, ops, 3, &ticket, &r->err) == CDDP_OK);
        memset(counts, 0xff, sizeof counts);
        RANK_CHECK(r->ops->join(r->b, ticket, &r->err) == CDDP_OK);
        RANK_CHECK(r->ops->test(r->b, ticket, &r->err) == CDDP_OK);
        for (int k = 0; k < r->size; k++)
            counts[k] = 1 + (size_t)k % 2;
        {
            uint32_t y[sizeof x / sizeof x[0]];
            size_t i = 4;

            give_back(r, y, p, sizeof x / sizeof x[0]);
            RANK_CHECK(y[0] == (uint32_t)r->size && y[1] == 2 * (uint32_t)r->size && y[2] == 3);
            RANK_CHECK(y[3] == (uint32_t)r->size);
            for (int s = 0; s < r->size; s++)
                for (size_t k = 0; k < counts[s]; k++)
                    RANK_CHECK(y[i++] == (uint32_t)(10 * s) + (uint32_t)k, "%zu of %d", k, s);
        }
    }
    return 0;
}

/* A group that does not fit begins nothing. */
int group_that_does_not_fit(struct rank *r)
{
    uint32_t x = 1, *p;
    struct cdi_coll op = {.kind = CDI_ALL_REDUCE, .count = 1, .dtype = CDDP_UINT32, .op = CDDP_SUM, .bucket = -1};

    RANK_CHECK(rank_open(r) == CDDP_OK);
    p = room(r, &x, 1);
    op.in = op.out = p;
    RANK_CHECK(r->ops->can_enqueue(r->b, &op, 1, 65536 + 1, &r->err) == CDDP_E_LIMIT);
    RANK_CHECK(strstr(r->err.msg, "65536") != NULL, "%s", r->err.msg);
    for (size_t n = 1; n < 2000; n += 333) /* on a device the ring grows meanwhile */
        RANK_CHECK(r->ops->can_enqueue(r->b, &op, 1, n, &r->err) == CDDP_OK && run(r, &op, has_groups(r)) == CDDP_OK);
    give_back(r, NULL, p, 1);
    return 0;
}

/* The last rank arrives after the others have tested. */
int group_asked_for(struct rank *r)
{
    uint32_t x = 1, *p;
    struct cdi_coll op = {.kind = CDI_ALL_REDUCE, .count = 1, .dtype = CDDP_UINT32, .op = CDDP_SUM, .bucket = -1};
    uint64_t ticket;
    cddp_status st;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->ops->test == NULL)
        return 0;
    while (r->rank == r->size - 1 && atomic_load(&r->board->flag[1]) < r->size - 1)
        (void)usleep(100);
    p = room(r, &x, 1);
    op.in = op.out = p;
    RANK_CHECK(r->ops->enqueue(r->b, &op, &ticket, &r->err) == CDDP_OK);
    if (r->rank != r->size - 1)
        RANK_CHECK(r->ops->test(r->b, ticket, &r->err) == CDDP_IN_PROGRESS);
    (void)atomic_fetch_add(&r->board->flag[1], 1);
    do
        st = r->ops->test(r->b, ticket, &r->err);
    while (st == CDDP_IN_PROGRESS && usleep(50) == 0);
    RANK_CHECK(st == CDDP_OK && r->ops->test(r->b, 0, &r->err) == CDDP_OK);
    RANK_CHECK(r->ops->test(r->b, ticket + 1, &r->err) == CDDP_E_INVALID);
    give_back(r, &x, p, 1);
    RANK_CHECK(x == (uint32_t)r->size);
    (void)atomic_fetch_add(&r->board->flag[2], 1);
    while (atomic_load(&r->board->flag[2]) < r->size) /* otherwise the others would get the abort in their test */
        (void)usleep(100);
    r->ops->abort(r->b, &(struct cdi_error){.status = CDDP_E_ABORTED, .msg = "enough"});
    RANK_CHECK(r->ops->test(r->b, ticket, &r->err) == CDDP_E_ABORTED);
    return 0;
}

/* The last rank has another root. */
int group_differs(struct rank *r)
{
    static uint32_t own[2], all[2 * RANKS_MAX];
    int last = r->size - 1;
    const cddp_coll_args a = args_of(CDDP_COLL_GATHER, own, all, 2, r->rank == last ? last : 0);
    char want[160];

    RANK_CHECK(rank_open(r) == CDDP_OK);
    RANK_CHECK(run_args(r, &a, 1) == CDDP_E_MISMATCH);
    (void)snprintf(want, sizeof want,
                   "called gather of 2 uint32 to rank 0, rank %d called gather of 2 uint32 to rank %d", last, last);
    RANK_CHECK(strstr(r->err.msg, want) != NULL);
    return 0;
}

/* Around the ring; the message of rank 0 is longer than rank 1 expects it. */
int group_length_differs(struct rank *r)
{
    uint32_t x[3] = {0}, y[3];
    int to = (r->rank + 1) % r->size, from = (r->rank + r->size - 1) % r->size;
    const struct cdi_coll ops[2] = {
        {.kind = CDI_RECV, .out = y, .count = 2, .dtype = CDDP_UINT32, .root = from, .bucket = -1},
        {.kind = CDI_SEND, .in = x, .count = r->rank == 0 ? 3 : 2, .dtype = CDDP_UINT32, .root = to, .bucket = -1}};
    cddp_status st;

    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (!has_groups(r))
        return 0;
    st = run(r, ops, 2);
    if (r->rank > 1)
        return st != CDDP_OK && st != CDDP_E_MISMATCH; /* it may have been done before */
    RANK_CHECK(st == CDDP_E_MISMATCH);
    RANK_CHECK(strstr(r->err.msg,
                      "rank 0 called send of 3 uint32 to rank 1, rank 1 called recv of 2 uint32 from rank 0") != NULL);
    return 0;
}

/* The last rank is missing; rank 0 still sends to itself. */
int group_stay_away(struct rank *r)
{
    uint32_t x[4] = {0};
    const struct cdi_coll like = {.count = 1, .dtype = CDDP_UINT32, .bucket = -1};
    struct cdi_coll ops[4] = {like, like, like, like};
    char want[64];

    r->world.timeout_ms = 1000;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (!has_groups(r))
        return 0;
    for (int i = 0; i < 4; i++) {
        ops[i].kind = i % 2 == 0 ? CDI_RECV : CDI_SEND;
        ops[i].in = ops[i].out = &x[i];
        ops[i].root = i < 2 ? r->size - 1 : 0;
    }
    while (r->rank != 0 && atomic_load(&r->board->flag[3]) == 0)
        (void)usleep(1000);
    if (r->rank != 0)
        return 0;
    RANK_CHECK(run(r, ops, 4) == CDDP_E_TIMEOUT);
    atomic_store(&r->board->flag[3], 1);
    (void)snprintf(want, sizeof want, "rank %d did not ", r->size - 1);
    RANK_CHECK(strstr(r->err.msg, want) != NULL && strstr(r->err.msg, "within 1 s") != NULL, "%s", r->err.msg);
    return 0;
}

/*
 * Rank 0 receives from two ranks, of which only rank 1 sends. A library that runs a group as one does not know which
 * one is missing.
 */
int group_half_stays_away(struct rank *r)
{
    uint32_t x[2] = {0};
    const struct cdi_coll send = {.kind = CDI_SEND, .in = x, .count = 1, .dtype = CDDP_UINT32, .bucket = -1};
    struct cdi_coll ops[2] = {
        {.kind = CDI_RECV, .out = &x[0], .count = 1, .dtype = CDDP_UINT32, .root = 1, .bucket = -1},
        {.kind = CDI_RECV, .out = &x[1], .count = 1, .dtype = CDDP_UINT32, .bucket = -1}};
    char one[64], of_two[96];
    bool named;

    r->world.timeout_ms = 1000;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (!has_groups(r))
        return 0;
    ops[1].root = r->size - 1;
    if (r->rank == 1)
        RANK_CHECK(run(r, &send, 1) == CDDP_OK || r->err.status == CDDP_E_TIMEOUT);
    while (r->rank != 0 && atomic_load(&r->board->flag[3]) == 0)
        (void)usleep(1000);
    if (r->rank != 0)
        return 0;
    RANK_CHECK(run(r, ops, 2) == CDDP_E_TIMEOUT);
    atomic_store(&r->board->flag[3], 1);
    (void)snprintf(one, sizeof one, "rank %d did not ", r->size - 1);
    (void)snprintf(of_two, sizeof of_two, " and 1 more: one of ranks 1, %d did not ", r->size - 1);
    named = strstr(r->err.msg, one) != NULL && r->err.blamed == r->size;
    RANK_CHECK(strstr(r->err.msg, "within 1 s") != NULL, "%s", r->err.msg);
    RANK_CHECK(named || (strstr(r->err.msg, of_two) != NULL && r->err.blamed == 0), "%d: %s", r->err.blamed,
               r->err.msg);
    return 0;
}

/* The last rank expects one element more than rank 0 sends. The others may be done before. */
int group_counts_differ(struct rank *r)
{
    static uint32_t in[2 * RANKS_MAX], out[2 * RANKS_MAX + 1];
    size_t give[RANKS_MAX], take[RANKS_MAX];
    cddp_coll_args a = args_of(CDDP_COLL_ALL_TO_ALLV, in, out, 0, 0);
    int last = r->size - 1;
    char want[200];
    cddp_status st;

    for (int s = 0; s < r->size; s++)
        give[s] = take[s] = 2;
    take[0] += r->rank == last;
    a.in_counts = give;
    a.out_counts = take;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    st = run_args(r, &a, 1);
    (void)snprintf(want, sizeof want,
                   "rank 0 called all_to_allv (send of 2 uint32 to rank %d), rank %d called all_to_allv (recv of 3 "
                   "uint32 from rank 0)",
                   last, last);
    if (r->rank != 0 && r->rank != last && st == CDDP_OK)
        return 0;
    RANK_CHECK(st == CDDP_E_MISMATCH && strstr(r->err.msg, want) != NULL);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ what goes wrong ----
 */

#define EDGE 300000
#define KNOWN_MS 6000 /* limit for the detection of a death on an idle node; far more than it takes */

/* Exchanges both edges of this rank with its neighbours, in an order that also fits two ranks. */
static void halo(const struct rank *r, uint32_t *field, struct cdi_coll ops[4])
{
    int left = (r->rank + r->size - 1) % r->size, right = (r->rank + 1) % r->size;
    const struct letter to_left = {.to = left, .count = EDGE, .p = field + EDGE},
                        of_right = {.from = right, .count = EDGE, .p = field + 3 * (size_t)EDGE},
                        to_right = {.to = right, .count = EDGE, .p = field + 2 * (size_t)EDGE},
                        of_left = {.from = left, .count = EDGE, .p = field};

    ops[0] = op_of(&to_left, true);
    ops[1] = op_of(&of_right, false);
    ops[2] = op_of(&to_right, true);
    ops[3] = op_of(&of_left, false);
}

/* Rank 1 is killed during long exchanges. */
int group_dies(struct rank *r)
{
    uint32_t *x = calloc(4 * (size_t)EDGE, sizeof *x), *field;
    int64_t t0, limit_ms = cdi_within_ms(KNOWN_MS);
    cddp_status st;
    struct cdi_coll ops[4];

    RANK_CHECK(rank_open(r) == CDDP_OK);
    field = room(r, x, 4 * (size_t)EDGE);
    halo(r, field, ops);
    st = run(r, ops, 4); /* a rank that is slow may see the end of rank 1 here */
    RANK_CHECK(r->rank != 1 || st == CDDP_OK);
    if (r->rank == 1 && fork() == 0) {
        pid_t parent = getppid();

        (void)usleep(20000);
        (void)kill(parent, SIGKILL);
        _exit(0);
    }
    t0 = cdi_now_ms();
    while (st == CDDP_OK && cdi_now_ms() - t0 < limit_ms)
        st = run(r, ops, 4);
    RANK_CHECK(st == CDDP_E_PEER && r->err.blamed == 2 && strstr(r->err.msg, "rank 1 (") != NULL, "%s", r->err.msg);
    give_back(r, NULL, field, 4 * (size_t)EDGE);
    free(x);
    return 0;
}

/* Rank 1 aborts with a reason while the others exchange data. */
int group_aborted(struct rank *r)
{
    uint32_t *x = calloc(4 * (size_t)EDGE, sizeof *x), *field;
    cddp_status st;
    struct cdi_coll ops[4];

    RANK_CHECK(rank_open(r) == CDDP_OK);
    field = room(r, x, 4 * (size_t)EDGE);
    halo(r, field, ops);
    st = run(r, ops, 4); /* a rank that is slow may see the abort here */
    RANK_CHECK(r->rank != 1 || st == CDDP_OK);
    if (r->rank == 1) {
        (void)usleep(50000);
        r->ops->abort(r->b, &(struct cdi_error){.status = CDDP_E_ABORTED, .msg = "rank 1 aborted the job: no grid"});
    }
    for (int64_t t0 = cdi_now_ms(); st == CDDP_OK && cdi_now_ms() - t0 < cdi_within_ms(KNOWN_MS);)
        st = run(r, ops, 4); /* a rank that is not a neighbour of rank 1 may pass the first */
    RANK_CHECK(st == CDDP_E_ABORTED && strstr(r->err.msg, "rank 1 aborted the job: no grid") != NULL, "%s", r->err.msg);
    RANK_CHECK(r->err.blamed == 2 || r->rank == 1, "%d", r->err.blamed);
    give_back(r, NULL, field, 4 * (size_t)EDGE);
    free(x);
    return 0;
}
