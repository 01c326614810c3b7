/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of everything that a job has: a GAN, two objects of each kind and plain memory, in one file or in one of
 * each rank. A loaded state is compared by saving it again: two checkpoints of the same state have the same bytes.
 */
#include "hygiene.h"
#include "items.h"
#include "numbers.h"
#include "scratch.h"
#include "worker/checkpoint/read.h"
#include "world.h"

#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

CDI_SUITE(checkpoint_kinds, .timeout = 120);

#define SIDES 2
#define PARAMS 3
#define MOST 120
#define ITEMS 14

/* ----------------------------------------------------------------------------------------------------- a GAN ---- */

static const size_t counts[SIDES][PARAMS] = {{120, 7, 1}, {33, 5, 2}};
static const cddp_dtype types[SIDES][PARAMS] = {{CDDP_FLOAT32, CDDP_BFLOAT16, CDDP_FLOAT32},
                                                {CDDP_FLOAT64, CDDP_FLOAT16, CDDP_FLOAT64}};
static const char *const names[SIDES][5] = {{"g.w0", "g.w1", "g.w2", "g.sampler", "g"},
                                            {"d.w0", "d.w1", "d.w2", "d.sampler", "d"}};

struct side {
    _Alignas(8) uint8_t w[PARAMS][MOST * 8];
    cddp_ddp *ddp;
    cddp_optim *optim;
    cddp_sampler *sampler;
    int64_t epoch;
};

struct gan {
    cddp_comm *comm;
    struct side side[SIDES];
    uint64_t step, rng; /* each rank has separate random numbers */
};

static double scatter(size_t a, size_t b, size_t c)
{
    uint32_t h = (uint32_t)(a * 1000003 + b * 7919 + c * 104729) * 2654435761u;

    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return (double)h / 4294967296.0 - 0.5;
}

/* The differences between two GANs, for loads that are rejected. */
struct twist {
    bool no_powersgd, sgd_for_adam, other_order;
    int64_t seed;
};

static int side_open(struct side *s, cddp_comm *comm, size_t k, const struct twist *t)
{
    static const size_t shape[] = {12, 10};
    const cddp_powersgd_options powersgd = {
        .size = sizeof powersgd, .matrix_rank = 1, .start_step = 1, .min_compression_rate = 0.1, .seed = 3};
    const cddp_optim_options adam = {.size = sizeof adam,
                                     .kind = CDDP_OPTIM_ADAM,
                                     .lr = 0.01,
                                     .beta2 = 0.999,
                                     .eps = 1e-8},
                             sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 0.1, .momentum = 0.9};
    const cddp_sampler_options data = {.size = sizeof data,
                                       .n = k == 0 ? 31 : 50,
                                       .world_size = cddp_world_size(comm),
                                       .rank = cddp_rank(comm),
                                       .seed = t->seed};
    cddp_param p[PARAMS];

    for (size_t i = 0; i < PARAMS; i++) {
        size_t at = t->other_order ? PARAMS - 1 - i : i;

        for (size_t e = 0; e < counts[k][i]; e++)
            number_put(types[k][i], s->w[i], e, scatter(k, i, e));
        p[at] = (cddp_param){.size = sizeof(cddp_param),
                             .name = names[k][i],
                             .data = s->w[i],
                             .count = counts[k][i],
                             .dtype = types[k][i]};
        if (counts[k][i] == 120)
            p[at].shape = shape, p[at].n_dims = 2;
    }
    CHECK(cddp_ddp_create(&s->ddp, comm, p, PARAMS, NULL) == CDDP_OK);
    CHECK(k != 0 || t->no_powersgd || cddp_ddp_set_powersgd(s->ddp, &powersgd) == CDDP_OK);
    CHECK(cddp_optim_create(&s->optim, s->ddp, k == 0 && !t->sgd_for_adam ? &adam : &sgd) == CDDP_OK);
    CHECK(cddp_sampler_create(&s->sampler, &data) == CDDP_OK);
    return 0;
}

static int gan_open(struct gan *g, cddp_comm *comm, const struct twist *t)
{
    static const struct twist plain;

    memset(g, 0, sizeof *g);
    g->comm = comm;
    g->rng = 1000 + (uint64_t)cddp_rank(comm);
    for (size_t k = 0; k < SIDES; k++)
        CHECK(side_open(&g->side[k], comm, k, t != NULL ? t : &plain) == 0);
    return 0;
}

static void gan_close(struct gan *g)
{
    for (size_t k = 0; k < SIDES; k++) {
        cddp_optim_destroy(g->side[k].optim);
        cddp_ddp_destroy(g->side[k].ddp);
        cddp_sampler_destroy(g->side[k].sampler);
    }
}

/* Changes everything in it; the results depend on all that was saved. */
static int gan_step(struct gan *g)
{
    for (size_t k = 0; k < SIDES; k++) {
        struct side *s = &g->side[k];
        const int64_t *rows;
        double data = 0;

        if (cddp_sampler_next(s->sampler, 3, &rows) == 0) {
            CHECK(cddp_sampler_set_epoch(s->sampler, ++s->epoch) == CDDP_OK);
            CHECK(cddp_sampler_next(s->sampler, 3, &rows) > 0);
        }
        data = (double)rows[0] / 50;
        for (size_t i = PARAMS; i-- > 0;) {
            for (size_t e = 0; e < counts[k][i]; e++)
                number_put(types[k][i], cddp_ddp_grad(s->ddp, i), e,
                           number_get(types[k][i], s->w[i], e) * data + scatter(g->rng, i, e));
            CHECK(cddp_ddp_grad_ready(s->ddp, i) == CDDP_OK);
        }
        CHECK(cddp_optim_step(s->optim, NULL) == CDDP_OK);
        g->rng = g->rng * 6364136223846793005u + 1442695040888963407u;
    }
    g->step++;
    return 0;
}

static size_t list(struct gan *g, cddp_checkpoint_item items[ITEMS])
{
    size_t n = 0;

    items[n++] = item_memory("step", &g->step, sizeof g->step);
    items[n++] = item_own("rng", &g->rng, sizeof g->rng);
    for (size_t k = 0; k < SIDES; k++) {
        struct side *s = &g->side[k];

        for (size_t i = 0; i < PARAMS && k == 0; i++)
            items[n++] = item_memory(names[k][i], s->w[i], counts[k][i] * cddp_dtype_size(types[k][i]));
        if (k == 1) /* all of them, and the epoch's number */
            items[n++] = item_memory("d.w", s->w, sizeof s->w);
        items[n++] = item_of(CDDP_ITEM_SAMPLER, names[k][3], s->sampler);
        items[n++] = item_of(CDDP_ITEM_OPTIM, k == 0 ? "g.adam" : "d.sgd", s->optim);
        items[n++] = item_of(CDDP_ITEM_DDP, names[k][4], s->ddp);
    }
    return n;
}

static bool sharded;

static cddp_status gan_save(struct gan *g, const char *dir, bool background)
{
    const cddp_checkpoint_options opt = {
        .size = sizeof opt, .background = background, .flags = sharded ? CDDP_CHECKPOINT_SHARDED : 0};
    cddp_checkpoint_item items[ITEMS];

    return cddp_checkpoint_save(g->comm, dir, g->step, items, list(g, items), &opt);
}

static cddp_status gan_load(struct gan *g, const char *dir)
{
    cddp_checkpoint_item items[ITEMS];
    cddp_checkpoint_info info = {.size = sizeof info};
    cddp_status st = cddp_checkpoint_load(g->comm, dir, items, list(g, items), &info);

    if (st == CDDP_OK && info.step != g->step)
        return CDDP_E_STATE;
    for (size_t k = 0; k < SIDES && st == CDDP_OK; k++) { /* the sampler knows it */
        cddp_sampler_state place;

        cddp_sampler_get_state(g->side[k].sampler, &place);
        g->side[k].epoch = (int64_t)place.words[1];
    }
    return st;
}

/* ------------------------------------------------------------------------------------------------------- files ---- */

static const char *dir_of(const char *name)
{
    static char path[4][128];
    static int next;

    next = (next + 1) % 4;
    (void)snprintf(path[next], sizeof path[next], "%s/%s", scratch, name);
    return path[next];
}

static const char *file_of(const char *dir, uint64_t step)
{
    static char path[4][256];
    static int next;

    next = (next + 1) % 4;
    (void)snprintf(path[next], sizeof path[next], "%s/checkpoint-%020lu.cddp", dir, (unsigned long)step);
    return path[next];
}

/* Returns the file to damage, of two ranks. */
static const char *part_of(const char *dir, uint64_t step)
{
    static char path[2][300];
    static int next;

    next = (next + 1) % 2;
    (void)snprintf(path[next], sizeof path[next], "%s%s", file_of(dir, step), sharded ? "/shard-1-of-2" : "");
    return path[next];
}

static size_t read_file(const char *path, uint8_t *to, size_t cap)
{
    FILE *f = fopen(path, "rb");
    size_t n = f == NULL ? 0 : fread(to, 1, cap, f);

    if (f != NULL)
        (void)fclose(f);
    return n;
}

/* Returns true if both files exist and are equal. An index has checksums of all that the shards have. */
static bool alike(const char *a, const char *b)
{
    static uint8_t bytes[2][1 << 16];
    char in[2][300];
    size_t n, m;

    (void)snprintf(in[0], sizeof in[0], "%s%s", a, sharded ? "/index" : "");
    (void)snprintf(in[1], sizeof in[1], "%s%s", b, sharded ? "/index" : "");
    n = read_file(in[0], bytes[0], sizeof bytes[0]);
    m = read_file(in[1], bytes[1], sizeof bytes[1]);

    return n > 0 && n < sizeof bytes[0] && n == m && memcmp(bytes[0], bytes[1], n) == 0;
}

/* Checks that g has the state of its step's file in dir: saves it to the folder of that name. A collective. */
static int same_as_file(struct gan *g, const char *dir, const char *again)
{
    CHECK(gan_save(g, dir_of(again), false) == CDDP_OK);
    CHECK(cddp_rank(g->comm) != 0 || alike(file_of(dir, g->step), file_of(dir_of(again), g->step)));
    return 0;
}

/*
 * ----------------------------------------------------------------------------------------------------- resuming ----
 */

static bool background;

/* A new one continues with the bits of the first, and so do its checkpoints. */
static int go_on(int rank)
{
    cddp_comm *comm;
    struct gan whole, rest;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && gan_open(&whole, comm, NULL) == 0);
    CHECK(gan_load(&whole, dir_of("a")) == CDDP_E_NOT_FOUND);
    for (int i = 0; i < 13; i++)
        CHECK(gan_step(&whole) == 0);
    CHECK(gan_save(&whole, dir_of("a"), background) == CDDP_OK);
    CHECK(gan_step(&whole) == 0); /* while it is written */
    CHECK(gan_open(&rest, comm, NULL) == 0);
    CHECK(gan_load(&rest, dir_of("a")) == CDDP_OK && rest.step == 13);
    CHECK(same_as_file(&rest, dir_of("a"), "b") == 0);
    for (int i = 0; i < 9; i++) {
        CHECK(gan_step(&rest) == 0);
        for (size_t k = 0; k < SIDES; k++)
            CHECK(i > 0 || memcmp(whole.side[k].w, rest.side[k].w, sizeof rest.side[k].w) == 0);
        if (i > 0)
            CHECK(gan_step(&whole) == 0);
    }
    CHECK(whole.rng == rest.rng && gan_save(&whole, dir_of("c"), background) == CDDP_OK);
    /* An object may be destroyed at once: it was copied. */
    gan_close(&whole);
    CHECK(cddp_checkpoint_wait(comm) == CDDP_OK && same_as_file(&rest, dir_of("c"), "d") == 0);
    gan_close(&rest);
    (void)rank;
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_kinds, gan_resumes_bit_for_bit)
{
    for (int k = 0; k < 8; k++) {
        scratch_make();
        sharded = k >= 4;
        background = k % 2 != 0;
        cr_assert_eq(run_world(1 + k % 4, go_on), 0, "%d ranks, %s", 1 + k % 4, sharded ? "sharded" : "one file");
        scratch_remove();
    }
}

static uint64_t went; /* steps so far */

/* Finds an entry of the newest file in dir. */
static int entry(const char *dir, cddp_item_kind kind, const char *name, void *to, size_t bytes)
{
    cddp_checkpoint_item item = item_of(kind, name, to);
    struct cdi_checkpoint_file *f;
    cddp_checkpoint_info info;
    struct cdi_error err;

    item.bytes = bytes;
    CHECK(cdi_checkpoint_open(&f, dir, &info, &err) == CDDP_OK);
    if (cdi_checkpoint_fit(f, &item, NULL, 1, NULL, &err) != CDDP_OK ||
        cdi_checkpoint_fill(f, &item, NULL, 1, NULL, &err) != CDDP_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    cdi_checkpoint_close(f);
    return 0;
}

/* In a world of another size: the state independent of it is the same, and it continues. */
static int go_on_elsewhere(int rank)
{
    static const struct {
        cddp_item_kind kind;
        const char *name;
        size_t bytes;
    } shared[] = {{CDDP_ITEM_OPTIM, "g.adam", 24},
                  {CDDP_ITEM_OPTIM, "g.adam.steps", PARAMS * 8},
                  {CDDP_ITEM_OPTIM, "g.adam.exp_avg", 128 * 4},
                  {CDDP_ITEM_OPTIM, "g.adam.exp_avg_sq", 128 * 4},
                  {CDDP_ITEM_OPTIM, "g.adam.master", 7 * 4},
                  {CDDP_ITEM_OPTIM, "d.sgd.momentum_buffer", 35 * 8 + 5 * 4},
                  {CDDP_ITEM_OPTIM, "d.sgd.master", 5 * 4},
                  {CDDP_ITEM_SAMPLER, "g.sampler", 64},
                  {CDDP_ITEM_SAMPLER, "d.sampler", 64},
                  {CDDP_ITEM_DDP, "g.powersgd.q", 11 * 4},
                  {CDDP_ITEM_DDP, "g.powersgd.has_q", 2},
                  {CDDP_ITEM_DDP, "d", 0}};
    cddp_comm *comm;
    struct gan g;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && gan_open(&g, comm, NULL) == 0);
    if (went > 0)
        CHECK(gan_load(&g, dir_of("a")) == CDDP_OK && g.step == went && gan_save(&g, dir_of("b"), false) == CDDP_OK);
    for (size_t i = 0; i < sizeof shared / sizeof shared[0] && went > 0 && rank == 0; i++) {
        uint8_t saved[1024] = {0}, again[1024] = {1};

        CHECK(entry(dir_of("a"), shared[i].kind, shared[i].name, saved, shared[i].bytes) == 0);
        CHECK(entry(dir_of("b"), shared[i].kind, shared[i].name, again, shared[i].bytes) == 0);
        CHECK(memcmp(saved, again, shared[i].bytes) == 0);
    }
    for (int i = 0; i < 3; i++)
        CHECK(gan_step(&g) == 0);
    CHECK(gan_save(&g, dir_of("a"), false) == CDDP_OK);
    gan_close(&g);
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_kinds, gan_resumes_in_other_worlds)
{
    static const int worlds[] = {4, 2, 5, 1, 3};

    scratch_make();
    for (size_t k = 0; k < sizeof worlds / sizeof worlds[0]; k++) {
        went = 3 * k;
        sharded = k % 2 != 0;
        scratch_drop("b");
        cr_assert_eq(run_world(worlds[k], go_on_elsewhere), 0, "a world of %d", worlds[k]);
    }
    scratch_remove();
}

/* ---------------------------------------------------------------------------------------------- all or nothing ---- */

#define REFUSED(g, status, text)                                \
    do {                                                        \
        CHECK(gan_load(g, dir_of("a")) == (status));            \
        CHECK(strstr(cddp_last_error(), text) != NULL);         \
        CHECK(same_as_file(g, dir_of("before"), "after") == 0); \
    } while (0)

/* Other GANs than the saved one, with one difference each; nothing changes, on any rank. */
static int refused(int rank)
{
    static const struct {
        struct twist twist;
        int only; /* the rank with the difference; -1: all */
        const char *text;
    } cases[] = {
        {{.no_powersgd = true}, -1, "item 'g': it contains PowerSGD errors, and this reducer has no PowerSGD"},
        {{.sgd_for_adam = true}, -1, "item 'g.adam': its state was made by Adam or AdamW, and this optimizer is SGD"},
        {{.other_order = true}, -1, "the first that differs is parameter 0, now 'g.w2': it had another name"},
        {{.seed = 4}, -1, "item 'g.sampler': the sampler was saved in the middle of an epoch shuffled by seed 0"},
        {{.seed = 4}, 1, "and is now shuffled by seed 4"},
    };
    cddp_comm *comm;
    struct gan g;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && gan_open(&g, comm, NULL) == 0);
    for (int i = 0; i < 5; i++)
        CHECK(gan_step(&g) == 0);
    CHECK(gan_save(&g, dir_of("a"), false) == CDDP_OK);
    gan_close(&g);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct twist twist = cases[i].only < 0 || cases[i].only == rank ? cases[i].twist : (struct twist){0};

        CHECK(gan_open(&g, comm, &twist) == 0);
        for (int k = 0; k < 2; k++)
            CHECK(gan_step(&g) == 0);
        CHECK(gan_save(&g, dir_of("before"), false) == CDDP_OK);
        REFUSED(&g, CDDP_E_MISMATCH, cases[i].text);
        CHECK(cases[i].only != 1 || rank == 1 || strstr(cddp_last_error(), ", on rank 1") != NULL);
        CHECK(gan_step(&g) == 0); /* and nothing is broken */
        gan_close(&g);
    }
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_kinds, rejects_mismatch_without_changes)
{
    for (int k = 0; k < 4; k++) {
        scratch_make();
        sharded = k >= 2;
        cr_assert_eq(run_world(2 + k % 2, refused), 0);
        scratch_remove();
    }
}

/* A save of n such items, and a load, are rejected with the name of the last one. */
static int refuses(cddp_comm *comm, const char *name, size_t bytes, uint32_t flags, size_t n)
{
    uint64_t other = 0;
    cddp_checkpoint_item items[] = {item_memory("first", &other, bytes), item_memory(name, &other, bytes)};

    items[1].flags = flags;
    CHECK(cddp_checkpoint_save(comm, dir_of("a"), 9, items + 2 - n, n, NULL) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), name) != NULL && strstr(cddp_last_error(), "than memory can hold") != NULL);
    CHECK(cddp_checkpoint_load(comm, dir_of("a"), items + 2 - n, n, NULL) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), "than memory can hold") != NULL);
    return 0;
}

/* Lists that are wrong, on one rank or on all. */
static int wrong_lists(int rank)
{
    cddp_checkpoint_item items[ITEMS], swapped;
    cddp_comm *comm;
    uint64_t other = 0;
    struct gan g;
    size_t n;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && gan_open(&g, comm, NULL) == 0);
    CHECK(gan_step(&g) == 0 && gan_save(&g, dir_of("a"), false) == CDDP_OK);
    CHECK(gan_step(&g) == 0 && gan_save(&g, dir_of("before"), false) == CDDP_OK);
    n = list(&g, items);
    /* An item that the file does not have; one of another kind there; one of an optimizer's entries; one twice. */
    items[n] = item_memory("more", &other, sizeof other);
    CHECK(cddp_checkpoint_load(comm, dir_of("a"), items, n + 1, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "holds no item 'more'") != NULL);
    items[n] = item_of(CDDP_ITEM_SAMPLER, "step", g.side[0].sampler);
    CHECK(cddp_checkpoint_load(comm, dir_of("a"), items + 1, n, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "item 'step' is memory there and a sampler in this program") != NULL);
    items[n] = item_memory("d.sgd.steps", &other, PARAMS * 8);
    CHECK(cddp_checkpoint_load(comm, dir_of("a"), items + n, 1, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "'d.sgd.steps' is an optimizer there and memory in this program") != NULL);
    items[n].bytes = sizeof other;
    CHECK(cddp_checkpoint_save(comm, dir_of("a"), 9, items, n + 1, NULL) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), "two items are named 'd.sgd.steps'") != NULL);
    /* Sizes that no memory has: of one item, of two together, and of all ranks' together. */
    CHECK(refuses(comm, "huge", SIZE_MAX, 0, 1) == 0 && refuses(comm, "huge", PTRDIFF_MAX - 10, 0, 2) == 0);
    CHECK(refuses(comm, "huge", SIZE_MAX / 5, CDDP_ITEM_PER_RANK, 1) == 0);
    items[n] = item_of(CDDP_ITEM_OPTIM, "g", g.side[1].optim);
    CHECK(cddp_checkpoint_save(comm, dir_of("a"), 9, items, n + 1, NULL) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), "two items are named 'g'") != NULL);
    /* Rank 1 has no object, or names its objects in another order. */
    items[n] = item_of(CDDP_ITEM_OPTIM, "x", rank == 1 ? NULL : g.side[1].optim);
    CHECK(cddp_checkpoint_save(comm, dir_of("a"), 9, items, n + 1, NULL) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), "item 'x' has no object") != NULL);
    CHECK(cddp_checkpoint_load(comm, dir_of("a"), items, n + 1, NULL) == CDDP_E_INVALID);
    swapped = items[6];
    if (rank == 1)
        items[6] = items[10], items[10] = swapped;
    CHECK(cddp_checkpoint_save(comm, dir_of("a"), 9, items, n, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "'g.adam', an optimizer on rank 0 and 'd.sgd', an optimizer on rank 1") != NULL);
    CHECK(cddp_checkpoint_load(comm, dir_of("a"), items, n, NULL) == CDDP_E_MISMATCH);
    CHECK(cddp_checkpoint_load(comm, dir_of("a"), items, rank == 1 ? 0 : n, NULL) == CDDP_E_INVALID);
    CHECK(cddp_checkpoint_load(comm, rank == 1 ? NULL : dir_of("a"), items, n, NULL) == CDDP_E_INVALID);
    CHECK(same_as_file(&g, dir_of("before"), "after") == 0);
    /* Rank 1 has another directory, which only a sharded checkpoint needs. */
    if (sharded) {
        CHECK(cddp_checkpoint_save(comm, dir_of(rank == 1 ? "b" : "a"), 9, items, list(&g, items),
                                   &(cddp_checkpoint_options){.size = sizeof(cddp_checkpoint_options),
                                                              .flags = CDDP_CHECKPOINT_SHARDED}) == CDDP_E_SYSTEM);
        CHECK(strstr(cddp_last_error(), "needs a directory that all ranks share") != NULL);
        CHECK(cddp_checkpoint_load(comm, dir_of(rank == 1 ? "b" : "a"), items, list(&g, items), NULL) == CDDP_E_SYSTEM);
        CHECK(strstr(cddp_last_error(), "they need a directory that they share") != NULL);
        for (int k = 0; k < 2; k++) { /* its folder; its index, too */
            char in[2][300];

            (void)snprintf(in[0], sizeof in[0], "%s/index", file_of(dir_of("a"), 1));
            (void)snprintf(in[1], sizeof in[1], "%s/index", file_of(dir_of("b"), 1));
            if (rank == 1)
                CHECK(k == 0 ? mkdir(dir_of("b"), 0700) == 0 && mkdir(file_of(dir_of("b"), 1), 0700) == 0
                             : link(in[0], in[1]) == 0);
            CHECK(cddp_checkpoint_load(comm, dir_of(rank == 1 ? "b" : "a"), items, list(&g, items), NULL) ==
                  CDDP_E_SYSTEM);
            CHECK(strstr(cddp_last_error(), k == 0 ? "cddp/index', which rank 0 finds, is not here"
                                                   : "cddp/shard-0-of-2', which rank 0 finds, is not here") != NULL);
        }
    }
    /* Rank 1 alone is in the middle of a step. */
    n = list(&g, items);
    CHECK(rank != 1 || cddp_ddp_grad_ready(g.side[1].ddp, 2) == CDDP_OK);
    CHECK(cddp_checkpoint_load(comm, dir_of("a"), items, n, NULL) == CDDP_E_STATE);
    CHECK(strstr(cddp_last_error(), "item 'd.sgd': the optimizer's state was requested in the middle of step") != NULL);
    CHECK(cddp_checkpoint_save(comm, dir_of("a"), 9, items, n, NULL) == CDDP_E_STATE);
    for (size_t i = PARAMS; i-- > 0;)
        CHECK((rank == 1 && i == 2) || cddp_ddp_grad_ready(g.side[1].ddp, i) == CDDP_OK);
    CHECK(cddp_optim_skip(g.side[1].optim) == CDDP_OK);
    CHECK(same_as_file(&g, dir_of("before"), "after") == 0);
    gan_close(&g);
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_kinds, bad_list_on_one_rank_fails_all)
{
    for (int k = 0; k < 2; k++) {
        scratch_make();
        sharded = k == 1;
        cr_assert_eq(run_world(2, wrong_lists), 0, "%s", sharded ? "sharded" : "one file");
        scratch_remove();
    }
}

/* ------------------------------------------------------------------------------------------------------- faults ----
 */

/* The newest file is damaged at every place in turn: everything belongs to one step, or to the other. */
static int damaged(int rank)
{
    cddp_comm *comm;
    struct stat sb;
    struct gan g;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && gan_open(&g, comm, NULL) == 0);
    for (int i = 1; i <= 2; i++) {
        CHECK(gan_step(&g) == 0 && gan_save(&g, dir_of("a"), false) == CDDP_OK);
        CHECK(gan_save(&g, dir_of(i == 1 ? "one" : "two"), false) == CDDP_OK);
    }
    CHECK(stat(part_of(dir_of("two"), 2), &sb) == 0);
    for (off_t at = 0, cut = 0; at < sb.st_size; at += at < 1400 && !sharded ? 7 : 61, cut ^= 1) {
        if (rank == 0) { /* cut short there, or a byte is changed */
            static uint8_t bytes[1 << 16];
            size_t n = read_file(part_of(dir_of("two"), 2), bytes, sizeof bytes);
            FILE *f = fopen(part_of(dir_of("a"), 2), "wb");

            bytes[at] ^= 0x20;
            CHECK(f != NULL && fwrite(bytes, 1, cut ? (size_t)at : n, f) == (cut ? (size_t)at : n) && fclose(f) == 0);
        }
        CHECK(gan_load(&g, dir_of("a")) == CDDP_OK && (g.step == 1 || (g.step == 2 && !cut)));
        CHECK(same_as_file(&g, dir_of(g.step == 1 ? "one" : "two"), "again") == 0);
    }
    gan_close(&g);
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_kinds, damaged_file_is_not_used)
{
    for (int k = 0; k < 2; k++) {
        scratch_make();
        sharded = k == 1;
        cr_assert_eq(run_world(2, damaged), 0, "%s", sharded ? "sharded" : "one file");
        scratch_remove();
    }
}

/* Rank 0 can write only a part of it, in the background or not. */
static int full_disk(int rank)
{
    struct rlimit limit;
    cddp_comm *comm;
    struct gan g;

    (void)signal(SIGXFSZ, SIG_IGN);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK && gan_open(&g, comm, NULL) == 0);
    CHECK(gan_step(&g) == 0 && gan_save(&g, dir_of("a"), false) == CDDP_OK);
    CHECK(gan_step(&g) == 0 && getrlimit(RLIMIT_FSIZE, &limit) == 0);
    for (rlim_t most = 100; most < (sharded ? 2500 : 6000); most += 577) {
        limit.rlim_cur = most;
        CHECK(rank != 0 || setrlimit(RLIMIT_FSIZE, &limit) == 0);
        if (most % 2 == 0) {
            CHECK(gan_save(&g, dir_of("a"), false) == CDDP_E_SYSTEM);
        } else {
            CHECK(gan_save(&g, dir_of("a"), true) == CDDP_OK);
            CHECK(cddp_checkpoint_wait(comm) == CDDP_E_SYSTEM);
        }
        CHECK(strstr(cddp_last_error(), "was not written: File too large") != NULL);
        CHECK(access(file_of(dir_of("a"), 2), F_OK) != 0);
    }
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    CHECK(gan_load(&g, dir_of("a")) == CDDP_OK && g.step == 1 && same_as_file(&g, dir_of("a"), "again") == 0);
    gan_close(&g);
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_kinds, full_disk_keeps_older_checkpoint)
{
    for (int k = 0; k < 2; k++) {
        scratch_make();
        sharded = k == 1;
        cr_assert_eq(run_world(2, full_disk), 0, "%s", sharded ? "sharded" : "one file");
        scratch_remove();
    }
}

static struct {
    _Atomic uint64_t step; /* of the last save that was started */
    long delay_us;         /* from the end of a run's first save to the kill */
    int victim;
} * shared;

static int kill_after(long us)
{
    const struct itimerspec at = {.it_value = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000 + 1}};
    struct sigevent how = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    timer_t timer;

    CHECK(timer_create(CLOCK_MONOTONIC, &how, &timer) == 0 && timer_settime(timer, 0, &at, NULL) == 0);
    return 0;
}

/* Continues from the newest checkpoint, and saves each step until it is killed. */
static int train_until_killed(int rank)
{
    cddp_comm *comm;
    struct gan g;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && gan_open(&g, comm, NULL) == 0);
    (void)gan_load(&g, dir_of("a"));
    for (bool first = true;; first = false) {
        if (gan_step(&g) != 0)
            return 0; /* the other one was killed */
        if (rank == 0)
            shared->step = g.step;
        if (gan_save(&g, dir_of("a"), !first && g.step % 2 != 0) != CDDP_OK)
            return 0;
        CHECK(!first || rank != shared->victim || kill_after(shared->delay_us) == 0);
    }
}

/* The state found equals that of an uninterrupted run after as many steps, in everything. */
static int found_whole(int rank)
{
    struct gan found, never;
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK && gan_open(&found, comm, NULL) == 0 && gan_open(&never, comm, NULL) == 0);
    /* A save in the background may still be running when the next one starts. */
    CHECK(gan_load(&found, dir_of("a")) == CDDP_OK && found.step <= shared->step && found.step + 2 >= shared->step);
    while (never.step < found.step)
        CHECK(gan_step(&never) == 0);
    CHECK(never.rng == found.rng && gan_save(&never, dir_of("never"), false) == CDDP_OK);
    CHECK(rank != 0 || alike(file_of(dir_of("a"), found.step), file_of(dir_of("never"), found.step)));
    CHECK(same_as_file(&found, dir_of("never"), "again") == 0);
    gan_close(&found);
    gan_close(&never);
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_kinds, kill_leaves_old_or_new_checkpoint)
{
    glob_t found = {0};
    int in_mid_save = 0, kills = 0;
    unsigned seed = 1;

    scratch_make();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(shared != MAP_FAILED);
    while (kills < 16 || in_mid_save == 0) {
        cr_assert_lt(kills, 80, "no kill fell into a save");
        shared->victim = kills % 4 == 3; /* mostly rank 0, the writer */
        sharded = kills % 2 != 0;
        shared->delay_us = rand_r(&seed) % 5000;
        (void)run_world(2, train_until_killed);
        kills++;
        in_mid_save += glob(dir_of("a/.checkpoint-*.tmp"), 0, NULL, &found) == 0;
        globfree(&found);
        scratch_drop("never");
        scratch_drop("again");
        cr_assert_eq(run_world(2, found_whole), 0, "after %d kills", kills);
    }
    (void)munmap(shared, sizeof *shared);
    scratch_remove();
}
