/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slow_rank RANK MS STEPS: every rank trains, and RANK sleeps so long in each backward pass. Each rank prints what
 * cddp_ddp_get_stats() says, as one line of JSON.
 */
#include <cddp/cddp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define N_PARAMS 6
#define COUNT 20000

static void must(cddp_status st)
{
    if (st == CDDP_OK)
        return;
    (void)fprintf(stderr, "slow_rank: %s\n", cddp_last_error());
    exit(1);
}

static void print(int rank, const cddp_ddp_stats *s)
{
    (void)printf("{\"rank\": %d, \"steps\": %" PRIu64 ", \"step_ns\": %" PRId64 ", \"forward_ns\": %" PRId64
                 ", \"backward_ns\": %" PRId64 ", \"comm_ns\": %" PRId64 ", \"exposed_ns\": %" PRId64
                 ", \"hidden_ns\": %" PRId64 ", \"waiting_ns\": %" PRId64 ", \"transfer_ns\": %" PRId64
                 ", \"late_ns\": %" PRId64 ", \"bytes\": %" PRIu64 ", \"slowest\": %d, "
                 "\"slowest_steps\": %" PRIu64 ", \"last_slowest\": %d, \"last_step_ns\": %" PRId64
                 ", \"buckets\": %zu, \"bucket_bytes\": %zu, \"largest\": %zu, \"rebuilds\": %" PRIu64 "}\n",
                 rank, s->steps, s->step_ns, s->forward_ns, s->backward_ns, s->comm_ns, s->exposed_ns, s->hidden_ns,
                 s->waiting_ns, s->transfer_ns, s->late_ns, s->bytes, (int)s->slowest_rank, s->slowest_steps,
                 (int)s->last_slowest_rank, s->last_step_ns, s->n_buckets, s->bucket_bytes, s->largest_bucket_bytes,
                 s->rebuilds);
}

int main(int argc, char **argv)
{
    const cddp_ddp_options options = {.size = sizeof options, .bucket_bytes = 100000, .first_bucket_bytes = 80000};
    int slow = argc == 4 ? (int)strtol(argv[1], NULL, 10) : 0;
    long ms = argc == 4 ? strtol(argv[2], NULL, 10) : 0, steps = argc == 4 ? strtol(argv[3], NULL, 10) : 0;
    const struct timespec nap = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    cddp_ddp_stats stats = {.size = sizeof stats};
    static float data[N_PARAMS][COUNT];
    static char names[N_PARAMS][16];
    cddp_param params[N_PARAMS];
    cddp_comm *comm;
    cddp_ddp *ddp;

    if (argc != 4)
        return 2;
    must(cddp_init(&comm, NULL));
    for (size_t i = 0; i < N_PARAMS; i++) {
        (void)snprintf(names[i], sizeof names[i], "p%zu", i);
        params[i] = (cddp_param){
            .size = sizeof *params, .name = names[i], .data = data[i], .count = COUNT, .dtype = CDDP_FLOAT32};
    }
    must(cddp_ddp_create(&ddp, comm, params, N_PARAMS, &options));
    for (long step = 0; step < steps; step++) {
        for (size_t i = N_PARAMS; i-- > 0;) {
            if (i == N_PARAMS / 2 && cddp_rank(comm) == slow)
                (void)nanosleep(&nap, NULL);
            must(cddp_ddp_grad_ready(ddp, i));
        }
        must(cddp_ddp_wait(ddp));
    }
    must(cddp_ddp_get_stats(ddp, &stats));
    print(cddp_rank(comm), &stats);
    cddp_ddp_destroy(ddp);
    must(cddp_finalize(comm));
    return 0;
}
