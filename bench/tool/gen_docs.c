/* SPDX-License-Identifier: Apache-2.0 */
/* Build tool: prints cddp-bench(1), the man page, from the tables of kinds and flags. */
#include "common/cli_docs.h"
#include "options.h"

#include <cddp/version.h>

struct entry {
    const char *name, *text;
};

static const struct entry output[] = {
    {"size, count",
     "Bytes of a rank's input or output, the larger one, and the elements of one block. Kinds with a block for each "
     "rank round blocks down to 16 bytes: a size below 16 bytes for each rank shows 0."},
    {"time", "Microseconds of one operation, or with -m of one of a group. For bw, bibw and mbw_mr, of 64 messages."},
    {"algbw",
     "10^9 bytes in a second: the size by the time. hypercube counts the blocks that a rank receives, and bw, bibw and "
     "mbw_mr all messages."},
    {"busbw",
     "algbw times a factor, for a comparison with the hardware: 2(n-1)/n for all_reduce, (n-1)/n for all_gather, "
     "reduce_scatter, alltoall, alltoallv, gather and scatter of n ranks, otherwise 1."},
    {"#wrong", "Wrong elements on all ranks, of one check after the times; N/A without checks (-c 0)."},
    {"Out of bounds values", "All wrong elements of all groups."},
    {"Avg bus bandwidth", "The mean of all busbw of the table, out of place and in place."},
};

static const struct entry variables[] = {
    {"NCCL_TESTS_SPLIT, NCCL_TESTS_SPLIT_MASK",
     "Groups where -s gives none: the words of -s, or a hexadecimal mask for AND."},
    {"NCCL_TESTS_MIN_BW", "The mean bus bandwidth in GB/s that a test needs. A tenth less still passes."},
};

/* Line ends are those of --help. */
static void roff(FILE *to, const char *text)
{
    char line[512];
    size_t n = 0;

    for (; text[n] != '\0' && n + 1 < sizeof line; n++)
        line[n] = text[n] == '\n' ? ' ' : text[n];
    line[n] = '\0';
    cdi_roff(to, line);
}

int main(void)
{
    FILE *to = stdout;

    (void)fprintf(to, ".TH CDDP-BENCH 1 \"%s\" \"cddprun %s\" \"User Commands\"\n", CDI_RELEASE_DATE, CDDP_VERSION);
    (void)fputs(".SH NAME\ncddp\\-bench \\- measure collectives and messages of libcddp\n"
                ".SH SYNOPSIS\n.B cddprun\n[...]\n.B cddp\\-bench\n[\\fIKIND\\fR] [\\fIflags\\fR]\n.SH DESCRIPTION\n",
                to);
    roff(to, bench_about);
    (void)fputs(".PP\n", to);
    roff(to, bench_notes);
    (void)fputs(".SH KINDS\n", to);
    for (int i = 0; i < bench_n_kinds; i++) {
        (void)fprintf(to, ".TP\n.B %s\n", bench_kinds[i].name);
        roff(to, bench_kinds[i].about);
    }
    (void)fputs(".TP\n.B all\neach of them (default all_reduce)\n.SH OPTIONS\n", to);
    for (int i = 0; i < bench_n_flags; i++) {
        const struct bench_flag *f = &bench_flags[i];

        if (f->help == NULL)
            continue;
        (void)fputs(".TP\n", to);
        if (f->letter < BENCH_LONG_ONLY)
            (void)fprintf(to, ".BR \\-%c \", \" ", f->letter);
        else
            (void)fputs(".B ", to);
        (void)fprintf(to, "\"\\-\\-%s%s\\fI%s\\fR\"\n", f->name, f->value == NULL ? "" : "=",
                      f->value == NULL ? "" : f->value);
        roff(to, f->help);
    }
    (void)fputs(".SH OUTPUT\n", to);
    for (size_t i = 0; i < sizeof output / sizeof output[0]; i++) {
        (void)fprintf(to, ".TP\n.B %s\n", output[i].name);
        roff(to, output[i].text);
    }
    (void)fputs(".SH ENVIRONMENT\n", to);
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        (void)fprintf(to, ".TP\n.B %s\n", variables[i].name);
        roff(to, variables[i].text);
    }
    (void)fputs(".SH SEE ALSO\n.BR cddprun (1)\n", to);
    return fflush(to) == 0 ? 0 : 1;
}
