/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract of all backends, as a list of cases that use only their table (worker/backend/backend.h). Results are
 * compared, bit for bit, with a serial reference.
 */
#ifndef CDI_CONFORMANCE_H
#define CDI_CONFORMANCE_H

#include "ranks.h"

struct conformance_case {
    const char *name; /* the name in the TAP output */
    rank_fn fn;
    int min_ranks;
    int dies;       /* the rank that SIGKILL ends in it; -1: none */
    bool host_only; /* libraries of devices do not guarantee it: an order of sums, errors about ranks that disagree */
};

extern const struct conformance_case conformance_cases[];
extern const size_t conformance_n_cases;

#endif
