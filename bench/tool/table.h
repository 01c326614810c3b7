/* SPDX-License-Identifier: Apache-2.0 */
/* What cddp-bench prints, in the lines and columns of nccl-tests, and its JSON file, with the members of theirs. */
#ifndef BENCH_TABLE_H
#define BENCH_TABLE_H

#include "measure.h"

#include <jansson.h>

/* One per run, on rank 0. */
struct bench_table {
    json_t *file, *rows; /* NULL: no JSON is asked for */
    char *notes;         /* lines that follow the table: between rows they would end it for programs that read it */
    size_t notes_size, n_left_out; /* of notes that there was no room for */
    FILE *notes_to;
    double bus_sum; /* of this test */
    int n_bus, n_rows;
    uint64_t n_wrong;
    bool too_slow; /* some test, by NCCL_TESTS_MIN_BW */
};

/* A rank, as the head shows it. */
struct bench_device {
    int rank, group, pid, device; /* device below 0: the rank has no GPU */
    const char *host, *pci, *name;
};

/* Zeroes *t, and tries whether the JSON file can be written. Returns false after an error message. */
bool bench_table_open(struct bench_table *t, const struct bench_options *o, int argc, char **argv);
/* The run begins: what an earlier one left in the JSON file must not be taken for its results. */
bool bench_table_begin(const struct bench_table *t, const struct bench_options *o);
void bench_table_device(struct bench_table *t, const struct bench_device *d);
void bench_table_head(struct bench_table *t, const struct bench_options *o, const char *kind);
/* in_place NULL: the test has no such form. */
/* Ends the program, with an error message, if stdout takes no more. */
void bench_table_row(struct bench_table *t, const struct bench_options *o, const struct bench_kind *kind,
                     const struct bench_case *c, size_t bytes, const struct bench_figure *apart,
                     const struct bench_figure *in_place);
/* A line after the table; printf's arguments. */
void bench_table_note(struct bench_table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* wrong: of all groups. */
void bench_table_foot(struct bench_table *t, const struct bench_options *o, const char *kind, uint64_t wrong);
/* Nothing is to be written: the run does not begin. */
void bench_table_drop_json(struct bench_table *t);
/* Writes the JSON file, and frees. Returns false after an error message. */
bool bench_table_close(struct bench_table *t, const struct bench_options *o);

#endif
