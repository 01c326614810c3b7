/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The little languages of --redirects and --tee ("3", "0:1,12:3"), --local_ranks_filter ("0,4") and
 * --duplicate_*_filters ("loss,,acc,error"): texts are checked once, then asked. Pure.
 */
#ifndef RANKMAP_H
#define RANKMAP_H

#include "common/error.h"

#include <stdbool.h>
#include <stdint.h>

#define RANKMAP_STDOUT 1u
#define RANKMAP_STDERR 2u

/* 0 to 3 for every worker, or RANK:0-3,... ; from names the flag for the sentence. CDDP_E_INVALID. */
cddp_status rankmap_check(const char *map, const char *from, struct cdi_error *err);
/* RANKMAP_* bits of one worker in a checked map. A rank that it does not name has none; named twice, the last counts.
 */
unsigned rankmap_streams(const char *map, uint32_t local_rank);
/* Does a checked map name any stream of any worker? */
bool rankmap_any(const char *map);

/* RANK,RANK,... CDDP_E_INVALID. */
cddp_status rankset_check(const char *set, const char *from, struct cdi_error *err);
/* Is it in a checked set? NULL is the set of all. */
bool rankset_has(const char *set, uint32_t local_rank);

/*
 * Cut a list of filters at its commas, ",," being a comma of a filter: the words one after another, each ended by a
 * NUL, into words (strlen(filters) + 1 bytes), and their number returned. Empty words are left out: every line has
 * them.
 */
unsigned rankmap_filters(const char *filters, char *words);

#endif
