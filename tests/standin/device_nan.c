/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CDDP_NAN_CHECK and CDDP_CHECK_REPLICAS on a GPU, as a program that cddprun starts with both: a bad number in each
 * gradient of one rank is found, the steps after it are as ever, and one bit of a parameter is found, too.
 *
 *     device_nan error|warn
 */
#include "device_job.h"

#define STEPS 12

static struct job j;
static char logged[8000];
static bool warns;

static void keep(void *arg, cddp_log_level level, const char *line)
{
    size_t n = strlen(logged);

    (void)arg;
    (void)level;
    (void)snprintf(logged + n, sizeof logged - n, "%s\n", line);
}

/* Makes the gradients of this step, with `bad` at the end of gradient i of `rank`. */
static void make_with(size_t i, int rank, double bad)
{
    static double host[MOST];

    make(&j, N_PARAMS, 0);
    if (rank != cddp_rank(j.comm))
        return;
    for (size_t k = 0; k < counts[i]; k++)
        number_put(types[i], host, k, k + 1 == counts[i] ? bad : 0);
    DO(cddp_copy(j.comm, j.made[i], host, bytes_of(i)));
}

static void check_means(void)
{
    static double host[MOST];

    for (size_t i = 0; i < N_PARAMS; i++) {
        DO(cddp_copy(j.comm, host, cddp_ddp_grad(j.ddp, i), bytes_of(i)));
        for (size_t k = 0; k < counts[i]; k++)
            MUST(close_to(number_get(types[i], host, k), mean(&j, i, k), tolerance_of(i)), "gradient %zu\n", i);
    }
}

static void expect_text(const char *got, const char *want, int step)
{
    MUST(strcmp(got, want) == 0, "rank %d, step %d: '%s', and not '%s'\n", cddp_rank(j.comm), step, got, want);
}

/* Step `step` has a bad number of rank `by` in gradient i. */
static void bad_step(int step, size_t i, size_t bucket, int by, double bad)
{
    const char *what = bad != bad ? "NaN" : "an infinity";
    char want[300];

    make_with(i, by, bad);
    backward(&j);
    if (!warns) {
        MUST(cddp_ddp_wait(j.ddp) == CDDP_E_NONFINITE, "step %d: it was not found\n", step);
        (void)snprintf(want, sizeof want, "step %d: the gradient of 'p%zu' (bucket %zu) has %s; rank %d brought it",
                       step, i, bucket, what, by);
        expect_text(cddp_last_error(), want, step);
        return;
    }
    DO(cddp_ddp_wait(j.ddp));
    make(&j, N_PARAMS, 0);
    backward(&j);
    DO(cddp_ddp_wait(j.ddp));
    want[0] = '\0';
    if (by == cddp_rank(j.comm))
        (void)snprintf(want, sizeof want, "[rank %d, step %d] step %d: the gradient of 'p%zu' (bucket %zu) has %s\n",
                       by, step + 1, step, i, bucket, what);
    expect_text(logged, want, step);
    logged[0] = '\0';
}

static size_t bucket_of(size_t i)
{
    static const size_t first_steps[N_PARAMS] = {4, 3, 2, 1, 0};

    return first_steps[i];
}

static void open_named(uint32_t flags, cddp_dtype comm_dtype)
{
    static const char *const names[N_PARAMS] = {"p0", "p1", "p2", "p3", "p4"};
    cddp_ddp_options opt = {.size = sizeof opt,
                            .stream = j.compute,
                            .flags = flags,
                            .comm_dtype = comm_dtype,
                            .bucket_bytes = 4,
                            .first_bucket_bytes = 4};
    cddp_param params[N_PARAMS];

    for (size_t i = 0; i < N_PARAMS; i++)
        params[i] = (cddp_param){
            .size = sizeof(cddp_param), .name = names[i], .data = j.data[i], .count = counts[i], .dtype = types[i]};
    DO(cddp_ddp_create(&j.ddp, j.comm, params, N_PARAMS, &opt));
}

static void each_gradient(uint32_t flags, cddp_dtype comm_dtype)
{
    int n = cddp_world_size(j.comm), step = 0;

    open_named(flags, comm_dtype);
    for (size_t i = 0; i < N_PARAMS; i++) {
        make(&j, N_PARAMS, 0);
        backward(&j);
        DO(cddp_ddp_wait(j.ddp));
        if (comm_dtype == CDDP_DTYPE_NONE)
            check_means();
        step++;
        bad_step(step, i, bucket_of(i), (int)i % n, i % 2 == 0 ? NAN : -INFINITY);
        step += warns ? 2 : 1;
    }
    cddp_ddp_destroy(j.ddp);
    make(&j, N_PARAMS, 0);
}

/* An optimizer leaves the step out: on the device nothing has changed. */
static void optimizer_leaves_it_out(void)
{
    const cddp_optim_options sgd = {.size = sizeof sgd, .kind = CDDP_OPTIM_SGD, .lr = 0.5};
    static double before[N_PARAMS][MOST], after[MOST];
    cddp_optim *optim;

    open_named(0, CDDP_DTYPE_NONE);
    DO(cddp_optim_create(&optim, j.ddp, &sgd));
    for (int step = 0; step < 5; step++) {
        bool bad = step == 1 || step == 3; /* of float16, and of float64 */

        for (size_t i = 0; i < N_PARAMS; i++)
            DO(cddp_copy(j.comm, before[i], j.data[i], bytes_of(i)));
        make_with((size_t)step, bad ? 0 : -1, NAN);
        backward(&j);
        MUST(cddp_optim_step(optim, NULL) == (bad ? CDDP_E_NONFINITE : CDDP_OK), "step %d: %s\n", step,
             cddp_last_error());
        for (size_t i = 0; i < N_PARAMS; i++) {
            DO(cddp_copy(j.comm, after, j.data[i], bytes_of(i)));
            MUST((memcmp(before[i], after, bytes_of(i)) == 0) == bad, "step %d: parameter %zu\n", step, i);
        }
    }
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(j.ddp);
    make(&j, N_PARAMS, 0);
}

/* With "warn" no step waits for the GPU: the compute stream is blocked until the host has called everything. */
static void warn_waits_for_nobody(void)
{
    uint64_t waits;

    open_named(0, CDDP_DTYPE_NONE);
    for (int step = 0; step < 3; step++) {
        backward(&j);
        DO(cddp_ddp_wait(j.ddp));
    }
    check_means(); /* waits for the third step */
    close_gate(&j);
    waits = standin_waits();
    backward(&j);
    DO(cddp_ddp_wait(j.ddp));
    MUST(standin_waits() == waits, "the host waited %d times\n", (int)(standin_waits() - waits));
    atomic_store(&gate_is_open, true);
    check_means();
    cddp_ddp_destroy(j.ddp);
}

/* The last step's warning comes when the reducer ends. */
static void warn_at_the_end(void)
{
    open_named(0, CDDP_DTYPE_NONE);
    make_with(2, 0, NAN);
    backward(&j);
    DO(cddp_ddp_wait(j.ddp));
    expect_text(logged, "", 0);
    cddp_ddp_destroy(j.ddp);
    expect_text(logged,
                cddp_rank(j.comm) == 0 ? "[rank 0, step 1] step 0: the gradient of 'p2' (bucket 2) has NaN\n" : "", 0);
    logged[0] = '\0';
    make(&j, N_PARAMS, 0);
}

/* One bit of one rank's parameter is flipped after 4 steps; every third step compares. */
static void flip_a_bit(void)
{
    int last = cddp_world_size(j.comm) - 1;
    char want[200];
    uint8_t byte;

    open_named(0, CDDP_DTYPE_NONE);
    for (int step = 0; step < 7; step++) {
        if (step == 4 && cddp_rank(j.comm) == last) {
            DO(cddp_copy(j.comm, &byte, (char *)j.data[0] + bytes_of(0) - 2, 1));
            byte ^= 1;
            DO(cddp_copy(j.comm, (char *)j.data[0] + bytes_of(0) - 2, &byte, 1));
        }
        backward(&j);
        if (step < 6 || last == 0)
            DO(cddp_ddp_wait(j.ddp));
        else
            MUST(cddp_ddp_wait(j.ddp) == CDDP_E_MISMATCH, "the bit was not found\n");
    }
    (void)snprintf(
        want, sizeof want,
        "after 6 steps: the parameter 'p0' differs: rank %d has other values than %s; all were equal after 3 "
        "steps",
        last, last == 1 ? "rank 0" : "ranks 0, 1");
    if (last > 0)
        expect_text(cddp_last_error(), want, 6);
    cddp_ddp_destroy(j.ddp);
}

int main(int argc, char **argv)
{
    (void)argc;
    warns = strcmp(argv[1], "warn") == 0;
    cddp_set_log_callback(keep, NULL);
    open_job(&j);
    each_gradient(0, CDDP_DTYPE_NONE);
    each_gradient(0, CDDP_FLOAT16);
    each_gradient(CDDP_DDP_FIND_UNUSED, CDDP_DTYPE_NONE);
    if (warns && getenv("CDDP_CHECK_REPLICAS") == NULL)
        warn_waits_for_nobody();
    if (warns)
        warn_at_the_end();
    else
        optimizer_leaves_it_out();
    if (getenv("CDDP_CHECK_REPLICAS") != NULL)
        flip_a_bit();
    close_job(&j);
    return 0;
}
