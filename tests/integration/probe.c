/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that misbehaves on request, for the integration tests: probe MODE.
 *   init       join, leave
 *   dup        rank 1 claims rank 0
 *   absent     rank 1 never joins
 *   shapes     rank 1 has another shape for one parameter; every rank says what it was told before one of them ends
 *   order      rank 1 calls another collective
 *   forever    all-reduce until killed; with a grandchild in a session of its own
 *   loop       all-reduce of small and large sizes until killed, or until a collective fails: then say why and leave
 *   freeze     all-reduce of rank 0 with a rank 1 that has stopped itself (SIGSTOP)
 *   stop       ignore SIGTERM, and end well when cddprun asks this worker to stop
 *   die        as forever, but rank 1 kills itself with SIGKILL after 20 rounds; the others print what they were told
 */
#include <cddp/cddp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int complain(cddp_status st)
{
    fprintf(stderr, "probe: %s: %s\n", cddp_status_name(st), cddp_last_error());
    return 3;
}

/* Complain, and leave only when the other rank has complained too: the first to end takes all with it. */
static int complain_together(cddp_comm *comm, cddp_status st)
{
    const char *both[] = {"complained/0", "complained/1"};
    cddp_store *store = cddp_comm_store(comm);
    int rc = complain(st);

    (void)cddp_store_set(store, both[cddp_rank(comm)], "", 0);
    (void)cddp_store_wait(store, both, 2, 5000);
    return rc;
}

static int shapes(cddp_comm *comm)
{
    static float w[12], b[3];
    size_t shape[2] = {4, 3};
    cddp_param params[] = {
        {.name = "fc.weight", .data = w, .count = 12, .dtype = CDDP_FLOAT32, .shape = shape, .n_dims = 2},
        {.name = "fc.bias", .data = b, .count = 3, .dtype = CDDP_FLOAT32},
    };
    cddp_ddp *ddp;
    cddp_status st;

    if (cddp_rank(comm) == 1) {
        shape[0] = 3;
        shape[1] = 4;
    }
    st = cddp_ddp_create(&ddp, comm, params, 2, NULL);
    if (st != CDDP_OK)
        return complain_together(comm, st);
    cddp_ddp_destroy(ddp);
    return 0;
}

static int order(cddp_comm *comm)
{
    float x[4] = {0};
    cddp_status st = cddp_rank(comm) == 1 ? cddp_broadcast(comm, x, 4, CDDP_FLOAT32, 0)
                                          : cddp_all_reduce(comm, x, x, 4, CDDP_FLOAT32, CDDP_SUM);

    return st == CDDP_OK ? 0 : complain(st);
}

static void start_grandchild(void)
{
    if (fork() == 0) {
        (void)setsid();
        if (fork() == 0)
            for (;;)
                (void)pause();
        for (;;)
            (void)pause();
    }
}

static int forever(cddp_comm *comm, int die_at)
{
    float x[256] = {0};

    start_grandchild();
    for (long i = 0;; i++) {
        cddp_status st = cddp_all_reduce(comm, x, x, 256, CDDP_FLOAT32, CDDP_MEAN);

        if (st != CDDP_OK)
            return complain(st);
        if (i == 20 && cddp_rank(comm) == 0) {
            printf("running\n");
            (void)fflush(stdout);
        }
        if (i == die_at && cddp_rank(comm) == 1)
            (void)raise(SIGKILL);
    }
}

static int loop(cddp_comm *comm)
{
    static float x[1 << 18];

    for (long i = 0;; i++) {
        cddp_status st = cddp_all_reduce(comm, x, x, i % 2 == 0 ? 16 : 1 << 18, CDDP_FLOAT32, CDDP_MEAN);

        if (st != CDDP_OK)
            return complain(st);
        if (i == 4) {
            printf("running\n");
            (void)fflush(stdout);
        }
    }
}

static int freeze(cddp_comm *comm)
{
    float x[4] = {0};
    cddp_status st;

    if (cddp_rank(comm) == 1)
        (void)raise(SIGSTOP);
    st = cddp_all_reduce(comm, x, x, 4, CDDP_FLOAT32, CDDP_SUM);
    return st == CDDP_OK ? 0 : complain(st);
}

static int stop(const cddp_comm *comm)
{
    const struct timespec ms = {.tv_nsec = 1000000};

    (void)signal(SIGTERM, SIG_IGN);
    printf(cddp_stop_wanted(comm) ? "asked already\n" : "up\n");
    (void)fflush(stdout);
    while (!cddp_stop_wanted(comm))
        (void)nanosleep(&ms, NULL);
    printf("asked to stop\n");
    return 0;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "init";
    const char *rank = getenv("RANK");
    cddp_comm *comm;
    cddp_status st;
    int rc = 0;

    if (strcmp(mode, "dup") == 0)
        (void)setenv("RANK", "0", 1);
    if (strcmp(mode, "absent") == 0 && rank != NULL && strcmp(rank, "1") == 0)
        for (;;)
            (void)pause();
    st = cddp_init(&comm, NULL);
    if (st != CDDP_OK)
        return complain(st);
    if (strcmp(mode, "shapes") == 0)
        rc = shapes(comm);
    else if (strcmp(mode, "order") == 0)
        rc = order(comm);
    else if (strcmp(mode, "forever") == 0)
        rc = forever(comm, -1);
    else if (strcmp(mode, "loop") == 0)
        rc = loop(comm);
    else if (strcmp(mode, "freeze") == 0)
        rc = freeze(comm);
    else if (strcmp(mode, "stop") == 0)
        rc = stop(comm);
    else if (strcmp(mode, "die") == 0)
        rc = forever(comm, 40);
    else
        printf("rank %d of %d joined\n", cddp_rank(comm), cddp_world_size(comm));
    (void)cddp_finalize(comm);
    return rc;
}
