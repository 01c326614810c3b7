/* SPDX-License-Identifier: Apache-2.0 */
/* The table that cddp-preflight prints: nodes, then findings. Pure. */
#ifndef PREFLIGHT_TABLE_H
#define PREFLIGHT_TABLE_H

#include "common/buf.h"
#include "preflight/judge.h"

#define PREFLIGHT_ROWS 24 /* with more nodes, the table has node 0 and those with findings */

/* Appends the table of n nodes and the findings, lines with their newline. Returns CDDP_E_NOMEM or CDDP_OK. */
cddp_status preflight_table(struct cdi_buf *to, const struct preflight_facts *nodes, size_t n,
                            const struct preflight_finding *findings, size_t n_findings, double seconds);

#endif
