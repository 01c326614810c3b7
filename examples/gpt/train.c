/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training loop. These calls make it parallel: cddp_ddp_create in set_up, grad_ready in the last backward pass of a
 * step, and cddp_ddp_wait or cddp_optim_step in optimizer.c.
 */
#include "train.h"

#include "sample.h"
#include "state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SETTLED 3 /* steps before a capture: by then the order of the buckets is final */

cddp_status job_fail(struct job *job, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(job->why, sizeof job->why, format, args);
    va_end(args);
    return CDDP_E_STATE;
}

/* -------------------------------------------------------------------------------------------------- one step ---- */

/* Windows of one pass: all of this rank's share, or as many as --micro says. */
static size_t pass_size(const struct job *job)
{
    const size_t most = job->opt->micro > 0 ? (size_t)job->opt->micro : 8;

    return job->data.share < most ? job->data.share : most;
}

static void grad_ready(void *ddp, size_t i)
{
    (void)cddp_ddp_grad_ready(ddp, i); /* its error is that of the wait at the end of the step */
}

/*
 * Forward and backward passes over this rank's share of the step. Their gradients add up to those of the mean loss of
 * the share; libcddp makes the mean over the ranks. Only the last pass reports gradients, so only it communicates; with
 * apart, none does. On a GPU all of this is enqueued, and nothing waits.
 */
static cddp_status passes(struct job *job, bool apart)
{
    const struct data *d = &job->data;
    struct engine *e = job->engine;
    cddp_status status = CDDP_OK;

    for (size_t first = 0, n; first < d->share && status == CDDP_OK; first += n) {
        struct gpt_ready ready = {NULL, NULL};

        n = pass_size(job);
        n = d->share - first < n ? d->share - first : n;
        if (first + n == d->share && !apart)
            ready = job->ddp != NULL ? (struct gpt_ready){grad_ready, job->ddp} : fsdp_ready(&job->fsdp);
        status = e->ops->pass(e, first, n, 1 / (double)(d->share * d->context), ready);
    }
    return status;
}

/*
 * A step as a CUDA graph: all of its passes, reductions and the optimizer are captured once. What differs from step to
 * step (tokens, learning rate, the step's number) is in the GPU's memory before each launch.
 */
static cddp_status launch_step(struct job *job)
{
    struct engine *e = job->engine;
    cddp_status status = CDDP_OK;

    if (!job->has_graph) {
        status = e->ops->graph(e, GRAPH_BEGIN);
        if (status != CDDP_OK)
            return status;
        status = passes(job, false);
        if (status == CDDP_OK)
            status = optimizer_step(&job->optimizer, job->step, false, NULL);
        if (status == CDDP_OK)
            status = e->ops->graph(e, GRAPH_END);
        else
            (void)e->ops->graph(e, GRAPH_GIVE_UP);
        job->has_graph = status == CDDP_OK;
    }
    if (status == CDDP_OK)
        status = e->ops->graph(e, GRAPH_LAUNCH);
    return status == CDDP_OK ? cddp_ddp_replay_status(job->ddp) : status; /* a launch makes no call of libcddp */
}

/* norm NULL: nobody needs it. */
static cddp_status whole_step(struct job *job, bool apart, double lr, uint8_t *tokens, uint8_t *targets, double *norm)
{
    const struct data *d = &job->data;
    cddp_status status = data_take(&job->data, job->step, 0, d->share, tokens, targets);

    if (status == CDDP_OK)
        status = optimizer_begin(&job->optimizer, job->step);
    if (status == CDDP_OK)
        status = job->engine->ops->begin(job->engine, tokens, targets, d->share, lr, job->step);
    if (status != CDDP_OK)
        return status;
    if (job->opt->graph && norm == NULL && job->taken >= SETTLED)
        return launch_step(job);
    job->taken++;
    status = passes(job, apart);
    return status == CDDP_OK ? optimizer_step(&job->optimizer, job->step, apart, norm) : status;
}

/*
 * The mean loss of the held-out part, of which each rank takes every n-th window. All ranks make as many passes: with
 * --fsdp they need each other in each. One that has no window left takes one that does not count.
 */
static cddp_status evaluate(struct job *job, uint8_t *tokens, uint8_t *targets)
{
    const struct data *d = &job->data;
    const size_t ranks = (size_t)cddp_world_size(job->comm), most = pass_size(job);
    cddp_metric loss = {0};
    cddp_status status = CDDP_OK;

    progress_pause(&job->progress);
    for (size_t first = 0; first < d->held_out && status == CDDP_OK; first += most * ranks) {
        size_t n = 0;
        double sum = 0;

        for (size_t w = first + (size_t)cddp_rank(job->comm); n < most && w < d->held_out; w += ranks, n++)
            data_held_out(d, w, tokens + n * d->context, targets + n * d->context);
        if (n == 0)
            data_held_out(d, first, tokens, targets);
        status = job->engine->ops->evaluate(job->engine, tokens, targets, n > 0 ? n : 1, &sum);
        loss.sum += n > 0 ? sum : 0;
        loss.weight += (double)(n * d->context);
    }
    if (status == CDDP_OK)
        status = cddp_metric_reduce(job->comm, &loss, &loss, 1, NULL);
    if (status == CDDP_OK)
        progress_held_out(&job->progress, job->step, cddp_metric_mean(&loss));
    progress_go_on(&job->progress);
    return status;
}

static bool every(int64_t step, long n)
{
    return n > 0 && step % n == 0;
}

/* The mean loss of the step that has just ended, over all ranks. */
static cddp_status report_step(struct job *job, struct step_report *report)
{
    cddp_metric loss = {.weight = (double)(job->data.share * job->data.context)};
    cddp_status status = job->engine->ops->loss(job->engine, &loss.sum);

    if (status == CDDP_OK)
        status = cddp_metric_reduce(job->comm, &loss, &loss, 1, NULL);
    if (status != CDDP_OK)
        return status;
    report->step = job->step;
    report->loss = cddp_metric_mean(&loss);
    progress_step(&job->progress, report, job->ddp);
    return CDDP_OK;
}

static cddp_status one_step(struct job *job, uint8_t *tokens, uint8_t *targets)
{
    const struct options *opt = job->opt;
    const bool told = every(job->step + 1, opt->log_every) || job->step + 1 == opt->steps;
    struct step_report report = {.lr = optimizer_lr(opt, job->step), .tokens = (size_t)opt->batch * job->data.context};
    const bool apart = every(job->step + 1, opt->apart_every);
    /* A GPU's host waits for the norm only where that is reported. Such a step is not captured. */
    cddp_status status =
        whole_step(job, apart, report.lr, tokens, targets, told || !job->engine->is_gpu ? &report.norm : NULL);

    if (status != CDDP_OK)
        return status;
    job->step++;
    if (told)
        status = report_step(job, &report);
    if (status != CDDP_OK)
        return status;
    if (every(job->step, opt->eval_every) || job->step == opt->steps)
        status = evaluate(job, tokens, targets);
    progress_pause(&job->progress);
    if (status == CDDP_OK)
        status = state_save(job);
    progress_go_on(&job->progress);
    return status;
}

/* ------------------------------------------------------------------------------------------------ the whole run ----
 */

/* The reducer gets the parameters in the order of the forward pass, and gives each a place for its gradient. */
static cddp_status create_reducer(struct job *job)
{
    const struct gpt *m = &job->model;
    struct engine *e = job->engine;
    const cddp_ddp_options options = {.size = sizeof options,
                                      .bucket_bytes = (size_t)job->opt->bucket_kib << 10,
                                      .first_bucket_bytes = (size_t)job->opt->bucket_kib << 10,
                                      .stream = e->stream};
    cddp_param *params = calloc(m->n_params, sizeof *params);
    cddp_status status;

    if (params == NULL)
        return job_fail(job, "out of memory");
    for (size_t i = 0; i < m->n_params; i++)
        params[i] = (cddp_param){.size = sizeof *params,
                                 .name = m->params[i].name,
                                 .data = e->w[i],
                                 .count = m->params[i].count,
                                 .dtype = e->dtype,
                                 .shape = m->params[i].shape,
                                 .n_dims = m->params[i].n_dims};
    status = cddp_ddp_create(&job->ddp, job->comm, params, m->n_params, &options);
    free(params);
    for (size_t i = 0; i < m->n_params && status == CDDP_OK; i++)
        e->g[i] = cddp_ddp_grad(job->ddp, i);
    return status;
}

/* On a GPU the model on the host has no more than the weights. */
static cddp_status create_engine(struct job *job)
{
    const struct options *opt = job->opt;
    const bool gpu = strcmp(cddp_backend_name(job->comm), "nccl") == 0;
    cddp_status status;

    if (opt->bf16 && !gpu)
        return job_fail(job, "--dtype bf16 needs a GPU: the CPU computes in float32");
    if (opt->graph && !gpu)
        return job_fail(job, "--graph needs a GPU: there are no graphs on the CPU");
    if (opt->apart_every > 0 && gpu)
        return job_fail(job, "--apart-every is for the CPU; give --device cpu");
    if (!gpt_create(&job->model, &opt->config, kernels_pick(opt->kernels), gpu ? 0 : pass_size(job), opt->fsdp == 0))
        return job_fail(job, "out of memory: --micro with a smaller number takes less");
    if (opt->fsdp == 0)
        gpt_init(&job->model, (uint64_t)opt->seed);
    status = gpu ? engine_gpu_create(&job->engine, job->comm, &job->model, opt, pass_size(job), job->data.share,
                                     job->why, sizeof job->why)
                 : engine_cpu_create(&job->engine, &job->model, opt, job->why, sizeof job->why);
    return status == CDDP_E_NOMEM && job->why[0] == '\0' ? job_fail(job, "out of memory") : status;
}

/*
 * Ranks with other data, or another schedule, would train on without an error, and their weights would drift apart: a
 * command that was typed on each node, or a text that is not the same file on all of them.
 */
static cddp_status check_same(struct job *job)
{
    const struct options *o = job->opt;
    const struct {
        const char *name;
        double x;
    } all[] = {{"the text", (double)(job->data.digest >> 32)},
               {"the text", (double)(job->data.digest & UINT32_MAX)},
               {"--steps", (double)o->steps},
               {"--batch", (double)o->batch},
               {"--seed", (double)o->seed},
               {"--context", o->config.context},
               {"--lr", o->lr},
               {"--min-lr", o->min_lr},
               {"--warmup", (double)o->warmup},
               {"--weight-decay", o->weight_decay},
               {"--beta2", o->beta2},
               {"--clip", o->clip},
               {"--dtype", o->bf16},
               {"--fsdp", (double)o->fsdp},
               {"--hsdp", o->hsdp},
               {"--divided", o->divided},
               {"--micro", o->fsdp > 0 ? (double)o->micro : 0}, /* every pass gathers the model */
               {"--sample", o->fsdp > 0 ? (double)o->sample : 0},
               {"--prompt", o->fsdp > 0 ? (double)strlen(o->prompt) : 0},
               {"--weights-out", o->fsdp > 0 && o->weights_out != NULL},
               {"--graph", o->graph},
               {"--apart-every", (double)o->apart_every},
               {"--log-every", (double)o->log_every},
               {"--eval-every", (double)o->eval_every},
               {"--save-every", (double)o->save_every},
               {"--save", o->save != NULL},
               {"--resume", o->resume != NULL}};
    enum { N = sizeof all / sizeof all[0] };
    double most[2 * N]; /* of x, and of -x */
    cddp_status status;

    for (size_t i = 0; i < N; i++) {
        most[i] = all[i].x;
        most[N + i] = -all[i].x;
    }
    status = cddp_all_reduce(job->comm, most, most, 2 * (size_t)N, CDDP_FLOAT64, CDDP_MAX);
    for (size_t i = 0; i < N && status == CDDP_OK; i++)
        if (most[i] + most[N + i] > 0)
            status = job_fail(job, "%s is not the same on all ranks", all[i].name);
    return status;
}

static cddp_status set_up(struct job *job)
{
    const struct options *opt = job->opt;
    const int ranks = cddp_world_size(job->comm);
    cddp_status status;

    if (opt->batch % ranks != 0)
        return job_fail(job, "--batch %ld cannot be divided evenly among %d ranks", opt->batch, ranks);
    if (opt->weights_out != NULL && cddp_rank(job->comm) == 0) {
        job->weights = fopen(opt->weights_out, "ae"); /* what an earlier run wrote stays until then */
        if (job->weights == NULL)
            return job_fail(job, "cannot write %.200s: %s", opt->weights_out, strerror(errno));
    }
    if (!data_open(&job->data, job->comm, opt->text, opt->config.context, (size_t)opt->batch, opt->seed, job->why,
                   sizeof job->why))
        return CDDP_E_STATE;
    status = check_same(job);
    if (status != CDDP_OK)
        return status;
    status = create_engine(job);
    if (status != CDDP_OK)
        return status;
    if (cddp_rank(job->comm) == 0)
        (void)printf("gpt: %d rank%s, %zu weights, %s, %zu bytes of text, an epoch is %zu steps\n", ranks,
                     ranks == 1 ? "" : "s", job->model.n_weights, job->engine->name, job->data.n,
                     job->data.epoch_steps);
    if (opt->fsdp > 0) {
        status =
            fsdp_create(&job->fsdp, job->comm, job->engine, (job->data.share + pass_size(job) - 1) / pass_size(job));
        if (status == CDDP_E_NOMEM)
            return status; /* the message has the bytes */
    } else {
        status = create_reducer(job);
    }
    if (status == CDDP_OK)
        status = optimizer_create(&job->optimizer, opt, job->engine, job->ddp, job->fsdp.f);
    if (status == CDDP_E_NOMEM)
        return job_fail(job, "out of memory");
    return status == CDDP_OK ? state_resume(job) : status;
}

static cddp_status write_weights(struct job *job)
{
    const char *path = job->opt->weights_out;
    const struct gpt *m = &job->model;
    const bool divided = job->fsdp.f != NULL;
    cddp_status status;
    bool ok = true, written = true;

    if (path == NULL || (job->weights == NULL && !divided))
        return CDDP_OK;
    if (job->weights != NULL)
        ok = ftruncate(fileno(job->weights), 0) == 0 || errno == EINVAL; /* a pipe */
    status = divided ? fsdp_write(&job->fsdp, job->weights, &written) : job->engine->ops->fetch(job->engine);
    if (status != CDDP_OK || job->weights == NULL)
        return status;
    if (!divided)
        written = fwrite(m->params[0].w, sizeof(real), m->n_weights, job->weights) == m->n_weights;
    ok = fclose(job->weights) == 0 && written && ok;
    job->weights = NULL;
    return ok ? CDDP_OK : job_fail(job, "cannot write %.200s: %s", path, strerror(errno));
}

static cddp_status run(struct job *job)
{
    const size_t bytes = job->data.share * job->data.context; /* a pass takes no more */
    uint8_t *tokens = malloc(2 * bytes);
    cddp_status status = CDDP_OK;

    if (tokens == NULL)
        return job_fail(job, "out of memory");
    progress_begin(&job->progress, job->step, job->opt->steps);
    while (status == CDDP_OK && !job->leaving && job->step < job->opt->steps)
        status = one_step(job, tokens, tokens + bytes);
    free(tokens);
    progress_end_line(&job->progress);
    if (status != CDDP_OK || (cddp_rank(job->comm) != 0 && job->fsdp.f == NULL))
        return status;
    if (job->leaving) {
        if (cddp_rank(job->comm) == 0)
            (void)printf("gpt: asked to stop; saved in %s after step %" PRId64 "\n", job->opt->save, job->step);
        return CDDP_OK;
    }
    if (job->opt->sample > 0)
        status = sample(job->engine, job->opt, cddp_rank(job->comm) == 0 ? stdout : NULL);
    return status == CDDP_OK ? write_weights(job) : status;
}

cddp_status train(struct job *job)
{
    cddp_status status = set_up(job);

    if (status == CDDP_OK)
        status = run(job);
    if (job->has_graph) /* before what it refers to */
        (void)job->engine->ops->graph(job->engine, GRAPH_DROP);
    if (job->weights != NULL)
        (void)fclose(job->weights);
    optimizer_release(&job->optimizer);
    cddp_ddp_destroy(job->ddp);
    fsdp_release(&job->fsdp);
    if (job->engine != NULL)
        job->engine->ops->release(job->engine);
    gpt_release(&job->model);
    data_release(&job->data);
    return status;
}
