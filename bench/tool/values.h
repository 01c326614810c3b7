/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks' inputs and the expected results: element i of rank r is a small number that each rank can work out for
 * every other, exact in all types, and so are its sums over some dozens of ranks.
 */
#ifndef BENCH_VALUES_H
#define BENCH_VALUES_H

#include <cddp/cddp.h>
#include <stdbool.h>

struct bench_type {
    const char *name; /* nccl-tests' */
    cddp_dtype dtype;
    int exponent_bits, fraction_bits; /* 0: a whole number */
};

struct bench_op {
    const char *name;
    cddp_redop op;
    bool of_floats, of_ints;
};

extern const struct bench_type bench_types[];
extern const struct bench_op bench_ops[];
extern const int bench_n_types, bench_n_ops;

/* Fill count elements with those of `rank` from element `first` on. */
void bench_fill(void *to, size_t count, const struct bench_type *type, int rank, size_t first, unsigned round);
/* How many of them are not those of `rank`. */
size_t bench_wrong(const void *got, size_t count, const struct bench_type *type, int rank, size_t first,
                   unsigned round);
/* How many are not the reduction over n ranks. Floating-point sums may differ by what rounding n times gives. */
size_t bench_wrong_reduced(const void *got, size_t count, const struct bench_type *type, const struct bench_op *op,
                           int n, size_t first, unsigned round);

#endif
