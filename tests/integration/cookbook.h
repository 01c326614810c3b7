/* SPDX-License-Identifier: Apache-2.0 */
/* What a block of docs/cookbook.md stands in: the model of examples/line, with rows that are added up in parts. */
#include <cddp/cddp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 8192
#define D 8
#define STEPS 300

static float x[N][D], y[N], w[D];
static float *grad;
static size_t first; /* of this rank's rows */
static cddp_comm *comm;
static cddp_ddp *ddp;

static _Noreturn void fail(const char *why)
{
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static void begin(uint32_t flags)
{
    cddp_param p = {.size = sizeof p, .name = "w", .data = w, .count = D, .dtype = CDDP_FLOAT32};
    cddp_ddp_options options = {.size = sizeof options, .flags = flags};
    unsigned seed = 1;

    if (cddp_init(&comm, NULL) != CDDP_OK || cddp_ddp_create(&ddp, comm, &p, 1, &options) != CDDP_OK)
        fail(cddp_last_error());
    grad = cddp_ddp_grad(ddp, 0);
    first = (size_t)cddp_rank(comm) * 1024;
    for (int i = 0; i < N; i++)
        for (int d = 0; d < D; d++) {
            x[i][d] = (float)rand_r(&seed) / (float)RAND_MAX - 0.5f;
            y[i] += (float)(d + 1) * x[i][d];
        }
}

static inline void zero_gradients(void)
{
    memset(grad, 0, sizeof w);
}

static double backward(size_t from, size_t n, float factor, cddp_ddp *ready)
{
    double loss = 0;

    for (size_t i = from; i < from + n; i++) {
        float err = -y[i];

        for (int d = 0; d < D; d++)
            err += w[d] * x[i][d];
        loss += 0.5 * err * err;
        for (int d = 0; d < D; d++)
            grad[d] += factor * err * x[i][d];
    }
    if (ready != NULL && cddp_ddp_grad_ready(ready, 0) != CDDP_OK)
        fail(cddp_last_error());
    return loss;
}

static inline void update(void)
{
    for (int d = 0; d < D; d++)
        w[d] -= 2.0f * grad[d];
}

static void end(void)
{
    for (int d = 0; d < D && cddp_rank(comm) == 0; d++)
        printf("w[%d] = %.2f\n", d, w[d]);
    cddp_ddp_destroy(ddp);
    if (cddp_finalize(comm) != CDDP_OK)
        fail(cddp_last_error());
}
