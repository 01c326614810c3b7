/* SPDX-License-Identifier: Apache-2.0 */
/* The same for many processes: each takes every n-th point, and the gradients are averaged. */
#include <cddp/cddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 4096 /* points */
#define D 8    /* their dimensions */

static float x[N][D], y[N], w[D];

static void make_points(void)
{
    unsigned seed = 1;

    for (int i = 0; i < N; i++)
        for (int d = 0; d < D; d++) {
            x[i][d] = (float)rand_r(&seed) / (float)RAND_MAX - 0.5f;
            y[i] += (float)(d + 1) * x[i][d];
        }
}

int main(void)
{
    cddp_param p = {.size = sizeof p, .name = "w", .data = w, .count = D, .dtype = CDDP_FLOAT32};
    cddp_comm *comm;
    cddp_ddp *ddp;

    if (cddp_init(&comm, NULL) || cddp_ddp_create(&ddp, comm, &p, 1, NULL))
        return fprintf(stderr, "%s\n", cddp_last_error()), 1;
    int n = cddp_world_size(comm);
    float *grad = cddp_ddp_grad(ddp, 0);
    make_points();
    for (int step = 0; step < 500; step++) {
        memset(grad, 0, sizeof w);
        for (int i = cddp_rank(comm); i < N; i += n) {
            float err = -y[i];
            for (int d = 0; d < D; d++)
                err += w[d] * x[i][d];
            for (int d = 0; d < D; d++)
                grad[d] += err * x[i][d] * (float)n / N;
        }
        cddp_ddp_grad_ready(ddp, 0);
        if (cddp_ddp_wait(ddp))
            return fprintf(stderr, "%s\n", cddp_last_error()), 1;
        for (int d = 0; d < D; d++)
            w[d] -= 2.0f * grad[d];
    }
    for (int d = 0; d < D && cddp_rank(comm) == 0; d++)
        printf("w[%d] = %.2f\n", d, w[d]);
    cddp_ddp_destroy(ddp);
    return cddp_finalize(comm) != CDDP_OK;
}
