/* SPDX-License-Identifier: Apache-2.0 */
/* Where a job's ranks are, as JSON: for /status, and for REPLY. Pure. */
#ifndef WATCH_JOB_JSON_H
#define WATCH_JOB_JSON_H

#include "rendezvous/http/page_data.h"

/* Appends to an array, and frees it after an error. Returns the array, or NULL. */
json_t *page_json_add(json_t *array, json_t *value);
/*
 * Returns a job without its nodes, and a node of it with its ranks, as REPLY has them (docs/internals/protocol.md);
 * NULL: out of memory.
 */
json_t *page_job_head(const struct page_job *j);
json_t *page_node_json(const struct page_job *j, const struct page_node *n);
/* Returns an object with verdict, places, timing, history and where (docs/internals/protocol.md); NULL: out of memory.
 */
json_t *page_job_view(const struct page_job *j);

#endif
