/* SPDX-License-Identifier: Apache-2.0 */
#include <cddp/cddp.h>
#include <stdio.h>

int main(void) /* find w so that w * x = 3 * x, each rank with an x of its own */
{
    float w = 0.0f;
    cddp_param p = {.name = "w", .data = &w, .count = 1, .dtype = CDDP_FLOAT32};
    cddp_comm *comm;
    cddp_ddp *ddp;
    if (cddp_init(&comm, NULL) || cddp_ddp_create(&ddp, comm, &p, 1, NULL))
        return fprintf(stderr, "%s\n", cddp_last_error()), 1;
    float x = 1.0f / (float)(1 + cddp_rank(comm)), *grad = cddp_ddp_grad(ddp, 0);
    for (int step = 0; step < 1000; step++) {
        *grad = (w * x - 3.0f * x) * x; /* the backward pass of this rank's samples */
        cddp_ddp_grad_ready(ddp, 0);    /* its all-reduce may start now */
        if (cddp_ddp_wait(ddp))         /* *grad is the mean over all ranks */
            return fprintf(stderr, "%s\n", cddp_last_error()), 1;
        w -= 0.1f * *grad; /* the optimizer step */
    }
    printf("rank %d: w = %.3f\n", cddp_rank(comm), w);
    cddp_ddp_destroy(ddp);
    return cddp_finalize(comm) == CDDP_OK ? 0 : 1;
}
