/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks of the CPU backend in one test, without a launcher or a store: as child processes, or as threads of one
 * process that share one mapping of each segment (so that ThreadSanitizer sees the protocol between ranks).
 */
#ifndef CDI_TEST_RANKS_H
#define CDI_TEST_RANKS_H

#include "worker/backend/cpu/cpu.h"

#include <stdatomic.h>
#include <stdio.h>

#define RANKS_MAX 8

/* Shared by all ranks of a test, also by processes. */
struct ranks_board {
    struct {
        _Atomic int ready; /* 0, 1: being written, 2 */
        char name[96], text[512];
    } entry[64];
    _Atomic int flag[8]; /* the test's own */
};

/* Ranks by node: how many each has. Ended by 0. Nodes are emulated on this host: they share no memory. */
struct ranks_layout {
    const char *name;
    int node_size[RANKS_MAX + 1];
};

struct rank {
    int rank, size;
    const struct cdi_backend_ops *ops;
    struct cdi_world world;
    struct cdi_backend *b; /* NULL until rank_open */
    struct ranks_board *board;
    struct cdi_mapper mapper; /* for ranks that are threads */
    struct cdi_error err;
    const void *arg;
};

typedef int (*rank_fn)(struct rank *r); /* 0: all was as it should be */

/* Where the ranks of the test meet. */
struct cdi_meet rank_meet(struct rank *r);
/* Make r->b; its status. */
cddp_status rank_open(struct rank *r);
void rank_close(struct rank *r);

/*
 * Run fn in n child processes, each with a timeout in seconds. status[] (n, may be NULL) gets what waitpid said.
 * Returns the number of children that did not end with exit status 0. In a child fd and memory leaks are failures too.
 */
int ranks_fork(int n, unsigned timeout_s, rank_fn fn, const void *arg, int *status);
/* The same for a layout. */
int ranks_fork_on(const struct ranks_layout *l, unsigned timeout_s, rank_fn fn, const void *arg, int *status);
int ranks_total(const struct ranks_layout *l);
/* Run fn in n threads. Returns the number of them that did not return 0. */
int ranks_threads(int n, rank_fn fn, const void *arg);
int ranks_threads_on(const struct ranks_layout *l, rank_fn fn, const void *arg);

/* For bodies: unless cond holds, say where and return 1. */
#define RANK_CHECK(cond, ...)                                                           \
    do {                                                                                \
        if (!(cond)) {                                                                  \
            fprintf(stderr, "rank %d: %s:%d: %s:", r->rank, __FILE__, __LINE__, #cond); \
            fprintf(stderr, " " __VA_ARGS__);                                           \
            fprintf(stderr, " [%s]\n", r->err.msg);                                     \
            return 1;                                                                   \
        }                                                                               \
    } while (0)

/* An operation and its end. */
cddp_status rank_do(struct rank *r, const struct cdi_op *op);

#endif
