/* SPDX-License-Identifier: Apache-2.0 */
#include "state.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

cddp_status state_watch(const struct options *opt, cddp_comm *comm)
{
    int stop;

    return opt->save != NULL ? cddp_should_stop(comm, &stop) : CDDP_OK;
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
                                .bytes = (uint32_t)job->engine->number,
                                .batch = (uint64_t)job->opt->batch,
                                .seed = (uint64_t)job->opt->seed,
                                .text = job->data.digest};
}

static cddp_checkpoint_item memory(const char *name, void *data, size_t bytes)
{
    return (cddp_checkpoint_item){.size = sizeof(cddp_checkpoint_item), .name = name, .data = data, .bytes = bytes};
}

#define MORE_ITEMS 6 /* besides the weights */

/*
 * Each weight has its name in the file. A divided model is one item, and each rank writes its part: with the same names
 * within, so that --divided goes on where --fsdp stopped, and the reverse. The caller frees the array. NULL: out of
 * memory.
 */
static cddp_checkpoint_item *list_items(struct job *job, size_t *n)
{
    const struct engine *e = job->engine;
    cddp_checkpoint_item *items = calloc(job->model.n_params + MORE_ITEMS, sizeof *items);
    struct optimizer *o = &job->optimizer;

    *n = 0;
    if (items == NULL)
        return NULL;
    if (job->fsdp.f != NULL) {
        items[*n] = memory("", job->fsdp.f, 0);
        items[(*n)++].kind = CDDP_ITEM_FSDP;
    }
    for (size_t i = 0; i < job->model.n_params && job->fsdp.f == NULL; i++) {
        const struct gpt_param *p = &job->model.params[i];

        items[(*n)++] = memory(p->name, e->w[i], p->count * e->number);
    }
    items[(*n)++] = memory("step", &job->step, sizeof job->step);
    if (o->divided != NULL) {
        items[*n] = memory("adamw", o->divided, 0);
        items[(*n)++].kind = CDDP_ITEM_OPTIM;
    }
    for (size_t i = 0; i < sizeof e->state / sizeof e->state[0] && e->state[i].name != NULL; i++)
        items[(*n)++] = memory(e->state[i].name, e->state[i].at, e->state[i].bytes);
    return items;
}

static bool is_due(const struct job *job)
{
    const struct options *opt = job->opt;

    return job->leaving || job->step == opt->steps || (opt->save_every > 0 && job->step % opt->save_every == 0);
}

/* To agree the host waits for the GPU. So there ranks agree only after steps that it waits for anyway, by the loss. */
static bool may_rest(const struct job *job)
{
    const struct options *opt = job->opt;

    return job->engine->is_gpu && job->step % opt->log_every != 0 && !is_due(job);
}

cddp_status state_save(struct job *job)
{
    struct kind_of_run kind = kind_of(job);
    cddp_checkpoint_item *items;
    cddp_status status;
    int stop = 0;
    size_t n;

    if (job->opt->save == NULL)
        return CDDP_OK;
    if (may_rest(job))
        return CDDP_OK;
    status = cddp_should_stop(job->comm, &stop);
    job->leaving = stop != 0 && job->step < job->opt->steps;
    if (status != CDDP_OK || !is_due(job))
        return status;
    status = job->engine->ops->wait(job->engine);
    if (status != CDDP_OK)
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
    cddp_checkpoint_info info = {.size = sizeof info}; /* load() reports it */
    const cddp_status status = cddp_checkpoint_load(job->comm, job->opt->resume, &item, 1, &info);

    if (status != CDDP_OK || memcmp(&kind, &mine, sizeof kind) == 0)
        return status;
    return job_fail(job,
                    "the checkpoint in %.200s is of another run: the sizes of the model, --untied, --divided, --batch, "
                    "--seed, --dtype and the text must be the same (--fsdp counts as --divided)",
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
    if (job->step >= job->opt->steps)
        (void)printf("gpt: that is all of the %ld steps; nothing is left to train\n", job->opt->steps);
    return CDDP_OK;
}

/* The first save would be refused: it does not replace what another run has saved. Better to learn of it now. */
static cddp_status check_unused(struct job *job)
{
    const char *save = job->opt->save, *resume = job->opt->resume;
    int64_t step;
    const cddp_checkpoint_item item = memory("step", &step, sizeof step);
    cddp_status status = CDDP_E_NOT_FOUND;

    if (save != NULL && (resume == NULL || strcmp(save, resume) != 0))
        status = cddp_checkpoint_load(job->comm, save, &item, 1, NULL);
    if (status == CDDP_E_NOT_FOUND)
        return CDDP_OK;
    if (status != CDDP_OK)
        return status;
    return job_fail(job, "%.150s has a checkpoint of step %" PRId64 ": add --resume %.150s, or save elsewhere", save,
                    step, save);
}

/* Tries what the first save does, which would otherwise report a bad path after hours of training. Rank 0 writes. */
static cddp_status check_can_save(struct job *job)
{
    const char *dir = job->opt->save;
    char path[PATH_MAX];
    int fd;

    if (dir == NULL || cddp_rank(job->comm) != 0)
        return CDDP_OK;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return job_fail(job, "cannot make %.200s to save there: %s", dir, strerror(errno));
    if (snprintf(path, sizeof path, "%s/.gpt-XXXXXX", dir) >= (int)sizeof path)
        return job_fail(job, "the path of --save is too long");
    fd = mkstemp(path);
    if (fd < 0)
        return job_fail(job, "cannot save in %.200s: %s", dir, strerror(errno));
    (void)close(fd);
    (void)unlink(path);
    return CDDP_OK;
}

cddp_status state_resume(struct job *job)
{
    cddp_status status = check_can_save(job);

    if (status == CDDP_OK)
        status = check_unused(job);
    if (status != CDDP_OK || job->opt->resume == NULL)
        return status;
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
