/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training loop that comes to a stop: `hang_worker MODE RANK STEP` makes that rank do what MODE says in that step, in
 * planted_function(). The others wait for it in a collective. MODE `part`: it sleeps, and its neighbour waits for it in
 * a part of two ranks, while the other ranks have left their parts and wait in a barrier of the whole. HANG_STAMP is a
 * file for the time of it, HANG_CGROUP a folder whose file cgroup.procs it enters, for `grow` and `freeze`.
 */
#include <cddp/cddp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WEIGHTS (1 << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile unsigned long counter;
static float data[1024];

static void sleep_for(double s)
{
    struct timespec t = {.tv_sec = (time_t)s, .tv_nsec = (long)((s - (double)(time_t)s) * 1e9)};

    while (nanosleep(&t, &t) != 0)
        ;
}

static void read_pipe(void)
{
    int ends[2];
    char c;

    if (pipe(ends) == 0)
        (void)!read(ends[0], &c, 1);
}

static void put(const char *folder, const char *name, const char *text)
{
    char path[4096];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s%s%s", folder, *name != '\0' ? "/" : "", name);
    f = fopen(path, "w");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
        perror(path);
}

static void stamp(void)
{
    const char *path = getenv("HANG_STAMP"), *group = getenv("HANG_CGROUP");
    struct timespec now;
    char text[64];

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    (void)snprintf(text, sizeof text, "%ld.%09ld", (long)now.tv_sec, now.tv_nsec);
    if (path != NULL)
        put(path, "", text);
    (void)snprintf(text, sizeof text, "%ld", (long)getpid());
    if (group != NULL)
        put(group, "cgroup.procs", text);
}

/* Until the limit of its memory cgroup stops it. */
static void grow(void)
{
    for (;;) {
        char *block = malloc(1 << 20);

        if (block == NULL)
            sleep_for(1);
        else
            memset(block, 1, 1 << 20);
        counter++;
    }
}

/* By the file that its cgroup has, of version 1 or 2. */
static void freeze(const char *group)
{
    char path[4096];

    (void)snprintf(path, sizeof path, "%s/cgroup.freeze", group);
    if (access(path, F_OK) == 0)
        put(group, "cgroup.freeze", "1");
    else
        put(group, "freezer.state", "FROZEN");
    sleep_for(3600);
}

/* Returns 1 if the rank is to leave out the step's own collective. */
__attribute__((noinline)) static int planted_function(const char *mode, cddp_comm *comm)
{
    int left_out = 0;

    stamp();
    if (strcmp(mode, "skip") == 0)
        left_out = 1;
    else if (strcmp(mode, "freeze") == 0 && getenv("HANG_CGROUP") != NULL)
        freeze(getenv("HANG_CGROUP"));
    else if (strcmp(mode, "grow") == 0)
        grow();
    else if (strcmp(mode, "sleep") == 0)
        sleep_for(3600);
    else if (strncmp(mode, "pause:", 6) == 0)
        sleep_for(atof(mode + 6));
    else if (strcmp(mode, "spin") == 0)
        for (;;)
            counter++;
    else if (strcmp(mode, "stop") == 0)
        (void)raise(SIGSTOP);
    else if (strcmp(mode, "mutex") == 0)
        left_out = pthread_mutex_lock(&lock) != 0 || pthread_mutex_lock(&lock) != 0;
    else if (strcmp(mode, "pipe") == 0)
        read_pipe();
    else if (strcmp(mode, "die") == 0)
        (void)raise(SIGKILL);
    else if (strcmp(mode, "other") == 0)
        left_out = cddp_broadcast(comm, data, 1024, CDDP_FLOAT32, 0) == CDDP_OK;
    else if (strcmp(mode, "size") == 0)
        left_out = cddp_all_reduce(comm, data, data, 512, CDDP_FLOAT32, CDDP_SUM) == CDDP_OK;
    counter++; /* no tail call: the function stays on the stack */
    return left_out;
}

static int complain(void)
{
    fprintf(stderr, "hang_worker: %s\n", cddp_last_error());
    return 1;
}

static int train(cddp_comm *comm, cddp_ddp *ddp, const char *mode, int rank, long at)
{
    for (long step = 0; step < 100000; step++) {
        int left_out = 0;

        for (size_t i = 2; i-- > 0;)
            if (cddp_ddp_grad_ready(ddp, i) != CDDP_OK)
                return complain();
        if (cddp_ddp_wait(ddp) != CDDP_OK)
            return complain();
        if (step == at && cddp_rank(comm) == rank)
            left_out = planted_function(mode, comm);
        if (!left_out && cddp_all_reduce(comm, data, data, 1024, CDDP_FLOAT32, CDDP_SUM) != CDDP_OK)
            return complain();
        if (step == at + 100 && strncmp(mode, "pause:", 6) == 0)
            return 0;
        sleep_for(0.02);
    }
    return 0;
}

/* Each two neighbours train in a part; then all meet. */
static int train_in_parts(cddp_comm *comm, int rank, long at)
{
    cddp_split_options opt = {.size = sizeof opt, .name = "tp"};
    cddp_comm *part;

    if (cddp_comm_split(&part, comm, cddp_rank(comm) / 2, 0, &opt) != CDDP_OK)
        return complain();
    for (long step = 0; step <= at; step++) {
        if (step == at && cddp_rank(comm) == rank)
            (void)planted_function("sleep", part);
        if (cddp_all_reduce(part, data, data, 1024, CDDP_FLOAT32, CDDP_SUM) != CDDP_OK)
            return complain();
    }
    return cddp_barrier(comm) == CDDP_OK && cddp_finalize(part) == CDDP_OK && cddp_finalize(comm) == CDDP_OK
               ? 0
               : complain();
}

int main(int argc, char **argv)
{
    static float weight[WEIGHTS], bias[16];
    cddp_param params[] = {
        {.size = sizeof(cddp_param), .name = "layer1.weight", .data = weight, .count = WEIGHTS, .dtype = CDDP_FLOAT32},
        {.size = sizeof(cddp_param), .name = "layer1.bias", .data = bias, .count = 16, .dtype = CDDP_FLOAT32},
    };
    cddp_comm *comm;
    cddp_ddp *ddp;
    int rc;

    if (argc != 4) {
        fprintf(stderr, "usage: hang_worker MODE RANK STEP\n");
        return 2;
    }
    if (strcmp(argv[1], "part") == 0)
        return cddp_init(&comm, NULL) == CDDP_OK ? train_in_parts(comm, atoi(argv[2]), atol(argv[3])) : complain();
    if (cddp_init(&comm, NULL) != CDDP_OK || cddp_ddp_create(&ddp, comm, params, 2, NULL) != CDDP_OK)
        return complain();
    rc = train(comm, ddp, argv[1], atoi(argv[2]), atol(argv[3]));
    if (rc != 0)
        return rc;
    cddp_ddp_destroy(ddp);
    return cddp_finalize(comm) == CDDP_OK ? 0 : complain();
}
