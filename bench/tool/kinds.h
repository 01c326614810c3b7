/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kinds of test: those of nccl-tests, and four of OSU's between pairs of ranks. Each runs one operation, fills in
 * what goes into it, checks what comes out, and says what its bandwidth is.
 */
#ifndef BENCH_KINDS_H
#define BENCH_KINDS_H

#include "values.h"

#define BENCH_WINDOW 64 /* messages under way at once, as OSU's osu_bw has it */

#define BENCH_MOST_TOGETHER 256 /* operations in one group */

/* One operation, as it is being measured. */
struct bench_case {
    cddp_comm *comm;
    int rank, n;
    bool blocking;            /* by functions that wait; else begun by cddp_coll_start */
    int together;             /* so many of it, as one group, each with its part of the memory */
    size_t in_step, out_step; /* bytes from one to the next */
    size_t *counts;           /* 2 n, for the kind that needs them */
    const struct bench_type *type;
    const struct bench_op *op; /* NULL: the kind reduces nothing */
    int root;                  /* 0 where the kind has none */
    size_t count;              /* elements, as the table shows them */
    void *in, *out;
    unsigned round; /* other values in each */
};

enum bench_place {
    BENCH_APART,    /* in and out never overlap */
    BENCH_SAME,     /* in == out */
    BENCH_PART_OUT, /* in is this rank's block of out */
    BENCH_PART_IN   /* out is this rank's block of in */
};

struct bench_kind {
    const char *name, *about;
    bool reduces, rooted;
    bool blocks_in, blocks_out; /* a block of `count` elements for each rank; else one */
    enum bench_place place;
    bool power_of_two; /* of ranks only */
    bool pairs;        /* of ranks; times are those of an iteration, whatever it holds */
    cddp_coll coll;    /* the operation, by its name in cddp.h; otherwise one of the next two says what it is */
    size_t (*ops)(const struct bench_case *c, cddp_coll_args *a); /* fills in 1 or 2, which run as one group */
    cddp_status (*start)(const struct bench_case *c,
                         uint64_t *ticket);             /* several groups, which use each other's result */
    void (*fill)(const struct bench_case *c, void *in); /* in: host memory, as large as the input */
    size_t (*wrong)(const struct bench_case *c, const void *out);
    double (*algorithm)(int n); /* times count times element size: the bytes of the algorithm bandwidth */
    double (*bus)(int n);       /* the bus bandwidth by the algorithm's, as nccl-tests' PERFORMANCE.md derives it */
};

extern const struct bench_kind bench_kinds[];
extern const int bench_n_kinds;

/* Begins c->together operations, or runs them where c->blocking. *ticket: to wait for; 0 if they are done. */
cddp_status bench_start(const struct bench_kind *kind, const struct bench_case *c, uint64_t *ticket);
/* Does this rank take part? In kinds with pairs some have no peer. */
bool bench_takes_part(const struct bench_kind *kind, const struct bench_case *c);

#endif
