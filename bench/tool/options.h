/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of cddp-bench: nccl-tests' letters where it has one. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include "fit.h"
#include "kinds.h"

#include <stdio.h>

enum bench_average { BENCH_RANK_0, BENCH_AVERAGE, BENCH_MIN, BENCH_MAX };

/* -z: all operations are begun before the first is waited for; or each is waited for: with a barrier after it, without,
 * or with one that is not in the time. */
enum bench_blocking { BENCH_BEGUN, BENCH_WAIT_BARRIER, BENCH_WAIT, BENCH_WAIT_BARRIER_APART };

struct bench_options {
    const struct bench_kind *kind; /* NULL: all of them, a table each */
    size_t min_bytes, max_bytes, step_bytes;
    double factor; /* from one size to the next; 0: by step_bytes */
    int op, type;  /* rows of the tables in values.h; -1: all that go together */
    int root;      /* -1: every rank in turn */
    int iters, warmup, checks;
    int together;  /* operations in one group */
    int cycles;    /* how often all sizes are run; 0: for ever */
    int unalign;   /* elements */
    int timeout_s; /* 0: libcddp's */
    enum bench_average average;
    enum bench_blocking blocking;
    bool shared;    /* memory of all ranks: CDDP_MEM_COLLECTIVE */
    bool host_time; /* that of the host, until the operations are begun, instead of the whole */
    bool timestamps;
    const char *json; /* a file; NULL: none */
    char split;       /* '&', '|', '%', '/': how a group's number is made of a rank; 0: there is one group */
    int split_by;
    double least_bandwidth; /* NCCL_TESTS_MIN_BW: of each test's mean, in GB/s; below 0: any will do */
    struct bench_fit fit;
};

enum bench_do { BENCH_RUN, BENCH_TELL_FIT, BENCH_HELP, BENCH_VERSION, BENCH_BAD };

/* One flag; value NULL: it has none. A line end in help is one of --help. */
struct bench_flag {
    int letter;                      /* or from BENCH_LONG_ONLY on */
    const char *name, *value, *help; /* help NULL: one of nccl-tests' that is only recognised */
};

/* Flags without a letter. */
enum {
    BENCH_LONG_ONLY = 128,
    BENCH_VERSION_FLAG = BENCH_LONG_ONLY,
    BENCH_FIT,
    BENCH_UNITS,
    BENCH_RANKS,
    BENCH_OPTIM,
    BENCH_MEMORY
};

extern const struct bench_flag bench_flags[];
extern const int bench_n_flags;
extern const char bench_about[], bench_notes[];

/* Prints nothing; why gets one line with BENCH_BAD. */
enum bench_do bench_options_parse(struct bench_options *o, int argc, char **argv, char *why, size_t cap);
void bench_help(FILE *to);
/* The group that a rank is in. */
int bench_color(const struct bench_options *o, int rank);
/* The size after this one. */
size_t bench_next_size(const struct bench_options *o, size_t bytes);

#endif
