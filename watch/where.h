/* SPDX-License-Identifier: Apache-2.0 */
/* The text of cddprun --where: the place of each rank, from the reply of a rendezvous (query.h). Pure. */
#ifndef WATCH_WHERE_H
#define WATCH_WHERE_H

#include "common/buf.h"
#include "common/error.h"

#include <jansson.h>

/*
 * Appends the text for all jobs of a reply: for each a head, a line for ranks in equal places (the least advanced
 * first; `rows` lines for all jobs together, at least 2 each, PAGE_GROUPS_MAX at most), and totals. A line has at most
 * `columns` characters; 0: any number. Control characters in the reply become question marks. Returns CDDP_OK,
 * CDDP_E_PROTOCOL (not a reply), CDDP_E_NOMEM or CDDP_E_LIMIT.
 */
cddp_status where_text(json_t *reply, size_t rows, size_t columns, struct cdi_buf *out, struct cdi_error *err);

#endif
