/* SPDX-License-Identifier: Apache-2.0 */
/* How large the largest size may be for the memory that there is. */
#ifndef BENCH_ROOM_H
#define BENCH_ROOM_H

#include <stddef.h>
#include <stdint.h>

/*
 * Returns the bytes that one buffer may have. A rank has two of them where the backend works, and one on the host for
 * checks. host: what the node can give, for `ranks` ranks; device: the memory of the rank's GPU, 0 for the CPU.
 */
uint64_t bench_most_bytes(uint64_t host, int ranks, uint64_t device, int checks);

#endif
