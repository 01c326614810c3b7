/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every backend must do, as a list of cases over nothing but its table (worker/backend/backend.h). Results are
 * compared, bit for bit, with a serial reference.
 */
#ifndef CDI_CONFORMANCE_H
#define CDI_CONFORMANCE_H

#include "ranks.h"

struct conformance_case {
    const char *name; /* a sentence */
    rank_fn fn;
    int min_ranks;
    int dies;       /* this rank is killed by SIGKILL in it; -1: none */
    bool host_only; /* what a device's library does not promise: an order of sums, a word about ranks that disagree */
};

extern const struct conformance_case conformance_cases[];
extern const size_t conformance_n_cases;

#endif
