/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many processors may this process really use? Not nproc: a container or a batch system may give fewer, by affinity
 * or by a quota of time. Read anew at each call; any thread; never fails.
 */
#ifndef CDI_CPUS_H
#define CDI_CPUS_H

#include <stdint.h>

/* Processors in the affinity mask, cut down to the cgroup's quota (v1 and v2; a part of a processor counts as none). At
 * least 1. Reads a few small files: milliseconds at worst, so not for a fast path. */
int cdi_usable_cpus(void);

/*
 * The scheduler's automatic group of this process, or 0 where there is none. Each session (setsid) is one; sched_yield
 * gives the processor to threads of the same group only. `root` as below.
 */
uint64_t cdi_cpus_autogroup(const char *root);

/* The calling thread's affinity mask: bit i of the words is processor i. No bit where it cannot be read. */
void cdi_cpus_affinity(uint64_t *words, int n_words);

/*
 * The smallest quota from this process's cgroup up to the root, in whole processors (at least 1), or 0 where there is
 * none. `root` is put in front of /proc and /sys ("" in production).
 */
int cdi_cpus_quota(const char *root);

#endif
