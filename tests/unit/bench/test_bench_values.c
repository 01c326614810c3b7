/* SPDX-License-Identifier: Apache-2.0 */
/* What cddp-bench puts in and expects: a benchmark whose check cannot fail would be believed for nothing. */
#include "bench/tool/options.h"
#include "bench/tool/room.h"
#include "bench/tool/slow.h"
#include "bench/tool/values.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define N 500

static const struct bench_type *type_of(const char *name)
{
    for (int i = 0; i < bench_n_types; i++)
        if (strcmp(bench_types[i].name, name) == 0)
            return &bench_types[i];
    cr_assert(false, "no type %s", name);
    return NULL;
}

static const struct bench_op *op_of(const char *name)
{
    for (int i = 0; i < bench_n_ops; i++)
        if (strcmp(bench_ops[i].name, name) == 0)
            return &bench_ops[i];
    cr_assert(false, "no operation %s", name);
    return NULL;
}

Test(bench_values, ones_and_twos_have_the_bits_of_their_types)
{
    static const struct {
        const char *type;
        uint64_t one, two;
    } bits[] = {{"half", 0x3c00, 0x4000},
                {"bfloat16", 0x3f80, 0x4000},
                {"float", 0x3f800000, 0x40000000},
                {"double", 0x3ff0000000000000, 0x4000000000000000},
                {"f8e4m3", 0x38, 0x40},
                {"f8e5m2", 0x3c, 0x40},
                {"int16", 1, 2},
                {"uint64", 1, 2}};

    for (size_t t = 0; t < sizeof bits / sizeof bits[0]; t++) {
        const struct bench_type *type = type_of(bits[t].type);
        size_t size = cddp_dtype_size(type->dtype), n_ones = 0;
        char buf[8 * N];

        bench_fill(buf, N, type, 3, 7, 1);
        for (int i = 0; i < N; i++) {
            uint64_t x = 0;

            memcpy(&x, buf + (size_t)i * size, size);
            cr_assert(x == bits[t].one || x == bits[t].two, "%s: %#llx", bits[t].type, (unsigned long long)x);
            n_ones += x == bits[t].one;
        }
        cr_expect(n_ones > N / 4 && n_ones < 3 * N / 4, "%zu of %d are 1", n_ones, N);
    }
}

Test(bench_values, a_changed_element_is_found)
{
    for (int t = 0; t < bench_n_types; t++) {
        char buf[8 * N];

        bench_fill(buf, N, &bench_types[t], 1, 0, 4);
        cr_expect(bench_wrong(buf, N, &bench_types[t], 1, 0, 4) == 0);
        buf[17 * cddp_dtype_size(bench_types[t].dtype)] ^= 1;
        cr_expect(bench_wrong(buf, N, &bench_types[t], 1, 0, 4) == 1, "%s", bench_types[t].name);
    }
}

Test(bench_values, another_rank_round_or_place_is_wrong)
{
    float buf[N];

    bench_fill(buf, N, type_of("float"), 1, 0, 4);
    cr_expect(bench_wrong(buf, N, type_of("float"), 2, 0, 4) > N / 4);
    cr_expect(bench_wrong(buf, N, type_of("float"), 1, 1, 4) > N / 4);
    cr_expect(bench_wrong(buf, N, type_of("float"), 1, 0, 5) > N / 4);
}

Test(bench_values, sums_are_those_of_floats)
{
    float buf[3][N], sum[N];
    size_t wrong;

    for (int r = 0; r < 3; r++)
        bench_fill(buf[r], N, type_of("float"), r, 10, 2);
    for (int i = 0; i < N; i++)
        sum[i] = buf[0][i] + buf[1][i] + buf[2][i];
    cr_expect(bench_wrong_reduced(sum, N, type_of("float"), op_of("sum"), 3, 10, 2) == 0);
    sum[3] += 1;
    cr_expect(bench_wrong_reduced(sum, N, type_of("float"), op_of("sum"), 3, 10, 2) == 1);
    for (int i = 0; i < N; i++)
        sum[i] = (buf[0][i] + buf[1][i] + buf[2][i]) / 3;
    cr_expect(bench_wrong_reduced(sum, N, type_of("float"), op_of("avg"), 3, 10, 2) == 0);
    wrong = bench_wrong_reduced(sum, N, type_of("float"), op_of("sum"), 3, 10, 2);
    cr_expect(wrong == N, "a mean is not a sum: %zu", wrong);
}

static void put(void *to, size_t i, const struct bench_type *type, uint64_t bits)
{
    size_t size = cddp_dtype_size(type->dtype);

    memcpy((char *)to + i * size, &bits, size);
}

/* However few bits a type has and however many ranks there are, a check must be able to fail. */
Test(bench_values, zeros_and_unreduced_input_are_wrong_for_any_number_of_ranks)
{
    static const char *const types[] = {"half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"};
    static const int ranks[] = {2, 3, 4, 8, 64, 200, 1000};

    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        for (size_t k = 0; k < sizeof ranks / sizeof ranks[0]; k++) {
            const struct bench_type *type = type_of(types[t]);
            size_t wrong;
            char buf[8 * N] = {0};

            for (int op = 0; op < 2; op++) {
                wrong = bench_wrong_reduced(buf, N, type, op_of(op == 0 ? "sum" : "avg"), ranks[k], 0, 3);
                cr_expect(wrong == N, "nothing of %d %s: %zu", ranks[k], types[t], wrong);
            }
            bench_fill(buf, N, type, 0, 0, 3);
            wrong = bench_wrong_reduced(buf, N, type, op_of("sum"), ranks[k], 0, 3);
            cr_expect(wrong == N, "one rank's of %d %s: %zu", ranks[k], types[t], wrong);
        }
}

/* The sum over n ranks of element i. */
static int sum_of(int n, size_t i)
{
    int sum = 0;

    for (int r = 0; r < n; r++) {
        int8_t one;

        bench_fill(&one, 1, type_of("int8"), r, i, 0);
        sum += one;
    }
    return sum;
}

Test(bench_values, sums_are_exact_while_the_type_is_and_may_round_above)
{
    const struct bench_type *type = type_of("f8e4m3");
    /* 0 to 16 */
    const uint64_t bits[] = {0,    0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c, 0x4e, 0x50,
                             0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58};
    float four[N], near[N];
    size_t ones, wrong;
    char buf[N];

    for (size_t i = 0; i < N; i++) {
        four[i] = 4;
        near[i] = nextafterf(4, 5);
        put(buf, i, type, bits[sum_of(8, i)]);
    }
    cr_expect(bench_wrong_reduced(buf, N, type, op_of("sum"), 8, 0, 0) == 0, "16 at most: exact");
    ones = bench_wrong_reduced(four, N, type_of("float"), op_of("sum"), 3, 0, 0);
    wrong = bench_wrong_reduced(near, N, type_of("float"), op_of("sum"), 3, 0, 0);
    cr_expect(ones < N && wrong == N, "4 is right for %zu, and the number next to it for %zu", N - ones, N - wrong);
    for (size_t i = 0; i < N; i++)
        put(buf, i, type, bits[16]); /* 64 ranks whose terms are lost above 16 */
    cr_expect(bench_wrong_reduced(buf, N, type, op_of("sum"), 64, 0, 0) == 0);
    for (size_t i = 0; i < N; i++)
        put(buf, i, type, bits[15]);
    cr_expect(bench_wrong_reduced(buf, N, type, op_of("sum"), 64, 0, 0) == N);
}

/* Multiplied by 1/n, and as a sum of parts that were each multiplied. */
Test(bench_values, means_of_doubles_may_be_rounded)
{
    for (int n = 1; n <= 33; n++) {
        double whole[N], parts[N], part = 1.0 / n;

        for (size_t i = 0; i < N; i++) {
            int sum = sum_of(n, i);

            whole[i] = sum * part;
            parts[i] = 0;
            for (int r = 0; r < n; r++)
                parts[i] += (r < sum - n ? 2 : 1) * part;
        }
        cr_expect(bench_wrong_reduced(whole, N, type_of("double"), op_of("avg"), n, 0, 0) == 0, "%d ranks", n);
        cr_expect(bench_wrong_reduced(parts, N, type_of("double"), op_of("avg"), n, 0, 0) == 0, "%d ranks, parts", n);
        for (size_t i = 0; i < N; i++)
            whole[i] *= 1 + 64e-16;
        if (n < 20)
            cr_expect(bench_wrong_reduced(whole, N, type_of("double"), op_of("avg"), n, 0, 0) == N, "%d ranks", n);
    }
}

Test(bench_values, products_of_whole_numbers_wrap_and_those_of_half_are_infinite)
{
    const uint16_t infinite = 0x7c00;
    int8_t product;
    int zeros = 0, infinities = 0;

    for (size_t i = 0; i < N; i++) {
        product = 0; /* of 100 ranks: 2 to some power above 7, modulo 256 */
        zeros += bench_wrong_reduced(&product, 1, type_of("int8"), op_of("prod"), 100, i, 0) == 0;
        infinities += bench_wrong_reduced(&infinite, 1, type_of("half"), op_of("prod"), 100, i, 0) == 0;
    }
    cr_expect(zeros == N && infinities == N, "%d, %d", zeros, infinities);
}

Test(bench_values, bits_are_those_of_whole_numbers)
{
    uint8_t buf[2][N], got[N];

    for (int r = 0; r < 2; r++)
        bench_fill(buf[r], N, type_of("uint8"), r, 0, 0);
    for (int i = 0; i < N; i++)
        got[i] = buf[0][i] ^ buf[1][i];
    cr_expect(bench_wrong_reduced(got, N, type_of("uint8"), op_of("bxor"), 2, 0, 0) == 0);
    cr_expect(bench_wrong_reduced(got, N, type_of("uint8"), op_of("bor"), 2, 0, 0) > 0);
}

static enum bench_do parse(struct bench_options *o, char *why, int argc, const char *const *words)
{
    char *argv[18] = {"cddp-bench"};

    for (int i = 0; i < argc; i++)
        argv[i + 1] = (char *)(uintptr_t)words[i];
    return bench_options_parse(o, argc + 1, argv, why, 256);
}

Test(bench_options, letters_are_those_of_nccl_tests)
{
    const char *words[] = {"alltoall", "-b",   "8",  "-e",  "128M", "-f", "2",
                           "-d",       "half", "-o", "max", "-n5",  "-s", "MOD 2"};
    struct bench_options o;
    char why[256] = "";

    cr_assert(parse(&o, why, 14, words) == BENCH_RUN, "%s", why);
    cr_expect(strcmp(o.kind->name, "alltoall") == 0 && o.min_bytes == 8 && o.max_bytes == 128 << 20 && o.iters == 5);
    cr_expect(bench_types[o.type].dtype == CDDP_FLOAT16 && bench_ops[o.op].op == CDDP_MAX);
    cr_expect(bench_next_size(&o, 8) == 16 && bench_color(&o, 5) == 1);
}

Test(bench_options, sizes_may_have_fractions_and_units)
{
    static const struct {
        const char *text;
        size_t bytes;
    } sizes[] = {{"0", 0},
                 {"7", 7},
                 {"1.5K", 1536},
                 {"0.25M", 256 << 10},
                 {"32MB", 32 << 20},
                 {"32MiB", 32 << 20},
                 {"2g", (size_t)2 << 30},
                 {"1.9", 1}};

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        const char *words[] = {"-b", sizes[i].text, "-e", "4G"};
        struct bench_options o;
        char why[256] = "";

        cr_assert(parse(&o, why, 4, words) == BENCH_RUN, "%s", why);
        cr_expect(o.min_bytes == sizes[i].bytes, "%s: %zu", sizes[i].text, o.min_bytes);
    }
}

Test(bench_options, a_factor_is_stronger_than_a_step_wherever_it_stands)
{
    static const struct {
        const char *words[4];
        size_t next;
    } cases[] = {{{"-f", "2", "-i", "100"}, 16},
                 {{"-i", "100", "-f", "2"}, 16},
                 {{"-i", "100", "-f", "1"}, 108},
                 {{"-f", "0", "-i", "100"}, 108}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bench_options o;
        char why[256] = "";

        cr_assert(parse(&o, why, 4, cases[i].words) == BENCH_RUN, "%s", why);
        cr_expect(bench_next_size(&o, 8) == cases[i].next, "%zu: %zu", i, bench_next_size(&o, 8));
    }
}

Test(bench_options, the_size_after_a_huge_one_is_larger)
{
    const char *words[] = {"-f", "999999999"};
    struct bench_options o;
    char why[256] = "";
    size_t huge = SIZE_MAX / 4 - 1;

    cr_assert(parse(&o, why, 2, words) == BENCH_RUN, "%s", why);
    cr_expect(bench_next_size(&o, huge) > huge && bench_next_size(&o, SIZE_MAX / 4) > SIZE_MAX / 4);
}

Test(bench_options, groups_are_those_of_nccl_tests_variables)
{
    static const struct {
        const char *name, *value;
        int of_5;
    } cases[] = {
        {"NCCL_TESTS_SPLIT", "MOD 2", 1},      {"NCCL_TESTS_SPLIT", "%4", 1},     {"NCCL_TESTS_SPLIT", "AND 0x4", 4},
        {"NCCL_TESTS_SPLIT", "& 0b110", 4},    {"NCCL_TESTS_SPLIT", "div 2", 2},  {"NCCL_TESTS_SPLIT", "or0x2", 7},
        {"NCCL_TESTS_SPLIT_MASK", "0x1", 1},   {"NCCL_TESTS_SPLIT_MASK", "c", 4}, {"NCCL_TESTS_SPLIT", "", 0},
        {"NCCL_TESTS_SPLIT_MASK", "what", -1}, {"NCCL_TESTS_SPLIT", "MOD 0", -1}, {"NCCL_TESTS_SPLIT", "every 2", -1}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bench_options o;
        char why[256] = "";
        enum bench_do what;

        (void)unsetenv("NCCL_TESTS_SPLIT");
        (void)unsetenv("NCCL_TESTS_SPLIT_MASK");
        (void)setenv(cases[i].name, cases[i].value, 1);
        what = parse(&o, why, 0, NULL);
        if (cases[i].of_5 < 0)
            cr_expect(what == BENCH_BAD && strstr(why, cases[i].name) != NULL, "%s: '%s'", cases[i].value, why);
        else
            cr_expect(what == BENCH_RUN && bench_color(&o, 5) == cases[i].of_5, "%s: %d", cases[i].value,
                      bench_color(&o, 5));
    }
}

Test(bench_options, kinds_have_the_names_of_nccl_tests_programs_too)
{
    const char *words[] = {"reduce_scatter_perf_mpi"};
    char *linked[] = {"/usr/bin/alltoall_perf"};
    struct bench_options o;
    char why[256] = "";

    cr_assert(parse(&o, why, 1, words) == BENCH_RUN, "%s", why);
    cr_expect(strcmp(o.kind->name, "reduce_scatter") == 0);
    cr_assert(bench_options_parse(&o, 1, linked, why, sizeof why) == BENCH_RUN, "%s", why);
    cr_expect(strcmp(o.kind->name, "alltoall") == 0);
}

Test(bench_options, flags_of_nccl_tests_that_change_nothing_are_taken)
{
    const char *words[] = {"-t1", "-g",  "1",    "-p1", "-y0", "-G0", "-M0", "-I0",
                           "-K0", "-D0", "-V16", "-z3", "-R2", "-m4", "-N0"};
    struct bench_options o;
    char why[256] = "";

    cr_assert(parse(&o, why, 15, words) == BENCH_RUN, "%s", why);
    cr_expect(o.blocking == BENCH_WAIT_BARRIER_APART && o.shared && o.together == 4 && o.cycles == 0);
}

Test(bench_room, memory_is_divided_among_the_ranks_of_a_host)
{
    const uint64_t gib = (uint64_t)1 << 30;

    /* Of 20 GiB 2 stay free; in, out, and what the check needs. */
    cr_expect(bench_most_bytes(20 * gib, 2, 0, 1) == 3 * gib);
    cr_expect(bench_most_bytes(20 * gib, 2, 0, 0) == 9 * gib / 2);
    cr_expect(bench_most_bytes(UINT64_MAX, 2, 80 * gib, 1) == 38 * gib);
    cr_expect(bench_most_bytes(20 * gib, 1, 80 * gib, 1) == 18 * gib, "the host's is for the check");
    cr_expect(bench_most_bytes(0, 4, 0, 1) == 0);
}

Test(bench_slow, three_times_as_long_as_usual_is_slow)
{
    const double alike[] = {1, 1.2, 0.9, 1.1}, one[] = {1, 1.2, 4.4, 1.1}, two[] = {1, 5};

    for (int i = 0; i < 4; i++) {
        cr_expect(!(bench_slow(alike, 4, i) > 0), "%d", i);
        cr_expect((bench_slow(one, 4, i) > 0) == (i == 2), "%d", i);
    }
    cr_expect(!(bench_slow(two, 2, 0) > 0) && bench_slow(two, 2, 1) > 4.9);
}

Test(bench_slow, a_link_between_nodes_is_compared_with_its_like)
{
    const int32_t two[] = {0, 0, 1, 1}, four[] = {0, 0, 1, 1, 2, 2, 3, 3};
    const double healthy[] = {1, 20, 1.1, 24}, inside[] = {1, 20, 5, 24};
    const double between[] = {1, 20, 1.1, 24, 1, 90, 1, 21};

    for (int i = 0; i < 4; i++) {
        cr_expect(!(bench_slow_link(healthy, two, 4, i) > 0), "%d", i);
        cr_expect((bench_slow_link(inside, two, 4, i) > 0) == (i == 2), "%d", i);
    }
    for (int i = 0; i < 8; i++)
        cr_expect((bench_slow_link(between, four, 8, i) > 0) == (i == 5), "%d", i);
}

Test(bench_options, bad_ones_are_named)
{
    static const struct {
        const char *words[3];
        const char *part;
    } cases[] = {{{"-b", "x"}, "'x'"},
                 {{"-b", "99999999999T"}, "size"},
                 {{"-f", "0.5"}, "above 1"},
                 {{"-f", "x"}, "above 1"},
                 {{"-b", "8 "}, "'8 '"},
                 {{"-b", " -8"}, "' -8'"},
                 {{"-b", "8 M"}, "'8 M'"},
                 {{"-b", "1.5.5K"}, "size"},
                 {{"-r", "-2"}, "expected a rank"},
                 {{"-N0", "-J", "out"}, "-N 0"},
                 {{"-d", "float17"}, "type"},
                 {{"-o", "mean"}, "operation"},
                 {{"-b", "2M", "-e1M"}, "more than"},
                 {{"all_reduced"}, "no such"},
                 {{"-n", "0"}, "above 0"},
                 {{"-s", "DIV 0"}, "AND, OR"},
                 {{"--frob"}, "--frob"},
                 {{"gather", "scatter"}, "scatter"},
                 {{"-t", "2"}, "a process"},
                 {{"-g", "8"}, "--nproc_per_node"},
                 {{"-G", "4"}, "no CUDA graphs"},
                 {{"-x", "1"}, "NCCL_CTA"},
                 {{"-m", "0"}, "1 to 256"},
                 {{"-z", "4"}, "0, 1, 2 or 3"},
                 {{"-T", "0"}, "seconds"},
                 {{"bw", "-m2"}, "several groups"},
                 {{"all_reduce_per"}, "no such"}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct bench_options o;
        char why[256] = "";
        int n = 0;

        while (n < 3 && cases[i].words[n] != NULL)
            n++;
        cr_expect(parse(&o, why, n, cases[i].words) == BENCH_BAD && strstr(why, cases[i].part) != NULL, "%s: '%s'",
                  cases[i].words[0], why);
    }
}
