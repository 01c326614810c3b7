/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processors and the memory that this process can use. They may be fewer than the node's, since a container or a
 * batch system limits them by affinity, by a quota of time, or by a cgroup. Read at each call; any thread; never fails.
 */
#ifndef CDI_CPUS_H
#define CDI_CPUS_H

#include <stdbool.h>
#include <stdint.h>

/* Returns the number of processors in the affinity mask, or the cgroup's quota (v1 or v2, rounded down) if that is
 * less. At least 1. Reads a few small files: milliseconds at worst, so not for a fast path. */
int cdi_usable_cpus(void);

/*
 * Returns the scheduler's autogroup of this process; 0: it has none. Each session (setsid) is one; sched_yield yields
 * the processor to threads of the same group only. `root` as below.
 */
uint64_t cdi_cpus_autogroup(const char *root);

/* Gets the calling thread's affinity mask: bit i of the words is processor i. All bits are 0 if it cannot be read. */
void cdi_cpus_affinity(uint64_t *words, int n_words);

/*
 * Returns the smallest quota from this process's cgroup up to the root, in whole processors (at least 1); 0: no quota.
 * `root` is put in front of /proc and /sys ("" in production).
 */
int cdi_cpus_quota(const char *root);

/*
 * Returns the bytes that this process can still get: of the node and of its cgroups (version 2), with the page cache,
 * which can go. INT64_MAX: not known. `root` as above.
 */
int64_t cdi_memory_available(const char *root, bool with_swap);

#endif
