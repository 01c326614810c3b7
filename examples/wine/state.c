/* SPDX-License-Identifier: Apache-2.0 */
#include "state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TYPE_BYTES 8 /* "float32" */

static void type_name(const struct options *opt, char name[TYPE_BYTES])
{
    memcpy(name, opt->f64 ? "float64" : "float32", TYPE_BYTES);
}

cddp_status state_watch(const struct options *opt, cddp_comm *comm)
{
    int stop;

    return opt->save != NULL ? cddp_should_stop(comm, &stop) : CDDP_OK;
}

/* May it stop here? With --uneven the ranks meet at the end of an epoch only, and after the last one nothing is left.
 */
static bool may_leave(const struct options *opt, const struct progress *done, bool epoch_is_done)
{
    return opt->save != NULL && done->epochs < opt->epochs && (epoch_is_done || opt->uneven == 0);
}

static bool is_due(const struct options *opt, const struct progress *done, bool epoch_is_done)
{
    if (opt->save == NULL)
        return false;
    if (opt->save_steps > 0 && done->steps % opt->save_steps == 0)
        return true;
    return epoch_is_done && (done->epochs % opt->save_every == 0 || done->epochs == opt->epochs);
}

/* What a checkpoint holds beside the type. Adam's averages are the optimizer's, or wine's own. */
#define N_ITEMS 7

static cddp_checkpoint_item memory(const char *name, void *data, size_t bytes)
{
    return (cddp_checkpoint_item){.size = sizeof(cddp_checkpoint_item), .name = name, .data = data, .bytes = bytes};
}

static cddp_checkpoint_item object(const char *name, void *object, cddp_item_kind kind)
{
    return (cddp_checkpoint_item){.size = sizeof(cddp_checkpoint_item), .name = name, .data = object, .kind = kind};
}

static size_t list_items(struct state *s, cddp_checkpoint_item items[N_ITEMS])
{
    size_t n = 0;

    items[n++] = memory("progress", &s->done, sizeof s->done);
    items[n] = memory("loss", &s->loss, sizeof s->loss);
    items[n++].flags = CDDP_ITEM_PER_RANK;
    items[n++] = memory("weights", s->weights, s->bytes);
    items[n++] = object("sampler", s->sampler, CDDP_ITEM_SAMPLER);
    items[n++] = object("reducer", s->ddp, CDDP_ITEM_DDP);
    if (s->optim != NULL) {
        items[n++] = object("adam", s->optim, CDDP_ITEM_OPTIM);
    } else {
        items[n++] = memory("adam.m", s->m, s->bytes);
        items[n++] = memory("adam.v", s->v, s->bytes);
    }
    return n;
}

cddp_status state_save(const struct job *job, struct state *s, bool epoch_is_done)
{
    const struct options *opt = job->opt;
    const cddp_checkpoint_options how = {.size = sizeof how, .background = opt->save_background};
    char type[TYPE_BYTES];
    cddp_checkpoint_item items[1 + N_ITEMS] = {memory("dtype", type, TYPE_BYTES)};
    cddp_status status = CDDP_OK;
    int stop = 0;

    if (may_leave(opt, &s->done, epoch_is_done))
        status = cddp_should_stop(job->comm, &stop);
    s->leaving = stop != 0;
    if (status != CDDP_OK || (!s->leaving && !is_due(opt, &s->done, epoch_is_done)))
        return status;
    type_name(opt, type);
    return cddp_checkpoint_save(job->comm, opt->save, (uint64_t)s->done.steps, items, 1 + list_items(s, items + 1),
                                &how);
}

/* One line for each thing that a user has to know about the checkpoint; from rank 0. */
static void tell(const struct job *job, const struct progress *done, const cddp_checkpoint_info *info)
{
    if (cddp_rank(job->comm) != 0)
        return;
    if (info->n_damaged > 0)
        (void)fprintf(stderr, "wine: %s (%zu damaged, passed over)\n", info->damaged, info->n_damaged);
    (void)printf("wine: resumed from %s after epoch %" PRId64 ", step %" PRId64 "\n", job->opt->resume, done->epochs,
                 done->steps);
    if (done->epochs >= job->opt->epochs)
        (void)printf("wine: that is all of the %ld epochs; nothing is left to train\n", job->opt->epochs);
}

/* The type first, by itself: an item of another size would only say that. */
static cddp_status load(const struct job *job, struct state *s, char *why, size_t cap)
{
    const char *dir = job->opt->resume;
    char type[TYPE_BYTES] = "", mine[TYPE_BYTES];
    const cddp_checkpoint_item head = memory("dtype", type, TYPE_BYTES);
    cddp_checkpoint_item items[N_ITEMS];
    cddp_checkpoint_info info = {.size = sizeof info};
    cddp_status status = cddp_checkpoint_load(job->comm, dir, &head, 1, &info);

    if (status != CDDP_OK)
        return status;
    type_name(job->opt, mine);
    if (memcmp(type, mine, sizeof type) != 0) {
        (void)snprintf(why, cap, "the checkpoint in %.150s is of %.7s and this run of %s; use --dtype %s", dir, type,
                       mine, job->opt->f64 ? "f32" : "f64");
        return CDDP_E_MISMATCH;
    }
    status = cddp_checkpoint_load(job->comm, dir, items, list_items(s, items), &info);
    if (status == CDDP_OK)
        tell(job, &s->done, &info);
    else if (strstr(cddp_last_error(), "holds no item 'adam") != NULL)
        (void)snprintf(why, cap, "the checkpoint in %.150s was saved %s --zero: resume it in the same way", dir,
                       job->opt->zero ? "without" : "with");
    return status;
}

/*
 * A run that was stopped may have recorded epochs after its last checkpoint; they are trained again, so their lines go.
 * Files that are none (a pipe, a terminal) keep what they got.
 */
static bool cut_metrics(FILE *f, int64_t epochs)
{
    struct stat sb;
    char *line = NULL;
    size_t cap = 0;
    int64_t epoch;
    off_t end = 0;
    bool ok;

    if (fstat(fileno(f), &sb) == 0 && !S_ISREG(sb.st_mode))
        return true;
    while (getline(&line, &cap, f) > 0 && sscanf(line, "{\"epoch\":%" SCNd64 ",", &epoch) == 1 && epoch < epochs &&
           strchr(line, '\n') != NULL)
        end = ftello(f);
    free(line);
    ok = end >= 0 && ftruncate(fileno(f), end) == 0;
    return fseeko(f, end, SEEK_SET) == 0 && ok;
}

/* The first save would be refused: it does not replace what another run has saved. Better to learn of it now. */
static cddp_status check_unused(const struct job *job, char *why, size_t cap)
{
    const struct options *opt = job->opt;
    char type[TYPE_BYTES];
    const cddp_checkpoint_item head = memory("dtype", type, TYPE_BYTES);
    cddp_checkpoint_info info = {.size = sizeof info};
    cddp_status status;

    if (opt->save == NULL || (opt->resume != NULL && strcmp(opt->save, opt->resume) == 0))
        return CDDP_OK;
    status = cddp_checkpoint_load(job->comm, opt->save, &head, 1, &info);
    if (status == CDDP_E_NOT_FOUND)
        return CDDP_OK;
    if (status != CDDP_OK)
        return status;
    (void)snprintf(why, cap,
                   "--save %.150s holds a checkpoint of step %" PRIu64
                   ": add --resume %.150s, save into another directory, or remove it",
                   opt->save, info.step, opt->save);
    return CDDP_E_EXISTS;
}

cddp_status state_resume(const struct job *job, struct state *s, char *why, size_t cap)
{
    cddp_status status = check_unused(job, why, cap);

    if (status != CDDP_OK || job->opt->resume == NULL)
        return status;
    status = load(job, s, why, cap);
    if (status == CDDP_E_NOT_FOUND) {
        if (cddp_rank(job->comm) == 0)
            (void)printf("wine: no checkpoint in %s: training from the start\n", job->opt->resume);
        status = CDDP_OK;
    }
    if (status == CDDP_OK && job->metrics != NULL && !cut_metrics(job->metrics, s->done.epochs)) {
        (void)snprintf(why, cap, "cannot shorten %.150s to the %" PRId64 " epochs that were done", job->opt->metrics,
                       s->done.epochs);
        cddp_abort(job->comm, why);
        return CDDP_E_SYSTEM;
    }
    return status;
}
