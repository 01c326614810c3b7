/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The algorithms between nodes: over many layouts, every result has the bits that one node computes from the inputs of
 * all ranks; a rank in another operation is named by all; so is a rank that is killed at a random moment. The seed is
 * printed. Arguments: "--full" tests more layouts, all pairs of operations, and more deaths; SEED; the name of the only
 * layout, of which results alone are tested.
 */
#include "common/clock.h"
#include "ranks.h"
#include "within.h"
#include "worker/backend/describe.h"
#include "worker/math/reduce.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILD_S 600
#define KNOWN_MS 1500
#define MOST ((size_t)1 << 20) /* elements */

struct plan {
    unsigned seed;
    bool full;
    int only; /* as in struct cdi_choice_net */
    int odd;  /* the rank that calls another operation, or is killed */
    int a, b; /* operations of all others, and of that rank */
    int after_us;
};

static unsigned next(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* ------------------------------------------------------------------------------------------------------ results ----
 */

/* Inputs of any rank, whose sums depend on their order. */
static void fill(void *to, size_t n, cddp_dtype dtype, unsigned seed, int rank)
{
    unsigned state = seed * 31u + (unsigned)rank * 7919u + 1u;

    for (size_t i = 0; i < n; i++) {
        unsigned v = next(&state);
        float x = ((float)(v % 20011) - 10005.0f) * (v % 3 == 0 ? 1e-4f : v % 3 == 1 ? 1.0f : 37.0f);

        if (dtype == CDDP_FLOAT32)
            ((float *)to)[i] = x;
        else if (dtype == CDDP_FLOAT64)
            ((double *)to)[i] = (double)x * 1.0000001;
        else if (dtype == CDDP_BFLOAT16) {
            uint32_t bits;

            memcpy(&bits, &x, 4);
            ((uint16_t *)to)[i] = (uint16_t)(bits >> 16);
        } else {
            ((int32_t *)to)[i] = (int32_t)v;
        }
    }
}

struct all {
    uint8_t *of[RANKS_MAX]; /* inputs */
    size_t bytes;           /* of one */
};

static int make_all(const struct rank *r, struct all *x, size_t n, cddp_dtype dtype, unsigned seed)
{
    x->bytes = n * cddp_dtype_size(dtype);
    for (int k = 0; k < r->size; k++) {
        x->of[k] = malloc(x->bytes + 1);
        if (x->of[k] == NULL)
            return 1;
        fill(x->of[k], n, dtype, seed, k);
    }
    return 0;
}

static void free_all(const struct rank *r, struct all *x)
{
    for (int k = 0; k < r->size; k++)
        free(x->of[k]);
}

static int check_reduction(struct rank *r, enum cdi_coll_kind kind, size_t n, cddp_dtype dtype, cddp_redop redop,
                           unsigned seed)
{
    size_t size = cddp_dtype_size(dtype),
           per = kind == CDI_REDUCE_SCATTER ? (n + (size_t)r->size - 1) / (size_t)r->size : n;
    bool in_place = seed % 2 == 0 && kind != CDI_REDUCE_SCATTER, needs = kind != CDI_REDUCE;
    struct cdi_coll op = {
        .kind = kind, .count = per, .dtype = dtype, .op = redop, .root = (int)(seed % (unsigned)r->size), .bucket = -1};
    struct all x;
    uint8_t *want, *got, *mine;
    void *to;

    n = kind == CDI_REDUCE_SCATTER ? per * (size_t)r->size : n;
    op.lazy = seed % 3 == 0;
    needs = needs || op.root == r->rank;
    RANK_CHECK(make_all(r, &x, n, dtype, seed) == 0);
    want = malloc(x.bytes + 1);
    got = malloc(x.bytes + 1);
    mine = malloc(x.bytes + 1);
    RANK_CHECK(want != NULL && got != NULL && mine != NULL);
    to = want;
    if (n > 0)
        cdi_reduce(&to, 1, (const void *const *)x.of, r->size, n, dtype, redop);
    memcpy(mine, x.of[r->rank], x.bytes);
    memset(got, 0x5a, x.bytes);
    op.in = mine;
    op.out = in_place ? mine : got;
    RANK_CHECK(rank_do(r, &op) == CDDP_OK, "%s of %zu", cdi_coll_name((uint32_t)kind), n);
    if (needs)
        RANK_CHECK(memcmp(op.out, want + (kind == CDI_REDUCE_SCATTER ? per * size * (size_t)r->rank : 0), per * size) ==
                       0,
                   "kind %d of %zu elements, dtype %d", (int)kind, n, (int)dtype);
    RANK_CHECK(in_place || memcmp(mine, x.of[r->rank], x.bytes) == 0, "the input was changed");
    free(want);
    free(got);
    free(mine);
    free_all(r, &x);
    return 0;
}

static int check_move(struct rank *r, enum cdi_coll_kind kind, size_t n, unsigned seed)
{
    size_t size = (size_t)r->size, n_in = kind == CDI_ALL_TO_ALL ? n * size : n,
           n_out = kind == CDI_BROADCAST ? n : n * size;
    struct cdi_coll op = {.kind = kind,
                          .count = n,
                          .dtype = CDDP_INT32,
                          .root = (int)(seed % (unsigned)r->size),
                          .bucket = -1,
                          .lazy = seed % 2 == 0};
    struct all x;
    int32_t *out = malloc(n_out * 4 + 1);

    RANK_CHECK(out != NULL && make_all(r, &x, n_in, CDDP_INT32, seed) == 0);
    memset(out, 0x5a, n_out * 4);
    op.in = x.of[r->rank];
    op.out = out;
    RANK_CHECK(rank_do(r, &op) == CDDP_OK, "%s of %zu", cdi_coll_name((uint32_t)kind), n);
    for (int k = 0; k < r->size; k++) {
        const uint8_t *from = x.of[kind == CDI_BROADCAST ? op.root : k];

        if (kind == CDI_ALL_TO_ALL)
            from += n * 4 * (size_t)r->rank;
        RANK_CHECK(memcmp(out + (kind == CDI_BROADCAST ? 0 : n * (size_t)k), from, n * 4) == 0,
                   "%s of %zu: the part of rank %d", cdi_coll_name((uint32_t)kind), n, k);
    }
    free(out);
    free_all(r, &x);
    return 0;
}

static int check_gatherv(struct rank *r, size_t n, unsigned seed)
{
    size_t counts[RANKS_MAX], total = 0, at = 0;
    struct cdi_coll op = {.kind = CDI_ALL_GATHERV, .dtype = CDDP_INT32, .bucket = -1, .counts = counts};
    struct all x;
    int32_t *out;

    for (int k = 0; k < r->size; k++) {
        counts[k] = k % 3 == 1 ? 0 : n / (size_t)(k + 1);
        total += counts[k];
    }
    out = malloc(total * 4 + 1);
    RANK_CHECK(out != NULL && make_all(r, &x, n, CDDP_INT32, seed) == 0);
    op.in = x.of[r->rank];
    op.out = out;
    op.count = total;
    RANK_CHECK(rank_do(r, &op) == CDDP_OK, "all_gatherv of %zu", n);
    for (int k = 0; k < r->size; k++) {
        RANK_CHECK(memcmp(out + at, x.of[k], counts[k] * 4) == 0, "all_gatherv: the part of rank %d", k);
        at += counts[k];
    }
    free(out);
    free_all(r, &x);
    return 0;
}

static int check_kinds(struct rank *r, size_t n, unsigned seed)
{
    static const cddp_redop redops[] = {CDDP_SUM, CDDP_AVG, CDDP_MAX};
    static const cddp_dtype dtypes[] = {CDDP_FLOAT32, CDDP_BFLOAT16, CDDP_FLOAT64, CDDP_INT32};
    static const enum cdi_coll_kind moves[] = {CDI_BROADCAST, CDI_ALL_GATHER, CDI_ALL_TO_ALL};
    const struct cdi_coll barrier = {.kind = CDI_BARRIER, .bucket = -1};
    int bad = check_reduction(r, CDI_ALL_REDUCE, n, CDDP_FLOAT32, CDDP_SUM, seed);

    for (unsigned k = 0; k < 3 && bad == 0; k++) {
        cddp_dtype dtype = dtypes[(seed + k) % 4];
        cddp_redop redop = redops[(seed / 4 + k) % (dtype == CDDP_INT32 ? 1 : 3)];

        bad = check_reduction(r,
                              k == 0   ? CDI_ALL_REDUCE
                              : k == 1 ? CDI_REDUCE
                                       : CDI_REDUCE_SCATTER,
                              n, dtype, redop, seed + k);
        /* What every rank gives or gets is within bounds. */
        if (bad == 0)
            bad = check_move(r, moves[k], moves[k] == CDI_BROADCAST ? n : n / (size_t)r->size, seed + k);
    }
    if (bad == 0)
        bad = check_gatherv(r, n, seed);
    RANK_CHECK(bad != 0 || rank_do(r, &barrier) == CDDP_OK);
    return bad;
}

static int compute(struct rank *r)
{
    /* Bytes of float32 vectors around every threshold, a slot, a turn of shards, and a frame. */
    static const size_t bytes[] = {0,     4,     48,     1024,   4096,   8192,    16384,
                                   32768, 65536, 131072, 262144, 524288, 1048576, 2097152};
    const struct plan *p = r->arg;
    const struct cdi_choice_net net = {.crowd = 1, .only = p->only};
    int most = p->full ? 14 : 12, bad = 0;

    r->net = p->only > 0 ? &net : NULL;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    for (int i = 0; i < most && bad == 0; i++)
        for (int d = -1; d <= 1 && bad == 0; d++) {
            unsigned seed = p->seed + (unsigned)(i * 3 + d);

            if ((bytes[i] == 0 && d < 0) || (!p->full && i > 6 && d == (int)(p->seed % 3) - 1))
                continue;
            bad = check_kinds(r, (size_t)((int64_t)(bytes[i] / 4) + d), seed);
        }
    rank_close(r);
    return bad;
}

/* --------------------------------------------------------------------------------------------- disturbed operations
 * ---- */

#define N_OPS 9

/* One operation of each algorithm. Two of them differ in their description. */
static struct cdi_coll nth_op(int i, float *x, float *all)
{
    static const struct {
        enum cdi_coll_kind kind;
        size_t count;
    } ops[N_OPS] = {
        {CDI_BARRIER, 0},        {CDI_ALL_REDUCE, 1},      {CDI_ALL_REDUCE, 2},
        {CDI_ALL_REDUCE, 20000}, {CDI_ALL_REDUCE, 700000}, {CDI_REDUCE_SCATTER, 1000},
        {CDI_ALL_GATHER, 30000}, {CDI_ALL_TO_ALL, 10000},  {CDI_BROADCAST, 3},
    };

    return (struct cdi_coll){
        .kind = ops[i].kind, .in = x, .out = all, .count = ops[i].count, .dtype = CDDP_FLOAT32, .bucket = -1};
}

static int call_different(struct rank *r)
{
    const struct plan *p = r->arg;
    float *x = calloc(MOST, sizeof *x), *all = calloc(MOST, sizeof *all);
    struct cdi_coll op = nth_op(r->rank == p->odd ? p->b : p->a, x, all);
    const struct cdi_coll warm = nth_op(p->a, x, all);
    char want[32];
    cddp_status st;

    RANK_CHECK(x != NULL && all != NULL);
    r->world.timeout_ms = 30000;
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (p->seed % 2 == 0)
        RANK_CHECK(rank_do(r, &warm) == CDDP_OK);
    st = rank_do(r, &op);
    (void)snprintf(want, sizeof want, "rank %d called ", p->odd);
    RANK_CHECK(st == CDDP_E_MISMATCH && strstr(r->err.msg, want) != NULL, "%d, not a mismatch of rank %d", (int)st,
               p->odd);
    free(x);
    free(all);
    return 0;
}

static int work_until_it_dies(struct rank *r)
{
    const struct plan *p = r->arg;
    float *x = calloc(MOST, sizeof *x), *all = calloc(MOST, sizeof *all);
    cddp_status st = CDDP_OK;
    char want[32];
    int took;

    RANK_CHECK(x != NULL && all != NULL);
    RANK_CHECK(rank_open(r) == CDDP_OK);
    if (r->rank == p->odd)
        rank_have_me_killed(r, p->after_us);
    for (int i = 0; st == CDDP_OK; i++) {
        struct cdi_coll op = nth_op(p->a >= 0 ? p->a : i % N_OPS, x, all);

        op.lazy = i % 2 == 0;
        st = rank_do(r, &op);
    }
    took = rank_now() - atomic_load(&r->board->flag[0]);
    (void)snprintf(want, sizeof want, "rank %d (", p->odd);
    RANK_CHECK(st == CDDP_E_PEER && strstr(r->err.msg, want) != NULL, "rank %d was killed", p->odd);
    RANK_CHECK(took < cdi_within_ms(KNOWN_MS), "%d ms after the death", took);
    free(x);
    free(all);
    return 0;
}

/* ---------------------------------------------------------------------------------------------------------- main ----
 */

static int n_tests;

static int tell(bool ok, const char *what, const struct ranks_layout *l, const struct plan *p)
{
    printf("%s %d - %s on %s (seed %u, rank %d, operations %d %d, %d us)\n", ok ? "ok" : "not ok", ++n_tests, what,
           l->name, p->seed, p->odd, p->a, p->b, p->after_us);
    (void)fflush(stdout);
    return !ok;
}

/* Sizes meet other algorithms than by themselves. */
static int run_only(const struct ranks_layout *l, const struct plan *p, enum cdi_algorithm how, const char *what)
{
    struct plan forced = *p;

    forced.only = (int)how + 1;
    return tell(ranks_fork_on(l, CHILD_S, compute, &forced, NULL) == 0, what, l, &forced);
}

static int run_each(const struct ranks_layout *layouts, const struct plan *p)
{
    const struct ranks_layout *one = &layouts[p->seed % 2 == 0 ? 1 : 7], *many = &layouts[2];
    bool even = p->seed % 2 == 0;

    return run_only(even ? one : many, p, CDI_BY_CHAIN, "the chain has one node's bits") +
           run_only(even ? many : one, p, CDI_BY_SHARDS, "shards have one node's bits") +
           run_only(even ? one : many, p, CDI_BY_ROUNDS, "rounds have one node's bits");
}

static int run_mismatch(const struct ranks_layout *l, struct plan *p)
{
    return tell(ranks_fork_on(l, CHILD_S, call_different, p, NULL) == 0, "another operation is named", l, p);
}

static int run_death(const struct ranks_layout *l, struct plan *p)
{
    int status[RANKS_MAX], bad = ranks_fork_on(l, CHILD_S, work_until_it_dies, p, status);

    return tell(bad == 1 && WIFSIGNALED(status[p->odd]) && WTERMSIG(status[p->odd]) == SIGKILL, "a death is named", l,
                p);
}

int main(int argc, char **argv)
{
    static const struct ranks_layout layouts[] = {
        {.name = "1+1", .node_size = {1, 1}},
        {.name = "1+1+1", .node_size = {1, 1, 1}},
        {.name = "2+1+3", .node_size = {2, 1, 3}},
        {.name = "1x5", .node_size = {1, 1, 1, 1, 1}},
        {.name = "2x4", .node_size = {2, 2, 2, 2}},
        {.name = "1x7", .node_size = {1, 1, 1, 1, 1, 1, 1}},
        {.name = "1x8", .node_size = {1, 1, 1, 1, 1, 1, 1, 1}},
        {.name = "1x4", .node_size = {1, 1, 1, 1}},
        {.name = "3+3", .node_size = {3, 3}},
        {.name = "3x5", .node_size = {3, 3, 3, 3, 3}},
        {.name = "1+2+1+1+3+1+2", .node_size = {1, 2, 1, 1, 3, 1, 2}},
        {.name = "2x8", .node_size = {2, 2, 2, 2, 2, 2, 2, 2}},
        {.name = "1x16", .node_size = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
    };
    bool full = argc > 1 && strcmp(argv[1], "--full") == 0;
    unsigned seed = argc > 1 + full ? (unsigned)strtoul(argv[1 + full], NULL, 10) : (unsigned)cdi_now_ns(),
             state = seed;
    int n = full ? 13 : 7, failed = 0;

    printf("# seed %u\n", seed);
    for (int i = 0; i < n; i++) {
        struct plan p = {.seed = seed, .full = full, .odd = -1};

        if (argc > 2 + full && strcmp(argv[2 + full], layouts[i].name) != 0)
            continue;
        if (!full && i != 2 && i != (int)(seed % 7))
            continue;
        failed += tell(ranks_fork_on(&layouts[i], CHILD_S, compute, &p, NULL) == 0, "results have one node's bits",
                       &layouts[i], &p);
    }
    if (argc <= 2 + full) {
        struct plan p = {.seed = seed, .odd = -1};

        failed += run_each(layouts, &p);
        p.seed++;
        failed += full ? run_each(layouts, &p) : 0;
    }
    for (int k = 0; k < N_OPS * N_OPS && argc <= 2 + full; k++) {
        const struct ranks_layout *l = &layouts[1 + next(&state) % 5];
        struct plan p = {.seed = next(&state), .a = k / N_OPS, .b = k % N_OPS};

        p.odd = (int)(next(&state) % (unsigned)ranks_total(l));
        if (p.a != p.b && (full || next(&state) % 6 == 0))
            failed += run_mismatch(l, &p);
    }
    for (int k = 0; k < (full ? 90 : 8) && argc <= 2 + full; k++) {
        const struct ranks_layout *l = &layouts[1 + next(&state) % 5];
        struct plan p = {.seed = next(&state), .a = k % 10 == 9 ? -1 : k % 10, .after_us = (int)(next(&state) % 60000)};

        p.odd = (int)(next(&state) % (unsigned)ranks_total(l));
        failed += run_death(l, &p);
    }
    printf("1..%d\n", n_tests);
    return failed != 0;
}
