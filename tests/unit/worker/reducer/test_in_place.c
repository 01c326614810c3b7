/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients that are reduced in place: the same bits as in the arena, in all layouts, orders and modes of a reducer. */
#include "hygiene.h"
#include "mean_hook.h"
#include "worker/reducer/state/arena.h"
#include "world.h"

#include <stdint.h>

CDI_SUITE(in_place, .timeout = 300);

#define PARAMS 9
#define GAP 16              /* elements */
#define BLOCK (1024 * 1024) /* bytes; the gradients use less than half in any layout */
#define STEPS 3

/* Some are large enough to be reduced in place, with their neighbours or alone; some are not. */
static const size_t counts[PARAMS] = {300, 17000, 64, 9000, 9000, 5, 20000, 1000, 130};

enum layout { FORWARD, REVERSED, SHUFFLED, BY_TURNS, GAPS, MIXED, MISALIGNED, UNEQUAL, LAYOUTS };
enum source { ALLOC, REGISTER, SOURCES };
enum order { LAST_FIRST, FIRST_FIRST, ANY_ORDER, ORDERS };

struct kind {
    cddp_dtype dtype, grad_dtype, comm_dtype;
    bool by_turns; /* every second one is float64 */
};

static const struct kind kinds[] = {
    {CDDP_FLOAT32, CDDP_DTYPE_NONE, CDDP_DTYPE_NONE, false},  {CDDP_FLOAT64, CDDP_DTYPE_NONE, CDDP_DTYPE_NONE, false},
    {CDDP_BFLOAT16, CDDP_DTYPE_NONE, CDDP_DTYPE_NONE, false}, {CDDP_FLOAT16, CDDP_FLOAT32, CDDP_DTYPE_NONE, false},
    {CDDP_FLOAT32, CDDP_DTYPE_NONE, CDDP_BFLOAT16, true},     {CDDP_BFLOAT16, CDDP_DTYPE_NONE, CDDP_FLOAT32, true},
};

static const uint32_t flags[] = {0,
                                 CDDP_DDP_SUM,
                                 CDDP_DDP_FIND_UNUSED,
                                 CDDP_DDP_FIND_UNUSED | CDDP_DDP_SKIP_UNUSED,
                                 CDDP_DDP_STATIC_GRAPH,
                                 CDDP_DDP_SPLIT,
                                 CDDP_DDP_SPLIT | CDDP_DDP_FIND_UNUSED,
                                 CDDP_DDP_JOIN,
                                 CDDP_DDP_JOIN | CDDP_DDP_JOIN_ACTIVE};

#define KINDS (sizeof kinds / sizeof kinds[0])
#define FLAGS (sizeof flags / sizeof flags[0])

struct job {
    cddp_comm *comm;
    int rank, size;
    uint8_t *block[2]; /* of ALLOC and REGISTER */
    uint8_t *data;
    void *apart[PARAMS];
    bool registers; /* REGISTER is such memory, not ordinary memory */
};

static uint32_t draw(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)*state * below) >> 32);
}

/* Returns the order of events: the same on all ranks for one seed. */
static void permute(size_t order[PARAMS], uint32_t seed)
{
    for (size_t i = 0; i < PARAMS; i++)
        order[i] = i;
    for (size_t i = PARAMS; i-- > 1;) {
        size_t k = draw(&seed, (uint32_t)i + 1), t = order[i];

        order[i] = order[k];
        order[k] = t;
    }
}

static cddp_dtype dtype_of(const struct kind *k, size_t i)
{
    return k->by_turns && i % 2 == 1 ? CDDP_FLOAT64 : k->dtype;
}

static size_t grad_size(const struct kind *k, size_t i)
{
    bool longer = k->grad_dtype != CDDP_DTYPE_NONE && dtype_of(k, i) == k->dtype;

    return cddp_dtype_size(longer ? k->grad_dtype : dtype_of(k, i));
}

/* Returns the gradients' addresses; NULL: in the arena. */
static void lay(struct job *j, const struct kind *k, enum layout l, enum source s, void *grad[PARAMS])
{
    size_t order[PARAMS], at = l == UNEQUAL ? (size_t)j->rank * 64 : l == MISALIGNED ? 1 : 0;

    permute(order, 5);
    for (size_t n = 0; n < PARAMS; n++) {
        size_t i = l == REVERSED   ? PARAMS - 1 - n
                   : l == SHUFFLED ? order[n]
                   : l == BY_TURNS ? (2 * n) % PARAMS /* an odd number: all are visited */
                                   : n;

        at = l == MISALIGNED ? at : (at + grad_size(k, i) - 1) / grad_size(k, i) * grad_size(k, i);
        grad[i] = j->block[s] + at;
        at += counts[i] * grad_size(k, i) + (l == GAPS ? GAP * 8 : 0);
    }
    for (size_t i = 0; i < PARAMS && l == MIXED; i++)
        if (i % 4 == 1)
            grad[i] = NULL;
        else if (i % 4 == 3)
            grad[i] = j->apart[i];
}

static cddp_status make(struct job *j, const struct kind *k, uint32_t f, void *const grad[PARAMS], cddp_ddp **out)
{
    static const char *const names[PARAMS] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    const cddp_ddp_options opt = {.size = sizeof opt,
                                  .flags = f,
                                  .comm_dtype = k->comm_dtype,
                                  .bucket_bytes = (f & CDDP_DDP_TUNE) != 0 ? 0 : 90000,
                                  .first_bucket_bytes = (f & CDDP_DDP_TUNE) != 0 ? 20000 : 50000};
    cddp_param p[PARAMS];
    size_t at = 0;

    for (size_t i = 0; i < PARAMS; at += 8 * counts[i++])
        p[i] = (cddp_param){.size = sizeof p[i],
                            .name = names[i],
                            .data = j->data + at,
                            .count = counts[i],
                            .dtype = dtype_of(k, i),
                            .grad_dtype = dtype_of(k, i) == k->dtype ? k->grad_dtype : CDDP_DTYPE_NONE,
                            .grad = grad != NULL ? grad[i] : NULL};
    return cddp_ddp_create(out, j->comm, p, PARAMS, &opt);
}

/* Random bits that are numbers in any type; sums do not represent all of them. */
static void fill(const struct kind *k, void *grad, size_t i, int rank, int step)
{
    uint32_t state = (uint32_t)((size_t)rank * 131 + (size_t)step * 17 + i * 7);
    size_t size = grad_size(k, i);

    for (size_t e = 0; e < counts[i]; e++) {
        uint32_t x = draw(&state, 1u << 20);
        double wide = (double)x / 1000 - 500;
        float narrow = (float)wide;
        uint16_t half = (uint16_t)(0x3c00u + (x & 0x3ffu) + (x & 0x10000u) / 2); /* near 1, of either sign */

        memcpy((uint8_t *)grad + e * size,
               size == 8   ? (void *)&wide
               : size == 4 ? (void *)&narrow
                           : (void *)&half,
               size);
    }
}

static bool arrives(uint32_t f, int rank, size_t i, int step)
{
    if ((f & (CDDP_DDP_FIND_UNUSED | CDDP_DDP_STATIC_GRAPH)) == 0)
        return true;
    if ((f & CDDP_DDP_STATIC_GRAPH) != 0)
        step = 0;
    return i != 6 - (size_t)step && (i + (size_t)rank + (size_t)step) % 3 != 0; /* one arrives on no rank */
}

static int take_step(const struct kind *k, cddp_ddp *d, uint32_t f, enum order o, int rank, int step)
{
    size_t order[PARAMS];

    permute(order, (uint32_t)(step * 31 + (o == ANY_ORDER ? rank : 0)));
    for (size_t n = 0; n < PARAMS; n++) {
        size_t i = o == LAST_FIRST ? PARAMS - 1 - n : o == FIRST_FIRST ? n : order[n];

        if (!arrives(f, rank, i, step))
            continue;
        fill(k, cddp_ddp_grad(d, i), i, rank, step);
        CHECK(cddp_ddp_grad_ready(d, i) == CDDP_OK);
    }
    CHECK(cddp_ddp_wait(d) == CDDP_OK);
    return 0;
}

static int same(const struct kind *k, cddp_ddp *a, cddp_ddp *b, const char *what)
{
    for (size_t i = 0; i < PARAMS; i++)
        if (memcmp(cddp_ddp_grad(a, i), cddp_ddp_grad(b, i), counts[i] * grad_size(k, i)) != 0) {
            fprintf(stderr, "%s: gradient %zu differs\n", what, i);
            return 1;
        }
    return 0;
}

static size_t n_in_place(const cddp_ddp *d)
{
    size_t n = 0;

    for (size_t i = 0; i < PARAMS; i++)
        n += cdi_arena_excludes(d, i);
    return n;
}

/* Checks that exactly the gradients that can be reduced in place are; those that are cast cannot. */
static int expect_places(const struct kind *k, enum layout l, cddp_ddp *d, void *const grad[PARAMS])
{
    size_t n = n_in_place(d);

    if (l == UNEQUAL) {
        CHECK(n == 0 || cdi_comm_world(d->comm)->size == 1);
    } else if (l == MISALIGNED) {
        CHECK(n == 0 || grad_size(k, 0) == 1);
    } else if (k->comm_dtype != CDDP_DTYPE_NONE) {
        for (size_t i = 0; i < PARAMS; i++)
            CHECK(!cdi_arena_excludes(d, i) || dtype_of(k, i) == CDDP_FLOAT64);
    } else if (grad_size(k, 0) >= 4) {
        CHECK(cdi_arena_excludes(d, 6)); /* 80000 bytes or more by itself */
        CHECK(l == GAPS || l == MIXED || n >= 3);
    }
    for (size_t i = 0; i < PARAMS; i++)
        CHECK(grad[i] == NULL || cddp_ddp_grad(d, i) == grad[i]);
    return 0;
}

static int begin(struct job *j, int rank)
{
    void *p;

    j->rank = rank;
    CHECK(cddp_init(&j->comm, NULL) == CDDP_OK);
    j->size = cddp_world_size(j->comm);
    CHECK(cddp_alloc(j->comm, BLOCK, CDDP_MEM_COLLECTIVE, &p) == CDDP_OK);
    j->block[ALLOC] = p;
    j->block[REGISTER] = calloc(1, BLOCK);
    j->data = calloc(1, BLOCK);
    j->registers = cddp_register(j->comm, j->block[REGISTER], BLOCK, CDDP_MEM_COLLECTIVE) == CDDP_OK;
    for (size_t i = 0; i < PARAMS; i++)
        j->apart[i] = calloc(counts[i], 8);
    return 0;
}

static int end(struct job *j)
{
    CHECK(cddp_unregister(j->comm, j->block[REGISTER]) == (j->registers ? CDDP_OK : CDDP_E_INVALID));
    cddp_free(j->comm, j->block[ALLOC]);
    free(j->block[REGISTER]);
    free(j->data);
    for (size_t i = 0; i < PARAMS; i++)
        free(j->apart[i]);
    CHECK(cddp_finalize(j->comm) == CDDP_OK);
    return 0;
}

/* Odd ranks have one step less: there they only take part. Gradients after cddp_ddp_join are undefined. */
static int uneven_step(struct job *j, const struct kind *k, uint32_t f, cddp_ddp *d, cddp_ddp *arena, enum order o,
                       const char *what)
{
    static uint8_t kept[PARAMS][20000 * 8];

    if (j->rank % 2 == 0 && take_step(k, d, f, o, j->rank, STEPS) != 0)
        return 1;
    for (size_t i = 0; i < PARAMS; i++)
        memcpy(kept[i], cddp_ddp_grad(d, i), counts[i] * grad_size(k, i));
    CHECK(cddp_ddp_join(d) == CDDP_OK);
    if (j->rank % 2 == 0 && take_step(k, arena, f, o, j->rank, STEPS) != 0)
        return 1;
    for (size_t i = 0; i < PARAMS && j->rank % 2 == 0; i++)
        if (memcmp(kept[i], cddp_ddp_grad(arena, i), counts[i] * grad_size(k, i)) != 0)
            return fprintf(stderr, "%s: gradient %zu differs in the last step\n", what, i), 1;
    CHECK(cddp_ddp_join(arena) == CDDP_OK);
    return 0;
}

/* One mode, beside a reducer with its arena. */
static int compare(struct job *j, const struct kind *k, uint32_t f, enum layout l, enum source s, enum order o)
{
    void *grad[PARAMS];
    cddp_ddp *d, *arena;
    char what[120];

    (void)snprintf(what, sizeof what, "rank %d: kind %zu, flags %u, layout %d, source %d, order %d", j->rank,
                   (size_t)(k - kinds), f, (int)l, (int)s, (int)o);
    lay(j, k, l, s, grad);
    memset(j->block[s], 0, BLOCK);
    for (size_t i = 0; i < PARAMS; i++)
        memset(j->apart[i], 0, counts[i] * 8);
    CHECK(make(j, k, f, grad, &d) == CDDP_OK && make(j, k, f, NULL, &arena) == CDDP_OK);
    if (s == REGISTER && !j->registers)
        CHECK(n_in_place(d) == 0);
    else if (expect_places(k, l, d, grad) != 0)
        return fprintf(stderr, "%s\n", what), 1;
    for (int step = 0; step < STEPS; step++) {
        if (take_step(k, d, f, o, j->rank, step) != 0 || take_step(k, arena, f, o, j->rank, step) != 0 ||
            same(k, d, arena, what) != 0)
            return 1;
    }
    if ((f & CDDP_DDP_JOIN) != 0 && uneven_step(j, k, f, d, arena, o, what) != 0)
        return 1;
    for (size_t i = 0; i < PARAMS && l == GAPS; i++) { /* the gaps belong to the program */
        const uint8_t *after = (uint8_t *)grad[i] + counts[i] * grad_size(k, i);

        for (size_t b = 0; b < GAP * 8; b++)
            CHECK(after[b] == 0);
    }
    cddp_ddp_destroy(d);
    cddp_ddp_destroy(arena);
    return 0;
}

static int all_ways(int rank)
{
    struct job j = {0};

    (void)alarm(280); /* there are many */
    CHECK(begin(&j, rank) == 0);
    for (size_t k = 0; k < KINDS; k++)
        for (size_t f = 0; f < FLAGS; f++)
            for (int l = 0; l < LAYOUTS; l++)
                for (int s = 0; s < SOURCES; s++)
                    for (int o = 0; o < ORDERS; o++) {
                        if (s == REGISTER && (l + o + (int)f) % 3 != 0)
                            continue; /* a third of them suffices */
                        CHECK(compare(&j, &kinds[k], flags[f], (enum layout)l, (enum source)s, (enum order)o) == 0);
                    }
    return end(&j);
}

Test(in_place, matches_arena_bits)
{
    cr_assert_eq(run_world(2, all_ways), 0);
}

/* Some modes, one for each kind of flags and layout, on more ranks and on nodes. */
static int some_ways(int rank)
{
    struct job j = {0};
    size_t n = 0;

    (void)alarm(280);
    CHECK(begin(&j, rank) == 0);
    for (size_t f = 0; f < FLAGS; f++)
        for (int l = 0; l < LAYOUTS; l++, n++)
            CHECK(compare(&j, &kinds[n % KINDS], flags[f], (enum layout)l, (enum source)(n / 3 % SOURCES),
                          (enum order)(n % ORDERS)) == 0);
    return end(&j);
}

static int on_two_nodes(int rank)
{
    set_env("LOCAL_RANK", rank % 2);
    set_env("LOCAL_WORLD_SIZE", 2);
    set_env("GROUP_RANK", rank / 2);
    set_env("GROUP_WORLD_SIZE", 2);
    return some_ways(rank);
}

static int one_per_node(int rank)
{
    set_env("LOCAL_RANK", 0);
    set_env("LOCAL_WORLD_SIZE", 1);
    set_env("GROUP_RANK", rank);
    set_env("GROUP_WORLD_SIZE", 3);
    return some_ways(rank);
}

Test(in_place, other_worlds_match_arena_bits)
{
    cr_assert_eq(run_world(3, one_per_node), 0);
    cr_assert_eq(run_world(3, some_ways), 0);
    cr_assert_eq(run_world(4, on_two_nodes), 0);
    cr_assert_eq(run_world(1, some_ways), 0);
}

/* ------------------------------------------------------------------------------------- what needs the arena ---- */

/* Both reducers of a job, in the layout of llm.c and others: one block. */
static int open_both(struct job *j, const struct kind *k, uint32_t f, enum layout l, void *grad[PARAMS],
                     cddp_ddp *both[2])
{
    lay(j, k, l, ALLOC, grad);
    CHECK(make(j, k, f, grad, &both[0]) == CDDP_OK && make(j, k, f, NULL, &both[1]) == CDDP_OK);
    CHECK(n_in_place(both[0]) > 0);
    return 0;
}

static int step_of_both(struct job *j, const struct kind *k, uint32_t f, cddp_ddp *both[2], int step, const char *what)
{
    for (int d = 0; d < 2; d++)
        if (take_step(k, both[d], f, LAST_FIRST, j->rank, step) != 0)
            return 1;
    return same(k, both[0], both[1], what);
}

/*
 * After a hook or PowerSGD is set, gradients are copied, and stay at the addresses that the program uses; those of the
 * arena, too.
 */
static int hooked(int rank)
{
    const cddp_hook hook = {.size = sizeof hook, .begin = mean_hook_begin};
    const cddp_powersgd_options psgd = {.size = sizeof psgd, .start_step = 1};
    static const enum layout layouts[] = {SHUFFLED, MIXED};
    struct job j = {0};

    CHECK(begin(&j, rank) == 0);
    for (size_t n = 0; n < 4; n++) {
        void *grad[PARAMS], *before[PARAMS];
        cddp_ddp *both[2];

        CHECK(open_both(&j, &kinds[0], 0, layouts[n % 2], grad, both) == 0);
        for (size_t i = 0; i < PARAMS; i++)
            before[i] = cddp_ddp_grad(both[0], i);
        CHECK(step_of_both(&j, &kinds[0], 0, both, 0, "before") == 0);
        for (int d = 0; d < 2; d++)
            CHECK((n < 2 ? cddp_ddp_set_hook(both[d], &hook) : cddp_ddp_set_powersgd(both[d], &psgd)) == CDDP_OK);
        CHECK(n_in_place(both[0]) == 0);
        for (int step = 1; step < 4; step++)
            CHECK(step_of_both(&j, &kinds[0], 0, both, step, n < 2 ? "with a hook" : "with PowerSGD") == 0);
        for (int d = 0; d < 2; d++)
            CHECK(cddp_ddp_set_hook(both[d], NULL) == CDDP_OK);
        CHECK(step_of_both(&j, &kinds[0], 0, both, 4, "after") == 0);
        for (size_t i = 0; i < PARAMS; i++)
            CHECK(cddp_ddp_grad(both[0], i) == before[i]);
        cddp_ddp_destroy(both[0]);
        cddp_ddp_destroy(both[1]);
    }
    return end(&j);
}

Test(in_place, hooks_and_powersgd_copy)
{
    cr_assert_eq(run_world(2, hooked), 0);
}

static bool says(cddp_status st, cddp_status want, const char *text)
{
    if (st == want && strstr(cddp_last_error(), text) != NULL)
        return true;
    fprintf(stderr, "%s, not %s with '%s'\n", cddp_status_name(st), cddp_status_name(want), text);
    return false;
}

/* The arena is made anew by all ranks together: one that refuses says so, and nothing is broken. */
static int one_refuses(int rank)
{
    const cddp_optim_options sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 0.01};
    const cddp_powersgd_options psgd = {.size = sizeof psgd, .start_step = 1};
    const cddp_hook hook = {.size = sizeof hook, .begin = mean_hook_begin}, none = {.size = sizeof none};
    void *grad[PARAMS];
    cddp_optim *o = NULL;
    struct job j = {0};
    cddp_ddp *d;

    CHECK(begin(&j, rank) == 0);
    lay(&j, &kinds[0], FORWARD, ALLOC, grad);
    CHECK(make(&j, &kinds[0], 0, grad, &d) == CDDP_OK && n_in_place(d) > 0);
    CHECK(says(cddp_ddp_set_hook(d, rank == 1 ? &none : &hook), CDDP_E_INVALID, "cddp_hook.begin is NULL"));
    CHECK(says(cddp_ddp_set_hook(d, rank == 1 ? NULL : &hook), CDDP_E_MISMATCH, "rank 1 passes NULL, unlike rank 0"));
    CHECK(says(cddp_optim_create(rank == 1 ? NULL : &o, d, &sgd), CDDP_E_INVALID, "out and ddp must not be NULL"));
    if (rank == 1) {
        fill(&kinds[0], cddp_ddp_grad(d, PARAMS - 1), PARAMS - 1, rank, 0);
        CHECK(cddp_ddp_grad_ready(d, PARAMS - 1) == CDDP_OK);
    }
    CHECK(says(cddp_ddp_set_hook(d, &hook), CDDP_E_STATE, "cddp_ddp_set_hook was called in the middle of step"));
    CHECK(says(cddp_ddp_set_powersgd(d, &psgd), CDDP_E_STATE, "cddp_ddp_set_powersgd was called in the middle"));
    CHECK(says(cddp_optim_create(&o, d, &sgd), CDDP_E_STATE, "cddp_optim_create was called in the middle of step"));
    CHECK(rank == 1 || strstr(cddp_last_error(), "rank 1 could not create its optimizer: ") != NULL);
    CHECK(n_in_place(d) > 0);
    for (size_t i = PARAMS - (rank == 1); i-- > 0;) {
        fill(&kinds[0], cddp_ddp_grad(d, i), i, rank, 0);
        CHECK(cddp_ddp_grad_ready(d, i) == CDDP_OK);
    }
    CHECK(cddp_ddp_wait(d) == CDDP_OK);
    CHECK(cddp_ddp_set_hook(d, &hook) == CDDP_OK && n_in_place(d) == 0);
    CHECK(cddp_ddp_set_hook(d, NULL) == CDDP_OK);
    cddp_ddp_destroy(d);
    return end(&j);
}

Test(in_place, a_rank_that_refuses_keeps_no_other_waiting)
{
    cr_assert_eq(run_world(2, one_refuses), 0);
}

/* An optimizer's parameters are the same as with the arena. */
static int optimized(int rank)
{
    const cddp_optim_options sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 0.01};
    static float kept[20000];
    struct job j = {0};

    CHECK(begin(&j, rank) == 0);
    for (int way = 0; way < 2; way++) {
        void *grad[PARAMS];
        cddp_optim *o;
        cddp_ddp *d;

        lay(&j, &kinds[0], BY_TURNS, ALLOC, grad);
        memset(j.data, 0, BLOCK);
        CHECK(make(&j, &kinds[0], 0, way == 0 ? grad : NULL, &d) == CDDP_OK);
        CHECK(cddp_optim_create(&o, d, &sgd) == CDDP_OK && n_in_place(d) == 0);
        for (int step = 0; step < 3; step++) {
            for (size_t i = PARAMS; i-- > 0;) {
                fill(&kinds[0], cddp_ddp_grad(d, i), i, rank, step);
                CHECK(cddp_ddp_grad_ready(d, i) == CDDP_OK);
            }
            CHECK(cddp_optim_step(o, NULL) == CDDP_OK);
        }
        CHECK(((float *)j.data)[77] != 0 && (way == 0 || memcmp(kept, j.data, sizeof kept) == 0));
        memcpy(kept, j.data, sizeof kept);
        cddp_optim_destroy(o);
        cddp_ddp_destroy(d);
    }
    return end(&j);
}

Test(in_place, optimizer_gives_same_parameters)
{
    cr_assert_eq(run_world(2, optimized), 0);
}

/*
 * ------------------------------------------------------------------------------------------ with other features ----
 */

/* Bucket sizes on trial, waits for single parameters, norms, and memory that two parameters share. */
static int beside(int rank)
{
    struct job j = {0};
    void *grad[PARAMS];
    cddp_ddp *both[2];
    double norm[2];

    CHECK(begin(&j, rank) == 0);
    CHECK(open_both(&j, &kinds[0], CDDP_DDP_TUNE, SHUFFLED, grad, both) == 0);
    for (int step = 0; step < 50; step++)
        CHECK(step_of_both(&j, &kinds[0], 0, both, step, "tuned") == 0);
    for (int d = 0; d < 2; d++) {
        CHECK(cddp_ddp_bucket_cap(both[d]) != 0);
        CHECK(cddp_ddp_grad_norm(both[d], 2, &norm[d]) == CDDP_OK);
        cddp_ddp_destroy(both[d]);
    }
    CHECK(norm[0] == norm[1] && norm[0] > 0);

    CHECK(open_both(&j, &kinds[0], 0, REVERSED, grad, both) == 0);
    for (int d = 0; d < 2; d++)
        for (size_t i = PARAMS; i-- > 0;) {
            fill(&kinds[0], cddp_ddp_grad(both[d], i), i, rank, 9);
            CHECK(cddp_ddp_grad_ready(both[d], i) == CDDP_OK);
        }
    for (size_t i = PARAMS; i-- > 0;) {
        CHECK(cddp_ddp_wait_param(both[0], i) == CDDP_OK && cddp_ddp_wait_param(both[1], i) == CDDP_OK);
        CHECK(memcmp(cddp_ddp_grad(both[0], i), cddp_ddp_grad(both[1], i), counts[i] * 4) == 0);
    }
    for (int d = 0; d < 2; d++) {
        CHECK(cddp_ddp_wait(both[d]) == CDDP_OK);
        cddp_ddp_destroy(both[d]);
    }

    lay(&j, &kinds[0], FORWARD, ALLOC, grad);
    grad[4] = grad[3]; /* of one size: one gradient cannot be two means */
    CHECK(make(&j, &kinds[0], 0, grad, &both[0]) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), "the gradient of parameter 3 'd' and the gradient of parameter 4 'e' share") !=
          NULL);
    return end(&j);
}

Test(in_place, tuning_single_waits_norms_and_shared_gradients)
{
    cr_assert_eq(run_world(2, beside), 0);
}

/* In the middle of a step one rank destroys its reducer and frees the memory; its peer gets an error. */
static int left_early(int rank)
{
    static const size_t largest = 6;
    struct job j = {0};
    void *grad[PARAMS];
    cddp_ddp *d;

    CHECK(begin(&j, rank) == 0);
    lay(&j, &kinds[0], FORWARD, ALLOC, grad);
    CHECK(make(&j, &kinds[0], 0, grad, &d) == CDDP_OK);
    for (size_t i = PARAMS; i-- > largest;) {
        fill(&kinds[0], grad[i], i, rank, 0);
        CHECK(cddp_ddp_grad_ready(d, i) == CDDP_OK);
    }
    if (rank == 1) {
        cddp_ddp_destroy(d);
        cddp_free(j.comm, j.block[ALLOC]); /* nothing writes to it any more */
        CHECK(cddp_finalize(j.comm) == CDDP_OK);
        return 0;
    }
    for (size_t i = largest; i-- > 0;)
        (void)cddp_ddp_grad_ready(d, i);
    CHECK(cddp_ddp_wait(d) == CDDP_E_PEER);
    cddp_ddp_destroy(d);
    CHECK(cddp_finalize(j.comm) == CDDP_E_PEER);
    return 0;
}

Test(in_place, memory_can_be_freed_after_leaving_in_a_step)
{
    cr_assert_eq(run_world(2, left_early), 0);
}

/* The communicator is destroyed first, then the reducer, and with it the memory that was not freed. */
static int any_order(int rank)
{
    struct job j = {0};
    void *grad[PARAMS];
    cddp_ddp *d;

    CHECK(begin(&j, rank) == 0);
    lay(&j, &kinds[0], SHUFFLED, ALLOC, grad);
    CHECK(make(&j, &kinds[0], 0, grad, &d) == CDDP_OK && n_in_place(d) > 0);
    CHECK(take_step(&kinds[0], d, 0, LAST_FIRST, rank, 0) == 0);
    CHECK(cddp_finalize(j.comm) == CDDP_OK);
    CHECK(cddp_ddp_grad_ready(d, 0) == CDDP_E_STATE);
    ((float *)grad[6])[0] = 3; /* it is still there */
    if (rank == 0)
        cddp_free(j.comm, j.block[ALLOC]);
    cddp_ddp_destroy(d);
    free(j.block[REGISTER]);
    free(j.data);
    for (size_t i = 0; i < PARAMS; i++)
        free(j.apart[i]);
    return 0;
}

Test(in_place, destroys_in_any_order)
{
    cr_assert_eq(run_world(2, any_order), 0);
}

/* The block is too small: without an error, the program would write over its peers' memory. */
static int too_small(int rank)
{
    cddp_param p[2] = {{.size = sizeof *p, .name = "a", .count = 1000, .dtype = CDDP_FLOAT32},
                       {.size = sizeof *p, .name = "b", .count = 500, .dtype = CDDP_FLOAT32}};
    static float data[1500];
    cddp_comm *comm = NULL;
    cddp_ddp *ddp = NULL;
    float *block = NULL;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_alloc(comm, 4000, CDDP_MEM_COLLECTIVE, (void **)&block) == CDDP_OK);
    p[0].data = data;
    p[1].data = data + 1000;
    p[0].grad = block;
    for (size_t at = 1000; at > 500; at -= 499) { /* where the block ends; then 1 element is missing */
        p[0].count = at == 1000 ? 1000 : 500;     /* it ends before the other one */
        p[1].grad = rank == 1 ? block + at : NULL;
        CHECK(cddp_ddp_create(&ddp, comm, p, 2, NULL) == CDDP_E_INVALID && ddp == NULL);
        CHECK(strstr(cddp_last_error(), "parameter 1 'b': its gradient has 2000 bytes and begins at byte ") != NULL);
        CHECK(strstr(cddp_last_error(), at == 1000 ? "byte 4000 of" : "byte 2004 of") != NULL);
        CHECK(strstr(cddp_last_error(), "memory of cddp_alloc, which has 4000 bytes") != NULL);
    }
    p[1].grad = block + 500; /* it just fits */
    CHECK(cddp_ddp_create(&ddp, comm, p, 2, NULL) == CDDP_OK);
    cddp_ddp_destroy(ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

Test(in_place, reports_gradient_beyond_its_block)
{
    cr_assert_eq(run_world(2, too_small), 0);
}
