/* SPDX-License-Identifier: Apache-2.0 */
/* Many ranks, or nodes, in a short text, such as "0-6, 8, 9 and 12 more". */
#ifndef CDI_RANK_RANGES_H
#define CDI_RANK_RANGES_H

#include <stddef.h>
#include <stdint.h>

/* Begin, add, end. The text belongs to the caller, and has the order of adding. */
struct cdi_rank_ranges {
    char *text;
    size_t cap, used;
    int64_t first, last; /* the range that may grow; first < 0: none */
    uint64_t more;       /* numbers that have no room */
    unsigned room;       /* the number of ranges that may still be written */
};

/* cap: bytes of text, at least 32, NUL included. most: the maximum number of ranges, however many fit. */
void cdi_rank_ranges_begin(struct cdi_rank_ranges *g, char *text, size_t cap, unsigned most);

/* The same number again adds nothing. */
void cdi_rank_ranges_add(struct cdi_rank_ranges *g, uint32_t rank);

/* Completes the text: " and 12 more" for those without room. Returns its length. */
size_t cdi_rank_ranges_end(struct cdi_rank_ranges *g);

#endif
