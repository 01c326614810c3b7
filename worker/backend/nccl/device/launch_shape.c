/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/device/launch_shape.h"

/* The finalizer of splitmix64: each bit of x reaches all of the result. */
static uint64_t mix(uint64_t h, uint64_t x)
{
    h ^= x + UINT64_C(0x9e3779b97f4a7c15) + (h << 6) + (h >> 2);
    h = (h ^ (h >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ (h >> 27)) * UINT64_C(0x94d049bb133111eb);
    return h ^ (h >> 31);
}

uint64_t cdi_launch_shape(uint64_t before, const struct cdi_coll *op, int n_ranks)
{
    uint64_t h = mix(before, (uint64_t)op->kind | (uint64_t)op->dtype << 8 | (uint64_t)op->op << 16);

    h = mix(h, op->count);
    h = mix(h, (uint64_t)(uint32_t)op->root << 2 | (uint64_t)(op->region != NULL) << 1 | (op->in == op->out));
    for (int r = 0; op->kind == CDI_ALL_GATHERV && r < n_ranks; r++)
        h = mix(h, op->counts[r]);
    return h != 0 ? h : 1;
}

bool cdi_launch_shape_seen(struct cdi_launch_shapes *s, uint64_t shape)
{
    size_t at = shape & (CDI_LAUNCH_SHAPES - 1);

    while (s->seen[at] != 0 && s->seen[at] != shape)
        at = (at + 1) & (CDI_LAUNCH_SHAPES - 1);
    if (s->seen[at] == shape)
        return true;
    if (s->n < CDI_LAUNCH_SHAPES / 2) {
        s->seen[at] = shape;
        s->n++;
    }
    return false;
}
