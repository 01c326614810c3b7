/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"
#include "parse.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define SPLIT_WANTED "expected AND, OR, MOD or DIV and a number"

/* Letters and long names as in nccl-tests where it has them. */
const struct bench_flag bench_flags[] = {
    {'b', "minbytes", "SIZE", "first size in bytes; SIZE may end in K, M or G, as 1.5G (default 32M)"},
    {'e', "maxbytes", "SIZE", "last size (default 32M)"},
    {'f', "stepfactor", "FACTOR", "factor from one size to the next"},
    {'i', "stepbytes", "SIZE", "or, without -f, the difference between two sizes (default 1M)"},
    {'o', "op", "OP", "sum, prod, min, max, avg, band, bor, bxor or all (default sum)"},
    {'d', "datatype", "TYPE",
     "int8, uint8, int16, uint16, int32, uint32, int64, uint64, half,\n"
     "float, double, bfloat16, f8e4m3, f8e5m2 or all (default float)"},
    {'r', "root", "RANK", "root rank; all or -1: each in turn (default 0)"},
    {'n', "iters", "N", "timed operations per size (default 20)"},
    {'w', "warmup_iters", "N", "untimed operations before them (default 1)"},
    {'m', "agg_iters", "N", "operations that run as one group, each on its own memory (default 1)"},
    {'N', "run_cycles", "N", "how often to run all sizes; 0: until it is ended (default 1)"},
    {'c', "check", "N", "operations with checked results (default 1)"},
    {'a', "average", "N", "time of 0: rank 0, or 1: mean, 2: minimum, 3: maximum of all ranks\n(default 1)"},
    {'z', "blocking", "N",
     "0: begin all operations, then wait (default); wait for each one,\n"
     "1: with a barrier after it; 2: without; 3: with one that is not timed"},
    {'R', "local_register", "N", "1 or 2: memory that the ranks of a node share, or that NCCL knows\n(default 0)"},
    {'C', "report_cputime", "0|1", "1: time until the operations are begun, not until they end"},
    {'S', "report_timestamps", "0|1", "1: end each line with the date and time"},
    {'T', "timeout", "SECONDS", "end if a rank is not there within this time (default CDDP_TIMEOUT)"},
    {'u', "unalign", "N", "skip N elements at the start of aligned memory (default 0)"},
    {'s', "split", "OP NUMBER",
     "several groups at once: the group of a rank is rank OP NUMBER,\nwith OP one of AND, OR, MOD, DIV "
     "(default NCCL_TESTS_SPLIT)"},
    {'J', "json", "FILE", "also write the results to FILE, as JSON"},
    {'h', "help", NULL, "print this help"},
    {BENCH_VERSION_FLAG, "version", NULL, "print the version"},
    {BENCH_FIT, "fit", "MODEL",
     "run nothing; print how much memory a rank needs for MODEL, whole or\n"
     "divided (cddp_fsdp): 124M, 350M, 774M, 1.3B, 1.5B, 7B, 13B, 70B,\n"
     "or with --units any number of parameters; of the type of -d"},
    {BENCH_UNITS, "units", "N", "units that MODEL has, of one size"},
    {BENCH_OPTIM, "optim", "NAME", "adamw, adam, momentum (of SGD) or sgd (default adamw)"},
    {BENCH_RANKS, "ranks", "N", "so many ranks (default: 1 to 64)"},
    {BENCH_MEMORY, "memory", "SIZE", "what a rank has, such as 80G: marks what fits"},
    /* The others of nccl-tests: at their defaults they change nothing. */
    {'t', "nthreads", "1", NULL},
    {'g', "ngpus", "1", NULL},
    {'p', "parallel_init", "0|1", NULL},
    {'y', "stream_null", "0", NULL},
    {'G', "cudagraph", "0", NULL},
    {'M', "memory", "0", NULL},
    {'I', "per_iter_timing", "0", NULL},
    {'K', "per_iter_skip", "0", NULL},
    {'D', "device_implementation", "0", NULL},
    {'V', "device_cta_count", "16", NULL},
    {'x', "cta_policy", "", NULL},
};
const int bench_n_flags = sizeof bench_flags / sizeof bench_flags[0];

const char bench_about[] =
    "Times collectives and messages of libcddp, checks their results, and prints a table in the format of nccl-tests.";
const char bench_notes[] =
    "The launcher (cddprun, torchrun, mpirun or srun) determines ranks, addresses and the backend (CDDP_BACKEND).\n"
    "Without a launcher there is one rank. KIND may also be nccl-tests' name, such as all_reduce_perf, and so may the\n"
    "program's own (ln -s cddp-bench all_reduce_perf). cddprun begins each line with its rank: scripts that read the\n"
    "table get it from 'sed s/^.0..//', or the file of -J. A test that cannot run in place shows 0.00 and N/A there.\n"
    "Other flags of nccl-tests are accepted with values that change nothing (-t 1, -g 1, -G 0).\n"
    "NCCL_TESTS_MIN_BW, in GB/s, fails a run whose mean bus bandwidth is more than a tenth below it.\n"
    "Exit status: 0; 1: wrong result, too slow, or a rank failed; 2: invalid usage.";

void bench_help(FILE *to)
{
    (void)fprintf(to,
                  "usage: cddprun [...] cddp-bench [KIND] [FLAG...]\n%s\n\n"
                  "  cddprun --nproc_per_node=8 cddp-bench all_reduce -b 8 -e 128M -f 2\n\nKIND\n",
                  bench_about);
    for (int i = 0; i < bench_n_kinds; i++)
        (void)fprintf(to, "  %-16s%s\n", bench_kinds[i].name, bench_kinds[i].about);
    (void)fprintf(to, "  %-16s%s\n\n", "all", "each of them (default all_reduce)");
    for (int i = 0; i < bench_n_flags; i++) {
        const struct bench_flag *f = &bench_flags[i];
        char left[40], letter[5] = "    ";

        if (f->help == NULL)
            continue;
        if (f->letter < BENCH_LONG_ONLY)
            (void)snprintf(letter, sizeof letter, "-%c, ", f->letter);
        (void)snprintf(left, sizeof left, "%s--%s%s%s", letter, f->name, f->value == NULL ? "" : "=",
                       f->value == NULL ? "" : f->value);
        (void)fprintf(to, "  %-25s ", left);
        for (const char *c = f->help; *c != '\0'; c++)
            (void)(*c == '\n' ? fprintf(to, "\n%28s", "") : fputc(*c, to));
        (void)fputc('\n', to);
    }
    (void)fprintf(to, "\n%s\n", bench_notes);
}

/* Fills in getopt_long()'s table and its letters; --output_file is nccl-tests' name of --json. */
static void bench_getopt_tables(struct option *names, char *letters)
{
    for (int i = 0; i < bench_n_flags; i++) {
        const struct bench_flag *f = &bench_flags[i];

        *names++ = (struct option){f->name, f->value == NULL ? no_argument : required_argument, NULL, f->letter};
        if (f->letter >= BENCH_LONG_ONLY)
            continue;
        *letters++ = (char)f->letter;
        if (f->value != NULL)
            *letters++ = ':';
    }
    *names++ = (struct option){"output_file", required_argument, NULL, 'J'};
    *names = (struct option){NULL, 0, NULL, 0};
    *letters = '\0';
}

static bool bad(char *why, size_t cap, const char *flag, const char *value, const char *wanted)
{
    (void)snprintf(why, cap, "%s '%s': %s", flag, value, wanted);
    return false;
}

/* "MOD 2", "%2", "AND 0x7". */
static bool parse_split(const char *text, struct bench_options *o)
{
    static const struct {
        const char *word;
        char op;
    } words[] = {{"AND", '&'}, {"OR", '|'}, {"MOD", '%'}, {"DIV", '/'}, {"&", '&'}, {"|", '|'}, {"%", '%'}, {"/", '/'}};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strncasecmp(text, words[i].word, strlen(words[i].word)) == 0) {
            o->split = words[i].op;
            return bench_parse_bits(text + strlen(words[i].word), o->split == '%' || o->split == '/', &o->split_by);
        }
    return false;
}

/* nccl-tests has variables instead of -s; one that nobody reads would measure other groups than the user thinks. */
static bool split_of_environment(struct bench_options *o, char *why, size_t cap)
{
    const char *split = getenv("NCCL_TESTS_SPLIT"), *mask = getenv("NCCL_TESTS_SPLIT_MASK");
    unsigned long bits;
    char *end;

    if (mask != NULL && *mask != '\0') {
        bits = strtoul(mask, &end, 16);
        o->split = '&';
        o->split_by = (int)(bits & INT_MAX);
        return (end != mask && *end == '\0') ||
               bad(why, cap, "NCCL_TESTS_SPLIT_MASK", mask, "expected a hexadecimal number");
    }
    if (split != NULL && *split != '\0')
        return parse_split(split, o) || bad(why, cap, "NCCL_TESTS_SPLIT", split, SPLIT_WANTED);
    return true;
}

static bool least_of_environment(struct bench_options *o, char *why, size_t cap)
{
    const char *least = getenv("NCCL_TESTS_MIN_BW");
    char *end;

    o->least_bandwidth = -1;
    if (least == NULL || *least == '\0')
        return true;
    o->least_bandwidth = strtod(least, &end);
    return (end != least && *end == '\0' && o->least_bandwidth >= 0) ||
           bad(why, cap, "NCCL_TESTS_MIN_BW", least, "expected GB/s, such as 12.5");
}

/* A flag of nccl-tests that has no meaning here, unless its value is what happens anyway. */
static bool bench_read_foreign(int c, const char *value, char *why, size_t cap)
{
    static const struct {
        int letter, least, most;
        const char *instead;
    } flags[] = {
        {'t', 1, 1, "a rank is a process with one thread; start more ranks (cddprun --nproc_per_node=N)"},
        {'g', 1, 1, "a rank has one GPU; start more ranks (cddprun --nproc_per_node=N)"},
        {'p', 0, 1, "expected 0 or 1"},
        {'y', 0, 0, "libcddp has its own stream"},
        {'G', 0, 0, "cddp-bench captures no CUDA graphs; leave it out"},
        {'M', 0, 0, "cddp-bench reports no use of memory; leave it out"},
        {'I', 0, 0, "cddp-bench does not time single iterations; leave it out"},
        {'K', 0, 0, "cddp-bench does not time single iterations; leave it out"},
        {'D', 0, 0, "collectives are those of libcddp's backend; leave it out"},
        {'V', 16, 16, "collectives are those of libcddp's backend; leave it out"},
        {'x', 1, 0, "NCCL takes its policy from NCCL_CTA_POLICY; set that, and leave -x out"},
    };
    char flag[3] = {'-', (char)c, '\0'};
    int n;

    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (flags[i].letter == c)
            return bench_parse_int(value, flags[i].least, flags[i].most, &n) ||
                   bad(why, cap, flag, value, flags[i].instead);
    return bad(why, cap, flag, value, "is not known");
}

static bool bench_read_flag(struct bench_options *o, int c, const char *value, char *why, size_t cap)
{
    char flag[3] = {'-', (char)c, '\0'};
    int n;

    switch (c) {
    case 'b':
        return bench_parse_size(value, &o->min_bytes) || bad(why, cap, flag, value, "expected a size such as 8 or 32M");
    case 'e':
        return bench_parse_size(value, &o->max_bytes) || bad(why, cap, flag, value, "expected a size such as 8 or 32M");
    case 'i':
        return (bench_parse_size(value, &o->step_bytes) && o->step_bytes > 0) ||
               bad(why, cap, flag, value, "expected a size above 0, such as 1M");
    case 'f':
        return bench_parse_factor(value, &o->factor) ||
               bad(why, cap, flag, value, "expected a number above 1, or 0: by -i");
    case 'o':
        return bench_parse_op(value, &o->op) || bad(why, cap, flag, value, "no such operation; see --help");
    case 'd':
        return bench_parse_type(value, &o->type) || bad(why, cap, flag, value, "no such type; see --help");
    case 'r':
        if (strcmp(value, "all") == 0)
            return (o->root = -1, true);
        return bench_parse_int(value, -1, INT_MAX, &o->root) ||
               bad(why, cap, flag, value, "expected a rank or \"all\"");
    case 'n':
        return bench_parse_int(value, 1, INT_MAX, &o->iters) || bad(why, cap, flag, value, "expected a number above 0");
    case 'w':
        return bench_parse_int(value, 0, INT_MAX, &o->warmup) || bad(why, cap, flag, value, "expected a number");
    case 'c':
        return bench_parse_int(value, 0, INT_MAX, &o->checks) || bad(why, cap, flag, value, "expected a number");
    case 'a':
        if (!bench_parse_int(value, 0, 3, &n))
            return bad(why, cap, flag, value, "expected 0, 1, 2 or 3");
        o->average = (enum bench_average)n;
        return true;
    case 'z':
        if (!bench_parse_int(value, 0, 3, &n))
            return bad(why, cap, flag, value, "expected 0, 1, 2 or 3");
        o->blocking = (enum bench_blocking)n;
        return true;
    case 'm':
        return bench_parse_int(value, 1, BENCH_MOST_TOGETHER, &o->together) ||
               bad(why, cap, flag, value, "expected a number from 1 to 256");
    case 'N':
        return bench_parse_int(value, 0, INT_MAX, &o->cycles) || bad(why, cap, flag, value, "expected a number");
    case 'u':
        return bench_parse_int(value, 0, 1 << 20, &o->unalign) ||
               bad(why, cap, flag, value, "expected a number of elements");
    case 'T':
        return bench_parse_int(value, 1, INT_MAX / 1000, &o->timeout_s) ||
               bad(why, cap, flag, value, "expected seconds, above 0");
    case 'R':
        if (!bench_parse_int(value, 0, 2, &n))
            return bad(why, cap, flag, value, "expected 0, 1 or 2");
        o->shared = n != 0;
        return true;
    case 'C':
    case 'S':
        if (!bench_parse_int(value, 0, 1, &n))
            return bad(why, cap, flag, value, "expected 0 or 1");
        *(c == 'C' ? &o->host_time : &o->timestamps) = n == 1;
        return true;
    case 's':
        return parse_split(value, o) || bad(why, cap, flag, value, SPLIT_WANTED);
    case 'J':
        o->json = value;
        return true;
    case BENCH_FIT:
        o->fit.model = value;
        return true;
    case BENCH_OPTIM:
        o->fit.optim = value;
        return true;
    case BENCH_UNITS:
        return bench_parse_int(value, 1, INT_MAX, &o->fit.units) ||
               bad(why, cap, "--units", value, "expected a number above 0");
    case BENCH_RANKS:
        return bench_parse_int(value, 1, INT_MAX, &o->fit.ranks) ||
               bad(why, cap, "--ranks", value, "expected a number above 0");
    case BENCH_MEMORY:
        return (bench_parse_size(value, &o->fit.memory) && o->fit.memory > 0) ||
               bad(why, cap, "--memory", value, "expected a size such as 80G");
    default:
        return bench_read_foreign(c, value, why, cap);
    }
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

enum bench_do bench_options_parse(struct bench_options *o, int argc, char **argv, char *why, size_t cap)
{
    struct option names[sizeof bench_flags / sizeof bench_flags[0] + 2];
    char letters[2 * sizeof bench_flags / sizeof bench_flags[0] + 1];
    int c;

    bench_getopt_tables(names, letters);
    *o = (struct bench_options){.min_bytes = 32 << 20,
                                .max_bytes = 32 << 20,
                                .step_bytes = 1 << 20,
                                .iters = 20,
                                .warmup = 1,
                                .checks = 1,
                                .together = 1,
                                .cycles = 1,
                                .average = BENCH_AVERAGE};
    if (argc < 1 || !bench_parse_kind(base_name(argv[0]), &o->kind) || o->kind == NULL)
        (void)bench_parse_kind("all_reduce", &o->kind);
    (void)bench_parse_type("float", &o->type);
    if (!split_of_environment(o, why, cap) || !least_of_environment(o, why, cap))
        return BENCH_BAD;
    optind = 0;
    opterr = 0;
    while ((c = getopt_long(argc, argv, letters, names, NULL)) != -1) {
        if (c == 'h')
            return BENCH_HELP;
        if (c == BENCH_VERSION_FLAG)
            return BENCH_VERSION;
        if (c == '?') {
            (void)snprintf(why, cap, "'%s' is not a flag of cddp-bench, or needs a value; see --help",
                           argv[optind - 1]);
            return BENCH_BAD;
        }
        if (!bench_read_flag(o, c, optarg, why, cap))
            return BENCH_BAD;
    }
    if (optind < argc && !bench_parse_kind(argv[optind], &o->kind)) {
        (void)bad(why, cap, "KIND", argv[optind], "no such test; see --help");
        return BENCH_BAD;
    }
    if (optind + 1 < argc) {
        (void)snprintf(why, cap, "one KIND, not also '%s'; all of them: all", argv[optind + 1]);
        return BENCH_BAD;
    }
    if (o->fit.model != NULL &&
        (o->type < 0 || bench_types[o->type].exponent_bits == 0 || cddp_dtype_size(bench_types[o->type].dtype) < 2)) {
        (void)snprintf(why, cap, "--fit %s: -d must be half, float, double or bfloat16", o->fit.model);
        return BENCH_BAD;
    }
    if (o->fit.model != NULL)
        return BENCH_TELL_FIT;
    if (o->fit.units != 0 || o->fit.ranks != 0 || o->fit.memory != 0 || o->fit.optim != NULL) {
        (void)snprintf(why, cap, "--units, --ranks, --optim and --memory need --fit=MODEL");
        return BENCH_BAD;
    }
    if (o->kind != NULL && o->kind->start != NULL && o->together > 1) {
        (void)snprintf(why, cap, "-m %d: %s is several groups already, of which each needs the one before", o->together,
                       o->kind->name);
        return BENCH_BAD;
    }
    if (o->json != NULL && o->cycles == 0) {
        (void)snprintf(why, cap, "-J %s: with -N 0 there is no end at which it is written; set -N to a number",
                       o->json);
        return BENCH_BAD;
    }
    if (o->min_bytes > o->max_bytes) {
        (void)snprintf(why, cap, "-b %zu is more than -e %zu", o->min_bytes, o->max_bytes);
        return BENCH_BAD;
    }
    return BENCH_RUN;
}

int bench_color(const struct bench_options *o, int rank)
{
    switch (o->split) {
    case '&':
        return rank & o->split_by;
    case '|':
        return rank | o->split_by;
    case '%':
        return rank % o->split_by;
    case '/':
        return rank / o->split_by;
    default:
        return 0;
    }
}

size_t bench_next_size(const struct bench_options *o, size_t bytes)
{
    size_t next = bytes + o->step_bytes;

    if (o->factor > 0) {
        double times = (double)bytes * o->factor;

        next = times < (double)(SIZE_MAX / 4) ? (size_t)times : SIZE_MAX / 4;
    }
    return next > bytes ? next : bytes + 1;
}
