/* SPDX-License-Identifier: Apache-2.0 */
/* Launches that also look for numbers that are not finite. */
#include "worker/backend/nccl/kernels/kernel.h"

void cdi_launch_pack_looks(struct cdi_launch *launch, const struct cdi_slice *slice, size_t taken,
                           const struct cdi_look *look, const uint32_t *key)
{
    struct cdi_pack_args *args = &launch->args.pack;
    uint32_t k = 0;

    for (size_t i = 0; i < taken; i++)
        if (slice[i].data != NULL && slice[i].bytes > 0)
            args->slice[k++].flag = key[i];
    args->word = look->word;
    args->limit = look->limit;
    args->low = look->low;
    launch->kernel = CDI_KERNEL_PACK_LOOK;
}

size_t cdi_launch_reach(const struct cdi_look *look, size_t first, size_t at, size_t count)
{
    if (look != NULL && look->n - first > CDI_KERNEL_PARTS)
        return look->part[first + CDI_KERNEL_PARTS].begin - at;
    return count - at;
}

size_t cdi_launch_looks(struct cdi_launch *launch, const struct cdi_look *look, size_t first, size_t at)
{
    size_t n = look->n - first < CDI_KERNEL_PARTS ? look->n - first : CDI_KERNEL_PARTS;
    bool casts = launch->kernel == CDI_KERNEL_CAST;
    struct cdi_kernel_look *to = casts ? &launch->args.cast_look.look : &launch->args.scale_look.look;

    if (n == 0)
        return 0;
    to->word = look->word;
    to->limit = look->limit;
    to->low = look->low;
    to->n = (uint32_t)n;
    for (size_t k = 0; k < n; k++) {
        to->begin[k] = look->part[first + k].begin - at;
        to->end[k] = look->part[first + k].end - at;
        to->key[k] = look->part[first + k].key;
    }
    launch->kernel = casts ? CDI_KERNEL_CAST_LOOK : CDI_KERNEL_SCALE_LOOK;
    return n;
}
