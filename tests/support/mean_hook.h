/* SPDX-License-Identifier: Apache-2.0 */
/* A communication hook's begin that asks for the mean of its bucket, as a program does. */
#ifndef MEAN_HOOK_H
#define MEAN_HOOK_H

#include <cddp/cddp.h>

static inline cddp_status mean_hook_begin(void *arg, cddp_comm *comm, const cddp_bucket *b, uint64_t *ticket)
{
    const cddp_coll_args work = {.size = sizeof work,
                                 .coll = CDDP_COLL_ALL_REDUCE,
                                 .dtype = b->dtype,
                                 .op = CDDP_AVG,
                                 .in = b->data,
                                 .out = b->data,
                                 .count = b->count};

    (void)arg;
    return cddp_coll_start(comm, &work, 1, ticket);
}

#endif
