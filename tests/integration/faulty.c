/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training program whose rank 1 makes a mistake, and which ends with status 3 after an error: faulty HOW
 *   forgets   a gradient is missing in one step
 *   size      a collective has another size than those of the other ranks
 *   threads   1,000 threads run when the rank crashes; after it, as it dies slowly, the others may be gone before it
 *   gone      the same without the crash of a thread's stack: the main thread has ended, and another one crashes
 *   throws    forgets; the others abort(), as a C++ program does that catches nothing
 *   slow      forgets; the rank needs long to end, and the others do not
 */
#include <cddp/cddp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N 4
#define THREADS 1000
#define COUNT 1000
#define FAILING_STEP 3
#define SLOW_S 60

static const char *how;
static cddp_comm *comm;
static int rank;
static float weights[N][COUNT];

static bool is(const char *name)
{
    return strcmp(how, name) == 0;
}

static _Noreturn void leave(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, cddp_last_error());
    if (is("throws") && rank != 1)
        abort();
    if (is("slow") && rank == 1)
        (void)sleep(SLOW_S);
    exit(3);
}

static void *idle(void *arg)
{
    for (;;)
        (void)pause();
    return arg;
}

static void crash(void)
{
    volatile int *nowhere = NULL;

    *nowhere = 1;
}

static void *crash_later(void *arg)
{
    (void)usleep(100000);
    crash();
    return arg;
}

static void start_threads(int n, void *(*body)(void *))
{
    pthread_attr_t attr;
    pthread_t thread;

    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, 65536);
    for (int i = 0; i < n; i++)
        if (pthread_create(&thread, &attr, body, NULL) != 0)
            _exit(99);
    (void)pthread_attr_destroy(&attr);
}

static void train(cddp_ddp *ddp, int step)
{
    const bool bad = rank == 1 && step == FAILING_STEP;

    for (size_t i = 0; i < N; i++)
        if (!bad || i != 2 || is("size") || is("threads") || is("gone"))
            (void)cddp_ddp_grad_ready(ddp, i);
    if (bad && is("threads"))
        crash();
    if (cddp_ddp_wait(ddp) != CDDP_OK)
        leave("cddp_ddp_wait");
    if (is("size") && step == FAILING_STEP &&
        cddp_all_reduce(comm, weights[0], weights[0], rank == 1 ? COUNT - 1 : COUNT, CDDP_FLOAT32, CDDP_SUM) != CDDP_OK)
        leave("cddp_all_reduce");
}

int main(int argc, char **argv)
{
    cddp_param params[N];
    cddp_ddp *ddp;

    if (argc < 2)
        return 2;
    how = argv[1];
    if (cddp_init(&comm, NULL) != CDDP_OK)
        leave("cddp_init");
    rank = cddp_rank(comm);
    for (int i = 0; i < N; i++)
        params[i] = (cddp_param){
            .size = sizeof params[i], .name = "layer", .data = weights[i], .count = COUNT, .dtype = CDDP_FLOAT32};
    if (rank == 1 && is("threads"))
        start_threads(THREADS, idle);
    if (cddp_ddp_create(&ddp, comm, params, N, NULL) != CDDP_OK)
        leave("cddp_ddp_create");
    if (rank == 1 && is("gone")) {
        start_threads(1, crash_later);
        pthread_exit(NULL);
    }
    for (int step = 0; step < 2 * FAILING_STEP; step++)
        train(ddp, step);
    return 0;
}
