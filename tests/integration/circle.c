/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Some steps of a reducer, after which the ranks 0, 1 and 2 wait for messages in a circle, and the others for them in a
 * barrier.
 */
#include <cddp/cddp.h>
#include <stdio.h>
#include <time.h>

#define STEPS 20
#define CIRCLE 3

static int complain(void)
{
    fprintf(stderr, "circle: %s\n", cddp_last_error());
    return 1;
}

static int train(cddp_ddp *ddp)
{
    const struct timespec computing = {.tv_nsec = 10000000};

    for (int step = 0; step < STEPS; step++) {
        (void)nanosleep(&computing, NULL);
        if (cddp_ddp_grad_ready(ddp, 0) != CDDP_OK || cddp_ddp_wait(ddp) != CDDP_OK)
            return complain();
    }
    return 0;
}

int main(void)
{
    static float weight[1024];
    float got;
    const cddp_param param = {
        .size = sizeof param, .name = "weight", .data = weight, .count = 1024, .dtype = CDDP_FLOAT32};
    cddp_comm *comm;
    cddp_ddp *ddp;
    int rank;

    if (cddp_init(&comm, NULL) != CDDP_OK || cddp_ddp_create(&ddp, comm, &param, 1, NULL) != CDDP_OK || train(ddp) != 0)
        return complain();
    rank = cddp_rank(comm);
    if (rank < CIRCLE && cddp_recv(comm, &got, 1, CDDP_FLOAT32, (rank + 1) % CIRCLE) != CDDP_OK)
        return complain();
    if (rank < CIRCLE && cddp_send(comm, &got, 1, CDDP_FLOAT32, (rank + CIRCLE - 1) % CIRCLE) != CDDP_OK)
        return complain();
    if (cddp_barrier(comm) != CDDP_OK)
        return complain();
    cddp_ddp_destroy(ddp);
    return cddp_finalize(comm) == CDDP_OK ? 0 : complain();
}
