/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/backend/nccl/state/nccl_call.h"

#include "worker/backend/nccl/device/mean.h"
#include "worker/backend/nccl/device/reduction_support.h"

static ncclDataType_t nccl_type(cddp_dtype dtype)
{
    _Static_assert(ncclInt8 == CDDP_INT8 - 1 && ncclFloat16 == CDDP_FLOAT16 - 1 && ncclBfloat16 == CDDP_BFLOAT16 - 1,
                   "the types are NCCL's own, counted from 1");
    return (ncclDataType_t)(dtype - 1);
}

cddp_status cdi_gpu_check_reduction(struct cdi_backend *b, cddp_dtype dtype, cddp_redop op, struct cdi_error *err)
{
    const struct cdi_reduction_facts facts = {.nccl_code = cdi_nccl.code, .old_gpu = b->old_gpu};

    return cdi_reduction_support_check(&facts, dtype, op, err);
}

static enum cdi_mean nccl_mean(const struct cdi_backend *b, const struct cdi_coll *op)
{
    const struct cdi_mean_facts facts = {.nccl_code = cdi_nccl.code,
                                         .n_ranks = b->world.size,
                                         .n_nodes = b->world.n_nodes,
                                         .window = cdi_gpu_is_window(op->region)};

    return cdi_mean_of(op, &facts);
}

static ncclRedOp_t nccl_op(const struct cdi_backend *b, const struct cdi_coll *op)
{
    _Static_assert((int)ncclSum == (int)CDDP_SUM && (int)ncclProd == (int)CDDP_PROD && (int)ncclMax == (int)CDDP_MAX &&
                       (int)ncclMin == (int)CDDP_MIN && (int)ncclAvg == (int)CDDP_AVG,
                   "the reductions are NCCL's own");
    return op->op == CDDP_AVG && nccl_mean(b, op) != CDI_MEAN_BY_NCCL ? ncclSum : (ncclRedOp_t)op->op;
}

/* Keeps the first error of several calls; a call inside a group is never "in progress" for long. */
static void keep_first_error(ncclResult_t *first, ncclResult_t r)
{
    if (*first == ncclSuccess && r != ncclInProgress)
        *first = r;
}

/* Broadcasts each part from the rank that has it; lengths differ. */
static ncclResult_t call_all_gatherv(const struct cdi_backend *b, ncclComm_t comm, const struct cdi_coll *op)
{
    size_t size = cddp_dtype_size(op->dtype), at = 0;
    ncclResult_t r = ncclSuccess;

    for (int k = 0; k < b->world.size; k++) {
        const struct cdi_wire w = cdi_wire_of(op->dtype, op->counts[k]);
        uint8_t *to = (uint8_t *)op->out + at;

        if (w.count > 0)
            keep_first_error(&r, cdi_nccl.broadcast(k == b->world.rank ? op->in : to, to, w.count, nccl_type(w.dtype),
                                                    k, comm, b->call.stream));
        at += op->counts[k] * size;
    }
    return r;
}

static ncclResult_t call_all_to_all(const struct cdi_backend *b, ncclComm_t comm, const struct cdi_coll *op)
{
    const struct cdi_wire w = cdi_wire_of(op->dtype, op->count);
    size_t block = op->count * cddp_dtype_size(op->dtype);
    ncclResult_t r = ncclSuccess;

    for (int k = 0; k < b->world.size; k++) {
        keep_first_error(&r, cdi_nccl.send((const uint8_t *)op->in + (size_t)k * block, w.count, nccl_type(w.dtype), k,
                                           comm, b->call.stream));
        keep_first_error(&r, cdi_nccl.recv((uint8_t *)op->out + (size_t)k * block, w.count, nccl_type(w.dtype), k, comm,
                                           b->call.stream));
    }
    return r;
}

static ncclResult_t nccl_call_one(const struct cdi_backend *b, ncclComm_t comm, const struct cdi_coll *op)
{
    const struct cdi_wire w = cdi_wire_of(op->dtype, op->count);
    CUstream s = b->call.stream;

    switch (op->kind) {
    case CDI_BARRIER:
        return cdi_nccl.all_reduce(b->token, b->token, 1, ncclInt32, ncclMax, comm, s);
    case CDI_ALL_REDUCE:
        return cdi_nccl.all_reduce(op->in, op->out, op->count, nccl_type(op->dtype), nccl_op(b, op), comm, s);
    case CDI_BROADCAST:
        return cdi_nccl.broadcast(op->in, op->out, w.count, nccl_type(w.dtype), op->root, comm, s);
    case CDI_REDUCE:
        return cdi_nccl.reduce(op->in, op->root == b->world.rank ? op->out : NULL, op->count, nccl_type(op->dtype),
                               nccl_op(b, op), op->root, comm, s);
    case CDI_ALL_GATHER:
        return cdi_nccl.all_gather(op->in, op->out, w.count, nccl_type(w.dtype), comm, s);
    case CDI_REDUCE_SCATTER:
        return cdi_nccl.reduce_scatter(op->in, op->out, op->count, nccl_type(op->dtype), nccl_op(b, op), comm, s);
    case CDI_ALL_GATHERV:
        return call_all_gatherv(b, comm, op);
    case CDI_ALL_TO_ALL:
        return call_all_to_all(b, comm, op);
    case CDI_SEND:
        return cdi_nccl.send(op->in, w.count, nccl_type(w.dtype), op->root, comm, s);
    case CDI_RECV:
        return cdi_nccl.recv(op->out, w.count, nccl_type(w.dtype), op->root, comm, s);
    }
    return ncclInvalidArgument;
}

/* Returns whether there is nothing to move; equal on all ranks that take part. */
static bool is_empty(const struct cdi_coll *op)
{
    return op->kind != CDI_BARRIER && op->kind != CDI_ALL_GATHERV && op->count == 0;
}

static bool makes_several_calls(const struct cdi_coll *op)
{
    return op->kind == CDI_ALL_GATHERV || op->kind == CDI_ALL_TO_ALL;
}

/*
 * Makes the calls for the operations of b->call, as one group if there are several, and returns NCCL's result.
 *
 * A group holds any number of messages, also several between two ranks and messages of a rank to itself. NCCL keeps a
 * queue of sends and a queue of receives for each peer, and takes one of each in every round of a schedule that is the
 * same on all ranks. So the messages of a pair match in their order; and where a group needs several kernels, no two
 * ranks wait for each other's later ones (scheduleP2pTasksToPlan in enqueue.cc, from line 610 in v2.19.3-1 to line 1131
 * in v2.30.7-1). A message of a rank to itself needs both ends in the group (otherwise ncclInvalidUsage), and is left
 * out where both are the same memory. NCCL may reorder the collectives of a group: it sorts them by size, which is the
 * same on all ranks (ncclTaskCollSorterInsert, since v2.22.3-1).
 */
ncclResult_t cdi_nccl_calls(void *arg)
{
    const struct cdi_backend *b = arg;
    const struct cdi_call *c = &b->call;
    bool group = c->n_ops > 1 || (c->n_ops == 1 && makes_several_calls(c->ops[0]));
    ncclResult_t r = group ? cdi_nccl.group_start() : ncclSuccess;

    if (r != ncclSuccess)
        return r;
    for (size_t i = 0; i < c->n_ops; i++)
        if (!is_empty(c->ops[i])) {
            ncclResult_t one = nccl_call_one(b, c->comm, c->ops[i]);

            if (group)
                keep_first_error(&r, one);
            else
                r = one;
        }
    if (group) {
        ncclResult_t end = cdi_nccl.group_end();

        r = r == ncclSuccess ? end : r;
    }
    return r;
}

/* ------------------------------------------------------------------------------------------------------- means ---- */

/* Launches a kernel that multiplies by 1 / size. write: it then writes the ticket (NULL: it does not). */
static cddp_status divide(struct cdi_backend *b, void *x, size_t count, cddp_dtype dtype, cdi_write_fn *write,
                          uint64_t ticket, struct cdi_error *err)
{
    struct cdi_launch scale;
    cddp_status st = cdi_launch_scale(&scale, b->device.n_sm, x, count, dtype, 1.0 / b->world.size, err);

    if (st != CDDP_OK)
        return st;
    if (write != NULL)
        write(b, ticket, &scale);
    return cdi_device_launch(&b->device, &scale, err);
}

/* Returns the number of elements that this rank contributes to a reduction. */
static size_t n_input(const struct cdi_backend *b, const struct cdi_coll *op)
{
    return op->kind == CDI_REDUCE_SCATTER ? op->count * (size_t)b->world.size : op->count;
}

/* Copies the program's input, which must not change, to the output. */
static cddp_status copy_to_out(struct cdi_backend *b, struct cdi_coll *op, struct cdi_error *err)
{
    cddp_status st = CDDP_OK;

    if (op->kind != CDI_ALL_REDUCE || op->in == op->out)
        return CDDP_OK;
    st = cdi_cuda_check(cdi_cuda.on_device(cdi_device_ptr(op->out), cdi_device_ptr(op->in),
                                           op->count * cddp_dtype_size(op->dtype), cdi_device_stream(&b->device)),
                        "copying", err);
    op->in = op->out;
    return st;
}

bool cdi_nccl_divides_before(const struct cdi_backend *b, const struct cdi_coll *op)
{
    return op->count > 0 && nccl_mean(b, op) == CDI_MEAN_BEFORE;
}

bool cdi_nccl_divides_after(const struct cdi_backend *b, const struct cdi_coll *op)
{
    bool here = op->kind != CDI_REDUCE || op->root == b->world.rank;

    return here && op->count > 0 && nccl_mean(b, op) == CDI_MEAN_AFTER;
}

cddp_status cdi_nccl_divide_before(struct cdi_backend *b, struct cdi_coll *op, cdi_write_fn *write, uint64_t ticket,
                                   struct cdi_error *err)
{
    cddp_status st;

    if (!cdi_nccl_divides_before(b, op))
        return CDDP_OK;
    st = copy_to_out(b, op, err);
    return st == CDDP_OK ? divide(b, (void *)(uintptr_t)op->in, n_input(b, op), op->dtype, write, ticket, err) : st;
}

cddp_status cdi_nccl_divide_after(struct cdi_backend *b, const struct cdi_coll *op, cdi_write_fn *write,
                                  uint64_t ticket, struct cdi_error *err)
{
    return cdi_nccl_divides_after(b, op) ? divide(b, op->out, op->count, op->dtype, write, ticket, err) : CDDP_OK;
}
