/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The optimizer on a GPU against the CPU's arithmetic on whole parameters, as a program that cddprun starts: every
 * optimizer, types of 16 to 64 bits, groups, steps that are left out, tied parameters, and a state that is saved and
 * loaded. In one step the compute stream is blocked until the host has called everything: a host that waits for the GPU
 * there hangs.
 */
#include "device_job.h"
#include "items.h"
#include "plain_rule.h"

#include <stdlib.h>
#include <unistd.h>

#define STEPS 6
#define DECAYS 1 /* this parameter has a separate group */
#define FROZEN 4 /* this one is not updated */

static const size_t grouped[] = {DECAYS}, frozen[] = {FROZEN};
static const cddp_optim_group groups[] = {
    {.size = sizeof(cddp_optim_group), .params = grouped, .n_params = 1, .lr_factor = 0.5, .weight_decay = 0.25},
    {.size = sizeof(cddp_optim_group), .params = frozen, .n_params = 1, .flags = CDDP_OPTIM_GROUP_FROZEN}};

static const cddp_optim_options rules[] = {
    {.kind = CDDP_OPTIM_SGD, .lr = 0.125},
    {.kind = CDDP_OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .dampening = 0.25, .weight_decay = 0.01},
    {.kind = CDDP_OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .flags = CDDP_OPTIM_NESTEROV},
    {.kind = CDDP_OPTIM_ADAM, .lr = 0.01, .weight_decay = 0.1, .beta2 = 0.999, .eps = 1e-8}, /* beta1 is 0 */
    {.kind = CDDP_OPTIM_ADAMW, .lr = 0.01, .weight_decay = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6},
};
#define N_RULES (sizeof rules / sizeof rules[0])

/* The state of a rank without libcddp: whole parameters, of 16 bits in float32, and their optimizer state. */
static struct {
    double w[N_PARAMS][MOST], g[MOST], s[N_PARAMS][2][MOST];
} plain;

static bool is_wide(size_t i)
{
    return types[i] == CDDP_FLOAT64;
}

static cddp_dtype type_of_state(size_t i)
{
    return is_wide(i) ? CDDP_FLOAT64 : CDDP_FLOAT32;
}

static double start(size_t i, size_t k)
{
    return (double)((int)((k * 5 + i) % 23) - 11) / 8;
}

static void begin(struct job *j)
{
    static double host[MOST];

    memset(&plain, 0, sizeof plain);
    for (size_t i = 0; i < N_PARAMS; i++) {
        for (size_t k = 0; k < counts[i]; k++) {
            number_put(types[i], host, k, start(i, k));
            number_put(type_of_state(i), plain.w[i], k, start(i, k));
        }
        DO(cddp_copy(j->comm, j->data[i], host, bytes_of(i)));
    }
}

static void plain_step(const struct job *j, const cddp_optim_options *o, uint64_t step, double factor)
{
    for (size_t i = 0; i < N_PARAMS; i++) {
        struct cdi_optim_rule rule = plain_rule(o, factor);
        void *w = plain.w[i], *m = plain.s[i][0], *v = plain.s[i][1];

        if (i == FROZEN)
            continue;
        if (i == DECAYS) {
            rule.lr *= groups[0].lr_factor;
            rule.weight_decay = groups[0].weight_decay;
        }
        for (size_t k = 0; k < counts[i]; k++)
            number_put(type_of_state(i), plain.g, k, mean(j, i, k));
        if (is_wide(i))
            cdi_optim_update_f64(&rule, step, w, plain.g, (double *[]){m, v}, counts[i]);
        else
            cdi_optim_update_f32(&rule, step, w, (float *)(void *)plain.g, (float *[]){m, v}, counts[i]);
    }
}

/* exact: they have the CPU's bits, as with SGD, which needs no powers. In any case all ranks have the same. */
static void check_parameters(const struct job *j, const char *what, bool exact)
{
    static double host[MOST], rounded[1];
    static uint64_t sums[64];
    uint64_t sum = 0;

    for (size_t i = 0; i < N_PARAMS; i++) {
        DO(cddp_copy(j->comm, host, j->data[i], bytes_of(i)));
        for (size_t k = 0; k < counts[i]; k++) {
            double got = number_get(types[i], host, k), want = number_get(type_of_state(i), plain.w[i], k);

            number_put(types[i], rounded, 0, want);
            MUST(exact ? got == number_get(types[i], rounded, 0) : close_to(got, want, tolerance_of(i)),
                 "%s: parameter %zu, element %zu is %.17g, not %.17g\n", what, i, k, got, want);
        }
        for (size_t k = 0; k < bytes_of(i); k++)
            sum = sum * 1099511628211u + ((uint8_t *)(void *)host)[k];
    }
    DO(cddp_all_gather(j->comm, &sum, sums, 1, CDDP_UINT64));
    for (int r = 0; r < cddp_world_size(j->comm); r++)
        MUST(sums[r] == sum, "%s: rank %d has other bits\n", what, r);
}

static cddp_optim *open_optim(struct job *j, size_t rule)
{
    cddp_optim_options o = rules[rule];
    cddp_optim *optim;

    o.size = sizeof o;
    o.groups = groups;
    o.n_groups = 2;
    DO(cddp_optim_create(&optim, j->ddp, &o));
    return optim;
}

static void check_rule(struct job *j, size_t rule, uint32_t ddp_flags)
{
    cddp_optim *optim;

    begin(j);
    open_ddp(j, ddp_flags);
    optim = open_optim(j, rule);
    for (uint64_t step = 1; step <= STEPS; step++) {
        backward(j);
        DO(cddp_optim_step(optim, NULL));
        plain_step(j, &rules[rule], step, 1);
    }
    check_parameters(j, "a rule", rules[rule].kind == CDDP_OPTIM_SGD);
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(j->ddp);
}

static double norm_of_means(const struct job *j)
{
    double sum = 0;

    for (size_t i = 0; i < N_PARAMS; i++)
        for (size_t k = 0; k < counts[i]; k++)
            sum += mean(j, i, k) * mean(j, i, k);
    return sqrt(sum);
}

/* Clipping, a skip, an update with a look for NaNs: no call waits. */
static void check_waits_for_nobody(struct job *j)
{
    const double max_norm = 0.5, norm = norm_of_means(j), factor = max_norm / (norm + 1e-6);
    /* Of twice the gradients clipping leaves the same. */
    const cddp_optim_step_args skip = {.size = sizeof skip, .flags = CDDP_OPTIM_SKIP_NONFINITE},
                               all = {.size = sizeof all,
                                      .flags = CDDP_OPTIM_SKIP_NONFINITE,
                                      .lr = rules[4].lr,
                                      .grad_scale = 2,
                                      .max_norm = factor * (2 * norm + 1e-6) / 2};
    cddp_optim *optim;
    uint64_t waits, skipped = 99;

    begin(j);
    open_ddp(j, 0);
    optim = open_optim(j, 4);
    for (uint64_t step = 1; step <= STEPS; step++) {
        if (step == STEPS - 1) /* until the end of the last one */
            close_gate(j);
        waits = standin_waits();
        backward(j);
        DO(cddp_ddp_clip_grad_norm(j->ddp, max_norm, 2, 0, NULL));
        DO(cddp_optim_skip(optim));
        backward(j);
        if (step % 2 == 0) /* two calls, or one */
            DO(cddp_ddp_clip_grad_norm(j->ddp, max_norm, 2, 0, NULL));
        DO(cddp_optim_step(optim, step % 2 == 0 ? &skip : &all));
        MUST(step < STEPS - 1 || standin_waits() == waits, "the host waited %d times\n",
             (int)(standin_waits() - waits));
        plain_step(j, &rules[4], step, factor);
    }
    atomic_store(&gate_is_open, true);
    check_parameters(j, "after the gate", false);
    DO(cddp_optim_skipped(optim, &skipped));
    MUST(skipped == 0, "%d steps were skipped\n", (int)skipped);
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(j->ddp);
}

/* A step with a NaN or an infinity changes nothing. */
static void check_nonfinite(struct job *j)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    /* A limit that is never reached, so that plain steps are the same. */
    const cddp_optim_step_args args[] = {{.size = sizeof args[0], .flags = CDDP_OPTIM_SKIP_NONFINITE},
                                         {.size = sizeof args[0], .flags = CDDP_OPTIM_SKIP_NONFINITE, .max_norm = 1e9}};
    uint64_t skipped = 0;
    cddp_optim *optim;

    begin(j);
    open_ddp(j, 0);
    optim = open_optim(j, 3);
    for (uint64_t step = 1; step <= STEPS; step++) {
        make(j, (size_t)step % N_PARAMS, bad[step % 3]);
        backward(j);
        if (step % 2 == 0)
            DO(cddp_ddp_clip_grad_norm(j->ddp, 1e9, 2, 0, NULL));
        DO(cddp_optim_step(optim, &args[step / 3 % 2]));
        make(j, N_PARAMS, 0);
        backward(j);
        DO(cddp_optim_step(optim, &args[step / 3 % 2]));
        plain_step(j, &rules[3], step, 1);
    }
    check_parameters(j, "between steps that were left out", false);
    DO(cddp_optim_skipped(optim, &skipped));
    MUST(skipped == STEPS, "%d steps were skipped, not %d\n", (int)skipped, STEPS);
    cddp_optim_destroy(optim);
    cddp_ddp_destroy(j->ddp);
}

static void remove_folder(const char *folder)
{
    char command[64];

    (void)snprintf(command, sizeof command, "rm -r %s", folder);
    MUST(system(command) == 0, "%s stays\n", folder); /* NOLINT(cert-env33-c,concurrency-mt-unsafe) */
}

/* Half of the steps, a checkpoint, a new optimizer that loads it, and the other half. */
static void check_saved(struct job *j)
{
    static double host[N_PARAMS][MOST];
    cddp_checkpoint_item items[N_PARAMS + 1];
    char names[N_PARAMS][8], folder[32] = "/tmp/device_optim.XXXXXX";
    cddp_optim *optim;

    if (cddp_rank(j->comm) == 0)
        MUST(mkdtemp(folder) != NULL, "no temporary folder\n");
    DO(cddp_broadcast(j->comm, folder, sizeof folder, CDDP_UINT8, 0));
    for (size_t i = 0; i < N_PARAMS; i++) {
        (void)snprintf(names[i], sizeof names[i], "w%d", (int)i);
        items[i] = (cddp_checkpoint_item){
            .size = sizeof(cddp_checkpoint_item), .name = names[i], .data = host[i], .bytes = bytes_of(i)};
    }
    begin(j);
    open_ddp(j, 0);
    optim = open_optim(j, 4);
    for (uint64_t step = 1; step <= STEPS; step++) {
        backward(j);
        DO(cddp_optim_step(optim, NULL));
        plain_step(j, &rules[4], step, 1);
        if (step != STEPS / 2)
            continue;
        for (size_t i = 0; i < N_PARAMS; i++)
            DO(cddp_copy(j->comm, host[i], j->data[i], bytes_of(i)));
        items[N_PARAMS] = item_of(CDDP_ITEM_OPTIM, "optim", optim);
        DO(cddp_checkpoint_save(j->comm, folder, step, items, N_PARAMS + 1, NULL));
        cddp_optim_destroy(optim);
        memset(host, 0xff, sizeof host);
        for (size_t i = 0; i < N_PARAMS; i++)
            DO(cddp_copy(j->comm, j->data[i], host[i], bytes_of(i)));
        optim = open_optim(j, 4);
        items[N_PARAMS].data = optim;
        DO(cddp_checkpoint_load(j->comm, folder, items, N_PARAMS + 1, NULL));
        for (size_t i = 0; i < N_PARAMS; i++)
            DO(cddp_copy(j->comm, j->data[i], host[i], bytes_of(i)));
    }
    check_parameters(j, "after a checkpoint", false);
    cddp_ddp_destroy(j->ddp); /* the optimizer may be destroyed after it */
    cddp_optim_destroy(optim);
    DO(cddp_barrier(j->comm));
    if (cddp_rank(j->comm) == 0)
        remove_folder(folder);
}

/* --- Tied parameters: after the N_PARAMS come others of the same memory, each with its own gradient. ----------
 */

#define N_TIED 5
#define N_ALL (N_PARAMS + N_TIED)

static const size_t same_as[N_ALL] = {0, 1, 2, 3, 4, 0, 1, 2, 3, 0};

static struct {
    void *made[N_TIED];
    cddp_optim *optim;
    uint32_t flags;
    double max_norm;
} tied;

/* Nobody uses parameter 0 and the second one of 3, and none of 1. */
static bool is_used(size_t i)
{
    return (tied.flags & CDDP_DDP_FIND_UNUSED) == 0 || (i != 0 && i != N_PARAMS + 3 && same_as[i] != 1);
}

static double sum_of_means(const struct job *j, size_t first, size_t k)
{
    double sum = 0;

    for (size_t i = 0; i < N_ALL; i++)
        sum += same_as[i] == first && is_used(i) ? mean(j, i, k) : 0;
    return sum;
}

static void tied_plain_step(const struct job *j, const cddp_optim_options *o, uint64_t step)
{
    struct cdi_optim_rule rule = plain_rule(o, 1);
    double sum = 0;

    for (size_t i = 0; i < N_PARAMS && tied.max_norm > 0; i++)
        for (size_t k = 0; k < counts[i]; k++)
            sum += sum_of_means(j, i, k) * sum_of_means(j, i, k);
    if (tied.max_norm > 0)
        rule.factor = tied.max_norm / (sqrt(sum) + 1e-6);
    for (size_t i = 0; i < N_PARAMS; i++) {
        void *w = plain.w[i], *m = plain.s[i][0], *v = plain.s[i][1];

        for (size_t k = 0; k < counts[i]; k++)
            number_put(type_of_state(i), plain.g, k, sum_of_means(j, i, k));
        if (i == 1 && !is_used(i))
            continue;
        if (is_wide(i))
            cdi_optim_update_f64(&rule, step, w, plain.g, (double *[]){m, v}, counts[i]);
        else
            cdi_optim_update_f32(&rule, step, w, (float *)(void *)plain.g, (float *[]){m, v}, counts[i]);
    }
}

static void tied_open(struct job *j, const cddp_optim_options *rule, size_t bucket_bytes)
{
    static const char *const names[N_ALL] = {"p0", "p1", "p2", "p3", "p4", "q0", "q1", "q2", "q3", "r0"};
    cddp_ddp_options opt = {
        .size = sizeof opt, .stream = j->compute, .flags = tied.flags, .bucket_bytes = bucket_bytes};
    cddp_optim_options o = *rule;
    cddp_param params[N_ALL];
    static double host[MOST];

    o.size = sizeof o;
    begin(j);
    for (size_t i = 0; i < N_ALL; i++)
        params[i] = (cddp_param){.size = sizeof(cddp_param),
                                 .name = names[i],
                                 .data = j->data[same_as[i]],
                                 .count = counts[same_as[i]],
                                 .dtype = types[same_as[i]],
                                 .grad_dtype = type_of_grad(same_as[i])};
    for (size_t i = N_PARAMS; i < N_ALL; i++) {
        for (size_t k = 0; k < params[i].count; k++)
            number_put(params[i].grad_dtype, host, k, gradient(cddp_rank(j->comm), i, k));
        DO(cddp_alloc(j->comm, bytes_of_grad(same_as[i]), 0, &tied.made[i - N_PARAMS]));
        DO(cddp_copy(j->comm, tied.made[i - N_PARAMS], host, bytes_of_grad(same_as[i])));
    }
    DO(cddp_ddp_create(&j->ddp, j->comm, params, N_ALL, &opt));
    DO(cddp_optim_create(&tied.optim, j->ddp, &o));
}

static void tied_step(struct job *j)
{
    const cddp_optim_step_args args = {.size = sizeof args, .max_norm = tied.max_norm};

    for (size_t i = N_ALL; i-- > 0;) {
        if (!is_used(i))
            continue;
        CU(cuMemcpyDtoDAsync((CUdeviceptr)cddp_ddp_grad(j->ddp, i),
                             (CUdeviceptr)(i < N_PARAMS ? j->made[i] : tied.made[i - N_PARAMS]),
                             bytes_of_grad(same_as[i]), j->compute));
        DO(cddp_ddp_grad_ready(j->ddp, i));
    }
    DO(cddp_optim_step(tied.optim, &args));
}

/* captured: from step 4 on, when the buckets are final, steps are launches of a graph. */
static void check_tied(struct job *j, size_t rule, size_t bucket_bytes, bool captured)
{
    CUgraphExec exec = NULL;

    tied_open(j, &rules[rule], bucket_bytes);
    for (uint64_t step = 1; step <= STEPS; step++) {
        if (captured && step == 4)
            CU(cuStreamBeginCapture(j->compute, CU_STREAM_CAPTURE_MODE_GLOBAL));
        if (!captured || step <= 4)
            tied_step(j);
        if (captured && step == 4)
            exec = device_end_capture(j->compute);
        if (captured && step >= 4)
            CU(cuGraphLaunch(exec, j->compute));
        tied_plain_step(j, &rules[rule], step);
    }
    if (captured) {
        CU(cuStreamSynchronize(j->compute));
        CU(cuGraphExecDestroy(exec));
    }
    check_parameters(j, captured ? "tied ones in a graph" : "tied ones",
                     rules[rule].kind == CDDP_OPTIM_SGD && tied.max_norm == 0);
    cddp_optim_destroy(tied.optim);
    cddp_ddp_destroy(j->ddp);
    for (size_t i = 0; i < N_TIED; i++)
        cddp_free(j->comm, tied.made[i]);
}

static void check_all_tied(struct job *j)
{
    tied.flags = 0;
    tied.max_norm = 0;
    check_tied(j, 1, 8000, false);
    check_tied(j, 4, (size_t)1 << 24, false);
    tied.max_norm = 0.5;
    check_tied(j, 4, 64, false);
    check_tied(j, 1, 8000, true);
    tied.flags = CDDP_DDP_FIND_UNUSED;
    check_tied(j, 4, 8000, false);
}

static void check_all(struct job *j)
{
    make(j, N_PARAMS, 0);
    for (size_t rule = 0; rule < N_RULES; rule++)
        check_rule(j, rule, rule % 2 != 0 ? CDDP_DDP_SUM : 0);
    check_waits_for_nobody(j);
    check_nonfinite(j);
    check_saved(j);
    check_all_tied(j);
}

int main(void)
{
    static struct job j;

    open_job(&j);
    check_all(&j);
    wide_grads = true;
    check_all(&j);
    close_job(&j);
    return 0;
}
