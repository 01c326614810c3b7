/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of several ranks, and those that a thread writes while the ranks continue. */
#include "common/clock.h"
#include "hygiene.h"
#include "items.h"
#include "scratch.h"
#include "within.h"
#include "worker/checkpoint/draft.h"
#include "worker/checkpoint/read.h"
#include "world.h"

#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>

CDI_SUITE(checkpoint_comm);

/* ------------------------------------------------------------------------------------------ each rank's own ---- */

/* A user's random numbers (xorshift64), separate on each rank. */
static uint64_t draw(uint64_t *rng)
{
    *rng ^= *rng << 13;
    *rng ^= *rng >> 7;
    return *rng ^= *rng << 17;
}

static uint64_t rng_of(int rank, int n_drawn)
{
    uint64_t rng = 1000 + (uint64_t)rank;

    for (int i = 0; i < n_drawn; i++)
        (void)draw(&rng);
    return rng;
}

static int save_own(int rank)
{
    uint64_t rng = rng_of(rank, 5);
    double loss[2] = {rank, 0.5}, weight = rank == 0 ? 42 : 43;
    const cddp_checkpoint_item items[] = {
        {.size = sizeof(cddp_checkpoint_item),
         .name = "rng",
         .data = &rng,
         .bytes = sizeof rng,
         .flags = CDDP_ITEM_PER_RANK},
        {.size = sizeof(cddp_checkpoint_item), .name = "weight", .data = &weight, .bytes = sizeof weight},
        {.size = sizeof(cddp_checkpoint_item),
         .name = "loss",
         .data = loss,
         .bytes = sizeof loss,
         .flags = CDDP_ITEM_PER_RANK},
    };
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, scratch, 5, items, 3, NULL) == CDDP_OK);
    return cddp_finalize(comm) != CDDP_OK;
}

/* In a world of any size: the ranks that existed then continue drawing, the others start. */
static int load_own(int rank)
{
    uint64_t rng = rng_of(rank, 0);
    double loss[2] = {-1, -1}, weight = 0;
    const cddp_checkpoint_item items[] = {
        {.size = sizeof(cddp_checkpoint_item),
         .name = "loss",
         .data = loss,
         .bytes = sizeof loss,
         .flags = CDDP_ITEM_PER_RANK},
        {.size = sizeof(cddp_checkpoint_item),
         .name = "rng",
         .data = &rng,
         .bytes = sizeof rng,
         .flags = CDDP_ITEM_PER_RANK},
        {.size = sizeof(cddp_checkpoint_item), .name = "weight", .data = &weight, .bytes = sizeof weight},
    };
    cddp_checkpoint_info info = {.size = sizeof info};
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_checkpoint_load(comm, scratch, items, 3, &info) == CDDP_OK);
    CHECK(info.step == 5 && weight == 42);
    CHECK(rng == rng_of(rank, rank < 3 ? 5 : 0));
    CHECK(loss[0] == (rank < 3 ? rank : -1) && loss[1] == (rank < 3 ? 0.5 : -1));
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_comm, restores_per_rank_items)
{
    scratch_make();
    cr_assert_eq(run_world(3, save_own), 0);
    cr_assert_eq(run_world(3, load_own), 0);
    cr_assert_eq(run_world(2, load_own), 0);
    cr_assert_eq(run_world(4, load_own), 0);
    scratch_remove();
}

static int save_others(int rank)
{
    uint64_t rng = 1, more = 2;
    const cddp_checkpoint_item items[] = {
        {.size = sizeof(cddp_checkpoint_item),
         .name = "rng",
         .data = &rng,
         .bytes = rank == 1 ? 4 : 8,
         .flags = CDDP_ITEM_PER_RANK},
        {.size = sizeof(cddp_checkpoint_item), .name = "rng[1]", .data = &more, .bytes = 8},
    };
    cddp_checkpoint_item odd = {
        .size = sizeof(cddp_checkpoint_item), .name = "rng", .data = &rng, .bytes = 8, .flags = 6};
    cddp_checkpoint_options opt = {.size = sizeof opt};
    const struct {
        cddp_checkpoint_options opt;
        uint64_t newer;
    } later = {.opt = {.size = sizeof later}, .newer = 1};
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, scratch, 5, items, 1, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "'rng' of 8 bytes of each rank on rank 0 and 'rng' of 4 bytes of each rank on rank "
                                    "1") != NULL);
    CHECK(cddp_checkpoint_save(comm, scratch, 5, rank == 0 ? items + 1 : items, 1, NULL) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "is nothing on rank 0 and 'rng' of 4 bytes of each rank on rank 1") != NULL);
    /* An error in rank 0's items is reported on all ranks; and nothing is broken. */
    CHECK(cddp_checkpoint_save(comm, scratch, 5, &odd, 1, NULL) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), "'rng' has flags") != NULL);
    opt.size--;
    CHECK(cddp_checkpoint_save(comm, scratch, 5, items + 1, 1, &opt) == CDDP_E_INVALID);
    CHECK(cddp_checkpoint_save(comm, scratch, 5, items + 1, 1, &later.opt) == CDDP_E_UNSUPPORTED);
    CHECK(strstr(cddp_last_error(), "cddp_checkpoint_options is not zero at offset 24,") != NULL);
    CHECK(cddp_checkpoint_save(comm, "", 5, items + 1, 1, NULL) == CDDP_E_INVALID);
    CHECK(cddp_checkpoint_wait(NULL) == CDDP_E_INVALID);
    return cddp_finalize(comm) != CDDP_OK;
}

static int save_a_double(int rank)
{
    uint64_t rng = 1, more = 2;
    const cddp_checkpoint_item items[] = {
        {.size = sizeof(cddp_checkpoint_item),
         .name = "rng",
         .data = &rng,
         .bytes = sizeof rng,
         .flags = CDDP_ITEM_PER_RANK},
        {.size = sizeof(cddp_checkpoint_item), .name = "rng[1]", .data = &more, .bytes = sizeof more},
    };
    cddp_comm *comm;

    (void)rank;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, scratch, 5, items, 2, NULL) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), "two items are named 'rng[1]'") != NULL);
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_comm, names_mismatched_items_on_every_rank)
{
    scratch_make();
    cr_assert_eq(run_world(2, save_others), 0);
    cr_assert_eq(run_world(2, save_a_double), 0);
    scratch_remove();
}

static int save_other_terms(int rank)
{
    uint64_t x = 1;
    const cddp_checkpoint_item item = item_memory("x", &x, sizeof x);
    cddp_checkpoint_options opt = {.size = sizeof opt, .keep = 1, .flags = CDDP_CHECKPOINT_SHARDED};
    cddp_checkpoint_info info = {.size = sizeof info};
    char other[100];
    cddp_comm *comm;

    (void)snprintf(other, sizeof other, "%s/other", scratch);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, scratch, 5, &item, 1, &opt) == CDDP_OK);
    for (opt.background = 0; opt.background < 2; opt.background++) {
        CHECK(cddp_checkpoint_save(comm, scratch, 6 + (uint64_t)rank, &item, 1, &opt) == CDDP_E_MISMATCH);
        CHECK(strstr(cddp_last_error(), "cddp_checkpoint_save's step is 6 on rank 0 but 7 on rank 1") != NULL);
    }
    opt.background = 7 * rank; /* all numbers but 0 are one */
    CHECK(cddp_checkpoint_save(comm, scratch, 6, &item, 1, &opt) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "cddp_checkpoint_options.background is 0 on rank 0 but 1 on rank 1") != NULL);
    opt.background = 0;
    opt.keep = rank == 0 ? 0 : -3;
    CHECK(cddp_checkpoint_save(comm, scratch, 6, &item, 1, &opt) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "cddp_checkpoint_options.keep is 2 on rank 0 but -1 on rank 1") != NULL);
    opt.keep = 1;
    opt.flags = rank == 0 ? CDDP_CHECKPOINT_SHARDED : 0;
    CHECK(cddp_checkpoint_save(comm, scratch, 6, &item, 1, &opt) == CDDP_E_MISMATCH);
    CHECK(strstr(cddp_last_error(), "cddp_checkpoint_options.flags is 1 on rank 0 but 0 on rank 1") != NULL);
    /* Another directory has another checkpoint of this step. */
    opt.flags = CDDP_CHECKPOINT_SHARDED;
    x = 2;
    CHECK(cddp_checkpoint_save(comm, other, 5, &item, 1, &opt) == CDDP_OK);
    x = 3;
    CHECK(cddp_checkpoint_load(comm, rank == 1 ? other : scratch, &item, 1, NULL) == CDDP_E_SYSTEM && x == 3);
    CHECK(strstr(cddp_last_error(), "rank 1 finds another one of the same step than rank 0") != NULL);
    CHECK(cddp_checkpoint_load(comm, scratch, &item, 1, &info) == CDDP_OK && x == 1);
    CHECK(info.step == 5 && info.n_damaged == 0);
    /* Not sharded, as ranks with uneven inputs may have it: rank 0's step counts. */
    opt.flags = 0;
    CHECK(cddp_checkpoint_save(comm, scratch, 8 - (uint64_t)rank, &item, 1, &opt) == CDDP_OK);
    CHECK(cddp_checkpoint_load(comm, scratch, &item, 1, &info) == CDDP_OK && info.step == 8);
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_comm, names_other_steps_and_options_and_removes_nothing)
{
    scratch_make();
    cr_assert_eq(run_world(2, save_other_terms), 0);
    scratch_remove();
}

/* A save reads all shards again before it removes an older checkpoint. */
Test(checkpoint_comm, shard_of_another_step_is_not_published)
{
    uint64_t x = 1, *steps;
    const cddp_checkpoint_item item = item_memory("x", &x, sizeof x);
    const struct cdi_range all = {sizeof x, 0};
    struct cdi_draft *draft = NULL;
    struct cdi_error err;
    size_t n;

    scratch_make();
    cr_assert_eq(cdi_checkpoint_write(scratch, 5, &item, 1, 1, NULL, &err), CDDP_OK);
    cr_assert_eq(cdi_draft_begin(&draft, scratch, 6, &err), CDDP_OK);
    cr_assert_eq(cdi_draft_write_shard(scratch, cdi_draft_name(draft), 0, 1, 7, &item, &all, 1, NULL, &err), CDDP_OK);
    cr_assert_eq(cdi_draft_publish(draft, scratch, 1, 1, &err), CDDP_E_MISMATCH);
    cr_assert_not_null(strstr(err.msg, "was not written: the file of rank 0 is of step 7"), "%s", err.msg);
    cr_assert_eq(cdi_checkpoint_steps(scratch, &steps, &n, &err), CDDP_OK);
    cr_assert(n == 1 && steps[0] == 5);
    free(steps);
    scratch_remove();
}

/* ----------------------------------------------------------------------------------------------- uneven samplers ----
 */

#define SAMPLES 40

static struct {
    _Atomic int seen[SAMPLES];
    _Atomic int n_logged;
    int64_t seed_step; /* the seeds of two neighbours differ by it */
    cddp_status expected;
    bool from_start;
} * uneven;

static void count_lines(void *arg, cddp_log_level level, const char *line)
{
    (void)arg;
    uneven->n_logged += level == CDDP_LOG_WARN && strstr(line, "no sample is lost, and some come again") != NULL;
}

/* Rank r takes 7 - 2 r samples, and saves: rank 0 is the farthest. Then, in another run, each rank takes the rest. */
static int take_some(int rank)
{
    const cddp_sampler_options data = {.size = sizeof data,
                                       .n = SAMPLES,
                                       .world_size = atoi(getenv("WORLD_SIZE")),
                                       .rank = rank,
                                       .seed = 3 + uneven->seed_step * rank};
    cddp_checkpoint_item item = {.size = sizeof(cddp_checkpoint_item), .name = "s", .kind = CDDP_ITEM_SAMPLER};
    cddp_sampler *sampler;
    const int64_t *rows;
    cddp_comm *comm;
    size_t n;

    cddp_set_log_callback(count_lines, NULL);
    CHECK(cddp_sampler_create(&sampler, &data) == CDDP_OK);
    item.data = sampler;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    if (!uneven->from_start)
        CHECK(cddp_checkpoint_load(comm, scratch, &item, 1, NULL) == uneven->expected);
    n = cddp_sampler_next(sampler, uneven->from_start ? 7 - 2 * (size_t)rank : SAMPLES, &rows);
    for (size_t i = 0; i < n && uneven->expected == CDDP_OK; i++)
        uneven->seen[rows[i]]++;
    if (uneven->from_start)
        CHECK(cddp_checkpoint_save(comm, scratch, 1, &item, 1, NULL) == CDDP_OK);
    CHECK(uneven->expected == CDDP_OK ||
          strstr(cddp_last_error(), "item 's': the samplers of 4 ranks were saved in the middle") != NULL);
    cddp_sampler_destroy(sampler);
    return cddp_finalize(comm) != CDDP_OK;
}

/* Four ranks, and then `ranks`; *most is how often a sample was seen. Returns the samples that nobody has seen. */
static int take_all(int ranks, int64_t seed_step, cddp_status expected, int *most)
{
    int lost = 0;

    *most = 0;
    scratch_make();
    uneven = mmap(NULL, sizeof *uneven, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(uneven != MAP_FAILED);
    uneven->seed_step = seed_step;
    uneven->from_start = true;
    cr_assert_eq(run_world(4, take_some), 0);
    uneven->from_start = false;
    uneven->expected = expected;
    cr_assert_eq(run_world(ranks, take_some), 0);
    for (int i = 0; i < SAMPLES; i++) {
        lost += uneven->seen[i] == 0;
        *most = uneven->seen[i] > *most ? uneven->seen[i] : *most;
    }
    cr_assert_eq(uneven->n_logged, ranks == 4 || expected != CDDP_OK ? 0 : 1);
    (void)munmap(uneven, sizeof *uneven);
    scratch_remove();
    return lost;
}

Test(checkpoint_comm, samplers_at_different_places_lose_no_sample)
{
    int most;

    cr_assert_eq(take_all(4, 0, CDDP_OK, &most), 0);
    cr_assert_eq(most, 1, "as many ranks go on exactly where they were");
    for (int ranks = 1; ranks <= 5; ranks += ranks == 3 ? 2 : 1)
        cr_assert_eq(take_all(ranks, 0, CDDP_OK, &most), 0, "%d ranks", ranks);
}

Test(checkpoint_comm, samplers_of_different_orders_need_as_many_ranks)
{
    int most;

    (void)take_all(4, 1, CDDP_OK, &most);
    (void)take_all(3, 1, CDDP_E_MISMATCH, &most);
}

/* Only rank 0 has bytes in this sharded checkpoint. */
static int shard_a_sampler(int rank)
{
    const cddp_checkpoint_options opt = {.size = sizeof opt, .flags = CDDP_CHECKPOINT_SHARDED};
    const cddp_sampler_options data = {.size = sizeof data, .n = SAMPLES, .world_size = 2, .rank = rank};
    cddp_checkpoint_item item = {.size = sizeof(cddp_checkpoint_item), .name = "s", .kind = CDDP_ITEM_SAMPLER};
    cddp_sampler *sampler;
    const int64_t *rows;
    cddp_comm *comm;

    CHECK(cddp_sampler_create(&sampler, &data) == CDDP_OK && cddp_init(&comm, NULL) == CDDP_OK);
    item.data = sampler;
    CHECK(cddp_sampler_next(sampler, 3, &rows) == 3);
    CHECK(cddp_checkpoint_save(comm, scratch, 1, &item, 1, &opt) == CDDP_OK);
    CHECK(cddp_checkpoint_load(comm, scratch, &item, 1, NULL) == CDDP_OK);
    CHECK(cddp_sampler_next(sampler, SAMPLES, &rows) == SAMPLES / 2 - 3);
    cddp_sampler_destroy(sampler);
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_comm, shard_of_nothing_is_a_shard)
{
    scratch_make();
    cr_assert_eq(run_world(2, shard_a_sampler), 0);
    scratch_remove();
}

/* "s.ranks" is what a sampler "s" stores if ranks stand at different places. */
static int use_name_of_sampler(int rank)
{
    const cddp_sampler_options data = {.size = sizeof data, .n = SAMPLES, .world_size = 1};
    cddp_sampler_state state;
    uint64_t x = 7;
    cddp_checkpoint_item items[] = {item_of(CDDP_ITEM_SAMPLER, "s", &state), item_memory("s.ranks", &x, sizeof x)};
    cddp_sampler *sampler;
    const int64_t *rows;
    struct cdi_error err;
    cddp_comm *comm;

    (void)rank;
    CHECK(cddp_sampler_create(&sampler, &data) == CDDP_OK && cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_sampler_next(sampler, 3, &rows) == 3);
    cddp_sampler_get_state(sampler, &state);
    items[0].bytes = sizeof state;
    CHECK(cdi_checkpoint_write(scratch, 1, items, 2, 2, NULL, &err) == CDDP_OK);
    x = 0;
    items[0] = item_of(CDDP_ITEM_SAMPLER, "s", sampler);
    CHECK(cddp_checkpoint_load(comm, scratch, items, 2, NULL) == CDDP_OK && x == 7);
    CHECK(cddp_checkpoint_save(comm, scratch, 2, items, 2, NULL) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), "item 's.ranks' has the name under which the sampler 's'") != NULL);
    cddp_sampler_destroy(sampler);
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_comm, name_of_a_samplers_places_is_refused_in_every_save)
{
    scratch_make();
    cr_assert_eq(run_world(1, use_name_of_sampler), 0);
    scratch_remove();
}

/* -------------------------------------------------------------------------------------- rank 0's, of CDDP_DEBUG ----
 */

static void count_differing(void *arg, cddp_log_level level, const char *line)
{
    static const char text[] = "checkpoint: item 'step' differs between rank 0 and rank 1, and rank 0's is saved";

    if (level == CDDP_LOG_WARN && strstr(line, text) != NULL)
        ++*(int *)arg;
}

static int save_different_steps(int rank)
{
    uint64_t epoch = 1, step = (uint64_t)rank;
    const cddp_checkpoint_item items[] = {item_memory("epoch", &epoch, sizeof epoch),
                                          item_memory("step", &step, sizeof step)};
    cddp_comm *comm;
    int n = 0;

    cddp_set_log_callback(count_differing, &n);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, scratch, 1, items, 2, NULL) == CDDP_OK && n == 0);
    CHECK(rank == 2 || setenv("CDDP_DEBUG", "1", 1) == 0); /* ranks may differ in it */
    CHECK(cddp_checkpoint_save(comm, scratch, 2, items, rank == 2 ? 0 : 2, NULL) == CDDP_OK && n == (rank == 0));
    CHECK(cddp_checkpoint_save(comm, scratch, 3, items, 2, NULL) == CDDP_OK && n == (rank == 0));
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_comm, debug_names_item_that_differs_among_ranks)
{
    scratch_make();
    cr_assert_eq(run_world(3, save_different_steps), 0);
    scratch_remove();
}

/* ------------------------------------------------------------------------------------------------ damaged files ----
 */

static void count_damaged(void *arg, cddp_log_level level, const char *line)
{
    static const char text[] = "checkpoint-00000000000000000002.cddp' is damaged: it has 100 of its ";

    if (level == CDDP_LOG_WARN && strstr(line, text) != NULL && strstr(line, "loaded that of step 1") != NULL)
        ++*(int *)arg;
}

static int load_past_damaged(int rank)
{
    uint64_t x = 1;
    const cddp_checkpoint_item item = item_memory("x", &x, sizeof x);
    cddp_checkpoint_info info = {.size = sizeof info};
    char path[128];
    cddp_comm *comm;
    int n = 0;

    cddp_set_log_callback(count_damaged, &n);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, scratch, 1, &item, 1, NULL) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, scratch, 2, &item, 1, NULL) == CDDP_OK);
    (void)snprintf(path, sizeof path, "%s/checkpoint-%020d.cddp", scratch, 2);
    CHECK(rank != 0 || truncate(path, 100) == 0);
    CHECK(cddp_checkpoint_load(comm, scratch, &item, 1, &info) == CDDP_OK && info.n_damaged == 1 && n == 0);
    CHECK(cddp_checkpoint_load(comm, scratch, &item, 1, NULL) == CDDP_OK && n == (rank == 0));
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_comm, load_that_asks_for_no_info_logs_damaged_file)
{
    scratch_make();
    cr_assert_eq(run_world(2, load_past_damaged), 0);
    scratch_remove();
}

/* --------------------------------------------------------------------------------------------------- many items ----
 */

/* A large model by its layers: in a second on a calm machine, and in minutes if the time is quadratic. */
#define MANY 100000

static uint64_t many_values[MANY];
static char many_names[MANY][48];
static cddp_checkpoint_item many_items[MANY];

static int save_and_load_many(int rank)
{
    int64_t begun_ns = cdi_now_ns(), saved_ns, loaded_ns;
    cddp_checkpoint_info info = {.size = sizeof info};
    cddp_comm *comm;

    for (size_t i = 0; i < MANY; i++) {
        many_values[i] = i * 3;
        (void)snprintf(many_names[i], sizeof many_names[i], "transformer.layers.%zu.weight", i);
        many_items[i] = item_memory(many_names[i], &many_values[i], 1 + i % sizeof many_values[i]);
    }
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    begun_ns = cdi_now_ns();
    CHECK(cddp_checkpoint_save(comm, scratch, 5, many_items, MANY, NULL) == CDDP_OK);
    saved_ns = cdi_now_ns();
    memset(many_values, 0, sizeof many_values);
    CHECK(cddp_checkpoint_load(comm, scratch, many_items, MANY, &info) == CDDP_OK);
    loaded_ns = cdi_now_ns();
    for (size_t i = 0; i < MANY; i++) {
        uint64_t want = i * 3;

        CHECK(memcmp(&many_values[i], &want, many_items[i].bytes) == 0);
    }
    if (rank == 0)
        fprintf(stderr, "%d items: saved in %.2f s, loaded in %.2f s\n", MANY, (double)(saved_ns - begun_ns) / 1e9,
                (double)(loaded_ns - saved_ns) / 1e9);
    CHECK(loaded_ns - begun_ns < cdi_within_ms(8000) * 1000000);
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_comm, time_grows_with_items_and_not_faster)
{
    scratch_make();
    cr_assert_eq(run_world(2, save_and_load_many), 0);
    scratch_remove();
}

/* -------------------------------------------------------------------------------------------- in the background ----
 */

#define COUNT ((size_t)1 << 18)

static int save_and_go_on(int rank)
{
    const cddp_checkpoint_options opt = {.size = sizeof opt, .background = 1};
    static float w[COUNT];
    uint64_t rng = rng_of(rank, 0);
    char name[16];
    const cddp_checkpoint_item items[] = {
        {.size = sizeof(cddp_checkpoint_item), .name = name, .data = w, .bytes = sizeof w},
        {.size = sizeof(cddp_checkpoint_item),
         .name = "rng",
         .data = &rng,
         .bytes = sizeof rng,
         .flags = CDDP_ITEM_PER_RANK},
    };
    cddp_checkpoint_info info = {.size = sizeof info};
    cddp_comm *comm;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (uint64_t step = 1; step <= 6; step++) {
        for (size_t i = 0; i < COUNT; i++)
            w[i] = (float)step;
        (void)draw(&rng);
        (void)strcpy(name, "weights");
        CHECK(cddp_checkpoint_save(comm, scratch, step, items, 2, &opt) == CDDP_OK);
        for (size_t i = 0; i < COUNT; i++) /* while the thread writes what was there before */
            w[i] = -1;
        (void)strcpy(name, "something else");
    }
    (void)strcpy(name, "weights");
    /* A load waits for the save in progress. */
    CHECK(cddp_checkpoint_load(comm, scratch, items, 2, &info) == CDDP_OK);
    CHECK(info.step == 6 && info.n_damaged == 0 && rng == rng_of(rank, 6));
    for (size_t i = 0; i < COUNT; i++)
        CHECK(w[i] == 6);
    CHECK(cddp_checkpoint_wait(comm) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, scratch, 7, items, 2, &opt) == CDDP_OK);
    return cddp_finalize(comm) != CDDP_OK; /* it waits for the save */
}

Test(checkpoint_comm, background_save_has_data_of_call)
{
    char path[128];
    struct stat sb;

    scratch_make();
    cr_assert_eq(run_world(2, save_and_go_on), 0);
    for (int step = 6; step <= 7; step++) {
        (void)snprintf(path, sizeof path, "%s/checkpoint-%020d.cddp", scratch, step);
        cr_assert(stat(path, &sb) == 0 && sb.st_size > (off_t)(COUNT * sizeof(float)));
    }
    scratch_remove();
}

/* Another run that has not loaded: all ranks get the same answer, at once also in the background. */
static int save_over_another_run(int rank)
{
    cddp_checkpoint_options opt = {.size = sizeof opt};
    uint64_t x = 1;
    const cddp_checkpoint_item item = {
        .size = sizeof(cddp_checkpoint_item), .name = "x", .data = &x, .bytes = sizeof x};
    cddp_comm *comm;

    (void)rank;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    for (; opt.background < 2; opt.background++) {
        CHECK(cddp_checkpoint_save(comm, scratch, 3, &item, 1, &opt) == CDDP_E_EXISTS);
        CHECK(strstr(cddp_last_error(), "the checkpoint of step 7 there was neither loaded nor saved") != NULL);
    }
    return cddp_finalize(comm) != CDDP_OK;
}

static int load_and_save(int rank)
{
    uint64_t x = 1;
    const cddp_checkpoint_item item = {.size = sizeof(cddp_checkpoint_item),
                                       .name = "rng",
                                       .data = &x,
                                       .bytes = sizeof x,
                                       .flags = CDDP_ITEM_PER_RANK};
    cddp_comm *comm;

    (void)rank;
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_checkpoint_load(comm, scratch, &item, 1, NULL) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, scratch, 3, &item, 1, NULL) == CDDP_OK);
    return cddp_finalize(comm) != CDDP_OK;
}

Test(checkpoint_comm, only_a_run_that_has_loaded_removes_what_it_found)
{
    char path[128];

    scratch_make();
    cr_assert_eq(run_world(2, save_and_go_on), 0);
    (void)snprintf(path, sizeof path, "%s/checkpoint-%020d.cddp", scratch, 7);
    cr_assert_eq(run_world(2, save_over_another_run), 0);
    cr_assert_eq(access(path, F_OK), 0);
    cr_assert_eq(run_world(2, load_and_save), 0);
    cr_assert_neq(access(path, F_OK), 0);
    scratch_remove();
}

/* The directory cannot be made; the next call reports it on both ranks, once. */
static int save_to_nowhere(int rank)
{
    const cddp_checkpoint_options opt = {.size = sizeof opt, .background = 1};
    static const char text[] = "the save of step 3 in the background failed: checkpoint: making the directory";
    char nowhere[100];
    int x = 1;
    const cddp_checkpoint_item item = {
        .size = sizeof(cddp_checkpoint_item), .name = "x", .data = &x, .bytes = sizeof x};
    cddp_comm *comm;

    (void)snprintf(nowhere, sizeof nowhere, "%s/not/there", scratch);
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, nowhere, 3, &item, 1, &opt) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, scratch, 4, &item, 1, NULL) == CDDP_E_SYSTEM);
    CHECK(strstr(cddp_last_error(), text) != NULL);
    CHECK(cddp_checkpoint_load(comm, scratch, &item, 1, NULL) == CDDP_E_NOT_FOUND); /* and nothing else was done */
    CHECK(cddp_checkpoint_save(comm, nowhere, 3, &item, 1, &opt) == CDDP_OK);
    CHECK(cddp_checkpoint_wait(comm) == CDDP_E_SYSTEM);
    CHECK(strstr(cddp_last_error(), text) != NULL);
    CHECK(cddp_checkpoint_wait(comm) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, scratch, 4, &item, 1, &opt) == CDDP_OK);
    CHECK(cddp_checkpoint_save(comm, nowhere, 3, &item, 1, &opt) == CDDP_OK);
    /* No call waited for it: rank 0 reports it when it leaves. */
    CHECK(cddp_finalize(comm) == (rank == 0 ? CDDP_E_SYSTEM : CDDP_OK));
    CHECK(rank != 0 || strstr(cddp_last_error(), text) != NULL);
    return 0;
}

Test(checkpoint_comm, next_call_reports_background_failure_once)
{
    scratch_make();
    cr_assert_eq(run_world(2, save_to_nowhere), 0);
    scratch_remove();
}
