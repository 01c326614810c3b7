/* SPDX-License-Identifier: Apache-2.0 */
#include "room.h"

#define GIB ((uint64_t)1 << 30)

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t bench_most_bytes(uint64_t host, int ranks, uint64_t device, int checks)
{
    /* A tenth stays free, and at most 4 GiB: as nccl-tests leaves a part to the rest of the machine. */
    uint64_t share = host == UINT64_MAX ? host : (host - least(host / 10, 4 * GIB)) / (uint64_t)(ranks > 0 ? ranks : 1);

    if (device == 0)
        return share / (checks > 0 ? 3 : 2);
    return least(checks > 0 ? share : UINT64_MAX, (device - least(device / 8, 4 * GIB)) / 2);
}
