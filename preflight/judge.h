/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides from the facts of all nodes which of them would fail or slow down the job. Pure.
 *
 * A finding is an error if the job would fail or stop on that node: a port that cannot be reached, a full disk. It is a
 * warning if the node differs from the others: a slow link, a wrong clock. Only errors keep the job from starting.
 */
#ifndef PREFLIGHT_JUDGE_H
#define PREFLIGHT_JUDGE_H

#include "preflight/facts.h"

#define PREFLIGHT_FINDINGS 13                   /* about one node, at most */
#define PREFLIGHT_SHM_MIN ((uint64_t)16 << 20)  /* bytes free in /dev/shm */
#define PREFLIGHT_DISK_MIN ((uint64_t)64 << 20) /* bytes free on a disk */
#define PREFLIGHT_FILES_MIN 256                 /* the limit on open files */
#define PREFLIGHT_CLOCK_US 1000000              /* a difference from the middle clock */
#define PREFLIGHT_SLOW 3                        /* a link is slow below the median divided by this */

struct preflight_finding {
    uint32_t node;
    bool error; /* or a warning */
    char text[320];
};

/*
 * Writes at most cap findings about n nodes, ordered by node, and returns their number. nodes[i] is node rank i.
 * Several bad links with one end in common are one finding about that end. Needs n * 24 bytes of memory; without them
 * it returns the findings that need none.
 */
size_t preflight_judge(const struct preflight_facts *nodes, size_t n, struct preflight_finding *out, size_t cap);

/* Returns the rate below which a link counts as slow, in MiB/s; 0: too few links were measured to tell. */
double preflight_slow_below(const struct preflight_facts *nodes, size_t n);

#endif
