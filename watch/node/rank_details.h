/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the workers of a node do, for its report: state, processor time, memory, GPU, and stacks. It reads /proc, and
 * the workers' memory for stacks, so it may block: one thread at a time, and not the loop's.
 */
#ifndef WATCH_NODE_RANK_DETAILS_H
#define WATCH_NODE_RANK_DETAILS_H

#include "protocol/node_report.h"

#define RANK_DETAILS_MS 3000           /* for all stacks of a call */
#define RANK_DETAILS_STACK (16 * 1024) /* bytes of a stack's text */
#define RANK_DETAILS_STACKS_MAX 8      /* stacks of a call */

struct rank_details; /* the samples of earlier looks */

/* For n workers. CDDP_E_NOMEM. */
cddp_status rank_details_create(struct rank_details **out, size_t n);
void rank_details_destroy(struct rank_details *d); /* NULL-safe */
/*
 * Notes which processes use libcddp, if they are not the workers themselves but their descendants: later, such a
 * process may be gone while its worker runs. Reads a few files once for each; may be called on the loop's thread.
 */
void rank_details_note(struct rank_details *d, const struct cdi_node_report *r);
/*
 * Fills in `doing`, `halted`, `cpu_permille`, `resident_bytes` and the GPU of all ranks, and `stack` of the n ranks in
 * stacks_of. The place of a rank whose process is gone becomes EXITED. The stacks are d's until the next call.
 */
void rank_details_look(struct rank_details *d, struct cdi_node_report *r, const int32_t *stacks_of, size_t n);

#endif
