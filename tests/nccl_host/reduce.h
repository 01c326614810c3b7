/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of NCCL's reductions on the host, on elements of one type. */
#ifndef NCCL_HOST_REDUCE_H
#define NCCL_HOST_REDUCE_H

#include "device.h"
/* It needs the one above. */
#include "collectives.h"

#include <cstddef>
#include <cstdint>

/* One of NCCL's device functions: what a work item does, by the id in its batch. */
struct Function {
    int coll = -1;
    int op = 0;
    int type = 0;
};

/* out[i] = post(pre(a[i]) + b[i]); b may be NULL. pre and post: where the operation has them, and these flags say so.
 */
void reduce_elements(const Function &f, uint64_t argument, void *out, const void *a, const void *b, size_t count,
                     bool pre_a, bool post);
/* Reads the operation's argument of this type from memory. */
uint64_t reduce_argument(const void *at, int type);

#endif
