/* SPDX-License-Identifier: Apache-2.0 */
/* In place of the GPU's sources in a build without CUDA. */
#include "engine.h"

#include <stdio.h>

cddp_status engine_gpu_create(struct engine **out, cddp_comm *comm, struct gpt *model, const struct options *opt,
                              size_t max_seqs, size_t share, char *why, size_t cap)
{
    (void)comm, (void)model, (void)opt, (void)max_seqs, (void)share;
    *out = NULL;
    (void)snprintf(why, cap,
                   "this program was built without CUDA (its headers or nvcc were not found): use --device cpu");
    return CDDP_E_UNSUPPORTED;
}
