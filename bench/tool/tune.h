/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --tune: measures all ways between nodes, and writes the file of CDDP_COLL_TABLE that chooses the fastest. A way is
 * forced by a table, which libcddp reads when it joins: so the ranks leave and join again for each way in turn.
 */
#ifndef BENCH_TUNE_H
#define BENCH_TUNE_H

#include "measure.h"
#include "tune_choose.h"

#define BENCH_TUNE_KINDS 7
#define BENCH_TUNE_SIZES 40
#define BENCH_TUNE_ROUNDS 5

/* A collective of the table. */
struct bench_tune_kind {
    const char *name; /* the table's */
    const struct bench_kind *kind;
    struct bench_tune_limits limits;
    bool open_ended; /* of sizes that were not measured the direct exchange is the best if it is of the largest one */
};

struct bench_tune_series {
    struct bench_tune_kind of;
    size_t n;
    uint64_t sizes[BENCH_TUNE_SIZES]; /* that a rank brings, as the file shows them */
    uint64_t bytes[BENCH_TUNE_SIZES]; /* as measured: in whole blocks, a little less on some numbers of ranks */
    double seconds[BENCH_TUNE_SIZES][BENCH_WAYS][BENCH_TUNE_ROUNDS]; /* of the slowest rank; 0: does not run */
};

struct bench_tune {
    int nodes, least_ranks, most_ranks; /* ranks: of a node */
    int rounds;                         /* done */
    bool is_wrong;                      /* a result, on some rank: the same on all */
    struct bench_tune_series series[BENCH_TUNE_KINDS];
};

/* Fills in the collectives of the table. */
void bench_tune_kinds(struct bench_tune_kind *kinds);
/* Returns the text of the file, to be freed; NULL: out of memory. It sorts the times. */
char *bench_tune_text(struct bench_tune *t);
/* Can the file be written? Returns false after an error message. Changes nothing. */
bool bench_tune_can_write(const char *path);
/* Writes the file, whole or not at all. Returns false after an error message. */
bool bench_tune_write(const char *path, const char *text);
/* The next join is not to read the caller's table. Before the first cddp_init. */
void bench_tune_prepare(void);
/* Collective. b->world is another one afterwards. Returns the exit status of the program. */
int bench_tune_run(struct bench *b);

#endif
