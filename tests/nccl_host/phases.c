/* SPDX-License-Identifier: Apache-2.0 */
/*
 * phases PHASE VICTIM US: a rank of the NCCL backend that goes through the phases of a job; VICTIM is killed US after
 * it has begun PHASE. The others print the error that ends them, "SURVIVOR RANK PHASE: ...", or "LEFT RANK".
 */
#include <cddp/cddp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STEPS 20000 /* until the kill, at most */

static const char *wanted, *now = "init";
static int victim, after_us;

static int rank(void)
{
    const char *text = getenv("RANK");

    return text != NULL ? atoi(text) : 0;
}

static void begin(const char *phase)
{
    pid_t me = getpid();

    now = phase;
    if (rank() != victim || strcmp(phase, wanted) != 0 || fork() != 0)
        return;
    (void)usleep((useconds_t)after_us);
    (void)kill(me, SIGKILL);
    _exit(0);
}

static void must(cddp_status st)
{
    if (st == CDDP_OK)
        return;
    (void)fprintf(stderr, "SURVIVOR %d %s: %s\n", rank(), now, cddp_last_error());
    exit(1);
}

int main(int argc, char **argv)
{
    cddp_init_options o = {.size = sizeof o, .backend = "nccl"};
    cddp_comm *comm = NULL, *part = NULL;
    void *x = NULL;

    if (argc != 4)
        return 2;
    wanted = argv[1];
    victim = atoi(argv[2]);
    after_us = atoi(argv[3]);
    begin("init");
    must(cddp_init(&comm, &o));
    must(cddp_alloc(comm, 1 << 20, 0, &x));
    begin("split");
    must(cddp_comm_split(&part, comm, 0, cddp_rank(comm), NULL));
    begin("first");
    must(cddp_all_reduce(part, x, x, 100000, CDDP_FLOAT32, CDDP_SUM));
    begin("step");
    for (int i = 0; i < (strcmp(wanted, "leave") == 0 ? 3 : STEPS); i++)
        must(cddp_all_reduce(i % 2 == 0 ? comm : part, x, x, 100000, CDDP_FLOAT32, CDDP_SUM));
    begin("leave");
    cddp_free(comm, x);
    must(cddp_finalize(part));
    must(cddp_finalize(comm));
    (void)fprintf(stderr, "LEFT %d\n", rank());
    if (rank() == victim)
        (void)pause(); /* until the kill */
    return 0;
}
