/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lines and columns are those of nccl-tests at commit a0b82b2: writeDeviceReport(), writeResultHeader(),
 * writeBenchmarkLinePreamble(), writeBenchmarkLineBody() and writeResultFooter() in its src/util.cu; the members of the
 * JSON file, too.
 */
#include "table.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define JSON_VERSION 3        /* of nccl-tests' file */
#define MOST_NOTES (64 << 10) /* bytes */
#define TIME_FORMAT "%Y-%m-%d %H:%M:%S"

static void time_text(char *text, size_t cap)
{
    time_t now = time(NULL);
    struct tm local;

    if (localtime_r(&now, &local) == NULL || strftime(text, cap, TIME_FORMAT, &local) == 0)
        text[0] = '\0';
}

/* ----------------------------------------------------------------------------------------------- JSON file ---- */

static void set(json_t *object, const char *key, json_t *value)
{
    (void)json_object_set_new(object, key, value);
}

static void set_time(json_t *object, const char *key)
{
    char text[64];

    time_text(text, sizeof text);
    set(object, key, json_string(text));
}

/* nccl-tests writes these words as strings. */
static json_t *word(bool yes)
{
    return json_string(yes ? "true" : "false");
}

static json_t *config_of(const struct bench_options *o)
{
    json_t *c = json_pack("{s:i, s:i, s:I, s:I}", "nthreads", 1, "ngpus", 1, "minimum_bytes", (json_int_t)o->min_bytes,
                          "maximum_bytes", (json_int_t)o->max_bytes);

    if (o->factor > 0 && o->factor - floor(o->factor) > 0)
        set(c, "step_factor", json_real(o->factor));
    else if (o->factor > 0) /* nccl-tests has no others */
        set(c, "step_factor", json_integer((json_int_t)o->factor));
    else
        set(c, "step_bytes", json_integer((json_int_t)o->step_bytes));
    set(c, "warmup_iters", json_integer(o->warmup));
    set(c, "iterations", json_integer(o->iters));
    set(c, "aggregated_iterations", json_integer(o->together));
    set(c, "validation", json_integer(o->checks));
    set(c, "graph", json_integer(0));
    set(c, "blocking_collectives", word(o->blocking != BENCH_BEGUN));
    set(c, "devices", json_array());
    return c;
}

static json_t *figure_json(const struct bench_options *o, const struct bench_figure *f)
{
    return json_pack("{s:f, s:f, s:f, s:o, s:f, s:i}", o->host_time ? "cpu_time" : "time", f->seconds * 1e6, "alg_bw",
                     f->algorithm, "bus_bw", f->bus, "nwrong",
                     f->wrong < 0 ? json_null() : json_integer((json_int_t)f->wrong), "slowest_time", f->slowest * 1e6,
                     "slowest_rank", f->slowest_rank);
}

bool bench_table_open(struct bench_table *t, const struct bench_options *o, int argc, char **argv)
{
    json_t *args;
    int fd;

    *t = (struct bench_table){.notes_to = NULL};
    t->notes_to = open_memstream(&t->notes, &t->notes_size);
    if (t->notes_to == NULL) {
        (void)fputs("cddp-bench: out of memory\n", stderr);
        return false;
    }
    if (o->json == NULL)
        return true;
    fd = open(o->json, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) {
        (void)fprintf(stderr, "cddp-bench: cannot write %s: %s\n", o->json, strerror(errno));
        return false;
    }
    (void)close(fd);
    args = json_array();
    for (int i = 0; i < argc; i++)
        (void)json_array_append_new(args, json_string(argv[i]));
    t->rows = json_array();
    t->file = json_pack("{s:i, s:s}", "version", JSON_VERSION, "cddp_version", CDDP_VERSION);
    set(t->file, "args", args);
    set(t->file, "config", config_of(o));
    set(t->file, "results", t->rows);
    set_time(t->file, "start_time");
    return true;
}

bool bench_table_begin(const struct bench_table *t, const struct bench_options *o)
{
    int fd;

    if (t->file == NULL)
        return true;
    fd = open(o->json, O_WRONLY | O_TRUNC | O_CLOEXEC);
    if (fd < 0) {
        (void)fprintf(stderr, "cddp-bench: cannot write %s: %s\n", o->json, strerror(errno));
        return false;
    }
    (void)close(fd);
    return true;
}

/* Has stdout taken all lines? stdout buffers lines, so errno is that of the last one. */
static bool table_is_written(void)
{
    if (fflush(stdout) == 0 && ferror(stdout) == 0)
        return true;
    (void)fprintf(stderr, "cddp-bench: cannot write the table: %s\n",
                  errno != 0 ? strerror(errno) : "stdout takes no more");
    return false;
}

bool bench_table_close(struct bench_table *t, const struct bench_options *o)
{
    bool ok = true;

    if (t->file != NULL) {
        set_time(t->file, "end_time");
        ok = json_dump_file(t->file, o->json, JSON_INDENT(1)) == 0;
        if (!ok)
            (void)fprintf(stderr, "cddp-bench: cannot write %s\n", o->json);
    }
    json_decref(t->file);
    if (t->notes_to != NULL)
        (void)fclose(t->notes_to);
    free(t->notes);
    return table_is_written() && ok;
}

void bench_table_drop_json(struct bench_table *t)
{
    json_decref(t->file);
    t->file = t->rows = NULL;
}

/* ---------------------------------------------------------------------------------------------------- table ---- */

void bench_table_device(struct bench_table *t, const struct bench_device *d)
{
    const char *pci = d->pci[0] != '\0' ? d->pci : "-";
    int device = d->device < 0 ? 0 : d->device; /* programs that read it expect a number from 0 on */

    printf("#  Rank %2d Group %2d Pid %6d on %10s device %2d [%s] %s\n", d->rank, d->group, d->pid, d->host, device,
           pci, d->name);
    if (t->file != NULL)
        (void)json_array_append_new(json_object_get(json_object_get(t->file, "config"), "devices"),
                                    json_pack("{s:i, s:i, s:i, s:s, s:i, s:s, s:s}", "rank", d->rank, "group", d->group,
                                              "pid", d->pid, "hostname", d->host, "device", device, "device_hex", pci,
                                              "device_info", d->name));
}

void bench_table_head(struct bench_table *t, const struct bench_options *o, const char *kind)
{
    const char *time = o->host_time ? "cputime" : "time", *stamp = o->timestamps ? "timestamp" : "";
    const char *format = o->timestamps ? TIME_FORMAT : "";
    int pad = o->timestamps ? 19 : 0;

    t->bus_sum = 0;
    t->n_bus = 0;
    t->n_wrong = 0;
    printf("# Collective test starting: %s_perf\n#\n", kind);
    printf("# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          \n", "", "", "",
           "", "");
    printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s %*s\n", "size", "count", "type",
           "redop", "root", time, "algbw", "busbw", "#wrong", time, "algbw", "busbw", "#wrong", pad, stamp);
    printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s %*s\n", "(B)", "(elements)", "", "", "",
           "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", pad, format);
}

/* A number in so many columns, with as many decimals as fit there. */
static void column(double x, int width)
{
    char text[32];

    for (int digits = 2; digits >= 0; digits--)
        if (snprintf(text, sizeof text, "%.*f", digits, x) <= width)
            break;
    printf("  %*s", width, text);
}

static void columns(const struct bench_figure *f)
{
    column(f->seconds * 1e6, 7);
    column(f->algorithm, 6);
    column(f->bus, 6);
    if (f->wrong < 0)
        printf("  %6s", "N/A");
    else
        printf("  %6g", f->wrong);
}

/* Where some ranks end earlier than others, the ranks of the group are not alike. */
static void note_slowest(struct bench_table *t, const struct bench_options *o, const char *op, size_t bytes,
                         const struct bench_figure *f)
{
    if (f->seconds > 0 && f->slowest > 2 * f->seconds && o->average != BENCH_MIN)
        bench_table_note(t, "%zu bytes, %s: rank %d needed %.1f times as long as the table says", bytes, op,
                         f->slowest_rank, f->slowest / f->seconds);
}

static void count_in(struct bench_table *t, const struct bench_figure *f)
{
    t->n_wrong += f->wrong > 0 ? (uint64_t)f->wrong : 0;
    t->bus_sum += f->bus;
    t->n_bus++;
}

void bench_table_row(struct bench_table *t, const struct bench_options *o, const struct bench_kind *kind,
                     const struct bench_case *c, size_t bytes, const struct bench_figure *apart,
                     const struct bench_figure *in_place)
{
    static const struct bench_figure none = {.wrong = -1}; /* numbers, as in every line of nccl-tests */
    const char *op = c->op != NULL ? c->op->name : "none";
    char root[16], stamp[64];
    json_t *row;

    count_in(t, apart);
    if (in_place != NULL)
        count_in(t, in_place);
    t->n_rows++;
    (void)snprintf(root, sizeof root, "%6d", kind->rooted ? c->root : -1);
    printf("%12zu  %12zu  %8s  %6s  %6s", bytes, c->count, c->type->name, op, root);
    columns(apart);
    columns(in_place != NULL ? in_place : &none);
    if (o->timestamps) {
        time_text(stamp, sizeof stamp);
        printf("%21s", stamp);
    }
    errno = 0;
    printf("\n");
    if (!table_is_written())
        exit(1);
    note_slowest(t, o, kind->name, bytes, apart);
    if (t->rows == NULL)
        return;
    row = json_pack("{s:s, s:I, s:I, s:s, s:s, s:s, s:o}", "test", kind->name, "size", (json_int_t)bytes, "count",
                    (json_int_t)c->count, "type", c->type->name, "redop", op, "root", root, "out_of_place",
                    figure_json(o, apart));
    set(row, "in_place", in_place != NULL ? figure_json(o, in_place) : json_null());
    set(row, "actual_iterations", json_integer(o->iters));
    set(row, "experiment_name", json_string(""));
    (void)json_array_append_new(t->rows, row);
}

void bench_table_note(struct bench_table *t, const char *format, ...)
{
    va_list args;

    if (ftello(t->notes_to) > MOST_NOTES) { /* -N 0 has no foot, where they are printed */
        t->n_left_out++;
        return;
    }
    (void)fputs("# ", t->notes_to);
    va_start(args, format);
    (void)vfprintf(t->notes_to, format, args);
    va_end(args);
    (void)fputc('\n', t->notes_to);
}

/* A tenth less than the least that is wanted still passes, as in nccl-tests. NULL: nothing is wanted. */
static json_t *enough(struct bench_table *t, const struct bench_options *o, double mean, const char **mark)
{
    bool passes = mean >= 0.9 * o->least_bandwidth;

    *mark = "";
    if (o->least_bandwidth < 0 || t->n_bus == 0)
        return json_string("unchecked");
    *mark = passes ? "OK" : "FAILED";
    t->too_slow = t->too_slow || !passes;
    return word(passes);
}

void bench_table_foot(struct bench_table *t, const struct bench_options *o, const char *kind, uint64_t wrong)
{
    double mean = t->n_bus > 0 ? t->bus_sum / t->n_bus : 0;
    const char *mark;
    json_t *okay = enough(t, o, mean, &mark);

    printf("# %-20s : %llu %s\n", "Out of bounds values", (unsigned long long)wrong, wrong != 0 ? "FAILED" : "OK");
    printf("# %-20s : %g %s\n#\n", "Avg bus bandwidth", mean, mark);
    printf("# Collective test concluded: %s_perf\n", kind);
    (void)fflush(t->notes_to);
    if (t->notes_size > 0)
        (void)fwrite(t->notes, 1, t->notes_size, stdout);
    (void)fseeko(t->notes_to, 0, SEEK_SET);
    if (t->n_left_out > 0)
        printf("# and %zu more like these\n", t->n_left_out);
    t->n_left_out = 0;
    printf("#\n");
    (void)fflush(stdout);
    if (t->file == NULL) {
        json_decref(okay);
        return;
    }
    /* Of a run of several tests the last one's, or the first one with wrong values. */
    if (json_object_get(t->file, "out_of_bounds") == NULL ||
        json_integer_value(json_object_get(json_object_get(t->file, "out_of_bounds"), "count")) == 0)
        set(t->file, "out_of_bounds", json_pack("{s:I, s:o}", "count", (json_int_t)wrong, "okay", word(wrong == 0)));
    set(t->file, "average_bus_bandwidth", json_pack("{s:f, s:o}", "bandwidth", mean, "okay", okay));
}
