/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model and its training in the type REAL; train.c includes it once for float and once for double, which is why it
 * has no include guard. Results equal PyTorch's up to rounding, so the order of operations follows it where it is known
 * (Adam), and is plain elsewhere.
 */

/* W1[HIDDEN][IN], b1[HIDDEN], W2[OUT][HIDDEN], b2[OUT]: the weights, or where their gradients lie. */
struct NAME(net) {
    REAL *w1, *b1, *w2, *b2;
};

/* What the forward pass leaves for the backward pass. */
struct NAME(pass) {
    REAL h[HIDDEN]; /* after the ReLU */
    REAL p[OUT];    /* softmax */
};

struct NAME(trainer) {
    const struct job *job;
    REAL w[WINE_WEIGHTS], m[WINE_WEIGHTS], v[WINE_WEIGHTS]; /* weights; Adam's two averages */
    struct NAME(net) net, grad;
    REAL x_train[WINE_ROWS][IN], x_test[WINE_ROWS][IN];
    struct NAME(pass) batch[WINE_ROWS]; /* of one slice of a batch */
    cddp_ddp *ddp;
    cddp_optim *optim; /* --zero: it has the averages, and m and v are not used; else NULL */
    cddp_sampler *sampler;
    struct state state; /* for checkpoints; its progress and loss are the trainer's own */

    /* Where libcddp's backend is a GPU's, the step runs there, and the arrays above are what it last sent back. */
    struct gpu *gpu; /* or NULL */
    struct NAME(wine_args) args;
    int64_t *gpu_row; /* of all samples of the epoch */
    void *gpu_memory[16];
    size_t n_gpu_memory;
};

/* The cross-entropy of one sample. */
static REAL NAME(forward)(const struct NAME(net) * net, const REAL x[IN], int label, struct NAME(pass) * pass)
{
    REAL z[OUT], max, sum = 0;

    for (int j = 0; j < HIDDEN; j++) {
        REAL a = 0;

        for (int k = 0; k < IN; k++)
            a += net->w1[j * IN + k] * x[k];
        a += net->b1[j];
        pass->h[j] = a > 0 ? a : 0;
    }
    for (int c = 0; c < OUT; c++) {
        z[c] = 0;
        for (int j = 0; j < HIDDEN; j++)
            z[c] += net->w2[c * HIDDEN + j] * pass->h[j];
        z[c] += net->b2[c];
    }
    max = z[0];
    for (int c = 1; c < OUT; c++)
        max = z[c] > max ? z[c] : max;
    for (int c = 0; c < OUT; c++)
        sum += EXP(z[c] - max);
    for (int c = 0; c < OUT; c++)
        pass->p[c] = EXP(z[c] - max - LOG(sum));
    return LOG(sum) - (z[label] - max);
}

/* dz = d(mean loss)/d(logits) of one sample, in place of its probabilities. */
static void NAME(loss_gradient)(struct NAME(pass) * pass, int label, size_t n)
{
    pass->p[label] -= 1;
    for (int c = 0; c < OUT; c++)
        pass->p[c] /= (REAL)n;
}

/* Which batch of a step it is: the first begins with zeros, the last says that gradients are ready. */
struct NAME(turn) {
    bool first, last;
};

/* Gradients of the second layer, summed over n samples; then they may leave while the first one's are made. */
static cddp_status NAME(backward_second)(struct NAME(trainer) * t, size_t n, struct NAME(turn) turn)
{
    cddp_status status;

    if (turn.first) {
        memset(t->grad.w2, 0, sizeof(REAL) * OUT * HIDDEN);
        memset(t->grad.b2, 0, sizeof(REAL) * OUT);
    }
    for (size_t s = 0; s < n; s++)
        for (int c = 0; c < OUT; c++) {
            REAL dz = t->batch[s].p[c];

            t->grad.b2[c] += dz;
            for (int j = 0; j < HIDDEN; j++)
                t->grad.w2[c * HIDDEN + j] += dz * t->batch[s].h[j];
        }
    if (!turn.last)
        return CDDP_OK;
    status = cddp_ddp_grad_ready(t->ddp, 3);
    return status == CDDP_OK ? cddp_ddp_grad_ready(t->ddp, 2) : status;
}

static cddp_status NAME(backward_first)(struct NAME(trainer) * t, const int64_t *rows, size_t n, struct NAME(turn) turn)
{
    cddp_status status;

    if (turn.first) {
        memset(t->grad.w1, 0, sizeof(REAL) * HIDDEN * IN);
        memset(t->grad.b1, 0, sizeof(REAL) * HIDDEN);
    }
    for (size_t s = 0; s < n; s++)
        for (int j = 0; j < HIDDEN; j++) {
            REAL da = 0;

            if (!(t->batch[s].h[j] > 0))
                continue;
            for (int c = 0; c < OUT; c++)
                da += t->batch[s].p[c] * t->net.w2[c * HIDDEN + j];
            t->grad.b1[j] += da;
            for (int k = 0; k < IN; k++)
                t->grad.w1[j * IN + k] += da * t->x_train[rows[s]][k];
        }
    if (!turn.last)
        return CDDP_OK;
    status = cddp_ddp_grad_ready(t->ddp, 1);
    return status == CDDP_OK ? cddp_ddp_grad_ready(t->ddp, 0) : status;
}

/* Scalars are made in double and rounded once, as PyTorch does it. */
static struct NAME(wine_scalars) NAME(adam_scalars)(double lr, long step)
{
    const double beta1 = 0.9, beta2 = 0.999;

    return (struct NAME(wine_scalars)){
        .step_size = (REAL)(lr / (1 - pow(beta1, (double)step))),
        .correction = (REAL)sqrt(1 - pow(beta2, (double)step)),
        .w1 = (REAL)(1 - beta1),
        .w2 = (REAL)(1 - beta2),
        .keep = (REAL)beta2,
        .eps = (REAL)1e-8,
    };
}

static void NAME(update)(struct NAME(trainer) * t)
{
    const struct NAME(net) *g = &t->grad;
    struct {
        REAL *w;
        const REAL *g;
        size_t n;
    } parts[] = {{t->net.w1, g->w1, HIDDEN * IN},
                 {t->net.b1, g->b1, HIDDEN},
                 {t->net.w2, g->w2, OUT * HIDDEN},
                 {t->net.b2, g->b2, OUT}};

    const struct NAME(wine_scalars) adam = NAME(adam_scalars)(t->job->opt->lr, (long)t->state.done.steps);

    for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) {
        size_t at = (size_t)(parts[p].w - t->w);

        for (size_t i = 0; i < parts[p].n; i++)
            NAME(wine_adam_step)(&adam, parts[p].g[i], &parts[p].w[i], &t->m[at + i], &t->v[at + i]);
    }
}

/* All gradients are on their way: new weights. */
static cddp_status NAME(step)(struct NAME(trainer) * t)
{
    const double clip = t->job->opt->clip;
    const cddp_optim_step_args args = {
        .size = sizeof args, .flags = clip > 0 ? CDDP_OPTIM_SKIP_NONFINITE : 0, .max_norm = clip};
    cddp_status status = t->optim != NULL ? cddp_optim_step(t->optim, &args) : cddp_ddp_wait(t->ddp);

    if (status == CDDP_OK && clip > 0 && t->optim == NULL)
        status = cddp_ddp_clip_grad_norm(t->ddp, clip, 2, 1, NULL);
    if (status != CDDP_OK)
        return status;
    t->state.done.steps++;
    if (t->optim == NULL)
        NAME(update)(t);
    return CDDP_OK;
}

/* One batch of n rows, and a step if it is the last; their mean loss, from before the update, goes into *loss. */
static cddp_status NAME(batch)(struct NAME(trainer) * t, const int64_t *rows, size_t n, struct NAME(turn) turn,
                               struct epoch_loss *loss)
{
    const int *label = t->job->data->train.label;
    REAL sum = 0;
    cddp_status status;

    for (size_t s = 0; s < n; s++) {
        sum += NAME(forward)(&t->net, t->x_train[rows[s]], label[rows[s]], &t->batch[s]);
        NAME(loss_gradient)(&t->batch[s], label[rows[s]], n);
    }
    status = NAME(backward_second)(t, n, turn);
    if (status == CDDP_OK)
        status = NAME(backward_first)(t, rows, n, turn);
    if (status == CDDP_OK && turn.last)
        status = NAME(step)(t);
    if (status != CDDP_OK)
        return status;
    loss->sum += (double)(sum / (REAL)n) * (double)n;
    loss->count += (double)n;
    return CDDP_OK;
}

/* From where the sampler stands, which after a resume may be the middle of the epoch. */
static cddp_status NAME(epoch)(struct NAME(trainer) * t)
{
    const struct options *opt = t->job->opt;
    size_t rest = samples_of_epoch(t->job, t->sampler), batch = (size_t)opt->batch_size;
    cddp_status status = CDDP_OK;

    for (size_t k = 0; rest > 0 && status == CDDP_OK && !t->state.leaving; k++) {
        struct NAME(turn) turn = {.first = k % (size_t)opt->accumulate == 0,
                                  .last = (k + 1) % (size_t)opt->accumulate == 0 || rest <= batch};
        const int64_t *rows;
        size_t n = cddp_sampler_next(t->sampler, rest < batch ? rest : batch, &rows);

        status = NAME(batch)(t, rows, n, turn, &t->state.loss);
        rest -= n;
        if (status == CDDP_OK && turn.last && rest > 0)
            status = state_save(t->job, &t->state, false);
    }
    return status == CDDP_OK && opt->uneven > 0 ? cddp_ddp_join(t->ddp) : status;
}

/* The epoch that was trained is done: its loss, its record, and the checkpoint if one is due. */
static cddp_status NAME(end_epoch)(struct NAME(trainer) * t, char *why, size_t cap)
{
    struct progress *done = &t->state.done;
    cddp_status status = share_loss(t->job, (long)done->epochs, t->state.loss, &done->train_loss, why, cap);

    if (status != CDDP_OK)
        return status;
    t->state.loss = (struct epoch_loss){0, 0};
    status = cddp_sampler_set_epoch(t->sampler, ++done->epochs);
    return status == CDDP_OK ? state_save(t->job, &t->state, true) : status;
}

#include "train_gpu_real.h"

/* Each rank tests its share of the rows. */
static cddp_status NAME(test)(struct NAME(trainer) * t, struct result *r)
{
    const struct wine_part *part = &t->job->data->test;
    cddp_comm *comm = t->job->comm;
    cddp_metric found[2] = {{0}}; /* the loss of a row, and whether its class was found */
    cddp_status status;

    for (size_t i = (size_t)cddp_rank(comm); i < part->n; i += (size_t)cddp_world_size(comm)) {
        struct NAME(pass) pass;
        int best = 0;

        cddp_metric_add(&found[0], (double)NAME(forward)(&t->net, t->x_test[i], part->label[i], &pass), 1);
        for (int c = 1; c < OUT; c++)
            best = pass.p[c] > pass.p[best] ? c : best;
        cddp_metric_add(&found[1], best == part->label[i], 1);
    }
    status = cddp_metric_reduce(comm, found, found, 2, NULL);
    r->test_loss = cddp_metric_mean(&found[0]);
    r->n_right = (size_t)found[1].sum;
    return status;
}

/* Weights, data and gradients in their places; the ranks meet in cddp_ddp_create. */
static cddp_status NAME(set_up)(struct NAME(trainer) * t, const struct job *job, char *why, size_t cap)
{
    static const size_t shape_w1[] = {HIDDEN, IN}, shape_w2[] = {OUT, HIDDEN};
    const struct wine_data *data = job->data;
    REAL *w1 = t->w, *b1 = w1 + HIDDEN * IN, *w2 = b1 + HIDDEN, *b2 = w2 + OUT * HIDDEN;
    cddp_param params[] = {
        {.size = sizeof(cddp_param),
         .name = "fc1.weight",
         .data = w1,
         .count = HIDDEN * IN,
         .dtype = REAL_DTYPE,
         .shape = shape_w1,
         .n_dims = 2},
        {.size = sizeof(cddp_param), .name = "fc1.bias", .data = b1, .count = HIDDEN, .dtype = REAL_DTYPE},
        {.size = sizeof(cddp_param),
         .name = "fc2.weight",
         .data = w2,
         .count = OUT * HIDDEN,
         .dtype = REAL_DTYPE,
         .shape = shape_w2,
         .n_dims = 2},
        {.size = sizeof(cddp_param), .name = "fc2.bias", .data = b2, .count = OUT, .dtype = REAL_DTYPE},
    };
    cddp_sampler_options so = {.size = sizeof so,
                               .n = (int64_t)data->train.n,
                               .world_size = cddp_world_size(job->comm),
                               .rank = cddp_rank(job->comm),
                               .no_shuffle = job->opt->no_shuffle,
                               .drop_last = job->opt->drop_last,
                               .seed = job->opt->seed};
    cddp_ddp_options ddp_options = {.size = sizeof ddp_options,
                                    .flags = job->opt->uneven > 0 ? CDDP_DDP_JOIN : 0,
                                    .comm_dtype = job->opt->compress == 0    ? CDDP_DTYPE_NONE
                                                  : job->opt->compress == 16 ? CDDP_FLOAT16
                                                                             : CDDP_BFLOAT16};
    cddp_optim_options optim_options;
    cddp_status status;

    t->job = job;
    t->net = (struct NAME(net)){w1, b1, w2, b2};
    t->state = (struct state){.weights = t->w, .m = t->m, .v = t->v, .bytes = sizeof t->w};
    if (job->opt->uneven > 0 && job->opt->save_steps > 0)
        return set_why(why, cap,
                       "--save-steps is for ranks that take equally many steps, and --uneven makes them differ");
    for (size_t i = 0; i < WINE_WEIGHTS; i++)
        t->w[i] = (REAL)data->init[i];
    for (size_t i = 0; i < data->train.n; i++)
        for (int k = 0; k < IN; k++)
            t->x_train[i][k] = (REAL)data->train.x[i][k];
    for (size_t i = 0; i < data->test.n; i++)
        for (int k = 0; k < IN; k++)
            t->x_test[i][k] = (REAL)data->test.x[i][k];
    if (strcmp(cddp_backend_name(job->comm), "nccl") == 0 && (job->opt->accumulate > 1 || job->opt->uneven > 0))
        return set_why(why, cap, "--accumulate and --uneven are for the CPU: set CDDP_BACKEND=cpu");
    if (strcmp(cddp_backend_name(job->comm), "nccl") == 0) {
        status = NAME(gpu_set_up)(t, why, cap);
        if (status != CDDP_OK)
            return status;
        ddp_options.stream = gpu_stream(t->gpu);
        for (int i = 0; i < 4; i++)
            params[i].data = t->args.w + ((REAL *)params[i].data - t->w);
    }
    status = cddp_sampler_create(&t->sampler, &so);
    t->state.sampler = t->sampler;
    if (status == CDDP_OK)
        status = cddp_ddp_create(&t->ddp, job->comm, params, 4, &ddp_options);
    cddp_optim_defaults(&optim_options, sizeof optim_options, CDDP_OPTIM_ADAM);
    optim_options.lr = job->opt->lr;
    if (status == CDDP_OK && job->opt->zero)
        status = cddp_optim_create(&t->optim, t->ddp, &optim_options);
    t->state.optim = t->optim;
    if (status == CDDP_OK && job->opt->powersgd)
        status = cddp_ddp_set_powersgd(
            t->ddp, &(cddp_powersgd_options){.size = sizeof(cddp_powersgd_options), .start_step = 10});
    t->state.ddp = t->ddp;
    if (status != CDDP_OK)
        return status;
    t->grad = (struct NAME(net)){cddp_ddp_grad(t->ddp, 0), cddp_ddp_grad(t->ddp, 1), cddp_ddp_grad(t->ddp, 2),
                                 cddp_ddp_grad(t->ddp, 3)};
    t->args.g_w1 = t->grad.w1;
    t->args.g_b1 = t->grad.b1;
    t->args.g_w2 = t->grad.w2;
    t->args.g_b2 = t->grad.b2;
    return CDDP_OK;
}

static cddp_status NAME(run)(struct NAME(trainer) * t, struct result *result, char *why, size_t cap)
{
    const struct options *opt = t->job->opt;
    struct progress *done = &t->state.done;
    cddp_status status;

    if (cddp_sampler_count(t->sampler) == 0)
        return set_why(why, cap, "there are more ranks than training rows, and --drop-last leaves none of them");
    if (samples_of_epoch(t->job, t->sampler) == 0)
        return set_why(why, cap, "--uneven leaves this rank no samples");
    status = state_resume(t->job, &t->state, why, cap);
    if (status == CDDP_OK && t->gpu != NULL && done->steps > 0)
        status = NAME(gpu_resumed)(t);
    while (status == CDDP_OK && !t->state.leaving && done->epochs < opt->epochs) {
        status = t->gpu != NULL ? NAME(gpu_epoch)(t, why, cap) : NAME(epoch)(t);
        if (status == CDDP_OK && !t->state.leaving)
            status = NAME(end_epoch)(t, why, cap);
    }
    if (status == CDDP_OK)
        status = cddp_checkpoint_wait(t->job->comm);
    *result = (struct result){.epochs = (long)done->epochs, .steps = (long)done->steps, .left = t->state.leaving};
    if (status != CDDP_OK || result->left)
        return status;
    status = compare_weights(t->job->comm, t->w, sizeof t->w, why, cap);
    if (status == CDDP_OK)
        status = NAME(test)(t, result);
    if (status != CDDP_OK)
        return status;
    result->train_loss = done->train_loss;
    for (size_t i = 0; i < WINE_WEIGHTS && t->job->weights_out != NULL; i++)
        (void)fprintf(t->job->weights_out, "%.17g\n", (double)t->w[i]);
    return CDDP_OK;
}

cddp_status NAME(train)(const struct job *job, struct result *result, char *why, size_t cap)
{
    struct NAME(trainer) *t = calloc(1, sizeof *t);
    cddp_status status;

    if (t == NULL)
        return set_why(why, cap, "out of memory");
    status = NAME(set_up)(t, job, why, cap);
    if (status == CDDP_OK)
        status = NAME(run)(t, result, why, cap);
    cddp_optim_destroy(t->optim);
    cddp_ddp_destroy(t->ddp);
    cddp_sampler_destroy(t->sampler);
    NAME(gpu_tear_down)(t);
    free(t);
    return status;
}
