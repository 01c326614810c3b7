/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cddp_should_stop over real ranks; started by cddprun. Every rank checks that all get the same answer in the same
 * call, and exits 0 if so. Memory is where the backend has it, so the same program runs on a GPU.
 *
 * - steps: asks after every step of a reducer; the question travels with the steps
 * - seldom: asks after every third step
 * - alone: asks without a reducer
 * - two: two reducers take turns
 * - parts: a part of the communicator requests; its own ranks learn of it there, and all in the whole
 * - uneven: ranks with different numbers of steps (CDDP_DDP_JOIN) ask after an epoch
 * - agreed: after the answer 1, ranks ask differently often: nothing is communicated any more
 * - wrong: arguments that are refused, and calls on a communicator that is over
 * - until DIR: asks after every step until the answer is 1; notes in DIR that it runs, and the step at which it leaves.
 *   With LATE, rank 1 first waits for so many seconds in the step; with CODE, ranks exit with this status
 * - time N: prints the time of a step that asks, and of one that does not, in ns
 */
#include "rank_check.h"

#include <cddp/cddp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COUNT 4096
#define MOST 40 /* steps of a run that is to stop earlier */

static cddp_comm *comm;
static int rank, n_ranks;

static void *memory[2]; /* of the reducers */
static int n_memory;

static cddp_ddp *make_reducer(unsigned flags)
{
    static const float zero[COUNT];
    cddp_param p = {.size = sizeof p, .name = "w", .count = COUNT, .dtype = CDDP_FLOAT32};
    const cddp_ddp_options opt = {.size = sizeof opt, .flags = flags};
    cddp_ddp *ddp = NULL;

    CHECK(cddp_alloc(comm, sizeof zero, 0, &p.data) == CDDP_OK && cddp_copy(comm, p.data, zero, sizeof zero) == CDDP_OK,
          "memory");
    memory[n_memory++] = p.data;
    CHECK(cddp_ddp_create(&ddp, comm, &p, 1, &opt) == CDDP_OK, "a reducer");
    return ddp;
}

static cddp_status step(cddp_ddp *ddp)
{
    cddp_status st = cddp_ddp_grad_ready(ddp, 0);

    return st == CDDP_OK ? cddp_ddp_wait(ddp) : st;
}

static int ask(cddp_comm *c)
{
    int stop = -1;

    CHECK(cddp_should_stop(c, &stop) == CDDP_OK, "should_stop");
    CHECK(stop == 0 || stop == 1, "%d", stop);
    return stop;
}

/* All ranks have left their loops after the same number of calls. */
static void check_equal(int calls, int least, int most)
{
    int32_t range[2] = {calls, -calls};

    CHECK(cddp_all_reduce(comm, range, range, 2, CDDP_INT32, CDDP_MAX) == CDDP_OK, "the range");
    CHECK(range[0] == calls && range[1] == -calls, "%d calls, of %d to %d", calls, -range[1], range[0]);
    CHECK(calls >= least && calls <= most, "%d calls, not %d to %d", calls, least, most);
}

/* The last rank requests a stop before this call. The answer may be that of the step before. */
static void loop(cddp_ddp **ddp, int n_reducers, int steps_per_call, int requested_at)
{
    int calls = 0, stop = 0;

    while (stop == 0 && calls < MOST) {
        for (int i = 0; i < steps_per_call; i++)
            for (int r = 0; r < n_reducers; r++)
                CHECK(step(ddp[r]) == CDDP_OK, "a step");
        calls++;
        if (calls == requested_at && rank == n_ranks - 1)
            CHECK(cddp_request_stop(comm) == CDDP_OK, "the request");
        stop = ask(comm);
    }
    check_equal(calls, requested_at, requested_at + 2);
}

static void steps_of(int n_reducers, int steps_per_call)
{
    cddp_ddp *ddp[2] = {NULL, NULL};

    for (int r = 0; r < n_reducers; r++)
        ddp[r] = make_reducer(0);
    loop(ddp, n_reducers, steps_per_call, 9);
    for (int r = 0; r < n_reducers; r++)
        cddp_ddp_destroy(ddp[r]);
}

static void parts(void)
{
    cddp_comm *part = NULL;
    const int color = rank == 0 ? 0 : 1;

    CHECK(cddp_comm_split(&part, comm, color, 0, NULL) == CDDP_OK, "the parts");
    CHECK(ask(part) == 0 && ask(comm) == 0, "nobody has requested it");
    if (rank == n_ranks - 1)
        CHECK(cddp_request_stop(part) == CDDP_OK, "the request");
    CHECK(ask(part) == (n_ranks == 1 || color == 1), "only one part has heard of it");
    CHECK(ask(comm) == 1 && ask(part) == (n_ranks == 1 || color == 1), "the whole job has");
    CHECK(cddp_finalize(part) == CDDP_OK, "the part");
    CHECK(ask(comm) == 1, "it stays");
}

static void uneven(void)
{
    cddp_ddp *ddp = make_reducer(CDDP_DDP_JOIN);

    CHECK(ask(comm) == 0, "at first");
    for (int epoch = 0; epoch < 3; epoch++) {
        for (int i = 0; i < 3 + rank; i++)
            CHECK(step(ddp) == CDDP_OK, "a step");
        CHECK(cddp_ddp_join(ddp) == CDDP_OK, "join");
        if (epoch == 1 && rank == 0)
            CHECK(cddp_request_stop(comm) == CDDP_OK, "the request");
        CHECK(ask(comm) == (epoch >= 1), "after epoch %d", epoch);
    }
    cddp_ddp_destroy(ddp);
}

static void agreed(void)
{
    cddp_ddp *ddp = make_reducer(0);
    float x[4] = {1, 1, 1, 1};

    CHECK(ask(comm) == 0, "at first");
    CHECK(cddp_request_stop(comm) == CDDP_OK && ask(comm) == 1, "all have requested it");
    for (int i = 0; i < 3 * rank; i++)
        CHECK(ask(comm) == 1, "it stays");
    CHECK(step(ddp) == CDDP_OK && ask(comm) == 1, "collectives work");
    CHECK(cddp_all_reduce(comm, x, x, 4, CDDP_FLOAT32, CDDP_SUM) == CDDP_OK && x[3] == (float)n_ranks, "and are right");
    cddp_ddp_destroy(ddp);
}

static void wrong(void)
{
    cddp_comm *part = NULL;
    int stop = 7;

    CHECK(cddp_should_stop(NULL, &stop) == CDDP_E_INVALID && stop == 7, "no communicator");
    CHECK(cddp_should_stop(comm, NULL) == CDDP_E_INVALID, "no place for the answer");
    CHECK(cddp_request_stop(NULL) == CDDP_E_INVALID, "no communicator");
    CHECK(setenv("CDDP_STOP_SIGNALS", "TERM,NONSENSE", 1) == 0, "setenv");
    CHECK(cddp_should_stop(comm, &stop) == CDDP_E_INVALID && strstr(cddp_last_error(), "NONSENSE") != NULL,
          "a bad list");
    CHECK(unsetenv("CDDP_STOP_SIGNALS") == 0 && ask(comm) == 0, "without it");
    CHECK(cddp_comm_split(&part, comm, 0, 0, NULL) == CDDP_OK, "a part, which is released late");
    CHECK(cddp_finalize(comm) == CDDP_OK, "the end");
    CHECK(cddp_should_stop(part, &stop) == CDDP_E_STATE && cddp_request_stop(part) == CDDP_E_STATE && stop == 7,
          "it is over");
    CHECK(cddp_finalize(part) == CDDP_OK, "the part");
    comm = NULL;
}

static void note(const char *folder, const char *what, int value)
{
    char path[4096];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/%s.%d.%d", folder, what, n_ranks, rank);
    f = fopen(path, "w");
    CHECK(f != NULL && fprintf(f, "%d\n", value) > 0 && fclose(f) == 0, "%s", path);
}

static int until(const char *folder)
{
    const char *late = getenv("LATE");
    const struct timespec a_while = {.tv_sec = late != NULL && rank == 1 ? atoi(late) : 0};
    const char *code = getenv("CODE");
    cddp_ddp *ddp = make_reducer(0);
    int n = 0, stop = 0;

    while (stop == 0) {
        if (step(ddp) != CDDP_OK) {
            fprintf(stderr, "rank %d: %s\n", rank, cddp_last_error());
            return 1;
        }
        if (++n == 20) {
            note(folder, "runs", n);
            (void)nanosleep(&a_while, NULL);
        }
        stop = ask(comm);
    }
    CHECK(cddp_barrier(comm) == CDDP_OK, "collectives work while ranks save");
    note(folder, "saved", n);
    cddp_ddp_destroy(ddp);
    return code != NULL ? atoi(code) : 0;
}

static double seconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double time_of(cddp_ddp *ddp, int n, int asks)
{
    double began;

    CHECK(cddp_barrier(comm) == CDDP_OK, "together");
    began = seconds();
    for (int i = 0; i < n; i++) {
        if (ddp != NULL)
            CHECK(step(ddp) == CDDP_OK, "a step");
        if (asks)
            (void)ask(comm);
    }
    return (seconds() - began) / n;
}

/* Turn by turn, and the least of each: the machine does other things, too. */
static void take_time(int n)
{
    cddp_ddp *ddp = make_reducer(0);
    double plain = 1, asking = 1, alone = 1;

    for (int i = 0; i < 9; i++) {
        double t = time_of(ddp, n, 0);

        plain = t < plain ? t : plain;
        t = time_of(ddp, n, 1);
        asking = t < asking ? t : asking;
        t = time_of(NULL, n, 1);
        alone = t < alone ? t : alone;
    }
    if (rank == 0)
        printf("step %.0f ns, step that asks %.0f ns, difference %.0f ns, call without a step %.0f ns\n", plain * 1e9,
               asking * 1e9, (asking - plain) * 1e9, alone * 1e9);
    cddp_ddp_destroy(ddp);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    int status = 0;

    CHECK(cddp_init(&comm, NULL) == CDDP_OK, "init");
    rank = cddp_rank(comm);
    n_ranks = cddp_world_size(comm);
    if (strcmp(mode, "steps") == 0)
        steps_of(1, 1);
    else if (strcmp(mode, "seldom") == 0)
        steps_of(1, 3);
    else if (strcmp(mode, "alone") == 0)
        loop(NULL, 0, 1, 9);
    else if (strcmp(mode, "two") == 0)
        steps_of(2, 1);
    else if (strcmp(mode, "parts") == 0)
        parts();
    else if (strcmp(mode, "uneven") == 0)
        uneven();
    else if (strcmp(mode, "agreed") == 0)
        agreed();
    else if (strcmp(mode, "wrong") == 0)
        wrong();
    else if (strcmp(mode, "until") == 0 && argc > 2)
        status = until(argv[2]);
    else if (strcmp(mode, "time") == 0 && argc > 2)
        take_time(atoi(argv[2]));
    else
        CHECK(0, "unknown mode '%s'", mode);
    while (n_memory > 0)
        cddp_free(comm, memory[--n_memory]);
    CHECK(cddp_finalize(comm) == CDDP_OK || status != 0, "the end");
    return status;
}
