/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cddp-bench: what nccl-tests is to NCCL, for every backend of libcddp, under any launcher. Of libcddp it uses the
 * public interface and nothing else, so that it also shows how a program does.
 */
#include "common/cpus.h"
#include "room.h"
#include "slow.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SLOW_BYTES ((size_t)1 << 20) /* of the messages that look for slow ranks */

/* What each rank tells the others of itself. */
struct rank_info {
    int32_t group, pid, device, unused;
    uint64_t host_room, device_bytes;
    char host[64], name[96], pci[32];
};

static _Noreturn void out_of_memory(void)
{
    (void)fputs("cddp-bench: out of memory\n", stderr);
    exit(1);
}

/* ---------------------------------------------------------------------------------------------------- loops ---- */

static void one_size(const struct bench *b, struct bench_table *t, const struct bench_kind *kind, struct bench_case *c,
                     size_t bytes)
{
    struct bench_figure apart, in_place;
    struct bench_buffers m;
    bool inside = kind->place != BENCH_APART;

    bench_buffers_get(b, kind, c, bytes, &m);
    apart = bench_measure(b, kind, &m, c, false);
    if (inside)
        in_place = bench_measure(b, kind, &m, c, true);
    if (b->prints)
        bench_table_row(t, &b->opt, kind, c, m.in_bytes > m.out_bytes ? m.in_bytes : m.out_bytes, &apart,
                        inside ? &in_place : NULL);
    else
        t->n_wrong +=
            (uint64_t)((apart.wrong > 0 ? apart.wrong : 0) + (inside && in_place.wrong > 0 ? in_place.wrong : 0));
    bench_buffers_free(b, &m);
}

/* Is there such a reduction of such a type, at all and with this backend? That is so on every rank alike. */
static bool exists(const struct bench *b, struct bench_table *t, const struct bench_case *c)
{
    const struct bench_options *o = &b->opt;
    uint64_t in = 0, sum = 0;
    cddp_status st;

    if (!(c->type->exponent_bits != 0 ? c->op->of_floats : c->op->of_ints)) {
        if (o->type >= 0 && o->op >= 0)
            bench_table_note(t, "%s is not defined for %s: not run", c->op->name, c->type->name);
        return false;
    }
    st = cddp_all_reduce(c->comm, &in, &sum, 1, c->type->dtype, c->op->op);
    if (st != CDDP_E_UNSUPPORTED)
        bench_need(b, st, "trying the operation");
    else
        bench_table_note(t, "backend \"%s\" has no %s of %s: not run", cddp_backend_name(c->comm), c->op->name,
                         c->type->name);
    return st != CDDP_E_UNSUPPORTED;
}

static void one_case(const struct bench *b, struct bench_table *t, const struct bench_kind *kind, struct bench_case *c)
{
    const struct bench_options *o = &b->opt;

    for (int cycle = 0; o->cycles == 0 || cycle < o->cycles; cycle = o->cycles == 0 ? 0 : cycle + 1)
        for (size_t bytes = o->min_bytes; bytes <= o->max_bytes; bytes = bench_next_size(o, bytes))
            one_size(b, t, kind, c, bytes);
}

static void all_cases(const struct bench *b, struct bench_table *t, const struct bench_kind *kind, struct bench_case *c)
{
    const struct bench_options *o = &b->opt;

    for (int type = o->type < 0 ? 0 : o->type; type < (o->type < 0 ? bench_n_types : o->type + 1); type++)
        for (int op = o->op < 0 ? 0 : o->op; op < (o->op < 0 ? bench_n_ops : o->op + 1); op++)
            for (int root = o->root < 0 ? 0 : o->root; root < (o->root < 0 ? c->n : o->root + 1); root++) {
                c->type = &bench_types[type];
                c->op = kind->reduces ? &bench_ops[op] : NULL;
                c->root = root;
                if ((!kind->reduces && o->op < 0 && op > 0) || (!kind->rooted && o->root < 0 && root > 0))
                    continue;
                if (!kind->reduces || exists(b, t, c))
                    one_case(b, t, kind, c);
            }
}

/* Returns how many wrong values there were in all groups. */
static uint64_t one_kind(const struct bench *b, struct bench_table *t, const struct bench_kind *kind)
{
    struct bench_case c = {.comm = b->comm,
                           .rank = cddp_rank(b->comm),
                           .n = cddp_world_size(b->comm),
                           .blocking = b->opt.blocking != BENCH_BEGUN,
                           .together = b->opt.together};
    int64_t wrong;

    c.counts = calloc(2 * (size_t)c.n, sizeof *c.counts);
    if (c.counts == NULL)
        out_of_memory();
    t->n_wrong = 0;
    if (b->prints)
        bench_table_head(t, &b->opt, kind->name);
    if (kind->power_of_two && (c.n & (c.n - 1)) != 0)
        bench_table_note(t, "%d ranks are not a power of two: not run", c.n);
    else if (kind->pairs && c.n < 2)
        bench_table_note(t, "one rank has nobody to write to: not run");
    else if (kind->start != NULL && c.together > 1)
        bench_table_note(t, "-m %d: this is several groups already, of which each needs the one before: not run",
                         c.together);
    else
        all_cases(b, t, kind, &c);
    free(c.counts);
    bench_find_slow(b, t, b->opt.max_bytes < SLOW_BYTES ? b->opt.max_bytes + 1 : SLOW_BYTES);
    /* Of each group once: its ranks have counted them together. */
    wrong = c.rank == 0 ? (int64_t)t->n_wrong : 0;
    bench_need(b, cddp_all_reduce(b->world, &wrong, &wrong, 1, CDDP_INT64, CDDP_SUM), "counting what is wrong");
    if (b->prints)
        bench_table_foot(t, &b->opt, kind->name, (uint64_t)wrong);
    return (uint64_t)wrong;
}

/* ----------------------------------------------------------------------------------------- before and after ---- */

static void print_ranks(const struct bench *b, struct bench_table *t, const struct rank_info *all)
{
    const struct bench_options *o = &b->opt;
    char step[40];

    if (o->factor > 0)
        (void)snprintf(step, sizeof step, "%g(factor)", o->factor);
    else
        (void)snprintf(step, sizeof step, "%zu(bytes)", o->step_bytes);
    printf("# cddp-bench version %s libcddp=%s backend=%s\n", CDDP_VERSION, cddp_version(), cddp_backend_name(b->comm));
    printf("# nThread 1 nGpus 1 minBytes %zu maxBytes %zu step: %s warmup iters: %d iters: %d agg iters: %d "
           "validation: %d graph: 0 unalign: %d\n",
           o->min_bytes, o->max_bytes, step, o->warmup, o->iters, o->together, o->checks, o->unalign);
    if (o->blocking != BENCH_BEGUN)
        printf("# Blocking Enabled: each operation is waited for%s\n", o->blocking == BENCH_WAIT ? ""
                                                                       : o->blocking == BENCH_WAIT_BARRIER
                                                                           ? ", with a barrier"
                                                                           : ", with a barrier that is not timed");
    printf("#\n# Using devices\n");
    for (int r = 0; r < cddp_world_size(b->world); r++)
        bench_table_device(t, &(struct bench_device){.rank = r,
                                                     .group = all[r].group,
                                                     .pid = all[r].pid,
                                                     .device = all[r].device,
                                                     .host = all[r].host,
                                                     .pci = all[r].pci,
                                                     .name = all[r].name});
    printf("#\n");
}

/* Takes sizes back that no rank has the memory for. All ranks know the same of all. */
static void fit_memory(struct bench *b, const struct rank_info *all)
{
    struct bench_options *o = &b->opt;
    int n = cddp_world_size(b->world);
    uint64_t most = UINT64_MAX;

    for (int r = 0; r < n; r++) {
        int beside = 0;
        uint64_t room;

        for (int other = 0; other < n; other++)
            beside += strcmp(all[r].host, all[other].host) == 0;
        room = bench_most_bytes(all[r].host_room, beside, all[r].device_bytes, o->checks) / (uint64_t)o->together;
        most = room < most ? room : most;
    }
    if (o->max_bytes <= most)
        return;
    o->max_bytes = (size_t)most;
    o->min_bytes = o->min_bytes < o->max_bytes ? o->min_bytes : o->max_bytes;
    if (b->prints)
        printf("# Reducing maxBytes to %zu due to memory limitation\n#\n", o->max_bytes);
}

static void meet(struct bench *b, struct bench_table *t)
{
    struct rank_info mine = {.group = bench_color(&b->opt, cddp_rank(b->world)), .pid = (int32_t)getpid()}, *all;
    cddp_device_info device = {.size = sizeof device};

    (void)gethostname(mine.host, sizeof mine.host - 1);
    bench_need(b, cddp_get_device_info(b->comm, &device), "asking for the device");
    mine.device = device.device;
    mine.device_bytes = device.memory_bytes;
    mine.host_room = (uint64_t)cdi_memory_available("", false);
    (void)snprintf(mine.name, sizeof mine.name, "%s", device.name);
    (void)snprintf(mine.pci, sizeof mine.pci, "%s", device.pci);
    all = calloc((size_t)cddp_world_size(b->world), sizeof *all);
    if (all == NULL)
        out_of_memory();
    bench_need(b, cddp_all_gather(b->world, &mine, all, sizeof mine, CDDP_UINT8), "gathering names");
    if (b->prints)
        print_ranks(b, t, all);
    fit_memory(b, all);
    free(all);
}

/*
 * The launcher shows the message of this file, or else the last error of libcddp: that may be one of an operation that
 * the backend does not have, which the table has named, and not why the run failed.
 */
static void tell_launcher(int status, uint64_t wrong)
{
    const char *path = getenv("TORCHELASTIC_ERROR_FILE");
    char now[24], text[128] = "cddp-bench: the lines of rank 0 say why";
    json_t *file;

    if (path == NULL)
        return;
    if (wrong > 0)
        (void)snprintf(text, sizeof text, "cddp-bench: %llu wrong elements; the table shows where",
                       (unsigned long long)wrong);
    (void)snprintf(now, sizeof now, "%lld", (long long)time(NULL));
    file = json_pack("{s:{s:s, s:{s:s, s:i}}}", "message", "message", text, "extraInfo", "timestamp", now, "exitStatus",
                     status);
    if (file != NULL)
        (void)json_dump_file(file, path, 0); /* the status says as much */
    json_decref(file);
}

/* All ranks end together where rank 0 has something to say: the first to end ends the others. */
static int leave(struct bench *b, int status, uint64_t wrong)
{
    int32_t most = status;

    bench_need(b, cddp_all_reduce(b->world, &most, &most, 1, CDDP_INT32, CDDP_MAX), "leaving");
    if (most != 0)
        tell_launcher(most, wrong);
    if (b->comm != b->world)
        bench_need(b, cddp_finalize(b->comm), "leaving the group");
    bench_need(b, cddp_finalize(b->world), "leaving");
    return most;
}

static int measure_all(struct bench *b, struct bench_table *t, uint64_t *wrong)
{
    int status = 0;

    if (!bench_table_begin(t, &b->opt))
        exit(1);
    meet(b, t);
    for (int i = 0; i < bench_n_kinds; i++)
        if (b->opt.kind == NULL || b->opt.kind == &bench_kinds[i])
            *wrong += one_kind(b, t, &bench_kinds[i]);
    if (b->prints && t->n_rows == 0) {
        (void)fputs("cddp-bench: nothing was measured; the table says why\n", stderr);
        status = 2;
    }
    if (t->too_slow)
        (void)fprintf(stderr,
                      "cddp-bench: the mean bus bandwidth is more than a tenth below NCCL_TESTS_MIN_BW, %g GB/s\n",
                      b->opt.least_bandwidth);
    return *wrong != 0 || t->too_slow ? 1 : status;
}

/* Without a launcher; and under one only once. */
static int tell_fit(const struct bench_options *o)
{
    const struct bench_type *type = &bench_types[o->type];
    const char *rank = getenv("RANK");
    char why[256];

    if (rank != NULL && strcmp(rank, "0") != 0)
        return 0;
    if (!bench_fit_print(&o->fit, type->name, cddp_dtype_size(type->dtype), stdout, why, sizeof why)) {
        (void)fprintf(stderr, "cddp-bench: %s\n", why);
        return 2;
    }
    return fflush(stdout) == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    struct bench b = {.prints = false};
    struct bench_table table;
    cddp_init_options init = {.size = sizeof init};
    char why[256];
    uint64_t wrong = 0;
    int status = 0, n;

    switch (bench_options_parse(&b.opt, argc, argv, why, sizeof why)) {
    case BENCH_HELP:
        bench_help(stdout);
        return fflush(stdout) == 0 ? 0 : 1;
    case BENCH_VERSION:
        printf("cddp-bench %s\n", CDDP_VERSION);
        return fflush(stdout) == 0 ? 0 : 1;
    case BENCH_TELL_FIT:
        return tell_fit(&b.opt);
    case BENCH_BAD:
        (void)fprintf(stderr, "cddp-bench: %s\n", why); /* every rank: the first to end ends the others */
        return 2;
    case BENCH_RUN:
        break;
    }
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* all lines are there, however the run ends */
    init.timeout_ms = b.opt.timeout_s * 1000;
    if (cddp_init(&b.world, &init) != CDDP_OK) {
        (void)fprintf(stderr, "cddp-bench: %s\n", cddp_last_error());
        return 1;
    }
    b.prints = cddp_rank(b.world) == 0;
    b.comm = b.world;
    if (b.opt.split != 0)
        bench_need(&b, cddp_comm_split(&b.comm, b.world, bench_color(&b.opt, cddp_rank(b.world)), 0, NULL),
                   "making groups");
    n = cddp_world_size(b.comm);
    if (b.opt.root >= n) {
        if (cddp_rank(b.comm) == 0)
            (void)fprintf(stderr, "cddp-bench: -r %d: %s has %d rank%s\n", b.opt.root,
                          b.comm == b.world ? "the job" : "a group", n, n == 1 ? "" : "s");
        status = 2;
    }
    if (!b.prints)
        b.opt.json = NULL;
    if (!bench_table_open(&table, &b.opt, argc, argv))
        status = 1;
    /* A rank that cannot go on takes the others along before they measure. */
    bench_need(&b, cddp_all_reduce(b.world, &status, &status, 1, CDDP_INT32, CDDP_MAX), "agreeing to begin");
    if (status == 0)
        status = measure_all(&b, &table, &wrong);
    else
        bench_table_drop_json(&table);
    if (!bench_table_close(&table, &b.opt))
        status = 1;
    return leave(&b, status, wrong);
}
