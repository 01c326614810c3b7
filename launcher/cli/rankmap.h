/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The syntax of --redirects and --tee ("3", "0:1,12:3"), --local_ranks_filter ("0,4") and --duplicate_*_filters
 * ("loss,,acc,error"): a text is checked once, and then queried. Pure.
 */
#ifndef RANKMAP_H
#define RANKMAP_H

#include "common/error.h"

#include <stdbool.h>
#include <stdint.h>

#define RANKMAP_STDOUT 1u
#define RANKMAP_STDERR 2u

/* Checks a map: 0 to 3 for every worker, or RANK:0-3,... ; from names the flag in the error message. CDDP_E_INVALID. */
cddp_status rankmap_check(const char *map, const char *from, struct cdi_error *err);
/* Returns the RANKMAP_* bits of one worker in a checked map: the last ones of its rank, or 0. */
unsigned rankmap_streams(const char *map, uint32_t local_rank);
/* Returns whether a checked map names any stream of any worker. */
bool rankmap_any(const char *map);

/* Checks a set of local ranks, or of other small numbers: RANK,RANK,... CDDP_E_INVALID. */
cddp_status rankset_check(const char *set, const char *from, struct cdi_error *err);
/* Returns whether the rank is in a checked set. NULL is the set of all. */
bool rankset_has(const char *set, uint32_t local_rank);

/*
 * Splits a list of filters at its commas; ",," is a comma in a filter. Writes the filters to words (strlen(filters) + 1
 * bytes), each with a NUL at its end, and returns their number. Empty filters are skipped: they would match every line.
 */
unsigned rankmap_filters(const char *filters, char *words);

#endif
