/* SPDX-License-Identifier: Apache-2.0 */
/* The file that --tune writes: which collectives it has, its text, and how it comes to its name. */
#include "tune.h"

#include <cddp/version.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* -------------------------------------------------------------------------------------------- uneven gather ---- */

/* Odd ranks bring half: parts of one size would be an all_gather. */
static size_t part_of(const struct bench_case *c, int rank)
{
    return rank % 2 == 0 ? c->count : c->count / 2;
}

static size_t gatherv(const struct bench_case *c, cddp_coll_args *a)
{
    for (int r = 0; r < c->n; r++)
        c->counts[r] = part_of(c, r);
    *a = (cddp_coll_args){.size = sizeof *a,
                          .coll = CDDP_COLL_ALL_GATHERV,
                          .dtype = c->type->dtype,
                          .in = c->in,
                          .out = c->out,
                          .out_counts = c->counts};
    return 1;
}

static void fill_part(const struct bench_case *c, void *in)
{
    bench_fill(in, c->count, c->type, c->rank, 0, c->round);
}

static size_t wrong_parts(const struct bench_case *c, const void *out)
{
    const char *part = out;
    size_t wrong = 0;

    for (int r = 0; r < c->n; r++) {
        wrong += bench_wrong(part, part_of(c, r), c->type, r, 0, c->round);
        part += part_of(c, r) * cddp_dtype_size(c->type->dtype);
    }
    return wrong;
}

static double once(int n)
{
    (void)n;
    return 1;
}

static const struct bench_kind all_gatherv = {.name = "all_gatherv",
                                              .about = "uneven parts of all ranks, on all ranks",
                                              .blocks_out = true,
                                              .place = BENCH_APART,
                                              .ops = gatherv,
                                              .fill = fill_part,
                                              .wrong = wrong_parts,
                                              .algorithm = once,
                                              .bus = once};

static const struct bench_kind *kind_of(const char *name)
{
    for (int i = 0; i < bench_n_kinds; i++)
        if (strcmp(bench_kinds[i].name, name) == 0)
            return &bench_kinds[i];
    return &all_gatherv;
}

void bench_tune_kinds(struct bench_tune_kind *kinds)
{
    static const struct {
        const char *table, *bench;
        struct bench_tune_limits limits;
        bool open_ended; /* the chain moves the least bytes of a reduction, and direct exchanges those of the others */
    } all[BENCH_TUNE_KINDS] = {
        {"all_reduce", "all_reduce", {.reduces = true, .has_direct = true, .direct_any = true}, false},
        {"reduce", "reduce", {.reduces = true, .has_direct = true}, false},
        {"reduce_scatter", "reduce_scatter", {.reduces = true, .has_direct = true}, false},
        {"broadcast", "broadcast", {.has_direct = false}, false},
        {"all_gather", "all_gather", {.has_direct = true, .direct_alone = true}, true},
        {"all_gatherv", "all_gatherv", {.has_direct = true, .direct_alone = true}, true},
        {"all_to_all", "alltoall", {.has_direct = true}, true},
    };

    for (int k = 0; k < BENCH_TUNE_KINDS; k++)
        kinds[k] = (struct bench_tune_kind){.name = all[k].table,
                                            .kind = kind_of(all[k].bench),
                                            .limits = all[k].limits,
                                            .open_ended = all[k].open_ended};
}

/* ----------------------------------------------------------------------------------------------------- text ---- */

static void write_head(FILE *to, const struct bench_tune *t)
{
    time_t now = time(NULL);
    char when[32] = "", ranks[40];
    struct tm utc;

    if (gmtime_r(&now, &utc) != NULL)
        (void)strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    if (t->least_ranks == t->most_ranks)
        (void)snprintf(ranks, sizeof ranks, "%d", t->most_ranks);
    else
        (void)snprintf(ranks, sizeof ranks, "%d to %d", t->least_ranks, t->most_ranks);
    (void)fprintf(
        to,
        "# CDDP_COLL_TABLE, measured by cddp-bench %s --tune at %s\n"
        "# nodes: %d; ranks per node: %s; rounds: %d\n"
        "# Times are microseconds of the slowest rank, the median of all rounds; -: does not run at this size.\n"
        "# Each line holds for any number of nodes. Where a file has measurements of several numbers, write each\n"
        "# number in place of the 2, except for the lowest.\n"
        "# COLLECTIVE NODES SMALL_MAX_BYTES DIRECT_MAX_BYTES\n",
        CDDP_VERSION, when, t->nodes, ranks, t->rounds);
}

static void write_series(FILE *to, struct bench_tune_series *s, int rounds)
{
    struct bench_tune_size sizes[BENCH_TUNE_SIZES];
    struct bench_thresholds best;

    (void)fprintf(to, "#\n# %-14s %12s %12s %12s %12s\n", s->of.name, "bytes", "rounds", "shards", "chain");
    for (size_t i = 0; i < s->n; i++) {
        sizes[i].bytes = s->sizes[i];
        (void)fprintf(to, "# %-14s %12llu", "", (unsigned long long)s->sizes[i]);
        for (int way = 0; way < BENCH_WAYS; way++) {
            sizes[i].seconds[way] = bench_tune_median(s->seconds[i][way], (size_t)rounds);
            if (sizes[i].seconds[way] > 0)
                (void)fprintf(to, " %12.1f", 1e6 * sizes[i].seconds[way]);
            else
                (void)fprintf(to, " %12s", "-");
        }
        (void)fputc('\n', to);
    }
    if (s->n == 0) {
        (void)fprintf(to, "# %s: no size was measured; the built-in thresholds hold\n", s->of.name);
        return;
    }
    best = bench_tune_choose(sizes, s->n, s->of.open_ended);
    (void)fprintf(to, "%s 2 %llu %llu\n", s->of.name, (unsigned long long)best.small_max,
                  (unsigned long long)best.direct_max);
}

char *bench_tune_text(struct bench_tune *t)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);

    if (to == NULL)
        return NULL;
    write_head(to, t);
    for (int k = 0; k < BENCH_TUNE_KINDS; k++)
        write_series(to, &t->series[k], t->rounds);
    if (fclose(to) == 0)
        return text;
    free(text);
    return NULL;
}

/* ----------------------------------------------------------------------------------------------------- file ---- */

static bool cannot(const char *path, const char *why)
{
    (void)fprintf(stderr, "cddp-bench: --tune: cannot write %s: %s\n", path, why);
    return false;
}

/* Makes the temporary file beside it. Returns its descriptor, below 0 after an error message. *name: to be freed. */
static int make_temporary(const char *path, char **name)
{
    int fd = -1;

    if (asprintf(name, "%s.%d.tmp", path, (int)getpid()) < 0) {
        *name = NULL;
        (void)cannot(path, "out of memory");
        return -1;
    }
    fd = open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        (void)cannot(path, strerror(errno));
    return fd;
}

bool bench_tune_can_write(const char *path)
{
    struct stat is;
    char *name;
    int fd;

    if (stat(path, &is) == 0 && !S_ISREG(is.st_mode)) /* a device would be replaced */
        return cannot(path, "it is not a regular file");
    fd = make_temporary(path, &name);
    if (fd >= 0) {
        (void)close(fd);
        (void)unlink(name);
    }
    free(name);
    return fd >= 0;
}

bool bench_tune_write(const char *path, const char *text)
{
    size_t len = strlen(text);
    const char *why = NULL;
    char *name;
    int fd = make_temporary(path, &name);

    if (fd >= 0) {
        FILE *to = fdopen(fd, "w");

        if (to == NULL)
            (void)close(fd);
        if (to == NULL || fwrite(text, 1, len, to) != len || fflush(to) != 0 || fsync(fd) != 0)
            why = strerror(errno);
        if (to != NULL && fclose(to) != 0 && why == NULL)
            why = strerror(errno);
        if (why == NULL && rename(name, path) != 0)
            why = strerror(errno);
        if (why != NULL) {
            (void)unlink(name);
            (void)cannot(path, why);
        }
    }
    free(name);
    return fd >= 0 && why == NULL;
}
