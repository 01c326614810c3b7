/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same training step on a GPU, in the type REAL; train.c includes it after train_real.h's types. Weights,
 * averages, data and gradients live on the device; in a step the host only launches. After each epoch the trainer's own
 * arrays get what the device has, for checkpoints, the test and the files.
 */

/* A local failure on the GPU stops the peers too: they would wait for this rank. */
static cddp_status NAME(gpu_failed)(const struct NAME(trainer) * t, char *why, size_t cap)
{
    cddp_abort(t->job->comm, gpu_why(t->gpu));
    return set_why(why, cap, gpu_why(t->gpu));
}

/* Memory on the GPU with `bytes` bytes of `from` in it; NULL: the status says why, and is kept if it already did. */
static void *NAME(gpu_memory)(struct NAME(trainer) * t, const void *from, size_t bytes, cddp_status *status)
{
    void *p = NULL;

    if (*status == CDDP_OK)
        *status = cddp_alloc(t->job->comm, bytes, 0, &p);
    if (*status == CDDP_OK) {
        t->gpu_memory[t->n_gpu_memory++] = p;
        *status = cddp_copy(t->job->comm, p, from, bytes);
    }
    return p;
}

/* The model, the data and room to work in; before the ranks meet. */
static cddp_status NAME(gpu_set_up)(struct NAME(trainer) * t, char *why, size_t cap)
{
    static const REAL zeros[WINE_ROWS * HIDDEN];
    struct NAME(wine_args) *a = &t->args;
    int32_t label[WINE_ROWS] = {0};
    cddp_status status = CDDP_OK;

    t->gpu = gpu_open(why, cap);
    if (t->gpu == NULL) {
        cddp_abort(t->job->comm, why);
        return CDDP_E_SYSTEM;
    }
    for (size_t i = 0; i < t->job->data->train.n; i++)
        label[i] = t->job->data->train.label[i];
    a->w = NAME(gpu_memory)(t, t->w, sizeof t->w, &status);
    a->m = NAME(gpu_memory)(t, t->m, sizeof t->m, &status);
    a->v = NAME(gpu_memory)(t, t->v, sizeof t->v, &status);
    a->x = NAME(gpu_memory)(t, t->x_train, sizeof t->x_train, &status);
    a->label = NAME(gpu_memory)(t, label, sizeof label, &status);
    t->gpu_row = NAME(gpu_memory)(t, zeros, WINE_ROWS * sizeof *t->gpu_row, &status);
    a->h = NAME(gpu_memory)(t, zeros, WINE_ROWS * HIDDEN * sizeof *a->h, &status);
    a->dz = NAME(gpu_memory)(t, zeros, WINE_ROWS * OUT * sizeof *a->dz, &status);
    a->loss = NAME(gpu_memory)(t, zeros, WINE_ROWS * sizeof *a->loss, &status);
    a->epoch_loss = NAME(gpu_memory)(t, zeros, sizeof(struct epoch_loss), &status);
    return status;
}

static void NAME(gpu_tear_down)(struct NAME(trainer) * t)
{
    gpu_close(t->gpu); /* after what runs there */
    for (size_t i = 0; i < t->n_gpu_memory; i++)
        cddp_free(t->job->comm, t->gpu_memory[i]);
}

/* What a checkpoint brought goes to the GPU. */
static cddp_status NAME(gpu_resumed)(struct NAME(trainer) * t)
{
    cddp_comm *comm = t->job->comm;
    cddp_status status = cddp_copy(comm, t->args.w, t->w, sizeof t->w);

    if (status == CDDP_OK)
        status = cddp_copy(comm, t->args.m, t->m, sizeof t->m);
    return status == CDDP_OK ? cddp_copy(comm, t->args.v, t->v, sizeof t->v) : status;
}

/* What the epoch has left on the GPU. */
static cddp_status NAME(gpu_fetch)(struct NAME(trainer) * t, struct epoch_loss *loss)
{
    cddp_comm *comm = t->job->comm;
    cddp_status status = cddp_copy(comm, loss, t->args.epoch_loss, sizeof *loss);

    if (status == CDDP_OK)
        status = cddp_copy(comm, t->w, t->args.w, sizeof t->w);
    if (status == CDDP_OK)
        status = cddp_copy(comm, t->m, t->args.m, sizeof t->m);
    return status == CDDP_OK ? cddp_copy(comm, t->v, t->args.v, sizeof t->v) : status;
}

/* One step on the n rows from args.row on. Nothing waits for the GPU: a NaN in the norm shows in the loss. */
static cddp_status NAME(gpu_step)(struct NAME(trainer) * t, int n, char *why, size_t cap)
{
    struct NAME(wine_args) *a = &t->args;
    struct gpu *g = t->gpu;
    const bool f64 = sizeof(REAL) == sizeof(double);
    const cddp_optim_step_args args = {.size = sizeof args, .max_norm = t->job->opt->clip};
    cddp_status status;

    a->n = n;
    t->state.done.steps++;
    a->adam = NAME(adam_scalars)(t->job->opt->lr, (long)t->state.done.steps);
    if (!gpu_launch(g, WINE_hidden, f64, n, a) || !gpu_launch(g, WINE_output, f64, n, a) ||
        !gpu_launch(g, WINE_second, f64, n, a))
        return NAME(gpu_failed)(t, why, cap);
    status = cddp_ddp_grad_ready(t->ddp, 3);
    if (status == CDDP_OK)
        status = cddp_ddp_grad_ready(t->ddp, 2);
    if (status == CDDP_OK && !gpu_launch(g, WINE_first, f64, n, a))
        return NAME(gpu_failed)(t, why, cap);
    if (status == CDDP_OK)
        status = cddp_ddp_grad_ready(t->ddp, 1);
    if (status == CDDP_OK)
        status = cddp_ddp_grad_ready(t->ddp, 0);
    if (status == CDDP_OK && t->optim != NULL)
        return cddp_optim_step(t->optim, &args);
    if (status == CDDP_OK)
        status = cddp_ddp_wait(t->ddp);
    if (status == CDDP_OK && args.max_norm > 0)
        status = cddp_ddp_clip_grad_norm(t->ddp, args.max_norm, 2, 0, NULL);
    if (status == CDDP_OK && !gpu_launch(g, WINE_adam, f64, n, a))
        return NAME(gpu_failed)(t, why, cap);
    return status;
}

/* A checkpoint in the middle of the epoch, if one is due, has what the GPU has then. */
static cddp_status NAME(gpu_save)(struct NAME(trainer) * t, char *why, size_t cap)
{
    const struct options *opt = t->job->opt;
    cddp_status status;

    if (opt->save_steps == 0 || t->state.done.steps % opt->save_steps != 0)
        return CDDP_OK;
    if (!gpu_wait(t->gpu))
        return NAME(gpu_failed)(t, why, cap);
    status = NAME(gpu_fetch)(t, &t->state.loss);
    return status == CDDP_OK ? state_save(t->job, &t->state, false) : status;
}

/* From where the sampler stands, as on the CPU. */
static cddp_status NAME(gpu_epoch)(struct NAME(trainer) * t, char *why, size_t cap)
{
    const int64_t *rows = cddp_sampler_indices(t->sampler), *first = rows;
    size_t rest = cddp_sampler_count(t->sampler), batch = (size_t)t->job->opt->batch_size;
    struct NAME(wine_args) *a = &t->args;
    cddp_status status = cddp_copy(t->job->comm, t->gpu_row, rows, rest * sizeof *a->row);

    if (status == CDDP_OK)
        status = cddp_copy(t->job->comm, a->epoch_loss, &t->state.loss, sizeof t->state.loss);
    while (rest > 0 && status == CDDP_OK && !t->state.leaving) {
        size_t n = cddp_sampler_next(t->sampler, batch, &rows);

        a->row = t->gpu_row + (rows - first);
        status = NAME(gpu_step)(t, (int)n, why, cap);
        rest -= n;
        if (status == CDDP_OK && rest > 0)
            status = NAME(gpu_save)(t, why, cap);
    }
    if (status == CDDP_OK && !gpu_wait(t->gpu))
        return NAME(gpu_failed)(t, why, cap);
    return status == CDDP_OK ? NAME(gpu_fetch)(t, &t->state.loss) : status;
}
