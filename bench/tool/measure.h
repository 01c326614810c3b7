/* SPDX-License-Identifier: Apache-2.0 */
/* How cddp-bench times and checks one case, out of place or in place. */
#ifndef BENCH_MEASURE_TOOL_H
#define BENCH_MEASURE_TOOL_H

#include "options.h"

/* What every part of a run knows. */
struct bench {
    struct bench_options opt;
    cddp_comm *world, *comm; /* comm: this rank's group, or the world */
    bool prints;             /* rank 0 of the world */
};

/* What the table shows of one way to run, in place or not. */
struct bench_figure {
    double seconds, algorithm, bus;
    double wrong; /* below 0: not checked */
    double slowest;
    int slowest_rank;
};

/* The memory of one case, c->together times over. in and out: where the data begins, -u elements further on. */
struct bench_buffers {
    void *in_memory, *out_memory;
    char *in, *out;
    size_t in_bytes, out_bytes; /* of one operation */
};

/* Ends the program with libcddp's error message unless status is CDDP_OK. */
void bench_need(const struct bench *b, cddp_status status, const char *doing);
double bench_now(void);
/* Sets c->count for a size of `bytes`, and allocates. Collective if -R asks for memory of all ranks. */
void bench_buffers_get(const struct bench *b, const struct bench_kind *kind, struct bench_case *c, size_t bytes,
                       struct bench_buffers *m);
void bench_buffers_free(const struct bench *b, struct bench_buffers *m);
/* Collective over the group. The same result on every rank of it. */
struct bench_figure bench_measure(const struct bench *b, const struct bench_kind *kind, const struct bench_buffers *m,
                                  struct bench_case *c, bool in_place);

#endif
