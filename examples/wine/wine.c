/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data-parallel training on real data, in C: a classifier of wines, equal to PyTorch's DistributedDataParallel number
 * by number. Run: cddprun --standalone --nproc_per_node=2 wine
 */
#include "state.h"
#include "train.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double seconds(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/* Opened for writing; with `keep`, what it holds stays for now. */
static FILE *open_out(const char *path, bool keep, bool *ok)
{
    FILE *f;
    int fd;

    if (path == NULL)
        return NULL;
    fd = open(path, (keep ? O_RDWR : O_WRONLY | O_TRUNC) | O_CREAT | O_CLOEXEC, 0666);
    f = fd < 0 ? NULL : fdopen(fd, keep ? "r+" : "w");
    if (f == NULL) {
        (void)fprintf(stderr, "wine: cannot write %s: %s\n", path, strerror(errno));
        if (fd >= 0)
            (void)close(fd);
        *ok = false;
    }
    return f;
}

static bool close_out(FILE *f, const char *path)
{
    bool failed;

    if (f == NULL)
        return true;
    failed = ferror(f) != 0;
    if (fclose(f) == 0 && !failed)
        return true;
    (void)fprintf(stderr, "wine: cannot write %s: %s\n", path, strerror(errno));
    return false;
}

/* Tries what the first save does, which would otherwise report a bad path after hours of training. Sets errno. */
static bool can_save(const char *dir)
{
    char path[PATH_MAX];
    int fd;

    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return false;
    if (snprintf(path, sizeof path, "%s/.save-XXXXXX", dir) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return false;
    }
    fd = mkstemp(path);
    if (fd < 0)
        return false;
    (void)close(fd);
    (void)unlink(path);
    return true;
}

static void show_result(const struct job *job, const struct result *r, double took)
{
    size_t n = job->data->test.n;

    (void)printf("train loss %.6f  test accuracy %.4f (%zu of %zu)  test loss %.6f  %ld steps  %.3f s\n", r->train_loss,
                 (double)r->n_right / (double)n, r->n_right, n, r->test_loss, r->steps, took);
}

static bool train(struct job *job)
{
    struct result result;
    char why[256] = "";
    double start = seconds();
    cddp_status status;

    if (cddp_rank(job->comm) == 0)
        (void)printf("wine: %d rank%s on %s, %s, %zu training rows, batch %ld per rank\n", cddp_world_size(job->comm),
                     cddp_world_size(job->comm) == 1 ? "" : "s", cddp_backend_name(job->comm),
                     job->opt->f64 ? "float64" : "float32", job->data->train.n, job->opt->batch_size);
    status = (job->opt->f64 ? train_f64 : train_f32)(job, &result, why, sizeof why);
    if (status != CDDP_OK) {
        (void)fprintf(stderr, "wine: rank %d: %s\n", cddp_rank(job->comm), why[0] != '\0' ? why : cddp_last_error());
        return false;
    }
    if (cddp_rank(job->comm) == 0 && result.left)
        (void)printf("wine: asked to stop; saved in %s after epoch %ld, step %ld\n", job->opt->save, result.epochs,
                     result.steps);
    else if (cddp_rank(job->comm) == 0)
        show_result(job, &result, seconds() - start);
    return true;
}

/* Rank 0 writes the files; if it cannot, its peers hear of it rather than wait. */
static bool run(const struct options *opt, const struct wine_data *data, cddp_comm *comm)
{
    struct job job = {.opt = opt, .data = data, .comm = comm};
    bool ok = true;

    if (cddp_rank(comm) == 0) {
        job.metrics = open_out(opt->metrics, opt->resume != NULL, &ok);
        job.weights_out = ok ? open_out(opt->weights_out, false, &ok) : NULL;
        if (ok && opt->save != NULL && !can_save(opt->save)) {
            (void)fprintf(stderr, "wine: cannot save in %s: %s\n", opt->save, strerror(errno));
            ok = false;
        }
    }
    if (!ok)
        cddp_abort(comm, "rank 0 cannot write its files");
    else
        ok = train(&job);
    if (!close_out(job.metrics, opt->metrics))
        ok = false;
    if (!close_out(job.weights_out, opt->weights_out))
        ok = false;
    return ok;
}

int main(int argc, char **argv)
{
    static struct wine_data data;
    struct options opt;
    char why[5000];
    cddp_comm *comm;
    bool ok;

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (!options_parse(&opt, argc, argv))
        return 2;
    if (opt.help) {
        options_help();
        return 0;
    }
    if (!wine_load(&data, opt.data, opt.init, why, sizeof why)) {
        (void)fprintf(stderr, "wine: %s\n", why);
        return 1;
    }
    if (cddp_init(&comm, NULL) != CDDP_OK) {
        (void)fprintf(stderr, "wine: %s\n", cddp_last_error());
        return 1;
    }
    ok = state_watch(&opt, comm) == CDDP_OK;
    if (!ok)
        (void)fprintf(stderr, "wine: %s\n", cddp_last_error());
    ok = ok && run(&opt, &data, comm);
    if (cddp_finalize(comm) != CDDP_OK && ok) {
        (void)fprintf(stderr, "wine: %s\n", cddp_last_error());
        ok = false;
    }
    return ok ? 0 : 1;
}
