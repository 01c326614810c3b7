/* SPDX-License-Identifier: Apache-2.0 */
/* Names of operations, in the flight page and in messages. Pure. */
#ifndef CDI_BACKEND_DESCRIBE_H
#define CDI_BACKEND_DESCRIBE_H

#include "worker/backend/backend.h"

/* Returns the number of an operation in the flight page. */
enum cdi_flight_op cdi_flight_op_of(enum cdi_coll_kind kind);
/* Returns the same for operations that are enqueued as one: the collective that the program has called. */
enum cdi_flight_op cdi_flight_op_of_group(const struct cdi_coll *ops, size_t n);
/* Is it a collective that is made of others, and not a function? */
static inline bool cdi_api_call_is_coll(uint32_t asked)
{
    return asked >= CDI_API_GATHER && asked <= CDI_API_ALL_GATHERV;
}
/* Returns the name of an operation, such as "all_reduce"; NULL for an unknown number, which another process may send.
 */
const char *cdi_coll_name(uint32_t kind);
/* Returns the word between the operation and the rank of its root, "to" or "from"; NULL: it has no root. */
const char *cdi_coll_root_word(enum cdi_coll_kind kind);
/* Does the operation use cdi_coll.op? */
bool cdi_coll_reduces(enum cdi_coll_kind kind);
/* Returns the name of a caller, "cddp_ddp_create" or "gather"; NULL: the program itself, or an unknown number. */
const char *cdi_api_call_name(uint32_t asked);
/*
 * Writes an operation, `plain`, of a caller that has a name: "cddp_ddp_create (all_gather of 8 uint64)"; where buckets
 * are units, "cddp_fsdp_gather of unit 2 'h.1' (all_gather of 9424 float32)". bucket: -1: none. names: "": not known.
 */
void cdi_api_call_text(uint32_t asked, int bucket, const char *names, const char *plain, char *buf, size_t cap);
/* Writes " (bucket 2: 'fc1.weight' and 3 more)"; "" for an operation without a bucket. */
void cdi_bucket_text(const struct cdi_coll *op, char *buf, size_t cap);
/*
 * Describes an operation: "all_reduce(mean) of 10 float32 (bucket 2: 'fc1.weight' and 3 more)", "send of 3 float32 to
 * rank 1", "cddp_checkpoint_save (broadcast of 3 uint8 from rank 0)", "gather of 3 float32 to rank 1" (the BARRIER
 * before its messages), "gather (recv of 3 float32 from rank 2)".
 */
void cdi_coll_text(const struct cdi_coll *op, char *buf, size_t cap);

/*
 * Writes in which model or steps two operations differ, to follow their texts: ": rank 0's is of model 1, ...". "":
 * they do not, or their texts alone may say it. who_a, who_b: as by cdi_who().
 */
void cdi_origins_text(const char *who_a, const struct cdi_origin *a, const char *who_b, const struct cdi_origin *b,
                      char *buf, size_t cap);

/* Follows "rank N " in the error of a rank that waits for a peer which has called cddp_finalize. */
#define CDI_HAS_LEFT "has left the job (cddp_finalize)"
/* Adds to such an error of an operation, once, what helps if that rank had fewer batches. Other errors stay. */
void cdi_coll_advise(const struct cdi_coll *op, struct cdi_error *err);

#endif
