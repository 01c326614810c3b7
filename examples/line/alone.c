/* SPDX-License-Identifier: Apache-2.0 */
/* One process with a serial training loop: it finds the plane that points lie on. */
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
    static float grad[D];

    make_points();
    for (int step = 0; step < 500; step++) {
        memset(grad, 0, sizeof grad);
        for (int i = 0; i < N; i++) {
            float err = -y[i];
            for (int d = 0; d < D; d++)
                err += w[d] * x[i][d];
            for (int d = 0; d < D; d++)
                grad[d] += err * x[i][d] / N;
        }
        for (int d = 0; d < D; d++)
            w[d] -= 2.0f * grad[d];
    }
    for (int d = 0; d < D; d++)
        printf("w[%d] = %.2f\n", d, w[d]);
    return 0;
}
