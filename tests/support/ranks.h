/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks of a backend in one test, without a launcher or a store: as child processes, or, on the CPU, as threads
 * of one process that share one mapping of each segment (so that ThreadSanitizer sees the protocol between ranks).
 * Ranks of a device backend have the test as their agent, which tells them of deaths.
 */
#ifndef CDI_TEST_RANKS_H
#define CDI_TEST_RANKS_H

#include "worker/backend/cpu/cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#define RANKS_MAX 48

/* Shared by all ranks of a test, including processes. */
struct ranks_board {
    _Atomic int flag[8]; /* for the test */
    /* In place of the job's store. */
    pthread_mutex_t lock; /* robust: a rank may die while it holds it */
    struct {
        char name[128];
        uint8_t value[1200];
        size_t len;
        int64_t number;
        bool is_set;
    } key[1024];
};

/* The number of ranks of each node, ended by 0. Nodes are emulated on this host: they share no memory. */
struct ranks_layout {
    const char *name;
    int node_size[RANKS_MAX + 1];
    const char *module; /* NULL: the CPU backend; "nccl", "mpi" */
};

/* What a part of a rank's backend uses. */
struct rank_part {
    struct rank_part *next;
    int ranks[RANKS_MAX];
    char prefix[24]; /* of its keys */
    struct cdi_oob board;
    struct cdi_flight *record;
};

struct rank {
    int rank, size;
    const struct cdi_backend_ops *ops;
    struct cdi_world world;
    struct cdi_backend *b; /* NULL until rank_open */
    struct ranks_board *board;
    struct cdi_mapper mapper;         /* for ranks that are threads */
    const struct cdi_choice_net *net; /* assumed by rank_open; NULL: found out */
    struct cdi_error err;
    const void *arg;
    const char *module;
    bool on_device;          /* memory and streams are a device's */
    unsigned n_done;         /* operations; every other one on a device is over host memory */
    struct rank_part *parts; /* the newest first */
    int n_parts;
};

typedef int (*rank_fn)(struct rank *r); /* 0: success */

/* Returns the out-of-band exchange of the ranks of the test: the board. rank_open() puts it into r->world. */
struct cdi_oob rank_oob(struct rank *r);
/* Creates r->b; returns the status. */
cddp_status rank_open(struct rank *r);
void rank_close(struct rank *r);
/* Divides r->b as cddp_comm_split does. The caller destroys *out before rank_close(); at most 4 times. */
cddp_status rank_split(struct rank *r, const struct cdi_split *how, struct cdi_backend **out);

/*
 * Runs fn in n child processes, each with a timeout in seconds, which a busy machine makes longer. Sets status[] (n,
 * may be NULL) to the values of waitpid. Returns the number of children that did not end with exit status 0. In a child
 * fd and memory leaks are failures, too.
 */
int ranks_fork(int n, unsigned timeout_s, rank_fn fn, const void *arg, int *status);
/* Runs fn likewise for a layout. */
int ranks_fork_on(const struct ranks_layout *l, unsigned timeout_s, rank_fn fn, const void *arg, int *status);
int ranks_total(const struct ranks_layout *l);
/* Initialises a board in zeroed memory. */
void ranks_board_init(struct ranks_board *b);
/* Runs fn in this process, which another one started as this rank, like a child of ranks_fork_on(). */
int ranks_run_here(int rank, const struct ranks_layout *l, unsigned timeout_s, struct ranks_board *board, rank_fn fn);
/* Runs fn in a thread for each rank. Returns the number of them that did not return 0. */
int ranks_threads_on(const struct ranks_layout *l, rank_fn fn, const void *arg);

/*
 * Did all ranks succeed, but for `killed`, which SIGKILL has ended (-1: none)? bad and status are of ranks_fork().
 */
bool ranks_ended_well(int bad, const int *status, int killed);
/* Prints the next line of a TAP program; ranks_plan() prints how many there were, and returns the exit status. */
void ranks_result(bool ok, const char *what);
int ranks_plan(void);
/*
 * Runs each test whose text contains argv[1], or all, in the ranks of the layout, each with a timeout in seconds;
 * prints TAP, and returns the exit status.
 */
struct ranks_test {
    const char *what;
    rank_fn fn;
    int killed; /* a rank; -1: none */
    const void *arg;
};
int ranks_main(const struct ranks_layout *l, unsigned timeout_s, const struct ranks_test *test, size_t n, int argc,
               char **argv);
/* Sleeps for a millisecond. */
void rank_nap(void);
/* Sleeps for so many. */
void rank_sleep(int ms);
/* Waits until this flag of the board is set. */
void rank_await(const struct rank *r, int flag);
/* Returns milliseconds on a clock that ranks share, modulo 2^30. */
int rank_now(void);
/* Has another process kill this one so many microseconds later, and note in flag[0] of the board when. */
void rank_have_me_killed(struct rank *r, int after_us);

/* For bodies: unless cond holds, prints the place and returns 1. */
#define RANK_CHECK(cond, ...)                                                           \
    do {                                                                                \
        if (!(cond)) {                                                                  \
            fprintf(stderr, "rank %d: %s:%d: %s:", r->rank, __FILE__, __LINE__, #cond); \
            fprintf(stderr, " " __VA_ARGS__);                                           \
            fprintf(stderr, " [%s]\n", r->err.msg);                                     \
            return 1;                                                                   \
        }                                                                               \
    } while (0)

/* Runs an operation on host memory; on a device every other one runs on a copy there. */
cddp_status rank_do(struct rank *r, const struct cdi_coll *op);
/* Copy memory to the backend and back; a failure ends the process. */
void *rank_lend(struct rank *r, const void *p, size_t bytes);
void rank_return(struct rank *r, void *p, void *lent, size_t bytes); /* p NULL: only free it */

#endif
