/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cddp-bench: what nccl-tests is to NCCL, for every backend of libcddp, under any launcher. Uses the public interface
 * and nothing else, so that it also shows how a program does.
 */
#include "options.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct bench {
    struct bench_options opt;
    cddp_comm *world, *comm; /* comm: this rank's group, or the world */
    bool prints;             /* rank 0 of the world */
    json_t *rows;
    uint64_t n_wrong;
    double bus_sum;
    int n_bus;
};

/* What the table shows of one way to run, in place or not. */
struct figure {
    double seconds, algorithm, bus;
    double wrong; /* below 0: not checked */
    double slowest;
    int slowest_rank;
};

static _Noreturn void fail(const struct bench *b, const char *doing)
{
    (void)fflush(stdout);
    (void)fprintf(stderr, "cddp-bench: rank %d: %s: %s\n", cddp_rank(b->world), doing, cddp_last_error());
    exit(1);
}

static void need(const struct bench *b, cddp_status status, const char *doing)
{
    if (status != CDDP_OK)
        fail(b, doing);
}

static double now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ------------------------------------------------------------------------------------------------- one case ---- */

static void *allocate(const struct bench *b, size_t bytes)
{
    void *p;

    need(b, cddp_alloc(b->comm, bytes > 0 ? bytes : 1, 0, &p), "no memory for the buffers");
    return p;
}

/* Where in and out lie: apart, or one within the other. */
struct buffers {
    void *in_memory, *out_memory;
    size_t in_bytes, out_bytes;
};

static size_t block_offset(const struct bench_case *c)
{
    return c->count * (size_t)c->rank * cddp_dtype_size(c->type->dtype);
}

static void place(const struct bench_kind *kind, const struct buffers *m, bool in_place, struct bench_case *c)
{
    c->in = m->in_memory;
    c->out = m->out_memory;
    if (!in_place)
        return;
    if (kind->place == BENCH_SAME)
        c->in = c->out;
    else if (kind->place == BENCH_PART_OUT)
        c->in = (char *)c->out + block_offset(c);
    else
        c->out = (char *)c->in + block_offset(c);
}

static void run(const struct bench *b, const struct bench_kind *kind, const struct bench_case *c, int times)
{
    uint64_t ticket = 0;

    for (int i = 0; i < times; i++) {
        need(b, bench_start(kind, c, &ticket), kind->name);
        if (b->opt.blocking)
            need(b, cddp_coll_wait(c->comm, ticket), kind->name);
    }
    need(b, cddp_coll_wait(c->comm, ticket), kind->name);
}

/* One operation on known values; how many elements are wrong on all ranks together. */
static double check(const struct bench *b, const struct bench_kind *kind, const struct buffers *m, struct bench_case *c)
{
    void *host = malloc((m->in_bytes > m->out_bytes ? m->in_bytes : m->out_bytes) + 1);
    double wrong = 0;

    if (host == NULL) {
        (void)fprintf(stderr, "cddp-bench: no memory to check %zu bytes in\n", m->out_bytes);
        exit(1);
    }
    if (bench_takes_part(kind, c)) {
        memset(host, 0x5a, m->out_bytes);
        need(b, cddp_copy(c->comm, m->out_memory, host, m->out_bytes), "copying");
        kind->fill(c, host);
        need(b, cddp_copy(c->comm, c->in, host, m->in_bytes), "copying");
        run(b, kind, c, 1);
        need(b,
             cddp_copy(c->comm, host, c->out,
                       kind->blocks_out ? m->out_bytes : c->count * cddp_dtype_size(c->type->dtype)),
             "copying");
        wrong = (double)kind->wrong(c, host);
    }
    free(host);
    need(b, cddp_all_reduce(c->comm, &wrong, &wrong, 1, CDDP_FLOAT64, CDDP_SUM), "counting what is wrong");
    return wrong;
}

/* Of the times of the ranks that took part; the rest say less than 0. */
static void combine(const struct bench *b, const struct bench_case *c, double mine, struct figure *f)
{
    double *all = malloc((size_t)c->n * sizeof *all), sum = 0, least = 0, most = 0;
    int n = 0;

    if (all == NULL)
        exit(1);
    need(b, cddp_all_gather(c->comm, &mine, all, 1, CDDP_FLOAT64), "gathering the times");
    for (int r = 0; r < c->n; r++) {
        if (all[r] < 0)
            continue;
        sum += all[r];
        least = n == 0 || all[r] < least ? all[r] : least;
        if (n++ == 0 || all[r] > most) {
            most = all[r];
            f->slowest_rank = r;
        }
    }
    f->slowest = most;
    f->seconds = b->opt.average == BENCH_RANK_0 ? all[0] : b->opt.average == BENCH_MIN ? least : most;
    if (b->opt.average == BENCH_AVERAGE)
        f->seconds = sum / n;
    free(all);
}

static struct figure measure(const struct bench *b, const struct bench_kind *kind, const struct buffers *m,
                             struct bench_case *c, bool in_place)
{
    struct figure f = {.wrong = b->opt.checks > 0 ? 0 : -1};
    double began, mine = -1;
    size_t size = cddp_dtype_size(c->type->dtype);

    place(kind, m, in_place, c);
    if (bench_takes_part(kind, c))
        run(b, kind, c, b->opt.warmup);
    need(b, cddp_barrier(c->comm), "a barrier");
    began = now();
    if (bench_takes_part(kind, c)) {
        run(b, kind, c, b->opt.iters);
        mine = (now() - began) / b->opt.iters;
        if (strcmp(kind->name, "latency") == 0)
            mine /= 2;
    }
    combine(b, c, mine, &f);
    for (int i = 0; i < b->opt.checks; i++) {
        c->round++;
        f.wrong += check(b, kind, m, c);
    }
    f.algorithm = f.seconds > 0 ? kind->algorithm(c->n) * (double)(c->count * size) / f.seconds / 1e9 : 0;
    f.bus = f.algorithm * kind->bus(c->n);
    return f;
}

/* ------------------------------------------------------------------------------------------------ the table ---- */

static void head(const struct bench *b, const char *name)
{
    if (!b->prints)
        return;
    printf("# Test: %s\n#\n", name);
    printf("# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place\n", "", "", "", "", "");
    printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s\n", "size", "count", "type", "redop",
           "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong");
    printf("# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s\n", "(B)", "(elements)", "", "", "",
           "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "");
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

static void columns(const struct figure *f)
{
    column(f->seconds * 1e6, 7);
    column(f->algorithm, 6);
    column(f->bus, 6);
    if (f->wrong < 0)
        printf("  %6s", "N/A");
    else
        printf("  %6g", f->wrong);
}

static json_t *as_json(const struct figure *f)
{
    return json_pack("{s:f, s:f, s:f, s:o, s:f, s:i}", "time_us", f->seconds * 1e6, "algbw", f->algorithm, "busbw",
                     f->bus, "wrong", f->wrong < 0 ? json_null() : json_integer((json_int_t)f->wrong), "slowest_us",
                     f->slowest * 1e6, "slowest_rank", f->slowest_rank);
}

/* Collectives end together; where they do not, the ranks of the group are not alike. */
static void name_slow(const struct bench *b, const struct figure *f)
{
    if (f->seconds > 0 && f->slowest > 2 * f->seconds && b->opt.average != BENCH_MIN)
        printf("# rank %d needed %.1f times as long as the others\n", f->slowest_rank, f->slowest / f->seconds);
}

static void row(struct bench *b, const struct bench_kind *kind, const struct bench_case *c, size_t bytes,
                const struct figure *apart, const struct figure *in_place)
{
    const char *op = c->op != NULL ? c->op->name : "none";
    int root = kind->rooted ? c->root : -1;
    json_t *json;

    for (int i = 0; i < 2; i++) {
        const struct figure *f = i == 0 ? apart : in_place;

        if (f == NULL)
            continue;
        b->n_wrong += f->wrong > 0 ? (uint64_t)f->wrong : 0;
        b->bus_sum += f->bus;
        b->n_bus++;
    }
    if (!b->prints)
        return;
    printf("%12zu  %12zu  %8s  %6s  %6d", bytes, c->count, c->type->name, op, root);
    columns(apart);
    if (in_place != NULL)
        columns(in_place);
    else
        printf("  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A");
    printf("\n");
    name_slow(b, apart);
    (void)fflush(stdout);
    if (b->rows == NULL)
        return;
    json = json_pack("{s:s, s:I, s:I, s:s, s:s, s:i, s:o}", "test", kind->name, "size", (json_int_t)bytes, "count",
                     (json_int_t)c->count, "type", c->type->name, "redop", op, "root", root, "out_of_place",
                     as_json(apart));
    (void)json_object_set_new(json, "in_place", in_place != NULL ? as_json(in_place) : json_null());
    (void)json_array_append_new(b->rows, json);
}

/* ---------------------------------------------------------------------------------------------------- loops ---- */

/* The count of a size, as nccl-tests makes it: blocks are whole multiples of 16 bytes. */
static size_t count_of(const struct bench_kind *kind, size_t bytes, size_t size, int n)
{
    size_t count = bytes / size;

    if (!kind->blocks_in && !kind->blocks_out)
        return count;
    return count / (size_t)n & ~(16 / size - 1);
}

static void one_size(struct bench *b, const struct bench_kind *kind, struct bench_case *c, size_t bytes)
{
    size_t size = cddp_dtype_size(c->type->dtype), n = (size_t)c->n;
    struct figure apart, in_place;
    struct buffers m;
    bool inside = kind->place != BENCH_APART;

    c->count = count_of(kind, bytes, size, c->n);
    m.in_bytes = c->count * size * (kind->blocks_in ? n : 1);
    m.out_bytes = c->count * size * (kind->blocks_out ? n : 1);
    m.in_memory = allocate(b, m.in_bytes);
    m.out_memory = allocate(b, m.out_bytes);
    apart = measure(b, kind, &m, c, false);
    if (inside)
        in_place = measure(b, kind, &m, c, true);
    row(b, kind, c, m.in_bytes > m.out_bytes ? m.in_bytes : m.out_bytes, &apart, inside ? &in_place : NULL);
    cddp_free(b->comm, m.in_memory);
    cddp_free(b->comm, m.out_memory);
}

static bool goes_together(const struct bench_op *op, const struct bench_type *type)
{
    return type->exponent_bits != 0 ? op->of_floats : op->of_ints;
}

/* What a backend cannot reduce is refused on every rank alike. */
static bool is_refused(const struct bench *b, const struct bench_case *c)
{
    uint64_t in = 0, sum = 0;
    cddp_status st = cddp_all_reduce(c->comm, &in, &sum, 1, c->type->dtype, c->op->op);

    if (st != CDDP_E_UNSUPPORTED)
        need(b, st, "trying the operation");
    else if (b->prints)
        printf("# %s of %s is not to be had with \"%s\": not run\n", c->op->name, c->type->name,
               cddp_backend_name(c->comm));
    return st == CDDP_E_UNSUPPORTED;
}

static void one_kind(struct bench *b, const struct bench_kind *kind)
{
    const struct bench_options *o = &b->opt;
    struct bench_case c = {.comm = b->comm, .rank = cddp_rank(b->comm), .n = cddp_world_size(b->comm)};

    head(b, kind->name);
    if (kind->power_of_two && (c.n & (c.n - 1)) != 0) {
        if (b->prints)
            printf("# %d ranks are not a power of two: not run\n", c.n);
        return;
    }
    if (kind->pairs && c.n < 2) {
        if (b->prints)
            printf("# one rank has nobody to write to: not run\n");
        return;
    }
    for (int t = o->type < 0 ? 0 : o->type; t < (o->type < 0 ? bench_n_types : o->type + 1); t++)
        for (int op = o->op < 0 ? 0 : o->op; op < (o->op < 0 ? bench_n_ops : o->op + 1); op++)
            for (int root = o->root < 0 ? 0 : o->root; root < (o->root < 0 ? c.n : o->root + 1); root++) {
                c.type = &bench_types[t];
                c.op = kind->reduces ? &bench_ops[op] : NULL;
                c.root = root;
                if ((kind->reduces && !goes_together(c.op, c.type)) || (!kind->reduces && o->op < 0 && op > 0) ||
                    (!kind->rooted && o->root < 0 && root > 0))
                    continue;
                if (kind->reduces && (o->type < 0 || o->op < 0) && is_refused(b, &c))
                    continue;
                for (size_t bytes = o->min_bytes; bytes <= o->max_bytes; bytes = bench_next_size(o, bytes))
                    one_size(b, kind, &c, bytes);
            }
}

/* ----------------------------------------------------------------------------------------- before and after ---- */

/* The ranks that take part, as nccl-tests prints them. */
static void name_ranks(const struct bench *b)
{
    struct {
        int32_t group, pid, device, unused;
        char host[64], name[96], pci[32];
    } mine = {.group = bench_color(&b->opt, cddp_rank(b->world)), .pid = (int32_t)getpid()}, *all;
    cddp_device_info device = {.size = sizeof device};
    int n = cddp_world_size(b->world);

    (void)gethostname(mine.host, sizeof mine.host - 1);
    need(b, cddp_get_device_info(b->comm, &device), "asking for the device");
    mine.device = device.device;
    (void)snprintf(mine.name, sizeof mine.name, "%s", device.name);
    (void)snprintf(mine.pci, sizeof mine.pci, "%s", device.pci);
    all = calloc((size_t)n, sizeof *all);
    if (all == NULL)
        exit(1);
    need(b, cddp_all_gather(b->world, &mine, all, sizeof mine, CDDP_UINT8), "gathering names");
    if (b->prints) {
        printf("# cddp-bench version %s libcddp=%s backend=%s\n", CDDP_VERSION, cddp_version(),
               cddp_backend_name(b->comm));
        printf(
            "# nThread 1 nGpus 1 minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: %d iters: %d validation: %d\n",
            b->opt.min_bytes, b->opt.max_bytes, b->opt.factor > 0 ? (size_t)b->opt.factor : b->opt.step_bytes,
            b->opt.factor > 0 ? "factor" : "bytes", b->opt.warmup, b->opt.iters, b->opt.checks);
        printf("#\n# Using devices\n");
        for (int r = 0; r < n; r++)
            printf("#  Rank %2d Group %2d Pid %6d on %10s device %2d [%s] %s\n", r, all[r].group, all[r].pid,
                   all[r].host, all[r].device, all[r].pci[0] != '\0' ? all[r].pci : "-", all[r].name);
        printf("#\n");
    }
    free(all);
}

static bool write_json(const struct bench *b)
{
    json_t *all = json_pack("{s:s, s:s, s:i, s:O}", "version", CDDP_VERSION, "backend", cddp_backend_name(b->comm),
                            "ranks", cddp_world_size(b->comm), "results", b->rows);
    bool ok = all != NULL && json_dump_file(all, b->opt.json, JSON_INDENT(1)) == 0;

    json_decref(all);
    if (!ok)
        (void)fprintf(stderr, "cddp-bench: cannot write %s\n", b->opt.json);
    return ok;
}

static int finish(struct bench *b)
{
    /* Of each group once: its ranks have counted them together. */
    int64_t wrong = cddp_rank(b->comm) == 0 ? (int64_t)b->n_wrong : 0;
    bool ok = true;

    if (b->comm != b->world) {
        need(b, cddp_finalize(b->comm), "leaving the group");
        b->comm = b->world;
    }
    need(b, cddp_all_reduce(b->world, &wrong, &wrong, 1, CDDP_INT64, CDDP_SUM), "counting what is wrong");
    if (b->prints) {
        printf("# %-20s : %lld %s\n", "Out of bounds values", (long long)wrong, wrong != 0 ? "FAILED" : "OK");
        printf("# %-20s : %g\n#\n", "Avg bus bandwidth", b->n_bus > 0 ? b->bus_sum / b->n_bus : 0);
        ok = b->rows == NULL || write_json(b);
        ok = fflush(stdout) == 0 && ok;
        json_decref(b->rows);
    }
    need(b, cddp_finalize(b->world), "leaving");
    return ok && wrong == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct bench b = {.prints = false};
    char why[256];

    switch (bench_options_parse(&b.opt, argc, argv, why, sizeof why)) {
    case BENCH_HELP:
        bench_help(stdout);
        return 0;
    case BENCH_VERSION:
        printf("cddp-bench %s\n", CDDP_VERSION);
        return 0;
    case BENCH_BAD:
        (void)fprintf(stderr, "cddp-bench: %s\n", why); /* every rank: the first to end ends the others */
        return 2;
    case BENCH_RUN:
        break;
    }
    if (cddp_init(&b.world, NULL) != CDDP_OK) {
        (void)fprintf(stderr, "cddp-bench: %s\n", cddp_last_error());
        return 1;
    }
    b.prints = cddp_rank(b.world) == 0;
    b.comm = b.world;
    if (b.opt.split != 0)
        need(&b, cddp_comm_split(&b.comm, b.world, bench_color(&b.opt, cddp_rank(b.world)), 0, NULL), "making groups");
    if (b.opt.root >= cddp_world_size(b.comm)) {
        if (b.prints)
            (void)fprintf(stderr, "cddp-bench: -r %d: there are %d ranks\n", b.opt.root, cddp_world_size(b.comm));
        need(&b, cddp_barrier(b.world), "a barrier"); /* all ranks stay until rank 0 has printed it */
        if (b.comm != b.world)
            (void)cddp_finalize(b.comm);
        (void)cddp_finalize(b.world);
        return 2;
    }
    if (b.prints && b.opt.json != NULL && (b.rows = json_array()) == NULL)
        return 1;
    name_ranks(&b);
    for (int i = 0; i < bench_n_kinds; i++)
        if (b.opt.kind == NULL || b.opt.kind == &bench_kinds[i])
            one_kind(&b, &bench_kinds[i]);
    return finish(&b);
}
