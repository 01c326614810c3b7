/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of host names, one a line. Pure. */
#ifndef HOSTLIST_H
#define HOSTLIST_H

#include "launcher/cluster/cluster.h"

#define HOSTLIST_MAX (16u << 20) /* bytes of a list */

/*
 * Finds `host` in a list of hosts, one a line (the rest of a line is ignored, `#` begins a comment), and sets
 * node_rank, n_nodes and first_node by it. Names are equal with and without their domain. from names the list in error
 * messages. CDDP_E_NOT_FOUND: host is not in the list. CDDP_E_INVALID: the list is empty, or has it twice.
 */
cddp_status hostlist_find(struct cluster_env *s, const char *text, const char *host, const char *from,
                          struct cdi_error *err);

/*
 * Writes each host of text once, in the order of first appearance, one a line and with a NUL at the end, and their
 * number to *n. with_slots: every second word is a number of slots ("a 4 b 4"), and ignored.
 */
cddp_status hostlist_unique(const char *text, bool with_slots, struct cdi_buf *out, int64_t *n, struct cdi_error *err);

/* Sets s->nodes to "a, b, c", cut if too long, from lines. */
void hostlist_show(struct cluster_env *s, const char *lines);

/*
 * Sets this node's place among the hosts of a job, for a batch system that starts one cddprun on each. is_script: this
 * is the job's script, which runs on the first host only. list names the list in error messages.
 */
cddp_status hostlist_place(struct cluster_env *s, const struct cluster_source *from, const struct cdi_buf *hosts,
                           const char *list, bool is_script, struct cdi_error *err);

#endif
