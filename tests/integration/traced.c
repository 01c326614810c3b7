/* SPDX-License-Identifier: Apache-2.0 */
/*
 * traced SLOW MS STEPS FAIL: every rank trains, and rank SLOW sleeps MS in each backward pass. Before the first
 * restart, rank FAIL (-1: none) ends with status 7 in the middle. Each step ends with a small all-reduce. With a fifth
 * argument, a folder, it saves a checkpoint there at the end.
 */
#include <cddp/cddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define N_PARAMS 4
#define COUNT 20000

static void must(cddp_status st)
{
    if (st == CDDP_OK)
        return;
    (void)fprintf(stderr, "traced: %s\n", cddp_last_error());
    exit(1);
}

static void train(cddp_comm *comm, cddp_ddp *ddp, long slow, long ms, long steps, long fail)
{
    const struct timespec nap = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    float loss = 1;

    for (long step = 0; step < steps; step++) {
        if (step == steps / 2 && cddp_rank(comm) == fail && strcmp(getenv("TORCHELASTIC_RESTART_COUNT"), "0") == 0)
            exit(7);
        for (size_t i = N_PARAMS; i-- > 0;) {
            if (i == N_PARAMS / 2 && cddp_rank(comm) == slow)
                (void)nanosleep(&nap, NULL);
            must(cddp_ddp_grad_ready(ddp, i));
        }
        must(cddp_ddp_wait(ddp));
        must(cddp_all_reduce(comm, &loss, &loss, 1, CDDP_FLOAT32, CDDP_AVG));
    }
}

int main(int argc, char **argv)
{
    const cddp_ddp_options options = {.size = sizeof options, .bucket_bytes = 200000, .first_bucket_bytes = 80000};
    static float data[N_PARAMS][COUNT];
    cddp_param params[N_PARAMS];
    char names[N_PARAMS][16];
    cddp_comm *comm;
    cddp_ddp *ddp;

    if (argc != 5 && argc != 6)
        return 2;
    must(cddp_init(&comm, NULL));
    for (size_t i = 0; i < N_PARAMS; i++) {
        (void)snprintf(names[i], sizeof names[i], "layer%zu", i);
        params[i] = (cddp_param){
            .size = sizeof *params, .name = names[i], .data = data[i], .count = COUNT, .dtype = CDDP_FLOAT32};
    }
    must(cddp_ddp_create(&ddp, comm, params, N_PARAMS, &options));
    train(comm, ddp, strtol(argv[1], NULL, 10), strtol(argv[2], NULL, 10), strtol(argv[3], NULL, 10),
          strtol(argv[4], NULL, 10));
    if (argc == 6) {
        const cddp_checkpoint_item item = {.size = sizeof item, .name = "w", .data = data, .bytes = sizeof data};

        must(cddp_checkpoint_save(comm, argv[5], 77, &item, 1, NULL));
    }
    cddp_ddp_destroy(ddp);
    return cddp_finalize(comm) != CDDP_OK;
}
