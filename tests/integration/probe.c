/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker that misbehaves on request, for the integration tests: probe MODE.
 *   init       join, leave
 *   dup        rank 1 claims rank 0
 *   absent     rank 1 never joins
 *   shapes     rank 1 has another shape for one parameter; every rank prints its error before one of them exits
 *   order      rank 1 calls another collective
 *   create     rank 0 makes a reducer, rank 1 calls a barrier
 *   save       rank 0 saves a checkpoint in $TMPDIR, rank 1 calls a barrier
 *   lag        rank 1 does not enter the first step of a reducer
 *   forever    all-reduce until killed; with a grandchild in a separate session
 *   loop       all-reduce of small and large sizes until killed, or until one fails: then print the error and exit
 *   freeze     all-reduce of rank 0 with a rank 1 that has stopped itself (SIGSTOP)
 *   desert     rank 1 exits with status 0 after 3 all-reduces, without cddp_finalize, while the others continue
 *   few        the same, but with cddp_finalize
 *   stop       ignore SIGTERM, and exit with 0 when cddprun requests a stop
 *   leave FOLDER [MORTAL]
 *              ignore SIGTERM (not rank MORTAL), all-reduce until all agree that one has a stop request, write a file,
 *              enter one more collective and exit with 0: FOLDER/runs.SIZE, then FOLDER/saved.SIZE.RANK
 *   die        as forever, but rank 1 kills itself with SIGKILL after 20 rounds; the others print their errors
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
        {.size = sizeof(cddp_param),
         .name = "fc.weight",
         .data = w,
         .count = 12,
         .dtype = CDDP_FLOAT32,
         .shape = shape,
         .n_dims = 2},
        {.size = sizeof(cddp_param), .name = "fc.bias", .data = b, .count = 3, .dtype = CDDP_FLOAT32},
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

/* Calls of rank 0 only, while its peers make another one. */
static int alone(cddp_comm *comm, const char *mode)
{
    static float w[12], b[3];
    const cddp_param params[] = {
        {.size = sizeof(cddp_param), .name = "fc.weight", .data = w, .count = 12, .dtype = CDDP_FLOAT32},
        {.size = sizeof(cddp_param), .name = "fc.bias", .data = b, .count = 3, .dtype = CDDP_FLOAT32},
    };
    const cddp_checkpoint_item item = {.size = sizeof(cddp_checkpoint_item), .name = "w", .data = w, .bytes = sizeof w};
    cddp_ddp *ddp = NULL;
    cddp_status st;

    if (strcmp(mode, "lag") == 0)
        st = cddp_ddp_create(&ddp, comm, params, 2, NULL);
    else if (cddp_rank(comm) != 0)
        st = cddp_barrier(comm);
    else if (strcmp(mode, "create") == 0)
        st = cddp_ddp_create(&ddp, comm, params, 2, NULL);
    else
        st = cddp_checkpoint_save(comm, getenv("TMPDIR"), 1, &item, 1, NULL);
    if (st == CDDP_OK && cddp_rank(comm) != 0)
        for (;;)
            (void)pause();
    for (size_t i = 2; st == CDDP_OK && i-- > 0;)
        st = cddp_ddp_grad_ready(ddp, i);
    if (st == CDDP_OK)
        st = cddp_ddp_wait(ddp);
    cddp_ddp_destroy(ddp);
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
        cddp_status st = cddp_all_reduce(comm, x, x, 256, CDDP_FLOAT32, CDDP_AVG);

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
        cddp_status st = cddp_all_reduce(comm, x, x, i % 2 == 0 ? 16 : 1 << 18, CDDP_FLOAT32, CDDP_AVG);

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

/* Rank 1 has fewer rounds. */
static int few(cddp_comm *comm)
{
    float x[4] = {0};

    for (long i = 0; cddp_rank(comm) != 1 || i < 3; i++) {
        cddp_status st = cddp_all_reduce(comm, x, x, 4, CDDP_FLOAT32, CDDP_AVG);

        if (st != CDDP_OK)
            return complain(st);
    }
    return 0;
}

static int stop(const cddp_comm *comm)
{
    const struct timespec ms = {.tv_nsec = 1000000};

    (void)signal(SIGTERM, SIG_IGN);
    printf(cddp_stop_requested(comm) ? "asked already\n" : "up\n");
    (void)fflush(stdout);
    while (!cddp_stop_requested(comm))
        (void)nanosleep(&ms, NULL);
    printf("asked to stop\n");
    return 0;
}

static int note(const char *folder, const char *what)
{
    char path[4096];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/%s", folder, what);
    f = fopen(path, "w");
    if (f != NULL)
        return fclose(f);
    perror(path);
    return -1;
}

static cddp_status agree_to_stop(cddp_comm *comm, const char *folder)
{
    cddp_status st = CDDP_OK;
    int32_t stop = 0;
    char name[64];

    for (long i = 0; st == CDDP_OK && stop == 0; i++) {
        stop = cddp_stop_requested(comm);
        st = cddp_all_reduce(comm, &stop, &stop, 1, CDDP_INT32, CDDP_MAX);
        (void)snprintf(name, sizeof name, "runs.%d", cddp_world_size(comm));
        if (i == 20 && cddp_rank(comm) == 0 && note(folder, name) != 0)
            return CDDP_E_SYSTEM;
    }
    return st;
}

/* A save takes its time: each rank's a different one, so that some wait for others in the last barrier. */
static int save_and_leave(cddp_comm *comm, const char *folder, const char *mortal)
{
    const struct timespec a_while = {.tv_nsec = 100000000L * (1 + cddp_rank(comm) % 4)};
    char name[64];
    cddp_status st;

    if (mortal == NULL || cddp_rank(comm) != atoi(mortal))
        (void)signal(SIGTERM, SIG_IGN);
    st = cddp_barrier(comm); /* from here on all ignore it */
    if (st == CDDP_OK)
        st = agree_to_stop(comm, folder);
    if (st != CDDP_OK)
        return complain(st);
    (void)nanosleep(&a_while, NULL);
    st = cddp_barrier(comm);
    if (st != CDDP_OK)
        return complain(st);
    (void)snprintf(name, sizeof name, "saved.%d.%d", cddp_world_size(comm), cddp_rank(comm));
    return note(folder, name) == 0 ? 0 : 3;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "init";
    const char *rank = getenv("RANK");
    static cddp_comm *comm; /* for the leak checker: whoever deserts keeps it */
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
    else if (strcmp(mode, "create") == 0 || strcmp(mode, "save") == 0 || strcmp(mode, "lag") == 0)
        rc = alone(comm, mode);
    else if (strcmp(mode, "forever") == 0)
        rc = forever(comm, -1);
    else if (strcmp(mode, "loop") == 0)
        rc = loop(comm);
    else if (strcmp(mode, "freeze") == 0)
        rc = freeze(comm);
    else if (strcmp(mode, "desert") == 0 || strcmp(mode, "few") == 0)
        rc = few(comm);
    else if (strcmp(mode, "stop") == 0)
        rc = stop(comm);
    else if (strcmp(mode, "leave") == 0 && argc > 2)
        rc = save_and_leave(comm, argv[2], argv[3]);
    else if (strcmp(mode, "die") == 0)
        rc = forever(comm, 40);
    else
        printf("rank %d of %d joined\n", cddp_rank(comm), cddp_world_size(comm));
    if (strcmp(mode, "desert") != 0)
        (void)cddp_finalize(comm);
    return rc;
}
