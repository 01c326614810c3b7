/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of a step; tests/integration/recorded_optimizers.c compares it with PyTorch's results. */
#include "hygiene.h"
#include "worker/math/optim_update.h"

CDI_SUITE(optim_update);

Test(optim_update, step_is_independent_of_cuts)
{
    static const struct cdi_optim_rule rules[] = {
        {.kind = CDDP_OPTIM_SGD, .lr = 0.1, .weight_decay = 0.01, .factor = 0.25},
        {.kind = CDDP_OPTIM_SGD, .lr = 0.1, .momentum = 0.9, .nesterov = 1, .factor = 1},
        {.kind = CDDP_OPTIM_ADAMW,
         .lr = 0.1,
         .weight_decay = 0.1,
         .beta1 = 0.9,
         .beta2 = 0.99,
         .eps = 1e-8,
         .factor = 1},
    };
    enum { N = 77 };

    for (size_t r = 0; r < sizeof rules / sizeof rules[0]; r++)
        for (size_t cut = 0; cut <= N; cut++) {
            float w[2][N], g[N], m[2][N] = {{0}}, v[2][N] = {{0}};

            for (int i = 0; i < N; i++) {
                g[i] = (float)(i * 37 % 19 - 9) / 7;
                w[0][i] = w[1][i] = (float)(i * 11 % 23 - 11) / 13;
            }
            for (uint64_t step = 1; step <= 3; step++) {
                cdi_optim_update_f32(&rules[r], step, w[0], g, (float *[]){m[0], v[0]}, N);
                cdi_optim_update_f32(&rules[r], step, w[1], g, (float *[]){m[1], v[1]}, cut);
                cdi_optim_update_f32(&rules[r], step, w[1] + cut, g + cut, (float *[]){m[1] + cut, v[1] + cut},
                                     N - cut);
            }
            cr_assert_arr_eq(w[0], w[1], sizeof w[0], "rule %zu cut at %zu", r, cut);
        }
}
