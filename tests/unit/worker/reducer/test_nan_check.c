/* SPDX-License-Identifier: Apache-2.0 */
/* CDDP_NAN_CHECK, by four ranks as processes: on one node, and as four ranks of two nodes that share no memory. */
#include "ddp_ranks.h"
#include "float_words.h"
#include "hygiene.h"
#include "worker/math/float16.h"
#include "worker/reducer/nan_check.h"

#include <math.h>

CDI_SUITE(nan_check, .timeout = 120);

#define STEP 7
#define STEPS 10

/* One run of all ranks. Each plant is a bad number of one rank in step 7. */
static struct {
    const char *mode;
    const char *want; /* the error message, or for "warn" the lines of all steps, '\n' after each */
    struct {
        int rank, param, at;
        float value;
    } plant[3];
    int n_plants;
    bool two_nodes, own, optimizer, collective, hook, powersgd;
    uint32_t flags;
    cddp_dtype dtype, comm_dtype;
    int n_given; /* with unused gradients: the first ones are not made on odd ranks */
} run;

static char logged[4096];

static void keep(void *arg, cddp_log_level level, const char *line)
{
    size_t n = strlen(logged);

    (void)arg;
    if (level == CDDP_LOG_WARN)
        (void)snprintf(logged + n, sizeof logged - n, "%s\n", line);
}

static void emulate_nodes(int rank)
{
    set_env("LOCAL_RANK", rank % 2);
    set_env("LOCAL_WORLD_SIZE", 2);
    set_env("GROUP_RANK", rank / 2);
    set_env("GROUP_WORLD_SIZE", 2);
}

static void put(void *g, int k, float x)
{
    if (run.dtype == CDDP_BFLOAT16)
        ((uint16_t *)g)[k] = cdi_bf16_of_float(x);
    else if (run.dtype == CDDP_FLOAT16)
        ((uint16_t *)g)[k] = cdi_f16_of_float(x);
    else if (run.dtype == CDDP_FLOAT64)
        ((double *)g)[k] = (double)x;
    else
        ((float *)g)[k] = x;
}

static double get(const void *g, int k)
{
    return run.dtype == CDDP_BFLOAT16  ? (double)cdi_float_of_bf16(((const uint16_t *)g)[k])
           : run.dtype == CDDP_FLOAT16 ? (double)cdi_float_of_f16(((const uint16_t *)g)[k])
           : run.dtype == CDDP_FLOAT64 ? ((const double *)g)[k]
                                       : (double)((const float *)g)[k];
}

/* A hook that makes all numbers finite before they are sent. */
static cddp_status hide(void *arg, cddp_comm *comm, const cddp_bucket *bucket, uint64_t *ticket)
{
    (void)arg;
    (void)comm;
    (void)ticket;
    memset(bucket->data, 0, bucket->count * cddp_dtype_size(bucket->dtype));
    return CDDP_OK;
}

struct job {
    cddp_comm *comm;
    cddp_ddp *ddp;
    cddp_optim *optim;
    double w[DDP_PARAMS][DDP_COUNT], own[DDP_COUNT];
    void *collective;
};

static int job_open(struct job *j)
{
    static const char *const names[DDP_PARAMS] = {"layer1.weight", "layer1.bias", "layer2.weight"};
    cddp_ddp_options opt = {.size = sizeof opt,
                            .bucket_bytes = 64,
                            .first_bucket_bytes = 64,
                            .flags = run.flags,
                            .comm_dtype = run.comm_dtype};
    cddp_param p[DDP_PARAMS];

    static const size_t shape[2] = {10, 10};
    const cddp_hook hook = {.size = sizeof hook, .begin = hide};
    const cddp_powersgd_options powersgd = {.size = sizeof powersgd, .start_step = 2};

    CHECK(cddp_init(&j->comm, NULL) == CDDP_OK);
    CHECK(cddp_node_rank(j->comm) == (run.two_nodes ? cddp_rank(j->comm) / 2 : 0));
    if (run.collective)
        CHECK(cddp_alloc(j->comm, 1 << 20, CDDP_MEM_COLLECTIVE, &j->collective) == CDDP_OK);
    for (int i = 0; i < DDP_PARAMS; i++)
        p[i] = (cddp_param){.size = sizeof(cddp_param),
                            .name = names[i],
                            .data = j->w[i],
                            .count = DDP_COUNT,
                            .dtype = run.dtype,
                            .shape = shape,
                            .n_dims = 2,
                            .grad = run.collective      ? (char *)j->collective + i * DDP_COUNT * 8
                                    : run.own && i == 1 ? (void *)j->own
                                                        : NULL};
    CHECK(cddp_ddp_create(&j->ddp, j->comm, p, DDP_PARAMS, &opt) == CDDP_OK);
    CHECK(!run.hook || cddp_ddp_set_hook(j->ddp, &hook) == CDDP_OK);
    CHECK(!run.powersgd || cddp_ddp_set_powersgd(j->ddp, &powersgd) == CDDP_OK);
    if (run.optimizer) {
        const cddp_optim_options sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 0.5};

        CHECK(cddp_optim_create(&j->optim, j->ddp, &sgd) == CDDP_OK);
    }
    return 0;
}

static int job_close(struct job *j)
{
    cddp_optim_destroy(j->optim);
    cddp_ddp_destroy(j->ddp);
    CHECK(cddp_finalize(j->comm) == CDDP_OK);
    return 0;
}

/* A backward pass; in step 7 with the plants. */
static int backward(struct job *j, int rank, int step)
{
    for (int i = DDP_PARAMS; i-- > 0;) {
        void *g = cddp_ddp_grad(j->ddp, (size_t)i);

        if (i < run.n_given && rank % 2 == 1)
            continue;
        for (int k = 0; k < DDP_COUNT; k++)
            put(g, k, (float)rank);
        for (int n = 0; n < run.n_plants && step == STEP; n++)
            if (run.plant[n].rank == rank && run.plant[n].param == i)
                put(g, run.plant[n].at, run.plant[n].value);
        CHECK(cddp_ddp_grad_ready(j->ddp, (size_t)i) == CDDP_OK);
    }
    return 0;
}

static cddp_status end_step(struct job *j)
{
    return run.optimizer ? cddp_optim_step(j->optim, NULL) : cddp_ddp_wait(j->ddp);
}

static int same(const char *got, const char *want, int rank)
{
    if (strcmp(got, want) == 0)
        return 1;
    fprintf(stderr, "rank %d: '%s', and not '%s'\n", rank, got, want);
    return 0;
}

static int is_the_mean(struct job *j)
{
    for (size_t i = 0; i < DDP_PARAMS && !run.optimizer && !run.hook && !run.powersgd; i++)
        for (int k = 0; k < DDP_COUNT; k++)
            CHECK(get(cddp_ddp_grad(j->ddp, i), k) == ((int)i < run.n_given ? 0.5 : 1.5));
    return 0;
}

/* With "error": step 7 alone fails, on every rank with the same message, and the next ones are as ever. */
static int train(int rank)
{
    struct job j = {.comm = NULL};
    cddp_error_info info = {.size = sizeof info};
    double before;

    (void)setenv("CDDP_NAN_CHECK", run.mode, 1);
    if (run.two_nodes)
        emulate_nodes(rank);
    cddp_set_log_callback(keep, NULL);
    CHECK(job_open(&j) == 0);
    for (int step = 0; step < STEPS; step++) {
        bool bad = step == STEP && run.n_plants > 0 && strcmp(run.mode, "error") == 0;
        cddp_status st;

        CHECK(backward(&j, rank, step) == 0);
        before = get(j.w[0], 0);
        st = end_step(&j);
        CHECK(st == (bad ? CDDP_E_NONFINITE : CDDP_OK));
        if (bad)
            CHECK(same(cddp_last_error(), run.want, rank));
        if (bad) {
            cddp_last_error_info(&info);
            CHECK(info.status == CDDP_E_NONFINITE && info.rank == run.plant[0].rank);
        }
        CHECK(!run.optimizer || (get(j.w[0], 0) == before) == bad); /* a bad step changes nothing */
        CHECK(step == STEP || is_the_mean(&j) == 0);
        CHECK(cddp_comm_error(j.comm, NULL) == CDDP_OK);
    }
    if (strcmp(run.mode, "warn") == 0)
        CHECK(same(logged, rank == run.plant[0].rank ? run.want : "", rank));
    else
        CHECK(logged[0] == '\0');
    return job_close(&j);
}

/* Runs it with a plant at the start, in the middle and at the end of each parameter. */
static void expect(const char *want)
{
    run.want = want;
    if (run.mode == NULL)
        run.mode = "error";
    if (run.dtype == CDDP_DTYPE_NONE)
        run.dtype = CDDP_FLOAT32;
    cr_assert_eq(ddp_world(train), 0, "%s", want);
}

static void plant(int rank, int param, int at, float value)
{
    int n = run.n_plants++;

    run.plant[n].rank = rank;
    run.plant[n].param = param;
    run.plant[n].at = at;
    run.plant[n].value = value;
}

Test(nan_check, error_names_step_parameter_bucket_and_rank)
{
    plant(2, 2, 50, NAN);
    expect("step 7: the gradient of 'layer2.weight' (bucket 0) has NaN; rank 2 brought it");
}

Test(nan_check, error_names_them_on_two_nodes)
{
    run.two_nodes = true;
    plant(3, 0, 99, NAN);
    expect("step 7: the gradient of 'layer1.weight' (bucket 2) has NaN; rank 3 brought it");
}

Test(nan_check, error_names_infinity)
{
    plant(0, 1, 0, -INFINITY);
    expect("step 7: the gradient of 'layer1.bias' (bucket 1) has an infinity; rank 0 brought it");
}

/* The sum is NaN, but no rank had one. */
Test(nan_check, error_names_infinities_that_cancel)
{
    plant(1, 1, 5, INFINITY);
    plant(3, 1, 5, -INFINITY);
    expect("step 7: the gradient of 'layer1.bias' (bucket 1) has an infinity; ranks 1, 3 brought it");
}

Test(nan_check, first_of_backward_pass_wins)
{
    plant(3, 2, 5, INFINITY);
    plant(1, 1, 5, NAN);
    plant(0, 0, 5, NAN);
    expect("step 7: the gradient of 'layer2.weight' (bucket 0) has an infinity; rank 3 brought it; such numbers in "
           "other gradients come from ranks 0, 1");
}

Test(nan_check, error_finds_each_type)
{
    static const cddp_dtype types[] = {CDDP_FLOAT16, CDDP_BFLOAT16, CDDP_FLOAT64};

    plant(1, 0, 98, NAN);
    for (size_t t = 0; t < 3; t++) {
        run.dtype = types[t];
        expect("step 7: the gradient of 'layer1.weight' (bucket 2) has NaN; rank 1 brought it");
    }
}

Test(nan_check, error_finds_gradient_in_own_memory)
{
    run.own = true;
    plant(1, 1, 0, NAN);
    expect("step 7: the gradient of 'layer1.bias' (bucket 1) has NaN; rank 1 brought it");
}

Test(nan_check, error_finds_gradient_that_is_reduced_in_place)
{
    run.collective = true;
    plant(2, 1, 3, NAN);
    expect("step 7: the gradient of 'layer1.bias' (bucket 1) has NaN; rank 2 brought it");
}

Test(nan_check, error_finds_number_that_is_sent_as_infinity)
{
    run.comm_dtype = CDDP_FLOAT16;
    plant(2, 1, 3, 70000);
    expect("step 7: the gradient of 'layer1.bias' (bucket 1) has a number that float16 cannot hold; rank 2 brought it");
    run.comm_dtype = CDDP_BFLOAT16;
    run.n_plants = 0; /* which bfloat16 can hold */
    expect("");
    plant(2, 1, 3, 3.4e38f);
    expect(
        "step 7: the gradient of 'layer1.bias' (bucket 1) has a number that bfloat16 cannot hold; rank 2 brought it");
}

Test(nan_check, optimizer_does_not_use_bad_gradients)
{
    run.optimizer = true;
    plant(2, 0, 3, NAN);
    expect("step 7: the gradient of 'layer1.weight' (bucket 2) has NaN; rank 2 brought it");
    run.two_nodes = true;
    expect("step 7: the gradient of 'layer1.weight' (bucket 2) has NaN; rank 2 brought it");
}

Test(nan_check, error_finds_what_a_hook_hides)
{
    run.hook = true;
    plant(2, 0, 3, NAN);
    expect("step 7: the gradient of 'layer1.weight' (bucket 2) has NaN; rank 2 brought it");
}

Test(nan_check, error_finds_gradient_that_powersgd_sends)
{
    run.powersgd = true;
    plant(3, 1, 3, INFINITY);
    expect("step 7: the gradient of 'layer1.bias' (bucket 1) has an infinity; rank 3 brought it");
}

Test(nan_check, error_finds_gradient_in_several_buckets)
{
    run.flags = CDDP_DDP_SPLIT;
    plant(1, 1, 99, NAN);
    expect("step 7: the gradient of 'layer1.bias' (bucket 7) has NaN; rank 1 brought it");
}

Test(nan_check, error_finds_gradient_beside_unused_ones)
{
    static const uint32_t flags[] = {CDDP_DDP_FIND_UNUSED, CDDP_DDP_FIND_UNUSED | CDDP_DDP_SKIP_UNUSED,
                                     CDDP_DDP_STATIC_GRAPH};

    run.n_given = 2;
    plant(2, 1, 3, NAN);
    for (size_t f = 0; f < 3; f++) {
        run.flags = flags[f];
        expect("step 7: the gradient of 'layer1.bias' (bucket 1) has NaN; rank 2 brought it");
    }
}

Test(nan_check, warn_is_logged_by_rank_that_brought_it)
{
    run.mode = "warn";
    plant(2, 2, 50, NAN);
    plant(2, 0, 50, INFINITY);
    expect("[rank 2, step 7] step 7: the gradient of 'layer2.weight' (bucket 0) has NaN\n"
           "[rank 2, step 7] step 7: the gradient of 'layer1.weight' (bucket 2) has an infinity\n");
    run.two_nodes = true;
    expect("[rank 2, step 7] step 7: the gradient of 'layer2.weight' (bucket 0) has NaN\n"
           "[rank 2, step 7] step 7: the gradient of 'layer1.weight' (bucket 2) has an infinity\n");
}

Test(nan_check, off_says_nothing)
{
    static const char *const modes[] = {"off", "OFF", ""};

    plant(2, 2, 50, NAN);
    for (size_t m = 0; m < 3; m++) {
        run.mode = modes[m];
        expect("");
    }
}

/* ---------------------------------------------------------------------------------- ranks with fewer samples ----- */

static int train_unevenly(int rank)
{
    struct job j = {.comm = NULL};

    (void)setenv("CDDP_NAN_CHECK", "error", 1);
    CHECK(job_open(&j) == 0);
    for (int step = 0; step < STEPS - 2 * (rank % 2) - rank; step++) { /* in step 7 ranks 0 and 2 train */
        CHECK(backward(&j, rank, step) == 0);
        if (step != STEP) {
            CHECK(cddp_ddp_wait(j.ddp) == CDDP_OK);
            continue;
        }
        CHECK(cddp_ddp_wait(j.ddp) == CDDP_E_NONFINITE);
        CHECK(same(cddp_last_error(), run.want, rank));
    }
    CHECK(cddp_ddp_join(j.ddp) == CDDP_OK); /* of a rank that waited in it, too */
    return job_close(&j);
}

Test(nan_check, ranks_without_samples_go_on)
{
    run.flags = CDDP_DDP_JOIN;
    run.dtype = CDDP_FLOAT32;
    run.want = "step 7: the gradient of 'layer1.bias' (bucket 1) has NaN; rank 2 brought it";
    plant(2, 1, 5, NAN);
    cr_assert_eq(ddp_world(train_unevenly), 0);
}

/* --------------------------------------------------------------------------------------------------- settings ---- */

static int differ(int rank)
{
    struct ddp_rank r = {0};
    cddp_param p = {.size = sizeof p, .name = "w", .data = r.w, .count = 4, .dtype = CDDP_FLOAT32};

    (void)setenv("CDDP_NAN_CHECK", rank == 1 ? "warn" : "error", 1);
    CHECK(cddp_init(&r.comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&r.ddp, r.comm, &p, 1, NULL) == CDDP_E_MISMATCH);
    CHECK(same(cddp_last_error(),
               "CDDP_NAN_CHECK is error on rank 0 but warn on rank 1: it must be the same on every rank", rank));
    CHECK(cddp_barrier(r.comm) == CDDP_OK);
    CHECK(cddp_finalize(r.comm) == CDDP_OK);
    return 0;
}

Test(nan_check, ranks_must_have_the_same_mode)
{
    cr_assert_eq(ddp_world(differ), 0);
}

static int invalid(int rank)
{
    struct ddp_rank r = {0};
    cddp_param p = {.size = sizeof p, .name = "w", .data = r.w, .count = 4, .dtype = CDDP_FLOAT32};

    if (rank == 3)
        (void)setenv("CDDP_NAN_CHECK", "maybe", 1);
    CHECK(cddp_init(&r.comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&r.ddp, r.comm, &p, 1, NULL) == CDDP_E_INVALID);
    CHECK(strstr(cddp_last_error(), "CDDP_NAN_CHECK='maybe' is not off, warn or error") != NULL);
    CHECK(cddp_finalize(r.comm) == CDDP_OK);
    return 0;
}

Test(nan_check, create_rejects_unknown_mode)
{
    cr_assert_eq(ddp_world(invalid), 0);
}

/* A model of many bad gradients fills no disk. */
static int many(int rank)
{
    static float w[30];
    cddp_param p[30];
    cddp_comm *comm;
    cddp_ddp *ddp;
    int lines = 0;

    (void)setenv("CDDP_NAN_CHECK", "warn", 1);
    cddp_set_log_callback(keep, NULL);
    for (int i = 0; i < 30; i++)
        p[i] = (cddp_param){.size = sizeof(cddp_param), .name = "w", .data = &w[i], .count = 1, .dtype = CDDP_FLOAT32};
    CHECK(cddp_init(&comm, NULL) == CDDP_OK);
    CHECK(cddp_ddp_create(&ddp, comm, p, 30, NULL) == CDDP_OK);
    for (int step = 0; step < 2; step++) {
        for (size_t i = 30; i-- > 0;) {
            *(float *)cddp_ddp_grad(ddp, i) = rank == 1 ? NAN : 0;
            CHECK(cddp_ddp_grad_ready(ddp, i) == CDDP_OK);
        }
        CHECK(cddp_ddp_wait(ddp) == CDDP_OK);
    }
    for (const char *s = logged; *s != '\0'; s++)
        lines += *s == '\n';
    CHECK(lines == (rank == 1 ? 18 : 0));
    CHECK(rank != 1 || strstr(logged, "[rank 1, step 1] more gradients of step 1 have NaN or an infinity\n") != NULL);
    cddp_ddp_destroy(ddp);
    CHECK(cddp_finalize(comm) == CDDP_OK);
    return 0;
}

static uint64_t state_in_log;

static void keep_state(void *arg, cddp_log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
    state_in_log = float_get();
}

static int log_from_inside(int rank)
{
    struct ddp_rank r = {0};

    (void)setenv("CDDP_NAN_CHECK", "warn", 1);
    cddp_set_log_callback(keep_state, NULL);
    CHECK(ddp_open(&r, 0, CDDP_DTYPE_NONE, false) == 0);
    *(float *)cddp_ddp_grad(r.ddp, 0) = NAN;
    float_set(float_words[FLOAT_UP]);
    for (size_t i = DDP_PARAMS; i-- > 0;)
        CHECK(cddp_ddp_grad_ready(r.ddp, i) == CDDP_OK);
    CHECK(cddp_ddp_wait(r.ddp) == CDDP_OK);
    float_set(float_words[FLOAT_DEFAULT]);
    CHECK(state_in_log == float_words[FLOAT_UP]);
    (void)rank;
    return ddp_close(&r, CDDP_OK);
}

Test(nan_check, warns_programs_function_in_callers_floating_point_state)
{
    cr_assert_eq(ddp_world(log_from_inside), 0);
}

Test(nan_check, warnings_of_a_step_are_bounded)
{
    cr_assert_eq(ddp_world(many), 0);
}
