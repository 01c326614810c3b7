/* SPDX-License-Identifier: Apache-2.0 */
#include "kinds.h"

#include <string.h>

static size_t size_of(const struct bench_case *c)
{
    return cddp_dtype_size(c->type->dtype);
}

static void *at(void *base, const struct bench_case *c, size_t element)
{
    return (char *)base + element * size_of(c);
}

static const void *at_const(const void *base, const struct bench_case *c, size_t element)
{
    return (const char *)base + element * size_of(c);
}

static cddp_coll_args args_of(const struct bench_case *c, cddp_coll coll)
{
    return (cddp_coll_args){.size = sizeof(cddp_coll_args),
                            .coll = coll,
                            .dtype = c->type->dtype,
                            .op = c->op != NULL ? c->op->op : CDDP_SUM,
                            .root = c->root,
                            .in = c->in,
                            .out = c->out,
                            .count = c->count};
}

/* --------------------------------------------------------------------------------- what goes in and comes out ---- */

/* One block: every rank its own. */
static void fill_block(const struct bench_case *c, void *in)
{
    bench_fill(in, c->count, c->type, c->rank, 0, c->round);
}

/* A block for each rank: block b begins at element b * count of this rank. */
static void fill_blocks(const struct bench_case *c, void *in)
{
    bench_fill(in, c->count * (size_t)c->n, c->type, c->rank, 0, c->round);
}

static size_t wrong_reduced(const struct bench_case *c, const void *out)
{
    return bench_wrong_reduced(out, c->count, c->type, c->op, c->n, 0, c->round);
}

static size_t wrong_reduced_on_root(const struct bench_case *c, const void *out)
{
    return c->rank == c->root ? wrong_reduced(c, out) : 0;
}

static size_t wrong_reduced_block(const struct bench_case *c, const void *out)
{
    return bench_wrong_reduced(out, c->count, c->type, c->op, c->n, c->count * (size_t)c->rank, c->round);
}

static size_t wrong_of_root(const struct bench_case *c, const void *out)
{
    return bench_wrong(out, c->count, c->type, c->root, 0, c->round);
}

static size_t wrong_gathered(const struct bench_case *c, const void *out)
{
    size_t wrong = 0;

    for (int r = 0; r < c->n; r++)
        wrong += bench_wrong(at_const(out, c, c->count * (size_t)r), c->count, c->type, r, 0, c->round);
    return wrong;
}

static size_t wrong_gathered_on_root(const struct bench_case *c, const void *out)
{
    return c->rank == c->root ? wrong_gathered(c, out) : 0;
}

static size_t wrong_scattered(const struct bench_case *c, const void *out)
{
    return bench_wrong(out, c->count, c->type, c->root, c->count * (size_t)c->rank, c->round);
}

static size_t wrong_exchanged(const struct bench_case *c, const void *out)
{
    size_t wrong = 0;

    for (int r = 0; r < c->n; r++)
        wrong += bench_wrong(at_const(out, c, c->count * (size_t)r), c->count, c->type, r, c->count * (size_t)c->rank,
                             c->round);
    return wrong;
}

/* --------------------------------------------------------------------------------------------- collectives ---- */

/* One operation that is waited for, as a program writes it: by its own function, not by a group of one. */
static cddp_status run_one(const struct bench_case *c, const cddp_coll_args *a)
{
    switch (a->coll) {
    case CDDP_COLL_ALL_REDUCE:
        return cddp_all_reduce(c->comm, a->in, a->out, a->count, a->dtype, a->op);
    case CDDP_COLL_REDUCE:
        return cddp_reduce(c->comm, a->in, a->out, a->count, a->dtype, a->op, a->root);
    case CDDP_COLL_REDUCE_SCATTER:
        return cddp_reduce_scatter(c->comm, a->in, a->out, a->count, a->dtype, a->op);
    case CDDP_COLL_ALL_GATHER:
        return cddp_all_gather(c->comm, a->in, a->out, a->count, a->dtype);
    case CDDP_COLL_ALL_TO_ALL:
        return cddp_all_to_all(c->comm, a->in, a->out, a->count, a->dtype);
    case CDDP_COLL_SEND:
        return cddp_send(c->comm, a->in, a->count, a->dtype, a->root);
    case CDDP_COLL_RECV:
        return cddp_recv(c->comm, a->out, a->count, a->dtype, a->root);
    case CDDP_COLL_BROADCAST: /* to other memory */
    case CDDP_COLL_BARRIER:
    case CDDP_COLL_GATHER:
    case CDDP_COLL_SCATTER:
    case CDDP_COLL_ALL_GATHERV:
    case CDDP_COLL_ALL_TO_ALLV:
    case CDDP_COLL_REDUCE_SCATTERV:
    case CDDP_COLL_FORCE_INT_:
        break;
    }
    return cddp_coll_run(c->comm, a, 1);
}

static cddp_status issue(const struct bench_case *c, const cddp_coll_args *a, size_t n, uint64_t *ticket)
{
    *ticket = 0;
    if (!c->blocking)
        return cddp_coll_start(c->comm, a, n, ticket);
    return n == 1 ? run_one(c, a) : cddp_coll_run(c->comm, a, n);
}

static size_t broadcast(const struct bench_case *c, cddp_coll_args *a)
{
    *a = args_of(c, CDDP_COLL_BROADCAST);
    a->in = c->rank == c->root && c->in != c->out ? c->in : NULL;
    return 1;
}

/* ------------------------------------------------------------------------------------------ uneven all-to-all ---- */

/*
 * How much a rank sends to the one that is d places further on: the more, the further. All ranks send as much, n blocks
 * at most, and receive as much.
 */
static size_t share(const struct bench_case *c, int d)
{
    size_t sum = (size_t)c->n * (size_t)(c->n - 1) / 2;

    return sum == 0 ? c->count : c->count * (size_t)c->n / sum * (size_t)d;
}

static int further(const struct bench_case *c, int from, int to)
{
    return (to - from + c->n) % c->n;
}

static size_t alltoallv(const struct bench_case *c, cddp_coll_args *a)
{
    size_t *in = c->counts, *out = c->counts + c->n;

    for (int r = 0; r < c->n; r++) {
        in[r] = share(c, further(c, c->rank, r));
        out[r] = share(c, further(c, r, c->rank));
    }
    *a = args_of(c, CDDP_COLL_ALL_TO_ALLV);
    a->count = 0;
    a->in_counts = in;
    a->out_counts = out;
    return 1;
}

static size_t wrong_exchanged_v(const struct bench_case *c, const void *out)
{
    size_t wrong = 0, to = 0;

    for (int r = 0; r < c->n; r++) {
        size_t from = 0, count = share(c, further(c, r, c->rank));

        for (int s = 0; s < c->rank; s++)
            from += share(c, further(c, r, s));
        wrong += bench_wrong(at_const(out, c, to), count, c->type, r, from, c->round);
        to += count;
    }
    return wrong;
}

/* ------------------------------------------------------------------------------------------------- messages ---- */

/* A message to or from another rank, with the memory that it uses. */
static cddp_coll_args message(const struct bench_case *c, cddp_coll coll, int peer)
{
    cddp_coll_args a = args_of(c, coll);

    a.root = peer;
    a.in = coll == CDDP_COLL_SEND ? c->in : NULL;
    a.out = coll == CDDP_COLL_RECV ? c->out : NULL;
    return a;
}

/* To the next rank and from the one before, in one group: a ring in which nobody waits for all others. */
static size_t sendrecv(const struct bench_case *c, cddp_coll_args *a)
{
    a[0] = message(c, CDDP_COLL_SEND, (c->rank + 1) % c->n);
    a[1] = message(c, CDDP_COLL_RECV, (c->rank - 1 + c->n) % c->n);
    return 2;
}

static size_t wrong_received(const struct bench_case *c, const void *out)
{
    return bench_wrong(out, c->count, c->type, (c->rank - 1 + c->n) % c->n, 0, c->round);
}

/* An all-gather in log2(n) exchanges, each of twice as much as the one before. */
static cddp_status start_hypercube(const struct bench_case *c, uint64_t *ticket)
{
    size_t block = c->count * size_of(c);
    char *mine = at(c->out, c, c->count * (size_t)c->rank);
    cddp_status st = c->in == mine ? CDDP_OK : cddp_copy(c->comm, mine, c->in, block);

    *ticket = 0;
    for (int bit = 1; bit < c->n && st == CDDP_OK; bit *= 2) {
        size_t have = (size_t)(c->rank & ~(bit - 1)), get = have ^ (size_t)bit;
        cddp_coll_args a[2] = {message(c, CDDP_COLL_SEND, c->rank ^ bit), message(c, CDDP_COLL_RECV, c->rank ^ bit)};

        a[0].count = a[1].count = c->count * (size_t)bit;
        a[0].in = at(c->out, c, c->count * have);
        a[1].out = at(c->out, c, c->count * get);
        st = issue(c, a, 2, ticket);
    }
    return st;
}

/* Ranks of the first half write to those of the second one. */
static int peer_of(const struct bench_case *c)
{
    return c->rank < c->n / 2 ? c->rank + c->n / 2 : c->rank - c->n / 2;
}

bool bench_takes_part(const struct bench_kind *kind, const struct bench_case *c)
{
    int half = c->n / 2;
    bool all = strcmp(kind->name, "mbw_mr") == 0;

    return !kind->pairs || (c->n > 1 && c->rank < 2 * half && (all || c->rank == 0 || c->rank == half));
}

cddp_status bench_start(const struct bench_kind *kind, const struct bench_case *c, uint64_t *ticket)
{
    cddp_coll_args a[2 * BENCH_MOST_TOGETHER];
    struct bench_case one = *c;
    size_t n = 0;

    if (kind->start != NULL)
        return kind->start(c, ticket);
    for (int i = 0; i < c->together; i++) {
        if (kind->ops != NULL)
            n += kind->ops(&one, &a[n]);
        else
            a[n++] = args_of(&one, kind->coll);
        one.in = (char *)one.in + one.in_step;
        one.out = (char *)one.out + one.out_step;
    }
    return issue(c, a, n, ticket);
}

static cddp_status ping_pong(const struct bench_case *c, uint64_t *ticket)
{
    int peer = peer_of(c), first = c->rank < c->n / 2 ? 0 : 1;
    cddp_coll_args a[2] = {message(c, CDDP_COLL_SEND, peer), message(c, CDDP_COLL_RECV, peer)};
    cddp_status st;

    st = issue(c, &a[first], 1, ticket);
    return st == CDDP_OK ? issue(c, &a[1 - first], 1, ticket) : st;
}

/* A window of messages as one group; then a word from the other side, for which the first one waits. */
static cddp_status stream(const struct bench_case *c, bool both, uint64_t *ticket)
{
    int peer = peer_of(c);
    bool sends = both || c->rank < c->n / 2, receives = both || c->rank >= c->n / 2;
    cddp_coll_args a[2 * BENCH_WINDOW], word;
    size_t n = 0;
    cddp_status st;

    for (int i = 0; i < BENCH_WINDOW; i++) {
        if (sends)
            a[n++] = message(c, CDDP_COLL_SEND, peer);
        if (receives)
            a[n++] = message(c, CDDP_COLL_RECV, peer);
    }
    st = issue(c, a, n, ticket);
    if (st != CDDP_OK || both)
        return st;
    word = message(c, receives ? CDDP_COLL_SEND : CDDP_COLL_RECV, peer);
    word.count = c->count < 4 ? c->count : 4;
    return issue(c, &word, 1, ticket);
}

static cddp_status one_way(const struct bench_case *c, uint64_t *ticket)
{
    return stream(c, false, ticket);
}

static cddp_status both_ways(const struct bench_case *c, uint64_t *ticket)
{
    return stream(c, true, ticket);
}

static size_t wrong_of_peer(const struct bench_case *c, const void *out)
{
    int peer = peer_of(c);

    return bench_wrong(out, c->count, c->type, peer, 0, c->round);
}

static size_t wrong_of_sender(const struct bench_case *c, const void *out)
{
    return c->rank >= c->n / 2 ? wrong_of_peer(c, out) : 0;
}

/* ------------------------------------------------------------------------------------------------ bandwidths ---- */

static double once(int n)
{
    (void)n;
    return 1;
}

static double all(int n)
{
    return n;
}

static double others(int n)
{
    return n - 1;
}

static double share_of_others(int n)
{
    return (n - 1) / (double)n;
}

static double twice_the_others(int n)
{
    return 2 * share_of_others(n);
}

static double window(int n)
{
    (void)n;
    return BENCH_WINDOW;
}

static double two_windows(int n)
{
    (void)n;
    return 2 * BENCH_WINDOW;
}

static double window_of_pairs(int n)
{
    int pairs = n / 2;

    return BENCH_WINDOW * pairs;
}

const struct bench_kind bench_kinds[] = {
    {"all_reduce", "the sum of all ranks, on all ranks", true, false, false, false, BENCH_SAME, false, false,
     CDDP_COLL_ALL_REDUCE, NULL, NULL, fill_block, wrong_reduced, once, twice_the_others},
    {"all_gather", "what each rank has, on all ranks", false, false, false, true, BENCH_PART_OUT, false, false,
     CDDP_COLL_ALL_GATHER, NULL, NULL, fill_block, wrong_gathered, all, share_of_others},
    {"broadcast", "what the root has, on all ranks", false, true, false, false, BENCH_SAME, false, false, (cddp_coll)0,
     broadcast, NULL, fill_block, wrong_of_root, once, once},
    {"reduce", "the sum of all ranks, on the root", true, true, false, false, BENCH_SAME, false, false,
     CDDP_COLL_REDUCE, NULL, NULL, fill_block, wrong_reduced_on_root, once, once},
    {"reduce_scatter", "the sum of all ranks, a block on each", true, false, true, false, BENCH_PART_IN, false, false,
     CDDP_COLL_REDUCE_SCATTER, NULL, NULL, fill_blocks, wrong_reduced_block, all, share_of_others},
    {"alltoall", "a block from each rank to each", false, false, true, true, BENCH_APART, false, false,
     CDDP_COLL_ALL_TO_ALL, NULL, NULL, fill_blocks, wrong_exchanged, all, share_of_others},
    {"alltoallv", "the same, the more the further apart two ranks are", false, false, true, true, BENCH_APART, false,
     false, (cddp_coll)0, alltoallv, NULL, fill_blocks, wrong_exchanged_v, all, share_of_others},
    {"gather", "what each rank has, on the root", false, true, false, true, BENCH_PART_OUT, false, false,
     CDDP_COLL_GATHER, NULL, NULL, fill_block, wrong_gathered_on_root, all, share_of_others},
    {"scatter", "a block of the root's for each rank", false, true, true, false, BENCH_PART_IN, false, false,
     CDDP_COLL_SCATTER, NULL, NULL, fill_blocks, wrong_scattered, all, share_of_others},
    {"sendrecv", "a message to the next rank, one from the one before", false, false, false, false, BENCH_APART, false,
     false, (cddp_coll)0, sendrecv, NULL, fill_block, wrong_received, once, once},
    {"hypercube", "an all-gather by messages; ranks are a power of two", false, false, false, true, BENCH_PART_OUT,
     true, false, (cddp_coll)0, NULL, start_hypercube, fill_block, wrong_gathered, others, once},
    {"latency", "a message there and one back between two ranks; half of that time", false, false, false, false,
     BENCH_APART, false, true, (cddp_coll)0, NULL, ping_pong, fill_block, wrong_of_peer, once, once},
    {"bw", "64 messages at once from one rank to another", false, false, false, false, BENCH_APART, false, true,
     (cddp_coll)0, NULL, one_way, fill_block, wrong_of_sender, window, once},
    {"bibw", "64 messages at once in each direction", false, false, false, false, BENCH_APART, false, true,
     (cddp_coll)0, NULL, both_ways, fill_block, wrong_of_peer, two_windows, once},
    {"mbw_mr", "bw between all pairs of ranks at once", false, false, false, false, BENCH_APART, false, true,
     (cddp_coll)0, NULL, one_way, fill_block, wrong_of_sender, window_of_pairs, once},
};
const int bench_n_kinds = sizeof bench_kinds / sizeof bench_kinds[0];
