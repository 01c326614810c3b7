/* SPDX-License-Identifier: Apache-2.0 */
#include "state.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t asked; /* by a signal to stop */

static void on_signal(int signal)
{
    (void)signal;
    asked = 1;
}

void state_watch_signals(const struct options *opt)
{
    if (opt->save == NULL)
        return;
    (void)signal(SIGTERM, on_signal);
    (void)signal(SIGINT, on_signal);
    (void)signal(SIGUSR1, on_signal);
}

void state_forget_signals(const struct options *opt)
{
    if (opt->save == NULL)
        return;
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGUSR1, SIG_DFL);
}

/* Two runs in which this is equal have the same data in a step of the same number. It is loaded first, by itself, for a
 * clear error message. */
struct kind_of_run {
    struct gpt_config config;
    uint32_t divided, bytes; /* of a number */
    uint64_t batch, seed, text;
};

static struct kind_of_run kind_of(const struct job *job)
{
    return (struct kind_of_run){.config = job->opt->config,
                                .divided = job->opt->divided,
                                .bytes = sizeof(real),
                                .batch = (uint64_t)job->opt->batch,
                                .seed = (uint64_t)job->opt->seed,
                                .text = job->data.digest};
}

static cddp_checkpoint_item memory(const char *name, void *data, size_t bytes)
{
    return (cddp_checkpoint_item){.size = sizeof(cddp_checkpoint_item), .name = name, .data = data, .bytes = bytes};
}

#define MORE_ITEMS 4 /* besides the weights */

/* Each weight has its name in the file. The caller frees the array. NULL: out of memory. */
static cddp_checkpoint_item *list_items(struct job *job, size_t *n)
{
    const size_t bytes = job->model.n_weights * sizeof(real);
    cddp_checkpoint_item *items = calloc(job->model.n_params + MORE_ITEMS, sizeof *items);
    struct optimizer *o = &job->optimizer;

    *n = 0;
    if (items == NULL)
        return NULL;
    for (size_t i = 0; i < job->model.n_params; i++) {
        const struct gpt_param *p = &job->model.params[i];

        items[(*n)++] = memory(p->name, p->w, p->count * sizeof(real));
    }
    items[(*n)++] = memory("step", &job->step, sizeof job->step);
    if (o->divided != NULL) {
        items[*n] = memory("adamw", o->divided, 0);
        items[(*n)++].kind = CDDP_ITEM_OPTIM;
    } else {
        items[(*n)++] = memory("adamw.m", o->m, bytes);
        items[(*n)++] = memory("adamw.v", o->v, bytes);
    }
    return items;
}

/* The order to stop reaches ranks at different steps, and all must leave after the same one. */
static cddp_status agree_to_leave(struct job *job)
{
    int32_t stop = asked != 0 || cddp_stop_requested(job->comm);
    cddp_status status = cddp_all_reduce(job->comm, &stop, &stop, 1, CDDP_INT32, CDDP_MAX);

    job->leaving = status == CDDP_OK && stop != 0 && job->step < job->opt->steps;
    return status;
}

static bool is_due(const struct job *job)
{
    const struct options *opt = job->opt;

    return job->leaving || job->step == opt->steps || (opt->save_every > 0 && job->step % opt->save_every == 0);
}

cddp_status state_save(struct job *job)
{
    struct kind_of_run kind = kind_of(job);
    cddp_checkpoint_item *items;
    cddp_status status;
    size_t n;

    if (job->opt->save == NULL)
        return CDDP_OK;
    status = agree_to_leave(job);
    if (status != CDDP_OK || !is_due(job))
        return status;
    items = list_items(job, &n);
    if (items == NULL)
        return job_fail(job, "out of memory");
    items[n++] = memory("run", &kind, sizeof kind);
    status = cddp_checkpoint_save(job->comm, job->opt->save, (uint64_t)job->step, items, n, NULL);
    free(items);
    return status;
}

static cddp_status check_kind(struct job *job)
{
    struct kind_of_run kind, mine = kind_of(job);
    const cddp_checkpoint_item item = memory("run", &kind, sizeof kind);
    const cddp_status status = cddp_checkpoint_load(job->comm, job->opt->resume, &item, 1, NULL);

    if (status != CDDP_OK || memcmp(&kind, &mine, sizeof kind) == 0)
        return status;
    return job_fail(job,
                    "the checkpoint in %.200s is of another run: the sizes of the model, --untied, --divided, --batch, "
                    "--seed and the text must be the same",
                    job->opt->resume);
}

static cddp_status load(struct job *job)
{
    cddp_checkpoint_info info = {.size = sizeof info};
    cddp_checkpoint_item *items;
    cddp_status status = check_kind(job);
    size_t n;

    if (status != CDDP_OK)
        return status;
    items = list_items(job, &n);
    if (items == NULL)
        return job_fail(job, "out of memory");
    status = cddp_checkpoint_load(job->comm, job->opt->resume, items, n, &info);
    free(items);
    if (status != CDDP_OK || cddp_rank(job->comm) != 0)
        return status;
    if (info.n_damaged > 0)
        (void)fprintf(stderr, "gpt: %s (%zu damaged, passed over)\n", info.damaged, info.n_damaged);
    (void)printf("gpt: resumed from %s after step %" PRId64 "\n", job->opt->resume, job->step);
    return CDDP_OK;
}

/* A save removes the checkpoints of later steps, so a run from the start would remove those of a run before it. */
static cddp_status check_unused(struct job *job)
{
    int64_t step;
    const cddp_checkpoint_item item = memory("step", &step, sizeof step);
    const cddp_status status =
        job->opt->save == NULL ? CDDP_E_NOT_FOUND : cddp_checkpoint_load(job->comm, job->opt->save, &item, 1, NULL);

    if (status == CDDP_E_NOT_FOUND)
        return CDDP_OK;
    if (status != CDDP_OK)
        return status;
    return job_fail(job, "%.150s has a checkpoint of step %" PRId64 ": add --resume %.150s, or save elsewhere",
                    job->opt->save, step, job->opt->save);
}

cddp_status state_resume(struct job *job)
{
    cddp_status status;

    if (job->opt->resume == NULL)
        return check_unused(job);
    status = load(job);
    if (status == CDDP_E_NOT_FOUND) {
        if (cddp_rank(job->comm) == 0)
            (void)printf("gpt: no checkpoint in %s: training from the start\n", job->opt->resume);
        status = CDDP_OK;
    }
    if (status == CDDP_OK && !progress_cut(&job->progress, job->step)) {
        status =
            job_fail(job, "cannot shorten %.200s to step %" PRId64 ": %s", job->opt->log, job->step, strerror(errno));
    }
    return status;
}
